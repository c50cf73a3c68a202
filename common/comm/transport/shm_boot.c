/* shm_boot.c -- how the ranks of one host find each other's memory.
 *
 * Over another group, the first rank of the host makes the job and the first area, and the ranks
 * exchange process and file numbers through that group. If some rank cannot open its peers' files,
 * all agree to stay with that group. Under fsdp_run, the launcher made the job and the area, and
 * every rank inherits them. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include "common/base/page.h"
#include "common/comm/transport/shm_impl.h"

/* ---- joining a job -------------------------------------------------------------------------- */

/* The wait for a rank that has not started yet. */
typedef struct start_wait {
    clock_wait waited;
    double timeout_s;
} start_wait;

static bool start_over(void *self)
{
    start_wait *w = self;
    shm_launcher_check();
    return shm_failed(NULL) != FSDP_OK || clock_wait_s(&w->waited) > w->timeout_s;
}

static fsdp_status open_peer(int peer, double timeout_s)
{
    shm_process *p = &shm_self;
    shm_member *m = &p->job->member[peer];
    int mine = comm_world_rank(&p->team, p->team.rank), theirs = comm_world_rank(&p->team, peer);
    start_wait w = {clock_wait_begin(), timeout_s};
    if (!shm_word_wait(&m->ready, 1, &(shm_patience){.over = start_over, .self = &w})) {
        TRY(shm_failed(NULL));
        return fsdp_error(
            FSDP_ETIMEOUT,
            "see that rank's messages; FSDP_TIMEOUT_S sets the limit, if it is above 10",
            "comm_open: rank %d waited %.1f s for rank %d to start", mine, timeout_s, theirs);
    }
    p->peer[peer].file = shm_file_open(&m->share);
    if (p->peer[peer].file >= 0)
        return FSDP_OK;
    int err = errno;
    TRY(shm_failed(NULL)); /* the peer may have ended because the job failed */
    return fsdp_error(FSDP_ECOMM, "use --comm mpi",
                      "comm_open: rank %d cannot open the memory of rank %d (process %d): %s", mine,
                      theirs, (int)m->share.pid, strerror(err));
}

/* Join the job, whose members are the ranks of *team. */
static fsdp_status join(shm_job *job, const comm_team *team)
{
    shm_process *p = &shm_self;
    size_t size = (size_t)team->size;
    p->job = job;
    p->team = *team;
    atomic_store(&p->stop, false);
    p->peer = malloc(size * sizeof *p->peer);
    if (p->peer == NULL)
        return fsdp_error(FSDP_ENOMEM, "", "comm_open: no memory for %zu ranks", size);
    for (size_t r = 0; r < size; r++)
        p->peer[r] = (shm_peer){.file = -1, .pidfd = -1};
    shm_watch_launcher();
    shm_member *me = &job->member[p->team.rank];
    me->share = shm_file_of(device_share_fd(team->dev));
    shm_word_set(&me->ready, 1);
    for (int r = 0; r < p->team.size; r++)
        if (r != p->team.rank)
            TRY(open_peer(r, team->start_s));
    return shm_watch_start();
}

void shm_leave(void)
{
    shm_process *p = &shm_self;
    if (p->job == NULL)
        return;
    if (p->peer != NULL)
        shm_watch_stop();
    shm_map_free_all();
    for (int r = 0; p->peer != NULL && r < p->team.size; r++) {
        if (p->peer[r].file >= 0)
            close(p->peer[r].file);
        p->peer[r].file = -1;
    }
    if (atomic_load(&p->job->failed) != SHM_FAIL_NONE)
        return;
    free(p->peer);
    munmap(p->job, shm_job_bytes(p->team.size));
    p->job = NULL;
    p->peer = NULL;
}

/* ---- over another group --------------------------------------------------------------------- */

/* The first rank of a host makes the memory of its job, followed by the memory of the first group.
 * If any rank cannot map it, all hosts stay with MPI. No rank waits for another in shared memory
 * before all have mapped it. */
fsdp_status shm_join(transport_group *talk, const comm_team *host, char **area)
{
    const shm_shared x = {.label = "comm_open: files",
                          .first = host->first, /* talk's ranks are world ranks */
                          .bytes = shm_job_bytes(host->size) + shm_area_bytes(host->size),
                          .cannot = {.status = FSDP_ESKIP,
                                     .what = "comm_open: a rank cannot map its host's memory",
                                     .hint = "use --comm mpi"}};
    fsdp_status able = FSDP_OK;
    char *memory;
    *area = NULL;
    if (device_share_fd(host->dev) < 0)
        able = fsdp_error(FSDP_ESKIP, "use --comm mpi",
                          "comm_open: a rank cannot make memory that others can map: %s",
                          strerror(errno));
    if (transport_agree(talk, able) != FSDP_OK || shm_area_share(talk, &x, &memory) != FSDP_OK)
        return transport_failed(talk);
    shm_job *job = (shm_job *)(void *)memory;
    job->n_members = host->size;
    if (transport_agree(talk, join(job, host)) == FSDP_OK) {
        *area = memory + shm_job_bytes(host->size);
        return FSDP_OK;
    }
    fsdp_status status = transport_failed(talk);
    munmap(memory + shm_job_bytes(host->size), shm_area_bytes(host->size));
    shm_leave(); /* unmaps the job */
    return status;
}

/* ---- started by fsdp_run -------------------------------------------------------------------- */

static bool has_bytes(int fd, size_t bytes)
{
    struct stat st;
    return fstat(fd, &st) == 0 && (size_t)st.st_size == bytes;
}

/* Check that the files are the launcher's: any other file with that number would be mapped too. */
static fsdp_status check_launch(const comm_run_start *run)
{
    if (!has_bytes(run->job_fd, shm_job_bytes(run->size)) ||
        !has_bytes(run->area_fd, shm_area_bytes(run->size)))
        return fsdp_error(FSDP_ECOMM,
                          "let fsdp_run start this program itself, and keep the first group open "
                          "until the end; unset " COMM_RUN_ENV " if there is no fsdp_run",
                          "comm_open: rank %d: the launcher's files %d and %d are not open here",
                          run->rank, run->job_fd, run->area_fd);
    return FSDP_OK;
}

fsdp_status shm_join_launched(const comm_team *team, const comm_run_start *run, char **area)
{
    TRY(check_launch(run));
    char *job = shm_area_map(run->job_fd, shm_job_bytes(run->size));
    *area = shm_area_map(run->area_fd, shm_area_bytes(run->size));
    if (job == NULL || *area == NULL)
        return fsdp_error(FSDP_ENOMEM, page_hint(errno, "see the memory that is left"),
                          "comm_open: no memory for %d ranks: %s", run->size, strerror(errno));
    if (atomic_load(&((shm_job *)(void *)job)->member[run->rank].ready.value) != 0)
        return fsdp_error(FSDP_ESTATE, "start fsdp_run once for each program",
                          "comm_open: rank %d has joined already, by another process", run->rank);
    if (device_share_fd(team->dev) < 0)
        return fsdp_error(
            FSDP_ECOMM,
            page_hint(errno, "use --comm mpi, started by MPICH's mpiexec: it needs no such memory"),
            "comm_open: rank %d cannot make memory that others can map: %s", run->rank,
            strerror(errno));
    TRY(join((shm_job *)(void *)job, team));
    close(run->job_fd);
    close(run->area_fd);
    return FSDP_OK;
}
