/* accel_impl.h -- the types that the parts of common/accel share. Private to them, and to what
 * fills an accel_api.
 *
 *   accel_device.c  device, launches
 *   fate.c     errors, waits of the host            stream.c  streams and events
 *   task.c     work of the host in a stream's order
 *   copy.c     copies and fills                     kept.c    memory that is kept for reuse
 *   memory.c   blocks of device and host memory     watch.c   when work began and ended
 *
 * Everything of one device is issued by one host thread. The threads that run host tasks do no more
 * than that; what they share with it stands in accel_fate. The library's collectives have a thread
 * too, for which the issuing thread waits (native_thread.c). */
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

/* What work depends on that may fail by itself: the first tasks[i] host tasks of stream number i.
 * A stream's grows with its host tasks and with the events that it waits for. */
typedef struct accel_reach {
    uint32_t tasks[ACCEL_STREAMS];
} accel_reach;

/* What became of a stream's host tasks. The number of a stream that failed is not used again. */
typedef struct accel_fate {
    accel_stream *stream;       /* that has this number now, or NULL */
    uint32_t n_tasks;           /* issued; goes on when the number is used again */
    _Atomic uint32_t failed_at; /* the first task that failed, from 1; 0: none */
    fsdp_error_info error;      /* valid, and never written again, when failed_at is not 0 */
} accel_fate;

/* accel_stream_check -- FSDP_OK for 0, else the error of a call on s. It stays with the stream; one
 * that the device itself reports ends all streams, and names what was issued on s last. */
fsdp_status accel_stream_check(accel_stream *s, int code, const char *what);
/* accel_stream_status -- FSDP_OK, or the first error of s, whose words are now this thread's. */
fsdp_status accel_stream_status(accel_stream *s);
/* accel_reach_error -- the error that work with this reach has; NULL: none. From any thread. */
const fsdp_error_info *accel_reach_error(accel_device *d, const accel_reach *reach, int own);
/* accel_fate_fail -- this thread's error is that of task number `at`. From any thread. */
void accel_fate_fail(accel_device *d, accel_fate *fate, uint32_t at);

/* accel_status_of -- its status, and its words are this thread's; NULL: FSDP_OK. */
fsdp_status accel_status_of(const fsdp_error_info *error);

/* accel_polls_run -- call the polls of the device once; it fails when one of them says so. */
void accel_polls_run(accel_device *d);
/* accel_wait -- the host waits for the event; NULL: for all of the stream.
 *   errors  FSDP_EDEVICE the device's; a poll's; not those of host tasks */
fsdp_status accel_wait(accel_stream *s, void *e);
/* accel_pause -- let other threads run before this thread looks again for what it waits for: first
 * a yield, later a sleep of 20 us. *l starts as zeros. accel_looks_end: the wait is over; the
 * thread's timer slack is what it was. */
