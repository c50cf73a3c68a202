/* cpu_impl.h -- types that the files of the CPU backend share: cpu.c (device, copies), cpu_stream.c
 * (streams), cpu_event.c (events), cpu_memory.c (blocks). Private to them, to
 * instruments/separate.c and to their tests. */
#pragma once
#include <pthread.h>
#include <stdatomic.h>
#include <sys/queue.h>
#include "common/device/device_impl.h"
#include "common/device/host_share.h"
#include "common/device/cpu_schedule.h"

typedef struct cpu_device cpu_device;
typedef struct cpu_task cpu_task;

/* What a task does. */
typedef struct cpu_task_kind {
    void (*run)(cpu_stream *s, cpu_task *task);
    bool (*is_ready)(const cpu_task *task); /* whether run would not sleep; NULL: it never does */
} cpu_task_kind;

/* One entry of a stream's queue. It is embedded in the object it works on (a call's arguments, a
 * block, a capture), so that device_free needs no memory and cannot fail. Its run also frees it. */
struct cpu_task {
    STAILQ_ENTRY(cpu_task) link;
    const cpu_task_kind *kind;
};

/* ---- streams (cpu_stream.c) ----------------------------------------------------------------- */
struct cpu_stream {
    stream base;
    bool is_worker;               /* if not, inline: a task runs in the call that issues it */
    int priority;                 /* of a worker's thread: see stream_config */
    TAILQ_ENTRY(cpu_stream) link; /* in cpu_device.streams */
    cpu_player player;            /* unused without a scheduler */

    atomic_bool failed;    /* once set, `error` is never written again */
    fsdp_error_info error; /* the first error of this stream's work */

    pthread_mutex_t lock; /* guards all below, and the first write of `error` */
    pthread_cond_t work;  /* a task was queued, or `stopping` was set */
    pthread_cond_t idle;  /* sync_target tasks are finished, and a thread waits for that */
    STAILQ_HEAD(, cpu_task) queue;
    uint64_t issued_tasks, finished_tasks;
    uint64_t sync_target; /* no thread in cpu_stream_drain waits for fewer finished tasks */
    int sync_waiters;
    bool stopping;
    pthread_t thread;
};

/* cpu_stream_new -- create a stream, which the device owns and lists. is_worker: with a thread. */
fsdp_status cpu_stream_new(cpu_device *d, const stream_config *config, bool is_worker,
                           stream **out);
/* cpu_stream_delete -- take s off the list, drain the queue, join the worker. */
void cpu_stream_delete(cpu_stream *s);
/* cpu_stream_drain -- wait for every task issued so far. Errors are not reported. */
void cpu_stream_drain(cpu_stream *s);
/* cpu_stream_issue -- queue the task, or run it at once on an inline stream. */
void cpu_stream_issue(cpu_stream *s, cpu_task *task);
/* cpu_stream_fail -- keep *info as the stream's error, unless there is one. */
void cpu_stream_fail(cpu_stream *s, const fsdp_error_info *info);
/* cpu_stream_failed -- whether there is an error; s->error then never changes. */
bool cpu_stream_failed(cpu_stream *s);
/* cpu_stream_status -- FSDP_OK, or the stream's first error, which becomes this thread's error. */
fsdp_status cpu_stream_status(cpu_stream *s);
/* cpu_call_new -- a task that runs l->fn unless the stream has failed, and tells the watch if
 * act->token is not 0. *args: room for l->args_bytes (or a unique pointer), aligned for any type;
 * the caller fills it before it issues the task.
 *   errors  the stream's; FSDP_ENOMEM */
fsdp_status cpu_call_new(cpu_stream *s, const launch_config *l, const device_act *act,
                         cpu_task **out, void **args);

/* ---- memory (cpu_memory.c) ------------------------------------------------------------------ */
typedef struct cpu_block cpu_block;
TAILQ_HEAD(cpu_block_list, cpu_block);
enum { CPU_POOL_BUCKETS = 1024 }; /* a power of two */

typedef struct cpu_pool {
    ledger *ledger;              /* counts the blocks until they are freed */
    bool is_guarded;             /* the blocks' memory comes from guard_map */
    pthread_mutex_t lock;        /* guards all below except n_shifted */
    struct cpu_block_list live;  /* handed out, or pending (cpu_memory.c) */
    struct cpu_block_list stale; /* cached for reuse, least recently freed first */
    /* by footprint: the cached blocks, and pending blocks that their stream may reuse */
    LIST_HEAD(, cpu_block) bucket[CPU_POOL_BUCKETS];
    size_t live_bytes;      /* footprint (shift, header, payload, tail) of the blocks in `live` */
    size_t live_peak_bytes; /* since device_open: the cap on cached_bytes */
    size_t cached_bytes;
    atomic_uint n_shifted; /* large blocks taken from the system since device_open */
} cpu_pool;

/* cpu_pool_init -- an empty pool. */
void cpu_pool_init(cpu_pool *p, ledger *l, bool is_guarded);
/* cpu_pool_close -- list live blocks, assert that there are none, release the cache. */
void cpu_pool_close(cpu_pool *p);
/* cpu_pool_trim -- give cached blocks back to the system, oldest first, until at most keep_bytes
 * are cached. */
void cpu_pool_trim(cpu_pool *p, size_t keep_bytes);
/* cpu_pool_cached_bytes -- the bytes that cpu_pool_trim could give back. */
size_t cpu_pool_cached_bytes(cpu_pool *p);
/* cpu_guarded_find -- the block of a guarded pool whose mapping contains addr. The block may be
 * freed, and addr may be past its end. The caller has checked that guard_find(addr) is not NULL.
 * Signal handlers may call this. */
typedef struct cpu_block_facts {
    const char *label;
    size_t bytes, byte; /* size of the block; offset of addr in it */
    bool is_live;
} cpu_block_facts;
cpu_block_facts cpu_guarded_find(const void *addr);

/* ---- device (cpu.c) ------------------------------------------------------------------------- */
struct cpu_device {
    device base;
    cpu_pool pool;          /* of device memory */
    cpu_pool host_pool;     /* of device_alloc_host's memory if pool.is_guarded; else unused */
    cpu_schedule *schedule; /* NULL: the system schedules the streams' threads */
    pthread_mutex_t lock;   /* guards streams */
    TAILQ_HEAD(, cpu_stream) streams;
};

/* cpu_open -- the `open` of a backend whose streams, events and copies are the CPU's. If its
 * memory_is_host is false, device memory is guarded (guard.h) and all streams are workers. */
fsdp_status cpu_open(const device_config *config, device **out);

/* cpu_close ... cpu_mem_reserved -- in cpu.c, cpu_stream.c, cpu_event.c and cpu_memory.c. */
DECLARE_DEVICE_CALLS(cpu);

/* The functions of such a device_backend except `open`. */
#define CPU_BACKEND_CALLS                                                                          \
    DEVICE_CALLS(cpu), .share_find = cpu_share_find, .mem_reserved = cpu_mem_reserved
