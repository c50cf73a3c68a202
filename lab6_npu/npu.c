/* npu.c -- fills the accel_api with ACL's calls: an NPU as a device of device.h.
 *
 *   npu_open:  aclInit -> aclrtSetDevice -> streams, events, copies, fills, host tasks -> npu_close
 *
 * Three rules of ACL differ from CUDA's and cause most mistakes:
 *
 *   per thread   device and context belong to the calling thread. A new thread has none, and its
 *                calls fail with 107002 until it has set a device or a context.
 *   no wait      only synchronising calls wait for a stream. aclrtMemcpy may copy data that a
 *                kernel has not written yet.
 *   later        a kernel's error is reported by a later call on its stream. The stream continues
 *                after the error unless it was told to stop.
 *
 * Streams, events and other handles of ACL are void pointers. Functions that return int return
 * ACL's code; 0 is success. common/accel/accel_api.h specifies each function.
 *
 * [CANN AscendCL API Reference] */
#include <stdlib.h>
#include "acl/acl.h"
#include "common/accel/accel_impl.h"
#include "lab6_npu/npu_impl.h"

/* ---- task 6.1: ACL's and HCCL's numbers for our enums ---------------------------------------- */

int npu_acl_type(dtype t)
{
    /* SOLUTION BEGIN 6.1 */
    /* STUB: return -1; */
    switch (t) {
    case DTYPE_F32:
        return ACL_FLOAT;
    case DTYPE_BF16:
        return ACL_BF16;
    case DTYPE_I64:
        return ACL_INT64;
    case DTYPE_U8:
        return ACL_UINT8;
    }
    return -1;
    /* SOLUTION END 6.1 */
}

/* HCCL's header is C++, so the numbers of HcclDataType are repeated here. */
int npu_hccl_type(dtype t)
{
    enum { HCCL_FP32 = 4, HCCL_INT64 = 5, HCCL_UINT8 = 7, HCCL_BFP16 = 11 };
    /* SOLUTION BEGIN 6.1 */
    /* STUB: return -1; */
    switch (t) {
    case DTYPE_F32:
        return HCCL_FP32;
    case DTYPE_BF16:
        return HCCL_BFP16;
    case DTYPE_I64:
        return HCCL_INT64;
    case DTYPE_U8:
        return HCCL_UINT8;
    }
    return -1;
    /* SOLUTION END 6.1 */
}

int npu_copy_kind(accel_copy_kind kind)
{
    /* SOLUTION BEGIN 6.1 */
    /* STUB: return -1; */
    switch (kind) {
    case ACCEL_WITHIN:
        return ACL_MEMCPY_DEVICE_TO_DEVICE;
    case ACCEL_UP:
        return ACL_MEMCPY_HOST_TO_DEVICE;
    case ACCEL_DOWN:
        return ACL_MEMCPY_DEVICE_TO_HOST;
    }
    return -1;
    /* SOLUTION END 6.1 */
}

/* The codes are const variables, which C does not accept as `case` labels. */
static const char *hint_for(int code)
{
    if (code == ACL_ERROR_RT_MEMORY_ALLOCATION || code == ACL_ERROR_BAD_ALLOC)
        return "use a smaller --batch-size, --seq-len or model";
    if (code == ACL_ERROR_RT_CONTEXT_NULL)
        return "this thread has no device: aclrtSetDevice or aclrtSetCurrentContext comes first";
    if (code == ACL_ERROR_RT_STREAM_CONTEXT)
        return "the stream is another context's: a thread uses one device";
    return "CANN's logs in ~/ascend/log say more";
}

fsdp_status npu_status(int code, const char *what)
{
    if (code == NPU_TODO_6_2 || code == NPU_TODO_6_3)
        return fsdp_todo(code == NPU_TODO_6_2 ? "6.2" : "6.3");
    const char *hint = hint_for(code);
    /* SOLUTION BEGIN 6.1 */
    if (code == ACL_SUCCESS)
        return FSDP_OK;
    const bool no_memory = code == ACL_ERROR_RT_MEMORY_ALLOCATION || code == ACL_ERROR_BAD_ALLOC;
    const char *said = aclGetRecentErrMsg(); /* this thread's message; reading it clears it */
    return fsdp_error(no_memory ? FSDP_ENOMEM : FSDP_EDEVICE, hint, "%s: ACL's error %d: %s", what,
                      code, said != NULL ? said : "no message");
    /* SOLUTION END 6.1 */
}

/* ---- task 6.2: the device -------------------------------------------------------------------- */

/* A process initialises ACL once. If other code has done so, that code finalises it. */
static bool is_initialised, is_ours;
static int n_open; /* devices that are open, or that failed */

