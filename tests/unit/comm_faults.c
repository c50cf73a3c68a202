/* comm_faults.c -- what a group does when its ranks disagree, wait or die; driven by
 * comm_faults.sh.
 *
 *   mpiexec -n W build/tests/unit/comm_faults CASE [close|abort]     FSDP_COMM=shm|mpi
 *
 *   FSDP_DEVICE            another device, whose own transport moves the data then
 *   COMM_FAULT_START=...   kill or sleep, for NCCL and HCCL: see start_fault below
 *   COMM_FAULT_MODELS=1    rank 1 has another device, on cuda-sim and npu-sim
 *   COMM_FAULT_FAKE=1      on top is a transport that cannot carry hosts' calls
 *   COMM_FAULT_REFUSED=r   rank r may open no other process's files
 *   COMM_FAULT_NO_PIDFD=1  the kernel refuses pidfds
 *   COMM_FAULT_ALLOC=N     of *_no_memory, under tests/cli/alloc_fail.so
 *   COMM_FAULT_MEET=DIR    an empty directory, in which ranks wait for each other without the group
 *
 * Two good calls, then the case, in which the last rank differs from the others; in gone_early it
 * ends before it joins, in late_close it closes after all others have closed. Every rank that lives
 * prints "SAW rank r STATUS words" for the case, "NEXT rank r STATUS" for a call after it, and
 * "DONE rank r/W" after comm_close. With COMM_FAULT_MEET none ends before all that live have
 * printed that: a launcher kills the others when the first ends, and on a busy machine some may
 * not have run by then. A rank that saw no error keeps calling barriers until it does, as a
 * training loop would. Exit status 0 also when errors were seen: the script judges the words. */
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

typedef struct fixture {
    device *dev;
    comm *c;
    stream *s, *busy; /* busy: NULL, or one on which a case has left work */
    const sum_kernels *sums;
    const comm_transport *native;
    int rank, world;
    bool odd_one;       /* the last rank */
    bool failed;        /* the case */
    float *send, *recv; /* [(ELEMS + 1) * MAX_RANKS] on the device */
} fixture;

static fixture fx;

/* ---- ranks that wait for each other, whatever has become of their group --------------------- */

static bool meeting_place(char path[static 512], const char *name, int rank)
{
    const char *dir = getenv("COMM_FAULT_MEET");
    snprintf(path, 512, "%s/%s.%d", dir != NULL ? dir : "", name, rank);
    return dir != NULL;
}

/* This rank has come to the place of that name. A directory, since some cases can open no file. */
static void come(const char *name)
{
    char path[512];
    if (meeting_place(path, name, fx.rank) && mkdir(path, 0700) != 0)
        perror(path);
}

/* Returns when the ranks below n_ranks have come there; the script ends a run that lasts too long.
 * Without places it takes as many milliseconds as given instead. */
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

/* Zeros on the device, in order of s; the process ends when there is no memory. */
static float *zeros(stream *s, size_t elems)
{
    float *ptr = NULL;
    if (device_alloc_f32(s, MEM_OTHER, elems, "test", &ptr) != FSDP_OK ||
        device_zero(s, ptr, elems * sizeof *ptr) != FSDP_OK)
        exit(1);
    return ptr;
}

static fsdp_status add_none(stream *s, const add_args *a)
{
    (void)s;
    (void)a;
    return FSDP_OK;
}

static const sum_kernels no_sums = {.add = add_none, .launch = sum_launch_cpu};

static fsdp_status gather(fixture *f, const char *label, dtype t, size_t elems)
{
    TRY(comm_all_gather(f->c, f->s, label, t, f->send, f->recv, elems));
    return stream_sync(f->s);
}

static fsdp_status scatter(fixture *f, const char *label, const size_t *lengths)
{
    grad_acc acc;
    grad_acc_init(&acc, GRAD_ACC_FAST, f->sums, lengths[f->rank], MEM_GRADS_SHARD, "sum");
    fsdp_status status =
        comm_reduce_scatterv(f->c, f->s, label, f->send,
                             slices_of(lengths, f->world, (comm_slice[MAX_RANKS]){{0}}), &acc, 0);
    if (status == FSDP_OK)
        status = stream_sync(f->s);
    grad_acc_free(&acc, f->s);
    return status;
}

