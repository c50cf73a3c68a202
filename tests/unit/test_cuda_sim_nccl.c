/* test_cuda_sim_nccl.c -- what the stand-in for NCCL says of programs that NCCL would hang on.
 *
 * Two processes, one for each rank, call the library of cuda-sim itself. What they write is read
 * back; an alarm ends who hangs. On another device this is a SKIP. */
#include <errno.h>
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
#include "tests/sim/cuda/include/nccl.h"
#include "tests/unit/target_lib.h"

enum { ALARM_S = 120, BYTES = 4 << 20, ELEMS = 1000, TEXT_BYTES = 16384 };

#define CALLS(X)                                                                                   \
    X(cudaSetDevice)                                                                               \
    X(cudaStreamCreateWithPriority)                                                                \
    X(cudaStreamQuery)                                                                             \
    X(cudaMallocAsync)                                                                             \
    X(cudaMemcpyAsync)                                                                             \
    X(ncclGetUniqueId)                                                                             \
    X(ncclCommInitRankConfig)                                                                      \
    X(ncclCommSplit)                                                                               \
    X(ncclCommGetAsyncError)                                                                       \
    X(ncclCommFinalize)                                                                            \
    X(ncclCommAbort)                                                                               \
    X(ncclGroupStart)                                                                              \
    X(ncclGroupEnd)                                                                                \
    X(ncclSend)                                                                                    \
    X(ncclRecv)                                                                                    \
    X(ncclAllGather)                                                                               \
    X(ncclBroadcast)                                                                               \
    X(ncclReduceScatter)                                                                           \
    X(ncclAllReduce)
