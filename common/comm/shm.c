/* shm.c -- the transport of ranks on one host: they read each other's memory.
 *
 *   shm_use -> exchange, visit ... split ... -> close
 *
 * One call of a rank (a turn, see shm_sync.h):
 *   begin    describe the call and where its data lies in this rank's entry, post it
 *   meet     await every peer's entry and compare the calls
 *   read     copy the peers' parts (exchange), or work on them where they are (visit)
 *   end      tell every peer that it was read; wait until all have read ours
 * Data of up to SHM_INLINE_BYTES travels in the entry itself; then there is nothing to wait for at
 * the end, and a small collective costs one meeting. Larger data is read where comm_alloc put it,
 * once. Other memory is copied into such a block first.
 *
 * source [NCCL's and MPICH's shared-memory paths; process-shared futexes: futex(2)] */
#include "common/base/bytes_copy.h"
#include "common/comm/shm_boot.h"
#include "common/comm/shm_impl.h"
#include <stdlib.h>
#include <string.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/sysinfo.h>
#include <time.h>
#include <unistd.h>

static const double CLOSE_PATIENCE_S = 10; /* without any progress */

/* Arguments of a call's task; parts [size], then the visit's ctx. */
typedef struct call_args {
    shm_group *group;
    comm_call call;
    device *dev;        /* whose memory the data is in; NULL: the host's */
    const void *bounce; /* block that holds a copy of the data, NULL */
    fsdp_status (*fn)(const void *ctx, const void *const *from, int n_threads); /* NULL: exchange */
    comm_part parts[];
} call_args;

/* ---- layout --------------------------------------------------------------------------------- */

static size_t turn_bytes(int n_ranks)
{
    size_t bytes = sizeof(shm_turn) + (size_t)n_ranks * sizeof(shm_part);
    return (bytes + SHM_LINE_BYTES - 1) / SHM_LINE_BYTES * SHM_LINE_BYTES;
}

size_t shm_area_bytes(int n_ranks)
{
    size_t bytes = (size_t)n_ranks * SHM_RING * turn_bytes(n_ranks);
    return (bytes + 4095) / 4096 * 4096;
}

/* The entry of a call, on any rank. */
static shm_turn *turn_of(const shm_group *g, int rank, const comm_call *call)
{
    size_t index = (size_t)rank * SHM_RING + call->number % SHM_RING;
    return (shm_turn *)(void *)(g->area + index * g->turn_bytes);
}

/* Every number is used once: an all-reduce is two turns. 0 is no turn. */
static unsigned turn_number(const comm_call *call)
{
    return (unsigned)(2 * call->number) + (unsigned)call->phase;
}

/* ---- waiting -------------------------------------------------------------------------------- */

/* One call's patience: until the job fails or the call's time is up. */
typedef struct call_wait {
    double until_s;
    bool failed, expired;
} call_wait;

static bool call_over(void *self)
{
    call_wait *w = self;
    w->failed = shm_failed() != FSDP_OK;
    w->expired = !w->failed && comm_now_s() > w->until_s;
    return w->failed || w->expired;
}

static shm_patience patience_of(shm_group *g, call_wait *w)
{
    return (shm_patience){.over = call_over, .self = w, .spin = g->may_spin ? &g->spin : NULL};
}

/* Why a wait ended without what it waited for. missing: a list of ranks. */
static fsdp_status wait_failed(const shm_group *g, const call_wait *w, const comm_call *call,
                               const char *missing)
{
    if (w->failed)
        return shm_failed();
    char text[160];
    comm_desc_print(&call->desc, text, sizeof text);
    (void)fsdp_error(FSDP_ETIMEOUT,
                     "compare the ranks' last calls above; FSDP_TIMEOUT_S sets the limit",
                     "rank %d waited %.1f s in %s; missing data of ranks: %s",
                     g->front->world_ranks[g->front->rank], g->front->timeout_s, text, missing);
    return shm_fail();
}

