/* recorder.c -- the flight recorder: the last calls of this process and the state of each.
 *
 *   comm_recorder_create -> issue (host), mark (streams) ... -> print at a timeout -> free
 *
 * One recorder serves a process's first group and all groups split from it, so that the report
 * shows the calls of several groups in the order they were issued. It is a ring. If the host is so
 * far ahead that a new call would overwrite one that has not ended, the ring grows. Recording never
 * fails. */
#include "common/comm/comm_impl.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_ROOM = 64, SHOWN_CALLS = 8, REPORT_BYTES = 12288, MOST_GROUPS = 64 };

static const char *const STATE_NAME[] = {"issued", "running", "done", "failed"};

typedef struct record {
    uint64_t ticket;   /* 0: never used */
    uint64_t sequence; /* number of the sequence that the call is in */
    comm_desc desc;
    comm_record told; /* for the watch, without the label; calls and bytes are 0 after the first
                         report */
    void *told_by;    /* `self` of the watch that returned told.token */
    comm_state state;
    double issued_s, begun_s, ended_s;
} record;

/* The calls of one group that one transport numbers. A group has two sequences if its host calls
 * are numbered by another transport than its collectives. */
typedef struct sequence {
    uint64_t number; /* from 1, in the order in which this process first used them; 0: never used */
    comm_team team;
    char via[32]; /* copied, because the transport's name may be freed with its group */
} sequence;

struct comm_recorder {
    const device *dev;
    pthread_mutex_t lock;
    uint64_t last_ticket;
    comm_watch watch;
    comm_stats stats;
    record *ring; /* [room] the call with ticket t is at t % room */
    uint64_t room;
    sequence sequences[MOST_GROUPS]; /* the latest ones; number n is at n % MOST_GROUPS */
    uint64_t n_sequences;
    int world_rank, world_size;
    time_t opened;
    _Atomic double patience; /* factor of comm_set_patience */
};

comm_recorder *comm_recorder_create(const device *d)
{
    comm_recorder *r = calloc(1, sizeof *r);
    record *ring = calloc(FIRST_ROOM, sizeof *ring);
    if (r == NULL || ring == NULL) {
        free(r);
        free(ring);
        return NULL;
    }
    pthread_mutex_init(&r->lock, NULL);
    atomic_init(&r->patience, 1);
    r->dev = d;
    r->ring = ring;
    r->room = FIRST_ROOM;
    r->world_rank = comm_launched_rank();
    r->world_size = comm_launched_ranks();
    r->opened = time(NULL);
    return r;
}

void comm_recorder_free(comm_recorder *r)
{
    if (r == NULL)
        return;
    pthread_mutex_destroy(&r->lock);
    free(r->ring);
    free(r);
}

/* Payload bytes that a rank of the group sends in a call, averaged over the ranks. */
static double sent_bytes(const comm_desc *d, int group_ranks)
{
    double others = (double)(group_ranks - 1);
    double bytes = (double)d->elems * (double)dtype_bytes((dtype)d->dtype);
    switch ((comm_op)d->op) {
    case COMM_OP_ALL_GATHER:
        return others * bytes;
    case COMM_OP_REDUCE_SCATTER: /* shape_hash: elems is the sum of the slices */
        return d->shape_hash != 0 ? others / group_ranks * bytes : others * bytes;
    case COMM_OP_ALL_REDUCE:
        return 2 * others / group_ranks * bytes;
    case COMM_OP_ALL_TO_ALL: /* the lengths of all_to_allv are not known here */
        return d->shape_hash != 0 ? 0 : others * bytes;
    default:
        return 0;
    }
}

static bool is_unfinished(const record *e)
{
    return e->ticket != 0 && (e->state == COMM_ISSUED || e->state == COMM_RUNNING);
}

/* Make room for one more call, under the lock. If there is no memory, the oldest call is
 * forgotten. */
static void make_room(comm_recorder *r)
{
    while (is_unfinished(&r->ring[(r->last_ticket + 1) % r->room])) {
        record *ring = calloc(2 * r->room, sizeof *ring);
        if (ring == NULL)
            return;
        for (uint64_t i = 0; i < r->room; i++)
            if (r->ring[i].ticket != 0)
                ring[r->ring[i].ticket % (2 * r->room)] = r->ring[i];
        free(r->ring);
        r->ring = ring;
        r->room *= 2;
    }
}

/* The number of the sequence of the team's calls over `via`, a new one if necessary; under the
 * lock. */
static uint64_t sequence_of(comm_recorder *r, const comm_team *team, const char *via)
{
    for (uint64_t n = r->n_sequences; n > 0 && n + MOST_GROUPS > r->n_sequences; n--) {
        const sequence *q = &r->sequences[n % MOST_GROUPS];
        if (q->team.number == team->number && strcmp(q->via, via) == 0)
            return n;
    }
    uint64_t number = ++r->n_sequences;
    sequence *q = &r->sequences[number % MOST_GROUPS];
    *q = (sequence){.number = number, .team = *team};
    snprintf(q->via, sizeof q->via, "%s", via);
    r->world_rank = comm_world_rank(team, team->rank);
    r->world_size = team->number == 0 ? team->size : r->world_size;
    return number;
}

