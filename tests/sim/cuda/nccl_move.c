/* nccl_move.c -- see nccl_sim.h: the life of a call on its stream.
 *
 * A call goes through its messages again and again, and moves a piece where the channel allows it.
 * When nothing moves it sleeps until another process has moved something. */
#include <linux/futex.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "common/base/clock.h"
#include "common/base/dtype.h"
#include "tests/sim/cuda/nccl_sim.h"

static const double STUCK_S =
    3; /* a circle of processes that wait for each other has stood still */

/* The calls of this process that are not over, in order of issue. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t ended;
    sim_plan *first;
} queue = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, NULL};

size_t sim_type_bytes(ncclDataType_t type)
{
    return type == ncclUint8 ? 1 : type == ncclBfloat16 ? 2 : type == ncclFloat32 ? 4 : 0;
}

void sim_report(const char *format, ...)
{
    char text[1024];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    fprintf(stderr,
            "NCCL stand-in: %s\nHINT: NCCL would wait for ever here, or deliver wrong values\n",
            text);
    fflush(stderr);
    if (sim_number("FSDP_SIM_HANGS", 0) == 0)
        abort();
}

/* ---- sleeping -------------------------------------------------------------------------------- */

void sim_wake(sim_area *area)
{
    atomic_fetch_add(&area->changed, 1);
    (void)syscall(SYS_futex, &area->changed, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static void sleep_until_changed(sim_area *area, unsigned seen)
{
    const struct timespec while_ = {.tv_nsec = 20000000};
    (void)syscall(SYS_futex, &area->changed, FUTEX_WAIT, seen, &while_, NULL, 0);
}

/* ---- one message ----------------------------------------------------------------------------- */

static sim_channel *channel_of(ncclComm_t c, const sim_transfer *t)
{
    int me = c->member[c->rank], peer = c->member[t->peer];
    return t->sends ? &c->area->channel[me][peer] : &c->area->channel[peer][me];
}

static bool is_over(const sim_transfer *t)
{
    return t->begun && t->moved == t->bytes;
}

/* Whether another message of this plan goes through the same channel first. */
static bool is_behind(const sim_plan *p, int i)
{
    const sim_transfer *t = &p->transfer[i];
    for (int k = 0; k < i; k++)
        if (p->transfer[k].sends == t->sends && p->transfer[k].peer == t->peer &&
            !is_over(&p->transfer[k]))
            return true;
    return false;
}

/* Move a piece, if the channel has room for one, or has one of this message. A send is over when
 * its last piece has been taken. */
static bool transfer_step(sim_plan *p, int i)
{
    sim_transfer *t = &p->transfer[i];
    sim_channel *ch = channel_of(p->comm, t);
    size_t left = t->bytes - t->moved, piece = left < SIM_CHUNK_BYTES ? left : SIM_CHUNK_BYTES;
    if (is_over(t) || is_behind(p, i) || (atomic_load(&ch->full) != 0) == t->sends)
        return false;
    if (t->sends) {
        ch->head = t->head;
        ch->bytes = piece;
        memcpy(ch->data, t->ptr + t->moved, piece);
    } else {
        if (memcmp(&ch->head, &t->head, sizeof t->head) != 0)
            return false;
        piece = ch->bytes;
        memcpy(t->ptr + t->moved, ch->data, piece);
    }
    t->begun = true;
    t->moved += piece;
    atomic_store(&ch->full, t->sends);
    atomic_fetch_add(&p->comm->area->process[p->comm->member[p->comm->rank]].steps, 1);
    sim_wake(p->comm->area);
    return true;
}

/* A send whose last piece nobody has taken yet. */
static bool is_untaken(const sim_plan *p, const sim_transfer *t)
{
    sim_channel *ch = channel_of(p->comm, t);
    return t->sends && is_over(t) && atomic_load(&ch->full) != 0 &&
           memcmp(&ch->head, &t->head, sizeof t->head) == 0;
}

/* ---- what a GPU would hang on ---------------------------------------------------------------- */

static void head_print(const sim_head *h, char *text, size_t chars)
{
    static const char *const name[] = {"?", "send", "all-gather", "broadcast", "reduce-scatter"};
    snprintf(text, chars, "%s %llu of %llu elements of type %d, root %d, on communicator %llx",
             name[h->kind], (unsigned long long)h->number, (unsigned long long)h->count, h->type,
             h->root, (unsigned long long)h->comm & 0xffff);
}

/* What this plan waits for that a message of that kind from the peer would have to be; NULL. */
static const sim_head *expected(const sim_plan *p, int peer, bool is_send)
{
    for (int i = 0; i < p->n; i++) {
        const sim_transfer *t = &p->transfer[i];
        if ((t->head.kind == SIM_SEND) != is_send)
            continue;
        if (!is_send || (!t->sends && t->peer == peer && !is_over(t)))
            return &t->head;
    }
    return NULL;
}

/* A message of this communicator that stands before this rank. It may be of a later call: who has
 * nothing to get from this rank goes on. */
static bool mismatch_check(const sim_plan *p, int peer)
{
    ncclComm_t c = p->comm;
    const sim_channel *ch = &c->area->channel[c->member[peer]][c->member[c->rank]];
    const sim_head *got = &ch->head;
    char theirs[SIM_TEXT_CHARS];
    if (atomic_load(&ch->full) == 0 || got->comm != c->name)
        return false;
    const sim_head *h = expected(p, peer, got->kind == SIM_SEND);
    if (h == NULL || got->number > h->number || memcmp(h, got, sizeof *h) == 0)
        return false;
    head_print(got, theirs, sizeof theirs);
    sim_report("ranks disagree: rank %d is in %s, rank %d in %s", peer, theirs, c->rank, p->text);
    return true;
}

/* Follow who waits for whom from here. If that comes back, and nothing in the circle has moved for
 * a while, say it. Returns whether it has been said. */
static bool circle_check(const sim_plan *p, uint64_t *mark, double *since_s)
{
    sim_area *area = p->comm->area;
    int me = p->comm->member[p->comm->rank], at = me, length = 0;
    uint64_t sum = 0;
    do {
        sum = sum * 1000003 + (uint64_t)at + 31 * (uint64_t)atomic_load(&area->process[at].steps);
        at = atomic_load(&area->process[at].waits_for);
    } while (at >= 0 && at != me && ++length < area->n);
    double now_s = clock_now_s();
    if (at != me || sum != *mark)
        *since_s = now_s;
    *mark = sum;
    if (at != me || now_s - *since_s < STUCK_S)
        return false;
    char text[800] = "";
    do {
        size_t used = strlen(text);
        int next = atomic_load(&area->process[at].waits_for);
        snprintf(text + used, sizeof text - used, "\n    process %d waits for %d in %s", at, next,
                 area->process[at].call);
        at = next;
    } while (at >= 0 && at != me);
    sim_report("a circle of processes, each of which waits for the next:%s", text);
    return true;
}

void sim_unread_check(ncclComm_t c)
{
    char theirs[SIM_TEXT_CHARS];
    for (int r = 0; r < c->n; r++) {
        const sim_channel *ch = &c->area->channel[c->member[r]][c->member[c->rank]];
        if (atomic_load(&ch->full) == 0 || ch->head.comm != c->name)
            continue;
        head_print(&ch->head, theirs, sizeof theirs);
        sim_report("rank %d ends its communicator, rank %d is in %s to it", c->rank, r, theirs);
    }
}

/* ---- a plan ---------------------------------------------------------------------------------- */

/* Two calls of different communicators at once, when NCCL has not been told to order them. */
static void overlap_check(const sim_plan *p)
{
    const char *ordered = getenv("NCCL_LAUNCH_ORDER_IMPLICIT");
    int version;
    (void)ncclGetVersion(&version);
    if (version >= NCCL_VERSION(2, 26, 0) && ordered != NULL && strcmp(ordered, "1") == 0)
        return;
    for (const sim_plan *q = queue.first; q != NULL; q = q->next)
        if (q != p && q->running && q->comm != p->comm)
            sim_report("two calls may run at once, and each keep the GPU from the other: %s, and "
                       "%s",
                       q->text, p->text);
}

/* Sleep until all calls before this one are over. */
static void turn_await(sim_plan *p)
{
    pthread_mutex_lock(&queue.lock);
    p->running = true;
    overlap_check(p);
    while (queue.first != p && !atomic_load(&p->comm->aborted))
        pthread_cond_wait(&queue.ended, &queue.lock);
    pthread_mutex_unlock(&queue.lock);
}

static void plan_end(sim_plan *p)
{
    ncclComm_t comm = p->comm;
    pthread_mutex_lock(&queue.lock);
    sim_plan **at = &queue.first;
    while (*at != NULL && *at != p)
        at = &(*at)->next;
    if (*at == p)
        *at = p->next;
    pthread_cond_broadcast(&queue.ended);
    pthread_mutex_unlock(&queue.lock);
    free(p->parts);
    free(p);
    sim_comm_release(comm);
}

/* Sleep until something moves; say what stands in the way. */
static void plan_sleep(sim_plan *p, unsigned seen, int waits_for, bool *said, uint64_t *mark,
                       double *since_s)
{
    ncclComm_t c = p->comm;
    sim_process *me = &c->area->process[c->member[c->rank]];
    for (int r = 0; r < c->n && !*said; r++)
        *said = r != c->rank && mismatch_check(p, r);
    atomic_store(&me->waits_for, waits_for);
    if (!*said)
        *said = circle_check(p, mark, since_s);
    sleep_until_changed(c->area, seen);
}

static void plan_move(sim_plan *p)
{
    ncclComm_t c = p->comm;
    sim_process *me = &c->area->process[c->member[c->rank]];
    bool said = false;
    uint64_t mark = 0;
    double since_s = clock_now_s();
    snprintf(me->call, sizeof me->call, "%s", p->text);
    while (!atomic_load(&c->aborted)) {
        unsigned seen = atomic_load(&c->area->changed);
        bool moved = false;
        int waits_for = -1;
        for (int i = 0; i < p->n; i++) {
            moved = transfer_step(p, i) || moved;
            if (!is_over(&p->transfer[i]) || is_untaken(p, &p->transfer[i]))
                waits_for = c->member[p->transfer[i].peer];
        }
        if (waits_for < 0)
            break;
        if (!moved)
            plan_sleep(p, seen, waits_for, &said, &mark, &since_s);
    }
    atomic_store(&me->waits_for, -1);
    atomic_fetch_add(&me->steps, 1);
}

/* As a ring does: beginning with the rank behind this one, ending with this one's own. */
static void parts_add(const sim_plan *p)
{
    const ncclComm_t c = p->comm;
    size_t elem_bytes = sim_type_bytes(p->type), n = p->own_bytes / elem_bytes;
    for (size_t i = 0; i < n; i++) {
        float sum = 0;
        for (int d = 1; d <= c->n; d++) {
            const char *part = p->parts + (size_t)((c->rank + d) % c->n) * p->own_bytes;
            if (p->type == ncclBfloat16) {
                float x = f32_from_bf16(((const uint16_t *)part)[i]);
                sum = d == 1 ? x : bf16_round(sum + x);
            } else {
                float x = ((const float *)part)[i];
                sum = d == 1 ? x : sum + x;
            }
        }
        if (p->type == ncclBfloat16)
            ((uint16_t *)p->own_to)[i] = bf16_from_f32(sum);
        else
            ((float *)p->own_to)[i] = sum;
    }
}

static fsdp_status plan_run(void *args, int n_threads)
{
    sim_plan *p = *(sim_plan **)args;
    (void)n_threads;
    turn_await(p);
    if (!atomic_load(&p->comm->aborted)) {
        if (p->parts != NULL)
            memcpy(p->parts + (size_t)p->comm->rank * p->own_bytes, p->own_from, p->own_bytes);
        else if (p->own_to != p->own_from)
            memcpy(p->own_to, p->own_from, p->own_bytes);
        plan_move(p);
        if (p->parts != NULL && !atomic_load(&p->comm->aborted))
            parts_add(p);
    }
    plan_end(p);
    return FSDP_OK; /* a kernel that was aborted ends, and its stream goes on */
}

void sim_plan_queue(sim_plan *p)
{
    pthread_mutex_lock(&queue.lock);
    sim_plan **at = &queue.first;
    while (*at != NULL)
        at = &(*at)->next;
    p->next = NULL;
    *at = p;
    pthread_mutex_unlock(&queue.lock);
}

ncclResult_t sim_plan_launch(sim_plan *p)
{
    fsdp_status status = stream_launch_work(
        sim_stream(p->stream),
        &(launch_config){
            .fn = plan_run, .args = &p, .args_bytes = sizeof p, .waits_for = WAITS_FOR_RANKS});
    return status == FSDP_OK ? ncclSuccess : ncclUnhandledCudaError;
}

bool sim_plans_left(ncclComm_t comm)
{
    bool left = false;
    pthread_mutex_lock(&queue.lock);
    for (const sim_plan *p = queue.first; p != NULL; p = p->next)
        left = left || p->comm == comm;
    pthread_mutex_unlock(&queue.lock);
    return left;
}

void sim_plans_abort(ncclComm_t comm)
{
    pthread_mutex_lock(&queue.lock);
    atomic_store(&comm->aborted, true);
    pthread_cond_broadcast(&queue.ended);
    pthread_mutex_unlock(&queue.lock);
    sim_wake(comm->area);
}

void sim_plan_drop(sim_plan *p)
{
    plan_end(p);
}
