/* device_impl.h -- the functions of a device backend, and the common part of its objects. Only
 * backends (and their tests) include it; all other code includes device.h.
 *
 *   device.c checks arguments and calls through device_backend; cpu*.c are one backend, and each
 *   accelerator adds another one with its own `const device_backend`.
 *
 * A backend embeds `struct device`, `struct stream` and `struct event` as the first member of its
 * own types and fills every field below before `open` or `*_create` returns.
 *
 * On the CPU the compute stream is inline (the call does the work) unless `async_compute` is set;
 * every other stream is a worker thread with a first-in-first-out queue. With a `schedule_seed` the
 * compute stream is a worker too, one task at a time runs on the device, and the seed chooses among
 * all orders that the events allow (cpu_schedule.c), so that missing waits are found and can be
 * reproduced. Only one thread may use such a device. */
#pragma once
#include <pthread.h>
#include "common/device/device.h"

/* A request of device_alloc or device_alloc_host. */
typedef struct mem_request {
    mem_category category;
    size_t bytes;
    const char *label;
    bool on_host;
} mem_request;

struct device_backend {
    const char *name;
    bool memory_is_host, runs_c; /* device_memory_is_host, device_runs_c */
    fsdp_status (*open)(const device_config *config, device **out);
    void (*close)(device *d);

    fsdp_status (*stream_create)(device *d, const stream_config *config, stream **out);
    void (*stream_free)(stream *s);
    fsdp_status (*stream_sync)(stream *s);

    fsdp_status (*event_create)(device *d, bool timed, event **out);
    void (*event_free)(event *e);
    fsdp_status (*event_record)(event *e, stream *s);
    /* If act->token is not 0, the watch is told when the wait is over. If the event was reached
     * already, the backend may skip the wait; then the watch is not told. */
    fsdp_status (*stream_wait_event)(stream *s, event *e, const device_act *act);
    fsdp_status (*event_sync)(event *e);
    bool (*event_done)(event *e);
    /* Both events are timed. */
    fsdp_status (*event_elapsed_s)(event *begin, event *end, double *out);

    fsdp_status (*alloc)(stream *s, const mem_request *want, void **out);
    /* NULL if other processes cannot map the device's memory. */
    bool (*share_find)(device *d, const void *ptr, size_t bytes, device_share *out);
    void (*free)(stream *s, void *ptr);
    /* move -- do an ACT_COPY, ACT_UPLOAD, ACT_DOWNLOAD or ACT_FILL; act->bytes > 0. If act->token
     * is not 0, move and launch tell the watch after the act has run. */
    fsdp_status (*move)(stream *s, const device_act *act);
    fsdp_status (*launch)(stream *s, const launch_config *l, const device_act *act);
    size_t (*mem_available)(device *d);
    size_t (*mem_reserved)(device *d); /* NULL: always 0 */
    bool stands_still;                 /* device_now_s is always 0 */
};

/* DEVICE_CALLS(who) -- initialise a device_backend with who_close, who_stream_create ..., except
 * `open` and the functions that may be NULL.
 * DECLARE_DEVICE_CALLS(who) -- declare all of these functions except who_open. */
#define DEVICE_CALLS(who)                                                                          \
    .close = who##_close, .stream_create = who##_stream_create, .stream_free = who##_stream_free,  \
    .stream_sync = who##_stream_sync, .event_create = who##_event_create,                          \
    .event_free = who##_event_free, .event_record = who##_event_record,                            \
    .stream_wait_event = who##_stream_wait_event, .event_sync = who##_event_sync,                  \
    .event_done = who##_event_done, .event_elapsed_s = who##_event_elapsed_s,                      \
    .alloc = who##_alloc, .free = who##_free, .move = who##_move, .launch = who##_launch,          \
    .mem_available = who##_mem_available
#define DECLARE_DEVICE_CALLS(who)                                                                  \
    void who##_close(device *d);                                                                   \
    fsdp_status who##_stream_create(device *d, const stream_config *config, stream **out);         \
    void who##_stream_free(stream *s);                                                             \
    fsdp_status who##_stream_sync(stream *s);                                                      \
    fsdp_status who##_event_create(device *d, bool timed, event **out);                            \
    void who##_event_free(event *e);                                                               \
    fsdp_status who##_event_record(event *e, stream *s);                                           \
    fsdp_status who##_stream_wait_event(stream *s, event *e, const device_act *act);               \
    fsdp_status who##_event_sync(event *e);                                                        \
    bool who##_event_done(event *e);                                                               \
    fsdp_status who##_event_elapsed_s(event *begin, event *end, double *out);                      \
    fsdp_status who##_alloc(stream *s, const mem_request *want, void **out);                       \
    bool who##_share_find(device *d, const void *ptr, size_t bytes, device_share *out);            \
    void who##_free(stream *s, void *ptr);                                                         \
    fsdp_status who##_move(stream *s, const device_act *act);                                      \
    fsdp_status who##_launch(stream *s, const launch_config *l, const device_act *act);            \
    size_t who##_mem_available(device *d);                                                         \
    size_t who##_mem_reserved(device *d)

struct device {
    const device_backend *backend;
    device_config config;
    ledger *ledger, *host_ledger; /* the same ledger if memory_is_host */
    stream *compute;
    device_watch watch, second_watch; /* issued NULL: no watch */
    const char *scope, *phase;
};

struct stream {
    device *device;
    int n_threads;
    char name[32];
};

struct event {
    device *device;
    bool timed;
};

/* device_new -- a device of config->backend: `bytes` bytes, including the backend's own part, which
 * is zeroed; NULL: no memory. device_delete -- release it. */
void *device_new(const device_config *config, size_t bytes);
void device_delete(device *d);
/* stream_init -- set the common part of a stream. */
void stream_init(stream *s, device *d, const stream_config *config);

/* device_thread_start -- start a thread that runs main(arg) on a stack of THREAD_STACK_BYTES; its
 * name is the first 15 bytes of `name`. All signals but SIGSEGV, which goes to the thread that
 * caused the fault, are for the main thread: the new one blocks them.
 * Returns 0, or a number of errno. */
int device_thread_start(pthread_t *out, void *(*main)(void *), void *arg, const char *name);

/* device_run_move -- a stream_fn with a device_act as args: copies, or fills if src is NULL. */
fsdp_status device_run_move(void *args, int n_threads);

/* device_limit_left -- the device memory that memory_limit_bytes leaves; SIZE_MAX: no limit. */
size_t device_limit_left(const device *d);
/* device_alloc_failed -- FSDP_ENOMEM with device_alloc's message, which lists the figures of l.
 *   err  the errno of the call that failed; 0: memory_limit_bytes would be exceeded */
fsdp_status device_alloc_failed(ledger *l, const mem_request *want, int err);

/* host_map -- `bytes` of zeroed memory, a multiple of PAGE_BYTES, aligned to align_bytes (a power
 * of two), in huge pages if the system has them; NULL and errno: there is none. Owned by the
 * caller: munmap. */
void *host_map(size_t bytes, size_t align_bytes);
