/* nccl_impl.h -- what the halves of the nccl transport share; private to common/cuda.
 *
 * nccl.c       groups: opening, splitting, closing
 * nccl_call.c  calls: issuing them, what has become of them, failure */
#pragma once
#include <nccl.h>
#include "common/comm/transport_help.h"
#include "common/cuda/cuda_impl.h"

typedef struct nccl_group nccl_group;

/* A call that was issued and is not known to be over. */
typedef struct nccl_flight {
    struct nccl_flight *next;
    nccl_group *group;
    comm_call call;
    cudaEvent_t begin, end; /* on its stream, before and behind it */
    double begun_s;         /* 0: its stream has not come to it */
} nccl_flight;

/* A group that was opened, and all that were split from it. They fail together. */
typedef struct nccl_job {
    device *dev;
    const comm_team *team;    /* of the group that was opened */
    transport_group *control; /* whose hosts' calls carry word of failures */
    nccl_group *groups;
    ncclComm_t none;            /* where NCCL says that a split has nothing for this rank */
    nccl_flight *first, **last; /* in order of issue */
    nccl_flight *spare;
    double looked_s; /* the last look at peers */

    bool checks; /* FSDP_CHECK: hosts compare each call before it is issued */
    /* NCCL does not order calls of several communicators: each waits for the one before. */
    bool chains;
    const nccl_group *latest; /* that issued last, and the event behind that */
    cudaEvent_t behind_latest;

    atomic_bool failed; /* once set, `why` is never written again */
    fsdp_error_info why;
} nccl_job;

struct nccl_group {
    nccl_group *next;
    nccl_job *job;
    transport_group *group;
    ncclComm_t comm; /* NULL: aborted, or not there yet */
};

extern const comm_transport nccl_transport;

/* nccl_status -- FSDP_OK, also where NCCL is still at it; else FSDP_ECOMM in NCCL's words. */
fsdp_status nccl_status(ncclComm_t handle, ncclResult_t result, const char *what);
/* nccl_settle -- the host waits until NCCL is done with what it was asked for by a call that has
 * returned `result`: then work stands on its stream. desc NULL: `what` names it.
 *   errors  FSDP_ECOMM; FSDP_ETIMEOUT; the control group's */
fsdp_status nccl_settle(nccl_job *j, ncclComm_t handle, ncclResult_t result, const comm_team *team,
                        const comm_desc *desc, const char *what);
/* nccl_poll -- the poll of the device (accel_device_set_poll): whether the job goes on.
 *   self    the nccl_job
 *   errors  what ended it */
fsdp_status nccl_poll(void *self);
/* nccl_why -- FSDP_OK, or the job's error. Unlike all else here it may be called in any thread,
 * such as that of a task on the host. */
fsdp_status nccl_why(nccl_job *j);
/* nccl_fail -- this thread's record ends the job: every rank hears of it, all communicators are
 * aborted. Returns the job's error, which may be another rank's. */
fsdp_status nccl_fail(nccl_job *j);

/* nccl_exchange ... nccl_failed -- the table's functions of these names: transport.h. */
fsdp_status nccl_exchange(transport_group *group, stream *s, const comm_call *call,
                          const comm_part *parts);
fsdp_status nccl_all_gather(transport_group *group, stream *s, const comm_call *call, void *recv,
                            size_t slice_bytes);
fsdp_status nccl_broadcast(transport_group *group, stream *s, const comm_call *call, void *buf,
                           size_t bytes);
fsdp_status nccl_reduce_scatter(transport_group *group, stream *s, const comm_call *call,
                                const comm_scatter *x);
fsdp_status nccl_failed(transport_group *group);
