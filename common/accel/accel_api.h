/* accel_api.h -- what an accelerator's library has to be able to do: a table of its calls.
 *
 * A device of device.h is this table and what common/accel makes of it, which is alike for all: the
 * ledger, errors that stay with their stream, waits of the host that hear of a dead peer, staging
 * of pageable memory, the watch. common/cuda/cuda_runtime.c fills the table with CUDA's calls,
 * lab6_npu/npu.c with ACL's.
 *
 * Queues and events are the library's handles (cudaStream_t, aclrtStream; cudaEvent_t, aclrtEvent).
 * A function that returns int returns the library's own code: 0 is success in all of them. They are
 * called by the one thread that issues everything, unless it says "any thread". */
#pragma once
#include "common/device/device.h"

EXTERN_C_BEGIN

typedef struct accel_device accel_device;
typedef struct accel_stream accel_stream;
typedef struct accel_task accel_task;

/* What event_look and queue_look return beside the library's errors. No library has this code. */
enum { ACCEL_NOT_READY = -1 };

typedef enum accel_event_kind { ACCEL_ORDERS, ACCEL_TIMES } accel_event_kind; /* both order */
typedef enum accel_copy_kind { ACCEL_WITHIN, ACCEL_UP, ACCEL_DOWN } accel_copy_kind;

typedef struct accel_api {
    const char *device; /* what --device calls it: "cuda" */
    const char *word;   /* what people call one: "GPU" */
    const char *hint;   /* where to look when the device itself reports an error */

    /* explain -- FSDP_OK for 0; else FSDP_ENOMEM or FSDP_EDEVICE, with the library's own words for
     * the code and, where it keeps one, its latest message. what: the call, or the operation. Any
     * thread. */
    fsdp_status (*explain)(int code, const char *what);

    /* open -- d->base.config.index becomes the device of this thread; *own is what the other
     * functions find in d->own. errors FSDP_ESKIP there is none; FSDP_EDEVICE it cannot be used;
     * FSDP_EINVAL the index */
    fsdp_status (*open)(accel_device *d, void **own);
    /* close -- no stream and no block is left. own may be what a failed open has left. */
    void (*close)(accel_device *d);
    /* complaints -- NULL, or: an error that kernels left where the host finds it; the host has
     * waited for those that it wants to hear. */
    fsdp_status (*complaints)(accel_device *d);

    int (*queue_create)(accel_device *d, int priority, void **out); /* larger goes first */
    int (*queue_destroy)(void *queue);
    int (*queue_wait)(void *queue, void *event); /* what the event stands for now */
    int (*queue_look)(void *queue);              /* 0: all is done. Any thread */

    int (*event_create)(accel_device *d, accel_event_kind kind, void **out);
    int (*event_destroy)(void *event);
    int (*event_record)(void *event, void *queue);
    int (*event_look)(void *event); /* 0: reached. Any thread */
    int (*elapsed_ms)(float *ms, void *begin, void *end);

    /* Asynchronous, between device memory and what pin_alloc or pin_register gave. Copies within
     * the device begin at multiples of copy_align_bytes; 0: anywhere. */
    size_t copy_align_bytes;
    int (*copy)(void *dst, const void *src, size_t bytes, accel_copy_kind kind, void *queue);
    int (*fill)(void *dst, int byte, size_t bytes, void *queue);

    /* block_get -- device memory in order of s: for work issued on s from now on. *out NULL: there
     * is none. block_put -- work issued on s so far was the last to use it; s may be another one.
     * blocks_trim -- no stream has work: what is unused goes back to the system. All three NULL:
     * the library has memory by memory_get only (NULL: there is none) and memory_put, which wait
     * for no stream, and kept.c makes the order. */
    int (*block_get)(accel_stream *s, size_t bytes, void **out);
    int (*block_put)(accel_stream *s, void *ptr);
    int (*blocks_trim)(accel_device *d);
    void *(*memory_get)(size_t bytes);
    void (*memory_put)(void *ptr);
    size_t (*mem_available)(accel_device *d); /* the driver's, and what its own pool has unused */
    size_t (*mem_reserved)(accel_device *d);  /* what block_get's pool has, used or not */

    /* Memory of the host that copies reach while the host goes on. pin_register NULL: only what
     * pin_alloc gives, which peers cannot map; what they can is copied by way of it. */
    int (*pin_alloc)(size_t bytes, void **out);
    int (*pin_free)(void *ptr);
    int (*pin_register)(void *ptr, size_t bytes);
    int (*pin_unregister)(void *ptr);

    /* task_put -- have a thread of the host call accel_task_run(t) in order of s, while the queue
     * waits; where it fails too t is no longer the caller's. Tasks of two streams may wait for each
     * other's peers, so each stream has a thread of its own. tasks_end -- s has no work any more,
     * or the device has failed: end the thread. Where s->tasks is not NULL then, the queue is left
     * to the system. */
    fsdp_status (*task_put)(accel_stream *s, accel_task *t);
    void (*tasks_end)(accel_stream *s);
} accel_api;

EXTERN_C_END
