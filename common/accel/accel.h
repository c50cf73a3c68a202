/* accel.h -- what common/accel has for the code of one accelerator: its operations, its transport,
 * its host tasks. device.h is what everybody else uses.
 *
 *   accel_device.c  the device_backend that an accel_api becomes
 *   fate.c    errors, waits of the host        stream.c   streams and events
 *   memory.c  blocks and their ledger
 *   copy.c    copies and fills                 kept.c     memory kept for reuse
 *   watch.c   when work began and ended        task.c     work of the host in a stream's order
 *   native*.c its own collectives
 *
 * Everything of one device is issued by one host thread; it waits while the thread of
 * native_thread.c makes calls of a library's collectives. */
#pragma once
#include "common/accel/accel_api.h"
#include "common/ops/op_work.h"

EXTERN_C_BEGIN

/* accel_open -- the `open` of a device_backend whose other functions are ACCEL_BACKEND's. */
fsdp_status accel_open(const accel_api *api, const device_config *config, device **out);

/* accel_api_of, accel_queue_of, accel_own -- the library's side of a device or a stream. */
const accel_api *accel_api_of(const device *d);
void *accel_queue_of(stream *s);
void *accel_own(const device *d);

/* accel_issue -- call fn(s, args) for the operation that `work` describes, at once; a watch of the
 * device is told. If work.ends, fn is not called. args are the caller's.
 *   errors  work.status; the stream's; fn's */
typedef fsdp_status (*accel_issue_fn)(stream *s, const void *args);
fsdp_status accel_issue(stream *s, accel_issue_fn fn, const void *args, op_work work);
/* accel_issue_as -- the same for what a watch is told with the names and accesses of *what. */
fsdp_status accel_issue_as(stream *s, accel_issue_fn fn, const void *args,
                           const launch_config *what);

/* accel_device_set_poll -- call poll(self) each time the host looks whether what it waits for has
 * come, and once more when it has: in stream_sync, event_sync, and event_done where it has not. An
 * error that it returns ends the wait, and fails all streams of d. Several may be set; poll NULL:
 * no longer the one of self.
 *   errors  FSDP_ENOMEM too many */
fsdp_status accel_device_set_poll(device *d, fsdp_status (*poll)(void *self), void *self);
/* accel_event_at_s -- when an event of kind ACCEL_TIMES was reached, by clock_now_s. */
double accel_event_at_s(device *d, void *e);
/* accel_device_fail -- this thread's error ends all streams; the first one counts. Any thread. */
void accel_device_fail(device *d);

/* accel_task_run -- run the task, or skip it where what it depends on has failed; before: not 0
 * where the work in front of it has failed, or it could not be put. Frees t. Any thread. */
void accel_task_run(accel_task *t, int before);

EXTERN_C_END
