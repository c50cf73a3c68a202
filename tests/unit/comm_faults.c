/* comm_faults.c -- what a group does when its ranks disagree, wait or die; driven by
 * comm_faults.sh.
 *
 *   build/fsdp_run -n W build/tests/unit/comm_faults CASE [close|abort]     FSDP_COMM=shm|mpi
 *
 *   FSDP_DEVICE            run on this device, over its own transport
 *   COMM_FAULT_START=...   kill or sleep, for NCCL and HCCL: see start_fault below
 *   COMM_FAULT_MODELS=1    rank 1 has another model of device, on cuda-sim and npu-sim
 *   COMM_FAULT_SHARES=1    rank 1 does not allow ranks to share a GPU, on cuda-sim
 *   COMM_FAULT_FAKE=1      the top transport cannot carry hosts' calls
 *   COMM_FAULT_REFUSED=r   rank r may open no other process's files
 *   COMM_FAULT_NO_PIDFD=1  the kernel refuses pidfds
 *   COMM_FAULT_ALLOC=N     the allocation that fails in *_no_memory, under tests/cli/alloc_fail.so
 *   COMM_FAULT_MEET=DIR    an empty directory, in which ranks wait for each other without the group
 *
 * Each rank makes two good calls, then runs the case, in which the last rank differs from the
 * others. In gone_early the last rank ends before it joins; in late_close it closes after all
 * others have closed. Every rank that lives prints "SAW rank r STATUS words" for the case, "NEXT
 * rank r STATUS" for a call after it, and "DONE rank r/W" after comm_close. With COMM_FAULT_MEET no
 * rank ends before all living ranks have printed DONE: a launcher kills the other ranks when the
 * first one ends, and on a busy machine some may not have run by then. A rank that saw no error
 * keeps calling barriers until it does, as a training loop would. The exit status is 0 also after
 * errors: the script judges the words. */
#include "tests/sim/cuda/include/nccl.h"
#include "tests/unit/comm_apart_lib.h"
#include "tests/unit/comm_fake_lib.h"
#include "tests/unit/slices.h"
#include "tests/unit/target_lib.h"
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ELEMS = 320, MAX_RANKS = 16 };

typedef struct fixture fixture;

/* An all-gather; with only a label, of ELEMS floats. */
typedef struct call {
    const char *label;
    dtype type;
    size_t elems;
} call;

/* Arguments of comm_range: n ranks, `step` (0: 1) apart, beginning with rank 0 or with the rank
 * `back` places before this one. n of 0 or less counts from the size of the group. */
typedef struct range {
    bool from_0;
    int back, step, n;
} range;

/* How the last rank differs from the others. */
typedef struct fault {
    const char *name;
    fsdp_status (*run)(fixture *f);
    call others, odd;
    range range, odd_range;
    void (*odd_does)(const fixture *f); /* runs before its call */
} fault;

struct fixture {
    device *dev;
    comm *c;
    stream *s, *busy; /* busy: NULL, or a stream on which a case has left work */
    const sum_kernels *sums;
    const comm_transport *native;
    const fault *fault;
    int rank, world;
    bool odd_one;       /* this is the last rank */
    bool failed;        /* the case has failed */
    float *send, *recv; /* [(ELEMS + 1) * MAX_RANKS] on the device */
};

static fixture fx;

/* ---- ranks that wait for each other, whatever has become of their group --------------------- */

static bool meeting_place(char path[static 512], const char *name, int rank)
{
    const char *dir = getenv("COMM_FAULT_MEET");
    snprintf(path, 512, "%s/%s.%d", dir != NULL ? dir : "", name, rank);
    return dir != NULL;
}

/* This rank has reached the meeting point `name`, a directory: some cases can open no file. */
static void come(const char *name)
{
    char path[512];
    if (meeting_place(path, name, fx.rank) && mkdir(path, 0700) != 0)
        perror(path);
}

