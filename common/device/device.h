/* device.h -- the first seam: memory, streams and events of one device, for cpu, cuda and npu.
 *
 *   device_open -> stream_create -> device_alloc ... launches, copies, events ... device_free
 *   -> stream_free -> device_close
 *
 * Ordering. Work on one stream runs in the order it was issued. Between streams only events order:
 *     event_record(e, producer);  stream_wait_event(consumer, e);
 * The host may run ahead of every stream; it reads device memory only after stream_sync or
 * event_sync. On the CPU the compute stream is inline (the call does the work) unless
 * `async_compute` is set; every other stream is a worker thread with a first-in-first-out queue.
 *
 * Memory. device_alloc and device_free are stream-ordered: the block may be used by work issued on
 * that stream after the alloc and before the free; use on another stream needs an event on either
 * side. Every byte goes through the ledger under a category. With debug_fill fresh and freed memory
 * holds NaN (0xFF bytes), so that a read of stale or freed data shows.
 *
 * Errors of work that runs later stay with its stream: the first one is returned by every later
 * call on that stream that returns a status, and work behind it is skipped (but frees happen and
 * events complete). A stream that waits for an event of a failed stream fails
 * with the same error. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/base/status.h"
#include "common/observe/ledger.h"

typedef enum device_kind { DEVICE_CPU, DEVICE_CUDA, DEVICE_NPU } device_kind;

typedef struct device device;
typedef struct stream stream;
typedef struct event event;

typedef struct device_config {
    device_kind kind;
    int index;          /* which device of the host; 0 on the CPU */
    int n_threads;      /* CPU: threads a kernel of the compute stream may use, >= 1 */
    bool debug_fill;    /* NaN in fresh and freed memory */
    bool async_compute; /* CPU: the compute stream is a worker thread too */
} device_config;

/* device_open -- *out owns the device until device_close. errors: FSDP_ESKIP when the backend was
 * not built (the hint says how), FSDP_EINVAL index, FSDP_ENOMEM.                                 */
fsdp_status device_open(const device_config *config, device **out);
/* device_close -- waits for all streams; asserts that no memory is live. NULL is accepted. */
void device_close(device *d);
device_kind device_get_kind(const device *d);

/* device_compute_stream -- where kernels run; borrowed, valid until device_close. */
stream *device_compute_stream(device *d);
device *stream_device(stream *s);
/* stream_threads -- threads that a CPU kernel on this stream may use (1 on worker streams that are
 * not the compute stream).                                                                       */
int stream_threads(const stream *s);

fsdp_status stream_create(device *d, const char *name, stream **out);
void stream_free(stream *s); /* waits; NULL is accepted */
fsdp_status stream_sync(stream *s);

fsdp_status event_create(device *d, event **out);
void event_free(event *e); /* NULL is accepted; a recorded event may be freed: waiters keep it */
/* event_record -- e stands for all work issued on s so far; a second record replaces the first for
 * waits issued afterwards (waits issued before keep the first: CUDA's rule).                     */
fsdp_status event_record(event *e, stream *s);
/* stream_wait_event -- later work on s starts after what e stood for at this call; an event never
 * recorded is no wait.                                                                           */
fsdp_status stream_wait_event(stream *s, event *e);
fsdp_status event_sync(event *e); /* the host waits */
bool event_done(event *e);

/* device_alloc -- *out = at least `bytes` bytes, 64-byte aligned, contents undefined; 0 bytes give
 * a valid unique pointer. label: literal, kept by reference, for messages and reports.
 *   errors  FSDP_ENOMEM with the figure and the ledger's state                                   */
fsdp_status device_alloc(stream *s, mem_category category, size_t bytes, const char *label,
                         void **out);
/* device_alloc_shared -- the same, of memory that other processes of the host can map, where there
 * is such a thing (comm_alloc decides; device_share_find tells). Costs: small pages on most
 * systems, and whole pages for small blocks. */
fsdp_status device_alloc_shared(stream *s, mem_category category, size_t bytes, const char *label,
                                void **out);
/* device_share -- where a piece of shared memory stands in its owner's file. */
typedef struct device_share {
    uint64_t offset, bytes; /* of the whole block: what a peer maps, a multiple of 4096 */
    uint64_t inner;         /* where in the block the piece begins */
} device_share;
/* device_share_find -- whether ptr [bytes] lies inside one live shared block. */
bool device_share_find(device *d, const void *ptr, size_t bytes, device_share *out);
/* device_share_fd -- the file of the shared blocks; -1: this device has none. */
int device_share_fd(device *d);
/* device_alloc_f32 -- elems floats; checks elems * 4. */
fsdp_status device_alloc_f32(stream *s, mem_category category, size_t elems, const char *label,
                             float **out);
/* device_free -- stream-ordered; NULL is accepted. Never fails (an error stays with the stream). */
void device_free(stream *s, void *ptr);

fsdp_status device_copy(stream *s, void *dst, const void *src, size_t bytes); /* device to device */
/* device_upload -- host_src may be reused when the call returns. */
fsdp_status device_upload(stream *s, void *dst, const void *host_src, size_t bytes);
/* device_download -- host_dst is valid after stream_sync(s). */
fsdp_status device_download(stream *s, void *host_dst, const void *src, size_t bytes);
fsdp_status device_zero(stream *s, void *dst, size_t bytes);
/* device_poison -- NaN fill when debug_fill is on, else nothing: for memory that stays allocated
 * but whose contents must not be read any more. */
fsdp_status device_poison(stream *s, void *dst, size_t bytes);

/* stream_launch -- CPU only: run fn(args) in stream order; args are copied. What CPU kernels and
 * CPU collectives are made of.                                                                   */
typedef fsdp_status (*stream_fn)(void *args, int n_threads);
fsdp_status stream_launch(stream *s, stream_fn fn, const void *args, size_t args_bytes);

ledger *device_ledger(device *d);
/* device_mem_available -- bytes that can still be allocated (host: the least of MemAvailable, the
 * cgroup's limit and RLIMIT_AS/DATA; device: the driver's figure).                               */
size_t device_mem_available(device *d);
