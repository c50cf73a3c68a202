/* coll_move.c -- see coll_impl.h: runs a plan on its stream.
 *
 * A plan goes through its messages again and again, and moves a piece when the channel allows it.
 * When nothing moves it sleeps until another process has moved something. */
#include <linux/futex.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "common/base/clock.h"
#include "tests/sim/core/coll_impl.h"

/* Report a circle of waiting processes after it has not moved for this long. */
static const double STUCK_S = 3;

/* State of a plan that waits. */
typedef struct patience {
    double began_s, circle_s, lost_s; /* start of the wait, of a circle, of a peer's loss */
    uint64_t mark;                    /* checksum of the circle */
    bool said;
} patience;

/* ---- one message ----------------------------------------------------------------------------- */

static coll_channel *channel_of(const coll_comm *c, const coll_transfer *t)
{
    int me = c->member[c->rank], peer = c->member[t->peer];
    return t->sends ? &c->area->channel[me][peer] : &c->area->channel[peer][me];
}

static bool is_over(const coll_transfer *t)
{
    return t->begun && t->moved == t->bytes;
}

/* Whether another message of this plan must go through the same channel first. */
static bool is_behind(const coll_plan *p, int i)
{
    const coll_transfer *t = &p->transfer[i];
    for (int k = 0; k < i; k++)
        if (p->transfer[k].sends == t->sends && p->transfer[k].peer == t->peer &&
            !is_over(&p->transfer[k]))
            return true;
    return false;
}

static coll_board *own_board(const coll_comm *c)
{
    return coll_board_of(coll_process_of(c, c->rank)->board);
}

/* Move a piece if the channel has room for one, or holds one of this message. */
static bool transfer_step(coll_plan *p, int i)
{
    coll_transfer *t = &p->transfer[i];
    coll_channel *ch = channel_of(p->comm, t);
    size_t left = t->bytes - t->moved, piece = left < COLL_CHUNK_BYTES ? left : COLL_CHUNK_BYTES;
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
    atomic_fetch_add(&own_board(p->comm)->steps, 1);
    coll_wake(p->comm->area);
    return true;
}

/* A send is under way until the peer has taken its last piece. */
static bool is_under_way(const coll_plan *p, const coll_transfer *t)
{
    const coll_channel *ch = channel_of(p->comm, t);
    return !is_over(t) || (t->sends && atomic_load(&ch->full) != 0 &&
                           memcmp(&ch->head, &t->head, sizeof t->head) == 0);
}

/* ---- what a device would hang on ------------------------------------------------------------- */

static void head_print(const coll_head *h, char *text, size_t chars)
{
    snprintf(text, chars, "%s %llu of %llu elements of type %d, on communicator %llx",
             h->is_message ? "send" : h->name, (unsigned long long)h->number,
             (unsigned long long)h->count, h->type, (unsigned long long)h->comm & 0xffff);
}

/* The head that a message from the peer should have; NULL if this plan waits for no such
 * message. */
static const coll_head *expected(const coll_plan *p, int peer, bool is_message)
{
    const coll_head *other = NULL;
    for (int i = 0; i < p->n; i++) {
        const coll_transfer *t = &p->transfer[i];
        if (t->head.is_message != is_message)
            continue;
        if (!t->sends && t->peer == peer && !is_over(t))
            return &t->head;
        other = is_message ? NULL : &t->head;
    }
    return other;
}

/* Report a message from the peer on this communicator if it does not match. It may belong to a
 * later call, because a rank that receives nothing from this rank goes on. */
static bool mismatch_check(const coll_plan *p, int peer)
{
    const coll_comm *c = p->comm;
    const coll_channel *ch = &c->area->channel[c->member[peer]][c->member[c->rank]];
    const coll_head *got = &ch->head;
    char theirs[COLL_TEXT_CHARS];
    if (atomic_load(&ch->full) == 0 || got->comm != c->name)
        return false;
    const coll_head *h = expected(p, peer, got->is_message);
    if (h == NULL || got->number > h->number || memcmp(h, got, sizeof *h) == 0)
        return false;
    head_print(got, theirs, sizeof theirs);
    coll_report("ranks disagree: rank %d is in %s, rank %d in %s", peer, theirs, c->rank, p->text);
    return true;
}

/* Follow who waits for whom, starting here. If the path comes back and nothing in the circle has
 * moved for STUCK_S, report it. Returns whether it was reported. */