#define FIELD(name) __typeof__(name) *name;
#define FETCH(name)                                                                                \
    api.name = target_symbol(#name);                                                               \
    must(api.name != NULL, #name);
static struct {
    CALLS(FIELD)
} api;

/* One rank of two. */
typedef struct place {
    int rank, peer;
    ncclComm_t comm;
    cudaStream_t q, q2;
    char *a, *b;     /* on the device */
    atomic_int *say; /* what a rank tells the other */
} place;

static void must(bool ok, const char *what)
{
    if (ok)
        return;
    fprintf(stderr, "not as it should be: %s\n", what);
    exit(3);
}

static ncclComm_t split(place *p)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclComm_t other = NULL;
    must(api.ncclCommSplit(p->comm, 0, p->rank, &other, &config) == ncclSuccess, "split");
    return other;
}

static void await(cudaStream_t q)
{
    cudaError_t error;
    while ((error = api.cudaStreamQuery(q)) == cudaErrorNotReady)
        usleep(1000);
    must(error == cudaSuccess, "stream");
}

static void finish(place *p)
{
    await(p->q);
    await(p->q2);
}

static void gather(place *p, ncclComm_t on, size_t n, ncclDataType_t type, cudaStream_t q)
{
    must(api.ncclAllGather(p->a, p->b, n, type, on, q) == ncclSuccess, "all-gather");
}

static void swap(place *p)
{
    api.ncclGroupStart();
    api.ncclSend(p->a, 200000, ncclUint8, p->peer, p->comm, p->q);
    api.ncclRecv(p->b, 200000, ncclUint8, p->peer, p->comm, p->q);
    must(api.ncclGroupEnd() == ncclSuccess, "group");
}

static void case_good(place *p)
{
    swap(p);
    gather(p, p->comm, ELEMS, ncclFloat32, p->q2);
    finish(p);
    must(api.ncclCommFinalize(p->comm) == ncclSuccess, "finalize");
}

static void case_count(place *p)
{
    gather(p, p->comm, (size_t)(ELEMS + p->rank), ncclUint8, p->q);
}

static void case_type(place *p)
{
    gather(p, p->comm, ELEMS * (p->rank ? 4 : 1), p->rank ? ncclUint8 : ncclFloat32, p->q);
}

static void case_op(place *p)
{
    if (p->rank == 0)
        gather(p, p->comm, ELEMS, ncclFloat32, p->q);
    else
        api.ncclReduceScatter(p->a, p->b, ELEMS, ncclFloat32, ncclSum, p->comm, p->q);
}

static void case_root(place *p)
{
    api.ncclBroadcast(p->a, p->a, ELEMS, ncclUint8, p->rank, p->comm, p->q);
}

static void case_lengths(place *p)
{
    if (p->rank == 0)
        api.ncclSend(p->a, 10, ncclUint8, 1, p->comm, p->q);
    else
        api.ncclRecv(p->a, 20, ncclUint8, 0, p->comm, p->q);
}

static void case_crossed(place *p)
{
    ncclComm_t other = split(p);
    gather(p, p->comm, 1, ncclUint8, p->q); /* connects */
    gather(p, other, 1, ncclUint8, p->q);
    gather(p, p->rank == 0 ? p->comm : other, ELEMS, ncclUint8, p->q);
    gather(p, p->rank == 0 ? other : p->comm, ELEMS, ncclUint8, p->q2);
}

/* Rank 1 makes neither call, so that the first of rank 0 is still under way at the second. */
static void case_unordered(place *p)
{
    ncclComm_t other = split(p);
    gather(p, p->comm, 1, ncclUint8, p->q); /* connects */
    gather(p, other, 1, ncclUint8, p->q);
    finish(p);
    while (p->rank == 1)
        pause();
    gather(p, p->comm, ELEMS, ncclUint8, p->q);
    gather(p, other, ELEMS, ncclUint8, p->q2);
}

/* Rank 0 sends before it receives, so its message is there when rank 1's has been taken. */
static void case_send_alone(place *p)
{
    swap(p); /* connects */
    api.ncclGroupStart();
    api.ncclSend(p->a, 10, ncclUint8, p->peer, p->comm, p->q);
    if (p->rank == 0)
        api.ncclRecv(p->b, 10, ncclUint8, p->peer, p->comm, p->q);
    must(api.ncclGroupEnd() == ncclSuccess, "group");
    if (p->rank == 0)
        return;
    finish(p);
    api.ncclCommFinalize(p->comm);
}

static void case_sends_first(place *p)
{
    api.ncclSend(p->a, 10, ncclUint8, p->peer, p->comm, p->q);
    api.ncclRecv(p->b, 10, ncclUint8, p->peer, p->comm, p->q);
}

static void *abort_main(void *arg)
{
    place *p = arg;
    must(api.ncclCommAbort(p->comm) == ncclSuccess, "abort");
    return NULL;
}

/* The peer is gone: the abort, from whatever thread, takes the call off the stream. */
static void case_abort(place *p)
{
    pthread_t thread;
    gather(p, p->comm, 1, ncclUint8, p->q); /* connects */
    finish(p);
    if (p->rank == 1)
        _exit(0);
    gather(p, p->comm, ELEMS, ncclUint8, p->q);
    must(pthread_create(&thread, NULL, abort_main, p) == 0, "thread");
    pthread_join(thread, NULL);
    finish(p);
}

/* Abort when the main thread sleeps: in the call that it makes after it has set p->say. */
static void *abort_beside_main(void *arg)
{
    const place *p = arg;
    char path[64], state = 'R';
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", (int)getpid());
    while (atomic_load(p->say) == 0 || state != 'S') {
        usleep(1000);
        FILE *in = fopen(path, "r");
        must(in != NULL && fscanf(in, "%*d (%*[^)]) %c", &state) == 1, path);
        fclose(in);
    }
    return abort_main(arg);
}

/* The peer does not come to the call that would connect it: the host stays in it. */
static void case_abort_beside(place *p)
{
    pthread_t thread;
    if (p->rank == 1)
        _exit(0);
    must(pthread_create(&thread, NULL, abort_beside_main, p) == 0, "thread");
    atomic_store(p->say, 1);
    gather(p, p->comm, ELEMS, ncclUint8, p->q);
}

/* The first call waits for the peer's, those after it do not. */
static void case_connects(place *p)
{
    if (p->rank == 1) {
        usleep(200000);
        atomic_store(p->say, 1);
    }
    gather(p, p->comm, ELEMS, ncclUint8, p->q);
    must(atomic_load(p->say) > 0, "the first call has waited"); /* rank 0 may have said 2 */
    if (p->rank == 1)
        while (atomic_load(p->say) < 2)
            usleep(1000);
    gather(p, p->comm, ELEMS, ncclUint8, p->q);
    atomic_store(p->say, 2);
    finish(p);
}

static void case_all_reduce(place *p)
{
    int64_t mine[2] = {INT64_C(1) << 62, p->rank == 0 ? -5 : 3};
    must(api.cudaMemcpyAsync(p->a, mine, sizeof mine, cudaMemcpyHostToDevice, p->q) == cudaSuccess,
         "up");
    must(api.ncclAllReduce(p->a, p->a, 2, ncclInt64, ncclSum, p->comm, p->q) == ncclSuccess,
         "all-reduce");
    must(api.cudaMemcpyAsync(mine, p->a, sizeof mine, cudaMemcpyDeviceToHost, p->q) == cudaSuccess,
         "down");
    finish(p);
    must(mine[0] == INT64_MIN && mine[1] == -2, "sums, which wrap around");
}

static void look(place *p)
{
    ncclResult_t state = ncclInProgress;
    while (state == ncclInProgress)
        must(api.ncclCommGetAsyncError(p->comm, &state) == ncclSuccess, "look");
    must(state == ncclSuccess, "state");
}

/* On a communicator that does not block no call of a group says that it is through. */
static void case_group_goes_on(place *p)
{
    api.ncclGroupStart();
    must(api.ncclSend(p->a, 9, ncclUint8, p->peer, p->comm, p->q) == ncclInProgress, "send");
    must(api.ncclRecv(p->b, 9, ncclUint8, p->peer, p->comm, p->q) == ncclInProgress, "receive");
    must(api.ncclGroupEnd() == ncclInProgress, "group");
    look(p);
    finish(p);
}

/* NCCL_COMM_BLOCKING=1: whatever the program has asked for. */
static void case_made_to_block(place *p)
{
    gather(p, p->comm, ELEMS, ncclUint8, p->q);
    finish(p);
}

static void case_too_early(place *p)
{
    ncclResult_t first = api.ncclAllGather(p->a, p->b, ELEMS, ncclUint8, p->comm, p->q);
    ncclResult_t second = api.ncclAllGather(p->a, p->b, ELEMS, ncclUint8, p->comm, p->q);
    must(first == ncclInProgress && second == ncclInvalidArgument, "too early");
    look(p);
    finish(p);
}

static void case_one_gpu(place *p)
{
    (void)p;
}

typedef struct test {
    const char *name;
    void (*run)(place *);
    const char *says; /* in what the ranks write; NULL: nothing is said and both end well */
    bool goes_on;     /* all ranks end well all the same */
    bool waits;       /* the communicator does not block */
    const char *nccl; /* version */
} test;

static const test TESTS[] = {
    {"good", case_good, NULL, true, false, NULL},
    {"count", case_count, "ranks disagree", false, false, NULL},
    {"type", case_type, "ranks disagree", false, false, NULL},
    {"op", case_op, "ranks disagree", false, false, NULL},
    {"root", case_root, "ranks disagree", false, false, NULL},
    {"lengths", case_lengths, "ranks disagree", false, false, NULL},
    {"crossed", case_crossed, "a circle of processes", false, false, NULL},
    {"unordered", case_unordered, "two calls may run at once", false, false, "22500"},
    {"send_alone", case_send_alone, "rank 1 ends its communicator, rank 0 is in send 2", false,
     false, NULL},
    {"sends_first", case_sends_first, "a circle of processes", false, false, NULL},
    {"abort", case_abort, NULL, true, false, NULL},
    {"abort_beside", case_abort_beside, "while another thread is in", false, false, NULL},
    {"connects", case_connects, NULL, true, false, NULL},
    {"all_reduce", case_all_reduce, NULL, true, false, NULL},
    {"group_goes_on", case_group_goes_on, NULL, true, true, NULL},
    {"made_to_block", case_made_to_block, NULL, true, true, NULL},
    {"too_early", case_too_early, "before ncclCommGetAsyncError has said", true, true, NULL},
    {"one_gpu", case_one_gpu, "Duplicate GPU detected", false, false, NULL},
};

static ncclResult_t open_comm(place *p, ncclUniqueId id, bool blocking)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclResult_t state = ncclInProgress;
    config.blocking = blocking;
    ncclResult_t got = api.ncclCommInitRankConfig(&p->comm, 2, id, p->rank, &config);
    while (got == ncclInProgress && state == ncclInProgress)
        must(api.ncclCommGetAsyncError(p->comm, &state) == ncclSuccess, "look");
    return got == ncclInProgress ? state : got;
}