static fsdp_status case_op(fixture *f)
{
    size_t lengths[MAX_RANKS];
    for (int r = 0; r < f->world; r++)
        lengths[r] = ELEMS;
    return f->odd_one ? scatter(f, "h.1", lengths) : gather(f, "h.0", DTYPE_F32, ELEMS);
}

static fsdp_status case_elems(fixture *f)
{
    return gather(f, "h.0", DTYPE_F32, f->odd_one ? ELEMS + 1 : ELEMS);
}

/* Large messages wait for their receiver (rendezvous), small ones do not. */
static fsdp_status case_elems_large(fixture *f)
{
    size_t elems = f->odd_one ? 3000000 : 1000000, world = (size_t)f->world;
    float *send = zeros(f->s, elems), *recv = zeros(f->s, elems * world);
    fsdp_status status = comm_all_gather(f->c, f->s, "large", DTYPE_F32, send, recv, elems);
    if (status == FSDP_OK)
        status = stream_sync(f->s);
    device_free(f->s, send);
    device_free(f->s, recv);
    return status;
}

/* 320 f32 and 160 i64 are equally many bytes. */
static fsdp_status case_dtype(fixture *f)
{
    return f->odd_one ? gather(f, "h.0", DTYPE_I64, ELEMS / 2) : gather(f, "h.0", DTYPE_F32, ELEMS);
}

/* The same elements and bytes of two types. */
static fsdp_status case_dtype_only(fixture *f)
{
    return gather(f, "h.0", f->odd_one ? DTYPE_F32 : DTYPE_BF16, ELEMS);
}

static fsdp_status case_label(fixture *f)
{
    return gather(f, f->odd_one ? "h.1" : "h.0", DTYPE_F32, ELEMS);
}

/* Labels that differ behind what a descriptor can show. */
static fsdp_status case_long_label(fixture *f)
{
    char label[100];
    memset(label, 'x', sizeof label);
    label[98] = f->odd_one ? 'a' : 'b';
    label[99] = '\0';
    return gather(f, label, DTYPE_F32, ELEMS);
}

static fsdp_status case_root(fixture *f)
{
    TRY(comm_broadcast(f->c, f->s, "step", DTYPE_F32, f->recv, 7, f->odd_one ? 1 : 0));
    return stream_sync(f->s);
}

/* The same total, cut otherwise. */
static fsdp_status case_lengths(fixture *f)
{
    size_t lengths[MAX_RANKS];
    for (int r = 0; r < f->world; r++)
        lengths[r] = 10;
    if (f->odd_one) {
        lengths[0]++;
        lengths[1]--;
    }
    return scatter(f, "cut", lengths);
}

/* Shards of the same length, from different places. */
static fsdp_status case_pieces(fixture *f)
{
    comm_piece rows[MAX_RANKS];
    for (int r = 0; r < f->world; r++)
        rows[r] = (comm_piece){.at = (size_t)r * 10, .begin = (size_t)r * 10, .elems = 10};
    rows[0].elems -= f->odd_one;
    const comm_pieces pieces = {rows, (size_t)f->world, 10};
    TRY(comm_all_gather_pieces(f->c, f->s, "cut", DTYPE_F32, f->send, f->recv, &pieces));
    return stream_sync(f->s);
}

/* Descriptors of an all-to-all-v cannot show it: what one sends is not what the other expects. */
static fsdp_status pairs(fixture *f, size_t odd_elems)
{
    size_t send_elems[MAX_RANKS], recv_elems[MAX_RANKS];
    for (int r = 0; r < f->world; r++)
        send_elems[r] = recv_elems[r] = 4;
    if (f->odd_one)
        send_elems[0] = odd_elems;
    TRY(comm_all_to_allv(f->c, f->s, "pairs", DTYPE_F32, f->send, send_elems, f->recv, recv_elems));
    return stream_sync(f->s);
}

