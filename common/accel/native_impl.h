/* native_impl.h -- what the parts of a library's transport share; private to them.
 *
 * native.c         groups: opening, splitting, closing
 * native_call.c    calls: issuing them, what has become of them, failure
 * native_thread.c  the thread that makes the library's calls */
#pragma once
#include <sys/queue.h>
#include "common/accel/native.h"

typedef struct native_group native_group;
typedef struct native_thread native_thread;

/* What the library is asked for, and what that needs. */
typedef enum native_kind { ASK_START, ASK_SPLIT, ASK_ISSUE, ASK_DESTROY, ASK_ABORT } native_kind;
typedef struct native_request {
    native_kind kind;
    void *handle;  /* the communicator; of a start: what it has made */
    native_call c; /* team, what: of each request */
    native_issue_fn issue;
    void *queue;
    const void *id;  /* start: native_thread_id */
    int color, rank; /* split */
    void *child;     /* split: what it has made */
} native_request;

/* A call that was issued and is not known to be over. */
typedef struct native_flight {
    STAILQ_ENTRY(native_flight) link;
    native_group *group;
    comm_call call;
    void *begin, *end; /* events on its stream, before and behind it */
    double begun_s;    /* 0: its stream has not come to it */
    clock_wait waited; /* since that was seen */
} native_flight;

/* A group that was opened, and all that were split from it. They fail together. */
typedef struct native_job {
    const native_api *api;
    const accel_api *lib;
    const comm_team *team;    /* of the group that was opened; its dev is the job's */
    transport_group *control; /* whose hosts' calls carry word of failures */
    native_thread *thread;
    LIST_HEAD(, native_group) groups;
    STAILQ_HEAD(, native_flight) flights, spare; /* flights: in order of issue */
    double looked_s;                             /* the last look at peers */

    bool checks;              /* FSDP_CHECK: hosts compare each call before it is issued */
    bool chains;              /* each call waits for the one before, on whatever queue */
    const void *latest_queue; /* that has the latest call, and the event behind that */
    void *behind_latest;

    atomic_bool failed; /* once set, `why` is never written again */
    fsdp_error_info why;
} native_job;

struct native_group {
    LIST_ENTRY(native_group) link;
    native_job *job;
    transport_group *group;
    void *comm; /* NULL: aborted, or not there yet */
};

/* native_event -- an event of the device; native_event_free takes NULL. */
fsdp_status native_event(const native_job *j, accel_event_kind kind, void **out);
void native_event_free(const native_job *j, void *e);
/* native_thread_start -- the thread of a job. native_thread_end: a call that it is still in may use
 * its communicator for ever. NULL is accepted. */
fsdp_status native_thread_start(const native_api *api, native_thread **out);
void native_thread_end(native_thread *t);
/* native_thread_id -- room for an id [id_bytes], which the library may read as long as it likes. */
void *native_thread_id(native_thread *t);
/* native_ask -- have the thread run *r, and wait for that. desc: of the call, for messages; NULL:
 * r->c.what names it. After an error the thread may still be in the call.
 *   errors  the library's; FSDP_ETIMEOUT; FSDP_ECOMM it is in another call; the control group's */
fsdp_status native_ask(native_job *j, native_request *r, const comm_desc *desc);
/* native_group_abort -- abort the group's communicator; whether the thread has come back from that.
 * native_abort -- end the groups of the whole job, unless the thread is still in a call. */
bool native_group_abort(native_group *g);
void native_abort(native_job *j);
/* native_late -- FSDP_ETIMEOUT of a call. */
fsdp_status native_late(const native_job *j, const comm_team *team, const comm_desc *desc);
/* native_poll -- the poll of the device (accel_device_set_poll): whether the job goes on.
 *   self    the native_job
 *   errors  what ended it */
fsdp_status native_poll(void *self);
/* native_fail -- this thread's record ends the job: every rank hears of it, all communicators are
 * aborted. Returns the job's error, which may be another rank's. */
fsdp_status native_fail(native_job *j);
