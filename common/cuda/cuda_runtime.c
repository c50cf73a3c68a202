/* cuda_runtime.c -- fills the accel_api with CUDA's calls, and opens GPUs.
 *
 * A queue is a cudaStream_t, an event a cudaEvent_t. Memory comes from CUDA's stream-ordered pool,
 * which keeps freed memory. AllowInternalDependencies is off: with it the pool may hand out a block
 * whose free another stream has not reached yet, and make the allocating stream wait for that free.
 * This would serialise work that prefetch overlaps.
 *
 * [CUDA cudaStreamCreateWithPriority, cudaEventRecord, cudaEventQuery, cudaEventElapsedTime,
 * cudaMallocAsync, API synchronization behavior] */
#include <stdlib.h>
#include <string.h>
#include "common/cuda/cuda_impl.h"
#include "common/cuda/kernels.h"

int cuda_n_devices(void)
{
    int n = 0;
    if (cudaGetDeviceCount(&n) == cudaSuccess)
        return n;
    (void)cudaGetLastError();
    return 0;
}

/* GPU_CALL(name, parameters, call) defines gpu_name, which makes this call of CUDA. */
#define GPU_CALL(name, parameters, call)                                                           \
    static int gpu_##name parameters                                                               \
    {                                                                                              \
        return cuda_code_of(call);                                                                 \
    }

/* ---- streams and events ---------------------------------------------------------------------- */

static int gpu_queue_create(accel_device *d, int priority, void **out)
{
    int least, greatest;
    (void)d;
    cudaError_t error = cudaDeviceGetStreamPriorityRange(&least, &greatest);
    if (error != cudaSuccess)
        return cuda_code_of(error);
    priority = -priority; /* in CUDA a smaller number is more urgent */
    priority = priority > least ? least : priority < greatest ? greatest : priority;
    cudaStream_t made = NULL;
    error = cudaStreamCreateWithPriority(&made, cudaStreamNonBlocking, priority);
    *out = made;
    return cuda_code_of(error);
}

GPU_CALL(queue_destroy, (void *queue), cudaStreamDestroy(queue))
GPU_CALL(queue_wait, (void *queue, void *e), cudaStreamWaitEvent(queue, e, 0))
GPU_CALL(queue_look, (void *queue), cudaStreamQuery(queue))

static int gpu_event_create(accel_device *d, accel_event_kind kind, void **out)
{
    cudaEvent_t made = NULL;
    (void)d;
    cudaError_t error = cudaEventCreateWithFlags(
        &made, kind == ACCEL_TIMES ? cudaEventDefault : cudaEventDisableTiming);
    *out = made;
    return cuda_code_of(error);
}

GPU_CALL(event_destroy, (void *e), cudaEventDestroy(e))
GPU_CALL(event_record, (void *e, void *queue), cudaEventRecord(e, queue))
GPU_CALL(event_look, (void *e), cudaEventQuery(e))
GPU_CALL(elapsed_ms, (float *ms, void *begin, void *end), cudaEventElapsedTime(ms, begin, end))

/* ---- memory ---------------------------------------------------------------------------------- */

static int gpu_copy(void *dst, const void *src, size_t bytes, accel_copy_kind kind, void *queue)
{
    (void)kind; /* CUDA derives it from the addresses */
    return cuda_code_of(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, queue));
}

GPU_CALL(fill, (void *dst, int byte, size_t bytes, void *queue),
         cudaMemsetAsync(dst, byte, bytes, queue))

static int gpu_block_get(accel_stream *s, size_t bytes, void **out)
{
    const int code = cuda_code_of(cudaMallocAsync(out, bytes, s->queue));
    if (code != 0)
        *out = NULL;
    return code == cudaErrorMemoryAllocation ? 0 : code;
}

static int gpu_block_put(accel_stream *s, void *ptr)
{
    return cuda_code_of(cudaFreeAsync(ptr, s->queue));
}

static int gpu_blocks_trim(accel_device *d)
{
    return cuda_code_of(cudaMemPoolTrimTo(cuda_own_of(&d->base)->pool, 0));
}

