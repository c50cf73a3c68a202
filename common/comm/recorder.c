/* recorder.c -- the flight recorder: the last calls of this process and how far each got.
 *
 *   comm_recorder_create -> issue (host), mark (streams) ... -> print at a timeout -> free
 *
 * One recorder serves a process's first group and all groups split from it, so that the report
 * shows calls of several groups in the order they were issued. A ring of fixed length: recording
 * never allocates and never fails. */
#include "common/comm/comm_impl.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { RING_CALLS = 64, SHOWN_CALLS = 8, REPORT_BYTES = 12288 };

typedef struct record {
    uint64_t ticket; /* 0: never used */
    comm_desc desc;
    int group_ranks;
    comm_state state;
    double issued_s, begun_s, ended_s;
    double told_s; /* of its seconds, what the timer has been told; < 0: not of the call yet */
} record;

struct comm_recorder {
    pthread_mutex_t lock;
    uint64_t last_ticket;
    comm_timer timer; /* NULL: nobody asks */
    void *timer_self;
    record ring[RING_CALLS];
};

comm_recorder *comm_recorder_create(void)
{
    comm_recorder *r = calloc(1, sizeof *r);
    if (r != NULL)
        pthread_mutex_init(&r->lock, NULL);
    return r;
}

void comm_recorder_free(comm_recorder *r)
{
    if (r == NULL)
        return;
    pthread_mutex_destroy(&r->lock);
    free(r);
}

uint64_t comm_recorder_issue(comm_recorder *r, const comm_desc *desc, int group_ranks)
{
    pthread_mutex_lock(&r->lock);
    uint64_t ticket = ++r->last_ticket;
    r->ring[ticket % RING_CALLS] = (record){.ticket = ticket,
                                            .desc = *desc,
                                            .group_ranks = group_ranks,
                                            .state = COMM_ISSUED,
                                            .issued_s = clock_now_s(),
                                            .told_s = -1};
    pthread_mutex_unlock(&r->lock);
    return ticket;
}

void comm_set_timer(comm *c, comm_timer fn, void *self)
{
    pthread_mutex_lock(&c->team.recorder->lock);
    c->team.recorder->timer = fn;
    c->team.recorder->timer_self = self;
    pthread_mutex_unlock(&c->team.recorder->lock);
}

/* Payload bytes that a rank of the group sends in a call, on average over the ranks. */
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
    case COMM_OP_BROADCAST:
        return others / group_ranks * bytes;
    case COMM_OP_ALL_TO_ALL: /* of all_to_allv the lengths are not known here */
        return d->shape_hash != 0 ? 0 : others * bytes;
    default:
        return 0;
    }
}

/* What the timer has not been told of a call that has just ended, once more or for good. */
static comm_timing timing_of(record *e)
{
    bool again = e->told_s >= 0;
    double seconds = e->begun_s > 0 ? e->ended_s - e->begun_s : 0;
    comm_timing t = {.op = (comm_op)e->desc.op,
                     .calls = again ? 0 : 1,
                     .seconds = again ? seconds - e->told_s : seconds,
                     .bytes = again ? 0 : sent_bytes(&e->desc, e->group_ranks)};
    e->told_s = seconds;
    return t;
}

void comm_recorder_mark(comm_recorder *r, uint64_t ticket, comm_state state)
{
    comm_timer tell = NULL;
    comm_timing timing = {0};
    void *self = NULL;
    pthread_mutex_lock(&r->lock);
    record *e = &r->ring[ticket % RING_CALLS];
    if (e->ticket == ticket) {
        /* an all-reduce runs twice: its time is that of both phases */
        if (state == COMM_RUNNING && e->state == COMM_ISSUED)
            e->begun_s = clock_now_s();
        if (state == COMM_DONE || state == COMM_FAILED)
            e->ended_s = clock_now_s();
        e->state = state;
        if (state == COMM_DONE && r->timer && e->desc.op < COMM_OPS) {
            timing = timing_of(e);
            tell = r->timer;
            self = r->timer_self;
        }
    }
    pthread_mutex_unlock(&r->lock);
    if (tell)
        tell(self, &timing);
}

/* Seconds that the call has been in its present state (issued, running) or has taken (done). */
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
    static const char *const state_name[] = {"issued", "running", "done", "failed"};
    char call[160];
    comm_desc_print(&e->desc, call, sizeof call);
    return snprintf(text, text_bytes, "  %-48s  %d ranks  %-7s  %.3f s\n", call, e->group_ranks,
                    state_name[e->state], record_seconds(e, now_s));
}

void comm_recorder_print(comm_recorder *r, FILE *out, int world_rank)
{
    char text[REPORT_BYTES];
    size_t used =
        (size_t)snprintf(text, sizeof text, "[rank %d] last calls, oldest first:\n", world_rank);
    pthread_mutex_lock(&r->lock);
    double now_s = clock_now_s();
    uint64_t last = r->last_ticket;
    uint64_t first = last >= RING_CALLS ? last - RING_CALLS + 1 : 1;
    for (uint64_t t = first; t <= last && used < sizeof text; t++) {
        const record *e = &r->ring[t % RING_CALLS];
        bool unfinished = e->state == COMM_ISSUED || e->state == COMM_RUNNING;
        if (unfinished || t + SHOWN_CALLS > last)
            used += (size_t)record_print(e, now_s, text + used, sizeof text - used);
    }
    pthread_mutex_unlock(&r->lock);
    if (used > sizeof text - 1)
        used = sizeof text - 1;
    fflush(out);
    fwrite(text, 1, used, out);
    fflush(out);
}
