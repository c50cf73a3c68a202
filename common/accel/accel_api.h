/* accel_api.h -- the table of calls that an accelerator's library must provide.
 *
 * common/accel makes a device of device.h from this table. It adds what all accelerators share: the
 * ledger, errors that stay with their stream, host waits that notice a dead peer, staging of
 * pageable memory, the watch. common/cuda/cuda_runtime.c fills the table with CUDA's calls,
 * lab6_npu/npu.c with ACL's.
 *
 * Queues and events are the library's handles (cudaStream_t, aclrtStream; cudaEvent_t, aclrtEvent).
 * Functions that return int return the library's own code; 0 is success in every library. Only the
 * thread that issues the device's work calls them, unless the comment says "any thread". */
#pragma once
#include "common/device/device.h"

EXTERN_C_BEGIN

typedef struct accel_device accel_device;
typedef struct accel_stream accel_stream;
typedef struct accel_task accel_task;

/* event_look and queue_look return this for unfinished work. No library uses this code. */
enum { ACCEL_NOT_READY = -1 };

/* Events of both kinds order streams; elapsed_ms takes only events of kind ACCEL_TIMES. */
typedef enum accel_event_kind { ACCEL_ORDERS, ACCEL_TIMES } accel_event_kind;
typedef enum accel_copy_kind { ACCEL_WITHIN, ACCEL_UP, ACCEL_DOWN } accel_copy_kind;

typedef struct accel_api {
    const char *device; /* its name for --device: "cuda" */
    const char *word;   /* its name in messages: "GPU" */
    const char *hint;   /* where to look when the device itself reports an error */

    /* explain -- FSDP_OK for 0; else FSDP_ENOMEM or FSDP_EDEVICE, with the library's text for the
     * code and, if the library keeps one, its latest message. what: the call, or the operation. Any
     * thread. */
    fsdp_status (*explain)(int code, const char *what);

    /* open -- make d->base.config.index the current device of this thread. *own: data of the
     * library's side, kept in d->own. errors FSDP_ESKIP there is no device; FSDP_EDEVICE the device
     * cannot be used; FSDP_EINVAL the index is out of range */
    fsdp_status (*open)(accel_device *d, void **own);
    /* close -- no stream and no block is left. After a failed open, d->own may be incomplete. */
    void (*close)(accel_device *d);
    /* complaints -- return the error that a kernel wrote to host memory, if there is one. Called
     * after the host has waited for an event or a stream. May be NULL. */
    fsdp_status (*complaints)(accel_device *d);

    int (*queue_create)(accel_device *d, int priority, void **out); /* larger runs first */
    int (*queue_destroy)(void *queue);
    int (*queue_wait)(void *queue, void *event); /* until its latest record is reached */
    int (*queue_look)(void *queue);              /* 0: all work is done. Any thread */

    int (*event_create)(accel_device *d, accel_event_kind kind, void **out);
    int (*event_destroy)(void *event);
    int (*event_record)(void *event, void *queue);
    int (*event_look)(void *event); /* 0: reached. Any thread */
    int (*elapsed_ms)(float *ms, void *begin, void *end);

    /* Asynchronous copies between device memory and pinned memory (pin_alloc, pin_register). Copies
     * within the device must begin at multiples of copy_align_bytes; 0: no restriction. */
    size_t copy_align_bytes;
    int (*copy)(void *dst, const void *src, size_t bytes, accel_copy_kind kind, void *queue);
    int (*fill)(void *dst, int byte, size_t bytes, void *queue);

    /* The library's pool of device memory, in stream order. block_get -- memory for work that is
     * issued on s from now on; *out NULL: out of memory. block_put -- free it after all work issued
     * on s so far; s need not be the stream of block_get. blocks_trim -- return unused memory to
     * the system; no stream has work. A library without such a pool leaves all three NULL: it
     * provides memory_get (NULL: out of memory) and memory_put, which wait for no stream, and
     * kept.c orders their use. */
    int (*block_get)(accel_stream *s, size_t bytes, void **out);
    int (*block_put)(accel_stream *s, void *ptr);
    int (*blocks_trim)(accel_device *d);
    void *(*memory_get)(size_t bytes);
    int (*memory_put)(void *ptr);
    size_t (*mem_available)(accel_device *d); /* free memory of the driver and of the pool */
    size_t (*mem_reserved)(accel_device *d);  /* memory that block_get's pool holds, used or not */

    /* Pinned host memory, which asynchronous copies can reach. Peers cannot map memory of
     * pin_alloc. If pin_register is NULL, memory that peers can map is not pinned and is copied
     * through a pinned stage. */
    int (*pin_alloc)(void **out, size_t bytes);
    int (*pin_free)(void *ptr);
    int (*pin_register)(void *ptr, size_t bytes);
    int (*pin_unregister)(void *ptr);

    /* task_put -- have a host thread call accel_task_run(t) in order of s; the queue waits for it.
     * t is consumed, also on failure. Each stream has its own thread, because a task may block
     * until a peer has run a task of another stream. tasks_end -- end the thread: s has no more
     * work, or the device has failed. If s->tasks is still not NULL after that, the queue is not
     * destroyed. */
    fsdp_status (*task_put)(accel_stream *s, accel_task *t);
    void (*tasks_end)(accel_stream *s);
} accel_api;

EXTERN_C_END