static fsdp_status case_pairs(fixture *f)
{
    return pairs(f, 5);
}

static fsdp_status case_pairs_short(fixture *f)
{
    return pairs(f, 3);
}

/* One rank leaves out a call and comes with the next. */
static fsdp_status case_skipped(fixture *f)
{
    if (!f->odd_one)
        TRY(gather(f, "skipped", DTYPE_F32, ELEMS));
    return gather(f, "next", DTYPE_F32, ELEMS);
}

/* Close the group and keep the record of the error, if there is one. */
static fsdp_status closed_with(comm *group, fsdp_status status)
{
    fsdp_error_info info = *fsdp_error_get();
    comm_close(group);
    if (status != FSDP_OK)
        fsdp_error_set(&info);
    return status;
}

/* A call in a group that only every other rank is in, the last one too. */
static fsdp_status in_half(fixture *f, bool others_call)
{
    comm *half = NULL;
    int parity = f->rank % 2;
    TRY(comm_range(f->c, parity, 2, (f->world + 1 - parity) / 2, &half));
    fsdp_status status = FSDP_OK;
    if (f->rank % 2 == (f->world - 1) % 2)
        status = comm_all_gather(half, f->s, f->odd_one ? "half b" : "half a", DTYPE_F32, f->send,
                                 f->recv, ELEMS);
    else if (others_call)
        status = comm_barrier(f->c, f->s, "of all");
    if (status == FSDP_OK)
        status = stream_sync(f->s);
    return closed_with(half, status);
}

/* The last rank names a range that it is in alone; the others name all ranks. */
static fsdp_status case_range(fixture *f)
{
    comm *part = NULL;
    fsdp_status status = f->odd_one ? comm_range(f->c, f->rank, 1, 1, &part)
                                    : comm_range(f->c, 0, 1, f->world, &part);
    return closed_with(part, status);
}

/* All but the last rank name ranges that fit together; the last has a peer in its own that does not
 * name it. */
static fsdp_status case_range_wide(fixture *f)
{
    comm *part = NULL;
    fsdp_status status = f->odd_one ? comm_range(f->c, f->rank - 1, 1, 2, &part)
                                    : comm_range(f->c, f->rank, 1, 1, &part);
    return closed_with(part, status);
}

/* The last rank is not in the range that it names; or that is not in the group. */
static fsdp_status out_of(fixture *f, int first, int step, int n)
{
    comm *part = NULL;
    fsdp_status status = f->odd_one ? comm_range(f->c, first, step, n, &part)
                                    : comm_range(f->c, f->rank, 1, 1, &part);
    return closed_with(part, status);
}

static fsdp_status case_range_without(fixture *f)
{
    return out_of(f, 0, 1, f->world - 1);
}

static fsdp_status case_range_between(fixture *f)
{
    return out_of(f, f->rank - 1, 2, 1);
}

static fsdp_status case_range_beyond(fixture *f)
{
    return out_of(f, f->rank, 1, 2);
}

/* Calls of two groups, which the last rank issues the other way round. */
static fsdp_status case_crossed(fixture *f)
{
    comm *other = NULL;
    TRY(comm_range(f->c, 0, 1, f->world, &other));
    fsdp_status status = FSDP_OK;
    for (int i = 0; i < 2 && status == FSDP_OK; i++)
        status = comm_all_gather(i == (f->odd_one ? 1 : 0) ? f->c : other, f->s, "crossed",
                                 DTYPE_F32, f->send, f->recv, ELEMS);
    if (status == FSDP_OK)
        status = stream_sync(f->s);
    return closed_with(other, status);
}

/* The others must hear of it too. */
static fsdp_status case_subgroup(fixture *f)
{
    return in_half(f, false);
}

/* The same, while the others are in a call of all ranks already. */
static fsdp_status case_subgroup_awaited(fixture *f)
{
    return in_half(f, true);
}

/* The last rank gets no memory while another group is made, at request COMM_FAULT_ALLOC: its peers
 * must not wait for it. */