/* Returns when the ranks below n_ranks have reached the meeting point. The script ends a run that
 * takes too long. Without COMM_FAULT_MEET it sleeps for otherwise_ms instead. */
static void await(const char *name, int n_ranks, unsigned otherwise_ms)
{
    char path[512];
    struct stat is;
    for (int r = 0; r < n_ranks && meeting_place(path, name, r); r++)
        while (stat(path, &is) != 0)
            usleep(10000);
    if (getenv("COMM_FAULT_MEET") == NULL)
        usleep(otherwise_ms * 1000);
}

/* ---- what the cases are made of ------------------------------------------------------------- */

/* Zeros on the device, in order of s. Without memory the process ends. */
static float *zeros(stream *s, size_t elems)
{
    float *ptr = NULL;
    if (device_alloc_f32(s, MEM_OTHER, elems, "test", &ptr) != FSDP_OK ||
        device_zero(s, ptr, elems * sizeof *ptr) != FSDP_OK)
        exit(1);
    return ptr;
}

/* Waits for the stream, if `status` says that the work has been issued. */
static fsdp_status synced(fixture *f, fsdp_status status)
{
    return status == FSDP_OK ? stream_sync(f->s) : status;
}

static fsdp_status gather_in(fixture *f, comm *group, const call *c)
{
    const size_t elems = c->elems > 0 ? c->elems : ELEMS;
    return synced(f, comm_all_gather(group, f->s, c->label, c->type, f->send, f->recv, elems));
}

static fsdp_status gather(fixture *f, const char *label)
{
    return gather_in(f, f->c, &(call){.label = label});
}

static fsdp_status scatter(fixture *f, const char *label, const size_t *lengths)
{
    grad_acc acc;
    grad_acc_init(&acc, GRAD_ACC_FAST, f->sums, lengths[f->rank], MEM_GRADS_SHARD, "sum");
    const comm_slice *slices = slices_of(lengths, f->world, (comm_slice[MAX_RANKS]){{0}});
    fsdp_status status =
        synced(f, comm_reduce_scatterv(f->c, f->s, label, f->send, slices, &acc, 0));
    grad_acc_free(&acc, f->s);
    return status;
}

/* Closes the group, and keeps the record of an error. */
static fsdp_status closed_with(comm *group, fsdp_status status)
{
    fsdp_error_info info = *fsdp_error_get();
    comm_close(group);
    if (status != FSDP_OK)
        fsdp_error_set(&info);
    return status;
}

/* Frees two blocks, and keeps the record of an error. */
static fsdp_status freed_with(fixture *f, void *send, void *recv, fsdp_status status)
{
    fsdp_error_info info = *fsdp_error_get();
    (void)stream_sync(f->s);
    device_free(f->s, send);
    device_free(f->s, recv);
    fsdp_error_set(&info);
    return status;
}

/* ---- calls that differ ---------------------------------------------------------------------- */

/* The last rank's all-gather differs from the others'. Large messages wait for their receiver
 * (rendezvous), small ones do not. */
static fsdp_status case_calls(fixture *f)
{
    const call *c = f->odd_one ? &f->fault->odd : &f->fault->others;
    if (c->elems <= ELEMS + 1)
        return gather_in(f, f->c, c);
    float *send = zeros(f->s, c->elems), *recv = zeros(f->s, c->elems * (size_t)f->world);
    return freed_with(
        f, send, recv,
        synced(f, comm_all_gather(f->c, f->s, c->label, c->type, send, recv, c->elems)));
}

static const size_t *equal_lengths(size_t lengths[static MAX_RANKS], size_t elems)
{
    for (int r = 0; r < MAX_RANKS; r++)
        lengths[r] = elems;
    return lengths;
}

static fsdp_status case_op(fixture *f)
{
    size_t lengths[MAX_RANKS];
    return f->odd_one ? scatter(f, "h.1", equal_lengths(lengths, ELEMS)) : gather(f, "h.0");
}

