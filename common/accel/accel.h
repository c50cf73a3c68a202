/* accel.h -- the interface of common/accel to an accelerator's backend: its operations, its
 * collectives, its host tasks. All other code uses device.h.
 *
 *   accel_device.c  opens and closes a device, launches
 *   fate.c    errors, host waits               stream.c   streams and events
 *   memory.c  blocks and their ledger          kept.c     cache of freed memory
 *   copy.c    copies and fills                 task.c     host work in stream order
 *   watch.c   times at which work ran          native*.c  the library's collectives
 *
 * One host thread issues all work of a device. When the library of collectives must be called, the
 * thread of native_thread.c calls it, and the issuing thread waits. */
#pragma once
#include "common/accel/accel_api.h"
#include "common/ops/op_work.h"

EXTERN_C_BEGIN

/* accel_open -- the `open` of a device_backend whose other functions come from ACCEL_BACKEND. */
fsdp_status accel_open(const accel_api *api, const device_config *config, device **out);

/* accel_api_of, accel_queue_of, accel_own -- the library's calls, the library's queue of a stream,
 * and the data that api->open made. */
const accel_api *accel_api_of(const device *d);
void *accel_queue_of(stream *s);
void *accel_own(const device *d);

/* accel_issue -- call fn(s, args) now for the operation that `work` describes (op_work.h), and
 * report the operation to the device's watch. If work.ends is set (wrong arguments, or nothing to
 * compute), return work.status without calling fn. args are not copied.
 *   errors  work.status; the stream's; fn's */
typedef fsdp_status (*accel_issue_fn)(stream *s, const void *args);
fsdp_status accel_issue(stream *s, accel_issue_fn fn, const void *args, op_work work);
/* accel_issue_as -- the same, but the watch gets the names and accesses of *what. */
fsdp_status accel_issue_as(stream *s, accel_issue_fn fn, const void *args,
                           const launch_config *what);

/* accel_device_set_poll -- call poll(self) each time a waiting host has checked its event or
 * stream, also when this check ends the wait. event_done calls poll only if the event was not
 * reached. An error of a poll ends the wait and fails all streams of d. Several polls may be set;
 * poll NULL removes the poll of self.
 *   errors  FSDP_ENOMEM too many */
fsdp_status accel_device_set_poll(device *d, fsdp_status (*poll)(void *self), void *self);
/* accel_event_at_s -- when an event of kind ACCEL_TIMES was reached, on the clock of clock_now_s;
 * the present time if the library cannot tell. */
double accel_event_at_s(device *d, void *e);
/* accel_device_fail -- fail all streams of d with this thread's error. A later failure does not
 * replace the first. Any thread. */
void accel_device_fail(device *d);

/* accel_task_run -- run the task, or skip it if the device has an error. before: 0, or
 * an error code: the task is then skipped, because earlier work of the queue failed or the task
 * could not be queued. Frees t. Any thread. */
void accel_task_run(accel_task *t, int before);

EXTERN_C_END