static fsdp_status no_memory(fixture *f, bool opens)
{
    comm *other = NULL;
    void (*fail_at)(long) = dlsym(RTLD_DEFAULT, "alloc_fail_at"); /* of alloc_fail.so */
    if (f->odd_one && fail_at != NULL)
        fail_at(atol(getenv("COMM_FAULT_ALLOC")));
    fsdp_status status = opens ? comm_open(f->dev, &(comm_config){.backend = COMM_AUTO}, &other)
                               : comm_range(f->c, 0, 1, f->world, &other);
    if (f->odd_one && fail_at != NULL)
        fail_at(0);
    if (status == FSDP_OK)
        status = comm_all_gather(other, f->s, "in the part", DTYPE_F32, f->send, f->recv, ELEMS);
    if (status == FSDP_OK)
        status = stream_sync(f->s);
    return closed_with(other, status);
}

static fsdp_status case_split_no_memory(fixture *f)
{
    return no_memory(f, false);
}

static fsdp_status case_open_no_memory(fixture *f)
{
    return no_memory(f, true);
}

static fsdp_status break_stream(void *args, int n_threads)
{
    (void)args;
    (void)n_threads;
    return fsdp_error(FSDP_EIO, "", "work of the test failed");
}

/* The last rank's stream has failed: its part of the call does not run. */
static fsdp_status case_stream_failed(fixture *f)
{
    if (f->odd_one)
        TRY(stream_launch_work(f->s, &(launch_config){.fn = break_stream, .on_host = true}));
    return gather(f, "awaited", DTYPE_F32, ELEMS);
}

static fsdp_status doze(void *args, int n_threads)
{
    (void)args;
    (void)n_threads;
    await("closed", fx.world, 3000);
    return FSDP_OK;
}

/* The ranks disagree while another call stands in a queue, which comes to it when all is closed. */
static fsdp_status case_closed_queued(fixture *f)
{
    TRY(stream_create(f->dev, &(stream_config){.name = "busy"}, &f->busy));
    TRY(stream_launch_work(f->busy, &(launch_config){.fn = doze, .on_host = true}));
    TRY(comm_all_gather(f->c, f->busy, "queued", DTYPE_F32, f->send, f->recv, ELEMS));
    come("queued");
    await("queued", f->world, 300);
    return case_label(f);
}

/* The last rank gets no memory for its part. On a device that is not the host's only. */
static fsdp_status case_no_block(fixture *f)
{
    apart_fail_host(f->odd_one ? 1 : 0);
    return gather(f, "awaited", DTYPE_F32, ELEMS);
}

/* The last rank is busy elsewhere and does not come until all others have given up. */
static fsdp_status case_timeout(fixture *f)
{
    if (f->odd_one) {
        await("closed", f->world - 1, 5000);
        return gather(f, "late", DTYPE_F32, ELEMS);
    }
    return gather(f, "awaited", DTYPE_F32, ELEMS);
}

static void die(int signal_number)
{
    (void)signal_number;
    come("done"); /* nobody waits for it */
    kill(getpid(), SIGKILL);
}

static fsdp_status case_exit(fixture *f)
{
    if (f->odd_one) {
        come("done");
        _exit(3);
    }
    return gather(f, "awaited", DTYPE_F32, ELEMS);
}

static fsdp_status case_kill(fixture *f)
{
    if (f->odd_one)
        die(SIGKILL);
    return gather(f, "awaited", DTYPE_F32, ELEMS);
}

/* The first call of a new group, for which a library may connect the ranks: the host waits there
 * for a rank that has died, or comes late. */
static fsdp_status first_call(fixture *f, void (*fault)(const fixture *f))
{
    comm *other = NULL;
    TRY(comm_range(f->c, 0, 1, f->world, &other));
    if (f->odd_one)
        fault(f);
    fsdp_status status =
        comm_all_gather(other, f->s, "awaited", DTYPE_F32, f->send, f->recv, ELEMS);
    if (status == FSDP_OK)
        status = stream_sync(f->s);
    return closed_with(other, status);
}

