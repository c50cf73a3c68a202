/* npu_impl.h -- what the parts of the NPU backend share; private to lab6_npu. C and C++.
 *
 *   npu.c        ACL's calls as common/accel wants them    tasks 6.1 to 6.3
 *   npu_task.c   work of the host in order of a stream     task 6.3
 *   hccl*        collectives of HCCL                       task 6.4
 *   aclnn_call*  one operation of aclnn                    task 6.5
 *   npu_ops*.c   the operations made of these
 *   plugin.c     what the program gets to see */
#pragma once
#include "common/accel/accel.h"

EXTERN_C_BEGIN

/* npu_acl_type, npu_hccl_type -- the number that ACL and aclnn (aclDataType), or HCCL
 * (HcclDataType), have for an element type; -1: none. npu_copy_kind -- ACL's (aclrtMemcpyKind) for
 * a direction; -1: none. */
int npu_acl_type(dtype t);
int npu_hccl_type(dtype t);
int npu_copy_kind(accel_copy_kind kind);

/* npu_status -- FSDP_OK for 0, else what an error of ACL means here, with the code and ACL's words
 * for it: FSDP_ENOMEM if memory is short (ACL_ERROR_RT_MEMORY_ALLOCATION of the NPU,
 * ACL_ERROR_BAD_ALLOC of the host), FSDP_EDEVICE for all others. what: the call, or the operation.
 * Any thread. */
fsdp_status npu_status(int code, const char *what);

/* What a call that is not written yet returns in place of ACL's code; npu_status names the task. */
enum { NPU_TODO_6_2 = -62, NPU_TODO_6_3 = -63 };

/* What a device has of ACL's own: accel_own. */
typedef struct npu_own {
    bool entered;  /* aclrtSetDevice succeeded: npu_close resets the device, once */
    void *context; /* of the device, for a thread that was just started: aclrtSetCurrentContext */
} npu_own;

/* npu_own_of -- of d. */
static inline npu_own *npu_own_of(const device *d)
{
    return (npu_own *)accel_own(d);
}

/* npu_task_put, npu_tasks_end -- the functions of accel_api that have these names. */
fsdp_status npu_task_put(accel_stream *s, accel_task *t);
void npu_tasks_end(accel_stream *s);

/* device_npu -- the backend. */
extern const device_backend device_npu;
/* npu_n_devices -- NPUs of this host, 0 where there is no driver. */
int npu_n_devices(void);
/* ops_npu_fast -- the op table: there is one. */
const ops *ops_npu_fast(void);
/* hccl_api, hccl_transport -- HCCL's calls as native.h wants them, and what that makes of them. */
extern const struct native_api hccl_api;
extern const struct comm_transport hccl_transport;

EXTERN_C_END
