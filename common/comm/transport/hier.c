/* hier.c -- groups over several hosts with several ranks each: shared memory inside a host,
 * MPI between hosts.
 *
 *   comm_hier_over_mpi, comm_hier_split -> collectives -> close
 *
 * H hosts have L ranks each, numbered host by host: rank h*L + p is the one with local rank p on
 * host h. The transport is made of two others: `net`, mpi between all ranks, and `local`, the group
 * of shared memory of this host's ranks. Every call begins with a meeting of the host's ranks,
 * which compares it there; then a call of net compares it around all ranks. So ranks that disagree
 * are told of it, whatever each of them called. What is not said below is brought by net alone.
 *
 *   all-gather        the host's slices are copied in its memory; a rank gets the slices of its own
 *                     local rank from the other hosts, then its peers copy them: a slice comes to a
 *                     host once, not L times
 *   reduce-scatter    for each host a rank adds up what its own host's ranks have for the rank
 *                     there with the same local rank, and sends it that sum; then it pushes the H
 *                     sums that it gets. L times less leaves a host
 *   broadcast         between equal local ranks, then inside each host
 *
 * Worked example, H=2, L=2, reduce-scatter: rank 1 adds slice 1 of ranks 0,1 and slice 3 of ranks
 * 0,1; the second sum goes to rank 3, from which comes (slice 1 of rank 2)+(slice 1 of rank 3).
 *
 * A sum over a host's ranks is a node of the canonical tree only where L is a power of two and the
 * accumulator stands at a multiple of L: else the parts are forwarded, and added where they arrive.
 * In fast mode it is always taken, so that mode has other bits than over mpi alone.
 *
 * The failure of one of the two transports is told to the other. source [MPICH's and NCCL's
 * collectives by levels of the machine] */
#include <stdlib.h>
#include <string.h>
#include "common/comm/transport/hier_impl.h"
#include "common/comm/transport/shm_boot.h"

static int n_opened; /* groups of comm_open; comm_open and comm_close are called by one thread */

int comm_hier_rank(const comm_hier *h, int host)
{
    return host * h->ranks + h->local_rank;
}

/* ---- the transport -------------------------------------------------------------------------- */

/* A part of a call between the ranks of this host. v NULL: an exchange. */
fsdp_status comm_hier_local(comm_hier *h, stream *s, const comm_call *call, const comm_part *parts,
                            const comm_peer_read *v)
{
    comm *local = h->local;
    comm_call part = *call;
    part.number = ++local->next_seq;
    part.phase = 0;
    part.more = false;
    if (v != NULL)
        return local->transport->peer_read(local->group, s, &part, parts, v);
    return local->transport->exchange(local->group, s, &part, parts);
}

fsdp_status comm_hier_net(comm_hier *h, stream *s, const comm_call *call, const comm_part *parts)
{
    return h->net->exchange(h->net_group, s, call, parts);
}

fsdp_status comm_hier_meet(comm_hier *h, stream *s, const comm_call *call)
{
    return comm_hier_local(h, s, call, comm_parts_cleared(h->local), NULL);
}

static fsdp_status hier_exchange(void *group, stream *s, const comm_call *call,
                                 const comm_part *parts)
{
    comm_hier *h = group;
    if (call->phase == 0 && !call->met)
        TRY(comm_hier_meet(h, s, call));
    return comm_hier_net(h, s, call, parts);
}

static fsdp_status hier_failed(void *group)
{
    const comm_hier *h = group;
    TRY(h->net->failed(h->net_group));
    return h->local->transport->failed(h->local->group);
}

static void hier_free(comm_hier *h)
{
    if (h == NULL)
        return;
    free(h->host_sum);
    free(h->shown);
    free(h->rounded);
    free(h);
}

/* MPI is not to write into the job when that is gone. */
static void hier_close(void *group)
{
    comm_hier *h = group;
    if (h->opened && --n_opened == 0)
        comm_mpi_on_failure(NULL);
    h->local->transport->close(h->local->group);
    comm_group_free(h->local);
    h->net->close(h->net_group);
    hier_free(h);
}

static void hier_abort(void *group, int exit_code)
{
    const comm_hier *h = group;
    h->net->abort(h->net_group, exit_code);
}

static const comm_transport hier_transport = {.name = "shm+mpi",
                                              .shares = true,
                                              .exchange = hier_exchange,
                                              .failed = hier_failed,
                                              .close = hier_close,
                                              .abort = hier_abort};

/* ---- groups --------------------------------------------------------------------------------- */

/* How many ranks stand side by side on each host, when that is the same everywhere; else 0. host
 * [n]: where each rank is. (0 0 1 1 -> 2, 0 0 0 -> 3, 0 1 -> 1; 0 0 1 and 0 1 0 1 -> 0) */
