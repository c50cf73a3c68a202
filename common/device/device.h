/* device.h -- the first seam: memory, streams and events of one device, for cpu, cuda and npu.
 *
 *   device_open -> stream_create -> device_alloc ... launches, copies, events ... device_free
 *   -> stream_free -> device_close
 *
 * device_calls.h has the calls that the labs make and what holds for order, memory and errors; this
 * header has all others. device_impl.h says what a device is made of. Every byte of device memory
 * goes through the ledger under a category. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "common/device/device_calls.h"
#include "common/device/work.h"

EXTERN_C_BEGIN

/* What implements a device; device_impl.h says what that takes. The CPU's is always there. */
typedef struct device_backend device_backend;
extern const device_backend device_cpu;

typedef struct device_config {
    const device_backend *backend;
    int index;                 /* which device of the host; 0 on the CPU */
    int n_threads;             /* CPU: threads that a kernel of the compute stream may use, >= 1 */
    bool debug_fill;           /* NaN in fresh and freed memory */
    bool async_compute;        /* CPU: the compute stream is a worker thread too */
    uint64_t schedule_seed;    /* CPU: of the order in which streams and host run; 0: at once */
    size_t memory_limit_bytes; /* what device_alloc gives at most; 0: what there is */
    int rank, n_ranks;         /* for messages that end the process; n_ranks 0: left out of them */
} device_config;

/* device_open -- start a device.
 *   out     owns the device until device_close
 *   errors  FSDP_ESKIP this machine has no such device (the hint says what it takes); FSDP_EINVAL
 *           index or n_threads; FSDP_ENOMEM */
fsdp_status device_open(const device_config *config, device **out);

/* device_close -- wait for all streams, then release the device; asserts that no memory is live.
 * NULL is accepted. */
void device_close(device *d);

/* device_name -- of its backend: "cpu". A literal. */
const char *device_name(const device *d);
/* device_memory_is_host -- whether the host itself may read and write device memory that no stream
 * is using. Only then is device memory host memory too. */
bool device_memory_is_host(const device *d);
/* device_runs_c -- whether kernels are functions of this program: what stream_launch_work runs may
 * touch device memory. */
bool device_runs_c(const device *d);

/* device_set_threads -- how many threads kernels of the compute stream may use from now on. Waits
 * for that stream. A rank learns how many others share its host only after the device is open.
 *   errors  FSDP_EINVAL n_threads < 1; the stream's */
fsdp_status device_set_threads(device *d, int n_threads);

/* device_now_s -- the time by the device's clock, which watches and the flight recorder note:
 * clock_now_s. The clock of a dry device stands still at 0. d may be NULL. */
double device_now_s(const device *d);

/* device_ledger -- who holds how much of this device's memory; valid until device_close.
 * device_host_ledger: of the host memory that device_alloc_host gave; the same ledger where device
 * memory is the host's. */
ledger *device_ledger(device *d);
ledger *device_host_ledger(device *d);

/* device_mem_available -- bytes that can still be allocated (host: the least of MemAvailable, the
 * cgroup's limit and RLIMIT_AS/DATA; device: the driver's figure), and no more than
 * memory_limit_bytes leaves. */
size_t device_mem_available(device *d);

/* device_mem_reserved -- bytes of device memory that the device's pool has from the driver, in use
 * or kept for the next block; 0: the device has no pool, or its memory is the host's. */
size_t device_mem_reserved(device *d);

/* host_mem_available -- bytes that this process may still get from the operating system: the least
 * of MemAvailable, of every enclosing memory cgroup's limit minus its use, and of RLIMIT_AS and
 * RLIMIT_DATA minus what counts against them. root: prefix of /proc and /sys ("" but in tests).
 * A figure that cannot be read limits nothing. SIZE_MAX when none can. */
size_t host_mem_available(const char *root);

/* ---- streams -------------------------------------------------------------------------------- */

typedef struct stream_config {
    const char *name; /* copied; for messages and reports */
    int n_threads;    /* CPU: threads that a kernel on it may use; 0 stands for 1 */
    int priority;     /* a larger one goes first where streams compete; a wish. CPU: one below 0
                         makes the thread nice, by -priority; another takes a privilege, and is
                         ignored */
} stream_config;

/* stream_create -- another stream beside the compute stream.
 *   out     owned by the caller until stream_free, which comes before device_close
 *   errors  FSDP_ENOMEM no memory, or no thread */
fsdp_status stream_create(device *d, const stream_config *config, stream **out);

/* stream_free -- wait for its work, then release it. NULL is accepted. */
void stream_free(stream *s);