/* World ranks whose entry of the turn is not there: "1 3". */
static void missing_ranks(const shm_group *g, const comm_call *call, char *text, size_t text_bytes)
{
    const comm *c = g->front;
    size_t used = 0;
    text[0] = '\0';
    for (int r = 0; r < c->size; r++) {
        bool there = atomic_load(&turn_of(g, r, call)->sync.posted.value) == turn_number(call);
        if (!there && r != c->rank && used < text_bytes)
            used += (size_t)snprintf(text + used, text_bytes - used, "%s%d", used > 0 ? " " : "",
                                     c->world_ranks[r]);
    }
}

/* ---- begin ---------------------------------------------------------------------------------- */

/* The bytes that this rank shows, from the first to the last. */
typedef struct region {
    const char *begin, *end;
} region;

static region region_of(const comm *c, const comm_part *parts)
{
    region x = {NULL, NULL};
    for (int r = 0; r < c->size; r++) {
        const char *at = parts[r].send;
        if (r == c->rank || parts[r].send_bytes == 0)
            continue;
        x.begin = x.begin == NULL || at < x.begin ? at : x.begin;
        x.end = at + parts[r].send_bytes > x.end ? at + parts[r].send_bytes : x.end;
    }
    return x;
}

static size_t region_bytes(region x)
{
    return (size_t)(x.end - x.begin);
}

/* This rank's entry is the call's from here to entry_release. The call before in this entry may be
 * on another stream and not be finished, or not have waited for its readers. */
static fsdp_status entry_acquire(shm_group *g, const comm_call *call, call_wait *w)
{
    uint64_t number = call->number, i = number % SHM_RING;
    pthread_mutex_lock(&g->lock);
    while (g->next[i] != number && !call_over(w)) {
        struct timespec soon;
        clock_gettime(CLOCK_REALTIME, &soon);
        soon.tv_nsec += 50000000;
        soon.tv_sec += soon.tv_nsec / 1000000000;
        soon.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&g->freed, &g->lock, &soon);
    }
    bool got = g->next[i] == number;
    unsigned owed = got ? g->owed[i] : 0;
    g->owed[i] = 0;
    pthread_mutex_unlock(&g->lock);
    shm_patience p = patience_of(g, w);
    if (got && (owed == 0 || shm_turn_free(&turn_of(g, g->front->rank, call)->sync, owed, &p)))
        return FSDP_OK;
    return wait_failed(g, w, call, "none; peers have not taken this rank's");
}

/* owed: peers that have still to read the entry before it is filled again. */
static void entry_release(shm_group *g, const comm_call *call, unsigned owed)
{
    uint64_t i = call->number % SHM_RING;
    pthread_mutex_lock(&g->lock);
    g->next[i] += call->more ? 0 : SHM_RING;
    g->owed[i] = owed;
    pthread_cond_broadcast(&g->freed);
    pthread_mutex_unlock(&g->lock);
}

/* Describe the call and where its data is. Returns whether the data is in the entry itself. */
static bool entry_fill(shm_group *g, const call_args *a)
{
    const comm *c = g->front;
    shm_turn *mine = turn_of(g, c->rank, &a->call);
    region x = region_of(c, a->parts);
    device_share share = {0};
    mine->desc = a->call.desc;
    mine->block_offset = mine->block_bytes = 0;
    bool is_inline = region_bytes(x) <= SHM_INLINE_BYTES;
    if (is_inline) {
        if (region_bytes(x) > 0)
            memcpy(mine->inline_bytes, x.begin, region_bytes(x));
    } else {
        const char *at = a->bounce != NULL ? a->bounce : x.begin;
        bool found = device_share_find(a->dev, at, region_bytes(x), &share);
        FSDP_ASSERT(found && "the data moved out of shared memory after the call was issued");
        mine->block_offset = share.offset;
        mine->block_bytes = share.bytes;
    }
    for (int r = 0; r < c->size; r++) {
        const comm_part *part = &a->parts[r];
        bool shows = r != c->rank && part->send_bytes > 0;
        mine->part[r].bytes = shows ? part->send_bytes : 0;
        mine->part[r].inner =
            shows ? share.inner + (uint64_t)((const char *)part->send - x.begin) : 0;
    }
    return is_inline;
}