/* The same total, cut differently. */
static fsdp_status case_lengths(fixture *f)
{
    size_t lengths[MAX_RANKS];
    equal_lengths(lengths, 10);
    lengths[0] += f->odd_one;
    lengths[1] -= f->odd_one;
    return scatter(f, "cut", lengths);
}

/* Shards of the same length, from different pieces. */
static fsdp_status case_pieces(fixture *f)
{
    comm_piece rows[MAX_RANKS];
    for (int r = 0; r < f->world; r++)
        rows[r] = (comm_piece){.at = (size_t)r * 10, .begin = (size_t)r * 10, .elems = 10};
    rows[0].elems -= f->odd_one;
    const comm_pieces pieces = {rows, (size_t)f->world, 10};
    return synced(f,
                  comm_all_gather_pieces(f->c, f->s, "cut", DTYPE_F32, f->send, f->recv, &pieces));
}

/* The descriptors of an all-to-all-v cannot show this: a rank sends more or less than its peer
 * expects. */
static fsdp_status case_pairs(fixture *f)
{
    size_t sent[MAX_RANKS], received[MAX_RANKS];
    equal_lengths(sent, 4);
    equal_lengths(received, 4);
    if (f->odd_one)
        sent[0] = f->fault->odd.elems;
    return synced(
        f, comm_all_to_allv(f->c, f->s, "pairs", DTYPE_F32, f->send, sent, f->recv, received));
}

/* The last rank leaves out a call and issues the next one. */
static fsdp_status case_skipped(fixture *f)
{
    if (!f->odd_one)
        TRY(gather(f, "skipped"));
    return gather(f, "next");
}

/* A call in a group of every other rank, with the last rank in it. The ranks outside must hear of
 * the error too: those with others.label are already in a call of all ranks. */
static fsdp_status case_subgroup(fixture *f)
{
    comm *half = NULL;
    const int parity = f->rank % 2;
    const call mine = {.label = f->odd_one ? "half b" : "half a"};
    TRY(comm_range(f->c, parity, 2, (f->world + 1 - parity) / 2, &half));
    fsdp_status status = FSDP_OK;
    if (parity == (f->world - 1) % 2)
        status = gather_in(f, half, &mine);
    else if (f->fault->others.label != NULL)
        status = synced(f, comm_barrier(f->c, f->s, f->fault->others.label));
    return closed_with(half, status);
}

/* The ranks name ranges that do not fit together. Or the last rank names a range that it is not in,
 * or that is not in the group. */
static fsdp_status case_range(fixture *f)
{
    comm *part = NULL;
    const range *r = f->odd_one ? &f->fault->odd_range : &f->fault->range;
    const int n = r->n > 0 ? r->n : f->world + r->n;
    fsdp_status status =
        comm_range(f->c, r->from_0 ? 0 : f->rank - r->back, r->step > 0 ? r->step : 1, n, &part);
    return closed_with(part, status);
}

/* Calls in two groups, which the last rank issues in the other order. */
static fsdp_status case_crossed(fixture *f)
{
    comm *other = NULL;
    TRY(comm_range(f->c, 0, 1, f->world, &other));
    fsdp_status status = FSDP_OK;
    for (int i = 0; i < 2 && status == FSDP_OK; i++)
        status = comm_all_gather(i == (f->odd_one ? 1 : 0) ? f->c : other, f->s, "crossed",
                                 DTYPE_F32, f->send, f->recv, ELEMS);
    return closed_with(other, synced(f, status));
}

static fsdp_status doze(void *args, int n_threads)
{
    await("closed", fx.world, 3000);
    return FSDP_OK;
}

/* The ranks disagree while another call is queued. The queue reaches this call after all is
 * closed. */
static fsdp_status case_closed_queued(fixture *f)
{
    TRY(stream_create(f->dev, &(stream_config){.name = "busy"}, &f->busy));
    TRY(stream_launch_work(f->busy, &(launch_config){.fn = doze, .on_host = true}));
    TRY(comm_all_gather(f->c, f->busy, "queued", DTYPE_F32, f->send, f->recv, ELEMS));
    come("queued");
    await("queued", f->world, 300);
    return case_calls(f);
}

