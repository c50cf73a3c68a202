/* hier.c -- groups over several hosts with several ranks each: shared memory inside a host, MPI
 * between hosts.
 *
 *   open_over, split -> collectives -> close
 *
 * H hosts have L ranks each, numbered host by host: rank h*L + p has local rank p on host h. The
 * transport is made of two others: mpi between all ranks, which is the group below, and `local`, a
 * shared-memory group of this host's ranks. In every call first the host's ranks meet and compare
 * the call, then each rank sends it over mpi to the next rank, which compares it. So ranks that
 * disagree are told, whatever they called. mpi alone moves the data of all calls but these:
 *
 *   all-gather        the host's slices are copied in its memory; a rank receives the slices of its
 *                     own local rank from the other hosts, then its peers copy them: each slice
 *                     reaches a host once, not L times
 *   reduce-scatter    for each host, a rank adds up its own host's contributions to the rank there
 *                     that has its local rank, and sends it the sum; then it pushes the H sums that
 *                     it receives. A host sends L times less
 *
 * Worked example, H=2, L=2, reduce-scatter: rank 1 adds slice 1 of ranks 0,1 and slice 3 of ranks
 * 0,1. It sends the second sum to rank 3, and receives (slice 1 of rank 2)+(slice 1 of rank 3).
 *
 * The sum over a host's ranks is a node of the canonical tree only if L is a power of two and the
 * accumulator stands at a multiple of L. Otherwise the contributions are forwarded, and added at
 * their destination. In fast mode hosts always add first, so its bits differ from those over mpi
 * alone.
 *
 * A failure of one of the two transports is reported to the other. source [MPICH's and NCCL's
 * collectives by levels of the machine] */
#include <stdlib.h>
#include "common/comm/transport/hier_impl.h"
#include "common/comm/transport/hier_parts.h"

static int n_opened; /* groups opened, not split; one thread calls comm_open and comm_close */

/* ---- groups --------------------------------------------------------------------------------- */

/* The host, counted in the parent, of member i of a child. */
static int host_of(const transport_group *parent, const comm_team *child, int i)
{
    return comm_team_find(parent->team, comm_world_rank(child, i)) /
           ((const hier_group *)parent->state)->team.size;
}

/* How many consecutive members of a child are on each host, if that number is the same on all
 * hosts; else 0. Members ascend, and so do their hosts. (hosts 0 0 1 1 -> 2, 0 0 0 -> 3, 0 1 -> 1;
 * 0 0 1 -> 0) */
static int even_run(const transport_group *parent, const comm_team *child)
{
    const int n = child->size;
    int run = 1;
    while (run < n && host_of(parent, child, run) == host_of(parent, child, 0))
        run++;
    for (int i = run; i < n; i++) {
        bool same_host = host_of(parent, child, i) == host_of(parent, child, i - 1);
        if (n % run != 0 || same_host != (i % run != 0))
            return 0;
    }
    return run;
}

/* Make the state for the ranks of *team, of which each host has `run` consecutive ones; without a
 * local group. */
static fsdp_status hier_new(const comm_team *team, int run, hier_group **out)
{
    int hosts = team->size / run, host = team->rank / run;
    hier_group *h = calloc(1, sizeof *h + (size_t)hosts * sizeof h->sum[0]);
    if (h == NULL)
        return fsdp_error(FSDP_ENOMEM, "", "comm: no memory for a group over %d hosts", hosts);
    h->hosts = hosts;
    h->host = host;
    comm_team_part(team, &(comm_ranks){host * run, 1, run, 0, 1}, &h->team);
    *out = h;
    return FSDP_OK;
}

/* Make a group of *team from `net` and h->local; it owns h if there is no error. */
static fsdp_status hier_use(hier_group *h, const comm_team *team, transport_group *net,
                            transport_group **out)
{
    TRY(transport_group_new(&hier_transport, team, 0, out));
    mpi_speak_last(net);
    (*out)->state = h;
    (*out)->fast_run = h->team.size;
    return FSDP_OK;
}

/* A child on one host uses shm alone; a child with unequal numbers on its hosts uses mpi alone. */
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
    IF_OK(status, shm_split(parent, host, &local));
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

/* Set *run, on all ranks, to the number of ranks on each host if all hosts have equally many, in
 * consecutive ranks; else to 0. A host numbers its local ranks in rank order, so its ranks are
 * consecutive if, in rank order, local ranks run from 0 to n-1 again and again. */
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
    if (call->phase == 0) /* the ranks of this host meet; no data moves */
        TRY(transport_pass(local, s, call, transport_parts(local), NULL));
    return group->below->table->exchange(group->below, s, call, parts, v);
}

static fsdp_status hier_failed(transport_group *group)
{
    const hier_group *h = group->state;
    TRY(transport_failed(group->below));
    return transport_failed(h->local);
}

/* Stop mpi from reporting failures to shm before the job's memory is unmapped. The group below may
 * be closed: mpi was told of every failure. */
static bool hier_close(transport_group *group)
{
    hier_group *h = group->state;
    if (group->team->number == 0 && --n_opened == 0)
        mpi_on_failure(NULL);
    transport_group_close(h->local);
    free(h);
    return true;
}

/* fail: first record the failure in this host's memory, so that no later call of this rank reaches
 * a peer before the failure does. shm then tells mpi, whose thread is slower. */
const comm_transport hier_transport = {.name = "shm+mpi",
                                       .moves = MOVES_BY_BOTH,
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