static size_t gpu_mem_reserved(accel_device *d)
{
    uint64_t reserved = 0;
    return cudaMemPoolGetAttribute(cuda_own_of(&d->base)->pool, cudaMemPoolAttrReservedMemCurrent,
                                   &reserved) == cudaSuccess
               ? reserved
               : 0;
}

/* Free memory of the driver, plus unused memory of the pool. */
static size_t gpu_mem_available(accel_device *d)
{
    const cudaMemPool_t pool = cuda_own_of(&d->base)->pool;
    size_t available = 0, total = 0;
    uint64_t used = 0;
    if (cudaMemGetInfo(&available, &total) != cudaSuccess ||
        cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &used) != cudaSuccess)
        return 0;
    const size_t reserved = gpu_mem_reserved(d);
    return available + (reserved > used ? reserved - (size_t)used : 0);
}

GPU_CALL(pin_alloc, (void **out, size_t bytes), cudaHostAlloc(out, bytes, cudaHostAllocPortable))
GPU_CALL(pin_free, (void *ptr), cudaFreeHost(ptr))
GPU_CALL(pin_register, (void *ptr, size_t bytes),
         cudaHostRegister(ptr, bytes, cudaHostRegisterDefault))
GPU_CALL(pin_unregister, (void *ptr), cudaHostUnregister(ptr))

/* ---- device ---------------------------------------------------------------------------------- */

