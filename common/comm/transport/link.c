/* link.c -- simulate a slower network, over any transport and without root.
 *
 *   FSDP_LINK=1Gbit,50us[,ranks-per-host] -> open_over -> the transport below moves the data, then
 *   the stream sleeps until the network would have moved it ... split ... -> close
 *
 * Every rank has its own network interface (NIC). If ranks-per-host is k, world ranks 0..k-1 share
 * one, k..2k-1 the next, and data between ranks of one NIC costs nothing. A NIC sends and receives
 * at the same time, each at the given rate. It serves the calls of the opened group and of all its
 * splits, on any stream, one after the other.
 *
 * A call begins to use the NIC when the transport below has finished, which waits for the last
 * rank. The call ends when the NIC has sent and received its bytes, plus the latency. The bytes are
 * those that the transport below moves to and from ranks of other hosts: shm and mpi send every
 * rank its part, shm+mpi sends a slice to a host once. (A reduce-scatter whose contributions
 * shm+mpi forwards counts as if it had added them first.)
 *
 * Worked example, 1 Gbit/s and 50 us, W=4: an all-gather of 4 MB slices receives 12 MB, so it takes
 * 12e6*8/1e9 s + 50 us = 96.05 ms. With k=2 only 8 MB come from the other host, but the host's two
 * ranks share its NIC: 16 MB, 128.05 ms.
 *
 * A NIC is booked until the modelled end of a transfer, not until its sleep ends, so a late wake-up
 * does not delay the next call in the queue. Host calls are not slowed down. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include "common/base/environment.h"
#include "common/base/units.h"
#include "common/comm/transport/shm_impl.h"

static const double NAP_S = 0.1;      /* a sleeping rank notices a failure within this time */
static const double PATIENCE_S = 0.2; /* how long a close waits after a failure: two naps */

typedef struct link_spec {
    double bytes_per_s, latency_s;
    int ranks_per_host;
} link_spec;

/* The times until which a NIC is booked, by clock_now_s. In memory shared by the ranks of a
 * simulated host. */
typedef struct link_nic {
    _Atomic double sends_until_s, receives_until_s;
} link_nic;

typedef struct link_group {
    comm_transport table; /* this group's: link_* for each collective of the table below */
    char name[24];
    link_spec spec;
    link_nic *nic; /* owned by the opened group; its splits borrow it */
} link_group;

/* ---- parsing FSDP_LINK ---------------------------------------------------------------------- */

/* The unit's value in seconds or bytes; 0: there is no such unit. */
static double unit_value(const char *name)
{
    static const struct {
        const char *name;
        double value;
    } units[] = {{"bit", 1. / 8}, {"kbit", 1e3 / 8}, {"Mbit", 1e6 / 8}, {"Gbit", 1e9 / 8},
                 {"us", 1e-6},    {"ms", 1e-3},      {"s", 1}};
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        if (strcmp(units[i].name, name) == 0)
            return units[i].value;
    return 0;
}

/* Parse FSDP_LINK. Reject signs, blanks and exponents, which sscanf accepts. */
static bool spec_read(const char *text, link_spec *spec)
{
    double rate, latency;
    char rate_unit[5], latency_unit[5];
    int ranks = 1, length = 0;
    if (strspn(text, "0123456789.,kMGbitmus") != strlen(text) ||
        sscanf(text, "%lf%4[a-zA-Z],%lf%2[a-z]%n,%9d%n", &rate, rate_unit, &latency, latency_unit,
               &length, &ranks, &length) < 4)
        return false;
    *spec = (link_spec){rate * unit_value(rate_unit), latency * unit_value(latency_unit), ranks};
    return text[length] == '\0' && strstr(rate_unit, "bit") != NULL &&
           unit_value(latency_unit) > 0 && spec->bytes_per_s >= LEAST_BYTES_PER_S &&
           spec->bytes_per_s <= MOST_BYTES_PER_S && spec->latency_s <= MOST_LATENCY_S && ranks > 0;
}

static fsdp_status spec_from_env(const comm_team *team, link_spec *spec)
{
    const char *text = environment_text("FSDP_LINK");
    if (!spec_read(text, spec))
        return fsdp_error(
            FSDP_EINVAL, "unset FSDP_LINK, or set it to something like 1Gbit,50us or 100Mbit,1ms,2",
            "FSDP_LINK: got '%.40s', expected a rate in bit, kbit, Mbit or Gbit, of %g to %g "
            "bytes/s, a latency in us, ms or s, up to %g s, and optionally ranks per host",
            text, LEAST_BYTES_PER_S, MOST_BYTES_PER_S, MOST_LATENCY_S);
    if (team->size > 1 && team->size % spec->ranks_per_host != 0)
        return fsdp_error(FSDP_EINVAL, "let the last number of FSDP_LINK divide the ranks",
                          "FSDP_LINK: got %d ranks per host, expected a divisor of %d ranks",
                          spec->ranks_per_host, team->size);
    return FSDP_OK;
}

/* ---- the network ---------------------------------------------------------------------------- */

/* Book `takes_s` of one direction of a NIC, from from_s or later; returns the end of the
 * booking. */
