/* native_impl.h -- types and functions that the files of the native transport share; private.
 *
 * native.c         groups: open, split, close
 * native_call.c    calls: issue, follow until they end, fail
 * native_thread.c  the thread that makes the library's calls */
#pragma once
#include <sys/queue.h>
#include "common/accel/native.h"

typedef struct native_group native_group;
typedef struct native_thread native_thread;

/* A call of the library that the thread is asked to make, with its arguments. */
typedef enum native_kind { ASK_START, ASK_SPLIT, ASK_ISSUE, ASK_DESTROY, ASK_ABORT } native_kind;
typedef struct native_request {
    native_kind kind;
    void *handle;          /* the communicator; start: the result */
    native_call c;         /* every request has team and what */
    native_issue_fn issue; /* issue: which collective, on queue */
    void *queue;
    const void *id;  /* start: native_thread_id */
    int color, rank; /* split */
    void *child;     /* split: the result */
} native_request;

/* A call that was issued and has not been seen to end. */
typedef struct native_flight {
    STAILQ_ENTRY(native_flight) link;
    native_group *group;
    comm_call call;
    void *begin, *end; /* events on its stream, before and after the call */
    double begun_s;    /* when its stream reached it; 0: not yet */
    clock_wait waited; /* since the host set begun_s */
} native_flight;

/* A group that was opened, and all groups split from it. They fail together. */
typedef struct native_job {
    const native_api *api;
    const accel_api *lib;
    const comm_team *team;    /* of the group that was opened, with the job's device */
    transport_group *control; /* its host calls spread failures to all ranks */
    native_thread *thread;
    LIST_HEAD(, native_group) groups;
    STAILQ_HEAD(, native_flight) flights, spare; /* flights: in order of issue */
    double looked_s;                             /* when peers were last looked at */

    bool checks;              /* FSDP_CHECK: hosts compare each call before it is issued */
    bool chains;              /* each call waits for the previous one, even on another queue */
    const void *latest_queue; /* the queue of the latest call */
    void *behind_latest;      /* event after that call */

    atomic_bool failed; /* once set, `why` is never written again */
    fsdp_error_info why;
} native_job;

struct native_group {
    LIST_ENTRY(native_group) link;
    native_job *job;
    transport_group *group;
    void *comm; /* NULL: not made yet, destroyed or aborted */
};

/* native_event -- create an event of the device. native_event_free accepts NULL. */
fsdp_status native_event(const native_job *j, accel_event_kind kind, void **out);
void native_event_free(const native_job *j, void *e);
/* native_thread_start -- start the thread of a job. native_thread_end -- end it; NULL is accepted.
 * A thread that is still in a call is left alone, and may use its communicator forever. */
fsdp_status native_thread_start(const native_api *api, native_thread **out);
void native_thread_end(native_thread *t);
/* native_thread_id -- memory for an id [id_bytes]; valid as long as the thread exists, so that an
 * abandoned call may still read it. */
void *native_thread_id(native_thread *t);
/* native_ask -- have the thread run *r, and wait until it has. desc: of the call, for messages;
 * NULL: r->c.what names the call. After an error the thread may still be in the call.
 *   errors  the library's; FSDP_ETIMEOUT; FSDP_ECOMM the thread is in another call; the control
 *           group's */
fsdp_status native_ask(native_job *j, native_request *r, const comm_desc *desc);
/* native_group_abort -- abort the group's communicator. Returns false if the thread is in another
 * call or does not return from this one.
 * native_abort -- abort all groups of the job, unless the thread is still in a call. */
bool native_group_abort(native_group *g);
void native_abort(native_job *j);
/* native_late -- the error FSDP_ETIMEOUT for a call. */
fsdp_status native_late(const native_job *j, const comm_team *team, const comm_desc *desc);
/* native_poll -- the poll of the device (accel_device_set_poll): look at calls, peers, library.
 *   self    the native_job
 *   errors  the error that ended the job */
fsdp_status native_poll(void *self);
/* native_fail -- end the job with this thread's error: all ranks are told, and all communicators
 * are aborted. Returns the job's error, which may be another rank's. */
fsdp_status native_fail(native_job *j);
