/* coll_plan.c -- see coll_impl.h: the messages of a call, the order of calls in this process, and
 * sums. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/base/dtype.h"
#include "tests/sim/core/coll_impl.h"

/* The calls of this process that are not over, in order of issue. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t ended;
    coll_plan *first;
} queue = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, NULL};

/* ---- the messages of a plan ------------------------------------------------------------------ */

coll_plan *coll_plan_new(coll_comm *c)
{
    coll_plan *p = calloc(1, sizeof *p);
    if (p == NULL)
        return NULL;
    p->comm = c;
    atomic_fetch_add(&c->uses, 1);
    return p;
}

static coll_head head_of(const coll_comm *c, const coll_call *call, uint64_t number)
{
    coll_head head = {.comm = c->name, .number = number, .count = call->count, .type = call->type};
    snprintf(head.name, sizeof head.name, "%s", call->name);
    return head;
}

static void transfer_add(coll_plan *p, const coll_head *head, bool sends, int peer, void *ptr,
                         size_t bytes)
{
    p->transfer[p->n++] =
        (coll_transfer){.sends = sends, .peer = peer, .head = *head, .ptr = ptr, .bytes = bytes};
}

/* Make p the next collective of its communicator, and return the head. */
static coll_head collective_begin(coll_plan *p, const coll_call *call)
{
    coll_head head = head_of(p->comm, call, ++p->comm->n_collectives);
    p->call = *call;
    p->own_bytes = call->count * call->elem_bytes;
    snprintf(p->text, sizeof p->text, "%s %llu of %llu elements of type %d, on communicator %llx",
             call->name, (unsigned long long)head.number, (unsigned long long)head.count, head.type,
             (unsigned long long)head.comm & 0xffff);
    return head;
}

/* For each other rank r: send own_bytes at from + r * step, and receive own_bytes at
 * to + r * own_bytes. */
static void exchange(coll_plan *p, const coll_head *head, const char *from, size_t step, char *to)
{
    for (int r = 0; r < p->comm->n; r++)
        if (r != p->comm->rank) {
            transfer_add(p, head, true, r, (char *)(uintptr_t)from + step * (size_t)r,
                         p->own_bytes);
            transfer_add(p, head, false, r, to + p->own_bytes * (size_t)r, p->own_bytes);
        }
}

bool coll_all_gather(coll_plan *p, const coll_call *call)
{
    const coll_head head = collective_begin(p, call);
    p->own_from = call->from;
    p->own_to = (char *)call->to + p->own_bytes * (size_t)p->comm->rank;
    exchange(p, &head, call->from, 0, call->to);
    return true;
}

/* of_parts: this rank keeps its part of `from`, as in a reduce-scatter; else all of it. */
static bool reduce(coll_plan *p, const coll_call *call, bool of_parts)
{
    const coll_head head = collective_begin(p, call);
    const size_t step = of_parts ? p->own_bytes : 0;
    p->own_to = call->to;
    p->own_from = (const char *)call->from + step * (size_t)p->comm->rank;
    p->parts = calloc((size_t)p->comm->n, p->own_bytes);
    if (p->parts != NULL)
        exchange(p, &head, call->from, step, p->parts);
    return p->parts != NULL;
}

bool coll_reduce_scatter(coll_plan *p, const coll_call *call)
{
    return reduce(p, call, true);
}

bool coll_all_reduce(coll_plan *p, const coll_call *call)
{
    return reduce(p, call, false);
}

bool coll_message(coll_plan *p, bool sends, int peer, const coll_call *call)
{
    coll_comm *c = p->comm;
    if (p->n == 2 * COLL_RANKS)
        return false;
    coll_head head = head_of(c, call, sends ? ++c->n_sent[peer] : ++c->n_received[peer]);
    head.is_message = true;
    transfer_add(p, &head, sends, peer, sends ? (void *)(uintptr_t)call->from : call->to,
                 call->count * call->elem_bytes);
    snprintf(p->text, sizeof p->text,
             "messages, the last one %s rank %d, number %llu, of %llu elements, on communicator "
             "%llx",
             sends ? "to" : "from", peer, (unsigned long long)head.number,
             (unsigned long long)head.count, (unsigned long long)c->name & 0xffff);
    return true;
}

/* ---- sums ------------------------------------------------------------------------------------ */

/* to = to + part. Integers wrap around. */
static void add(coll_elem elem, void *to, const void *part, size_t elems)
{
    uint64_t *u = to;
    float *f = to;
    uint16_t *h = to;
    for (size_t i = 0; i < elems; i++)
        switch (elem) {
        case COLL_I64:
            u[i] += ((const uint64_t *)part)[i];
            break;
        case COLL_F32:
            f[i] += ((const float *)part)[i];
            break;
        case COLL_BF16:
            h[i] = bf16_from_f32(f32_from_bf16(h[i]) + f32_from_bf16(((const uint16_t *)part)[i]));
        }
}

void coll_parts_sum(const coll_plan *p)
{
    const int n = p->comm->n;
    for (int d = 0; d < n; d++) {
        const char *part = p->parts + (size_t)((p->call.first + d) % n) * p->own_bytes;
        if (d == 0)
            memcpy(p->own_to, part, p->own_bytes);
        else
            add(p->call.elem, p->own_to, part, p->own_bytes / p->call.elem_bytes);
    }
}

/* ---- the order in this process --------------------------------------------------------------- */

/* Report p if its stream has reached it while an earlier call, which no event orders before p, is
 * not over. The caller holds the lock. */
static void overlap_check(const coll_plan *p)
{
    for (const coll_plan *q = queue.first; q != NULL && q != p; q = q->next)
        if (!coll_stands_for.may_overlap(q->comm == p->comm))
            coll_report("two calls may run at once, and each keep the device from the other: %s, "
                        "and %s",
                        q->text, p->text);
}

void coll_turn_await(coll_plan *p)
{
    pthread_mutex_lock(&queue.lock);
    overlap_check(p);
    while (queue.first != p && atomic_load(&p->comm->state) == COLL_READY)
        pthread_cond_wait(&queue.ended, &queue.lock);
    pthread_mutex_unlock(&queue.lock);
}

void coll_plan_queue(coll_plan *p)
{
    pthread_mutex_lock(&queue.lock);
    coll_plan **at = &queue.first;
    while (*at != NULL)
        at = &(*at)->next;
    p->next = NULL;
    *at = p;
    pthread_mutex_unlock(&queue.lock);
}

void coll_plan_drop(coll_plan *p)
{
    coll_comm *comm = p->comm;
    pthread_mutex_lock(&queue.lock);
    coll_plan **at = &queue.first;
    while (*at != NULL && *at != p)
        at = &(*at)->next;
    if (*at == p)
        *at = p->next;
    pthread_cond_broadcast(&queue.ended);
    pthread_mutex_unlock(&queue.lock);
    free(p->parts);
    free(p);
    coll_release(comm);
}

bool coll_plans_left(const coll_comm *c)
{
    bool left = false;
    pthread_mutex_lock(&queue.lock);
    for (const coll_plan *p = queue.first; p != NULL; p = p->next)
        left = left || p->comm == c;
    pthread_mutex_unlock(&queue.lock);
    return left;
}

void coll_abort(coll_comm *c)
{
    pthread_mutex_lock(&queue.lock);
    atomic_store(&c->state, COLL_ABORTED);
    pthread_cond_broadcast(&queue.ended);
    pthread_mutex_unlock(&queue.lock);
    coll_wake(c->area);
}