static double book(_Atomic double *until_s, double from_s, double takes_s)
{
    double before_s = atomic_load(until_s), end_s;
    do {
        end_s = fmax(before_s, from_s) + takes_s;
    } while (!atomic_compare_exchange_weak(until_s, &before_s, end_s));
    return end_s;
}

/* Sleep until end_s, or until the group has failed. The kernel is asked not to round the
 * wake-up. */
static fsdp_status sleep_until(transport_group *below, double end_s)
{
    fsdp_status status = FSDP_OK;
    double now_s;
    prctl(PR_SET_TIMERSLACK, 1UL);
    while (status == FSDP_OK && (now_s = clock_now_s()) < end_s) {
        struct timespec until = clock_deadline(fmin(end_s - now_s, NAP_S));
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
        status = transport_failed(below);
    }
    prctl(PR_SET_TIMERSLACK, 0UL); /* back to the default */
    return status;
}

/* The bytes that a call moves between this rank and ranks of other simulated hosts. */
typedef struct crossing {
    size_t sent_bytes, received_bytes;
} crossing;

static double cross_end_s(const link_group *g, const crossing *x)
{
    double now_s = clock_now_s(), end_s = now_s;
    if (x->sent_bytes > 0)
        end_s = book(&g->nic->sends_until_s, now_s, (double)x->sent_bytes / g->spec.bytes_per_s);
    if (x->received_bytes > 0)
        end_s = fmax(end_s, book(&g->nic->receives_until_s, now_s,
                                 (double)x->received_bytes / g->spec.bytes_per_s));
    return end_s + g->spec.latency_s;
}

/* Runs in the stream's thread, after the call below. A watch sees it as one more part of the
 * call. */
static fsdp_status cross_run(const comm_task *t, int n_threads)
{
    const void *x = t->parts + t->group->team->size;
    (void)n_threads;
    return sleep_until(t->group->below, cross_end_s(t->group->state, x));
}

/* Whether rank r of the group is on another simulated host. */
static bool is_across(const transport_group *group, int r)
{
    const comm_team *t = group->team;
    int k = ((const link_group *)group->state)->spec.ranks_per_host;
    return comm_world_rank(t, r) / k != comm_world_rank(t, t->rank) / k;
}

/* After the call below was issued, let the stream sleep for the time that its parts need. */
static fsdp_status cross(transport_group *group, stream *s, const comm_call *call,
                         const comm_part *parts)
{
    crossing x = {0};
    for (int r = 0; r < group->team->size; r++) {
        x.sent_bytes += is_across(group, r) ? parts[r].send_bytes : 0;
        x.received_bytes += is_across(group, r) ? parts[r].recv_bytes : 0;
    }
    if (x.sent_bytes == 0 && x.received_bytes == 0)
        return FSDP_OK;
    comm_task head = {.run = cross_run, .group = group, .call = *call, .only_waits = true};
    return transport_task(&head, s, parts, &(comm_peer_read){.ctx = &x, .ctx_bytes = sizeof x});
}

/* ---- collectives ---------------------------------------------------------------------------- */

static fsdp_status link_exchange(transport_group *group, stream *s, const comm_call *call,
                                 const comm_part *parts, const comm_peer_read *v)
{
    comm_call below = transport_call_below(group, call);
    TRY(group->below->table->exchange(group->below, s, &below, parts, v));
    return cross(group, s, call, parts);
}

/* Whether a whole collective of shm+mpi receives data from rank r here: from the ranks with this
 * local rank. If the simulated hosts do not consist of whole real ones, from every rank. */
static bool is_peer(const transport_group *group, int r)
{
    int k = ((const link_group *)group->state)->spec.ranks_per_host;
    int local_ranks = group->below->fast_run;
    return k % local_ranks != 0 || (r - group->team->rank) % local_ranks == 0;
}

static fsdp_status link_all_gather(transport_group *group, stream *s, const comm_call *call,
                                   void *recv, size_t slice_bytes)
{
    comm_call below = transport_call_below(group, call);
    TRY(group->below->table->all_gather(group->below, s, &below, recv, slice_bytes));
    comm_part *parts = transport_parts(group);
    for (int r = 0; r < group->team->size; r++)
        if (is_peer(group, r))
            parts[r] = (comm_part){.send_bytes = slice_bytes, .recv_bytes = slice_bytes};
    return cross(group, s, call, parts);
}

static fsdp_status cross_scatter(transport_group *group, stream *s, const comm_call *call,
                                 const comm_scatter *x)
{
    comm_part *parts = transport_parts(group);
    size_t elem_bytes = dtype_bytes(x->acc->sum_dtype);
    for (int r = 0; r < group->team->size; r++)
        if (is_peer(group, r))
            parts[r] = (comm_part){.send_bytes = x->slices[r].elems * elem_bytes,
                                   .recv_bytes = x->slices[group->team->rank].elems * elem_bytes};
    return cross(group, s, call, parts);
}

static fsdp_status link_reduce_scatter(transport_group *group, stream *s, const comm_call *call,
                                       const comm_scatter *x)
{
    comm_call below = transport_call_below(group, call);
    TRY(group->below->table->reduce_scatter(group->below, s, &below, x));
    return cross_scatter(group, s, call, x);
}