/* ---- meet ----------------------------------------------------------------------------------- */

static fsdp_status desc_compare(const shm_group *g, const comm_desc *mine, const comm_desc *theirs,
                                int peer)
{
    const comm *c = g->front;
    if (memcmp(mine, theirs, sizeof *mine) == 0)
        return FSDP_OK;
    return comm_desc_mismatch(theirs, c->world_ranks[peer], mine, c->world_ranks[c->rank]);
}

static fsdp_status lengths_compare(const shm_group *g, const call_args *a, const shm_turn *theirs,
                                   int peer)
{
    const comm *c = g->front;
    size_t sent = theirs->part[c->rank].bytes, expected = a->parts[peer].recv_bytes;
    if (sent == expected)
        return FSDP_OK;
    char call[160];
    comm_desc_print(&a->call.desc, call, sizeof call);
    return fsdp_error(FSDP_EMISMATCH, "all ranks must pass slice lengths that fit each other",
                      "%s: rank %d sent %zu bytes, rank %d expected %zu", call,
                      c->world_ranks[peer], sent, c->world_ranks[c->rank], expected);
}

/* Every peer has come, with the same call. */
static fsdp_status meet(shm_group *g, const call_args *a, call_wait *w)
{
    const comm *c = g->front;
    unsigned turn = turn_number(&a->call);
    shm_patience p = patience_of(g, w);
    for (int d = 1; d < c->size; d++) {
        int peer = (c->rank + d) % c->size;
        shm_turn *theirs = turn_of(g, peer, &a->call);
        if (!shm_turn_await(&theirs->sync, turn, &p)) {
            char missing[200];
            missing_ranks(g, &a->call, missing, sizeof missing);
            return wait_failed(g, w, &a->call, missing);
        }
        fsdp_status status = desc_compare(g, &a->call.desc, &theirs->desc, peer);
        if (status == FSDP_OK)
            status = lengths_compare(g, a, theirs, peer);
        if (status != FSDP_OK)
            return shm_fail();
    }
    return FSDP_OK;
}

/* ---- read ----------------------------------------------------------------------------------- */

/* Where the peer's part for this rank can be read until part_close; NULL on failure. */
static const char *part_open(const shm_group *g, const shm_turn *theirs, int peer)
{
    const shm_part *part = &theirs->part[g->front->rank];
    if (theirs->block_bytes == 0)
        return theirs->inline_bytes + part->inner;
    const char *block = shm_map_get(g->member[peer], theirs->block_offset, theirs->block_bytes);
    return block == NULL ? NULL : block + part->inner;
}

static void part_close(const shm_group *g, const shm_turn *theirs, int peer)
{
    if (theirs->block_bytes != 0)
        shm_map_put(g->member[peer], theirs->block_offset);
}

/* Everyone starts with its neighbour, so that no rank's memory is read by all at once. */
static fsdp_status copy_parts(shm_group *g, const call_args *a)
{
    const comm *c = g->front;
    for (int d = 1; d < c->size; d++) {
        int peer = (c->rank + d) % c->size;
        const comm_part *part = &a->parts[peer];
        if (part->recv_bytes == 0)
            continue;
        const shm_turn *theirs = turn_of(g, peer, &a->call);
        const char *from = part_open(g, theirs, peer);
        if (from == NULL)
            return shm_fail();
        bytes_copy(part->recv, from, part->recv_bytes);
        part_close(g, theirs, peer);
    }
    return FSDP_OK;
}

