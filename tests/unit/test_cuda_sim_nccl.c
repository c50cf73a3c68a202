/* test_cuda_sim_nccl.c -- what the stand-in for NCCL says of programs that NCCL would hang on, and
 * where a call of NCCL waits. On devices other than cuda-sim it is skipped. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "tests/sim/cuda/include/nccl.h"
#include "tests/unit/sim_coll_lib.h"

#define TWO .least = 2, .most = 2

/* ---- the library ----------------------------------------------------------------------------- */

static void begin(int gpu)
{
    cudaStream_t q[2];
    void *memory[2];
    sim_must(SIM(cudaSetDevice)(gpu) == cudaSuccess, "device");
    for (int i = 0; i < 2; i++) {
        sim_must(SIM(cudaStreamCreateWithPriority)(&q[i], cudaStreamNonBlocking, 0) == cudaSuccess,
                 "stream");
        sim_must(SIM(cudaMallocAsync)(&memory[i], SIM_BYTES, q[i]) == cudaSuccess, "memory");
    }
    sim_me.q = q[0], sim_me.q2 = q[1];
    sim_me.a = memory[0], sim_me.b = memory[1];
    sim_finish();
}

static int make_id(void *id)
{
    ncclUniqueId made;
    const ncclResult_t result = SIM(ncclGetUniqueId)(&made);
    memcpy(id, &made, sizeof made);
    return (int)result;
}

static ncclResult_t look(ncclComm_t comm)
{
    ncclResult_t state = ncclInProgress;
    while (state == ncclInProgress)
        sim_must(SIM(ncclCommGetAsyncError)(comm, &state) == ncclSuccess, "look");
    return state;
}

/* The program asks for the opposite of NCCL_COMM_BLOCKING, which must override it. */
static int join(const void *id, int n, int rank, void **out)
{
    const char *blocking = getenv("NCCL_COMM_BLOCKING");
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclUniqueId from;
    ncclComm_t comm;
    memcpy(&from, id, sizeof from);
    config.blocking = blocking == NULL || strcmp(blocking, "0") == 0;
    ncclResult_t result = SIM(ncclCommInitRankConfig)(&comm, n, from, rank, &config);
    *out = comm;
    return result == ncclInProgress ? (int)look(comm) : (int)result;
}

static int end(void *comm)
{
    const ncclResult_t result = SIM(ncclCommFinalize)(comm);
    return result == ncclInProgress ? (int)look(comm) : (int)result;
}

static void await(void *q)
{
    cudaError_t error;
    while ((error = SIM(cudaStreamQuery)(q)) == cudaErrorNotReady)
        usleep(1000);
    sim_must(error == cudaSuccess, "stream");
}

static int gather(void *comm, size_t elems, int type, void *q)
{
    return (int)SIM(ncclAllGather)(sim_me.a, sim_me.b, elems, (ncclDataType_t)type, comm, q);
}

static int reduce_scatter(size_t elems)
{
    return (int)SIM(ncclReduceScatter)(sim_me.a, sim_me.b, elems, ncclFloat32, ncclSum, sim_me.comm,
                                       sim_me.q);
}

static int exchange(int to, size_t n_send, int from, size_t n_receive)
{
    SIM(ncclGroupStart)();
    if (n_send > 0)
        SIM(ncclSend)(sim_me.a, n_send, ncclUint8, to, sim_me.comm, sim_me.q);
    if (n_receive > 0)
        SIM(ncclRecv)(sim_me.b, n_receive, ncclUint8, from, sim_me.comm, sim_me.q);
    return (int)SIM(ncclGroupEnd)();
}

/* ---- aborts ---------------------------------------------------------------------------------- */

static void *abort_main(void *arg)
{
    sim_must(SIM(ncclCommAbort)(sim_me.comm) == ncclSuccess, "abort");
    return arg;
}

