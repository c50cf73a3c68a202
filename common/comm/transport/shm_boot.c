/* shm_boot.c -- how the ranks of one host find each other's memory.
 *
 *   started by MPI        the first rank of the host makes the job and the first area; process
 *                         and file numbers go round by MPI
 *   started by fsdp_run   (no MPI) the launcher made both and every rank has inherited them
 *
 * A rank opens another's file by /proc/PID/fd/N, which the kernel allows between processes of one
 * user; where it does not (another process namespace, a hardened kernel) the ranks agree to stay
 * with MPI. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include "common/comm/transport/shm_boot.h"
#include "common/comm/transport/shm_impl.h"

shm_process shm_self = {.world_lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- joining a job -------------------------------------------------------------------------- */

/* A rank that has not started yet: wait for it as for a late call. */
typedef struct start_wait {
    double until_s;
} start_wait;

static bool start_over(void *self)
{
    return clock_now_s() > ((start_wait *)self)->until_s;
}

static fsdp_status open_peer(int peer, double timeout_s)
{
    shm_process *p = &shm_self;
    shm_member *m = &p->job->member[peer];
    int mine = p->world_rank[p->me], theirs = p->world_rank[peer];
    start_wait w = {clock_now_s() + timeout_s};
    if (!shm_word_wait(&m->ready, 1, &(shm_patience){.over = start_over, .self = &w}))
        return fsdp_error(FSDP_ETIMEOUT, "see that rank's messages; FSDP_TIMEOUT_S sets the limit",
                          "comm_open: rank %d waited %.1f s for rank %d to start", mine, timeout_s,
                          theirs);
    p->peer_file[peer] = shm_file_open(&m->share);
    if (p->peer_file[peer] >= 0)
        return FSDP_OK;
    return fsdp_error(FSDP_ECOMM, "use --comm mpi",
                      "comm_open: rank %d cannot open the memory of rank %d (process %d): %s", mine,
                      theirs, (int)m->share.pid, strerror(errno));
}

fsdp_status shm_self_open(shm_job *job, const comm *core)
{
    shm_process *p = &shm_self;
    size_t size = (size_t)core->size;
    p->job = job;
    p->me = core->rank;
    p->size = core->size;
    atomic_store(&p->stop, false);
    p->world_rank = malloc(size * sizeof *p->world_rank);
    p->peer_file = malloc(size * sizeof *p->peer_file);
    p->pidfd = malloc(size * sizeof *p->pidfd);
    if (p->world_rank == NULL || p->peer_file == NULL || p->pidfd == NULL)
        return fsdp_error(FSDP_ENOMEM, "", "comm_open: no memory for %zu ranks", size);
    memcpy(p->world_rank, core->world_ranks, size * sizeof *p->world_rank);
    memset(p->peer_file, -1, size * sizeof *p->peer_file);
    memset(p->pidfd, -1, size * sizeof *p->pidfd);
    shm_member *me = &job->member[p->me];
    me->share = shm_file_of(device_share_fd(core->dev));
    shm_word_set(&me->ready, 1);
    for (int r = 0; r < p->size; r++)
        if (r != p->me)
            TRY(open_peer(r, core->timeout_s));
    return shm_watch_start();
}

void shm_self_close(void)
{
    shm_process *p = &shm_self;
    if (p->job == NULL)
        return;
    if (p->world_rank != NULL && p->pidfd != NULL && p->peer_file != NULL)
        shm_watch_stop();
    shm_map_free_all();
    for (int r = 0; p->peer_file != NULL && r < p->size; r++)
        if (p->peer_file[r] >= 0)
            close(p->peer_file[r]);
    free(p->world_rank);
    free(p->peer_file);
    free(p->pidfd);
    munmap(p->job, shm_job_bytes(p->size));
    p->job = NULL;
    p->world_rank = p->peer_file = p->pidfd = NULL;
}

/* ---- started by MPI ------------------------------------------------------------------------- */

/* What rank 0 tells the others: where its job and its area are; what every rank tells of itself. */
typedef struct hello {
    shm_file job, area;
    int32_t able;
} hello;

/* The two mappings of a start; rank 0 makes them, the others map rank 0's. */
typedef struct start_maps {
    char *job, *area;
    int job_fd, area_fd;
} start_maps;

static void maps_drop(start_maps *m, int n_ranks)
{
    if (m->job != NULL)
        munmap(m->job, shm_job_bytes(n_ranks));
    if (m->area != NULL)
        munmap(m->area, shm_area_bytes(n_ranks));
}

static fsdp_status maps_open(const hello *of_first, const comm *host, start_maps *m)
{
    if (host->rank != 0) {
        m->job_fd = shm_file_open(&of_first->job);
        m->area_fd = shm_file_open(&of_first->area);
        m->job = m->job_fd >= 0 ? shm_area_map(m->job_fd, shm_job_bytes(host->size)) : NULL;
        m->area = m->area_fd >= 0 ? shm_area_map(m->area_fd, shm_area_bytes(host->size)) : NULL;
    }
    if (m->job == NULL || m->area == NULL)
        return fsdp_error(FSDP_ECOMM, "use --comm mpi",
                          "comm_open: cannot map rank %d's memory: %s", host->world_ranks[0],
                          strerror(errno));
    ((shm_job *)(void *)m->job)->n_members = host->size;
    return FSDP_OK;
}

