/* cuda_impl.h -- the types that the parts of the CUDA backend share; private to common/cuda.
 *
 *   device.c   device, launches                     stream.c  streams, events, errors, waits
 *   host_task.c  work of the host in a stream's order
 *   copy.c     copies and fills                     pinned.c  memory of the host that the GPU
 * reaches memory.c   blocks of device and host memory     watch.c   when work began and ended
 *   tables.c   the op tables                        plugin.c  what the program gets to see
 *   *.cu       kernels, launched through launch.h
 *
 * Everything of one device is issued by one host thread. The threads of host_task.c only run what
 * it gave them; what they share with it stands in cuda_fate. */
#pragma once
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/queue.h>
#include "common/cuda/issue.h"
#include "common/device/device_impl.h"

EXTERN_C_BEGIN

typedef struct cuda_device cuda_device;
typedef struct cuda_stream cuda_stream;
typedef struct cuda_worker cuda_worker;
typedef struct cuda_watched cuda_watched;
typedef struct cuda_pinned cuda_pinned;

enum { CUDA_STREAMS = 32, CUDA_POLLS = 8, CUDA_RECENT = 6, CUDA_RECENT_CHARS = 48 };
enum { CUDA_STAGES = 16 };

/* ---- errors (stream.c) ----------------------------------------------------------------------- */

/* What work depends on that may fail by itself: the first tasks[i] host tasks of stream number i.
 * A stream's grows with its host tasks and with the events that it waits for. */
typedef struct cuda_reach {
    uint32_t tasks[CUDA_STREAMS];
} cuda_reach;

/* What became of a stream's host tasks. The number of a stream that failed is not used again. */
typedef struct cuda_fate {
    cuda_stream *stream;        /* that has this number now, or NULL */
    uint32_t n_tasks;           /* issued; goes on when the number is used again */
    _Atomic uint32_t failed_at; /* the first task that failed, from 1; 0: none */
    fsdp_error_info error;      /* valid, and never written again, when failed_at is not 0 */
} cuda_fate;

/* cuda_status -- FSDP_OK, or what CUDA's error means here, with its words: FSDP_ENOMEM or
 * FSDP_EDEVICE. what: the call, or the operation. */
fsdp_status cuda_status(cudaError_t error, const char *what);
/* cuda_stream_check -- the same of a call on s. An error stays with the stream; one that the GPU
 * itself reports ends all streams, and names what was issued on s last. */
fsdp_status cuda_stream_check(cuda_stream *s, cudaError_t error, const char *what);
/* cuda_stream_status -- FSDP_OK, or the stream's first error, whose words are now this thread's. */
fsdp_status cuda_stream_status(cuda_stream *s);
/* cuda_reach_error -- the error that work with this reach has; NULL: none. From any thread. */
const fsdp_error_info *cuda_reach_error(cuda_device *d, const cuda_reach *reach, int own);
/* cuda_fate_fail -- this thread's error is that of task number `at`. From any thread. */
void cuda_fate_fail(cuda_device *d, cuda_fate *fate, uint32_t at);
/* cuda_device_fail -- this thread's error ends all streams; the first one counts. */
void cuda_device_fail(cuda_device *d);

/* ---- waits of the host (stream.c) ------------------------------------------------------------ */

/* cuda_device_set_poll -- call poll(self) each time the host looks whether what it waits for has
 * come, and once more when it has: in stream_sync, event_sync, and event_done where it has not. An
 * error that it returns ends the wait, and fails all streams of d. Several may be set; poll NULL:
 * no longer the one of self.
 *   errors  FSDP_ENOMEM too many */
fsdp_status cuda_device_set_poll(device *d, fsdp_status (*poll)(void *self), void *self);
/* cuda_look -- whether the event is reached; NULL: whether the stream has done all. From any
 * thread; cudaErrorNotReady: no. */
cudaError_t cuda_look(cudaStream_t handle, cudaEvent_t e);
/* cuda_wait -- the host waits for the event; NULL: for all of the stream.
 *   errors  FSDP_EDEVICE the GPU's; a poll's; not those of host tasks */
