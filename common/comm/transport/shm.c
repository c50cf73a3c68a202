/* shm.c -- the transport of ranks on one host, which read each other's memory: its groups.
 *
 *   shm_use -> exchange, peer_read (shm_call.c) ... split ... -> close
 *
 * source [NCCL's and MPICH's shared-memory paths] */
#include "common/comm/transport/shm_boot.h"
#include "common/comm/transport/shm_impl.h"
#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/sysinfo.h>
#include <unistd.h>

static const double CLOSE_PATIENCE_S = 10; /* without any progress */

/* ---- groups --------------------------------------------------------------------------------- */

/* Spinning pays only when a waiting rank does not hold the core that its peer needs. A rank that
 * may run on some cores only was bound to them, as its peers are to others. */
static bool cores_for_all(int n_ranks)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0 || get_nprocs() < n_ranks)
        return false;
    return CPU_COUNT(&set) >= n_ranks || CPU_COUNT(&set) < get_nprocs();
}

static int member_of(int world_rank)
{
    int i = 0;
    while (shm_self.world_rank[i] != world_rank)
        FSDP_ASSERT(++i < shm_self.size);
    return i;
}

static fsdp_status group_new(const comm *core, char *area, shm_group **out)
{
    shm_group *g = calloc(1, sizeof *g);
    int *member = calloc((size_t)core->size, sizeof *member);
    if (g == NULL || member == NULL) {
        free(g);
        free(member);
        return fsdp_error(FSDP_ENOMEM, "", "shm: no memory for a group of %d ranks", core->size);
    }
    for (int r = 0; r < core->size; r++)
        member[r] = member_of(core->world_ranks[r]);
    g->core = core;
    g->member = member;
    g->area = area;
    g->area_bytes = shm_area_bytes(core->size);
    g->turn_bytes = shm_turn_bytes(core->size);
    g->spin = 64;
    g->may_spin = cores_for_all(core->local_size);
    for (uint64_t seq = core->next_seq + 1; seq <= core->next_seq + SHM_RING; seq++)
        g->next[seq % SHM_RING] = seq;
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->freed, NULL);
    *out = g;
    return FSDP_OK;
}

/* Memory for a new group of more than one rank, whose members are in `parent`: the lowest member
 * makes it, the others, told through the parent, map it. Every rank of the parent takes part. */
static fsdp_status area_share(comm *parent, const comm *child, char **area)
{
    bool leads = child->rank == 0 && child->size > 1;
    int fd = -1;
    *area = leads ? shm_area_create(shm_area_bytes(child->size), &fd) : NULL;
    shm_file mine = shm_file_of(fd), *all = calloc((size_t)parent->size, sizeof *all);
    fsdp_status status =
        all != NULL
            ? comm_host_gather(parent, "comm_split: files", &mine, all, sizeof mine)
            : fsdp_error(FSDP_ENOMEM, "", "comm_split: no memory for %d ranks", parent->size);
    for (int r = 0; r < parent->size && status == FSDP_OK && !leads && child->size > 1; r++) {
        if (parent->world_ranks[r] != child->world_ranks[0])
            continue;
        int theirs = shm_file_open(&all[r]);
        *area = theirs >= 0 ? shm_area_map(theirs, shm_area_bytes(child->size)) : NULL;
        close(theirs);
    }
    free(all);
    if (status == FSDP_OK && child->size > 1 && *area == NULL)
        status = fsdp_error(FSDP_ENOMEM, "raise the limits on memory and open files",
                            "comm_split: no shared memory for a group of %d ranks", child->size);
    status = comm_agree(parent, status); /* everybody has mapped it, or all give up */
    close(fd);
    if (status != FSDP_OK && *area != NULL)
        munmap(*area, shm_area_bytes(child->size));
    return status;
}

static fsdp_status shm_split(void *group, int color, const comm *child, void **out)
{
    const shm_group *parent = group;
    comm *core = (comm *)(uintptr_t)parent->core; /* its calls are numbered as those of its owner */
    char *area = NULL;
    (void)color;
    *out = NULL;
    TRY(area_share(core, child, &area));
    if (child->size == 1)
        return FSDP_OK;
    shm_group *g = NULL;
    TRY(group_new(child, area, &g));
    *out = g;
    return FSDP_OK;
}

