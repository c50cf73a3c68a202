/* acl_impl.h -- shared by the files of the runtime's stand-in: acl.c (errors, devices, contexts),
 * acl_stream.c, acl_event.c, acl_memory.c and acl_report.c (callbacks). */
#pragma once
#include <pthread.h>
#include <stdatomic.h>
#include "tests/sim/ascend/sim.h"
#include "tests/sim/core/memory.h"

enum { ACL_CONTEXT = 0xc0e7, ACL_STREAM = 0xac15, ACL_EVENT = 0xace7 };

/* The first error of a task on the device, kept for a stream or a context. */
typedef struct acl_exception {
    aclError code;
    char text[512];
} acl_exception;

typedef struct acl_context {
    sim_handle handle;
    bool is_default;     /* made by aclrtSetDevice; else by aclrtCreateContext */
    bool stops;          /* one of its streams has ACL_STOP_ON_FAILURE */
    atomic_bool stopped; /* a task has failed while `stops`; `error` does not change after that */
    acl_exception error; /* of that task */
    int n_streams;       /* guarded by acl_lock */
    bool deterministic;
} acl_context;

typedef struct acl_stream {
    sim_handle handle;
    sim_queue q;
    acl_context *context;
    int number; /* for messages */
    uint32_t priority, flags;
    bool has_mode;       /* aclrtSetStreamFailureMode was called */
    acl_exception error; /* not reported yet; code 0 if none. Guarded by acl_lock */
    uint64_t thread;     /* runs the stream's callbacks; 0 if none. Guarded by acl_lock */
    LIST_ENTRY(acl_stream) subscribed; /* in the list of streams that have a thread */
    int n_unfinished;                  /* callbacks not finished; guarded by acl_lock */
} acl_stream;

/* TRY_ACL -- return the error of a call that fails. FAIL_IN -- sim_acl_fail with the call's name
 * before the text. FAIL_IF -- if `wrong`, return FAIL_IN. */
#define TRY_ACL(call)                                                                              \
    do {                                                                                           \
        const aclError error_ = (call);                                                            \
        if (error_ != ACL_SUCCESS)                                                                 \
            return error_;                                                                         \
    } while (0)
#define FAIL_IN(call, code, format, ...) sim_acl_fail(code, "%s: " format, call, ##__VA_ARGS__)
#define FAIL_IF(wrong, code, call, ...)                                                            \
    do {                                                                                           \
        if (wrong)                                                                                 \
            return FAIL_IN(call, code, __VA_ARGS__);                                               \
    } while (0)

/* Guards the fields whose comments say so. */
extern pthread_mutex_t acl_lock;

/* Live streams and events, counted for the limits and for the check at the end. */
extern atomic_int acl_n_streams, acl_n_events;

/* acl_enter -- check that this thread may make the call. *out is its context, unless out is NULL.
 *   errors  ACL_ERROR_UNINITIALIZE, ACL_ERROR_RT_CONTEXT_NULL */
aclError acl_enter(const char *call, acl_context **out);
/* acl_stream_of -- acl_enter, then find the stream, which must belong to that context.
 * acl_stream_working -- the same, and return the error that has stopped the context, if any. */
aclError acl_stream_of(aclrtStream handle, const char *call, acl_stream **out);
aclError acl_stream_working(aclrtStream handle, const char *call, acl_stream **out);
/* acl_check_context -- the error that has stopped the context, or ACL_SUCCESS. */
aclError acl_check_context(acl_context *c, const char *call);
/* acl_issue -- sim_acl_launch_work for a stream that acl_stream_of has found. */
aclError acl_issue(acl_stream *q, const char *name, const launch_config *l);
/* acl_take_error -- return the stream's error and clear it. */
aclError acl_take_error(acl_stream *q, const char *call);
/* acl_memory_queue -- the stand-in's own queue: allocations, frees and copies without a stream run
 * in its order. */
sim_queue *acl_memory_queue(void);
/* acl_deadline -- the time in ms from now, for pthread_cond_timedwait. acl_patience -- the time in
 * FSDP_SIM_PATIENCE_S seconds. */
struct timespec acl_deadline(int64_t ms);
struct timespec acl_patience(void);
/* acl_status -- the error code for the status of a call to the CPU device. */
aclError acl_status(fsdp_status status, const char *call);
