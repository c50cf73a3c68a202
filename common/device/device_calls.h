/* device_calls.h -- the calls of device.h that the labs make: events, copies, memory.
 *
 * Order. Work on one stream runs in the order it was issued. Between streams only events order:
 *     event_record(e, producer);  stream_wait_event(consumer, e);
 * The host only issues. It may run ahead of every stream, and reads device memory only after
 * event_sync or stream_sync.
 *
 * Memory. Allocations and frees are stream-ordered: a block may be used by work issued on that
 * stream after the allocation and before the free; use on another stream needs an event on either
 * side. With debug_fill, fresh and freed memory is filled with NaN (0xFF bytes), in stream order,
 * so that a read of stale or freed data shows.
 *
 * Errors of work that runs later stay with its stream: the first one is returned by every later
 * call on that stream that returns a status, and work behind it is skipped (but frees happen and
 * events complete). A stream that waits for an event of a failed stream fails with the same error.
 * "errors  the stream's" means that, and FSDP_ENOMEM where the host has no memory to queue the
 * call. Every call below that returns a status has these. */
#pragma once
#include <stddef.h>
#include "common/base/status.h"
#include "common/device/ledger.h"

EXTERN_C_BEGIN

typedef struct device device;
typedef struct stream stream;
typedef struct event event;

/* event_record -- from now on e stands for all work issued on s so far. Waits issued before keep
 * what e stood for then. [CUDA cudaEventRecord] */
fsdp_status event_record(event *e, stream *s);

/* stream_wait_event -- later work on s starts after what e stands for now. An event that was never
 * recorded is no wait. [CUDA cudaStreamWaitEvent] */
fsdp_status stream_wait_event(stream *s, event *e);

/* event_sync -- the host waits for what e stands for; errors of the stream that recorded it. */
fsdp_status event_sync(event *e);

/* device_copy -- dst [bytes] = src [bytes], in order of s, each on the device or from
 * device_alloc_host; they do not overlap. device_zero: dst [bytes] = 0. 0 bytes are nothing to do,
 * and then pointers may be NULL. */
fsdp_status device_copy(stream *s, void *dst, const void *src, size_t bytes);
fsdp_status device_zero(stream *s, void *dst, size_t bytes);

/* device_free -- give a block back, in order of s. Cannot fail: an error stays with the stream.
 * NULL is accepted. */
void device_free(stream *s, void *ptr);

EXTERN_C_END