static void killed(const fixture *f)
{
    (void)f;
    come("done");
    kill(getpid(), SIGKILL);
}

/* When the others are in their call. */
static void killed_later(const fixture *f)
{
    usleep(300000);
    killed(f);
}

static void busy_elsewhere(const fixture *f)
{
    await("closed", f->world - 1, 5000);
}

static fsdp_status case_kill_first(fixture *f)
{
    return first_call(f, killed_later);
}

static fsdp_status case_timeout_first(fixture *f)
{
    return first_call(f, busy_elsewhere);
}

static fsdp_status case_abort(fixture *f)
{
    if (f->odd_one) {
        come("done");
        comm_abort(f->c, 7);
    }
    return gather(f, "awaited", DTYPE_F32, ELEMS);
}

/* No failure status, and yet gone. */
static fsdp_status case_exit0(fixture *f)
{
    if (f->odd_one) {
        come("done");
        _exit(0);
    }
    return gather(f, "awaited", DTYPE_F32, ELEMS);
}

/* The last rank dies while all of them wait for a slow network. */
static fsdp_status case_kill_asleep(fixture *f)
{
    comm *slow = NULL;
    setenv("FSDP_LINK", "1Gbit,1000s", 1);
    TRY(comm_open(f->dev, &(comm_config){.sums = f->sums, .native = f->native}, &slow));
    TRY(comm_all_gather(slow, f->s, "slow", DTYPE_F32, f->send, f->recv, ELEMS));
    usleep(300000); /* until the others are asleep, as a rule */
    if (f->odd_one)
        die(SIGKILL);
    fsdp_status status = stream_sync(f->s);
    fsdp_error_info info = *fsdp_error_get();
    comm_close(slow);
    fsdp_error_set(&info);
    return status;
}

/* Large gathers one behind the other, among which the last rank dies: its peers are reading its
 * memory, or it theirs. */
static fsdp_status case_kill_reading(fixture *f)
{
    enum { LARGE = 4000000 };
    void *send = NULL, *recv = NULL;
    struct itimerval soon = {.it_value = {.tv_usec = 150000 + getpid() % 1000 * 100}};
    TRY(comm_alloc(f->c, f->s, MEM_OTHER, LARGE, "send", &send));
    TRY(comm_alloc(f->c, f->s, MEM_OTHER, LARGE * (size_t)f->world, "recv", &recv));
    signal(SIGALRM, die);
    if (f->odd_one)
        setitimer(ITIMER_REAL, &soon, NULL);
    fsdp_status status = FSDP_OK;
    for (int i = 0; status == FSDP_OK && i < 100000; i++) {
        status = comm_all_gather(f->c, f->s, "large", DTYPE_U8, send, recv, LARGE);
        if (status == FSDP_OK && i % 4 == 3)
            status = stream_sync(f->s);
    }
    fsdp_error_info info = *fsdp_error_get();
    (void)stream_sync(f->s);
    device_free(f->s, send);
    device_free(f->s, recv);
    fsdp_error_set(&info);
    return status;
}

/* The last rank stands still, all its threads, until the others have given up. */
static fsdp_status case_stopped(fixture *f)
{
    if (!f->odd_one)
        return gather(f, "awaited", DTYPE_F32, ELEMS);
    pid_t me = getpid();
    if (fork() == 0) {
        await("closed", f->world - 1, 5000);
        kill(me, SIGCONT);
        _exit(0);
    }
    raise(SIGSTOP);
    return gather(f, "late", DTYPE_F32, ELEMS);
}

/* All ranks stand still for so long, from half a second on, as after Ctrl-Z. The last one comes
 * right after that. */
enum { PAUSE_S = 12 };
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
    return gather(f, "awaited", DTYPE_F32, ELEMS);
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
    return pages * 4096;
}