fsdp_status cuda_wait(cuda_stream *s, cudaEvent_t e);

/* ---- the objects ----------------------------------------------------------------------------- */

typedef struct cuda_poll {
    fsdp_status (*poll)(void *self);
    void *self;
} cuda_poll;

/* Pinned blocks of one size that are used in turn. */
typedef struct cuda_stages {
    cuda_pinned *block[CUDA_STAGES];
    unsigned next;
} cuda_stages;

struct cuda_device {
    device base;
    cuda_fate fates[CUDA_STREAMS]; /* [0]: of the compute stream */
    atomic_bool failed;            /* once set, `error` is never written again */
    fsdp_error_info error;         /* of all streams */
    pthread_mutex_t lock;          /* for the first write of an error, and guards all_pinned */
    cuda_poll polls[CUDA_POLLS];
    int n_polls;

    cudaMemPool_t pool;
    void *blocks;          /* of memory.c: a tree (tsearch) of what is handed out, by address */
    struct block *leaving; /* of memory.c too */
    TAILQ_HEAD(, cuda_pinned) pinned; /* freed, the latest first */
    LIST_HEAD(, cuda_pinned) all_pinned;
    cuda_stages small, large;        /* of copy.c */
    struct cuda_matmul *matmul;      /* of matmul.c */
    struct complaint_box *complaint; /* of complaint.c */

    SLIST_HEAD(, cuda_watched) spare; /* of watch.c, as the next two */
    cudaStream_t clock_stream;        /* has no work but `clock` */
    cudaEvent_t clock;                /* reached at clock_s of the host's clock */
    double clock_s;
};

struct cuda_stream {
    stream base;
    cudaStream_t handle;
    int number;                   /* in fates */
    const fsdp_error_info *error; /* the stream's first; NULL: none was seen */
    cuda_reach reach;             /* of work that is issued now */
    cuda_worker *worker;          /* NULL: no host task yet */
    STAILQ_HEAD(, cuda_watched) watched;
    double told_s; /* end of the latest that the watch was told of */
    char recent[CUDA_RECENT][CUDA_RECENT_CHARS];
    unsigned n_recent; /* written so far, repetitions left out: the latest is at (n_recent - 1) %
                          CUDA_RECENT */
};

typedef struct cuda_event {
    event base;
    cudaEvent_t handle;
    bool recorded;
    cuda_reach reach; /* of what it stands for */
} cuda_event;

/* cuda_device_of, cuda_stream_at, cuda_stream_of -- CUDA's side of them. */
static inline cuda_device *cuda_device_of(device *d)
{
    return (cuda_device *)d;
}
static inline cuda_stream *cuda_stream_at(stream *s)
{
    return (cuda_stream *)s;
}
static inline cudaStream_t cuda_stream_of(stream *s)
{
    return ((cuda_stream *)s)->handle;
}

/* cuda_stream_create ... cuda_event_elapsed_s -- the functions of device_backend that have these
 * names, here and below. */
fsdp_status cuda_stream_create(device *d, const stream_config *config, stream **out);
void cuda_stream_free(stream *s);
fsdp_status cuda_stream_sync(stream *s);
fsdp_status cuda_event_create(device *d, bool timed, event **out);
void cuda_event_free(event *e);
fsdp_status cuda_event_record(event *e, stream *s);
fsdp_status cuda_stream_wait_event(stream *s, event *e, const device_act *act);
fsdp_status cuda_event_sync(event *e);
bool cuda_event_done(event *e);
fsdp_status cuda_event_elapsed_s(event *begin, event *end, double *out);
/* cuda_stream_recent -- what is issued on s next, for messages. label may be NULL; both copied. */
void cuda_stream_recent(cuda_stream *s, const char *name, const char *label);

/* ---- host tasks (host_task.c) ---------------------------------------------------------------- */

/* cuda_host_task -- run fn(args) in a thread of the host, in order of s. It may sleep for other
 * ranks. args: copied. A task that fails fails the stream, and later ones are skipped.
 *   errors  FSDP_ENOMEM; FSDP_EDEVICE */