/* The peer is gone: an abort, from any thread, takes the call off the stream. */
SIM_WELL(case_abort, TWO)
{
    pthread_t thread;
    sim_gather(sim_me.comm, 1, ncclFloat32, sim_me.q); /* connects */
    sim_finish();
    if (sim_me.rank == 1)
        _exit(0);
    sim_gather(sim_me.comm, SIM_ELEMS, ncclFloat32, sim_me.q);
    sim_must(pthread_create(&thread, NULL, abort_main, NULL) == 0, "thread");
    pthread_join(thread, NULL);
    sim_me.comm = NULL;
}

/* Aborts when the main thread sleeps in the call that it makes after it has set `said`. */
static void *abort_beside_main(void *arg)
{
    char path[64], state = 'R';
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", (int)getpid());
    while (atomic_load(&sim_shared_by_ranks->said) == 0 || state != 'S') {
        usleep(1000);
        FILE *in = fopen(path, "r");
        sim_must(in != NULL && fscanf(in, "%*d (%*[^)]) %c", &state) == 1, path);
        fclose(in);
    }
    return abort_main(arg);
}

/* The peer does not come to the call that would connect the two, so the host stays in the call. */
SIM_ENDS(case_abort_beside, "abort_beside", "while another thread is in", TWO)
{
    pthread_t thread;
    if (sim_me.rank == 1)
        _exit(0);
    sim_must(pthread_create(&thread, NULL, abort_beside_main, NULL) == 0, "thread");
    atomic_store(&sim_shared_by_ranks->said, 1);
    sim_gather(sim_me.comm, SIM_ELEMS, ncclFloat32, sim_me.q);
}

/* ---- where a call waits ---------------------------------------------------------------------- */

/* The first call waits for the peer's call; later calls do not wait. */
SIM_WELL(case_connects, TWO)
{
    atomic_int *said = &sim_shared_by_ranks->said;
    if (sim_me.rank == 1) {
        usleep(200000);
        atomic_store(said, 1);
    }
    sim_gather(sim_me.comm, SIM_ELEMS, ncclFloat32, sim_me.q);
    sim_must(atomic_load(said) > 0, "the first call has waited"); /* rank 0 may have said 2 */
    if (sim_me.rank == 1)
        while (atomic_load(said) < 2)
            usleep(1000);
    sim_gather(sim_me.comm, SIM_ELEMS, ncclFloat32, sim_me.q);
    atomic_store(said, 2);
}

/* On a communicator that does not block, every call of a group returns "in progress". */
SIM_WELL(case_group_goes_on, TWO, .setting = "NCCL_COMM_BLOCKING=0")
{
    SIM(ncclGroupStart)();
    sim_must(SIM(ncclSend)(sim_me.a, 9, ncclUint8, sim_me.next, sim_me.comm, sim_me.q) ==
                 ncclInProgress,
             "send");
    sim_must(SIM(ncclRecv)(sim_me.b, 9, ncclUint8, sim_me.next, sim_me.comm, sim_me.q) ==
                 ncclInProgress,
             "receive");
    sim_must(SIM(ncclGroupEnd)() == ncclInProgress, "group");
    sim_must(look(sim_me.comm) == ncclSuccess, "state");
}

/* NCCL_COMM_BLOCKING=1 overrides what the program asks for. */
SIM_WELL(case_made_to_block, TWO, .setting = "NCCL_COMM_BLOCKING=1")
{
    sim_gather(sim_me.comm, SIM_ELEMS, ncclFloat32, sim_me.q);
}

SIM_WELL(case_too_early, TWO, .says = "before ncclCommGetAsyncError has said",
         .setting = "NCCL_COMM_BLOCKING=0")
{
    const int first = gather(sim_me.comm, SIM_ELEMS, ncclUint8, sim_me.q);
    const int second = gather(sim_me.comm, SIM_ELEMS, ncclUint8, sim_me.q);
    sim_must(first == ncclInProgress && second == ncclInvalidArgument, "too early");
    sim_must(look(sim_me.comm) == ncclSuccess, "state");
}

int main(void)
{
    static const sim_coll NCCL = {
        "cuda-sim", ncclFloat32, ncclInt64, true,   "Duplicate GPU detected", begin,   make_id,
        join,       end,         await,     gather, reduce_scatter,           exchange};
    setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 1);
    return sim_coll_run(&NCCL);
}
