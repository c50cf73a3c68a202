/* device_calls.h -- the calls of device.h that the labs make: events, copies, memory.
 *
 * Order. Work on one stream runs in the order of its issue. Only events order different streams:
 *     event_record(e, producer);  stream_wait_event(consumer, e);
 * The host only issues. It may run ahead of every stream, and reads device memory only after
 * event_sync or stream_sync.
 *
 * Memory. Allocations and frees are stream-ordered: a block may be used by work issued on that
 * stream after the allocation and before the free. Use on another stream needs an event before and
 * after it. With debug_fill, fresh and freed device memory is filled with NaN (0xFF bytes), in
 * stream order, so that reads of stale or freed data are noticed.
 *
 * Errors of work that runs later stay with its stream. Every later call on that stream that returns
 * a status returns the first error, and later work is skipped (but frees happen and events
 * complete). A stream that waits for an event of a failed one fails too; on an accelerator, all do.
 * "errors  the stream's" means these, and FSDP_ENOMEM if the host has no memory to queue the call.
 * Every call below that returns a status has these errors. */
#pragma once
#include <stddef.h>
#include "common/base/status.h"
#include "common/device/ledger.h"

EXTERN_C_BEGIN

typedef struct device device;
typedef struct stream stream;
typedef struct event event;

/* event_record -- from now on e stands for all work issued on s so far. Waits that were issued
 * earlier are not affected. [CUDA cudaEventRecord] */
fsdp_status event_record(event *e, stream *s);

/* stream_wait_event -- later work on s starts after the work that e stands for now. If e was never
 * recorded, s does not wait. [CUDA cudaStreamWaitEvent] */
fsdp_status stream_wait_event(stream *s, event *e);

/* event_sync -- the host waits for the work that e stands for. Returns that work's first error. */
fsdp_status event_sync(event *e);

/* device_copy -- dst [bytes] = src [bytes], in order of s. Both are on the device or from
 * device_alloc_host, and do not overlap. device_zero -- dst [bytes] = 0. 0 bytes do nothing, and
 * then pointers may be NULL. */
fsdp_status device_copy(stream *s, void *dst, const void *src, size_t bytes);
fsdp_status device_zero(stream *s, void *dst, size_t bytes);

/* device_free -- give a block back, in order of s. Cannot fail: an error stays with the stream.
 * NULL is accepted. */
void device_free(stream *s, void *ptr);

EXTERN_C_END