/* Wait for what streams still have to do on the group. Returns whether nothing is left. When a
 * stream failed for another reason its tasks never run: then patience ends the wait. */
static bool group_drain(shm_group *g)
{
    double until_s = clock_now_s() + (shm_failed() == FSDP_OK ? CLOSE_PATIENCE_S : 1);
    int before = atomic_load(&g->n_unfinished), n;
    while ((n = atomic_load(&g->n_unfinished)) > 0 && clock_now_s() < until_s) {
        if (n != before)
            until_s = clock_now_s() + CLOSE_PATIENCE_S;
        before = n;
        usleep(1000);
    }
    return n == 0;
}

/* One of comm_open's groups has been closed; with the last one this process leaves the job. After a
 * failure MPI is left as it is, since ending it would wait for peers that may be dead. */
static void leave_job(const shm_group *g)
{
    shm_process *p = &shm_self;
    bool failed = shm_failed() != FSDP_OK;
    pthread_mutex_lock(&p->world_lock);
    p->world = p->world == g->core ? NULL : p->world;
    pthread_mutex_unlock(&p->world_lock);
    if (--p->n_open == 0) {
        shm_linger();
        if (!failed)
            atomic_store(&p->job->member[p->me].closed, 1);
        shm_self_close();
    }
    if (g->remote_transport != NULL && !failed)
        g->remote_transport->close(g->remote);
}

static void shm_close(void *group)
{
    shm_group *g = group;
    bool unused = group_drain(g);
    if (g->opened)
        leave_job(g);
    if (!unused) /* some stream's task may come back to it: it stays */
        return;
    munmap(g->area, g->area_bytes);
    pthread_mutex_destroy(&g->lock);
    pthread_cond_destroy(&g->freed);
    free(g->member);
    free(g);
}

static void shm_abort(void *group, int exit_code)
{
    const shm_group *g = group;
    shm_linger();
    if (g->remote_transport != NULL)
        g->remote_transport->abort(g->remote, exit_code);
    /* else the core ends the process, and the launcher the others */
}

static fsdp_status shm_group_failed(void *group)
{
    (void)group; /* all groups fail together */
    return shm_failed();
}

static const comm_transport shm_transport = {.name = "shm",
                                             .shares = true,
                                             .exchange = shm_exchange,
                                             .peer_read = shm_peer_read,
                                             .failed = shm_group_failed,
                                             .split = shm_split,
                                             .close = shm_close,
                                             .abort = shm_abort};

fsdp_status shm_use(comm *c, char *area)
{
    shm_group *g = NULL;
    c->next_seq = 0; /* what the ranks settled to get here does not count */
    TRY(group_new(c, area, &g));
    g->opened = true;
    if (c->transport != NULL) {
        g->remote = c->group;
        g->remote_transport = c->transport;
    }
    pthread_mutex_lock(&shm_self.world_lock);
    shm_self.world = shm_self.world == NULL ? c : shm_self.world;
    pthread_mutex_unlock(&shm_self.world_lock);
    shm_self.n_open++;
    c->transport = &shm_transport;
    c->group = g;
    return FSDP_OK;
}

fsdp_status shm_use_again(comm *parent, comm *c)
{
    char *area = NULL;
    if (parent == NULL)
        return fsdp_error(FSDP_ESTATE, "keep the first group open until the end",
                          "comm_open: the first group is closed");
    TRY(area_share(parent, c, &area));
    return shm_use(c, area);
}

fsdp_status comm_shm_split(comm *parent, comm *host)
{
    char *area = NULL;
    TRY(area_share(parent, host, &area));
    if (host->size == 1)
        return FSDP_OK;
    shm_group *g = NULL;
    TRY(group_new(host, area, &g));
    host->transport = &shm_transport;
    host->group = g;
    return FSDP_OK;
}