static void rank_main(const test *t, int rank, ncclUniqueId id, atomic_int *say)
{
    place p = {.rank = rank, .peer = 1 - rank, .say = say};
    alarm(ALARM_S);
    setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 1);
    if (t->nccl != NULL)
        setenv("FSDP_SIM_NCCL", t->nccl, 1);
    if (t->run == case_made_to_block)
        setenv("NCCL_COMM_BLOCKING", "1", 1);
    must(api.cudaSetDevice(t->run == case_one_gpu ? 0 : rank) == cudaSuccess, "device");
    must(api.cudaStreamCreateWithPriority(&p.q, cudaStreamNonBlocking, 0) == cudaSuccess, "stream");
    must(api.cudaStreamCreateWithPriority(&p.q2, cudaStreamNonBlocking, 0) == cudaSuccess,
         "stream");
    void *new_a = NULL;
    must(api.cudaMallocAsync(&new_a, BYTES, p.q) == cudaSuccess, "memory");
    p.a = new_a;
    void *new_b = NULL;
    must(api.cudaMallocAsync(&new_b, BYTES, p.q) == cudaSuccess, "memory");
    p.b = new_b;
    await(p.q);
    must(open_comm(&p, id, !t->waits) == ncclSuccess, "ncclCommInitRankConfig");
    t->run(&p);
    finish(&p);
    exit(0);
}