static fsdp_status visit_parts(shm_group *g, const call_args *a, int n_threads)
{
    const comm *c = g->front;
    const void **from = calloc((size_t)c->size, sizeof *from);
    fsdp_status status = from != NULL ? FSDP_OK : fsdp_error(FSDP_ENOMEM, "", "shm: no memory");
    int n_open = 0;
    for (; status == FSDP_OK && n_open < c->size; n_open++) {
        const shm_turn *theirs = turn_of(g, n_open, &a->call);
        from[n_open] = n_open == c->rank ? a->parts[n_open].send : part_open(g, theirs, n_open);
        if (from[n_open] == NULL && a->parts[n_open].recv_bytes > 0)
            status = fsdp_error_get()->status;
    }
    if (status == FSDP_OK)
        status = a->fn(a->parts + c->size, from, n_threads);
    for (int r = 0; r < n_open; r++)
        if (r != c->rank && from[r] != NULL)
            part_close(g, turn_of(g, r, &a->call), r);
    free(from);
    return status == FSDP_OK ? FSDP_OK : shm_fail();
}

/* ---- end ------------------------------------------------------------------------------------ */

static fsdp_status end(shm_group *g, const call_args *a, bool is_inline, call_wait *w)
{
    const comm *c = g->front;
    unsigned n_peers = (unsigned)c->size - 1;
    for (int d = 1; d < c->size; d++)
        shm_turn_done(&turn_of(g, (c->rank + d) % c->size, &a->call)->sync, n_peers);
    shm_patience p = patience_of(g, w);
    if (!is_inline && !shm_turn_free(&turn_of(g, c->rank, &a->call)->sync, n_peers, &p))
        return wait_failed(g, w, &a->call, "none; peers have not taken this rank's");
    entry_release(g, &a->call, is_inline ? n_peers : 0);
    return FSDP_OK;
}

static fsdp_status run_call(shm_group *g, const call_args *a, int n_threads)
{
    const comm *c = g->front;
    call_wait w = {.until_s = comm_now_s() + c->timeout_s};
    comm_recorder_mark(c->recorder, a->call.ticket, COMM_RUNNING);
    TRY(entry_acquire(g, &a->call, &w));
    bool is_inline = entry_fill(g, a);
    shm_turn_post(&turn_of(g, c->rank, &a->call)->sync, turn_number(&a->call));
    TRY(meet(g, a, &w));
    TRY(a->fn != NULL ? visit_parts(g, a, n_threads) : copy_parts(g, a));
    TRY(shm_failed()); /* a peer that gave up may have used its memory again while we read it */
    return end(g, a, is_inline, &w);
}

/* In the stream's thread. On a failed job the front may be gone: it is not touched then. */
static fsdp_status call_task(void *args, int n_threads)
{
    const call_args *a = args;
    shm_group *g = a->group;
    fsdp_status status = shm_failed();
    if (status == FSDP_OK) {
        status = run_call(g, a, n_threads);
        comm_recorder_mark(g->front->recorder, a->call.ticket,
                           status == FSDP_OK ? COMM_DONE : COMM_FAILED);
    }
    atomic_fetch_sub(&g->n_unfinished, 1);
    return status;
}

/* ---- issue ---------------------------------------------------------------------------------- */

/* Data outside shared memory: a copy inside, made in stream order. *bounce is NULL when none is
 * needed. */
static fsdp_status bounce_make(const shm_group *g, stream *s, const comm_part *parts, void **bounce)
{
    device_share share;
    region x = region_of(g->front, parts);
    *bounce = NULL;
    if (region_bytes(x) <= SHM_INLINE_BYTES ||
        (s != NULL && device_share_find(stream_device(s), x.begin, region_bytes(x), &share)))
        return FSDP_OK;
    if (s == NULL)
        return fsdp_error(FSDP_EINVAL, "pass less, or use a stream",
                          "shm: %zu bytes of host memory, expected at most %d", region_bytes(x),
                          SHM_INLINE_BYTES);
    TRY(device_alloc_shared(s, MEM_COMM, region_bytes(x), "copy for peers", bounce));
    return device_copy(s, *bounce, x.begin, region_bytes(x));
}