static int runtime_start(void)
{
    /* SOLUTION BEGIN 6.2 */
    /* STUB: return is_initialised ? ACL_SUCCESS : NPU_TODO_6_2; */
    if (is_initialised)
        return ACL_SUCCESS;
    const int code = aclInit(NULL);
    is_ours = code == ACL_SUCCESS;
    is_initialised = is_ours || code == ACL_ERROR_REPEAT_INITIALIZE;
    return is_initialised ? ACL_SUCCESS : code;
    /* SOLUTION END 6.2 */
}

/* ACL cannot be initialised a second time, so it is finalised only when the process ends. */
static __attribute__((destructor)) void runtime_end(void)
{
    if (is_ours && n_open == 0)
        (void)aclFinalize();
}

static int device_count(uint32_t *out)
{
    *out = 0;
    const int code = runtime_start();
    return code == ACL_SUCCESS ? aclrtGetDeviceCount(out) : code;
}

int npu_n_devices(void)
{
    uint32_t n;
    return device_count(&n) == ACL_SUCCESS ? (int)n : 0;
}

/* Make the device current for this thread, and make operators deterministic: sums in one order, so
 * the same bits in every run. own->context is for other threads. own->entered is set as soon as
 * the device is current, even if a later call fails. */
static int device_enter(int index, npu_own *own)
{
    /* SOLUTION BEGIN 6.2 */
    /* STUB: return NPU_TODO_6_2; */
    int code = aclrtSetDevice(index);
    own->entered = code == ACL_SUCCESS;
    if (code == ACL_SUCCESS)
        code = aclrtCtxSetSysParamOpt(ACL_OPT_DETERMINISTIC, 1);
    return code == ACL_SUCCESS ? aclrtGetCurrentContext(&own->context) : code;
    /* SOLUTION END 6.2 */
}

static fsdp_status npu_open(accel_device *d, void **out)
{
    const int index = d->base.config.index;
    uint32_t n;
    n_open++;
    const fsdp_status status = npu_status(device_count(&n), "--device npu: no NPU can be used");
    if (status == FSDP_ETODO)
        return status;
    if (status != FSDP_OK || n == 0)
        return fsdp_error(FSDP_ESKIP,
                          "npu-smi info lists NPUs; `source set_env.sh` of CANN lets programs find "
                          "its libraries; or run it with --device cpu",
                          "%s",
                          status != FSDP_OK ? fsdp_error_get()->what
                                            : "--device npu: this machine has no NPU");
    if (index < 0 || (uint32_t)index >= n)
        return fsdp_error(FSDP_EINVAL,
                          "npu-smi info lists the NPUs; ASCEND_RT_VISIBLE_DEVICES may hide some",
                          "device_open: NPU %d, expected one from 0 to %u", index, n - 1);
    npu_own *own = calloc(1, sizeof *own);
    if ((*out = own) == NULL)
        return fsdp_error(FSDP_ENOMEM, "", "device_open: no memory");
    return npu_status(device_enter(index, own), "device_open");
}

/* The resources of a failed device are leaked. */
static void npu_close(accel_device *d)
{
    npu_own *own = d->own;
    if (atomic_load(&d->failed))
        return;
    if (own != NULL && own->entered)
        (void)aclrtResetDevice(d->base.config.index); /* the last reset releases the device */
    free(own);
    n_open--;
}

/* ---- task 6.2: streams and events ------------------------------------------------------------ */

/* In ACL, 0 is the highest priority: `greatest` is the smallest number. */
static uint32_t level_of(int priority)
{
    int32_t least = 0, greatest = 0;
    (void)aclrtDeviceGetStreamPriorityRange(&least, &greatest);
    const int32_t level = priority < 0 ? least : least - priority;
    return (uint32_t)(level < greatest ? greatest : level);
}

static int npu_queue_create(accel_device *d, int priority, void **out)
{
    (void)d;
    const uint32_t level = level_of(priority);
    const uint32_t flags = ACL_STREAM_FAST_LAUNCH | ACL_STREAM_FAST_SYNC;
    /* SOLUTION BEGIN 6.2 */
    /* STUB: return NPU_TODO_6_2; */
    const int code = aclrtCreateStreamWithConfig(out, level, flags);
    return code == ACL_SUCCESS ? aclrtSetStreamFailureMode(*out, ACL_STOP_ON_FAILURE) : code;
    /* SOLUTION END 6.2 */
}

static int npu_queue_wait(void *queue, void *e)
{
    /* SOLUTION BEGIN 6.2 */
    /* STUB: return NPU_TODO_6_2; */
    return aclrtStreamWaitEvent(queue, e);
    /* SOLUTION END 6.2 */
}

