/* native_impl.h -- what the halves of a library's transport share; private to them.
 *
 * native.c       groups: opening, splitting, closing
 * native_call.c  calls: issuing them, what has become of them, failure */
#pragma once
#include "common/accel/native.h"

typedef struct native_group native_group;

/* A call that was issued and is not known to be over. */
typedef struct native_flight {
    struct native_flight *next;
    native_group *group;
    comm_call call;
    void *begin, *end; /* events on its stream, before and behind it */
    double begun_s;    /* 0: its stream has not come to it */
    clock_wait waited; /* since that was seen */
} native_flight;

/* A group that was opened, and all that were split from it. They fail together. */
typedef struct native_job {
    const native_api *api;
    device *dev;
    const comm_team *team;    /* of the group that was opened */
    transport_group *control; /* whose hosts' calls carry word of failures */
    native_group *groups;
    void *none; /* where the library says that a split has nothing for this rank */
    native_flight *first, **last; /* in order of issue */
    native_flight *spare;
    double looked_s; /* the last look at peers */

    bool checks;              /* FSDP_CHECK: hosts compare each call before it is issued */
    bool chains;              /* each call waits for the one before, on whatever queue */
    const void *latest_queue; /* that has the latest call, and the event behind that */
    void *behind_latest;

    atomic_bool failed; /* once set, `why` is never written again */
    fsdp_error_info why;
} native_job;

struct native_group {
    native_group *next;
    native_job *job;
    transport_group *group;
    void *comm; /* NULL: aborted, or not there yet */
};

/* native_event -- an event of the device; native_event_free takes NULL. */
fsdp_status native_event(const native_job *j, accel_event_kind kind, void **out);
void native_event_free(const native_job *j, void *e);
/* native_settle -- the host waits until the communicator is not busy: then work stands on its
 * stream. desc NULL: `what` names it.
 *   errors  FSDP_ECOMM; FSDP_ETIMEOUT; the control group's */
fsdp_status native_settle(native_job *j, void *handle, const comm_team *team, const comm_desc *desc,
                          const char *what);
/* native_poll -- the poll of the device (accel_device_set_poll): whether the job goes on.
 *   self    the native_job
 *   errors  what ended it */
fsdp_status native_poll(void *self);
/* native_fail -- this thread's record ends the job: every rank hears of it, all communicators are
 * aborted. Returns the job's error, which may be another rank's. */
fsdp_status native_fail(native_job *j);
