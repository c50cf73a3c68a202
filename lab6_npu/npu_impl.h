/* npu_impl.h -- types and functions that the files of the NPU backend share; private to lab6_npu.
 * For C and C++.
 *
 *   npu.c        fills accel_api with ACL's calls          tasks 6.1 to 6.3
 *   npu_task.c   host work in stream order                 task 6.3
 *   hccl*        fills native_api with HCCL's calls        task 6.4
 *   aclnn_call*  one operator of aclnn                     task 6.5
 *   npu_ops*.c   operations composed of such operators
 *   plugin.c     the plug-in's exported symbol */
#pragma once
#include "common/accel/accel.h"

EXTERN_C_BEGIN

/* npu_acl_type, npu_hccl_type -- the number of an element type for ACL and aclnn (aclDataType), or
 * for HCCL (HcclDataType); -1: none. npu_copy_kind -- ACL's number of a direction
 * (aclrtMemcpyKind); -1: none. */
int npu_acl_type(dtype t);
int npu_hccl_type(dtype t);
int npu_copy_kind(accel_copy_kind kind);

/* npu_status -- FSDP_OK for 0, else an error with the code and ACL's message: FSDP_ENOMEM if memory
 * is short (ACL_ERROR_RT_MEMORY_ALLOCATION of the NPU, ACL_ERROR_BAD_ALLOC of the host),
 * FSDP_EDEVICE for all other codes. what: name of the call or operation. For any thread. */
fsdp_status npu_status(int code, const char *what);

/* Calls that are not written yet return these instead of ACL's code; npu_status names the task. */
enum { NPU_TODO_6_2 = -62, NPU_TODO_6_3 = -63 };

/* ACL's data of a device; accel_own returns it. */
typedef struct npu_own {
    bool entered;  /* aclrtSetDevice succeeded: npu_close resets the device, once */
    void *context; /* the device's; a new thread passes it to aclrtSetCurrentContext */
} npu_own;

/* npu_own_of -- ACL's data of d. */
static inline npu_own *npu_own_of(const device *d)
{
    return (npu_own *)accel_own(d);
}

/* npu_task_put, npu_tasks_end -- task_put and tasks_end of accel_api. */
fsdp_status npu_task_put(accel_stream *s, accel_task *t);
void npu_tasks_end(accel_stream *s);

/* device_npu -- the backend. */
extern const device_backend device_npu;
/* npu_n_devices -- the number of NPUs of this host, 0 without a driver. */
int npu_n_devices(void);
/* ops_npu_fast -- the only op table. */
const ops *ops_npu_fast(void);
/* hccl_api, hccl_transport -- the table of HCCL's calls, and the transport made from it. */
extern const struct native_api hccl_api;
extern const struct comm_transport hccl_transport;

EXTERN_C_END
