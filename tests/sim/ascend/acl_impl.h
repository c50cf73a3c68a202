/* acl_impl.h -- what the files of the runtime's stand-in share: acl.c (errors, devices, contexts),
 * acl_stream.c, acl_event.c, acl_memory.c and acl_report.c (callbacks). */
#pragma once
#include <pthread.h>
#include <stdatomic.h>
#include "tests/sim/ascend/sim.h"
#include "tests/sim/core/memory.h"

enum { ACL_CONTEXT = 0xc0e7, ACL_STREAM = 0xac15, ACL_EVENT = 0xace7 };

/* The first error of a stream or of a context that a task of the device ended in. */
typedef struct acl_exception {
    aclError code;
    char text[512];
} acl_exception;

typedef struct acl_context {
    sim_handle handle;
    bool is_default;     /* aclrtSetDevice's; else aclrtCreateContext's */
    bool stops;          /* a stream of it has ACL_STOP_ON_FAILURE */
    atomic_bool stopped; /* and a task of it has failed; then `error` is not written any more */
    acl_exception error; /* of the task */
    int n_streams;       /* guarded by acl_lock */
    bool deterministic;
} acl_context;

typedef struct acl_stream {
    sim_handle handle;
    sim_queue q;
    acl_context *context;
    int number; /* for messages */
    uint32_t priority, flags;
    bool has_mode;                     /* aclrtSetStreamFailureMode was called */
    acl_exception error;               /* not reported yet; code 0: none. Guarded by acl_lock */
    uint64_t thread;                   /* that runs its callbacks; 0: none. Guarded by acl_lock */
    LIST_ENTRY(acl_stream) subscribed; /* if it has a thread */
    int n_unfinished;                  /* callbacks; guarded by acl_lock */
} acl_stream;

/* TRY_ACL -- return the error of a call that has failed. FAIL_IN -- sim_acl_fail with the call's
 * name before the text. FAIL_IF -- return that, if `wrong`. */
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

/* Guards what says so. */
extern pthread_mutex_t acl_lock;

/* How many there are, for the limits and for what is left at the end. */
extern atomic_int acl_n_streams, acl_n_events;

/* acl_enter -- may this thread make the call? *out is its context, unless out is NULL.
 *   errors  ACL_ERROR_UNINITIALIZE, ACL_ERROR_RT_CONTEXT_NULL */
aclError acl_enter(const char *call, acl_context **out);
/* acl_stream_of -- acl_enter, then the stream, which must be of that context. acl_stream_working:
 * and no error may have stopped that. */
aclError acl_stream_of(aclrtStream handle, const char *call, acl_stream **out);
aclError acl_stream_working(aclrtStream handle, const char *call, acl_stream **out);
/* acl_check_context -- the error that has stopped it. */
aclError acl_check_context(acl_context *c, const char *call);
/* acl_issue -- sim_acl_launch_work for a stream that was found. */
aclError acl_issue(acl_stream *q, const char *name, const launch_config *l);
/* acl_take_error -- the stream's error, which is reported now. */
aclError acl_take_error(acl_stream *q, const char *call);
/* acl_memory_queue -- in its order memory is given, freed, and copied by calls without a stream. */
sim_queue *acl_memory_queue(void);
/* acl_deadline -- so long from now, as pthread_cond_timedwait takes it. acl_patience: of
 * FSDP_SIM_PATIENCE_S. */
struct timespec acl_deadline(int64_t ms);
struct timespec acl_patience(void);
/* acl_status -- of a call of the CPU. */
aclError acl_status(fsdp_status status, const char *call);