/* ---- a rank that does not come, or cannot --------------------------------------------------- */

/* Something happens to the last rank before its call. */
static fsdp_status case_awaited(fixture *f)
{
    if (f->odd_one)
        f->fault->odd_does(f);
    return case_calls(f);
}

/* The same in the first call of a new group. A library may connect the ranks in that call, and the
 * host waits there. */
static fsdp_status case_first(fixture *f)
{
    comm *other = NULL;
    TRY(comm_range(f->c, 0, 1, f->world, &other));
    if (f->odd_one)
        f->fault->odd_does(f);
    return closed_with(other, gather_in(f, other, &f->fault->others));
}

static fsdp_status break_work(void *args, int n_threads)
{
    return fsdp_error(FSDP_EIO, "", "work of the test failed");
}

/* Its part of the call does not run. */
static void break_stream(const fixture *f)
{
    (void)stream_launch_work(f->s, &(launch_config){.fn = break_work, .on_host = true});
}

/* It gets no host memory for its part, on a device whose memory is not the host's. */
static void lack_block(const fixture *f)
{
    apart_fail_host(1);
}

/* It comes only after all others have given up. */
static void be_busy(const fixture *f)
{
    await("closed", f->world - 1, 5000);
}

static void die(const fixture *f)
{
    come("done"); /* nobody must wait for it */
    kill(getpid(), SIGKILL);
}

/* It dies when the others are in their call. */
static void die_later(const fixture *f)
{
    usleep(300000);
    die(f);
}

static void leave(const fixture *f)
{
    come("done");
    _exit(3);
}

/* It ends, but with status 0. */
static void leave_well(const fixture *f)
{
    come("done");
    _exit(0);
}

static void end_job(const fixture *f)
{
    come("done");
    comm_abort(f->c, 7);
}

/* All its threads stop until the others have given up. */
static void stand_still(const fixture *f)
{
    const pid_t me = getpid();
    if (fork() == 0) {
        be_busy(f);
        kill(me, SIGCONT);
        _exit(0);
    }
    raise(SIGSTOP);
}

/* The last rank's memory request number COMM_FAULT_ALLOC fails while another group is split or
 * opened. Its peers must not wait for it. */
static fsdp_status case_no_memory(fixture *f)
{
    comm *other = NULL;
    const bool splits = f->fault->range.from_0;
    void (*fail_at)(long) = dlsym(RTLD_DEFAULT, "alloc_fail_at"); /* in alloc_fail.so */
    if (f->odd_one && fail_at != NULL)
        fail_at(atol(getenv("COMM_FAULT_ALLOC")));
    fsdp_status status = splits ? comm_range(f->c, 0, 1, f->world, &other)
                                : comm_open(f->dev, &(comm_config){.backend = COMM_AUTO}, &other);
    if (f->odd_one && fail_at != NULL)
        fail_at(0);
    if (status == FSDP_OK)
        status = gather_in(f, other, &f->fault->others);
    return closed_with(other, status);
}

/* The last rank dies while all of them wait for a slow network. */
static fsdp_status case_kill_asleep(fixture *f)
{
    comm *slow = NULL;
    setenv("FSDP_LINK", "1Gbit,1000s", 1);
    TRY(comm_open(f->dev, &(comm_config){.sums = f->sums, .native = f->native}, &slow));
    TRY(comm_all_gather(slow, f->s, "slow", DTYPE_F32, f->send, f->recv, ELEMS));
    usleep(300000); /* by then the others usually sleep */
    if (f->odd_one)
        die(f);
    return closed_with(slow, stream_sync(f->s));
}

static void on_alarm(int signal_number)
{
    die(&fx);
}

