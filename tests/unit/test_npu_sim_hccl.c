/* test_npu_sim_hccl.c -- the stand-in for HCCL: its results, and its messages about programs on
 * which HCCL would hang. Skipped on devices other than npu-sim. HCCL's headers are C++ only, so its
 * calls are declared here, with CANN's numbers. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "tests/sim/ascend/include/acl/acl.h"
#include "tests/unit/sim_coll_lib.h"

enum { SUCCESS, PARA, PTR, NOT_SUPPORT = 5, TIMEOUT = 9, REMOTE = 21 };
enum { INT8, FP32 = 4, INT64, UINT8 = 7, FP64 = 10, INT128 = 12 };
enum { SUM, PROD };

typedef struct item {
    int receives;
    void *buf;
    uint64_t count;
    int type;
    uint32_t peer;
} item;

/* from, to, elements, type, operation, communicator, stream */
typedef int sum_fn(void *, void *, uint64_t, int, int, void *, void *);
sum_fn HcclAllReduce, HcclReduceScatter;
int HcclGetRootInfo(void *info);
int HcclCommInitRootInfo(uint32_t n, const void *info, uint32_t rank, void **out);
int HcclCommDestroy(void *comm);
int HcclGetCommAsyncError(void *comm, int *error);
int HcclAllGather(void *from, void *to, uint64_t n, int type, void *comm, void *q);
int HcclBatchSendRecv(item *items, uint32_t n, void *comm, void *q);
const char *HcclGetErrorString(int result);

#define RANKS(n) .least = n, .most = n

/* ---- the library ----------------------------------------------------------------------------- */

static void begin(int npu)
{
    void *memory[2];
    sim_must(SIM(aclInit)(NULL) == 0 && SIM(aclrtSetDevice)(npu) == 0, "device");
    sim_must(SIM(aclrtCreateStreamWithConfig)(&sim_me.q, 0, 0) == 0 &&
                 SIM(aclrtCreateStreamWithConfig)(&sim_me.q2, 0, 0) == 0,
             "streams");
    for (int i = 0; i < 2; i++)
        sim_must(SIM(aclrtMalloc)(&memory[i], SIM_BYTES, ACL_MEM_MALLOC_HUGE_FIRST) == 0, "memory");
    sim_me.a = memory[0], sim_me.b = memory[1];
}

static int make_id(void *id)
{
    return SIM(HcclGetRootInfo)(id);
}

static int join(const void *id, int n, int rank, void **out)
{
    return SIM(HcclCommInitRootInfo)((uint32_t)n, id, (uint32_t)rank, out);
}

static int end(void *comm)
{
    return SIM(HcclCommDestroy)(comm);
}

static void await(void *q)
{
    sim_must(SIM(aclrtSynchronizeStream)(q) == 0, "stream");
}

static int gather(void *comm, size_t elems, int type, void *q)
{
    return SIM(HcclAllGather)(sim_me.a, sim_me.b, elems, type, comm, q);
}

static int reduce_scatter(size_t elems)
{
    return SIM(HcclReduceScatter)(sim_me.a, sim_me.b, elems, FP32, SUM, sim_me.comm, sim_me.q);
}

static int all_reduce(size_t elems, int type)
{
    return SIM(HcclAllReduce)(sim_me.a, sim_me.b, elems, type, SUM, sim_me.comm, sim_me.q);
}

static int exchange(int to, size_t n_send, int from, size_t n_receive)
{
    item items[2];
    uint32_t n = 0;
    if (n_send > 0)
        items[n++] = (item){0, sim_me.a, n_send, INT8, (uint32_t)to};
    if (n_receive > 0)
        items[n++] = (item){1, sim_me.b, n_receive, INT8, (uint32_t)from};
    return SIM(HcclBatchSendRecv)(items, n, sim_me.comm, sim_me.q);
}

static int barrier(void *q)
{
    return gather(sim_me.comm, 1, FP32, q);
}

/* ---- values ---------------------------------------------------------------------------------- */

/* put writes the first n floats of a. get reads the first n floats of b after the stream is
 * done. */