static int npu_queue_look(void *queue)
{
    /* SOLUTION BEGIN 6.2 */
    /* STUB: return NPU_TODO_6_2; */
    aclrtStreamStatus status = ACL_STREAM_STATUS_NOT_READY;
    const int code = aclrtStreamQuery(queue, &status);
    if (code != ACL_SUCCESS)
        return code;
    return status == ACL_STREAM_STATUS_COMPLETE ? ACL_SUCCESS : ACCEL_NOT_READY;
    /* SOLUTION END 6.2 */
}

/* ACL has three kinds of events. This one behaves like CUDA's: it can be recorded again, and a wait
 * before the first record does not block. */
static int npu_event_create(accel_device *d, accel_event_kind kind, void **out)
{
    (void)d;
    /* SOLUTION BEGIN 6.2 */
    /* STUB: return NPU_TODO_6_2; */
    return aclrtCreateEventExWithFlag(
        out, kind == ACCEL_TIMES ? ACL_EVENT_SYNC | ACL_EVENT_TIME_LINE : ACL_EVENT_SYNC);
    /* SOLUTION END 6.2 */
}

static int npu_event_record(void *e, void *queue)
{
    /* SOLUTION BEGIN 6.2 */
    /* STUB: return NPU_TODO_6_2; */
    return aclrtRecordEvent(e, queue);
    /* SOLUTION END 6.2 */
}

static int npu_event_look(void *e)
{
    /* SOLUTION BEGIN 6.2 */
    /* STUB: return NPU_TODO_6_2; */
    aclrtEventRecordedStatus status = ACL_EVENT_RECORDED_STATUS_NOT_READY;
    const int code = aclrtQueryEventStatus(e, &status);
    if (code != ACL_SUCCESS)
        return code;
    return status == ACL_EVENT_RECORDED_STATUS_COMPLETE ? ACL_SUCCESS : ACCEL_NOT_READY;
    /* SOLUTION END 6.2 */
}

/* ---- task 6.3: copies and fills -------------------------------------------------------------- */

/* Host memory must come from aclrtMallocHost: with other memory the call waits for the copy. */
static int npu_copy(void *dst, const void *src, size_t bytes, accel_copy_kind kind, void *queue)
{
    /* SOLUTION BEGIN 6.3 */
    /* STUB: return NPU_TODO_6_3; */
    return aclrtMemcpyAsync(dst, bytes, src, bytes, (aclrtMemcpyKind)npu_copy_kind(kind), queue);
    /* SOLUTION END 6.3 */
}

static int npu_fill(void *dst, int byte, size_t bytes, void *queue)
{
    /* SOLUTION BEGIN 6.3 */
    /* STUB: return NPU_TODO_6_3; */
    return aclrtMemsetAsync(dst, bytes, byte, bytes, queue);
    /* SOLUTION END 6.3 */
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* aclrtMalloc and aclrtFree are slow and wait for no stream: common/accel/kept.c caches free blocks
 * and orders their use. ACL adds the 32 bytes that operators may read after the end of a block.
 * [CANN aclrtMalloc] */
static void *npu_memory_get(size_t bytes)
{
    void *ptr = NULL;
    return aclrtMalloc(&ptr, bytes, ACL_MEM_MALLOC_HUGE_FIRST) == ACL_SUCCESS ? ptr : NULL;
}

static size_t npu_mem_available(accel_device *d)
{
    size_t available = 0, total = 0;
    (void)d;
    return aclrtGetMemInfo(ACL_HBM_MEM, &available, &total) == ACL_SUCCESS ? available : 0;
}

/* ---- the device ------------------------------------------------------------------------------ */

static const accel_api NPU = {.device = "npu",
                              .word = "NPU",
                              .hint =
                                  "CANN's logs in ~/ascend/log name the operator; --check-order "
                                  "finds a missing wait between streams",
                              .explain = npu_status,
                              .open = npu_open,
                              .close = npu_close,
                              .queue_create = npu_queue_create,
                              .queue_destroy = aclrtDestroyStream,
                              .queue_wait = npu_queue_wait,
                              .queue_look = npu_queue_look,
                              .event_create = npu_event_create,
                              .event_destroy = aclrtDestroyEvent,
                              .event_record = npu_event_record,
                              .event_look = npu_event_look,
                              .elapsed_ms = aclrtEventElapsedTime,
                              .copy_align_bytes = 64,
                              .copy = npu_copy,
                              .fill = npu_fill,
                              .memory_get = npu_memory_get,
                              .memory_put = aclrtFree,
                              .mem_available = npu_mem_available,
                              .pin_alloc = aclrtMallocHost,
                              .pin_free = aclrtFreeHost,
                              .task_put = npu_task_put,
                              .tasks_end = npu_tasks_end};

static fsdp_status device_npu_open(const device_config *config, device **out)
{
    return accel_open(&NPU, config, out);
}

const device_backend device_npu = {.name = "npu", .open = device_npu_open, ACCEL_BACKEND};
