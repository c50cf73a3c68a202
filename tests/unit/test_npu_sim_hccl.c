/* test_npu_sim_hccl.c -- what the stand-in for HCCL does, and what it says of programs that HCCL
 * would hang on.
 *
 * A process for each rank calls the library of npu-sim itself. What they write is read back; an
 * alarm ends who hangs. HCCL's headers are C++ only, so the calls are declared here, with CANN's
 * numbers. On another device this is a SKIP. */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include "common/base/dtype.h"
#include "tests/unit/target_lib.h"

enum { ALARM_S = 120, ELEMS = 50000, BYTES = 8 << 20, TEXT_BYTES = 16384, MOST = 4, INFOS = 4 };
enum { SUCCESS, PARA, PTR, NOT_SUPPORT = 5, TIMEOUT = 9, REMOTE = 21 };
enum { INT16 = 1, FP32 = 4, INT64 = 5, UINT8 = 7, FP64 = 10, BFP16, INT128 };
enum { SUM, PROD, MAX };
enum { H2D = 1, D2H };
enum { EVENT_SYNC = 1 };

typedef struct root_info {
    char internal[4108];
} root_info;
typedef struct item {
    int receives;
    void *buf;
    uint64_t count;
    int type;
    uint32_t peer;
} item;

#define CALLS(X)                                                                                   \
    X(aclInit, (const char *))                                                                     \
    X(aclrtSetDevice, (int32_t))                                                                   \
    X(aclrtCreateContext, (void **, int32_t))                                                      \
    X(aclrtGetCurrentContext, (void **))                                                           \
    X(aclrtSetCurrentContext, (void *))                                                            \
    X(aclrtCreateStream, (void **))                                                                \
    X(aclrtSynchronizeStream, (void *))                                                            \
    X(aclrtCreateEventExWithFlag, (void **, uint32_t))                                             \
    X(aclrtRecordEvent, (void *, void *))                                                          \
    X(aclrtStreamWaitEvent, (void *, void *))                                                      \
    X(aclrtMalloc, (void **, size_t, int))                                                         \
    X(aclrtMemcpy, (void *, size_t, const void *, size_t, int))                                    \
    X(HcclGetRootInfo, (root_info *))                                                              \
    X(HcclCommInitRootInfo, (uint32_t, const root_info *, uint32_t, void **))                      \
    X(HcclCommDestroy, (void *))                                                                   \
    X(HcclGetCommAsyncError, (void *, int *))                                                      \
    X(HcclGetRankSize, (void *, uint32_t *))                                                       \
    X(HcclGetRankId, (void *, uint32_t *))                                                         \
    X(HcclAllReduce, (void *, void *, uint64_t, int, int, void *, void *))                         \
    X(HcclReduceScatter, (void *, void *, uint64_t, int, int, void *, void *))                     \
    X(HcclAllGather, (void *, void *, uint64_t, int, void *, void *))                              \
    X(HcclBroadcast, (void *, uint64_t, int, uint32_t, void *, void *))                            \
    X(HcclSend, (void *, uint64_t, int, uint32_t, void *, void *))                                 \
    X(HcclRecv, (void *, uint64_t, int, uint32_t, void *, void *))                                 \
    X(HcclAlltoAll, (const void *, uint64_t, int, const void *, uint64_t, int, void *, void *))    \
    X(HcclAlltoAllV, (const void *, const void *, const void *, int, const void *, const void *,   \
                      const void *, int, void *, void *))                                          \
    X(HcclBatchSendRecv, (item *, uint32_t, void *, void *))                                       \
    X(HcclBarrier, (void *, void *))