/* Every rank passes its status; *all_well: everybody's is FSDP_OK. */
static fsdp_status all_agree(comm *c, fsdp_status mine, bool *all_well)
{
    int32_t code = (int32_t)mine, *codes = calloc((size_t)c->size, sizeof *codes);
    if (codes == NULL)
        return fsdp_error(FSDP_ENOMEM, "", "comm_open: no memory for %d ranks", c->size);
    fsdp_status status = comm_host_gather(c, "comm_open: shm", &code, codes, sizeof code);
    *all_well = status == FSDP_OK;
    for (int r = 0; r < c->size; r++)
        *all_well = *all_well && codes[r] == FSDP_OK;
    free(codes);
    return status;
}

/* All ranks of a host map the memory of its first, then each other's; whoever cannot makes all
 * hosts stay with MPI. No rank waits for another in shared memory before everybody has it mapped.
 */
static fsdp_status join_over_mpi(comm *c, const comm *host, start_maps *m, bool *all_well)
{
    *all_well = false;
    bool able = device_share_fd(c->dev) >= 0 && (host->rank != 0 || (m->job && m->area));
    hello mine = {shm_file_of(m->job_fd), shm_file_of(m->area_fd), able};
    hello *all = calloc((size_t)c->size, sizeof *all);
    if (all == NULL)
        return fsdp_error(FSDP_ENOMEM, "", "comm_open: no memory for %d ranks", c->size);
    fsdp_status status = comm_host_gather(c, "comm_open: files", &mine, all, sizeof mine);
    for (int r = 0; r < c->size; r++)
        able = able && all[r].able;
    hello first = all[host->world_ranks[0]]; /* c is the group of all ranks */
    free(all);
    TRY(status);
    TRY(all_agree(c, able ? maps_open(&first, host, m) : FSDP_ESKIP, all_well));
    if (!*all_well)
        return FSDP_OK;
    shm_job *job = (shm_job *)(void *)m->job;
    return all_agree(c, shm_self_open(job, host), all_well);
}

fsdp_status comm_shm_over_mpi(comm *c, comm *host, bool *used)
{
    *used = shm_self.job != NULL;
    if (*used)
        return shm_use_again(c, host);
    start_maps m = {.job_fd = -1, .area_fd = -1};
    if (host->rank == 0) {
        m.job = shm_area_create(shm_job_bytes(host->size), &m.job_fd);
        m.area = shm_area_create(shm_area_bytes(host->size), &m.area_fd);
    }
    fsdp_status status = join_over_mpi(c, host, &m, used);
    close(m.job_fd);
    close(m.area_fd);
    if (status == FSDP_OK && *used)
        return shm_use(host, m.area);
    if (shm_self.job != NULL) { /* unmapped with it */
        shm_self_close();
        m.job = NULL;
    }
    maps_drop(&m, host->size);
    return status;
}

/* ---- started by fsdp_run -------------------------------------------------------------------- */

static bool has_bytes(int fd, size_t bytes)
{
    struct stat st;
    return fstat(fd, &st) == 0 && (size_t)st.st_size == bytes;
}

/* The files are the launcher's: some other file of that number would be mapped as well. */
static fsdp_status check_launch(const comm *c, const comm_run_start *run)
{
    if (!has_bytes(run->job_fd, shm_job_bytes(c->size)) ||
        !has_bytes(run->area_fd, shm_area_bytes(c->size)))
        return fsdp_error(FSDP_ECOMM,
                          "let fsdp_run start this program itself, and keep the first group open "
                          "until the end; unset " COMM_RUN_ENV " if there is no fsdp_run",
                          "comm_open: rank %d: the launcher's files %d and %d are not open here",
                          c->rank, run->job_fd, run->area_fd);
    return FSDP_OK;
}

fsdp_status comm_shm_open(comm *c)
{
    comm_run_start run;
    if (!comm_run_started(&run))
        return fsdp_error(FSDP_EINVAL, "start it with build/fsdp_run -n N PROGRAM, or with mpiexec",
                          "comm_open: shm: this process was started by neither");
    c->rank = run.rank;
    c->size = run.size;
    if (shm_self.job == NULL) /* the first time: it closes the files */
        TRY(check_launch(c, &run));
    c->local_rank = c->rank;
    c->local_size = c->size;
    c->world_ranks = calloc((size_t)c->size, sizeof *c->world_ranks);
    for (int r = 0; r < c->size && c->world_ranks != NULL; r++)
        c->world_ranks[r] = r;
    if (shm_self.job != NULL && c->world_ranks != NULL)
        return shm_use_again((comm *)(uintptr_t)shm_self.world, c);
    char *job = shm_area_map(run.job_fd, shm_job_bytes(c->size));
    char *area = shm_area_map(run.area_fd, shm_area_bytes(c->size));
    if (c->world_ranks == NULL || job == NULL || area == NULL)
        return fsdp_error(FSDP_ENOMEM, "", "comm_open: no memory for %d ranks", c->size);
    if (atomic_load(&((shm_job *)(void *)job)->member[c->rank].ready.value) != 0)
        return fsdp_error(FSDP_ESTATE, "start fsdp_run once for each program",
                          "comm_open: rank %d has joined already, by another process", c->rank);
    if (device_share_fd(c->dev) < 0)
        return fsdp_error(FSDP_ECOMM, "remove the limit on file sizes (ulimit -f)",
                          "comm_open: rank %d cannot make memory that others can map", c->rank);
    TRY(shm_self_open((shm_job *)(void *)job, c));
    close(run.job_fd);
    close(run.area_fd);
    return shm_use(c, area);
}