uint64_t comm_recorder_issue(const comm_team *team, const char *via, stream *s, const comm_issue *i,
                             const comm_desc *desc)
{
    comm_recorder *r = team->recorder;
    double now_s = device_now_s(r->dev);
    record e = {.desc = *desc,
                .told = {.op = i->op,
                         .type = i->type,
                         .elems = i->elems,
                         .group = team->number,
                         .group_ranks = team->size,
                         .first_rank = team->first,
                         .last_rank = comm_world_rank(team, team->size - 1),
                         .seq = desc->seq,
                         .stream = s,
                         .calls = 1,
                         .begin_s = now_s,
                         .bytes = sent_bytes(desc, team->size)},
                .issued_s = now_s};
    pthread_mutex_lock(&r->lock);
    comm_watch watch = r->watch;
    pthread_mutex_unlock(&r->lock);
    e.told.label = e.desc.label;
    e.told_by = watch.self;
    if (i->op < COMM_OPS && watch.issued != NULL)
        e.told.token = watch.issued(watch.self, &e.told);
    pthread_mutex_lock(&r->lock);
    make_room(r);
    e.sequence = sequence_of(r, team, via);
    e.ticket = ++r->last_ticket;
    r->ring[e.ticket % r->room] = e;
    if (i->op < COMM_OPS) {
        r->stats.calls[i->op]++;
        r->stats.bytes_sent[i->op] += i->sent_bytes;
    }
    pthread_mutex_unlock(&r->lock);
    return e.ticket;
}

void comm_set_watch(comm *c, const comm_watch *w)
{
    comm_recorder *r = c->team.recorder;
    pthread_mutex_lock(&r->lock);
    r->watch = w != NULL ? *w : (comm_watch){0};
    pthread_mutex_unlock(&r->lock);
}

void comm_set_patience(comm *c, double times)
{
    atomic_store(&c->team.recorder->patience, times);
}

double comm_limit_s(const comm_team *team)
{
    return team->timeout_s * atomic_load(&team->recorder->patience);
}

comm_stats comm_job_stats_read(const comm *c)
{
    comm_recorder *r = c->team.recorder;
    pthread_mutex_lock(&r->lock);
    comm_stats stats = r->stats;
    pthread_mutex_unlock(&r->lock);
    return stats;
}

void comm_job_stats_reset(comm *c)
{
    comm_recorder *r = c->team.recorder;
    pthread_mutex_lock(&r->lock);
    r->stats = (comm_stats){0};
    pthread_mutex_unlock(&r->lock);
}

/* Fill in the times in e->told for a call that has just ended. A call in parts ends once per part;
 * each later part begins where the one before ended. */
static void end_tell(record *e)
{
    double begun_s = e->begun_s > 0 ? e->begun_s : e->ended_s;
    e->told.begin_s = e->told.calls == 0 ? e->told.begin_s + e->told.seconds : begun_s;
    e->told.seconds = e->ended_s - e->told.begin_s;
}

void comm_recorder_mark(comm_recorder *r, uint64_t ticket, comm_state state)
{
    comm_recorder_mark_at(r, ticket, state, device_now_s(r->dev));
}

void comm_recorder_mark_at(comm_recorder *r, uint64_t ticket, comm_state state, double at_s)
{
    comm_watch watch = {0};
    record copy = {0};
    pthread_mutex_lock(&r->lock);
    record *e = &r->ring[ticket % r->room];
    if (e->ticket == ticket) {
        /* an all-reduce runs twice: only the first start counts, so its time covers both phases */
        if (state == COMM_RUNNING && e->state == COMM_ISSUED)
            e->begun_s = at_s;
        if (state == COMM_DONE || state == COMM_FAILED)
            e->ended_s = at_s;
        e->state = state;
        if (state == COMM_DONE && r->watch.ended != NULL && e->desc.op < COMM_OPS) {
            end_tell(e);
            watch = r->watch;
            copy = *e;
            copy.told.token = e->told_by == watch.self ? e->told.token : 0;
            e->told.calls = 0;
            e->told.bytes = 0;
        }
    }
    pthread_mutex_unlock(&r->lock);
    copy.told.label = copy.desc.label;
    if (watch.ended != NULL)
        watch.ended(watch.self, &copy.told);
}

/* How many seconds the call has been in its present state (issued, running) or took (done). */
static double record_seconds(const record *e, double now_s)
{
    switch (e->state) {
    case COMM_ISSUED:
        return now_s - e->issued_s;
    case COMM_RUNNING:
        return now_s - e->begun_s;
    default:
        return e->begun_s > 0 ? e->ended_s - e->begun_s : 0;
    }
}