fsdp_status cuda_host_task(cuda_stream *s, stream_fn fn, const void *args, size_t args_bytes);
/* cuda_worker_free -- when the stream's tasks are over. NULL is accepted. */
void cuda_worker_free(cuda_stream *s);

/* ---- memory ---------------------------------------------------------------------------------- */

/* Memory of the host that the GPU can reach; with others of its size in a cache when it is free. */
struct cuda_pinned {
    TAILQ_ENTRY(cuda_pinned) link;
    LIST_ENTRY(cuda_pinned) in_all;
    void *ptr;
    size_t bytes;
    uint64_t share_offset; /* where it stands in the shared file; CUDA_NOT_SHARED */
    cudaEvent_t used;      /* its last use is over */
    const cuda_stream *by; /* whose work that is */
};
#define CUDA_NOT_SHARED UINT64_MAX

/* cuda_pinned_get -- at least `bytes` for work on s that is issued from now on, or, by_host, for
 * the host at once. cuda_pinned_put -- work issued on s so far was the last to use it.
 *   errors  FSDP_ENOMEM without words */
fsdp_status cuda_pinned_get(cuda_stream *s, size_t bytes, bool by_host, cuda_pinned **out);
void cuda_pinned_put(cuda_stream *s, cuda_pinned *p);
/* cuda_pinned_used -- put, but the caller keeps it: p->used stands for work issued on s so far. */
void cuda_pinned_used(cuda_stream *s, cuda_pinned *p);
/* cuda_pinned_close -- release the cache; no stream has work. */
void cuda_pinned_close(cuda_device *d);

/* cuda_memory_open, cuda_memory_close -- the pool of a device; close asserts that all is freed. */
fsdp_status cuda_memory_open(cuda_device *d);
void cuda_memory_close(cuda_device *d);
/* cuda_memory_look -- let the ledger know of frees that streams have got to. */
void cuda_memory_look(cuda_device *d);
/* cuda_is_host -- whether ptr is in a block of device_alloc_host. */
bool cuda_is_host(cuda_device *d, const void *ptr);
fsdp_status cuda_alloc(stream *s, mem_category category, size_t bytes, const char *label,
                       void **out);
fsdp_status cuda_alloc_host(stream *s, mem_category category, size_t bytes, const char *label,
                            void **out);
bool cuda_share_find(device *d, const void *ptr, size_t bytes, device_share *out);
int cuda_share_fd(device *d);
void cuda_free(stream *s, void *ptr);
size_t cuda_mem_available(device *d);
fsdp_status cuda_move(stream *s, const device_act *act);

/* ---- the watch (watch.c) --------------------------------------------------------------------- */

/* cuda_watch_open, cuda_watch_close -- the clock of a device. */
fsdp_status cuda_watch_open(cuda_device *d);
void cuda_watch_close(cuda_device *d);
/* cuda_watch_begin ... cuda_watch_end -- what is issued on s between them is `act`; where its token
 * is not 0, the watch is told when it has run. status: of the issue; only FSDP_OK is told. begin
 * gives NULL where nothing is to be told, and end takes that. */
cuda_watched *cuda_watch_begin(cuda_stream *s, const device_act *act);
void cuda_watch_end(cuda_stream *s, cuda_watched *w, fsdp_status status);
/* cuda_watch_tell -- tell of what has run on s by now. cuda_watch_tell_all: on all streams, and
 * compare the clocks where that was long ago. */
void cuda_watch_tell(cuda_stream *s);
void cuda_watch_tell_all(cuda_device *d);
/* cuda_event_at_s -- when a timed event was reached, by clock_now_s. */
double cuda_event_at_s(const cuda_device *d, cudaEvent_t e);

/* ---- the backend ----------------------------------------------------------------------------- */

/* device_cuda -- the backend. */
extern const device_backend device_cuda;
/* cuda_n_devices -- GPUs of this host, 0 where there is no driver. */
int cuda_n_devices(void);
/* ops_cuda_fast, ops_cuda_portable -- the op tables. */
const ops *ops_cuda_fast(void);
const ops *ops_cuda_portable(void);

EXTERN_C_END
