/* device.h -- memory, streams and events of one device: the interface to cpu, cuda and npu.
 *
 *   device_open -> stream_create -> device_alloc ... launches, copies, events ... device_free
 *   -> stream_free -> device_close
 *
 * device_calls.h has the calls that the labs make, and the rules for order, memory and errors; this
 * header has all other calls. device_impl.h is for authors of backends. The ledger counts every
 * byte of device memory under a category. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "common/device/device_calls.h"
#include "common/device/work.h"

EXTERN_C_BEGIN

/* The functions that implement a device: see device_impl.h. The CPU's are always there. */
typedef struct device_backend device_backend;
extern const device_backend device_cpu;

typedef struct device_config {
    const device_backend *backend;
    int index;                 /* which device of the host; 0 on the CPU */
    int n_threads;             /* CPU: threads that a kernel of the compute stream may use, >= 1 */
    bool debug_fill;           /* NaN in fresh and freed memory */
    bool async_compute;        /* CPU: the compute stream is a worker thread too */
    uint64_t schedule_seed;    /* CPU: draws the order of streams and host; 0: no scheduler */
    size_t memory_limit_bytes; /* the most that device_alloc gives out; 0: no limit */
    int rank, n_ranks;         /* for messages that end the process; n_ranks 0: no rank in them */
} device_config;

/* device_open -- start a device.
 *   out     owns the device until device_close
 *   errors  FSDP_ESKIP this machine has no such device (the hint says what is needed); FSDP_EINVAL
 *           index or n_threads; FSDP_ENOMEM */
fsdp_status device_open(const device_config *config, device **out);

/* device_close -- wait for all streams, then release the device; asserts that no memory is live.
 * NULL is accepted. */
void device_close(device *d);

/* device_name -- the name of its backend: "cpu". A literal. */
const char *device_name(const device *d);
/* device_memory_is_host -- whether device memory is host memory: the host may read and write it
 * while no stream uses it. */
bool device_memory_is_host(const device *d);
/* device_runs_c -- whether kernels are functions of this program, so that functions given to
 * stream_launch_work may touch device memory. */
bool device_runs_c(const device *d);

/* device_set_threads -- set the number of threads that kernels of the compute stream may use. Waits
 * for that stream. A rank learns how many ranks share its host only after the device is open.
 *   errors  FSDP_EINVAL n_threads < 1; the stream's */
fsdp_status device_set_threads(device *d, int n_threads);

/* device_now_s -- the time for watches and the flight recorder: clock_now_s, or always 0 on a dry
 * device. d may be NULL. */
double device_now_s(const device *d);

/* device_ledger -- counts this device's memory by category; valid until device_close.
 * device_host_ledger -- counts the host memory of device_alloc_host; the same ledger if device
 * memory is host memory. */
ledger *device_ledger(device *d);
ledger *device_host_ledger(device *d);

/* device_mem_available -- bytes that can still be allocated (CPU: host_mem_available plus the cache
 * of freed blocks; else the driver's figure plus unused memory of the pool), but at most what
 * memory_limit_bytes leaves. */
size_t device_mem_available(device *d);

/* device_mem_reserved -- bytes of device memory that the device's pool holds, in use or kept for
 * the next block; 0: the device has no pool, or its memory is host memory. */
size_t device_mem_reserved(device *d);

/* host_mem_available -- bytes that this process can still get from the operating system: the least
 * of MemAvailable, of every enclosing memory cgroup's limit minus its use, and of RLIMIT_AS and
 * RLIMIT_DATA minus the memory that counts against them. A bound that cannot be read is ignored;
 * SIZE_MAX if there is none. root: prefix of /proc and /sys; "" except in tests. */
size_t host_mem_available(const char *root);

/* ---- streams -------------------------------------------------------------------------------- */

typedef struct stream_config {
    const char *name; /* copied; for messages and reports */
    int n_threads;    /* CPU: threads that a kernel on it may use; 0 means 1 */
    int priority;     /* a hint: if streams compete, the larger runs first. CPU: below 0, the
                         thread's niceness becomes -priority; above 0 it is ignored, because a
                         negative niceness needs a privilege */
} stream_config;

/* stream_create -- create a stream besides the compute stream.
 *   out     owned by the caller until stream_free, which must come before device_close
 *   errors  FSDP_ENOMEM no memory, or no thread */
fsdp_status stream_create(device *d, const stream_config *config, stream **out);

/* stream_free -- wait for its work, then release it. NULL is accepted. */
void stream_free(stream *s);

/* device_compute_stream -- the stream of the kernels; valid until device_close, which frees it. */
stream *device_compute_stream(device *d);

/* stream_device -- the device of s. stream_name -- its name, valid until stream_free. */
device *stream_device(stream *s);
const char *stream_name(const stream *s);

/* stream_sync -- the host waits for all work issued on s so far.
 *   errors  the stream's */