/* Blocks of this rank that peers can read, for a gather of `bytes` bytes per rank. */
static fsdp_status shared_blocks(fixture *f, size_t bytes, void **send, void **recv)
{
    TRY(comm_alloc(f->c, f->s, MEM_OTHER, bytes, "send", send));
    return comm_alloc(f->c, f->s, MEM_OTHER, bytes * (size_t)f->world, "recv", recv);
}

/* Many large gathers. The last rank dies in one of them, while its peers read its memory or it
 * reads theirs. */
static fsdp_status case_kill_reading(fixture *f)
{
    enum { LARGE = 4000000 };
    void *send = NULL, *recv = NULL;
    struct itimerval soon = {.it_value = {.tv_usec = 150000 + getpid() % 1000 * 100}};
    TRY(shared_blocks(f, LARGE, &send, &recv));
    signal(SIGALRM, on_alarm);
    if (f->odd_one)
        setitimer(ITIMER_REAL, &soon, NULL);
    fsdp_status status = FSDP_OK;
    for (int i = 0; status == FSDP_OK && i < 100000; i++) {
        status = comm_all_gather(f->c, f->s, "large", DTYPE_U8, send, recv, LARGE);
        if (i % 4 == 3)
            status = synced(f, status);
    }
    return freed_with(f, send, recv, status);
}

/* After half a second all ranks are stopped for PAUSE_S seconds, as by Ctrl-Z. The last rank issues
 * its call LATE_S seconds after that, so that the others look at their clocks before it comes. */
enum { PAUSE_S = 12, LATE_S = 2 };
static fsdp_status case_paused(fixture *f)
{
    pid_t me = getpid(), pauser = fork();
    if (pauser == 0) {
        usleep(500000);
        kill(me, SIGSTOP);
        sleep(PAUSE_S);
        kill(me, SIGCONT);
        _exit(0);
    }
    while (f->odd_one && waitpid(pauser, NULL, 0) < 0 && errno == EINTR)
        continue;
    if (f->odd_one)
        sleep(LATE_S);
    return gather(f, "awaited");
}

/* Bytes of address space in use. */
static size_t space_used(void)
{
    unsigned long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file == NULL || fscanf(file, "%lu", &pages) != 1)
        pages = 0;
    if (file != NULL)
        fclose(file);
    return pages * (size_t)sysconf(_SC_PAGESIZE);
}

/* The last rank has no address space left to map its peers' blocks. */
static fsdp_status case_no_room(fixture *f)
{
    enum { LARGE = 40000000 };
    void *send = NULL, *recv = NULL;
    struct rlimit limit;
    TRY(shared_blocks(f, LARGE, &send, &recv));
    getrlimit(RLIMIT_AS, &limit);
    limit.rlim_cur = space_used() + LARGE / 2;
    if (f->odd_one)
        setrlimit(RLIMIT_AS, &limit);
    return freed_with(f, send, recv,
                      synced(f, comm_all_gather(f->c, f->s, "large", DTYPE_U8, send, recv, LARGE)));
}

/* ---- nothing is wrong ----------------------------------------------------------------------- */

static fsdp_status case_good(fixture *f)
{
    for (int i = 0; i < 50; i++)
        TRY(gather(f, "good"));
    printf("GOOD rank %d over %s\n", f->rank, comm_backend_name(f->c));
    fflush(stdout);
    return gather(f, "last");
}

/* Waits until the script has looked at the ranks. */
static fsdp_status case_stay(fixture *f)
{
    TRY(case_good(f));
    await("seen", 1, 8000);
    return gather(f, "after all");
}

/* Every rank waits. Only the death of the launcher, which the script kills, ends this. */
static fsdp_status case_orphans(fixture *f)
{
    printf("WAITING rank %d\n", f->rank);
    fflush(stdout);
    if (f->odd_one)
        pause();
    return gather(f, "awaited");
}

/* ---- the cases ------------------------------------------------------------------------------ */