/* The last rank has no address space left for what its peers show. */
static fsdp_status case_no_room(fixture *f)
{
    enum { LARGE = 40000000 };
    void *send = NULL, *recv = NULL;
    struct rlimit limit;
    TRY(comm_alloc(f->c, f->s, MEM_OTHER, LARGE, "send", &send));
    TRY(comm_alloc(f->c, f->s, MEM_OTHER, LARGE * (size_t)f->world, "recv", &recv));
    getrlimit(RLIMIT_AS, &limit);
    limit.rlim_cur = space_used() + LARGE / 2;
    if (f->odd_one)
        setrlimit(RLIMIT_AS, &limit);
    fsdp_status status = comm_all_gather(f->c, f->s, "large", DTYPE_U8, send, recv, LARGE);
    if (status == FSDP_OK)
        status = stream_sync(f->s);
    fsdp_error_info info = *fsdp_error_get();
    device_free(f->s, send);
    device_free(f->s, recv);
    fsdp_error_set(&info);
    return status;
}

/* Nothing is wrong. */
static fsdp_status case_good(fixture *f)
{
    for (int i = 0; i < 50; i++)
        TRY(gather(f, "good", DTYPE_F32, ELEMS));
    printf("GOOD rank %d over %s\n", f->rank, comm_backend_name(f->c));
    fflush(stdout);
    return gather(f, "last", DTYPE_F32, ELEMS);
}

/* Nor here; the script looks at the ranks in the meantime, and comes when it has seen them. */
static fsdp_status case_stay(fixture *f)
{
    TRY(case_good(f));
    await("seen", 1, 8000);
    return gather(f, "after all", DTYPE_F32, ELEMS);
}

/* Everybody waits for everybody: only the launcher's death ends this (the script kills it). */
static fsdp_status case_orphans(fixture *f)
{
    printf("WAITING rank %d\n", f->rank);
    fflush(stdout);
    if (f->odd_one)
        pause();
    return gather(f, "awaited", DTYPE_F32, ELEMS);
}

static const struct {
    const char *name;
    fsdp_status (*run)(fixture *);
} cases[] = {{"op", case_op},
             {"elems", case_elems},
             {"elems_large", case_elems_large},
             {"dtype", case_dtype},
             {"dtype_only", case_dtype_only},
             {"label", case_label},
             {"long_label", case_long_label},
             {"root", case_root},
             {"lengths", case_lengths},
             {"pieces", case_pieces},
             {"pairs", case_pairs},
             {"pairs_short", case_pairs_short},
             {"skipped", case_skipped},
             {"range", case_range},
             {"range_wide", case_range_wide},
             {"range_without", case_range_without},
             {"range_between", case_range_between},
             {"range_beyond", case_range_beyond},
             {"crossed", case_crossed},
             {"subgroup", case_subgroup},
             {"subgroup_awaited", case_subgroup_awaited},
             {"split_no_memory", case_split_no_memory},
             {"open_no_memory", case_open_no_memory},
             {"stream_failed", case_stream_failed},
             {"closed_queued", case_closed_queued},
             {"no_block", case_no_block},
             {"timeout", case_timeout},
             {"exit", case_exit},
             {"kill", case_kill},
             {"kill_first", case_kill_first},
             {"timeout_first", case_timeout_first},
             {"abort", case_abort},
             {"exit0", case_exit0},
             {"kill_reading", case_kill_reading},
             {"kill_asleep", case_kill_asleep},
             {"stopped", case_stopped},
             {"paused", case_paused},
             {"no_room", case_no_room},
             {"good", case_good},
             {"late_close", case_good},
             {"stay", case_stay},
             {"orphans", case_orphans}};

/* In place of the C library's: what COMM_FAULT_REFUSED says is as under a hardened kernel. */
int open(const char *path, int flags, ...)
{
    const char *refused = getenv("COMM_FAULT_REFUSED"), *rank = getenv("PMI_RANK");
    va_list list;
    va_start(list, flags);
    int mode = (flags & O_CREAT) != 0 ? va_arg(list, int) : 0;
    va_end(list);
    if (refused != NULL && rank != NULL && strcmp(refused, rank) == 0 &&
        strncmp(path, "/proc/", 6) == 0 && strstr(path, "/fd/") != NULL &&
        (flags & O_CLOEXEC) != 0) { /* the library below MPI opens its files without */
        errno = EACCES;
        return -1;
    }
    return openat(AT_FDCWD, path, flags, mode);
}