static fsdp_status link_add(transport_group *group, stream *s, const comm_call *call,
                            const comm_scatter *x, void *sum)
{
    comm_call below = transport_call_below(group, call);
    TRY(group->below->table->add(group->below, s, &below, x, sum));
    return cross_scatter(group, s, call, x);
}

/* Counts a reduce-scatter and an all-gather of the largest slice. */
static fsdp_status link_all_reduce(transport_group *group, stream *s, const comm_call *call,
                                   void *buf, size_t elems)
{
    comm_call below = transport_call_below(group, call);
    TRY(group->below->table->all_reduce(group->below, s, &below, buf, elems));
    comm_part *parts = transport_parts(group);
    const size_t world = (size_t)group->team->size, slice = (elems + world - 1) / world;
    const size_t bytes = 2 * slice * dtype_bytes((dtype)call->desc.dtype);
    for (size_t r = 0; r < world; r++)
        parts[r] = (comm_part){.send_bytes = bytes, .recv_bytes = bytes};
    return cross(group, s, call, parts);
}

/* ---- groups --------------------------------------------------------------------------------- */

static fsdp_status link_split(transport_group *group, const comm_team *child,
                              transport_group **out);

static bool link_close(transport_group *group)
{
    link_group *g = group->state;
    if (!transport_drain(group, PATIENCE_S))
        return true; /* a stream's task may still use it, so it is leaked */
    if (group->team->number == 0)
        munmap(g->nic, sizeof *g->nic);
    free(g);
    return true;
}

/* Make a group of *team over `below`; the new group owns it if there is no error. */
static fsdp_status link_new(const comm_team *team, transport_group *below, const link_spec *spec,
                            link_nic *nic, transport_group **out)
{
    TRY(transport_group_new(below->table, team, sizeof(link_group), out));
    link_group *g = (*out)->state;
    *g = (link_group){.spec = *spec, .nic = nic, .table = *below->table};
    snprintf(g->name, sizeof g->name, "%s+link", below->table->name);
    comm_transport *t = &g->table;
    t->name = g->name;
    t->carries_host = false;
    t->exchange = link_exchange;
    t->all_gather = t->all_gather != NULL ? link_all_gather : NULL;
    t->reduce_scatter = t->reduce_scatter != NULL ? link_reduce_scatter : NULL;
    t->add = t->add != NULL ? link_add : NULL;
    t->all_reduce = t->all_reduce != NULL ? link_all_reduce : NULL;
    t->failed = NULL;
    t->split = link_split;
    t->close = link_close;
    t->abort = NULL;
    (*out)->table = t;
    (*out)->fast_run = below->fast_run;
    (*out)->below = below;
    return FSDP_OK;
}

static fsdp_status link_split(transport_group *group, const comm_team *child, transport_group **out)
{
    const link_group *g = group->state;
    transport_group *below = NULL;
    TRY(group->below->table->split(group->below, child, &below));
    if (below == NULL)
        return FSDP_OK;
    fsdp_status status = link_new(child, below, &g->spec, g->nic, out);
    if (status != FSDP_OK)
        transport_group_close(below);
    return status;
}

/* Map the NIC of this rank's simulated host; the host's first rank makes it. */
static fsdp_status nic_open(transport_group *talk, int ranks_per_host, link_nic **nic)
{
    int rank = talk->team->rank, first = rank / ranks_per_host * ranks_per_host;
    shm_shared x = {.label = "comm_open: FSDP_LINK",
                    .first = first,
                    .bytes = sizeof **nic,
                    .cannot = {.status = FSDP_EINVAL,
                               .hint = "let the last number of FSDP_LINK divide the ranks of "
                                       "every host, or leave it out"}};
    snprintf(x.cannot.what, sizeof x.cannot.what,
             "FSDP_LINK: ranks %d and %d, of one simulated host, share no memory", first, rank);
    char *area;
    TRY(shm_area_share(talk, &x, &area));
    *nic = (void *)area;
    return FSDP_OK;
}

static fsdp_status link_open_over(transport_group *below, transport_group **out,
                                  const char **why_not)
{
    const comm_team *team = below->team;
    link_spec spec;
    link_nic *nic;
    (void)why_not;
    TRY(spec_from_env(team, &spec));
    if (team->size == 1)
        return FSDP_OK;
    TRY(nic_open(transport_control(below), spec.ranks_per_host, &nic));
    fsdp_status status = link_new(team, below, &spec, nic, out);
    if (status != FSDP_OK) {
        munmap(nic, sizeof *nic);
        return status;
    }
    if (team->rank == 0)
        fprintf(stderr,
                "note: FSDP_LINK simulates links of %g Mbit/s and %g us, %d rank%s on each\n",
                spec.bytes_per_s * 8e-6, spec.latency_s * 1e6, spec.ranks_per_host,
                spec.ranks_per_host == 1 ? "" : "s");
    return FSDP_OK;
}

const comm_transport link_transport = {.name = "link", .open_over = link_open_over};