#define AWAITED   .others.label = "awaited", .odd.label = "awaited"
#define LATE      .others.label = "awaited", .odd.label = "late"
#define TWO_CALLS .others.label = "h.0", .odd.label = "h.1"
#define TEN       "xxxxxxxxxx"
#define LONG      TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN /* longer than a descriptor shows */

static const fault faults[] = {
    {"op", .run = case_op},
    {"elems", .run = case_calls, .others.label = "h.0", .odd = {"h.0", DTYPE_F32, ELEMS + 1}},
    {"elems_large", .run = case_calls, .others = {"large", DTYPE_F32, 1000000},
     .odd = {"large", DTYPE_F32, 3000000}},
    {"dtype", .run = case_calls, .others.label = "h.0",
     .odd = {"h.0", DTYPE_I64, ELEMS / 2}}, /* the same number of bytes */
    {"dtype_only", .run = case_calls, .others = {"h.0", DTYPE_BF16, ELEMS}, .odd.label = "h.0"},
    {"label", .run = case_calls, TWO_CALLS},
    {"long_label", .run = case_calls, .others.label = LONG "b", .odd.label = LONG "a"},
    {"lengths", .run = case_lengths},
    {"pieces", .run = case_pieces},
    {"pairs", .run = case_pairs, .odd.elems = 5},
    {"pairs_short", .run = case_pairs, .odd.elems = 3},
    {"skipped", .run = case_skipped},
    {"subgroup", .run = case_subgroup},
    {"subgroup_awaited", .run = case_subgroup, .others.label = "of all"},
    {"crossed", .run = case_crossed},
    {"closed_queued", .run = case_closed_queued, TWO_CALLS},
    {"range", .run = case_range, .range.from_0 = true, .odd_range.n = 1},
    /* The other ranks' ranges fit together. A peer in the last rank's range names another range. */
    {"range_wide", .run = case_range, .range.n = 1, .odd_range = {.back = 1, .n = 2}},
    {"range_without", .run = case_range, .range.n = 1, .odd_range = {.from_0 = true, .n = -1}},
    {"range_between", .run = case_range, .range.n = 1, .odd_range = {.back = 1, .step = 2, .n = 1}},
    {"range_beyond", .run = case_range, .range.n = 1, .odd_range.n = 2},
    {"split_no_memory", .run = case_no_memory, .others.label = "in the part", .range.from_0 = true},
    {"open_no_memory", .run = case_no_memory, .others.label = "in the part"},
    {"stream_failed", .run = case_awaited, AWAITED, .odd_does = break_stream},
    {"no_block", .run = case_awaited, AWAITED, .odd_does = lack_block},
    {"timeout", .run = case_awaited, LATE, .odd_does = be_busy},
    {"timeout_first", .run = case_first, AWAITED, .odd_does = be_busy},
    {"stopped", .run = case_awaited, LATE, .odd_does = stand_still},
    {"paused", .run = case_paused},
    {"exit", .run = case_awaited, AWAITED, .odd_does = leave},
    {"exit0", .run = case_awaited, AWAITED, .odd_does = leave_well},
    {"abort", .run = case_awaited, AWAITED, .odd_does = end_job},
    {"kill", .run = case_awaited, AWAITED, .odd_does = die},
    {"kill_first", .run = case_first, AWAITED, .odd_does = die_later},
    {"kill_reading", .run = case_kill_reading},
    {"kill_asleep", .run = case_kill_asleep},
    {"no_room", .run = case_no_room},
    {"good", .run = case_good},
    {"late_close", .run = case_good},
    {"stay", .run = case_stay},
    {"orphans", .run = case_orphans},
};

/* Replaces the C library's open, and refuses COMM_FAULT_REFUSED's rank like a hardened kernel. */
int open(const char *path, int flags, ...)
{
    const char *refused = getenv("COMM_FAULT_REFUSED"), *rank = getenv("PMI_RANK");
    va_list list;
    va_start(list, flags);
    int mode = (flags & O_CREAT) != 0 ? va_arg(list, int) : 0;
    va_end(list);
    if (refused != NULL && rank != NULL && strcmp(refused, rank) == 0 &&
        strncmp(path, "/proc/", 6) == 0 && strstr(path, "/fd/") != NULL &&
        (flags & O_CLOEXEC) != 0) { /* the library below MPI opens files without it */
        errno = EACCES;
        return -1;
    }
    return openat(AT_FDCWD, path, flags, mode);
}