/* device_compute_stream -- where kernels run; valid until device_close, which frees it. */
stream *device_compute_stream(device *d);

/* stream_device -- where s was created; stream_name -- as what, valid until stream_free. */
device *stream_device(stream *s);
const char *stream_name(const stream *s);

/* stream_sync -- the host waits for all work issued on s so far.
 *   errors  the stream's */
fsdp_status stream_sync(stream *s);

/* device_host_call_begin -- the host will sleep until other ranks have done something, and use its
 * devices again when it has called device_host_call_end. Streams go on meanwhile. */
void device_host_call_begin(void);
void device_host_call_end(void);

/* ---- events --------------------------------------------------------------------------------- */

/* event_create -- an event that orders. event_create_timed: one that also keeps the time.
 *   out     owned by the caller until event_free
 *   errors  FSDP_ENOMEM */
fsdp_status event_create(device *d, event **out);
fsdp_status event_create_timed(device *d, event **out);

/* event_free -- a recorded event may be freed: those who wait keep what they wait for. NULL is
 * accepted. */
void event_free(event *e);

/* event_done -- has what e stands for been reached? */
bool event_done(event *e);

/* event_elapsed_s -- the time between two events, on one stream or on two.
 *   begin, end  made by event_create_timed, recorded, and reached (event_sync)
 *   out         seconds, < 0 when `end` was reached first
 *   errors      FSDP_ESTATE one of them is not as said; *out is then 0 */
fsdp_status event_elapsed_s(event *begin, event *end, double *out);

/* ---- memory --------------------------------------------------------------------------------- */

/* device_alloc -- at least `bytes` bytes, 64-byte aligned, contents undefined; 0 bytes give a valid
 * pointer that no other block has.
 *   label   a literal, kept by reference; for messages and reports
 *   out     owned by the caller until device_free
 *   order   stream-ordered on s
 *   errors  FSDP_ENOMEM with the figure and the ledger's state; the stream's
 * Before memory_limit_bytes would be passed, the host waits for what has been freed. */
fsdp_status device_alloc(stream *s, mem_category category, size_t bytes, const char *label,
                         void **out);

/* device_alloc_f32 -- device_alloc of `elems` floats.
 *   errors  also FSDP_EINVAL elems * 4 does not fit a size_t */
fsdp_status device_alloc_f32(stream *s, mem_category category, size_t elems, const char *label,
                             float **out);

/* device_alloc_host -- device_alloc of host memory that this device's copies reach while the host
 * goes on (pinned, where that means something), and that other processes of the host can map where
 * there is such a thing (device_share_find tells). Where device memory is the host's, it is that
 * too. It costs small pages on most systems, and whole pages for small blocks. */
fsdp_status device_alloc_host(stream *s, mem_category category, size_t bytes, const char *label,
                              void **out);
/* device_alloc_host_f32 -- as device_alloc_f32. */
fsdp_status device_alloc_host_f32(stream *s, mem_category category, size_t elems, const char *label,
                                  float **out);

/* Where a piece of shared memory stands in its owner's file. */
typedef struct device_share {
    uint64_t offset, bytes; /* of the whole block: what a peer maps, a multiple of 4096 */
    uint64_t inner;         /* where in the block the piece begins */
} device_share;

/* device_share_find -- whether ptr [bytes] lies inside one live shared block; *out says where. */
bool device_share_find(device *d, const void *ptr, size_t bytes, device_share *out);

/* device_share_fd -- the file of the shared blocks, owned by the device; -1: it has none. */
int device_share_fd(device *d);

/* ---- moving and filling: nothing to do for 0 bytes, and then pointers may be NULL ------------ */

/* device_upload -- device_copy from host memory, which may be reused when the call returns. */
fsdp_status device_upload(stream *s, void *dst, const void *host_src, size_t bytes);

/* device_download -- the same into host memory, which is valid after stream_sync(s). */
fsdp_status device_download(stream *s, void *host_dst, const void *src, size_t bytes);

/* device_poison -- fill with NaN when debug_fill is on, else nothing: for memory that stays
 * allocated but whose contents must not be read any more. */
fsdp_status device_poison(stream *s, void *dst, size_t bytes);

/* ---- launching ------------------------------------------------------------------------------ */

/* A range of device memory that a launch reads, or reads and writes. */
typedef struct mem_access {
    const void *ptr;
    size_t bytes;
    bool writes;
} mem_access;

typedef fsdp_status (*stream_fn)(void *args, int n_threads);

/* What a launch may sleep for. Those that wait for ranks are issued in one order on all ranks. */
typedef enum launch_wait { WAITS_FOR_NOBODY, WAITS_FOR_RANKS, WAITS_FOR_HOST } launch_wait;

