/* order_check.h -- finds accesses of two streams to the same memory that no event orders.
 *
 *   order_check_create [-> order_check_tell] -> device_set_watch(d, order_check_watch(c))
 *   -> work on any streams -> order_check_status
 *   -> device_set_watch(d, NULL) -> order_check_free
 *
 * The checker follows the issued work and computes by vector clocks what happens before what. Only
 * these edges count:
 *     work on one stream, in the order of its issue
 *     event_record(e, a) ... stream_wait_event(b, e): earlier work of a before later work of b
 *     stream_sync, event_sync, stream_free: the awaited work before all work issued later
 * The order in which the host issues work on two streams is not an edge, even if the CPU would run
 * the work in that order. So a run on a CPU finds races that could occur on any device.
 *
 * Two accesses to one block conflict if their bytes overlap, at least one writes, and neither
 * happens before the other. device_alloc and device_free write the whole block, each on its stream.
 * Other violations are: an access after the block's free was issued, to no live block, or past a
 * block's end; and a launch without a list of accesses.
 *
 * One checker may watch several devices. Thread-safe. It remembers an access only as long as a
 * later one can conflict with it, so that a long run takes no more memory than a short one.
 * source [vector clocks: Lamport 1978; race detection by them: Flanagan & Freund 2009] */
#pragma once
#include "common/device/device.h"

typedef struct order_check order_check;

/* order_check_create -- a new checker; NULL: no memory. Let it watch before the first device_alloc:
 * it does not know memory that was allocated earlier, and reports accesses to it. */
order_check *order_check_create(void);
/* order_check_tell -- print the first violation to stderr, with the rank, as soon as it is found:
 * the race may end the process before order_check_status is called.
 *   n_ranks  0: the rank is left out */
void order_check_tell(order_check *c, int rank, int n_ranks);
/* order_check_free -- release the checker, which no longer watches a device. NULL is accepted. */
void order_check_free(order_check *c);

/* order_check_watch -- a watch for device_set_watch. order_check_issued -- its `issued`, for
 * another watch that wants to pass its acts on to the checker `self`. Returns 0. */
device_watch order_check_watch(order_check *c);
uint64_t order_check_issued(void *self, const device_act *act);

/* order_check_status -- FSDP_OK if there was no violation.
 *   errors  FSDP_EORDER the first violation. If the checker gave up: FSDP_ENOMEM; FSDP_EINVAL more
 *           than 64 streams at once */
fsdp_status order_check_status(order_check *c);

typedef struct order_figures {
    uint64_t launches, blocks; /* seen so far */
    uint64_t violations;       /* different pairs of operations; at most 64 */
    size_t kept;               /* accesses remembered now */
} order_figures;

/* order_check_read -- the figures so far. */
order_figures order_check_read(order_check *c);
