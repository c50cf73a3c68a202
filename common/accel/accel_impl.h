/* accel_impl.h -- types and functions that the files of common/accel share (accel.h lists these
 * files). Private to them and to the backends that fill an accel_api.
 *
 * One host thread issues all work of a device. The threads that run host tasks share with it only
 * the error and what `lock` guards (struct accel_device). Another thread calls the
 * library's collectives, while the issuing thread waits (native_thread.c). */
#pragma once
#include <pthread.h>
#include <stdatomic.h>
#include <sys/queue.h>
#include "common/accel/accel.h"
#include "common/device/device_impl.h"

typedef struct accel_watched accel_watched;
typedef struct accel_kept accel_kept;

enum { ACCEL_STREAMS = 32, ACCEL_POLLS = 8, ACCEL_RECENT = 6, ACCEL_RECENT_CHARS = 48 };
enum { ACCEL_STAGES = 256, ACCEL_LARGE_STAGES = 16 };

/* ---- errors and waits (fate.c) --------------------------------------------------------------- */

/* accel_stream_check -- FSDP_OK for 0, else the error of a call on s, which becomes the device's.
 * If the device itself reports an error, waits end too, and the message names the work that was
 * issued on s last. */
fsdp_status accel_stream_check(accel_stream *s, int code, const char *what);
/* accel_device_status -- FSDP_OK, or the first error of d, which becomes this thread's error. Any
 * thread. */
fsdp_status accel_device_status(const accel_device *d);
/* accel_work_fail -- this thread's error becomes the device's, if it has none. Waits go on, because
 * the library still runs what is queued. Any thread. */
void accel_work_fail(accel_device *d);

/* accel_polls_run -- call each poll of the device once; an error of a poll fails the device. */
void accel_polls_run(accel_device *d);
/* accel_wait -- the host waits for the event; e NULL: for all work of the stream.
 *   errors  FSDP_EDEVICE; errors of polls and complaints. Not: errors of work */
fsdp_status accel_wait(accel_stream *s, void *e);
/* accel_pause -- let other threads run between two looks of a waiting thread: by a yield at first,
 * later by a sleep of at least 20 us that grows with the time waited so far: 1/256 of that time,
 * and 1/16 in the background, where many threads may wait; at most 500 us. The caller sets
 * in_background and zeroes the rest. accel_looks_end -- end the wait and restore the thread's timer
 * slack. */
typedef struct accel_looks {
    bool in_background;
    double begin_s;
    int slack_ns;
} accel_looks;
void accel_pause(accel_looks *l);
void accel_looks_end(accel_looks *l);

/* ---- the objects ----------------------------------------------------------------------------- */

typedef struct accel_poll {
    fsdp_status (*poll)(void *self);
    void *self;
} accel_poll;

/* Pinned blocks of one size, used in turn. */
typedef struct accel_stages {
    accel_kept *block[ACCEL_STAGES];
    unsigned next;
} accel_stages;

struct accel_device {
    device base;
    const accel_api *api;
    void *own;                            /* data of the library's side, from api->open */
    accel_stream *streams[ACCEL_STREAMS]; /* by number; [0]: compute. NULL: the number is free */
    atomic_bool has_error;                /* once set, `error` is never written again */
    atomic_bool failed;                   /* the device is lost: has_error, and waits end */
    fsdp_error_info error;
    pthread_mutex_t lock; /* guards all_host and the first write of an error */
    accel_poll polls[ACCEL_POLLS];
    int n_polls;

    void *blocks;                  /* memory.c: a tree (tsearch) of the live blocks, by address */
    TAILQ_HEAD(, block) idle;      /* memory.c: entries of no block */
    size_t free_bytes;             /* memory.c: that streams keep for their later work */
    TAILQ_HEAD(, accel_kept) kept; /* kept.c: freed, the latest first */
    size_t kept_device_bytes;      /* kept.c: device memory, in use or in `kept` */
    LIST_HEAD(, accel_kept) all_host; /* kept.c: host memory, in use or in `kept` */
    accel_stages small, large;        /* copy.c */

    SLIST_HEAD(, accel_watched) spare; /* watch.c, like the next three */
    void *clock_queue;                 /* only `clock` is recorded on it */
    void *clock;                       /* an event, reached when the host's clock showed clock_s */
    double clock_s;
};

/* The name [a literal, or NULL] and the label of work that was issued. */
typedef struct accel_recent {
    const char *name;
    char label[ACCEL_RECENT_CHARS];
} accel_recent;

struct accel_stream {
    stream base;
    void *queue;
    int number;                      /* index in streams */
    void *tasks;                     /* the api's thread for host tasks; NULL: none yet */
    TAILQ_HEAD(, block) leaving;     /* memory.c: freed here, and still counted by the ledger */
    TAILQ_HEAD(, block) free_blocks; /* memory.c: for this stream, in the order of their frees */
    unsigned n_frees;                /* memory.c: of blocks that stayed */
    STAILQ_HEAD(, accel_watched) watched;
    double told_s; /* end of the last act reported to the watch */
    accel_recent recent[ACCEL_RECENT];
    unsigned n_recent; /* works written to `recent`; one that repeats the last one is not written.
                          The last one is at (n_recent - 1) % ACCEL_RECENT */
};

typedef struct accel_event {
    event base;
    void *handle;
    bool recorded;
} accel_event;

/* accel_device_of, accel_stream_at, accel_api_at -- the accelerator's own part of an object. */
static inline accel_device *accel_device_of(device *d)
{
    return (accel_device *)d;
}
static inline accel_stream *accel_stream_at(stream *s)
{
    return (accel_stream *)s;
}
static inline const accel_api *accel_api_at(const accel_stream *s)
{
    return ((const accel_device *)s->base.device)->api;
}