static void put(const float *x, size_t n)
{
    sim_must(SIM(aclrtMemcpy)(sim_me.a, SIM_BYTES, x, n * sizeof *x, ACL_MEMCPY_DEFAULT) == 0,
             "upload");
}

static void get(float *x, size_t n)
{
    await(sim_me.q);
    sim_must(SIM(aclrtMemcpy)(x, n * sizeof *x, sim_me.b, n * sizeof *x, ACL_MEMCPY_DEFAULT) == 0,
             "download");
}

/* Lab 6 gathers in place. A gather that is not in place must also copy the rank's own part. */
SIM_WELL(case_gathers_elsewhere, .least = 2, .most = 4)
{
    const float mine = (float)sim_me.rank;
    float all[SIM_MOST];
    put(&mine, 1);
    sim_gather(sim_me.comm, 1, FP32, sim_me.q);
    get(all, (size_t)sim_me.n);
    for (int r = 0; r < sim_me.n; r++)
        sim_must(all[r] == (float)r, "every rank's part");
}

/* In fp32 1e8 + 1 is 1e8, so a sum of three terms shows its order. Returns how many of 6 sums
 * differ from the sum in the order of ranks. */
static int orders_seen(void)
{
    const float mine[3] = {1e8f, 1, -1e8f};
    float sum;
    int n_other = 0;
    put(&mine[sim_me.rank], 1);
    for (int k = 0; k < 6; k++) {
        sim_must(all_reduce(1, FP32) == SUCCESS, "all-reduce");
        get(&sum, 1);
        n_other += sum != 0;
    }
    return n_other;
}

SIM_WELL(case_fixed_order, RANKS(3), .setting = "HCCL_DETERMINISTIC=true")
{
    sim_must(orders_seen() == 0, "sums in the order of ranks");
}

SIM_WELL(case_other_orders, RANKS(3))
{
    const int n = orders_seen();
    sim_must(n > 0 && n < 6, "sums in several orders");
}

/* ---- refusals -------------------------------------------------------------------------------- */

SIM_WELL(case_codes, RANKS(2), .says = "HcclAllGather: no stream")
{
    void *a = sim_me.a, *b = sim_me.b, *comm = sim_me.comm, *q = sim_me.q;
    const uint32_t me = (uint32_t)sim_me.rank;
    item twice[2] = {{0, a, 1, FP32, 1 - me}, {0, b, 1, FP32, 1 - me}};
    item to_me = {0, a, 1, FP32, me}, from_nobody = {1, a, 1, FP32, 2};
    sim_must(SIM(HcclAllGather)(a, b, 1, FP32, NULL, q) == PTR, "no communicator");
    sim_must(SIM(HcclAllGather)(a, b, 1, FP32, comm, NULL) == PTR, "no stream");
    sim_must(SIM(HcclAllGather)(a, NULL, 1, FP32, comm, q) == PTR, "no buffer");
    sim_must(SIM(HcclAllGather)(a, b, 0, FP32, comm, q) == SUCCESS, "count 0");
    sim_must(SIM(HcclAllGather)(a, b, 1, INT128, comm, q) == NOT_SUPPORT, "int128");
    sim_must(all_reduce(1, FP64) == NOT_SUPPORT, "fp64");
    sim_must(SIM(HcclReduceScatter)(a, b, 1, UINT8, SUM, comm, q) == NOT_SUPPORT, "uint8");
    sim_must(SIM(HcclAllReduce)(a, b, 1, FP32, PROD, comm, q) == NOT_SUPPORT, "no sum");
    sim_must(SIM(HcclBatchSendRecv)(&to_me, 1, comm, q) == PARA, "a message to oneself");
    sim_must(SIM(HcclBatchSendRecv)(&from_nobody, 1, comm, q) == PARA, "a message from nobody");
    sim_must(SIM(HcclBatchSendRecv)(twice, 2, comm, q) == PARA, "one peer twice");
    sim_must(strcmp(SIM(HcclGetErrorString)(TIMEOUT), "timed out") == 0, "words");
}

