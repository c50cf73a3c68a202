/* prefetch.h -- lab 5: overlap. Gathers and reductions run while the model computes.
 *
 * The hooks of labs 2 and 3 call unshard_begin, unshard_wait, reduce_begin and reduce_wait. The
 * hooks here call the same functions, but other units compute between the halves of a pair. What
 * may run when is decided by events, never by the host: the same hooks drive a compute stream that
 * runs in the host's own calls and one that the host runs ahead of. [FSDP §3.3] */
#pragma once
#include "lab3_backward/backward.h"
#include "lab5_prefetch/prefetch_own.h"

typedef enum prefetch_mode {
    PREFETCH_NONE,          /* labs 2 and 3: no overlap */
    PREFETCH_BACKWARD,      /* in backward, the next unit's gather before this one computes */
    PREFETCH_BACKWARD_POST, /* in backward, after it has computed: less memory, less overlap */
    PREFETCH_FORWARD,       /* in forward, before this one computes */
    PREFETCH_BOTH,          /* BACKWARD and FORWARD */
    PREFETCH_AUTO           /* the trainer chooses one of the others */
} prefetch_mode;

enum { NO_UNIT = -1, PREFETCH_MAX_LIMIT = 1024 };

/* The units of a pass in the order of their hooks: learnt in the first pass, checked in every other
 * one. Worked example: h.0 h.1 h.2 was recorded; a pass visits h.0 h.2: from h.2 on it is recorded
 * anew, and the order is h.0 h.2. */
typedef struct exec_order {
    int *units;    /* [n_units of the model], the first n are known */
    int n;         /* known */
    int next;      /* this pass has visited units[0] ... units[next-1] */
    bool complete; /* they are a whole pass: visits are compared. Else this pass records them: the
                      first one does, and from a change on every one */
    int changes;   /* how often a pass differed */
} exec_order;

/* Units that count: at most limit + 1 at a time. */
typedef struct limiter {
    int limit;     /* N, 1 ... PREFETCH_MAX_LIMIT */
    int n_held;    /* begun and not resharded yet */
    bool *held;    /* [n_units] */
    event **freed; /* [capacity] ring: recorded after the free of a unit that was resharded */
    int capacity;  /* limit + 1 + n_units: more can never be in it */
    int first_freed, n_freed; /* of the ring: not waited for yet, the oldest first */
} limiter;

typedef struct prefetch_config {
    prefetch_mode mode;
    int limit;  /* --limit-all-gathers */
    bool *told; /* set once rank 0 has said that a task is not written; NULL: do not say it */
} prefetch_config;

typedef struct prefetch {
    prefetch_config config;
    reducer *r;
    exec_order forward;      /* of pre_forward */
    exec_order post_forward; /* of post_forward; backward goes through it in reverse */
    limiter limiter;
    int reducing;     /* the unit whose reduction nobody has waited for, or NO_UNIT */
    event *updated;   /* recorded on compute: the optimizer has written the shards */
    prefetch_own own; /* provided */
} prefetch;

/* prefetch_unshard -- provided: limiter_acquire and, if that grants it, unshard_begin of u. A no-op
 * unless u is SHARDED and this pass uses it (forward_only).
 *   ahead  nobody waits for u yet, so the limiter may refuse it */
fsdp_status prefetch_unshard(prefetch *p, int u, bool ahead);
/* order_after, order_before -- provided: the unit that follows or precedes u, as far as it is
 * known; else NO_UNIT, as for u = NO_UNIT. */
int order_after(const exec_order *o, int u);
int order_before(const exec_order *o, int u);

/* ---- 5.1 ------------------------------------------------------------------------------------- */
/* order_begin -- a pass begins. If the one before ended early, the rest of the order is forgotten,
 * which is a change. What is known after a pass is complete. */
fsdp_status order_begin(exec_order *o);
/* order_visit -- the pass has come to unit u: append it while the order is being recorded, else
 * compare. A unit that is not the expected one is a change: the order is cut before it, and
 * recorded from there on. */
fsdp_status order_visit(exec_order *o, int u);
/* prefetch_post_forward -- after a unit's last layer: record it in post_forward, then do what
 * labs 2 and 3 do, forward_post_hook(r->f, u). source  [FSDP §3.3.2] */
fsdp_status prefetch_post_forward(void *self, int u);

/* ---- 5.2 ------------------------------------------------------------------------------------- */
/* prefetch_pre_backward -- prefetch_unshard, then backward_pre_hook(r, u), which waits and gives
 * gradient memory; then, if the mode says BACKWARD or BOTH, prefetch_backward. So the next gather
 * is issued before unit u computes. source  [FSDP §3.3.2] */
fsdp_status prefetch_pre_backward(void *self, int u);
/* prefetch_backward -- begin to gather the unit whose backward follows u's: the unit before u
 * in post_forward, unless it was visited. The last unit of backward has none. The root's post hook
 * comes when all others have had their turn, so from there nothing is gathered. */
fsdp_status prefetch_backward(prefetch *p, int u);

/* ---- 5.3 ------------------------------------------------------------------------------------- */
/* prefetch_pre_forward -- before a unit's first layer: prefetch_unshard and unshard_wait. Then
 * record u in `forward` and, if the mode says FORWARD or BOTH, begin to gather the unit after it.
 *   source  [FSDP §3.3.3] */
fsdp_status prefetch_pre_forward(void *self, int u);

/* ---- 5.4 ------------------------------------------------------------------------------------- */
/* limiter_acquire -- one more unit wants to count. While that would make more than limit + 1, the
 * host waits for the oldest event in `freed` and forgets it. If there is none left to wait for, the
 * units are all held: a unit ahead is refused, one that compute needs now is granted all the same.
 *   *granted  whether it counts now, in n_held
 *   source    [FSDP §3.4] */
fsdp_status limiter_acquire(limiter *l, bool ahead, bool *granted);
/* limiter_release -- a unit that counted was freed in order of s: it is no longer held, and `freed`
 * has one more event, recorded on s. */
fsdp_status limiter_release(limiter *l, stream *s);

/* ---- 5.5 ------------------------------------------------------------------------------------- */
/* prefetch_begin_micro -- when a step begins (a = 0), record `updated` and let gathers wait for it
 * and for nothing else (gather_after). */
fsdp_status prefetch_begin_micro(void *self, int a, int n_micro, bool training);
/* prefetch_post_backward -- after a unit's last layer of backward: reshard, prefetch_backward if
 * the mode says BACKWARD_POST, then the reduction, which nobody waits for yet: the next unit's
 * backward runs meanwhile. First compute waits for the reduction before this one, so that no more
 * than two units have gradient memory beside the root.
 *   source  [FSDP §3.3.1] [FSDP2 RFC] */
fsdp_status prefetch_post_backward(void *self, int u);
/* prefetch_end_backward -- give up gathers that nobody used, then backward_end_hook(r), which waits
 * for the reductions that are left, so `reducing` is NO_UNIT: clipping comes next. */
fsdp_status prefetch_end_backward(void *self);

/* ---- 5.6 integrates: many schedules, the same bits, and a budget of virtual time. ------------ */
