/* nccl_one.c -- the cost of NCCL's calls on one GPU, in a communicator of one rank.
 *
 *   nccl_one     prints a Markdown table, with a column for blocking and one for non-blocking
 *                communicators; exit status 1 if a call fails or a value is wrong
 *
 * "host" is the time until the host may make the next call, "done" the time until the GPU has done
 * the call; both are means over many calls. */
#include <cuda_runtime_api.h>
#include <nccl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ELEMS = 1 << 17, WARM_UP = 10, CALLS = 200 };

/* The rows of the table. */
enum { INIT, GATHER_HOST, GATHER_DONE, SUM_HOST, SUM_DONE, ABORT, N_FIGURES };
static const char *const FIGURES[N_FIGURES] = {"communicator, ms",
                                               "all-gather, host, us",
                                               "all-gather, done, us",
                                               "all-reduce of int64, host, us",
                                               "all-reduce of int64, done, us",
                                               "abort, ms"};

typedef struct one {
    ncclComm_t comm;
    cudaStream_t stream;
    cudaEvent_t done;
    int64_t *from, *to; /* [ELEMS], on the GPU */
} one;

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static void need_cuda(cudaError_t error, const char *what)
{
    if (error == cudaSuccess)
        return;
    printf("FAILED: %s: %s\n", what, cudaGetErrorString(error));
    exit(1);
}

/* Waits for the GPU. */
static void await(one *o, const char *what)
{
    need_cuda(cudaEventRecord(o->done, o->stream), what);
    need_cuda(cudaEventSynchronize(o->done), what);
}

/* Waits until a non-blocking communicator has finished the call. */
static void need_nccl(ncclComm_t comm, ncclResult_t result, const char *what)
{
    while (result == ncclInProgress)
        if (ncclCommGetAsyncError(comm, &result) != ncclSuccess)
            break;
    if (result == ncclSuccess)
        return;
    printf("FAILED: %s: %s (%s)\n", what, ncclGetErrorString(result), ncclGetLastError(comm));
    exit(1);
}

static void gather(one *o)
{
    need_nccl(o->comm, ncclAllGather(o->from, o->to, ELEMS * 8, ncclUint8, o->comm, o->stream),
              "ncclAllGather");
}

static void sum(one *o)
{
    need_nccl(o->comm, ncclAllReduce(o->from, o->to, ELEMS, ncclInt64, ncclSum, o->comm, o->stream),
              "ncclAllReduce of int64");
}

static void timed(one *o, void (*call)(one *o), double *host_us, double *done_us)
{
    for (int i = 0; i < WARM_UP; i++)
        call(o);
    await(o, "warm-up");
    const double begin = now_ms();
    for (int i = 0; i < CALLS; i++)
        call(o);
    const double issued = now_ms();
    await(o, "calls");
    *host_us = (issued - begin) * 1e3 / CALLS;
    *done_us = (now_ms() - begin) * 1e3 / CALLS;
}

/* What o->to holds after `call`, given numbers that a double cannot hold. */
static void check(one *o, void (*call)(one *o), const char *what)
{
    static int64_t numbers[ELEMS], back[ELEMS];
    for (int i = 0; i < ELEMS; i++)
        numbers[i] = INT64_C(-9007199254740993) + 3 * i;
    need_cuda(cudaMemsetAsync(o->to, 0, sizeof back, o->stream), "fill");
    need_cuda(cudaMemcpyAsync(o->from, numbers, sizeof numbers, cudaMemcpyHostToDevice, o->stream),
              "upload");
    call(o);
    need_cuda(cudaMemcpyAsync(back, o->to, sizeof back, cudaMemcpyDeviceToHost, o->stream),
              "download");
    await(o, what);
    if (memcmp(numbers, back, sizeof back) == 0)
        return;
    printf("FAILED: %s gives other numbers\n", what);
    exit(1);
}

static void measure(one *o, int blocking, double f[N_FIGURES])
{
    ncclUniqueId id;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = blocking;
    const double begin = now_ms();
    need_nccl(NULL, ncclGetUniqueId(&id), "ncclGetUniqueId");
    ncclResult_t result = ncclCommInitRankConfig(&o->comm, 1, id, 0, &config);
    need_nccl(o->comm, result, "ncclCommInitRankConfig");
    f[INIT] = now_ms() - begin;
    check(o, gather, "ncclAllGather");
    check(o, sum, "ncclAllReduce of int64");
    timed(o, gather, &f[GATHER_HOST], &f[GATHER_DONE]);
    timed(o, sum, &f[SUM_HOST], &f[SUM_DONE]);
    const double aborted = now_ms();
    need_nccl(NULL, ncclCommAbort(o->comm), "ncclCommAbort");
    f[ABORT] = now_ms() - aborted;
}

int main(void)
{
    one o = {.comm = NULL};
    int version = 0;
    need_cuda(cudaSetDevice(0), "cudaSetDevice");
    need_cuda(cudaStreamCreateWithPriority(&o.stream, cudaStreamNonBlocking, 0), "stream");
    need_cuda(cudaEventCreateWithFlags(&o.done, cudaEventDisableTiming), "event");
    void *memory = NULL;
    need_cuda(cudaMallocAsync(&memory, 2 * ELEMS * 8, o.stream), "memory");
    o.from = memory;
    o.to = o.from + ELEMS;
    need_nccl(NULL, ncclGetVersion(&version), "ncclGetVersion");
    double blocking[N_FIGURES], non_blocking[N_FIGURES];
    measure(&o, 1, blocking);
    measure(&o, 0, non_blocking);
    printf("| NCCL %d.%d.%d, one rank, %d KiB | blocking | non-blocking |\n|---|---:|---:|\n",
           version / 10000, version / 100 % 100, version % 100, ELEMS * 8 / 1024);
    for (int i = 0; i < N_FIGURES; i++)
        printf("| %s | %.1f | %.1f |\n", FIGURES[i], blocking[i], non_blocking[i]);
    need_cuda(cudaFreeAsync(memory, o.stream), "memory");
    await(&o, "end");
    need_cuda(cudaEventDestroy(o.done), "end");
    need_cuda(cudaStreamDestroy(o.stream), "end");
    return 0;
}
