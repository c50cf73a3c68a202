/* shm_call.c -- one call of a rank on the shm transport.
 *
 * A call of a rank (a turn, see shm_sync.h) has four steps:
 *   begin    describe the call and where its data is in this rank's entry; post the entry
 *   meet     await every peer's entry and compare the calls
 *   read     copy the peers' parts, or work on them in place (comm_peer_read)
 *   end      tell every peer that its entry was read; wait until all have read this rank's
 * Data of up to SHM_INLINE_BYTES travels in the entry itself. The end then needs no wait, so a
 * small collective costs one meeting. Larger data is read once, in the block from comm_alloc. Data
 * in other memory is first copied into such a block. */
#include "common/base/bytes_copy.h"
#include "common/base/recycle.h"
#include "common/comm/transport/shm_impl.h"
#include <string.h>

/* ---- layout --------------------------------------------------------------------------------- */

/* The entry of a call on a rank. */
static shm_turn *turn_of(const shm_group *g, int rank, const comm_call *call)
{
    size_t index = (size_t)rank * SHM_RING + call->number % SHM_RING;
    return (shm_turn *)(void *)(g->area + index * g->turn_bytes);
}

/* Turn numbers are unique. An all-reduce takes two turns. 0 is no turn. */
static unsigned turn_number(const comm_call *call)
{
    return (unsigned)(2 * call->number) + (unsigned)call->phase;
}

/* ---- waiting -------------------------------------------------------------------------------- */

/* The patience of one call: it ends when the job fails or the call's time is up. */
typedef struct call_wait {
    clock_wait waited;
    const comm_team *team;
    bool failed;
} call_wait;

static bool call_over(void *self)
{
    call_wait *w = self;
    w->failed = shm_failed(NULL) != FSDP_OK;
    return w->failed || clock_wait_s(&w->waited) > comm_limit_s(w->team);
}

static shm_patience patience_of(shm_group *g, call_wait *w)
{
    return (shm_patience){.over = call_over, .self = w, .spin = g->may_spin ? &g->spin : NULL};
}

/* Returns why a wait failed. missing: a list of ranks. */
static fsdp_status wait_failed(const shm_group *g, const call_wait *w, const comm_call *call,
                               const char *missing)
{
    if (w->failed)
        return shm_failed(NULL);
    (void)comm_desc_timeout(g->team, &call->desc, comm_limit_s(g->team), missing);
    return shm_fail();
}

/* World ranks that have not posted their entry of the turn: "1 3". */
static void missing_ranks(const shm_group *g, const comm_call *call, char *text, size_t text_bytes)
{
    const comm_team *t = g->team;
    text[0] = '\0';
    for (int r = 0; r < t->size; r++) {
        bool there = atomic_load(&turn_of(g, r, call)->sync.posted.value) == turn_number(call);
        if (!there && r != t->rank)
            comm_rank_add(text, text_bytes, comm_world_rank(t, r));
    }
}

/* ---- begin ---------------------------------------------------------------------------------- */

/* The range of bytes that this rank shows. */
typedef struct region {
    const char *begin;
    size_t bytes;
} region;

static region region_of(const comm_team *t, const comm_part *parts)
{
    const char *begin = NULL, *end = NULL;
    for (int r = 0; r < t->size; r++) {
        const char *at = parts[r].send;
        if (r == t->rank || parts[r].send_bytes == 0)
            continue;
        begin = begin == NULL || at < begin ? at : begin;
        end = at + parts[r].send_bytes > end ? at + parts[r].send_bytes : end;
    }
    return (region){begin, (size_t)(end - begin)};
}

/* Take this rank's entry for the call, until entry_release. The previous call in this entry may be
 * on another stream and not have finished, or it may not have waited for its readers. */
static fsdp_status entry_acquire(shm_group *g, const comm_call *call, call_wait *w)
{
    uint64_t number = call->number, i = number % SHM_RING;
    pthread_mutex_lock(&g->lock);
    while (g->next[i] != number && !call_over(w)) {
        struct timespec soon = clock_deadline(0.05);
        pthread_cond_clockwait(&g->freed, &g->lock, CLOCK_MONOTONIC, &soon);
    }
    bool got = g->next[i] == number;
    unsigned owed = got ? g->owed[i] : 0;
    g->owed[i] = 0;
    pthread_mutex_unlock(&g->lock);
    shm_patience p = patience_of(g, w);
    if (got && (owed == 0 || shm_turn_free(&turn_of(g, g->team->rank, call)->sync, owed, &p)))
        return FSDP_OK;
    return wait_failed(g, w, call, "none, but peers have not received this rank's");
}

