/* order_check.h -- does the order that events make keep two streams from each other's memory?
 *
 *   order_check_create [-> order_check_tell] -> device_set_watch(d, order_check_watch(c)) -> work
 * on any streams
 *   -> order_check_status -> device_set_watch(d, NULL) -> order_check_free
 *
 * It reads what is issued and computes what happens before what, by vector clocks. Only declared
 * edges count:
 *     work on one stream, in the order of its issue
 *     event_record(e, a) ... stream_wait_event(b, e): what a had then, before what b gets later
 *     stream_sync, event_sync, stream_free: what is waited for, before all that is issued later
 * The order in which the host issues work for two streams is no edge, even where the CPU would run
 * it in that order. So a run on a CPU finds what would be a race on any device.
 *
 * Two accesses to one block conflict when their bytes overlap, at least one writes, and neither
 * happens before the other. device_alloc and device_free write the whole block, each on its stream.
 * An access to a block whose free was issued is a violation too; so is one to no live block, one
 * that runs past a block's end, and a launch that does not tell its accesses.
 *
 * One checker may watch several devices. Thread-safe. It remembers accesses only as long as later
 * ones can conflict with them, so that a long run takes no more memory than a short one.
 * source [vector clocks: Lamport 1978; race detection by them: Flanagan & Freund 2009] */
#pragma once
#include "common/device/device.h"

typedef struct order_check order_check;

/* order_check_create -- one that has seen nothing; NULL: no memory. Let it watch before the first
 * device_alloc: memory that it has not seen allocated is to it no device memory. */
order_check *order_check_create(void);
/* order_check_tell -- from now on the first violation is printed to stderr as soon as it is found,
 * with the rank: what it leads to may end the process before anybody asks for order_check_status.
 *   n_ranks  0: the rank is left out */
void order_check_tell(order_check *c, int rank, int n_ranks);
/* order_check_free -- when it watches no device any more; NULL is accepted. */
void order_check_free(order_check *c);

/* order_check_watch -- for device_set_watch. order_check_issued -- for a watch that tells several:
 * self is the checker; always 0. */
device_watch order_check_watch(order_check *c);
uint64_t order_check_issued(void *self, const device_act *act);

/* order_check_status -- FSDP_OK while there is no violation.
 *   errors  FSDP_EORDER, the first violation; FSDP_ENOMEM, and FSDP_EINVAL at more than 64 streams
 *           at once, when the checker had to give up */
fsdp_status order_check_status(order_check *c);

typedef struct order_figures {
    uint64_t launches, blocks; /* seen so far */
    uint64_t violations;       /* that differ in what the two operations are; at most 64 */
    size_t kept;               /* accesses that are remembered now */
} order_figures;

/* order_check_read -- the figures so far. */
order_figures order_check_read(order_check *c);