static bool circle_check(const coll_plan *p, patience *w)
{
    const uint64_t me = coll_process_of(p->comm, p->comm->rank)->board;
    uint64_t at = me, sum = 0;
    int length = 0;
    do {
        coll_board *board = coll_board_of(at);
        if (board == NULL)
            break;
        sum = sum * 1000003 + at + 31 * (uint64_t)atomic_load(&board->steps);
        at = atomic_load(&board->waits_for);
    } while (at != 0 && at != me && ++length < COLL_RANKS);
    double now_s = clock_now_s();
    if (at != me || sum != w->mark)
        w->circle_s = now_s;
    w->mark = sum;
    if (at != me || now_s - w->circle_s < STUCK_S)
        return false;
    char text[800] = "";
    do {
        size_t used = strlen(text);
        const coll_board *board = coll_board_of(at);
        const uint64_t next = board != NULL ? atomic_load(&board->waits_for) : 0;
        const coll_board *other = next != 0 ? coll_board_of(next) : NULL;
        if (other == NULL)
            break;
        snprintf(text + used, sizeof text - used, "\n    rank %d waits for rank %d in %s",
                 board->rank, other->rank, board->call);
        at = next;
    } while (at != me);
    coll_report("a circle of processes, each of which waits for the next:%s", text);
    return true;
}

void coll_unread_check(const coll_comm *c)
{
    char theirs[COLL_TEXT_CHARS];
    for (int r = 0; r < c->n; r++) {
        const coll_channel *ch = &c->area->channel[c->member[r]][c->member[c->rank]];
        if (atomic_load(&ch->full) == 0 || ch->head.comm != c->name)
            continue;
        head_print(&ch->head, theirs, sizeof theirs);
        coll_report("rank %d ends its communicator, rank %d is in %s to it", c->rank, r, theirs);
    }
}

/* Whether the process of a rank that this plan waits for has ended. */
static bool is_peer_lost(const coll_plan *p)
{
    for (int i = 0; i < p->n; i++)
        if (is_under_way(p, &p->transfer[i]) &&
            coll_has_ended(coll_process_of(p->comm, p->transfer[i].peer)->board))
            return true;
    return false;
}

static void limits_check(const coll_plan *p, patience *w)
{
    coll_comm *c = p->comm;
    const double now_s = clock_now_s();
    int ready = COLL_READY;
    if (c->limit_s > 0 && now_s - w->began_s > c->limit_s)
        atomic_compare_exchange_strong(&c->state, &ready, COLL_TIMED_OUT);
    if (c->lost_s == 0)
        return;
    if (!is_peer_lost(p))
        w->lost_s = now_s;
    else if (now_s - w->lost_s > c->lost_s)
        atomic_compare_exchange_strong(&c->state, &ready, COLL_PEER_LOST);
}

/* ---- a plan ---------------------------------------------------------------------------------- */

/* Sleep until something moves; report what blocks the plan. */
static void plan_sleep(coll_plan *p, unsigned seen, int waits_for, patience *w)
{
    const struct timespec while_ = {.tv_nsec = 20000000};
    coll_comm *c = p->comm;
    for (int r = 0; r < c->n && !w->said; r++)
        w->said = r != c->rank && mismatch_check(p, r);
    atomic_store(&own_board(c)->waits_for, coll_process_of(c, waits_for)->board);
    if (!w->said)
        w->said = circle_check(p, w);
    limits_check(p, w);
    (void)syscall(SYS_futex, &c->area->changed, FUTEX_WAIT, seen, &while_, NULL, 0);
}

static void plan_move(coll_plan *p)
{
    coll_comm *c = p->comm;
    coll_board *me = own_board(c);
    const double now_s = clock_now_s();
    patience w = {now_s, now_s, now_s, 0, false};
    snprintf(me->call, sizeof me->call, "%s", p->text);
    while (atomic_load(&c->state) == COLL_READY) {
        unsigned seen = atomic_load(&c->area->changed);
        bool moved = false;
        int waits_for = -1;
        for (int i = 0; i < p->n; i++) {
            moved = transfer_step(p, i) || moved;
            if (is_under_way(p, &p->transfer[i]))
                waits_for = p->transfer[i].peer;
        }
        if (waits_for < 0)
            break;
        if (!moved)
            plan_sleep(p, seen, waits_for, &w);
    }
    atomic_store(&me->waits_for, 0);
    atomic_fetch_add(&me->steps, 1);
}

static fsdp_status plan_status(const coll_plan *p)
{
    switch (atomic_load(&p->comm->state)) {
    case COLL_TIMED_OUT:
        return fsdp_error(FSDP_ETIMEOUT, "", "a collective timed out: %s", p->text);
    case COLL_PEER_LOST:
        return fsdp_error(FSDP_ECOMM, "", "the process of a rank has ended in %s", p->text);
    default:
        return FSDP_OK; /* an aborted kernel ends, and its stream goes on */
    }
}

fsdp_status coll_plan_run(void *args, int n_threads)
{
    coll_plan *p = *(coll_plan **)args;
    (void)n_threads;
    coll_turn_await(p);
    if (atomic_load(&p->comm->state) == COLL_READY) {
        if (p->parts != NULL)
            memcpy(p->parts + (size_t)p->comm->rank * p->own_bytes, p->own_from, p->own_bytes);
        else if (p->own_to != p->own_from)
            memcpy(p->own_to, p->own_from, p->own_bytes);
        plan_move(p);
        if (p->parts != NULL && atomic_load(&p->comm->state) == COLL_READY)
            coll_parts_sum(p);
    }
    return plan_status(p);
}