SIM_WELL(case_joins, RANKS(2), .says = "a root info that nobody made",
         .setting = "FSDP_SIM_SECOND_MS=20")
{
    static const char none[SIM_ID_BYTES];
    const void *id = sim_shared_by_ranks->id[0];
    void *other;
    sim_must(join(none, 2, 0, &other) == PARA, "a root info that nobody made");
    sim_must(join(NULL, 2, 0, &other) == PTR, "no root info");
    sim_must(join(id, 2, 2, &other) == PARA, "rank 2 of 2");
    sim_must(join(id, 0, 0, &other) == PARA, "no ranks");
    sim_must(sim_join(1, sim_me.rank + 2, sim_me.rank, &other) != SUCCESS,
             "ranks that do not agree how many they are");
}

SIM_WELL(case_contexts, RANKS(2), .says = "another context's")
{
    void *own, *other, *theirs;
    sim_must(SIM(aclrtGetCurrentContext)(&own) == 0, "context");
    sim_must(SIM(aclrtCreateContext)(&other, sim_me.rank) == 0, "context");
    sim_must(SIM(aclrtCreateStreamWithConfig)(&theirs, 0, 0) == 0, "stream");
    sim_must(barrier(theirs) == PARA, "a communicator of another context");
    sim_must(SIM(aclrtSetCurrentContext)(own) == 0, "context");
    sim_must(barrier(theirs) == PARA, "a stream of another context");
}

/* ---- several streams, several communicators -------------------------------------------------- */

/* Three communicators of two ranks: 0 1, 1 2 and 2 0. Each rank waits for the next. */
SIM_ENDS(case_ring, "ring", "a circle of processes", RANKS(3))
{
    void *pair[2];
    const int next = sim_me.rank, last = (sim_me.rank + 2) % 3;
    for (int k = 0; k < 3; k++)
        if (k == next || k == last)
            sim_must(sim_join(1 + k, 2, k == next ? 0 : 1, &pair[k == last]) == SUCCESS, "pair");
    sim_gather(pair[0], SIM_ELEMS, FP32, sim_me.q);
    sim_gather(pair[1], SIM_ELEMS, FP32, sim_me.q);
}

SIM_WELL(case_ordered, .least = 2, .most = 3)
{
    void *gathered;
    sim_must(SIM(aclrtCreateEventExWithFlag)(&gathered, ACL_EVENT_SYNC) == 0, "event");
    sim_gather(sim_me.comm, SIM_ELEMS, FP32, sim_me.q);
    sim_must(SIM(aclrtRecordEvent)(gathered, sim_me.q) == 0, "record");
    sim_must(SIM(aclrtStreamWaitEvent)(sim_me.q2, gathered) == 0, "wait");
    sim_gather(sim_me.comm, SIM_ELEMS, FP32, sim_me.q2);
}

SIM_WELL(case_two_comms, .least = 2, .most = 3)
{
    void *other = sim_second();
    if (sim_me.rank == 1)
        usleep(300000);
    sim_gather(sim_me.comm, SIM_ELEMS, FP32, sim_me.q);
    sim_gather(other, SIM_ELEMS, FP32, sim_me.q2);
    sim_finish();
    sim_must(end(other) == SUCCESS, "destroy");
}

/* ---- what HCCL leaves to the caller ---------------------------------------------------------- */

static void *calls_of_nothing(void *arg)
{
    __typeof__(HcclAllGather) *call = SIM(HcclAllGather);
    sim_must(SIM(aclrtSetDevice)(sim_me.rank) == 0, "device");
    for (int i = 0; i < 5000000; i++)
        sim_must(call(sim_me.a, sim_me.b, 0, FP32, sim_me.comm, sim_me.q) == SUCCESS, "count 0");
    return arg;
}

SIM_ENDS(case_threads, "threads", "while another thread is in HcclAllGather", RANKS(2))
{
    pthread_t thread;
    sim_must(pthread_create(&thread, NULL, calls_of_nothing, NULL) == 0, "thread");
    (void)calls_of_nothing(NULL);
    pthread_join(thread, NULL);
}

