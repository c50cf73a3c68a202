/* order_check.c -- the rules and the reports of order_check.h. */
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include "common/device/instruments/order_impl.h"

enum { MOST_PAIRS = 64 };

/* The names of the two operations of a reported violation. */
typedef struct order_pair {
    char what[2][40];
} order_pair;

struct order_check {
    pthread_mutex_t lock; /* guards all below */
    order_clocks clocks;
    order_memory memory;
    order_figures figures;
    fsdp_error_info first; /* the first violation, or why the checker gave up */
    bool gave_up;
    bool tells; /* print the first violation at once */
    int rank, n_ranks;
    order_pair pairs[MOST_PAIRS]; /* [figures.violations] */
};

order_check *order_check_create(void)
{
    order_check *c = calloc(1, sizeof *c);
    if (c != NULL)
        pthread_mutex_init(&c->lock, NULL);
    return c;
}

void order_check_free(order_check *c)
{
    if (c == NULL)
        return;
    order_memory_free(&c->memory);
    order_events_free(&c->clocks);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

void order_check_tell(order_check *c, int rank, int n_ranks)
{
    c->tells = true;
    c->rank = rank;
    c->n_ranks = n_ranks;
}

device_watch order_check_watch(order_check *c)
{
    return (device_watch){.self = c, .issued = order_check_issued};
}

fsdp_status order_check_status(order_check *c)
{
    pthread_mutex_lock(&c->lock);
    fsdp_error_info first = c->first;
    pthread_mutex_unlock(&c->lock);
    return first.status != FSDP_OK ? fsdp_error_set(&first) : FSDP_OK;
}

order_figures order_check_read(order_check *c)
{
    pthread_mutex_lock(&c->lock);
    order_figures f = c->figures;
    for (size_t i = 0; i < c->memory.n_live; i++)
        f.kept += c->memory.live[i]->n_log;
    pthread_mutex_unlock(&c->lock);
    return f;
}

/* ---- reports -------------------------------------------------------------------------------- */

/* Keep the first error: a violation (FSDP_EORDER), or the reason why the checker gives up. */
static void keep_first(order_check *c, fsdp_status status, const char *hint, const char *what)
{
    c->gave_up = c->gave_up || status != FSDP_EORDER;
    if (c->first.status != FSDP_OK)
        return;
    c->first.status = status;
    snprintf(c->first.what, sizeof c->first.what, "%s", what);
    snprintf(c->first.hint, sizeof c->first.hint, "%s", hint);
    if (status == FSDP_EORDER && c->tells) {
        const fsdp_error_info kept = *fsdp_error_get(); /* the caller's error */
        fsdp_error_set(&c->first);
        fsdp_error_print(stderr, c->rank, c->n_ranks);
        fsdp_error_set(&kept);
    }
}

static void no_memory(order_check *c)
{
    keep_first(c, FSDP_ENOMEM, "run without the check", "order check: no host memory");
}

/* Note this pair of names. Returns false if it was noted before, or if there is no room. */
static bool is_new(order_check *c, const char *what, const char *other)
{
    for (uint64_t i = 0; i < c->figures.violations; i++)
        if (strcmp(c->pairs[i].what[0], what) == 0 && strcmp(c->pairs[i].what[1], other) == 0)
            return false;
    if (c->figures.violations == MOST_PAIRS)
        return false;
    order_pair *pair = &c->pairs[c->figures.violations++];
    snprintf(pair->what[0], sizeof pair->what[0], "%s", what);
    snprintf(pair->what[1], sizeof pair->what[1], "%s", other);
    return true;
}

/* Report a violation between `now` and another operation, unless the pair was reported already. */
__attribute__((format(printf, 5, 6))) static void report(order_check *c, const order_access *now,
                                                         const char *other, const char *hint,
                                                         const char *format, ...)
{
    char what[sizeof c->first.what];
    va_list args;
    if (!is_new(c, now->op.what, other))
        return;
    va_start(args, format);
    (void)vsnprintf(what, sizeof what, format, args);
    va_end(args);
    keep_first(c, FSDP_EORDER, hint, what);
}

/* `now` and `then` access the same bytes of b, and nothing orders the two. */
static void report_conflict(order_check *c, const order_block *b, const order_access *then,
                            const order_access *now)
{
    const order_clocks *k = &c->clocks;
    const char *by = k->name[then->slot], *to = k->name[now->slot];
    char hint[sizeof c->first.hint];
    if (order_is_recorded(k, then->slot, then->number))
        snprintf(hint, sizeof hint,
                 "an event was recorded on %s after it: let %s wait for that event first "
                 "(stream_wait_event)",
                 by, to);
    else
        snprintf(hint, sizeof hint,
                 "record an event on %s after it, and let %s wait for it (stream_wait_event)", by,
                 to);
    report(c, now, then->op.what, hint,
           "order: '%s'%s on stream %s %s bytes %zu-%zu of '%s', which '%s'%s on stream %s %s; "
           "nothing orders them",
           now->op.what, now->op.where, to, now->verb,
           then->begin > now->begin ? then->begin : now->begin,
           then->end < now->end ? then->end : now->end, b->label, then->op.what, then->op.where, by,
           then->verb);
}

/* `now` accesses bytes at ptr that are in no live block. */
static void report_stray(order_check *c, const order_access *now, const void *ptr, size_t bytes)
{
    const order_freed *f = order_freed_find(&c->memory, ptr);
    const char *on = c->clocks.name[now->slot];
    if (f != NULL)
        report(c, now, f->by.op.what, "issue the free after the last use",
               "order: '%s'%s on stream %s %s '%s' after its free: '%s'%s was issued before",
               now->op.what, now->op.where, on, now->verb, f->label, f->by.op.what, f->by.op.where);
    else
        report(c, now, "", "pass memory of device_alloc to streams",
               "order: '%s'%s on stream %s %s %zu bytes that are not device memory", now->op.what,
               now->op.where, on, now->verb, bytes);
}

/* ---- rules ---------------------------------------------------------------------------------- */

/* Compare `now` with the logged accesses of b, and log it. Of several conflicts, only the last is
 * reported. A logged access is forgotten if it happens before `now` and `now` covers it: work that
 * is ordered after `now` is then ordered after that access too. An access that the host has waited
 * for (it is in the host's clock) is also forgotten: it happens before all work issued later. */
static void touch(order_check *c, order_block *b, const order_access *now)
{
    const order_clock *at = &c->clocks.stream[now->slot], *host = &c->clocks.host;
    order_access conflict = {.verb = NULL};
    size_t n = 0;
    for (size_t i = 0; i < b->n_log; i++) {
        const order_access *then = &b->log[i];
        bool before = order_before(at, then->slot, then->number);
        bool overlap = then->begin < now->end && now->begin < then->end;
        if (overlap && !before && (then->writes || now->writes))
            conflict = *then;
        bool covered = before && now->begin <= then->begin && then->end <= now->end &&
                       (now->writes || !then->writes);
        if (!covered && !order_before(host, then->slot, then->number))
            b->log[n++] = *then;
    }
    if (conflict.verb != NULL)
        report_conflict(c, b, &conflict, now);
    b->n_log = n;
    if (!order_log_add(b, now))
        no_memory(c);
}

/* Check access a of an operation; `now` describes the operation. */
static void access_bytes(order_check *c, order_access now, mem_access a)
{
    if (a.ptr == NULL || a.bytes == 0)
        return;
    now.writes = a.writes;
    now.verb = a.writes ? "writes" : "reads";
    order_block *b = order_block_find(&c->memory, a.ptr);
    if (b == NULL) {
        report_stray(c, &now, a.ptr, a.bytes);
        return;
    }
    now.begin = (size_t)((const char *)a.ptr - b->begin);
    now.end = now.begin + a.bytes;
    if (now.end > b->bytes)
        report(c, &now, "end", "compare the sizes of the two",
               "order: '%s'%s on stream %s %s bytes %zu-%zu of '%s', which has %zu", now.op.what,
               now.op.where, c->clocks.name[now.slot], now.verb, now.begin, now.end, b->label,
               b->bytes);
    touch(c, b, &now);
}

static void launch(order_check *c, order_access now, const device_act *act)
{
    c->figures.launches++;
    if (act->accesses == NULL)
        report(c, &now, "untold",
               "give stream_launch_work what it touches: launch_config.accesses, or "
               "TOUCHES_NOTHING",
               "order: launch without an access list: '%s'%s on stream %s", now.op.what,
               now.op.where, c->clocks.name[now.slot]);
    for (int i = 0; act->accesses != NULL && i < act->n_accesses; i++)
        access_bytes(c, now, act->accesses[i]);
}

static void begin_block(order_check *c, order_access now, const device_act *act)
{
    order_block *b = order_block_begin(&c->memory, act->dst, act->bytes, act->label);
    now.verb = "allocates";
    now.writes = true;
    now.end = act->bytes;
    c->figures.blocks++;
    if (b == NULL)
        no_memory(c);
    else
        touch(c, b, &now);
}

static void end_block(order_check *c, order_access now, const device_act *act)
{
    order_block *b = order_block_find(&c->memory, act->dst);
    now.verb = "frees";
    if (b == NULL) {
        report_stray(c, &now, act->dst, 0);
        return;
    }
    now.writes = true;
    now.end = b->bytes;
    touch(c, b, &now);
    order_block_end(&c->memory, b, &now);
}

/* ---- acts ----------------------------------------------------------------------------------- */

static const char *call_of(const device_act *act)
{
    static const char *const CALLS[] = {
        [ACT_ALLOC] = "device_alloc",       [ACT_FREE] = "device_free",
        [ACT_COPY] = "device_copy",         [ACT_UPLOAD] = "device_upload",
        [ACT_DOWNLOAD] = "device_download", [ACT_FILL] = "device_zero"};
    if (act->kind == ACT_LAUNCH)
        return act->work.key.name ? act->work.key.name : act->name ? act->name : "a launch";
    return act->kind == ACT_FILL && act->byte != 0 ? "device_poison" : CALLS[act->kind];
}

/* The name of the operation, and what it is issued for. */
static order_op op_of(const device_act *act)
{
    order_op op;
    const char *label = act->kind == ACT_LAUNCH && act->label ? act->label : "";
    const char *scope = act->scope ? act->scope : "", *phase = act->phase ? act->phase : "";
    snprintf(op.what, sizeof op.what, "%s", call_of(act));
    op.where[0] = '\0';
    if (*label || *scope)
        snprintf(op.where, sizeof op.where, " (%s%s%s%s%s)", label, *label && *scope ? ", " : "",
                 scope, *scope && *phase ? " " : "", *scope ? phase : "");
    return op;
}

static void memory_act(order_check *c, int slot, const device_act *act)
{
    const order_access now = {
        .op = op_of(act), .slot = slot, .number = order_tick(&c->clocks, slot)};
    if (act->kind == ACT_LAUNCH)
        launch(c, now, act);
    else if (act->kind == ACT_ALLOC)
        begin_block(c, now, act);
    else if (act->kind == ACT_FREE)
        end_block(c, now, act);
    if (act->kind == ACT_COPY || act->kind == ACT_DOWNLOAD)
        access_bytes(c, now, (mem_access){act->src, act->bytes, .writes = false});
    if (act->kind == ACT_COPY || act->kind == ACT_UPLOAD || act->kind == ACT_FILL)
        access_bytes(c, now, (mem_access){act->dst, act->bytes, .writes = true});
}

static void stream_act(order_check *c, const device_act *act)
{
    int slot = order_slot(&c->clocks, act->stream);
    if (slot < 0)
        keep_first(c, FSDP_EINVAL, "free streams that are not used any more",
                   "order check: more than 64 streams at once");
    else if (act->kind == ACT_RECORD && !order_record(&c->clocks, slot, act->event))
        no_memory(c);
    else if (act->kind == ACT_WAIT)
        order_wait(&c->clocks, slot, act->event);
    else if (act->kind == ACT_SYNC)
        order_sync_stream(&c->clocks, slot);
    else if (act->kind == ACT_STREAM_FREE)
        order_stream_free(&c->clocks, slot);
    else if (act->kind != ACT_RECORD)
        memory_act(c, slot, act);
}

uint64_t order_check_issued(void *self, const device_act *act)
{
    order_check *c = self;
    pthread_mutex_lock(&c->lock);
    if (act->kind == ACT_EVENT_FREE)
        order_event_free(&c->clocks, act->event);
    else if (act->kind == ACT_SYNC && act->stream == NULL)
        order_wait(&c->clocks, ORDER_HOST, act->event);
    else if (!c->gave_up)
        stream_act(c, act);
    pthread_mutex_unlock(&c->lock);
    return 0;
}