#define FIELD(name, args) int(*name) args;
#define FETCH(name, args)                                                                          \
    api.name = target_symbol(#name);                                                               \
    must(api.name != NULL, #name);
static struct {
    CALLS(FIELD)
    const char *(*HcclGetErrorString)(int);
} api;

/* One rank of some. */
typedef struct place {
    int rank, n;
    void *comm, *q, *q2;
    char *a, *b; /* on the device */
} place;

/* How the ranks tell each other of root infos. */
static struct {
    atomic_int is_there[INFOS];
    root_info info[INFOS];
} * shared;

static void must(bool ok, const char *what)
{
    if (ok)
        return;
    fprintf(stderr, "not as it should be: %s\n", what);
    _exit(3);
}

/* ---- what the cases are made of -------------------------------------------------------------- */

/* A communicator of n ranks, of which this is one; rank 0 makes the root info, which has that
 * number. */
static int join(int info, int n, int rank, void **out)
{
    if (rank == 0) {
        must(api.HcclGetRootInfo(&shared->info[info]) == SUCCESS, "root info");
        atomic_store(&shared->is_there[info], 1);
    }
    while (atomic_load(&shared->is_there[info]) == 0)
        usleep(1000);
    return api.HcclCommInitRootInfo((uint32_t)n, &shared->info[info], (uint32_t)rank, out);
}

static void await(place *p)
{
    must(api.aclrtSynchronizeStream(p->q) == 0, "stream");
    must(api.aclrtSynchronizeStream(p->q2) == 0, "stream");
}

static void upload(char *to, const void *from, size_t bytes)
{
    must(api.aclrtMemcpy(to, BYTES, from, bytes, H2D) == 0, "upload");
}

static const void *download(const char *from, size_t bytes)
{
    static char here[BYTES];
    must(api.aclrtMemcpy(here, BYTES, from, bytes, D2H) == 0, "download");
    return here;
}

/* a holds parts, each of ELEMS: element i of part r is 1000 * rank + 10 * r + i % 7. */
static float value(int rank, int part, int i)
{
    return (float)(1000 * rank + 10 * part + i % 7);
}

static void fill(const place *p)
{
    static float x[MOST * ELEMS];
    for (int r = 0; r < p->n; r++)
        for (int i = 0; i < ELEMS; i++)
            x[r * ELEMS + i] = value(p->rank, r, i);
    upload(p->a, x, sizeof x);
}

static void gather(place *p, void *on, uint64_t elems, int type, void *q)
{
    must(api.HcclAllGather(p->a, p->b, elems, type, on, q) == SUCCESS, "all-gather");
}

/* ---- values ---------------------------------------------------------------------------------- */

static void case_gathers(place *p)
{
    fill(p);
    gather(p, p->comm, ELEMS, FP32, p->q);
    await(p);
    const float *x = download(p->b, sizeof(float) * MOST * ELEMS);
    for (int r = 0; r < p->n; r++)
        for (int i = 0; i < ELEMS; i++)
            must(x[r * ELEMS + i] == value(r, 0, i), "all-gather");
    must(api.HcclBroadcast(p->a, ELEMS, FP32, (uint32_t)p->n - 1, p->comm, p->q) == SUCCESS &&
             api.HcclBarrier(p->comm, p->q) == SUCCESS,
         "broadcast");
    await(p);
    x = download(p->a, sizeof(float) * ELEMS);
    for (int i = 0; i < ELEMS; i++)
        must(x[i] == value(p->n - 1, 0, i), "broadcast");
}

static void case_sums(place *p)
{
    fill(p);
    must(api.HcclReduceScatter(p->a, p->b, ELEMS, FP32, SUM, p->comm, p->q) == SUCCESS,
         "reduce-scatter");
    await(p);
    const float *x = download(p->b, sizeof(float) * ELEMS);
    for (int i = 0; i < ELEMS; i++) {
        float sum = 0;
        for (int r = 0; r < p->n; r++)
            sum += value(r, p->rank, i);
        must(x[i] == sum, "reduce-scatter");
    }
    const int64_t big[2] = {INT64_MAX - p->rank, p->rank};
    upload(p->a, big, sizeof big);
    must(api.HcclAllReduce(p->a, p->a, 2, INT64, MAX, p->comm, p->q) == SUCCESS, "all-reduce");
    await(p);
    const int64_t *m = download(p->a, sizeof big);
    must(m[0] == INT64_MAX && m[1] == p->n - 1, "all-reduce");
    const uint16_t half[2] = {bf16_from_f32(256), bf16_from_f32(p->rank == 0 ? 256 : 1)};
    upload(p->a, half, sizeof half);
    must(api.HcclAllReduce(p->a, p->b, 2, BFP16, SUM, p->comm, p->q) == SUCCESS, "all-reduce");
    await(p);
    const uint16_t *h = download(p->b, sizeof half);
    must(f32_from_bf16(h[0]) == (float)(256 * p->n), "all-reduce of bf16");
    must(f32_from_bf16(h[1]) == 256, "every sum of two is rounded to bf16");
}

/* Rank r sends (r + s) % 3 elements to rank s, out of its part s. */
static void case_all_to_all(place *p)
{
    uint64_t n_send[MOST], n_recv[MOST], at[MOST];
    fill(p);
    must(api.HcclAlltoAll(p->a, ELEMS, FP32, p->b, ELEMS, FP32, p->comm, p->q) == SUCCESS,
         "all-to-all");
    await(p);
    const float *x = download(p->b, sizeof(float) * MOST * ELEMS);
    for (int r = 0; r < p->n; r++)
        for (int i = 0; i < ELEMS; i++)
            must(x[r * ELEMS + i] == value(r, p->rank, i), "all-to-all");
    for (int r = 0; r < p->n; r++) {
        n_send[r] = n_recv[r] = (uint64_t)(p->rank + r) % 3;
        at[r] = (uint64_t)r * ELEMS;
    }
    must(api.HcclAlltoAllV(p->a, n_send, at, FP32, p->b + 4, n_recv, at, FP32, p->comm, p->q) ==
             SUCCESS,
         "all-to-all-v");
    await(p);
    x = download(p->b, sizeof(float) * MOST * ELEMS);
    for (int r = 0; r < p->n; r++)
        for (int i = 0; i < 3; i++)
            must(x[r * ELEMS + 1 + i] == value(r, p->rank, i < (p->rank + r) % 3 ? i : i + 1),
                 "all-to-all-v");
}

static void case_messages(place *p)
{
    const uint32_t next = (uint32_t)((p->rank + 1) % p->n),
                   last = (uint32_t)((p->rank + p->n - 1) % p->n);
    item items[2] = {{0, p->a, ELEMS, FP32, next}, {1, p->b, ELEMS, FP32, last}};
    fill(p);
    must(api.HcclBatchSendRecv(items, 2, p->comm, p->q) == SUCCESS, "batch");
    if (p->rank == 0)
        must(api.HcclSend(p->a, 9, FP32, 1, p->comm, p->q) == SUCCESS, "send");
    if (p->rank == 1)
        must(api.HcclRecv(p->b + sizeof(float) * ELEMS, 9, FP32, 0, p->comm, p->q) == SUCCESS,
             "receive");
    await(p);
    const float *x = download(p->b, sizeof(float) * (ELEMS + 9));
    for (int i = 0; i < ELEMS; i++)
        must(x[i] == value((int)last, 0, i), "batch");
    for (int i = 0; i < 9 && p->rank == 1; i++)
        must(x[ELEMS + i] == value(0, 0, i), "receive");
}

/* 1e8 + 1 is 1e8 in fp32, so the order of three terms shows. How often the sum was not that of rank
 * order. */
static int orders_seen(place *p)
{
    const float mine[3] = {1e8f, 1, -1e8f};
    int n_other = 0;
    upload(p->a, &mine[p->rank], sizeof *mine);
    for (int k = 0; k < 6; k++) {
        must(api.HcclAllReduce(p->a, p->b, 1, FP32, SUM, p->comm, p->q) == SUCCESS, "all-reduce");
        await(p);
        n_other += *(const float *)download(p->b, sizeof *mine) != 0;
    }
    return n_other;
}

static void case_fixed_order(place *p)
{
    must(orders_seen(p) == 0, "sums in the order of ranks");
}

static void case_other_orders(place *p)
{
    const int n = orders_seen(p);
    must(n > 0 && n < 6, "sums in several orders");
}

/* ---- refusals -------------------------------------------------------------------------------- */

static void case_codes(place *p)
{
    uint64_t n[MOST] = {0};
    uint32_t size, rank, me = (uint32_t)p->rank, peer = 1 - me;
    item twice[2] = {{0, p->a, 1, FP32, peer}, {0, p->b, 1, FP32, peer}};
    must(api.HcclAllGather(p->a, p->b, 1, FP32, NULL, p->q) == PTR, "no communicator");
    must(api.HcclAllGather(p->a, p->b, 1, FP32, p->comm, NULL) == PTR, "no stream");
    must(api.HcclAllGather(p->a, NULL, 1, FP32, p->comm, p->q) == PTR, "no buffer");
    must(api.HcclAllGather(p->a, p->b, 0, FP32, p->comm, p->q) == SUCCESS, "count 0");
    must(api.HcclAllGather(p->a, p->b, 1, INT128, p->comm, p->q) == NOT_SUPPORT, "int128");
    must(api.HcclAllReduce(p->a, p->b, 1, FP64, SUM, p->comm, p->q) == NOT_SUPPORT, "fp64");
    must(api.HcclReduceScatter(p->a, p->b, 1, UINT8, SUM, p->comm, p->q) == NOT_SUPPORT, "uint8");
    must(api.HcclAllReduce(p->a, p->b, 1, BFP16, PROD, p->comm, p->q) == NOT_SUPPORT, "bf16 prod");
    must(api.HcclAlltoAllV(p->a, n, n, BFP16, p->b, n, n, BFP16, p->comm, p->q) == NOT_SUPPORT,
         "all-to-all-v of bf16");
    must(api.HcclAlltoAllV(p->a, n, n, FP32, p->b, NULL, n, FP32, p->comm, p->q) == PTR, "counts");
    must(api.HcclAlltoAll(p->a, 2, FP32, p->b, 1, INT64, p->comm, p->q) == PARA, "two types");
    must(api.HcclBroadcast(p->a, 1, FP32, 2, p->comm, p->q) == PARA, "root");
    must(api.HcclSend(p->a, 1, FP32, me, p->comm, p->q) == PARA, "a message to oneself");
    must(api.HcclRecv(p->a, 1, FP32, 2, p->comm, p->q) == PARA, "a message from nobody");
    must(api.HcclBatchSendRecv(twice, 2, p->comm, p->q) == PARA, "one peer twice");
    must(api.HcclGetRankSize(p->comm, &size) == SUCCESS && size == 2, "size");
    must(api.HcclGetRankId(p->comm, &rank) == SUCCESS && rank == me, "rank");
    must(strcmp(api.HcclGetErrorString(TIMEOUT), "timed out") == 0, "words");
}

static void case_joins(place *p)
{
    static const root_info none;
    void *other;
    must(api.HcclCommInitRootInfo(2, &none, 0, &other) == PARA, "a root info that nobody made");
    must(api.HcclCommInitRootInfo(2, NULL, 0, &other) == PTR, "no root info");
    must(api.HcclCommInitRootInfo(2, &shared->info[0], 2, &other) == PARA, "rank 2 of 2");
    must(api.HcclCommInitRootInfo(0, &shared->info[0], 0, &other) == PARA, "no ranks");
    must(join(1, p->rank + 2, p->rank, &other) != SUCCESS,
         "ranks that do not agree how many they are");
}

static void case_contexts(place *p)
{
    void *own, *other, *theirs;
    must(api.aclrtGetCurrentContext(&own) == 0, "context");
    must(api.aclrtCreateContext(&other, p->rank) == 0, "context");
    must(api.aclrtCreateStream(&theirs) == 0, "stream");
    must(api.HcclBarrier(p->comm, theirs) == PARA, "a communicator of another context");
    must(api.aclrtSetCurrentContext(own) == 0, "context");
    must(api.HcclBarrier(p->comm, theirs) == PARA, "a stream of another context");
}

/* Its ranks take one device, so that it is never called. */
static void case_one_device(place *p)
{
    (void)p;
}

/* ---- ranks that do not fit each other -------------------------------------------------------- */

static void case_count(place *p)
{
    gather(p, p->comm, (uint64_t)(ELEMS + p->rank), FP32, p->q);
}

static void case_type(place *p)
{
    gather(p, p->comm, ELEMS, p->rank > 0 ? FP32 : INT64, p->q);
}

static void case_call(place *p)
{
    if (p->rank == 0)
        gather(p, p->comm, ELEMS, FP32, p->q);
    else
        api.HcclAllReduce(p->a, p->b, ELEMS, FP32, SUM, p->comm, p->q);
}

static void case_op(place *p)
{
    api.HcclAllReduce(p->a, p->b, ELEMS, FP32, p->rank == 0 ? SUM : MAX, p->comm, p->q);
}

static void case_root(place *p)
{
    api.HcclBroadcast(p->a, ELEMS, FP32, (uint32_t)p->rank, p->comm, p->q);
}

static void case_parts(place *p)
{
    uint64_t n[MOST] = {5, 5, 5, 5}, at[MOST] = {0, 5, 10, 15}, other[MOST] = {5, 5, 5, 5};
    if (p->rank == 0)
        other[1] = 6;
    api.HcclAlltoAllV(p->a, n, at, FP32, p->b, other, at, FP32, p->comm, p->q);
}

static void case_lengths(place *p)
{
    if (p->rank == 0)
        api.HcclSend(p->a, 10, FP32, 1, p->comm, p->q);
    else
        api.HcclRecv(p->a, 20, FP32, 0, p->comm, p->q);
}

static void case_sends_first(place *p)
{
    api.HcclSend(p->a, 10, FP32, (uint32_t)(1 - p->rank), p->comm, p->q);
    api.HcclRecv(p->b, 10, FP32, (uint32_t)(1 - p->rank), p->comm, p->q);
}

/* Rank 0 sends before it receives, so its message is there when rank 1's has been taken. */
static void case_send_alone(place *p)
{
    const uint32_t peer = (uint32_t)(1 - p->rank);
    item items[2] = {{0, p->a, 10, FP32, peer}, {1, p->b, 10, FP32, peer}};
    must(api.HcclBatchSendRecv(items, p->rank == 0 ? 2 : 1, p->comm, p->q) == SUCCESS, "messages");
    if (p->rank == 0)
        return;
    await(p);
    api.HcclCommDestroy(p->comm);
}

/* ---- several streams, several communicators -------------------------------------------------- */

static void second(place *p, void **out)
{
    must(join(1, p->n, p->rank, out) == SUCCESS, "second communicator");
}

static void case_crossed(place *p)
{
    void *other;
    second(p, &other);
    gather(p, p->rank == 0 ? p->comm : other, ELEMS, FP32, p->q);
    gather(p, p->rank == 0 ? other : p->comm, ELEMS, FP32, p->q2);
}

/* Communicators of two ranks each, 0 1, 1 2 and 2 0: everybody waits for the next. */
static void case_ring(place *p)
{
    void *pair[2];
    const int next = p->rank, last = (p->rank + 2) % 3;
    for (int k = 0; k < 3; k++)
        if (k == next || k == last)
            must(join(1 + k, 2, k == next ? 0 : 1, &pair[k == last]) == SUCCESS, "pair");
    gather(p, pair[0], ELEMS, FP32, p->q);
    gather(p, pair[1], ELEMS, FP32, p->q);
}

/* Rank 1 makes neither call, so that the first of rank 0 is still under way at the second. */
static void case_unordered(place *p)
{
    while (p->rank == 1)
        pause();
    gather(p, p->comm, ELEMS, FP32, p->q);
    gather(p, p->comm, ELEMS, FP32, p->q2);
}

static void case_ordered(place *p)
{
    void *gathered;
    must(api.aclrtCreateEventExWithFlag(&gathered, EVENT_SYNC) == 0, "event");
    gather(p, p->comm, ELEMS, FP32, p->q);
    must(api.aclrtRecordEvent(gathered, p->q) == 0, "record");
    must(api.aclrtStreamWaitEvent(p->q2, gathered) == 0, "wait");
    gather(p, p->comm, ELEMS, FP32, p->q2);
}

static void case_two_comms(place *p)
{
    void *other;
    second(p, &other);
    if (p->rank == 1)
        usleep(300000);
    gather(p, p->comm, ELEMS, FP32, p->q);
    gather(p, other, ELEMS, FP32, p->q2);
    await(p);
    must(api.HcclCommDestroy(other) == SUCCESS, "destroy");
}

/* ---- what HCCL leaves to the caller ---------------------------------------------------------- */

static void *calls_of_nothing(void *arg)
{
    const place *p = arg;
    must(api.aclrtSetDevice(p->rank) == 0, "device");
    for (int i = 0; i < 5000000; i++)
        must(api.HcclAllGather(p->a, p->b, 0, FP32, p->comm, p->q) == SUCCESS, "count 0");
    return NULL;
}

static void case_threads(place *p)
{
    pthread_t thread;
    must(pthread_create(&thread, NULL, calls_of_nothing, p) == 0, "thread");
    (void)calls_of_nothing(p);
    pthread_join(thread, NULL);
}

static void case_room(place *p)
{
    gather(p, p->comm, (uint64_t)BYTES / 4, FP32, p->q);
}

static void case_host_memory(place *p)
{
    static char here[64];
    api.HcclAllReduce(p->a, here, 4, FP32, SUM, p->comm, p->q);
}

static void case_destroyed(place *p)
{
    must(api.HcclCommDestroy(p->comm) == SUCCESS, "destroy");
    api.HcclBarrier(p->comm, p->q);
}

static void case_in_flight(place *p)
{
    while (p->rank == 1)
        pause();
    gather(p, p->comm, ELEMS, FP32, p->q);
    api.HcclCommDestroy(p->comm);
}

static void case_leak(place *p)
{
    (void)p;
    exit(0);
}

/* ---- ranks that do not come ------------------------------------------------------------------ */

/* Rank 0 makes the root info, and comes when rank 1 has given up. */
static void case_late(place *p)
{
    void *other;
    if (p->rank == 0) {
        must(api.HcclGetRootInfo(&shared->info[1]) == SUCCESS, "root info");
        atomic_store(&shared->is_there[1], 1);
    }
    while (atomic_load(&shared->is_there[p->rank == 0 ? 2 : 1]) == 0)
        usleep(1000);
    must(api.HcclCommInitRootInfo(2, &shared->info[1], (uint32_t)p->rank, &other) == TIMEOUT,
         "HCCL_CONNECT_TIMEOUT");
    atomic_store(&shared->is_there[2], 1);
}

static void remote_await(place *p)
{
    int error = SUCCESS;
    while (error == SUCCESS)
        must(api.HcclGetCommAsyncError(p->comm, &error) == SUCCESS, "look");
    must(error == REMOTE, "asynchronous error");
    must(api.aclrtSynchronizeStream(p->q) != 0, "the stream has failed");
    must(api.HcclBarrier(p->comm, p->q) != SUCCESS, "a call on a communicator that has failed");
    must(api.HcclCommDestroy(p->comm) == SUCCESS, "destroy");
    exit(0);
}

static void case_dead(place *p)
{
    if (p->rank == 1)
        _exit(0);
    gather(p, p->comm, ELEMS, FP32, p->q);
    remote_await(p);
}

static void case_hang(place *p)
{
    gather(p, p->comm, (uint64_t)(ELEMS + p->rank), FP32, p->q);
    remote_await(p);
}

/* FSDP_SIM_FAULT: a call that the NPU does not run is in nobody's way. */
static void case_fault(place *p)
{
    gather(p, p->comm, ELEMS, FP32, p->q);
    must(api.aclrtSynchronizeStream(p->q) != 0, "an exception on the NPU");
    gather(p, p->comm, ELEMS, FP32, p->q2);
}

/* ---- all ------------------------------------------------------------------------------------- */

typedef struct test {
    const char *name;
    void (*run)(place *);
    int least, most;  /* ranks */
    const char *says; /* in what the ranks write; NULL: nothing is said */
    bool goes_on;     /* all ranks end well */
    const char *set;  /* variables of the environment: "NAME=value NAME=value" */
} test;

static const test TESTS[] = {
    {"gathers", case_gathers, 2, 4, NULL, true, NULL},
    {"sums", case_sums, 2, 4, NULL, true, NULL},
    {"all_to_all", case_all_to_all, 2, 4, NULL, true, NULL},
    {"messages", case_messages, 2, 4, NULL, true, NULL},
    {"fixed_order", case_fixed_order, 3, 3, NULL, true, "HCCL_DETERMINISTIC=true"},
    {"other_orders", case_other_orders, 3, 3, NULL, true, NULL},
    {"codes", case_codes, 2, 2, "HcclAllGather: no stream", true, NULL},
    {"joins", case_joins, 2, 2, "a root info that nobody made", true, "FSDP_SIM_SECOND_MS=20"},
    {"contexts", case_contexts, 2, 2, "another context's", true, NULL},
    {"one_device", case_one_device, 2, 2, "two ranks have one device", false, NULL},
    {"count", case_count, 2, 4, "ranks disagree", false, NULL},
    {"type", case_type, 2, 2, "ranks disagree", false, NULL},
    {"call", case_call, 2, 3, "ranks disagree", false, NULL},
    {"op", case_op, 2, 2, "ranks disagree", false, NULL},
    {"root", case_root, 2, 3, "ranks disagree", false, NULL},
    {"parts", case_parts, 3, 3, "ranks disagree", false, NULL},
    {"lengths", case_lengths, 2, 2, "ranks disagree", false, NULL},
    {"sends_first", case_sends_first, 2, 2, "a circle of processes", false, NULL},
    {"send_alone", case_send_alone, 2, 2, "rank 1 ends its communicator, rank 0 is in send 1",
     false, NULL},
    {"crossed", case_crossed, 2, 2, "a circle of processes", false, NULL},
    {"ring", case_ring, 3, 3, "a circle of processes", false, NULL},
    {"unordered", case_unordered, 2, 2, "two calls may run at once", false, NULL},
    {"ordered", case_ordered, 2, 3, NULL, true, NULL},
    {"two_comms", case_two_comms, 2, 3, NULL, true, NULL},
    {"threads", case_threads, 2, 2, "while another thread is in HcclAllGather", false, NULL},
    {"room", case_room, 2, 2, "HcclAllGather: recvBuf", false, NULL},
    {"host_memory", case_host_memory, 2, 2, "HcclAllReduce: recvBuf", false, NULL},
    {"destroyed", case_destroyed, 2, 2, "a communicator that is destroyed", false, NULL},
    {"in_flight", case_in_flight, 2, 2, "with work in flight", false, NULL},
    {"leak", case_leak, 2, 2, "was never destroyed", false, NULL},
    {"late", case_late, 2, 2, "has not come", true, "FSDP_SIM_SECOND_MS=10"},
    {"dead", case_dead, 2, 3, "", true, "FSDP_SIM_SECOND_MS=50"},
    {"fault", case_fault, 2, 2, "", true, "FSDP_SIM_FAULT=HcclAllGather:1"},
    {"hang", case_hang, 2, 2, "ranks disagree", true,
     "FSDP_SIM_SECOND_MS=50 HCCL_EXEC_TIMEOUT=20 FSDP_SIM_HANGS=1"},
};

static void env_set(const char *variables)
{
    char text[256];
    snprintf(text, sizeof text, "%s", variables != NULL ? variables : "");
    for (char *name = strtok(text, " "); name != NULL; name = strtok(NULL, " ")) {
        char *value = strchr(name, '=');
        *value = '\0';
        setenv(name, value + 1, 1);
    }
}

static void rank_main(const test *t, int rank, int n)
{
    place p = {.rank = rank, .n = n};
    alarm(ALARM_S);
    env_set(t->set);
    must(api.aclInit(NULL) == 0 && api.aclrtSetDevice(t->run == case_one_device ? 0 : rank) == 0,
         "device");
    must(api.aclrtCreateStream(&p.q) == 0 && api.aclrtCreateStream(&p.q2) == 0, "streams");
    void *a = NULL, *b = NULL;
    must(api.aclrtMalloc(&a, BYTES, 0) == 0 && api.aclrtMalloc(&b, BYTES, 0) == 0, "memory");
    p.a = a;
    p.b = b;
    must(join(0, n, rank, &p.comm) == SUCCESS, "HcclCommInitRootInfo");
    t->run(&p);
    await(&p);
    must(api.HcclCommDestroy(p.comm) == SUCCESS, "HcclCommDestroy");
    exit(0);
}

/* Run all ranks; what they write into text, how many ended well. A rank whose peer was ended by a
 * message might wait for ever: it is ended too. */
static int all_run(const test *t, int w, char *text)
{
    int ends[2], n_well = 0;
    pid_t pid[MOST];
    size_t n = 0;
    ssize_t got;
    must(pipe(ends) == 0, "pipe");
    memset(shared, 0, sizeof *shared);
    fflush(NULL);
    for (int r = 0; r < w; r++) {
        pid[r] = fork();
        if (pid[r] == 0) {
            dup2(ends[1], STDERR_FILENO);
            close(ends[0]);
            close(ends[1]);
            rank_main(t, r, w);
        }
    }
    close(ends[1]);
    while (n < TEXT_BYTES - 1 && (got = read(ends[0], text + n, TEXT_BYTES - 1 - n)) > 0) {
        text[n += (size_t)got] = '\0';
        if (!t->goes_on && t->says != NULL && strstr(text, "HINT") != NULL)
            break;
    }
    usleep(t->goes_on ? 0 : 200000);
    for (int r = 0; r < w; r++) {
        int status;
        if (!t->goes_on)
            kill(pid[r], SIGKILL);
        waitpid(pid[r], &status, 0);
        n_well += WIFEXITED(status) && WEXITSTATUS(status) == 0;
    }
    close(ends[0]);
    return n_well;
}

static bool test_run(const test *t, int w)
{
    static char text[TEXT_BYTES];
    text[0] = '\0';
    int n_well = all_run(t, w, text);
    bool said = t->says == NULL ? text[0] == '\0' : strstr(text, t->says) != NULL;
    bool ended = t->goes_on ? n_well == w : n_well < w;
    printf("%s %s on %d ranks\n", said && ended ? "PASS" : "FAIL", t->name, w);
    if (!said || !ended)
        printf("    %d ranks ended well and wrote:\n%s\n", n_well, text);
    return said && ended;
}

int main(void)
{
    int n_failed = 0;
    const char *name = getenv("FSDP_DEVICE");
    if (name == NULL || strcmp(name, "npu-sim") != 0) {
        printf("SKIP it is about npu-sim: set FSDP_DEVICE=npu-sim\n");
        return 77;
    }
    CALLS(FETCH)
    api.HcclGetErrorString = target_symbol("HcclGetErrorString");
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    must(api.HcclGetErrorString != NULL && shared != MAP_FAILED, "start");
    for (size_t i = 0; i < sizeof TESTS / sizeof *TESTS; i++)
        for (int w = TESTS[i].least; w <= TESTS[i].most; w++)
            n_failed += !test_run(&TESTS[i], w);
    return n_failed > 0;
}