/* Run both ranks; what they write into text, how many ended well. A rank whose peer was ended by a
 * message would wait for ever: it is ended too. */
static int both_run(const test *t, char *text)
{
    int ends[2], n_well = 0;
    ncclUniqueId id;
    pid_t pid[2];
    size_t n = 0;
    ssize_t got;
    atomic_int *say =
        mmap(NULL, sizeof *say, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    must(say != MAP_FAILED, "memory");
    must(api.ncclGetUniqueId(&id) == ncclSuccess && pipe(ends) == 0, "start");
    fflush(NULL);
    for (int r = 0; r < 2; r++) {
        pid[r] = fork();
        if (pid[r] == 0) {
            dup2(ends[1], STDERR_FILENO);
            close(ends[0]);
            close(ends[1]);
            rank_main(t, r, id, say);
        }
    }
    close(ends[1]);
    while (n < TEXT_BYTES - 1 && (got = read(ends[0], text + n, TEXT_BYTES - 1 - n)) > 0) {
        text[n += (size_t)got] = '\0';
        if (!t->goes_on && t->says != NULL && strstr(text, "HINT") != NULL)
            break;
    }
    usleep(t->goes_on ? 0 : 200000);
    for (int r = 0; r < 2; r++) {
        int status;
        if (!t->goes_on)
            kill(pid[r], SIGKILL);
        waitpid(pid[r], &status, 0);
        n_well += WIFEXITED(status) && WEXITSTATUS(status) == 0;
    }
    close(ends[0]);
    munmap(say, sizeof *say);
    return n_well;
}

int main(void)
{
    static char text[TEXT_BYTES];
    int n_failed = 0;
    const char *name = getenv("FSDP_DEVICE");
    if (name == NULL || strcmp(name, "cuda-sim") != 0) {
        printf("SKIP it is about cuda-sim: set FSDP_DEVICE=cuda-sim\n");
        return 77;
    }
    CALLS(FETCH)
    for (size_t i = 0; i < sizeof TESTS / sizeof *TESTS; i++) {
        const test *t = &TESTS[i];
        text[0] = '\0';
        int n_well = both_run(t, text);
        bool said = t->says == NULL ? text[0] == '\0' : strstr(text, t->says) != NULL;
        bool ended = t->goes_on ? n_well == 2 : n_well < 2;
        printf("%s %s\n", said && ended ? "PASS" : "FAIL", t->name);
        if (!said || !ended)
            printf("    %d ranks ended well and wrote:\n%s\n", n_well, text);
        n_failed += !said || !ended;
    }
    return n_failed > 0;
}