fsdp_status stream_sync(stream *s);

/* device_host_call_begin -- tell the scheduler of CPU streams, if this thread has one, that the
 * host will now wait for other ranks. The host must not use its devices until device_host_call_end;
 * their streams continue to run. */
void device_host_call_begin(void);
void device_host_call_end(void);

/* ---- events --------------------------------------------------------------------------------- */

/* event_create -- an event that orders streams. event_create_timed -- one that also keeps the time.
 *   out     owned by the caller until event_free
 *   errors  FSDP_ENOMEM */
fsdp_status event_create(device *d, event **out);
fsdp_status event_create_timed(device *d, event **out);

/* event_free -- a recorded event may be freed; waits that were issued earlier are not affected.
 * NULL is accepted. */
void event_free(event *e);

/* event_done -- whether the work that e stands for is done. */
bool event_done(event *e);

/* event_elapsed_s -- the time between two events, on one stream or on two.
 *   begin, end  made by event_create_timed, recorded, and reached (event_sync)
 *   out         seconds, < 0 if `end` was reached first
 *   errors      FSDP_ESTATE an event is not timed or not reached; *out is then 0 */
fsdp_status event_elapsed_s(event *begin, event *end, double *out);

/* ---- memory --------------------------------------------------------------------------------- */

/* device_alloc -- at least `bytes` bytes, 64-byte aligned, contents undefined; 0 bytes give a valid
 * pointer that no other block has. If memory_limit_bytes would be exceeded, the host first waits
 * for frees that were issued.
 *   label   a literal, kept by reference; for messages and reports
 *   out     owned by the caller until device_free
 *   order   stream-ordered on s
 *   errors  FSDP_ENOMEM with the size and the ledger's state; the stream's */
fsdp_status device_alloc(stream *s, mem_category category, size_t bytes, const char *label,
                         void **out);

/* device_alloc_f32 -- device_alloc of `elems` floats.
 *   errors  also FSDP_EINVAL elems * 4 does not fit a size_t */
fsdp_status device_alloc_f32(stream *s, mem_category category, size_t elems, const char *label,
                             float **out);

/* device_alloc_host -- device_alloc of host memory for asynchronous copies (pinned, if the device
 * needs that). Other processes of the host can map the block if device_share_find finds it. If
 * device memory is host memory, the block is device memory too. On most systems the block has no
 * huge pages, and a small block takes whole pages. */
fsdp_status device_alloc_host(stream *s, mem_category category, size_t bytes, const char *label,
                              void **out);
/* device_alloc_host_f32 -- as device_alloc_f32. */
fsdp_status device_alloc_host_f32(stream *s, mem_category category, size_t elems, const char *label,
                                  float **out);

/* The place of a piece of shared memory in its owner's file. */
typedef struct device_share {
    uint64_t offset, bytes; /* of the whole block, which a peer maps; multiples of PAGE_BYTES */
    uint64_t inner;         /* offset of the piece in the block */
} device_share;

/* device_share_find -- whether ptr [bytes] lies inside one shared block; *out is its place. */
bool device_share_find(device *d, const void *ptr, size_t bytes, device_share *out);

/* device_share_fd -- the file of the shared blocks, owned by the process; -1 and errno: there is
 * none. */
int device_share_fd(device *d);

/* ---- moving and filling: 0 bytes do nothing, and then pointers may be NULL ------------------- */

/* device_upload -- device_copy from host memory, which may be reused when the call returns. */
fsdp_status device_upload(stream *s, void *dst, const void *host_src, size_t bytes);

/* device_download -- device_copy to host memory, which is valid after stream_sync(s). */
fsdp_status device_download(stream *s, void *host_dst, const void *src, size_t bytes);

/* device_poison -- with debug_fill, fill with NaN memory that stays allocated but must not be read
 * any more; otherwise do nothing. */
fsdp_status device_poison(stream *s, void *dst, size_t bytes);

/* ---- launching ------------------------------------------------------------------------------ */

/* A range of device memory that a launch only reads, or (`writes`) may read and write. */
typedef struct mem_access {
    const void *ptr;
    size_t bytes;
    bool writes;
} mem_access;

typedef fsdp_status (*stream_fn)(void *args, int n_threads);

/* For whom fn may wait while it runs. Launches that wait for ranks must be issued in the same order
 * on all ranks. */
typedef enum launch_wait { WAITS_FOR_NOBODY, WAITS_FOR_RANKS, WAITS_FOR_HOST } launch_wait;