/* error: the result of cudaGetDeviceCount; cudaSuccess if it counted 0 devices. */
static fsdp_status no_gpu(cudaError_t error)
{
    int driver = 0, runtime = 0;
    (void)cudaGetLastError();
    (void)cudaDriverGetVersion(&driver);
    (void)cudaRuntimeGetVersion(&runtime);
    if (error == cudaErrorInsufficientDriver && driver > 0)
        return fsdp_error(
            FSDP_EDEVICE,
            "update NVIDIA's driver, or build the plug-in with an older toolkit: make "
            "cuda CUDA_HOME=...",
            "--device cuda: the driver is for CUDA %d.%d, and the plug-in was built "
            "with CUDA %d.%d",
            driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
    return fsdp_error(FSDP_ESKIP, "install NVIDIA's driver, or run it with --device cpu",
                      "--device cuda: this machine has no GPU that CUDA can use (%s)",
                      cudaGetErrorString(error != cudaSuccess ? error : cudaErrorNoDevice));
}

static fsdp_status pool_open(int index, cudaMemPool_t *out)
{
    int off = 0;
    uint64_t keep = UINT64_MAX;
    TRY(cuda_status(cudaDeviceGetDefaultMemPool(out, index), "memory pool"));
    TRY(cuda_status(cudaMemPoolSetAttribute(*out, cudaMemPoolReuseAllowInternalDependencies, &off),
                    "memory pool"));
    return cuda_status(cudaMemPoolSetAttribute(*out, cudaMemPoolAttrReleaseThreshold, &keep),
                       "memory pool");
}

/* The addresses of all kernels that LAUNCH names: a section, whose ends the linker defines. */
extern const void *const __start_fsdp_kernels[] __attribute__((visibility("hidden")));
extern const void *const __stop_fsdp_kernels[] __attribute__((visibility("hidden")));

/* Load the kernels now, by asking for their attributes. Otherwise CUDA would load a kernel at its
 * first launch, and could then wait for the GPU while a stream of the GPU waits for the host: a
 * deadlock. This call also fails on a GPU for which the plug-in has no code.
 * [CUDA Programming Guide, "Lazy Loading"] */
static fsdp_status kernels_load(void)
{
    struct cudaFuncAttributes unused;
    for (const void *const *k = __start_fsdp_kernels; k < __stop_fsdp_kernels; k++)
        TRY(cuda_status(cudaFuncGetAttributes(&unused, *k), "device_open: the plug-in's kernels"));
    return FSDP_OK;
}

/* Pinning memory waits for the device, so it is done once, when the device opens. */
static fsdp_status shared_open(cuda_own *own)
{
    void *host, *on_gpu;
    TRY(cuda_status(
        cudaHostAlloc(&host, sizeof *own->shared, cudaHostAllocPortable | cudaHostAllocMapped),
        "cudaHostAlloc"));
    own->shared = memset(host, 0, sizeof *own->shared);
    TRY(cuda_status(cudaHostGetDevicePointer(&on_gpu, host, 0), "cudaHostGetDevicePointer"));
    own->shared_on_gpu = on_gpu;
    return FSDP_OK;
}

static fsdp_status cuda_open(accel_device *d, void **out)
{
    const int index = d->base.config.index;
    int n = 0;
    cudaError_t error = cudaGetDeviceCount(&n);
    if (error != cudaSuccess || n == 0)
        return no_gpu(error);
    if (index >= n || index < 0)
        return fsdp_error(FSDP_EINVAL,
                          "nvidia-smi -L lists the GPUs; CUDA_VISIBLE_DEVICES may hide some",
                          "device_open: GPU %d, expected one from 0 to %d", index, n - 1);
    cuda_own *own = calloc(1, sizeof *own);
    if ((*out = own) == NULL)
        return fsdp_error(FSDP_ENOMEM, "", "device_open: no memory");
    TRY(cuda_status(cudaSetDevice(index), "cudaSetDevice"));
    TRY(pool_open(index, &own->pool));
    TRY(kernels_load());
    TRY(shared_open(own));
    return matmul_open(index, &own->matmul);
}

/* Free the counts of the streams, which are gone, on a stream of their own. */
static void counts_close(accel_device *d, cuda_own *own)
{
    void *queue = NULL;
    for (int i = 0; i < ACCEL_STREAMS && !atomic_load(&d->failed); i++)
        if (own->counts[i] != NULL && (queue != NULL || gpu_queue_create(d, 0, &queue) == 0))
            (void)cuda_code_of(cudaFreeAsync(own->counts[i], queue));
    if (queue != NULL)
        (void)gpu_queue_destroy(queue);
}

static void cuda_close(accel_device *d)
{
    cuda_own *own = cuda_own_of(&d->base);
    if (own == NULL)
        return;
    matmul_close(own->matmul);
    counts_close(d, own);
    if (own->shared != NULL && !atomic_load(&d->failed)) /* cudaFreeHost waits for the GPU */
        (void)cudaFreeHost(own->shared);
    free(own);
}

static const accel_api CUDA = {.device = "cuda",
                               .word = "GPU",
                               .hint = "compute-sanitizer names the kernel and its access; "
                                       "--check-order finds a missing wait between streams",
                               .explain = cuda_status,
                               .open = cuda_open,
                               .close = cuda_close,
                               .complaints = cuda_complaints,
                               .queue_create = gpu_queue_create,
                               .queue_destroy = gpu_queue_destroy,
                               .queue_wait = gpu_queue_wait,
                               .queue_look = gpu_queue_look,
                               .event_create = gpu_event_create,
                               .event_destroy = gpu_event_destroy,
                               .event_record = gpu_event_record,
                               .event_look = gpu_event_look,
                               .elapsed_ms = gpu_elapsed_ms,
                               .copy = gpu_copy,
                               .fill = gpu_fill,
                               .block_get = gpu_block_get,
                               .block_put = gpu_block_put,
                               .blocks_trim = gpu_blocks_trim,
                               .mem_available = gpu_mem_available,
                               .mem_reserved = gpu_mem_reserved,
                               .pin_alloc = gpu_pin_alloc,
                               .pin_free = gpu_pin_free,
                               .pin_register = gpu_pin_register,
                               .pin_unregister = gpu_pin_unregister,
                               .task_put = cuda_task_put,
                               .tasks_end = cuda_tasks_end};

static fsdp_status device_cuda_open(const device_config *config, device **out)
{
    return accel_open(&CUDA, config, out);
}

const device_backend device_cuda = {.name = "cuda", .open = device_cuda_open, ACCEL_BACKEND};