/* Runs where all ranks meet. With COMM_FAULT_START=kill the last rank dies, with
 * COMM_FAULT_START=sleep it does not come. */
static void start_fault(bool is_last)
{
    const char *how = getenv("COMM_FAULT_START");
    if (how == NULL || !is_last)
        return;
    if (strcmp(how, "kill") == 0)
        die(NULL);
    pause();
}

/* These two replace the library's functions, and call them. */
int HcclCommInitRootInfo(uint32_t n_ranks, const void *root_info, uint32_t rank, void **out)
{
    int (*own)(uint32_t, const void *, uint32_t, void **) = target_symbol(__func__);
    start_fault(rank == n_ranks - 1);
    return own(n_ranks, root_info, rank, out);
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *out, int n_ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t *config)
{
    ncclResult_t (*own)(ncclComm_t *, int, ncclUniqueId, int, ncclConfig_t *) =
        target_symbol(__func__);
    start_fault(rank == n_ranks - 1);
    return own(out, n_ranks, id, rank, config);
}

/* Rank 0 ends right after the failure. */
static void end_early(fixture *f, const char *how)
{
    if (f->rank != 0)
        return;
    if (strcmp(how, "abort") == 0)
        comm_abort(f->c, 9);
    comm_close(f->c);
    _exit(9);
}

/* Patience for calls outside the case, which may take longer than FSDP_TIMEOUT_S. */
enum { PATIENT = 100 };

/* The stream that was not done at the last cudaStreamQuery; NULL: it was done. */
static _Atomic(cudaStream_t) unfinished;

/* Replaces the library's function, and calls it. */
cudaError_t cudaStreamQuery(cudaStream_t queue)
{
    cudaError_t (*own)(cudaStream_t) = target_symbol(__func__);
    const cudaError_t code = own(queue);
    unfinished = code == cudaErrorNotReady ? queue : NULL;
    return code;
}

/* A failed NCCL group leaves nothing on its streams: calls that no peer will join are aborted.
 * (HCCL has no abort. Events of the device end after any failure.) */
static void expect_end(const fixture *f)
{
    if (f->busy != NULL) /* the case has left work on it */
        return;
    while (unfinished != NULL && cudaStreamQuery(unfinished) == cudaErrorNotReady)
        usleep(1000); /* the script ends a run that lasts too long */
}

static void run_case(fixture *f, const char *how_to_end)
{
    const bool good = f->fault->run == case_good;
    fsdp_status status = FSDP_OK;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    printf("BEGAN rank %d %lld ms\n", f->rank, now.tv_sec * 1000LL + now.tv_nsec / 1000000);
    fflush(stdout);
    comm_set_patience(f->c, PATIENT);
    /* a fast peer may fail before this rank sees the end of its second call */
    for (int i = 0; i < 2 && status == FSDP_OK; i++)
        status = gather(f, "warm up");
    comm_set_patience(f->c, good ? PATIENT : 1);
    if (status == FSDP_OK)
        status = f->fault->run(f);
    for (int i = 0; status == FSDP_OK && !good && i < 1000; i++)
        status = synced(f, comm_barrier(f->c, f->s, "after the case"));
    fsdp_error_info info = *fsdp_error_get();
    f->failed = status != FSDP_OK;
    if (how_to_end != NULL)
        end_early(f, how_to_end);
    /* In one write(2), so that no other rank's line comes in between: under MPICH over UCX stdout
     * has no buffer, and then printf writes pieces of 128 bytes. */
    char line[sizeof info.what + 64];
    snprintf(line, sizeof line, "SAW rank %d %s %s\n", f->rank, fsdp_status_name(status),
             info.what);
    fputs(line, stdout);
    fflush(stdout);
    if (how_to_end != NULL)
        pause(); /* rank 0 ends the job */
    expect_end(f);
    stream_free(f->s); /* the stream keeps its error; a fresh one shows the group's */
    f->s = NULL;
    if (stream_create(f->dev, &(stream_config){.name = "after"}, &f->s) == FSDP_OK)
        status = gather(f, "afterwards");
    printf("NEXT rank %d %s\n", f->rank, fsdp_status_name(status));
    fflush(stdout);
}