typedef struct launch_config {
    stream_fn fn;
    const void *args; /* [args_bytes], copied; fn gets the copy, aligned for any type */
    size_t args_bytes;
    launch_wait waits_for;
    bool on_host;               /* fn touches only host memory; it runs in order of the stream */
    bool issues;                /* fn issues work on the stream by calls of the device's library,
                                   and runs during this call. Not on a device that runs C */
    work_info work;             /* for a watch; a zeroed one is not counted */
    const char *name;           /* the launch's name if `work` has none; a literal */
    const char *label;          /* its purpose, such as a unit; read during the call */
    const mem_access *accesses; /* [n_accesses], read during the call; NULL: unknown */
    int n_accesses;
} launch_config;

/* The accesses of a launch that touches no device memory; n_accesses is 0. */
#define TOUCHES_NOTHING ((const mem_access[1]){{0}})

/* stream_launch_work -- run l->fn(args, n_threads) in order of s: for CPU kernels (device_runs_c)
 * and for collectives in host memory (on_host). To launch kernels of other devices, set `issues`;
 * then fn runs at once. stream_launch -- the same without a name and a list of accesses for the
 * watches; an order_check reports such a launch.
 *   errors  the stream's; on an inline stream also the error that fn returns */
fsdp_status stream_launch_work(stream *s, const launch_config *l);
fsdp_status stream_launch(stream *s, stream_fn fn, const void *args, size_t args_bytes);

/* device_make -- fill dst [bytes] by make(args, dst), for example with initial values. A device
 * that runs C launches `make`. For other devices `make` runs during the call and writes to host
 * memory, and the host waits until that is uploaded.
 *   name    a literal, for a watch
 *   args    [args_bytes], at most 64, copied
 *   errors  make's; FSDP_ENOMEM; the stream's */
typedef fsdp_status (*device_make_fn)(const void *args, void *out);
typedef struct device_made {
    const char *name;
    device_make_fn make;
    const void *args;
    size_t args_bytes;
} device_made;
fsdp_status device_make(stream *s, const device_made *what, void *dst, size_t bytes);

/* ---- watching ------------------------------------------------------------------------------- */

/* The kinds of acts, and which fields of device_act belong to each. */
typedef enum device_act_kind {
    ACT_ALLOC,       /* dst, bytes, label, category, on_host */
    ACT_FREE,        /* dst */
    ACT_COPY,        /* dst, src, bytes, name */
    ACT_UPLOAD,      /* the same; src is host memory */
    ACT_DOWNLOAD,    /* the same; dst is host memory */
    ACT_FILL,        /* dst, bytes, byte, name */
    ACT_RECORD,      /* event */
    ACT_WAIT,        /* event: stream waits for it */
    ACT_SYNC,        /* the host waits for all work of stream or, if that is NULL, for event */
    ACT_LAUNCH,      /* work, name, label, accesses */
    ACT_STREAM_FREE, /* stream: the host waits for all its work, and then the stream is freed */
    ACT_EVENT_FREE   /* event */
} device_act_kind;

/* One call, as a watch gets it. Pointers are valid only during the call of the watch. */
typedef struct device_act {
    device_act_kind kind;
    struct stream *stream;
    const struct event *event;
    void *dst;
    const void *src;
    size_t bytes;
    unsigned char byte;
    const char *name, *label; /* label, of a launch: in `issued` only */
    mem_category category;
    bool on_host; /* memory of device_alloc_host, and device memory is not host memory */
    work_info work;
    const mem_access *accesses; /* [n_accesses]; in `issued` only */
    int n_accesses;
    const char *scope, *phase; /* see device_set_scope */
    uint64_t token;            /* in `ran`: what `issued` returned */
    double begin_s, end_s;     /* in `ran`: when the stream reached and finished it (clock.h) */
} device_act;

/* A watch is told of all work that is issued on a device. Streams are threads: both functions must
 * be thread-safe, and they must not issue work. */
typedef struct device_watch {
    void *self;
    /* issued -- called in the thread that issues the call, before the work can begin (ACT_ALLOC:
     * after it succeeded). Returns a token for `ran`, such as the step; 0: `ran` is not called. */
    uint64_t (*issued)(void *self, const device_act *act);
    /* ran -- called after a launch, a copy or a fill has succeeded, or a wait or a sync is over, in
     * order of its stream. For a wait whose event was reached already, ran may not be called. May
     * be NULL. */
    void (*ran)(void *self, const device_act *act);
} device_watch;

/* device_set_watch -- set the watch of d; NULL: none. Call it when no stream has work.
 *   watch   copied */
void device_set_watch(device *d, const device_watch *watch);

/* device_set_second_watch -- set another watch, of which only `issued` is called; NULL: none. Call
 * it when no stream has work.
 *   watch   copied */
void device_set_second_watch(device *d, const device_watch *watch);

/* device_set_scope -- set what the next work is for: the name of a layer, and "forward",
 * "recompute" or "backward". Every act passes them to the watches. NULL, NULL: nothing.
 *   scope, phase  kept by reference; valid until the next call and until the issued work has run */
void device_set_scope(device *d, const char *scope, const char *phase);

EXTERN_C_END