/* owed: number of peers that must read the entry before it is filled again. */
static void entry_release(shm_group *g, const comm_call *call, unsigned owed)
{
    uint64_t i = call->number % SHM_RING;
    pthread_mutex_lock(&g->lock);
    g->next[i] += call->more ? 0 : SHM_RING;
    g->owed[i] = owed;
    pthread_cond_broadcast(&g->freed);
    pthread_mutex_unlock(&g->lock);
}

/* Fill in the entry: the call, and where its data is. Returns whether the data is in the entry
 * itself. */
static bool entry_fill(shm_group *g, const comm_task *a)
{
    const comm_team *t = g->team;
    shm_turn *mine = turn_of(g, t->rank, &a->call);
    const region x = {region_of(t, a->parts).begin, a->shown_bytes};
    device_share share = {0};
    mine->desc = a->call.desc;
    mine->block_offset = mine->block_bytes = 0;
    bool is_inline = x.bytes <= SHM_INLINE_BYTES;
    if (is_inline) {
        if (x.bytes > 0)
            memcpy(mine->inline_bytes, x.begin, x.bytes);
    } else {
        bool found = device_share_find(a->dev, a->shown, a->shown_bytes, &share);
        FSDP_ASSERT(found && "the data moved out of shared memory after the call was issued");
        mine->block_offset = share.offset;
        mine->block_bytes = share.bytes;
    }
    for (int r = 0; r < t->size; r++) {
        const comm_part *part = &a->parts[r];
        bool shows = r != t->rank && part->send_bytes > 0;
        mine->part[r].bytes = shows ? part->send_bytes : 0;
        mine->part[r].inner =
            shows ? share.inner + (uint64_t)((const char *)part->send - x.begin) : 0;
    }
    return is_inline;
}

/* ---- meet ----------------------------------------------------------------------------------- */

/* Wait until every peer has posted its entry, and check that the calls match. */
static fsdp_status meet(shm_group *g, const comm_task *a, call_wait *w)
{
    const comm_team *t = g->team;
    unsigned turn = turn_number(&a->call);
    shm_patience p = patience_of(g, w);
    for (int d = 1; d < t->size; d++) {
        int peer = (t->rank + d) % t->size;
        shm_turn *theirs = turn_of(g, peer, &a->call);
        if (!shm_turn_await(&theirs->sync, turn, &p)) {
            char missing[200];
            missing_ranks(g, &a->call, missing, sizeof missing);
            return wait_failed(g, w, &a->call, missing);
        }
        fsdp_status status = comm_desc_compare(t, &a->call.desc, &theirs->desc, peer);
        IF_OK(status,
              comm_desc_lengths(t, &a->call.desc, peer, (int64_t)theirs->part[t->rank].bytes,
                                a->parts[peer].recv_bytes));
        if (status != FSDP_OK)
            return shm_fail();
    }
    return FSDP_OK;
}

/* ---- read ----------------------------------------------------------------------------------- */

/* The member of the job that a rank of the group is. */
static int member_of(const shm_group *g, int rank)
{
    return comm_team_find(&shm_self.team, comm_world_rank(g->team, rank));
}

/* The peer's part for this rank, readable until part_close; NULL on failure. */
static const char *part_open(const shm_group *g, const shm_turn *theirs, int peer)
{
    const shm_part *part = &theirs->part[g->team->rank];
    if (theirs->block_bytes == 0)
        return theirs->inline_bytes + part->inner;
    const char *block = shm_map_get(member_of(g, peer), theirs->block_offset, theirs->block_bytes);
    return block == NULL ? NULL : block + part->inner;
}

static void part_close(const shm_group *g, const shm_turn *theirs, int peer)
{
    if (theirs->block_bytes != 0)
        shm_map_put(member_of(g, peer), theirs->block_offset);
}

/* Each rank starts with its neighbour, so that not all ranks read the same one's memory at once. */
static void copy_parts(const comm_team *t, const comm_task *a, const void *const *from)
{
    for (int d = 1; d < t->size; d++) {
        int peer = (t->rank + d) % t->size;
        if (from[peer] != NULL)
            bytes_copy(a->parts[peer].recv, from[peer], a->parts[peer].recv_bytes);
    }
}