/* accel_stream_recent -- note the name of the work that is issued next on s, for error messages.
 * It runs for every launch, so it formats nothing. name: a literal, or NULL. label: copied; may be
 * NULL. */
void accel_stream_recent(accel_stream *s, const char *name, const char *label);

/* ---- host tasks (task.c) --------------------------------------------------------------------- */

struct accel_task {
    STAILQ_ENTRY(accel_task) link; /* for task_put */
    accel_stream *stream;
    stream_fn fn;
    max_align_t args[];
};

/* accel_host_task -- run fn(args) in a host thread, in order of s. fn may block until other ranks
 * arrive. args are copied. If it fails, its error is the device's, and later tasks
 * are skipped.
 *   errors  FSDP_ENOMEM; FSDP_EDEVICE */
fsdp_status accel_host_task(accel_stream *s, stream_fn fn, const void *args, size_t args_bytes);
/* accel_thread_start -- start a thread that blocks all signals except SIGSEGV. name: of the thread
 * and in the message.
 *   errors  FSDP_ENOMEM */
fsdp_status accel_thread_start(void *(*main)(void *), void *arg, const char *name, pthread_t *out);

/* ---- memory ---------------------------------------------------------------------------------- */

/* The use of a block: device or host memory for work in order of a stream, or a stage, which the
 * host reads or writes at once. */
typedef enum accel_use { USE_ON_DEVICE, USE_ON_HOST, USE_AS_STAGE } accel_use;

/* A block of memory. When it is freed, the cache of kept.c keeps it for requests of its size. */
struct accel_kept {
    TAILQ_ENTRY(accel_kept) link;
    LIST_ENTRY(accel_kept) in_all; /* of host memory */
    void *ptr;
    size_t bytes;
    bool is_device;         /* if false, the next two fields are valid */
    bool is_pageable;       /* shared but not pinned: copies go through a stage */
    uint64_t share_offset;  /* offset in the shared file, or ACCEL_NOT_SHARED */
    void *used;             /* event after its last use; NULL: it was never used */
    const accel_stream *by; /* stream of its last use */
};
#define ACCEL_NOT_SHARED UINT64_MAX

/* accel_kept_get -- at least `bytes`, for work that is issued on s from now on; NULL: out of
 * memory. accel_kept_put -- free p after all work issued on s so far. */
accel_kept *accel_kept_get(accel_stream *s, size_t bytes, accel_use use);
void accel_kept_put(accel_stream *s, accel_kept *p);
/* accel_pinned_get -- accel_kept_get of host memory. If memory is short, free blocks of other sizes
 * are released first.
 *   errors  FSDP_ENOMEM */
fsdp_status accel_pinned_get(accel_stream *s, size_t bytes, accel_use use, accel_kept **out);
/* accel_kept_used -- record p->used after all work issued on s so far. The caller keeps p. */
void accel_kept_used(accel_stream *s, accel_kept *p);
/* accel_kept_trim -- release the cached blocks of device memory, or of host memory, whose last use
 * is over. accel_kept_device_bytes -- device memory in the cache. */
void accel_kept_trim(accel_device *d, bool is_device);
size_t accel_kept_device_bytes(const accel_device *d);
/* accel_kept_close -- release the cache. No stream has work. */
void accel_kept_close(accel_device *d);

/* accel_memory_close -- assert that all blocks are freed, and release the cache. */
void accel_memory_close(accel_device *d);
/* accel_memory_look -- subtract from the ledger the frees that streams have reached. */
void accel_memory_look(accel_device *d);
/* accel_free_blocks_end -- give back the memory that s keeps for its later work. */
void accel_free_blocks_end(accel_stream *s);
/* accel_is_host -- whether ptr is in a block of device_alloc_host. accel_is_pageable -- whether ptr
 * is in such a block that is not pinned, so that asynchronous copies need a stage. */
bool accel_is_host(accel_device *d, const void *ptr);
bool accel_is_pageable(accel_device *d, const void *ptr);

/* ---- the device ------------------------------------------------------------------------------ */

/* accel_close ... accel_mem_reserved -- in accel_device.c, stream.c, copy.c and memory.c. */
DECLARE_DEVICE_CALLS(accel);

/* ACCEL_BACKEND -- all functions of a device_backend except `open`. */
#define ACCEL_BACKEND                                                                              \
    DEVICE_CALLS(accel), .share_find = accel_share_find, .mem_reserved = accel_mem_reserved

/* ---- the watch (watch.c) --------------------------------------------------------------------- */

/* accel_watch_open, accel_watch_close -- the clock of a device. */
fsdp_status accel_watch_open(accel_device *d);
void accel_watch_close(accel_device *d);
/* accel_watch_begin ... accel_watch_end -- enclose the issue of `act` on s. If act->token is not 0
 * and status, the result of the issue, is FSDP_OK, the watch is told when the act has run. begin
 * returns NULL if there is nothing to tell; end accepts NULL. */
accel_watched *accel_watch_begin(accel_stream *s, const device_act *act);
void accel_watch_end(accel_stream *s, accel_watched *w, fsdp_status status);
/* accel_watch_tell -- tell the watch which acts on s have run. accel_watch_tell_all -- the same for
 * all streams; if any had such acts and the last reading of the clock is old, read it again. */
void accel_watch_tell(accel_stream *s);
void accel_watch_tell_all(accel_device *d);