typedef struct launch_config {
    stream_fn fn;
    const void *args; /* [args_bytes], copied; fn gets the copy, aligned for any type */
    size_t args_bytes;
    launch_wait waits_for;
    bool on_host;               /* fn touches host memory and no other, in order of the stream */
    bool issues;                /* fn issues work of the device's own kind on the stream: it runs
                                   at once, in the call. Not on a device that runs C */
    work_info work;             /* for a watch; a zeroed one is not counted */
    const char *name;           /* what a launch is called that `work` does not name; a literal */
    const char *label;          /* what it is for, such as a unit; read during the call */
    const mem_access *accesses; /* [n_accesses], read during the call; NULL: not told */
    int n_accesses;
} launch_config;

/* The accesses of a launch that touches no device memory; n_accesses is 0. */
#define TOUCHES_NOTHING ((const mem_access[1]){{0}})

/* stream_launch_work -- run l->fn(args, n_threads) in order of s: what CPU kernels (device_runs_c)
 * and collectives in host memory (on_host) are made of. Kernels of another device are issued by fn
 * (`issues`), and a watch is told of what it issues. stream_launch: the same, and a watch is
 * told neither what it is nor what it touches, which an order_check reports. errors  the stream's;
 * on an inline stream also what fn returns */
fsdp_status stream_launch_work(stream *s, const launch_config *l);
fsdp_status stream_launch(stream *s, stream_fn fn, const void *args, size_t args_bytes);

/* device_make -- dst [bytes] = what make(args, dst) writes, such as initial values. A device that
 * runs C launches `make`; for another one it runs in the call, into memory of the host, and the
 * host waits until that is uploaded.
 *   name    a literal, for a watch
 *   args    [args_bytes], copied
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

typedef enum device_act_kind {
    ACT_ALLOC,       /* dst, bytes, label, category, on_host */
    ACT_FREE,        /* dst */
    ACT_COPY,        /* dst, src, bytes, name; also for the next two */
    ACT_UPLOAD,      /* src is host memory */
    ACT_DOWNLOAD,    /* dst is host memory */
    ACT_FILL,        /* dst, bytes, byte, name */
    ACT_RECORD,      /* event */
    ACT_WAIT,        /* event: stream waits for it */
    ACT_SYNC,        /* the host waits: for all of stream or, if that is NULL, for event */
    ACT_LAUNCH,      /* work, name, label, accesses */
    ACT_STREAM_FREE, /* stream: the host waits for all of it, and then it is gone */
    ACT_EVENT_FREE   /* event */
} device_act_kind;

/* One call, as a watch is told of it. Pointers are good during the call of the watch only. */
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
    bool on_host; /* of device_alloc_host, where device memory is not the host's */
    work_info work;
    const mem_access *accesses; /* [n_accesses]; in `issued` only */
    int n_accesses;
    const char *scope, *phase; /* see device_set_scope */
    uint64_t token;            /* in `ran`: what `issued` returned */
    double begin_s, end_s;     /* in `ran`: when the stream came to it and had done it (clock.h) */
} device_act;

/* A watch sees all that is issued on a device. Streams are threads: both functions must be
 * thread-safe, and they must not issue work. */
typedef struct device_watch {
    void *self;
    /* issued -- in the thread that issues the call, before the work can begin (an ACT_ALLOC: when
     * it has succeeded). Returns a token for `ran`, such as the step; 0: `ran` is not told. */
    uint64_t (*issued)(void *self, const device_act *act);
    /* ran -- a launch, a copy or a fill has ended well, or a wait or a sync is over; in order of
     * its stream. A stream that came to a wait when nothing was left to wait for may not be told.
     * NULL: nobody wants to know. */
    void (*ran)(void *self, const device_act *act);
} device_watch;

/* device_set_watch -- who watches from now on; NULL: nobody. Call it when no stream has work.
 *   watch   copied */
void device_set_watch(device *d, const device_watch *watch);

/* device_set_second_watch -- who else is told of what is issued, but not when that has run; NULL:
 * nobody. Call it when no stream has work.
 *   watch   copied */
void device_set_second_watch(device *d, const device_watch *watch);

/* device_set_scope -- what the host issues work for from now on: the name of a layer, and
 * "forward", "recompute" or "backward". Every act passes them to the watches. NULL, NULL: nothing.
 *   scope, phase  kept by reference; valid until the next call and until what was issued has run */
void device_set_scope(device *d, const char *scope, const char *phase);

EXTERN_C_END
