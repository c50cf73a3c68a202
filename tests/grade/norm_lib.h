/* norm_lib.h -- what surrounds an optimizer while the norm of tasks 4.3, 4.4 and 4.7 is formed: a
 * wrong pointer or index is noted, in words, before it can end the program. */
#pragma once
#include "lab4_optimizer/optimizer.h"
#include "tests/grade/handmade_lib.h"

/* norm_watch -- from now on o->ops notes arguments of sum_squares and clip_coef that are not o's,
 * and does not run with them. A call without a gradient fails, and so does the second wrong one:
 * other ranks may wait in a collective.
 *   o  with the gradients of fx->r; must not move */
void norm_watch(fixture *fx, fsdp_optimizer *o);

/* norm_call_in_room -- call(o), while o->norm and o->coef have the room of an rsum.
 * norm_call_guarded -- also while units, their ranges and fx->r.grads have neighbours, whose ranges
 * are of no gradient. call looks at no accumulator then. */
typedef fsdp_status (*norm_call)(fsdp_optimizer *o);
fsdp_status norm_call_in_room(fixture *fx, fsdp_optimizer *o, norm_call call);
fsdp_status norm_call_guarded(fixture *fx, fsdp_optimizer *o, norm_call call);

/* norm_calls_watch -- from now on *seen is the last collective issued on fx->comm's job, until
 * comm_set_watch. norm_expect_stream -- note an all-reduce that was not on o->norm_stream. */
typedef struct norm_seen {
    uint64_t group;
    const stream *on; /* NULL: no collective */
} norm_seen;
void norm_calls_watch(fixture *fx, norm_seen *seen);
void norm_expect_stream(fixture *fx, const fsdp_optimizer *o, const char *who,
                        const norm_seen *seen);
