/* hier.c -- groups over several hosts with several ranks each: shared memory inside a host,
 * MPI between hosts.
 *
 *   open_over, split -> collectives -> close
 *
 * H hosts have L ranks each, numbered host by host: rank h*L + p is the one with local rank p on
 * host h. The transport is made of two others: mpi between all ranks, which is below, and `local`,
 * the group of shared memory of this host's ranks. Every call begins with a meeting of the host's
 * ranks, which compares it there; then a call of mpi compares it around all ranks. So ranks that
 * disagree are told of it, whatever each of them called. What is not said below is brought by mpi
 * alone.
 *
 *   all-gather        the host's slices are copied in its memory; a rank gets the slices of its own
 *                     local rank from the other hosts, then its peers copy them: a slice comes to a
 *                     host once, not L times
 *   reduce-scatter    for each host a rank adds up what its own host's ranks have for the rank
 *                     there with the same local rank, and sends it that sum; then it pushes the H
 *                     sums that it gets. L times less leaves a host
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
#include "common/comm/transport/hier_impl.h"
#include "common/comm/transport/hier_parts.h"

static int n_opened; /* groups, not by a split; one thread calls comm_open and comm_close */

/* ---- groups --------------------------------------------------------------------------------- */

/* How many members of a child stand side by side on each host, when that is the same everywhere;
 * else 0. Members are every step-th rank of the parent, so their hosts ascend. (hosts 0 0 1 1 -> 2,
 * 0 0 0 -> 3, 0 1 -> 1; 0 0 1 -> 0) */
static int even_run(const transport_group *parent, const comm_team *child)
{
    const int ranks = ((const hier_group *)parent->state)->team.size, n = child->size;
    int first = comm_team_find(parent->team, child->first), run = 1;
    int step = child->step / parent->team->step;
    while (run < n && (first + run * step) / ranks == first / ranks)
        run++;
    for (int i = run; i < n; i++) {
        int rank = first + i * step;
        bool same_host = rank / ranks == (rank - step) / ranks;
        if (n % run != 0 || same_host != (i % run != 0))
            return 0;
    }
    return run;
}

/* The ranks of *team on this host, which has `run` of them side by side; no group yet. */
static fsdp_status hier_new(const comm_team *team, int run, hier_group **out)
{
    int hosts = team->size / run, host = team->rank / run;
    hier_group *h = calloc(1, sizeof *h + (size_t)hosts * sizeof h->sum[0]);
    if (h == NULL)
        return fsdp_error(FSDP_ENOMEM, "", "comm: no memory for a group over %d hosts", hosts);
    h->hosts = hosts;
    h->host = host;
    comm_team_part(team, host * run, 1, run, &h->team);
    *out = h;
    return FSDP_OK;
}

/* The group of *team that `net` and h->local make up; h is its own then. */
static fsdp_status hier_use(hier_group *h, const comm_team *team, transport_group *net,
                            transport_group **out)
{
    TRY(transport_group_new(&hier_transport, team, 0, out));
    mpi_speak_last(net);
    (*out)->state = h;
    (*out)->fast_run = h->team.size;
    return FSDP_OK;
}

/* A child on one host is one of shm alone, one that has no equal hosts of mpi alone. */
static fsdp_status hier_split(transport_group *parent, const comm_team *child,
                              transport_group **out)
{
    static const comm_team alone = {.size = 1, .step = 1};
    transport_group *net = NULL, *local = NULL;
    hier_group *h = NULL;
    int run = even_run(parent, child);
    bool one_host = run == child->size;
    const comm_team *host = one_host ? child : &alone;
    if (run > 1 && !one_host) {
        TRY(hier_new(child, run, &h));
        host = &h->team;
    }
    fsdp_status status =
        parent->below->table->split(parent->below, one_host ? &alone : child, &net);
    if (status == FSDP_OK)
        status = shm_split(parent, host, &local);
    if (status == FSDP_OK && h != NULL) {
        h->local = local;
        status = hier_use(h, child, net, out);
    }
    if (status != FSDP_OK) {
        transport_group_close(local);
        transport_group_close(net);
        free(h);
    } else if (h != NULL) {
        (*out)->below = net;
    } else {
        *out = one_host ? local : net;
    }
    return status;
}

/* ---- opening -------------------------------------------------------------------------------- */

typedef struct address {
    int32_t local_rank, local_size;
} address;

/* How many of all ranks stand side by side on each host, as even_run has it. *run is the same on
 * all. A rank that is first on its host begins a host: with equally many ranks on each, the next
 * ones are of that host only if they count on from it. */
static fsdp_status world_run(transport_group *talk, int *run)
{
    const comm_team *team = talk->team;
    address mine = {team->local_rank, team->local_size};
    void *addresses;
    TRY(transport_gather(talk, "comm_open: hosts", &mine, sizeof mine, &addresses));
    const address *all = addresses;
    int n = all[0].local_size;
    bool is_even = true;
    for (int r = 0; r < team->size; r++)
        is_even = is_even && all[r].local_size == n && all[r].local_rank == r % n;
    *run = is_even ? n : 0;
    free(addresses);
    return FSDP_OK;
}

static fsdp_status hier_open_over(transport_group *below, transport_group **out,
                                  const char **why_not)
{
    transport_group *talk = transport_control(below);
    hier_group *h = NULL;
    int run = 0;
    TRY(world_run(talk, &run));
    if (run < 2)
        return FSDP_OK;
    TRY(hier_new(below->team, run, &h));
    shm_on_failure(mpi_fail);
    fsdp_status status = shm_open_among(talk, &h->team, &h->local);
    if (status == FSDP_OK && h->local != NULL)
        status = hier_use(h, below->team, below, out);
    if (*out == NULL) {
        transport_group_close(h->local);
        free(h);
        *why_not = "the ranks cannot map each other's memory";
        return status;
    }
    n_opened++;
    mpi_on_failure(shm_tell);
    return FSDP_OK;
}

/* ---- the transport -------------------------------------------------------------------------- */

static fsdp_status hier_exchange(transport_group *group, stream *s, const comm_call *call,
                                 const comm_part *parts, const comm_peer_read *v)
{
    transport_group *local = ((const hier_group *)group->state)->local;
    if (call->phase == 0) /* the ranks of this host meet, and move nothing */
        TRY(transport_pass(local, s, call, transport_parts(local), NULL));
    return group->below->table->exchange(group->below, s, call, parts, v);
}

static fsdp_status hier_failed(transport_group *group)
{
    const hier_group *h = group->state;
    TRY(transport_failed(group->below));
    return transport_failed(h->local);
}

/* MPI is not to write into the job when that is gone. It has heard of every failure. */
static bool hier_close(transport_group *group)
{
    hier_group *h = group->state;
    if (group->team->number == 0 && --n_opened == 0)
        mpi_on_failure(NULL);
    transport_group_close(h->local);
    free(h);
    return true;
}

/* fail: at once in this host's memory, so that no later call of this rank reaches a peer before the
 * news; shm tells MPI, whose thread takes its time. */
const comm_transport hier_transport = {.name = "shm+mpi",
                                       .shares = true,
                                       .carries_host = true,
                                       .open_over = hier_open_over,
                                       .exchange = hier_exchange,
                                       .all_gather = hier_all_gather,
                                       .reduce_scatter = hier_reduce_scatter,
                                       .failed = hier_failed,
                                       .fail = shm_tell,
                                       .split = hier_split,
                                       .close = hier_close};
