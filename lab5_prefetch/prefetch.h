/* prefetch.h -- lab 5: overlap. Gathers and reductions run while the model computes.
 *
 * The hooks of labs 2 and 3 call unshard_begin, unshard_wait, reduce_begin and reduce_wait. The
 * hooks here call the same functions, but other units compute between the halves of a pair. Only
 * events decide what may run when, never the host. So the same hooks work whether compute runs
 * inside the host's calls or the host runs ahead of compute. [FSDP §3.3] */
#pragma once
#include "lab3_backward/backward.h"

typedef enum prefetch_mode {
    PREFETCH_NONE,          /* labs 2 and 3: no overlap */
    PREFETCH_BACKWARD,      /* in backward, the next unit's gather before this one computes */
    PREFETCH_BACKWARD_POST, /* in backward, after it has computed: less memory, less overlap */
    PREFETCH_FORWARD,       /* in forward, before this one computes */
    PREFETCH_BOTH,          /* BACKWARD and FORWARD */
    PREFETCH_AUTO           /* the trainer chooses one of the others */
} prefetch_mode;

enum { NO_UNIT = -1, PREFETCH_MAX_LIMIT = 1024 };

/* The units of a pass in the order of their hooks: recorded in the first pass, compared in every
 * later one. Worked example: h.0 h.1 h.2 was recorded, and a pass visits h.0 h.2. At h.2 it begins
 * to record again, and the order becomes h.0 h.2. */
typedef struct exec_order {
    int *units;    /* [n_units of the model]; the first n are known */
    int n;         /* known units */
    int next;      /* this pass has visited units[0] ... units[next-1] */
    bool complete; /* units[] is a whole pass, and visits are compared. Else this pass records: the
                      first pass does, and a pass that differs does from there to its end */
    int changes;   /* number of passes that differed */
} exec_order;

/* Counts gathered units: at most limit + 1 at a time, unless compute needs one more. */
typedef struct limiter {
    int limit;     /* N, 1 ... PREFETCH_MAX_LIMIT */
    int n_held;    /* counted units that are not resharded yet */
    bool *held;    /* [n_units] */
    event **freed; /* [capacity] ring; each was recorded after the free of a resharded unit */
    int capacity;  /* limit + 1 + n_units: the ring never holds more */
    int first_freed, n_freed; /* events not waited for yet: the oldest, and how many */
} limiter;

typedef struct prefetch_config {
    prefetch_mode mode;
    int limit;  /* --limit-all-gathers */
    bool *told; /* set after the note that a task is not written; NULL: no note */
} prefetch_config;

typedef struct prefetch_given {
    stream *gather_stream, *reduce_stream; /* r->f uses these streams and groups until p is freed */
    struct group_twin *twins;              /* [n_twins] copies of the units' groups */
    int n_twins;
    event *ended[2];  /* recorded on compute at the end of the last two micro-steps */
    unsigned n_ended; /* number of micro-steps that have ended */
    bool *drops;      /* [n_units] scratch */
    int n_begun[2];   /* gathers that prefetch_unshard began: [0] needed, [1] ahead */
} prefetch_given;

typedef struct prefetch {
    prefetch_config config;
    reducer *r;
    exec_order forward;      /* order of pre_forward */
    exec_order post_forward; /* order of post_forward; backward follows it in reverse */
    limiter limiter;
    int reducing;         /* the unit whose reduction nobody has waited for, or NO_UNIT */
    event *updated;       /* recorded on compute: the optimizer has written the shards */
    prefetch_given given; /* provided */
} prefetch;

/* prefetch_unshard -- provided: limiter_acquire and, if that grants it, unshard_begin of u. A no-op
 * if this pass does not use u (forward_only); with ahead also if u is not SHARDED.
 *   ahead  compute does not need u yet, so the limiter may refuse it */
fsdp_status prefetch_unshard(prefetch *p, int u, bool ahead);
/* order_after, order_before -- provided: the unit that follows or precedes u, as far as it is
 * known; else NO_UNIT. u may be NO_UNIT. */
int order_after(const exec_order *o, int u);
int order_before(const exec_order *o, int u);

/* ---- 5.1 ------------------------------------------------------------------------------------- */
/* order_begin -- a pass begins. If the last pass ended early, forget the rest of the order, which
 * is a change. An order that has units is complete from now on. */
fsdp_status order_begin(exec_order *o);
/* order_visit -- the pass has come to unit u: append it while the order is being recorded, else
 * compare. An unexpected unit is a change: cut the order before it, and record from there on. */
fsdp_status order_visit(exec_order *o, int u);
/* prefetch_post_forward -- after a unit's last layer: record it in post_forward, then call
 * forward_post_hook(r->f, u), as labs 2 and 3 do.
 *   source  [FSDP §3.3.2] */
fsdp_status prefetch_post_forward(void *self, int u);

/* ---- 5.2 ------------------------------------------------------------------------------------- */
/* prefetch_pre_backward -- prefetch_unshard, then backward_pre_hook(r, u), which waits and
 * allocates gradient memory; then, in mode BACKWARD or BOTH, prefetch_backward, before u computes.
 *   source  [FSDP §3.3.2] */
fsdp_status prefetch_pre_backward(void *self, int u);
/* prefetch_backward -- begin to gather the unit whose backward follows u's: the unit before u
 * in post_forward, unless it was visited. After the last unit of backward there is none. The root's
 * post hook comes after all other units were visited, so it gathers nothing. */
fsdp_status prefetch_backward(prefetch *p, int u);

/* ---- 5.3 ------------------------------------------------------------------------------------- */
/* prefetch_pre_forward -- before a unit's first layer: prefetch_unshard and unshard_wait. Then
 * record u in `forward` and, in mode FORWARD or BOTH, begin to gather the unit after it.
 *   source  [FSDP §3.3.3] */
fsdp_status prefetch_pre_forward(void *self, int u);

/* ---- 5.4 ------------------------------------------------------------------------------------- */
/* limiter_acquire -- ask to count one more unit. While more than limit + 1 units would count, the
 * host waits for the oldest event in `freed` and removes it. If none is left and there are
 * still too many, refuse a unit ahead, but grant one that compute needs now.
 *   *granted  whether the unit was granted and added to n_held
 *   source    [FSDP §3.4] */
fsdp_status limiter_acquire(limiter *l, bool ahead, bool *granted);
/* limiter_release -- a unit that counted was freed in order of s: subtract it from n_held, and
 * record one more event of `freed` on s. */
fsdp_status limiter_release(limiter *l, stream *s);

/* ---- 5.5 ------------------------------------------------------------------------------------- */
/* prefetch_begin_micro -- when a step begins (a = 0), record `updated` and let gathers wait only
 * for it (gather_after). */
fsdp_status prefetch_begin_micro(void *self, int a, int n_micro, bool training);
/* prefetch_post_backward -- after a unit's last layer of backward: reshard; prefetch_backward in
 * mode BACKWARD_POST; let compute wait for the previous unit's reduction, so that at most two units
 * besides the root have gradient memory; begin this unit's reduction, which runs during
 * the next unit's backward.
 *   source  [FSDP §3.3.1] [FSDP2 RFC] */
fsdp_status prefetch_post_backward(void *self, int u);
/* prefetch_end_backward -- drop gathers that nobody used, then backward_end_hook(r), which waits
 * for the remaining reductions. `reducing` becomes NO_UNIT. Clipping comes next. */
fsdp_status prefetch_end_backward(void *self);

/* ---- 5.6 integrates: many schedules, the same bits, and a budget of virtual time. ------------ */