typedef struct accel_looks {
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

/* Pinned blocks of one size that are used in turn. */
typedef struct accel_stages {
    accel_kept *block[ACCEL_STAGES];
    unsigned next;
} accel_stages;

struct accel_device {
    device base;
    const accel_api *api;
    void *own;                       /* the library's side, of api->open */
    accel_fate fates[ACCEL_STREAMS]; /* [0]: of the compute stream */
    atomic_bool failed;              /* once set, `error` is never written again */
    fsdp_error_info error;           /* of all streams */
    pthread_mutex_t lock;            /* for the first write of an error, and guards all_host */
    accel_poll polls[ACCEL_POLLS];
    int n_polls;

    void *blocks;          /* of memory.c: a tree (tsearch) of what is handed out, by address */
    struct block *leaving; /* of memory.c too */
    TAILQ_HEAD(, accel_kept) kept; /* freed, the latest first */
    size_t kept_device_bytes;      /* of the device: in use or in `kept` */
    LIST_HEAD(, accel_kept) all_host;
    accel_stages small, large; /* of copy.c */

    SLIST_HEAD(, accel_watched) spare; /* of watch.c, as the next two */
    void *clock_queue;                 /* has no work but `clock` */
    void *clock;                       /* an event, reached at clock_s of the host's clock */
    double clock_s;
};

struct accel_stream {
    stream base;
    void *queue;
    int number;                   /* in fates */
    const fsdp_error_info *error; /* the stream's first; NULL: none was seen */
    accel_reach reach;            /* of work that is issued now */
    void *tasks;                  /* of the api: what runs host tasks; NULL: none yet */
    STAILQ_HEAD(, accel_watched) watched;
    double told_s; /* end of the latest that the watch was told of */
    char recent[ACCEL_RECENT][ACCEL_RECENT_CHARS];
    unsigned n_recent; /* written so far, repetitions left out: the latest is at (n_recent - 1) %
                          ACCEL_RECENT */
};

typedef struct accel_event {
    event base;
    void *handle;
    bool recorded;
    accel_reach reach; /* of what it stands for */
} accel_event;

/* accel_device_of, accel_stream_at, accel_api_at -- the accelerator's side of them. */
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

/* accel_stream_recent -- what is issued on s next, for messages. label may be NULL; both copied. */
void accel_stream_recent(accel_stream *s, const char *name, const char *label);

/* ---- host tasks (task.c) --------------------------------------------------------------------- */

struct accel_task {
    STAILQ_ENTRY(accel_task) link; /* for task_put */
    accel_stream *stream;
    stream_fn fn;
    uint32_t number;
    accel_reach reach; /* what it depends on */
    max_align_t args[];
};

/* accel_host_task -- run fn(args) in a thread of the host, in order of s. It may sleep for other
 * ranks. args: copied. A task that fails fails the stream, and later ones are skipped.
 *   errors  FSDP_ENOMEM; FSDP_EDEVICE */
fsdp_status accel_host_task(accel_stream *s, stream_fn fn, const void *args, size_t args_bytes);
/* accel_thread_start -- a thread without signals but for those of a fault; name: the stream's.
 *   errors  FSDP_ENOMEM */
fsdp_status accel_thread_start(void *(*main)(void *), void *arg, const char *name, pthread_t *out);

/* ---- memory ---------------------------------------------------------------------------------- */

/* What memory is for: on the device or on the host, for work in order of a stream; or as a stage,
 * which the host touches at once. */
typedef enum accel_use { USE_ON_DEVICE, USE_ON_HOST, USE_AS_STAGE } accel_use;

/* Memory that is kept for reuse, with others of its size, when it is free. */
struct accel_kept {
    TAILQ_ENTRY(accel_kept) link;
    LIST_ENTRY(accel_kept) in_all; /* of the host's */
    void *ptr;
    size_t bytes;
    bool is_device;         /* else the next two are valid */
    bool is_pageable;       /* shared, and not pinned after all: copies go by way of a stage */
    uint64_t share_offset;  /* where it stands in the shared file; ACCEL_NOT_SHARED */
    void *used;             /* an event: its last use is over; NULL: there was none */
    const accel_stream *by; /* whose work that is */
};
#define ACCEL_NOT_SHARED UINT64_MAX

/* accel_kept_get -- at least `bytes` for work on s that is issued from now on; NULL: there is none.
 * accel_kept_put -- work issued on s so far was the last to use it. */
accel_kept *accel_kept_get(accel_stream *s, size_t bytes, accel_use use);
void accel_kept_put(accel_stream *s, accel_kept *p);
/* accel_pinned_get -- accel_kept_get of the host's memory; frees other sizes where that is short.
 *   errors  FSDP_ENOMEM */
fsdp_status accel_pinned_get(accel_stream *s, size_t bytes, accel_use use, accel_kept **out);
/* accel_kept_used -- put, but the caller keeps it: p->used stands for work issued on s so far. */
void accel_kept_used(accel_stream *s, accel_kept *p);
/* accel_kept_trim -- release what is free, of the device's or of the host's; blocks in use are
 * left. accel_kept_device_bytes -- what that could give back of the device's. */
void accel_kept_trim(accel_device *d, bool is_device);
size_t accel_kept_device_bytes(const accel_device *d);
/* accel_kept_close -- release the cache; no stream has work. */
void accel_kept_close(accel_device *d);

/* accel_memory_close -- asserts that all is freed. */
void accel_memory_close(accel_device *d);
/* accel_memory_look -- let the ledger know of frees that streams have got to. */
void accel_memory_look(accel_device *d);
/* accel_is_host -- whether ptr is in a block of device_alloc_host. accel_is_pageable -- in such a
 * one, and the library's copies do not reach it while the host goes on. */
bool accel_is_host(accel_device *d, const void *ptr);
bool accel_is_pageable(accel_device *d, const void *ptr);

/* ---- the device ------------------------------------------------------------------------------ */

/* accel_close ... accel_mem_reserved -- in accel_device.c, stream.c, copy.c and memory.c. */
DECLARE_DEVICE_CALLS(accel);

/* ACCEL_BACKEND -- all of a device_backend but its name and `open`. */
#define ACCEL_BACKEND                                                                              \
    DEVICE_CALLS(accel), .share_find = accel_share_find, .mem_reserved = accel_mem_reserved

/* ---- the watch (watch.c) --------------------------------------------------------------------- */

/* accel_watch_open, accel_watch_close -- the clock of a device. */
fsdp_status accel_watch_open(accel_device *d);
void accel_watch_close(accel_device *d);
/* accel_watch_begin ... accel_watch_end -- what is issued on s between them is `act`; where its
 * token is not 0, the watch is told when it has run. status: of the issue; only FSDP_OK is told.
 * begin gives NULL where nothing is to be told, and end takes that. */
accel_watched *accel_watch_begin(accel_stream *s, const device_act *act);
void accel_watch_end(accel_stream *s, accel_watched *w, fsdp_status status);
/* accel_watch_tell -- tell of what has run on s by now. accel_watch_tell_all: on all streams, and
 * compare the clocks where that was long ago. */
void accel_watch_tell(accel_stream *s);
void accel_watch_tell_all(accel_device *d);