static int even_run(const int *host, int n)
{
    int run = 1;
    while (run < n && host[run] == host[0])
        run++;
    for (int r = 0; r < n; r++) {
        if (n % run != 0 || host[r] != host[r / run * run])
            return 0;
        for (int before = 0; r % run == 0 && before < r; before++)
            if (host[before] == host[r])
                return 0;
    }
    return run;
}

/* The ranks of *c on this host, which has `run` of them side by side. */
static comm *local_core(const comm *c, int run)
{
    return comm_group_new(c, c->rank % run, c->world_ranks + c->rank / run * run, run);
}

/* *c, which goes by net, and the shared memory of this host's ranks become one group; it owns
 * *local then. */
static fsdp_status hier_use(comm *c, comm *local, bool opened)
{
    comm_hier *h = calloc(1, sizeof *h);
    int hosts = c->size / local->size;
    if (h != NULL)
        *h = (comm_hier){.net = c->transport,
                         .net_group = c->group,
                         .local = local,
                         .hosts = hosts,
                         .host = c->rank / local->size,
                         .ranks = local->size,
                         .local_rank = local->rank,
                         .opened = opened,
                         .host_sum = calloc((size_t)hosts, sizeof *h->host_sum),
                         .shown = calloc((size_t)hosts, sizeof *h->shown),
                         .rounded = calloc((size_t)hosts, sizeof *h->rounded)};
    if (h == NULL || h->host_sum == NULL || h->shown == NULL || h->rounded == NULL) {
        hier_free(h);
        return fsdp_error(FSDP_ENOMEM, "", "comm: no memory for a group over %d hosts", hosts);
    }
    c->transport = &hier_transport;
    c->group = c->hier = h;
    return FSDP_OK;
}

typedef struct address {
    int32_t local_rank, local_size;
} address;

/* even_run of the group of all ranks. *run is the same on all. A rank that is first on its host
 * begins a host: with equally many ranks on each, the next ones are of that host only if they count
 * on from it. */
static fsdp_status world_run(comm *c, int *run)
{
    address mine = {c->local_rank, c->local_size}, *all = calloc((size_t)c->size, sizeof *all);
    if (all == NULL)
        return fsdp_error(FSDP_ENOMEM, "", "comm_open: no memory for %d ranks", c->size);
    fsdp_status status = comm_host_gather(c, "comm_open: hosts", &mine, all, sizeof mine);
    *run = all[0].local_size;
    for (int r = 0; r<c->size && * run> 0; r++)
        if (all[r].local_size != *run || all[r].local_rank != r % *run)
            *run = 0;
    free(all);
    return status;
}

fsdp_status comm_hier_over_mpi(comm *c, bool *unmapped)
{
    int run = 0;
    bool used = false;
    TRY(world_run(c, &run));
    if (run < 2)
        return FSDP_OK;
    comm *local = local_core(c, run);
    if (local == NULL)
        return fsdp_error(FSDP_ENOMEM, "", "comm_open: no memory for %d ranks", run);
    comm_shm_on_failure(comm_mpi_fail);
    fsdp_status status = comm_shm_over_mpi(c, local, &used);
    if (status == FSDP_OK && used)
        status = hier_use(c, local, true);
    if (status != FSDP_OK || !used) {
        if (used && local->transport != NULL)
            local->transport->close(local->group);
        comm_group_free(local);
        *unmapped = true;
        return status;
    }
    n_opened++;
    comm_mpi_on_failure(comm_shm_fail);
    return FSDP_OK;
}

/* even_run of a child, whose members are ranks of the parent. */
static int child_run(const comm *parent, const comm *child)
{
    int *host = calloc((size_t)child->size, sizeof *host), run = 0;
    for (int i = 0; host != NULL && i < child->size; i++) {
        int r = 0;
        while (parent->world_ranks[r] != child->world_ranks[i])
            r++;
        host[i] = r / parent->hier->ranks;
    }
    if (host != NULL)
        run = even_run(host, child->size);
    free(host);
    return run;
}

fsdp_status comm_hier_split(comm *parent, int color, comm *child)
{
    const comm_hier *p = parent->hier;
    int run = child_run(parent, child);
    bool one_host = run == child->size;
    comm *host = child, alone = {.size = 1};
    if (run > 1 && !one_host)
        host = local_core(child, run);
    else if (!one_host)
        host = &alone;
    if (host == NULL)
        return fsdp_error(FSDP_ENOMEM, "", "comm_split: no memory for %d ranks", run);
    child->transport = p->net;
    fsdp_status status = p->net->split(p->net_group, one_host ? -1 : color, child, &child->group);
    bool by_net = child->group != NULL;
    if (status == FSDP_OK)
        status = comm_shm_split(parent, host); /* of *child, when that is the host */
    if (status == FSDP_OK && run > 1 && !one_host)
        status = hier_use(child, host, false);
    if (status == FSDP_OK)
        return FSDP_OK;
    if (by_net)
        p->net->close(child->group);
    if (host != child && host != &alone)
        comm_group_free(host);
    return status;
}