static fsdp_status visit_parts(shm_group *g, const comm_task *a, int n_threads)
{
    const comm_team *t = g->team;
    const void **from = recycle_get((size_t)t->size * sizeof *from);
    fsdp_status status = from != NULL ? FSDP_OK : fsdp_error(FSDP_ENOMEM, "", "shm: no memory");
    int n_open = 0;
    for (; status == FSDP_OK && n_open < t->size; n_open++) {
        const comm_part *part = &a->parts[n_open];
        from[n_open] = n_open == t->rank ? part->send : NULL;
        if (n_open == t->rank || part->recv_bytes == 0)
            continue;
        from[n_open] = part_open(g, turn_of(g, n_open, &a->call), n_open);
        if (from[n_open] == NULL)
            status = fsdp_error_get()->status;
    }
    if (status == FSDP_OK && a->fn != NULL)
        status = a->fn(a->parts + t->size, from, n_threads);
    else if (status == FSDP_OK)
        copy_parts(t, a, from);
    for (int r = 0; r < n_open; r++)
        if (r != t->rank && from[r] != NULL)
            part_close(g, turn_of(g, r, &a->call), r);
    recycle_put(from);
    return status == FSDP_OK ? FSDP_OK : shm_fail();
}

/* ---- end ------------------------------------------------------------------------------------ */

static fsdp_status end(shm_group *g, const comm_task *a, bool is_inline, call_wait *w)
{
    const comm_team *t = g->team;
    unsigned n_peers = (unsigned)t->size - 1;
    for (int d = 1; d < t->size; d++)
        shm_turn_done(&turn_of(g, (t->rank + d) % t->size, &a->call)->sync, n_peers);
    shm_patience p = patience_of(g, w);
    if (!is_inline && !shm_turn_free(&turn_of(g, t->rank, &a->call)->sync, n_peers, &p))
        return wait_failed(g, w, &a->call, "none, but peers have not received this rank's");
    entry_release(g, &a->call, is_inline ? n_peers : 0);
    return FSDP_OK;
}

static fsdp_status run_call(const comm_task *a, int n_threads)
{
    shm_group *g = a->group->state;
    const comm_team *t = g->team;
    call_wait w = {.waited = clock_wait_begin(), .team = t};
    TRY(entry_acquire(g, &a->call, &w));
    bool is_inline = entry_fill(g, a);
    shm_turn_post(&turn_of(g, t->rank, &a->call)->sync, turn_number(&a->call));
    TRY(meet(g, a, &w));
    TRY(visit_parts(g, a, n_threads));
    TRY(shm_failed(NULL)); /* a peer that gave up may have reused its memory while this rank read
                              it */
    return end(g, a, is_inline, &w);
}

/* ---- issue ---------------------------------------------------------------------------------- */

/* If the data is outside shared memory, copy it inside, in stream order. *bounce is the copy, or
 * NULL if none is needed. */
static fsdp_status bounce_make(stream *s, region x, void **bounce)
{
    device_share share;
    *bounce = NULL;
    if (x.bytes <= SHM_INLINE_BYTES ||
        (s != NULL && device_share_find(stream_device(s), x.begin, x.bytes, &share)))
        return FSDP_OK;
    if (s == NULL)
        return fsdp_error(FSDP_EINVAL, "pass less, or use a stream",
                          "shm: %zu bytes of host memory, expected at most %d", x.bytes,
                          SHM_INLINE_BYTES);
    TRY(device_alloc_host(s, MEM_COMM, x.bytes, "copy for peers", bounce));
    fsdp_status status = device_copy(s, *bounce, x.begin, x.bytes);
    if (status != FSDP_OK) { /* the stream has failed in the meantime */
        device_free(s, *bounce);
        *bounce = NULL;
    }
    return status;
}

/* Peers read the region in place, in its copy or, if it is small, in this rank's entry. */
fsdp_status shm_exchange(transport_group *group, stream *s, const comm_call *call,
                         const comm_part *parts, const comm_peer_read *v)
{
    region x = region_of(group->team, parts);
    void *bounce;
    if (x.bytes > 0 && v != NULL && v->shown_bytes > 0)
        x.bytes = v->shown_bytes;
    TRY(bounce_make(s, x, &bounce));
    comm_task head = {.run = run_call,
                      .group = group,
                      .call = *call,
                      .shown = bounce != NULL ? bounce : x.begin,
                      .shown_bytes = x.bytes};
    fsdp_status status = transport_task(&head, s, parts, v);
    device_free(s, bounce);
    return status;
}