SIM_ENDS(case_room, "room", "HcclAllGather: recvBuf", RANKS(2))
{
    sim_gather(sim_me.comm, SIM_BYTES / 4, FP32, sim_me.q);
}

SIM_ENDS(case_host_memory, "host_memory", "HcclAllReduce: recvBuf", RANKS(2))
{
    static char here[64];
    (void)SIM(HcclAllReduce)(sim_me.a, here, 4, FP32, SUM, sim_me.comm, sim_me.q);
}

SIM_ENDS(case_destroyed, "destroyed", "a communicator that is destroyed", RANKS(2))
{
    sim_must(end(sim_me.comm) == SUCCESS, "destroy");
    (void)barrier(sim_me.q);
}

SIM_ENDS(case_in_flight, "in_flight", "with work in flight", RANKS(2))
{
    while (sim_me.rank == 1)
        pause();
    sim_gather(sim_me.comm, SIM_ELEMS, FP32, sim_me.q);
    (void)end(sim_me.comm);
}

SIM_ENDS(case_leak, "leak", "was never destroyed", RANKS(2))
{
    exit(0);
}

/* ---- ranks that do not come ------------------------------------------------------------------ */

/* Rank 0 makes the root info, and joins only after rank 1 has given up. */
SIM_WELL(case_late, RANKS(2), .says = "has not come", .setting = "FSDP_SIM_SECOND_MS=10")
{
    sim_shared *shared = sim_shared_by_ranks;
    void *other;
    if (sim_me.rank == 0) {
        sim_must(make_id(shared->id[1]) == SUCCESS, "root info");
        atomic_store(&shared->has_id[1], 1);
    }
    while (atomic_load(sim_me.rank == 0 ? &shared->said : &shared->has_id[1]) == 0)
        usleep(1000);
    sim_must(join(shared->id[1], 2, sim_me.rank, &other) == TIMEOUT, "HCCL_CONNECT_TIMEOUT");
    atomic_store(&shared->said, 1);
}

static void remote_await(void)
{
    int error = SUCCESS;
    while (error == SUCCESS)
        sim_must(SIM(HcclGetCommAsyncError)(sim_me.comm, &error) == SUCCESS, "look");
    sim_must(error == REMOTE, "asynchronous error");
    sim_must(SIM(aclrtSynchronizeStream)(sim_me.q) != 0, "the stream has failed");
    sim_must(barrier(sim_me.q) != SUCCESS, "a call on a communicator that has failed");
    sim_must(end(sim_me.comm) == SUCCESS, "destroy");
    exit(0);
}

SIM_WELL(case_dead, .least = 2, .most = 3, .says = "", .setting = "FSDP_SIM_SECOND_MS=50")
{
    if (sim_me.rank == 1)
        _exit(0);
    sim_gather(sim_me.comm, SIM_ELEMS, FP32, sim_me.q);
    remote_await();
}

SIM_WELL(case_hang, RANKS(2), .says = "ranks disagree",
         .setting = "FSDP_SIM_SECOND_MS=50 HCCL_EXEC_TIMEOUT=20 FSDP_SIM_HANGS=1")
{
    sim_gather(sim_me.comm, (size_t)(SIM_ELEMS + sim_me.rank), FP32, sim_me.q);
    remote_await();
}

/* FSDP_SIM_FAULT: a call that the NPU skips must not block later calls. */
SIM_WELL(case_fault, RANKS(2), .says = "", .setting = "FSDP_SIM_FAULT=HcclAllGather:1")
{
    sim_gather(sim_me.comm, SIM_ELEMS, FP32, sim_me.q);
    sim_must(SIM(aclrtSynchronizeStream)(sim_me.q) != 0, "an exception on the NPU");
    sim_gather(sim_me.comm, SIM_ELEMS, FP32, sim_me.q2);
}

int main(void)
{
    static const sim_coll HCCL = {
        "npu-sim", FP32,           INT64,   false, "two ranks have one device",
        begin,     make_id,        join,    end,   await,
        gather,    reduce_scatter, exchange};
    return sim_coll_run(&HCCL);
}