/* Where all ranks meet: with COMM_FAULT_START=kill the last one dies, with COMM_FAULT_START=sleep
 * it does not come. */
static void start_fault(bool is_last)
{
    const char *how = getenv("COMM_FAULT_START");
    if (how == NULL || !is_last)
        return;
    if (strcmp(how, "kill") == 0)
        killed(NULL);
    pause();
}

/* These two in place of the library's, which they call. */
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

/* Rank 0 ends at once after the failure. */
static void end_early(fixture *f, const char *how)
{
    if (f->rank != 0)
        return;
    if (strcmp(how, "abort") == 0)
        comm_abort(f->c, 9);
    comm_close(f->c);
    _exit(9);
}

/* What is no part of the case may take longer than FSDP_TIMEOUT_S. */
enum { PATIENT = 100 };

/* The stream that was not done when CUDA was asked last. */
static _Atomic(cudaStream_t) unfinished;

/* In place of the library's, which it calls. */
cudaError_t cudaStreamQuery(cudaStream_t queue)
{
    cudaError_t (*own)(cudaStream_t) = target_symbol(__func__);
    const cudaError_t code = own(queue);
    unfinished = code == cudaErrorNotReady ? queue : NULL;
    return code;
}

/* A group of NCCL that has failed leaves nothing on its streams: calls that no peer will join have
 * been aborted. (HCCL has no abort. Events of the device end after any failure.) */
static void expect_end(const fixture *f)
{
    if (f->busy != NULL) /* the case has left work on it */
        return;
    while (unfinished != NULL && cudaStreamQuery(unfinished) == cudaErrorNotReady)
        usleep(1000); /* the script ends a run that lasts too long */
}

static void run_case(fixture *f, fsdp_status (*run)(fixture *), const char *how_to_end)
{
    fsdp_status status = FSDP_OK;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    printf("BEGAN rank %d %lld ms\n", f->rank, now.tv_sec * 1000LL + now.tv_nsec / 1000000);
    fflush(stdout);
    comm_set_patience(f->c, PATIENT);
    /* a peer that is quick may have failed before this rank sees the end of its second call */
    for (int i = 0; i < 2 && status == FSDP_OK; i++)
        status = gather(f, "warm up", DTYPE_F32, ELEMS);
    comm_set_patience(f->c, run == case_good ? PATIENT : 1);
    if (status == FSDP_OK)
        status = run(f);
    for (int i = 0; status == FSDP_OK && run != case_good && i < 1000; i++) {
        status = comm_barrier(f->c, f->s, "after the case");
        if (status == FSDP_OK)
            status = stream_sync(f->s);
    }
    fsdp_error_info info = *fsdp_error_get();
    f->failed = status != FSDP_OK;
    if (how_to_end != NULL)
        end_early(f, how_to_end);
    printf("SAW rank %d %s %s\n", f->rank, fsdp_status_name(status), info.what);
    fflush(stdout);
    if (how_to_end != NULL)
        pause(); /* rank 0 ends the job */
    expect_end(f);
    stream_free(f->s); /* its error stays with it: a fresh one shows the group's */
    f->s = NULL;
    if (stream_create(f->dev, &(stream_config){.name = "after"}, &f->s) == FSDP_OK)
        status = gather(f, "afterwards", DTYPE_F32, ELEMS);
    printf("NEXT rank %d %s\n", f->rank, fsdp_status_name(status));
    fflush(stdout);
}

/* The kernel refuses this process pidfd_open from now on. */
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
    f->sums = &no_sums;
    if (getenv("FSDP_DEVICE") != NULL) {
        const backend *b = target_backend();
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
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (argc > 1 && strcmp(argv[1], cases[i].name) == 0)
            run_case(f, cases[i].run, argc > 2 ? argv[2] : NULL);
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
    if (f->failed) /* a library may complain at exit of what a failure has left */
        _exit(0);
    return 0;
}