/* From now on the kernel refuses pidfd_open to this process. */
static void refuse_pidfds(void)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pidfd_open, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    struct sock_fprog program = {.len = sizeof filter / sizeof *filter, .filter = filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
        perror("seccomp");
        exit(1);
    }
}

static fsdp_status fixture_open(fixture *f)
{
    device_config dc = {.backend = comm_test_backend(), .n_threads = 1, .debug_fill = true};
    comm_config cc = {.backend = COMM_AUTO};
    f->sums = ops_cpu_portable()->sums;
    if (getenv("FSDP_DEVICE") != NULL) {
        const backend *b = target_backend();
        if (getenv("COMM_FAULT_SHARES") != NULL && comm_launched_rank() == 1)
            unsetenv("NCCL_MULTI_RANK_GPU_ENABLE");
        if (getenv("COMM_FAULT_MODELS") != NULL && comm_launched_rank() == 1) {
            setenv("FSDP_SIM_MODEL", "another model", 1);
            setenv("FSDP_SIM_SOC", "another model", 1);
        }
        dc.backend = b->device;
        dc.index = target_index();
        cc.native = f->native = b->native;
        cc.sums = f->sums = b->fast()->sums;
    }
    TRY(device_open(&dc, &f->dev));
    TRY(comm_open(f->dev, &cc, &f->c));
    TRY(stream_create(f->dev, &(stream_config){.name = "comm"}, &f->s));
    stream *compute = device_compute_stream(f->dev);
    f->send = zeros(compute, (ELEMS + 1) * MAX_RANKS);
    f->recv = zeros(compute, (ELEMS + 1) * MAX_RANKS);
    TRY(stream_sync(compute));
    const char *why_not;
    if (getenv("COMM_FAULT_FAKE") != NULL)
        TRY(comm_put_over(f->c, &fake_transport, &why_not));
    f->rank = comm_rank(f->c);
    f->world = comm_size(f->c);
    f->odd_one = f->rank == f->world - 1;
    return FSDP_OK;
}

int main(int argc, char **argv)
{
    fixture *f = &fx;
    if (getenv("COMM_FAULT_NO_PIDFD") != NULL)
        refuse_pidfds();
    if (argc > 1 && strcmp(argv[1], "gone_early") == 0 &&
        comm_launched_rank() == comm_launched_ranks() - 1)
        return 0;
    if (fixture_open(f) != FSDP_OK) {
        fsdp_error_print(stderr, 0, 0);
        return 1;
    }
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        f->fault = &faults[i];
        if (argc > 1 && strcmp(argv[1], f->fault->name) == 0)
            run_case(f, argc > 2 ? argv[2] : NULL);
    }
    if (argc > 1 && strcmp(argv[1], "late_close") == 0 && f->odd_one)
        await("closed", f->world - 1, 4000);
    comm_set_patience(f->c, 1);
    comm_close(f->c);
    come("closed");
    stream_free(f->s);
    stream_free(f->busy);
    stream *compute = device_compute_stream(f->dev);
    device_free(compute, f->send);
    device_free(compute, f->recv);
    device_close(f->dev);
    printf("DONE rank %d/%d\n", f->rank, f->world);
    fflush(stdout);
    come("done");
    await("done", f->world, 500);
    if (f->failed) /* a library may complain at exit about leftovers */
        _exit(0);
    return 0;
}