static int record_print(const record *e, double now_s, char *text, size_t text_bytes)
{
    char call[160];
    comm_desc_print(&e->desc, call, sizeof call);
    return snprintf(text, text_bytes, "  %-48s  %d ranks  %-7s  %.3f s\n", call,
                    e->told.group_ranks, STATE_NAME[e->state], record_seconds(e, now_s));
}

void comm_recorder_print(comm_recorder *r)
{
    char text[REPORT_BYTES];
    pthread_mutex_lock(&r->lock);
    size_t used =
        (size_t)snprintf(text, sizeof text, "[rank %d] last calls, oldest first:\n", r->world_rank);
    double now_s = device_now_s(r->dev);
    uint64_t last = r->last_ticket;
    uint64_t first = last >= r->room ? last - r->room + 1 : 1;
    for (uint64_t t = first; t <= last && used < sizeof text; t++) {
        const record *e = &r->ring[t % r->room];
        if (is_unfinished(e) || t + SHOWN_CALLS > last)
            used += (size_t)record_print(e, now_s, text + used, sizeof text - used);
    }
    pthread_mutex_unlock(&r->lock);
    if (used > sizeof text - 1)
        used = sizeof text - 1;
    fwrite(text, 1, used, stderr); /* stderr is unbuffered: one write */
}

/* ---- files, to compare ranks ---------------------------------------------------------------- */

static int by_group_and_via(const void *a, const void *b)
{
    const sequence *x = *(const sequence *const *)a, *y = *(const sequence *const *)b;
    if (x->team.number != y->team.number)
        return x->team.number < y->team.number ? -1 : 1;
    return strcmp(x->via, y->via);
}

static void sequence_write(const sequence *q, FILE *out)
{
    fprintf(out, "# group %016llx/%-8s ranks", (unsigned long long)q->team.number, q->via);
    for (int i = 0; i < q->team.size; i++)
        fprintf(out, " %d", comm_world_rank(&q->team, i));
    fprintf(out, "\n");
}

/* Write one call as a line without anything specific to the rank, so that ranks that got equally
 * far write equal lines. Slice lengths and the end of a long label are left out: ranks that
 * differ in them end with an error anyway. */
static void record_write(const record *e, const sequence *q, FILE *out)
{
    const bool has_elems = e->desc.op != COMM_OP_HOST && e->desc.op != COMM_OP_BARRIER;
    fprintf(out, "%016llx/%-8s %010llu %-14s %12llu %-4s %-32s %s\n",
            (unsigned long long)q->team.number, q->via, (unsigned long long)e->desc.seq,
            comm_desc_name(&e->desc), (unsigned long long)e->desc.elems,
            has_elems ? dtype_name((dtype)e->desc.dtype) : "-", e->desc.label,
            STATE_NAME[e->state]);
}

/* Write which rank this is and how long it has waited: in the call that has run longest, or that
 * failed. */
static void rank_write(const comm_recorder *r, FILE *out, const char *why)
{
    char opened[32], written[32];
    double now_s = device_now_s(r->dev), longest_s = 0;
    time_t now = time(NULL);
    struct tm t;
    strftime(opened, sizeof opened, "%F %T", gmtime_r(&r->opened, &t));
    strftime(written, sizeof written, "%F %T", gmtime_r(&now, &t));
    for (uint64_t i = 0; i < r->room; i++) {
        const record *e = &r->ring[i];
        bool waits = e->ticket != 0 && (e->state == COMM_RUNNING || e->state == COMM_FAILED);
        double seconds = waits ? record_seconds(e, now_s) : 0;
        longest_s = seconds > longest_s ? seconds : longest_s;
    }
    fprintf(out, "# rank %05d of %05d, started %s, written %s UTC, waits for %.3f s: %.*s\n",
            r->world_rank, r->world_size, opened, written, longest_s, (int)strcspn(why, "\n"), why);
}

int comm_recorder_write(comm_recorder *r, FILE *out, const char *why)
{
    const sequence *sorted[MOST_GROUPS];
    size_t n = 0;
    pthread_mutex_lock(&r->lock);
    for (int i = 0; i < MOST_GROUPS; i++)
        if (r->sequences[i].number > 0)
            sorted[n++] = &r->sequences[i];
    qsort(sorted, n, sizeof *sorted, by_group_and_via);
    for (size_t i = 0; i < n; i++)
        sequence_write(sorted[i], out);
    rank_write(r, out, why);
    uint64_t last = r->last_ticket, first = last >= r->room ? last - r->room + 1 : 1;
    for (size_t i = 0; i < n; i++)
        for (uint64_t t = first; t <= last; t++) {
            const record *e = &r->ring[t % r->room];
            if (e->ticket == t && e->sequence == sorted[i]->number)
                record_write(e, sorted[i], out);
        }
    int rank = r->world_rank;
    pthread_mutex_unlock(&r->lock);
    return rank;
}
