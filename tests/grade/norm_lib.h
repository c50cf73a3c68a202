/* norm_lib.h -- guards around an optimizer while the norm of tasks 4.3, 4.4 and 4.7 is formed. A
 * wrong pointer or index is noted, in words, before it can crash the program. */
#pragma once
#include "lab4_optimizer/optimizer.h"
#include "tests/grade/handmade_lib.h"

/* norm_watch -- from now on o->ops notes arguments of sum_squares and clip_coef that are not o's,
 * and does not use them. A call without a gradient fails, and so does the second wrong call,
 * because other ranks may wait in a collective.
 *   o  with the gradients of fx->r; must not move */
void norm_watch(fixture *fx, fsdp_optimizer *o);
/* norm_watch_slices -- note also a sum_squares before an all-gather, if shards have replicas. */
void norm_watch_slices(fixture *fx);

/* norm_call_in_room -- call(o) while o->norm and o->coef have only the room of an rsum.
 * norm_call_guarded -- the same, and units, their ranges and fx->r.grads have neighbours. The
 * ranges of the neighbours belong to no gradient. call must not read an accumulator. */
typedef fsdp_status (*norm_call)(fsdp_optimizer *o);
fsdp_status norm_call_in_room(fixture *fx, fsdp_optimizer *o, norm_call call);
fsdp_status norm_call_guarded(fixture *fx, fsdp_optimizer *o, norm_call call);

/* norm_calls_watch -- from now on *seen is the last collective issued on the job of fx->comm, until
 * comm_set_watch.
 * norm_expect_stream -- note an all-reduce that was not on o->norm_stream. */
typedef struct norm_seen {
    uint64_t group;
    const stream *on; /* NULL: no collective */
} norm_seen;
void norm_calls_watch(fixture *fx, norm_seen *seen);
void norm_expect_stream(fixture *fx, const fsdp_optimizer *o, const char *who,
                        const norm_seen *seen);
