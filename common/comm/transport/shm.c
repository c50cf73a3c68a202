/* shm.c -- the transport of ranks on one host, which read each other's memory: its groups.
 *
 *   open, open_over -> exchange (shm_call.c) ... split ... -> close
 *
 * source [NCCL's and MPICH's shared-memory paths] */
#include "common/comm/transport/shm_impl.h"
#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/sysinfo.h>

/* ---- groups --------------------------------------------------------------------------------- */

/* Spinning pays only if a waiting rank does not occupy the core that its peer needs. If this rank
 * may run on only some of the cores, the launcher has bound it to them and its peers to others. */
static bool cores_for_all(int n_ranks)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0 || get_nprocs() < n_ranks)
        return false;
    return CPU_COUNT(&set) >= n_ranks || CPU_COUNT(&set) < get_nprocs();
}

/* Make a group of *team over `area`. On failure `area` is unmapped. */
static fsdp_status group_new(const comm_team *team, char *area, transport_group **out)
{
    fsdp_status status = transport_group_new(&shm_transport, team, sizeof(shm_group), out);
    if (status != FSDP_OK) {
        munmap(area, shm_area_bytes(team->size));
        return status;
    }
    shm_group *g = (*out)->state;
    g->team = team;
    g->area = area;
    g->turn_bytes = shm_turn_bytes(team->size);
    g->spin = 64;
    g->may_spin = cores_for_all(team->local_size);
    for (uint64_t number = 1; number <= SHM_RING; number++)
        g->next[number % SHM_RING] = number;
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->freed, NULL);
    return FSDP_OK;
}

/* Get memory for a new group, whose members are in `talk`; its lowest member makes it. Every rank
 * of talk takes part, even one that needs no memory. */
static fsdp_status area_get(transport_group *talk, const comm_team *child, bool needed, char **area)
{
    shm_shared x = {
        .label = "comm_range: files",
        .cannot = {.status = FSDP_ENOMEM, .hint = "raise the limits on memory and open files"}};
    if (needed) {
        x.first = comm_team_find(talk->team, child->first);
        x.bytes = shm_area_bytes(child->size);
    }
    snprintf(x.cannot.what, sizeof x.cannot.what,
             "comm_range: no shared memory for a group of %d ranks", child->size);
    return shm_area_share(talk, &x, area);
}

fsdp_status shm_split(transport_group *talk, const comm_team *host, transport_group **out)
{
    char *area = NULL;
    TRY(area_get(talk, host, host->size > 1, &area));
    return area != NULL ? group_new(host, area, out) : FSDP_OK;
}

/* ---- opening -------------------------------------------------------------------------------- */

/* Make a group over `area` that is opened, not split. */
static fsdp_status open_over_area(const comm_team *team, char *area, transport_group **out)
{
    TRY(group_new(team, area, out));
    pthread_mutex_lock(&shm_self.world_lock);
    shm_self.world = shm_self.world == NULL ? *out : shm_self.world;
    pthread_mutex_unlock(&shm_self.world_lock);
    shm_self.n_open++;
    return FSDP_OK;
}

fsdp_status shm_open_among(transport_group *talk, const comm_team *host, transport_group **out)
{
    char *area = NULL;
    if (shm_self.job != NULL)
        TRY(area_get(talk, host, true, &area));
    else
        TRY(shm_join(talk, host, &area));
    return area != NULL ? open_over_area(host, area, out) : FSDP_OK;
}

static fsdp_status shm_open_over(transport_group *below, transport_group **out,
                                 const char **why_not)
{
    TRY(shm_open_among(transport_control(below), below->team, out));
    if (*out == NULL)
        *why_not = "the ranks cannot map each other's memory";
    return FSDP_OK;
}

/* Open the group of all ranks in a process that fsdp_run started. */
static fsdp_status shm_start(comm_team *team, transport_group **out)
{
    comm_run_start run;
    char *area = NULL;
    if (!comm_run_started(&run))
        return fsdp_error(FSDP_EINVAL,
                          "start it with build/fsdp_run -n N PROGRAM, or with MPICH's mpiexec",
                          "comm_open: shm: no launcher started this process");
    comm_team_fill(team, run.rank, run.size, run.rank, run.size);
    if (shm_self.job == NULL) /* the first open; also closes the inherited files */
        TRY(shm_join_launched(team, &run, &area));
    else if (shm_self.world != NULL)
        TRY(area_get(shm_self.world, team, true, &area));
    else
        return fsdp_error(FSDP_ESTATE, "keep the first group open until the end",
                          "comm_open: the first group is closed");
    return open_over_area(team, area, out);
}

/* ---- closing -------------------------------------------------------------------------------- */

/* An opened group has been closed. When the last one is closed, this process leaves the job. */
static void leave_job(const transport_group *group)
{
    shm_process *p = &shm_self;
    pthread_mutex_lock(&p->world_lock);
    p->world = p->world == group ? NULL : p->world;
    pthread_mutex_unlock(&p->world_lock);
    if (--p->n_open > 0)
        return;
    (void)shm_failed(NULL); /* sets died_s if a member has died in the meantime */
    transport_linger(p->died_s);
    if (shm_failed(NULL) == FSDP_OK)
        atomic_store(&p->job->member[p->team.rank].closed, 1);
    shm_leave();
}

/* Returns false after a failure. The group below does not know of a failure in shared memory, and
 * closing it would wait for peers that may be dead. */
static bool shm_close(transport_group *group)
{
    shm_group *g = group->state;
    bool unused = transport_drain(group, 1), failed = shm_failed(NULL) != FSDP_OK;
    if (g->team->number == 0)
        leave_job(group);
    if (!unused) /* a stream's task may still use it, so it is leaked */
        return !failed;
    munmap(g->area, shm_area_bytes(g->team->size));
    pthread_mutex_destroy(&g->lock);
    pthread_cond_destroy(&g->freed);
    free(g);
    return !failed;
}

/* Only wait, so that other ranks can report: the launcher ends them when this process ends. */
static void shm_abort(transport_group *group, int exit_code)
{
    (void)group;
    (void)exit_code;
    (void)shm_failed(NULL);
    transport_linger(shm_self.died_s);
}

const comm_transport shm_transport = {.name = "shm",
                                      .moves = MOVES_BY_SHOWING,
                                      .shares = true,
                                      .peer_read = true,
                                      .carries_host = true,
                                      .open = shm_start,
                                      .open_over = shm_open_over,
                                      .exchange = shm_exchange,
                                      .failed = shm_failed,
                                      .fail = shm_tell,
                                      .split = shm_split,
                                      .close = shm_close,
                                      .abort = shm_abort};