static fsdp_status issue(shm_group *g, stream *s, const comm_call *call, const comm_part *parts,
                         const comm_visit *v)
{
    size_t parts_bytes = (size_t)g->front->size * sizeof *parts, ctx_bytes = v ? v->ctx_bytes : 0;
    size_t bytes = sizeof(call_args) + parts_bytes + ctx_bytes;
    void *bounce;
    TRY(bounce_make(g, s, parts, &bounce));
    call_args *a = malloc(bytes);
    if (a == NULL) {
        device_free(s, bounce);
        return fsdp_error(FSDP_ENOMEM, "", "shm: no memory for a call of %d ranks", g->front->size);
    }
    a->group = g;
    a->call = *call;
    a->dev = s != NULL ? stream_device(s) : NULL;
    a->bounce = bounce;
    a->fn = v != NULL ? v->fn : NULL;
    memcpy(a->parts, parts, parts_bytes);
    if (ctx_bytes > 0)
        memcpy(a->parts + g->front->size, v->ctx, ctx_bytes);
    atomic_fetch_add(&g->n_unfinished, 1);
    fsdp_status status = s != NULL ? stream_launch(s, call_task, a, bytes) : call_task(a, 1);
    free(a);
    device_free(s, bounce);
    return status;
}

static fsdp_status shm_exchange(void *group, stream *s, const comm_call *call,
                                const comm_part *parts)
{
    return issue(group, s, call, parts, NULL);
}

static fsdp_status shm_visit(void *group, stream *s, const comm_call *call, const comm_part *parts,
                             const comm_visit *v)
{
    return issue(group, s, call, parts, v);
}

static fsdp_status shm_group_failed(void *group)
{
    (void)group; /* all groups fail together */
    return shm_failed();
}

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

static fsdp_status group_new(const comm *front, char *area, shm_group **out)
{
    shm_group *g = calloc(1, sizeof *g);
    int *member = calloc((size_t)front->size, sizeof *member);
    if (g == NULL || member == NULL) {
        free(g);
        free(member);
        return fsdp_error(FSDP_ENOMEM, "", "shm: no memory for a group of %d ranks", front->size);
    }
    for (int r = 0; r < front->size; r++)
        member[r] = member_of(front->world_ranks[r]);
    g->front = front;
    g->member = member;
    g->area = area;
    g->area_bytes = shm_area_bytes(front->size);
    g->turn_bytes = turn_bytes(front->size);
    g->spin = 64;
    g->may_spin = cores_for_all(front->local_size);
    for (uint64_t seq = front->next_seq + 1; seq <= front->next_seq + SHM_RING; seq++)
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
    comm *front =
        (comm *)(uintptr_t)parent->front; /* its calls are numbered as those of its owner */
    char *area = NULL;
    (void)color;
    *out = NULL;
    TRY(area_share(front, child, &area));
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
    double until_s = comm_now_s() + (shm_failed() == FSDP_OK ? CLOSE_PATIENCE_S : 1);
    int before = atomic_load(&g->n_unfinished), n;
    while ((n = atomic_load(&g->n_unfinished)) > 0 && comm_now_s() < until_s) {
        if (n != before)
            until_s = comm_now_s() + CLOSE_PATIENCE_S;
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
    p->world = p->world == g->front ? NULL : p->world;
    pthread_mutex_unlock(&p->world_lock);
    if (--p->n_open == 0) {
        shm_linger();
        if (!failed)
            atomic_store(&p->job->member[p->me].closed, 1);
        shm_self_close();
    }
    if (g->below_transport != NULL && !failed)
        g->below_transport->close(g->below);
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
    if (g->below_transport != NULL)
        g->below_transport->abort(g->below, exit_code);
    /* else the front ends the process, and the launcher the others */
}

static const comm_transport shm_transport = {.name = "shm",
                                             .shares = true,
                                             .exchange = shm_exchange,
                                             .visit = shm_visit,
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
        g->below = c->group;
        g->below_transport = c->transport;
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
