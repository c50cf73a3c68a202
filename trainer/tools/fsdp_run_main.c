/* fsdp_run_main.c -- the launcher: build/fsdp_run -n 4 PROGRAM, for ranks of one host without MPI.
 *
 * The ranks find each other through shared memory that the launcher creates
 * (common/comm/transport/shm_file.c). Any program can be started: one that never joins is simply
 * run N times. The exit status is the status of the first rank that failed, or 128 + N if signal N
 * ended that rank; 2 for wrong usage, 124 after --timeout, 126 and 127 if the program cannot be
 * started.
 *
 * The main thread waits for signals (including SIGCHLD) and deadlines; a second thread forwards the
 * ranks' output (run_output.h). Every rank leads its own process group. So a signal, even one from
 * the keyboard, reaches only the launcher, which sends it once to each rank's group. If the
 * launcher is killed, the kernel kills the ranks, and a second process, the guard, kills their
 * groups. A process that left its rank's group must notice on its own; it does if it joined the
 * job.
 *
 * If a rank fails, the job ends in phases. For GRACE_S the other ranks may notice by themselves and
 * report what they saw. Then they get SIGTERM, and KILL_AFTER_S later SIGKILL. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <omp.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include "common/base/clock.h"
#include "common/base/options.h"
#include "common/base/page.h"
#include "common/comm/transport/shm_launch.h"
#include "common/comm/transport/transport_help.h"
#include "trainer/tools/run_output.h"

/* A rank needs two pipes, and a process may have 1024 files. The exit statuses are the ones of
 * timeout(1) and of shells. */
enum { MOST_RANKS = 256, USAGE = 2, TIMED_OUT = 124 };
enum { CANNOT_EXECUTE = 126, NOT_FOUND = 127, BY_SIGNAL = 128 };

static const double GRACE_S = 1.5, KILL_AFTER_S = 2;
static const double READ_AFTER_S = 5; /* after --timeout, until the rest of the output is dropped */
static const double MOST_PAUSE_S = 30;
/* timeout(1) and others signal a process and then its group: that counts as one SIGINT. */
static const double SAME_SIGINT_S = 0.5;

/* The process that was started, which may be a shell. It leads the process group `pid`. */
typedef struct run_rank {
    pid_t pid;       /* 0: not started, or ended */
    int wait_status; /* -1: it runs. Others of its group may still run after it has ended. */
} run_rank;

/* The phases of the job's end. When a phase has lasted its time, the next one begins. */
typedef enum run_phase { GOING, FAILED, TERMINATED, KILLED } run_phase;

typedef struct launcher {
    int64_t n_ranks, n_restarts; /* the fields from here to argv are options */
    bool bare;                   /* no "[rank] " before each line */
    double limit_s, grace_s, pause_s;
    char **argv;            /* of the ranks; argv[0] is searched in PATH */
    sigset_t signals, mask; /* signals that sigwait takes; the original mask, for the ranks */
    struct shm_job *job;
    int job_fd, area_fd;
    run_rank *rank; /* [n_ranks] shared with the guard */
    int n_alive;
    run_output output;
    run_phase phase;
    double limit_end_s;   /* when --timeout has passed, counted over all tries */
    double next_s;        /* when the next phase begins; in GOING: limit_end_s */
    int passed_on;        /* the last SIGINT or SIGTERM sent to the ranks; 0: none */
    double interrupted_s; /* when the first SIGINT came; 0: none */
    int exit_status;
    bool failed; /* a rank failed on its own, so another try may succeed */
} launcher;

/* ---- options -------------------------------------------------------------------------------- */

static const char DOC[] =
    "Starts N ranks of PROGRAM on this host; they share memory and need no MPI. Signals are passed "
    "on to all ranks; a second SIGINT (Ctrl-C) kills them. When a rank fails the others are ended, "
    "and the exit status is the first failed rank's. Rank 0 reads the standard input unless that "
    "is "
    "a terminal, the others read /dev/null. For example:\n"
    "build/fsdp_run -n 4 build/fsdp_train --reduction canonical";

#define FIELD(name) offsetof(launcher, name)
/* clang-format off */
static const option_spec OPTIONS[] = {
    {.name = "n", .kind = OPT_INT, .offset = FIELD(n_ranks), .min = 1, .max = MOST_RANKS, .help = "ranks, also as -n N; without it one for each core"},
    {.name = "no-prefix", .kind = OPT_BOOL, .offset = FIELD(bare), .help = "print the ranks' lines as they are, without \"[rank] \" before each"},
    {.name = "timeout", .kind = OPT_DOUBLE, .offset = FIELD(limit_s), .min = 1e-3, .max = 1e9, .arg = "SECONDS", .help = "end the ranks after that time, with exit status 124"},
    {.name = "grace", .kind = OPT_DOUBLE, .offset = FIELD(grace_s), .def = "30", .min = 1e-3, .max = 1e9, .arg = "SECONDS", .help = "after SIGTERM or SIGHUP, kill the ranks that have not ended by then"},
    {.name = "restarts", .kind = OPT_INT, .offset = FIELD(n_restarts), .def = "0", .min = 0, .max = 1e6, .help = "when a rank fails, start all of them again, so many times at most; with --resume auto a trainer goes on from its last checkpoint"},
    {.name = "restart-pause", .kind = OPT_DOUBLE, .offset = FIELD(pause_s), .needs = {{.rule = "restarts"}}, .def = "1", .min = 1e-3, .max = 30, .arg = "SECONDS", .help = "wait so long before the first restart, and twice as long before each further one, up to 30"},
    {0}};
/* clang-format on */

/* Refuse to run under another launcher: each would number the ranks. */
static fsdp_status check_not_nested(void)
{
    const char *name = getenv(COMM_RUN_ENV) != NULL ? COMM_RUN_ENV : comm_launcher_variable();
    if (name == NULL)
        return FSDP_OK;
    return fsdp_error(FSDP_EINVAL,
                      "leave fsdp_run out: mpiexec.hydra -n 4 build/fsdp_train, or the other "
                      "launcher; unset the variable if there is none",
                      "fsdp_run: started by another launcher, %s is set", name);
}

/* Parse the options before the first word that is not an option; the rest is the program and its
 * arguments. Returns FSDP_HELP at --help. */
static fsdp_status parse(int argc, char **argv, launcher *s)
{
    char long_name[] = "--n";
    int n = 1;
    for (; n < argc && argv[n][0] == '-' && strcmp(argv[n], "--") != 0; n++) {
        if (strcmp(argv[n], "-n") == 0)
            argv[n] = long_name;
        if (options_takes_next(OPTIONS, argv[n]) && argv[n + 1] != NULL)
            n++;
    }
    TRY(options_parse(OPTIONS, "build/fsdp_run", n, argv, s));
    s->argv = argv[n] != NULL && strcmp(argv[n], "--") == 0 ? argv + n + 1 : argv + n;
    if (*s->argv == NULL)
        return fsdp_error(FSDP_EINVAL, "build/fsdp_run -n 4 build/fsdp_train --size tiny",
                          "fsdp_run: no program to start");
    if (s->n_ranks == 0)
        s->n_ranks = omp_get_num_procs() < MOST_RANKS ? omp_get_num_procs() : MOST_RANKS;
    return check_not_nested();
}

static void signal_all(const launcher *s, int signo)
{
    for (int i = 0; i < s->n_ranks; i++)
        if (s->rank[i].pid > 0)
            kill(-s->rank[i].pid, signo);
}

/* ---- start ---------------------------------------------------------------------------------- */

/* Block the signals, so that sigwait takes them. Signals that were ignored (nohup, a background job
 * of a script) stay ignored. */
static void take_over_signals(launcher *s)
{
    static const int passed_on[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGTSTP};
    struct sigaction was;
    sigemptyset(&s->signals);
    signal(SIGCHLD, SIG_DFL);
    sigaddset(&s->signals, SIGCHLD);
    for (size_t i = 0; i < sizeof passed_on / sizeof *passed_on; i++)
        if (sigaction(passed_on[i], NULL, &was) == 0 && was.sa_handler != SIG_IGN)
            sigaddset(&s->signals, passed_on[i]);
    sigprocmask(SIG_BLOCK, &s->signals, &s->mask);
    signal(SIGPIPE, SIG_IGN); /* a failed write is reported instead */
    signal(SIGXFSZ, SIG_IGN);
}

/* Allocate s->rank in shared memory, and start the guard: a process that kills the ranks' groups
 * when the kernel signals that the launcher has died. The guard closes all files, because a reader
 * of a pipe waits until every writer has closed the pipe. */
static fsdp_status start_guard(launcher *s)
{
    pid_t launcher_pid = getpid(), pid = -1;
    size_t bytes = (size_t)s->n_ranks * sizeof *s->rank;
    s->rank = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (s->rank != MAP_FAILED)
        pid = fork();
    if (pid < 0)
        return fsdp_error(FSDP_ENOMEM, "see ulimit -u and the memory that is left",
                          "fsdp_run: cannot start: %s", strerror(errno));
    if (pid > 0)
        return FSDP_OK;
    setpgid(0, 0);
    prctl(PR_SET_NAME, "fsdp_run guard");
    closefrom(0);
    prctl(PR_SET_PDEATHSIG, SIGCHLD); /* s->signals has SIGCHLD */
    while (getppid() == launcher_pid)
        sigwaitinfo(&s->signals, NULL);
    signal_all(s, SIGKILL);
    _exit(0);
}

static _Noreturn void become_rank(const launcher *s, int rank, const int ends[2], pid_t parent)
{
    char text[64];
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) /* the launcher died before the line above */
        _exit(CANNOT_EXECUTE);
    /* Only the launcher is in the terminal's foreground: a rank that reads from it would stop. */
    if (rank != 0 || isatty(STDIN_FILENO))
        dup2(open("/dev/null", O_RDONLY | O_CLOEXEC), STDIN_FILENO);
    dup2(ends[0], STDOUT_FILENO);
    dup2(ends[1], STDERR_FILENO);
    snprintf(text, sizeof text, "%d %d %d %d", rank, (int)s->n_ranks, s->job_fd, s->area_fd);
    setenv(COMM_RUN_ENV, text, 1);
    signal(SIGPIPE, SIG_DFL);
    signal(SIGXFSZ, SIG_DFL);
    signal(SIGUSR2, SIG_IGN); /* it asks for a report, and must not kill a rank that is starting */
    sigprocmask(SIG_SETMASK, &s->mask, NULL);
    execvp(s->argv[0], s->argv);
    int why = errno;
    (void)fsdp_error(FSDP_EINVAL, "give the path of a program, as in build/fsdp_train",
                     "fsdp_run: cannot start %.300s: %s", s->argv[0], strerror(why));
    if (rank == 0) /* the other ranks would print the same */
        fsdp_error_print(stderr, 0, 0);
    _exit(why == ENOENT ? NOT_FOUND : CANNOT_EXECUTE);
}

static fsdp_status start_rank(launcher *s, int rank)
{
    int ends[2] = {run_output_pipe(&s->output, 2 * rank),
                   run_output_pipe(&s->output, 2 * rank + 1)};
    pid_t parent = getpid(), pid = ends[0] >= 0 && ends[1] >= 0 ? fork() : -1;
    if (pid < 0)
        return fsdp_error(FSDP_ECOMM, "use fewer ranks, or see ulimit -n and -u",
                          "fsdp_run: cannot start rank %d: %s", rank, strerror(errno));
    if (pid == 0)
        become_rank(s, rank, ends, parent);
    close(ends[0]);
    close(ends[1]);
    setpgid(pid, pid); /* the child does the same; either may be first */
    s->rank[rank] = (run_rank){pid, -1};
    s->n_alive++;
    return FSDP_OK;
}

static fsdp_status start_all(launcher *s)
{
    int n = (int)s->n_ranks, fd;
    while ((fd = open("/dev/null", O_RDWR)) >= 0 && fd <= STDERR_FILENO)
        ; /* open closed standard files, so that no pipe gets their numbers */
    close(fd);
    if (!run_output_open(&s->output, n, s->bare))
        return fsdp_error(FSDP_ENOMEM, "see ulimit -n and the memory that is left",
                          "fsdp_run: no memory or files for %d ranks", n);
    s->job = shm_launch_prepare(n, &s->job_fd, &s->area_fd);
    if (s->job == NULL)
        return fsdp_error(FSDP_ECOMM, page_hint(errno, "see the memory that is left"),
                          "fsdp_run: no shared memory for %d ranks: %s", n, strerror(errno));
    for (int rank = 0; rank < n; rank++)
        TRY(start_rank(s, rank));
    if (!run_output_start(&s->output)) /* fork first: threads make it unsafe */
        return fsdp_error(FSDP_ENOMEM, "see ulimit -u and the memory that is left",
                          "fsdp_run: no thread for the output");
    close(s->job_fd);
    close(s->area_fd);
    return FSDP_OK;
}

/* ---- ending --------------------------------------------------------------------------------- */

/* Enter a phase, unless a later one has begun, and send signo to all ranks; SIGCONT lets stopped
 * ranks receive it. lasts_s: the next phase begins after this time. */
static void enter(launcher *s, run_phase phase, int signo, double lasts_s)
{
    if (phase <= s->phase)
        return;
    s->phase = phase;
    s->next_s = clock_now_s() + lasts_s;
    signal_all(s, signo);
    signal_all(s, SIGCONT);
}

/* Exits without the rest of the output, which nobody reads; the message may be lost too. */
static _Noreturn void drop_output(const launcher *s)
{
    if (poll(&(struct pollfd){.fd = STDERR_FILENO, .events = POLLOUT}, 1, 0) == 1)
        dprintf(
            STDERR_FILENO,
            "[fsdp_run] not done after %g s, and nobody reads the output: the rest is dropped\n",
            s->limit_s);
    _exit(s->exit_status != 0 ? s->exit_status : TIMED_OUT);
}

/* Goes to the next phase when its time has come. */
static void check_deadline(launcher *s)
{
    if (s->n_alive == 0 && clock_now_s() > s->limit_end_s + READ_AFTER_S)
        drop_output(s);
    if (clock_now_s() < s->next_s || s->n_alive == 0)
        return;
    if (s->phase == GOING) {
        dprintf(s->output.own_fd, "[fsdp_run] not done after %g s; ending the ranks\n", s->limit_s);
        s->exit_status = TIMED_OUT;
    }
    if (s->phase < TERMINATED)
        enter(s, TERMINATED, SIGTERM, KILL_AFTER_S);
    else
        enter(s, KILLED, SIGKILL, 0);
}

static void rank_ended(launcher *s, int rank)
{
    pid_t pid = s->rank[rank].pid;
    int wait_status = s->rank[rank].wait_status;
    int signo = WTERMSIG(wait_status); /* 0: none */
    int code = signo != 0 ? BY_SIGNAL + signo : WEXITSTATUS(wait_status);
    bool asked_for = s->passed_on != 0 && code == BY_SIGNAL + s->passed_on;
    bool reader_left = s->output.sink[0].failed != 0 && code == BY_SIGNAL + SIGPIPE;
    bool of_its_own = code != 0 && s->phase == GOING && !asked_for && !reader_left;
    const char *rest = --s->n_alive > 0 ? "; ending the others" : "";
    if (of_its_own && signo != 0)
        dprintf(s->output.own_fd, "[fsdp_run] rank %d (process %d) was ended by signal %d (%s)%s\n",
                rank, (int)pid, signo, strsignal(signo), rest);
    else if (of_its_own)
        dprintf(s->output.own_fd, "[fsdp_run] rank %d (process %d) ended with status %d%s\n", rank,
                (int)pid, code, rest);
    s->rank[rank].pid = 0;
    shm_member_ended(s->job, rank, rank, pid);
    if (s->n_alive == 0)
        close(s->output.own_fd);
    if (code == 0)
        return;
    bool was_told = code == BY_SIGNAL + SIGTERM && WIFEXITED(wait_status); /* saved, and ended */
    bool can_run = code != NOT_FOUND && code != CANNOT_EXECUTE;
    s->failed = s->failed || (of_its_own && can_run && !was_told);
    s->exit_status = s->exit_status != 0 ? s->exit_status : code;
    enter(s, FAILED, SIGCONT, GRACE_S);
}

/* Reaps ended processes. If a rank fails, its whole group is killed. But in phase TERMINATED a
 * rank has ended only when its group has: a shell ends at once on SIGTERM, while the trainer that
 * it started saves. Orphans of the ranks become children of this process and are waited for too,
 * because a zombie would still belong to the group. */
static void reap(launcher *s)
{
    int wait_status;
    for (pid_t pid; (pid = waitpid(-1, &wait_status, WNOHANG)) > 0;)
        for (int i = 0; i < s->n_ranks; i++)
            if (s->rank[i].pid == pid) {
                s->rank[i].wait_status = wait_status;
                if (wait_status != 0 && s->phase != TERMINATED)
                    kill(-pid, SIGKILL);
            }
    for (int i = 0; i < s->n_ranks; i++)
        if (s->rank[i].pid != 0 && s->rank[i].wait_status != -1 &&
            (s->phase != TERMINATED || kill(-s->rank[i].pid, 0) != 0))
            rank_ended(s, i);
}

/* ---- signals -------------------------------------------------------------------------------- */

static void take_signal(launcher *s, int signo)
{
    /* The terminal was closed. Send SIGTERM, on which ranks save, because UCX may catch SIGHUP. */
    if (signo == SIGHUP)
        signo = SIGTERM;
    bool ends = signo == SIGINT || signo == SIGTERM;
    double now_s = clock_now_s();
    if (ends && s->n_alive == 0) { /* only output is left, and nobody may ever read it */
        for (int i = 0; i < 100 && !s->output.done; i++)
            usleep(10000);
        _exit(s->exit_status != 0 ? s->exit_status : BY_SIGNAL + signo);
    }
    s->passed_on = ends ? signo : s->passed_on;
    if (signo == SIGINT && s->interrupted_s != 0) {
        if (now_s - s->interrupted_s > SAME_SIGINT_S) {
            s->exit_status = BY_SIGNAL + SIGINT;
            enter(s, KILLED, SIGKILL, 0);
        }
        return;
    }
    signal_all(s, signo);
    if (signo == SIGINT) {
        s->interrupted_s = now_s;
        dprintf(s->output.own_fd,
                "[fsdp_run] SIGINT: passed on to the ranks; another one kills them\n");
    } else if (ends) {
        enter(s, TERMINATED, SIGCONT, s->grace_s);
    } else if (signo == SIGTSTP) {
        raise(SIGSTOP); /* Ctrl-Z: the ranks stop with the launcher and continue with it */
    }
    if (signo == SIGINT || signo == SIGTSTP)
        signal_all(s, SIGCONT);
}

/* ---- the whole ------------------------------------------------------------------------------ */

static fsdp_status wait_for_all(launcher *s)
{
    const struct timespec tick = {.tv_nsec = 100000000}; /* deadlines are checked this often */
    s->exit_status = 0;
    while (s->n_alive > 0 || !s->output.done) {
        int signo = sigtimedwait(&s->signals, NULL, &tick);
        if (signo > 0 && signo != SIGCHLD) /* for SIGCHLD, reap follows */
            take_signal(s, signo);
        reap(s);
        check_deadline(s);
    }
    int why = s->output.sink[0].failed;
    run_output_close(&s->output);
    shm_launch_free(s->job);
    if (why == 0 || why == EPIPE)
        return FSDP_OK;
    s->exit_status = s->exit_status != 0 ? s->exit_status : 1;
    return fsdp_error(FSDP_EIO, "send the output elsewhere",
                      "fsdp_run: cannot write to standard output: %s", strerror(why));
}

/* Waits before restart n. false: SIGINT, SIGTERM or SIGHUP came, or --timeout has passed. */
static bool pause_before(launcher *s, int n)
{
    const double pause_s = fmin(ldexp(s->pause_s, n - 1), MOST_PAUSE_S);
    const double until_s = fmin(clock_now_s() + pause_s, s->limit_end_s);
    fprintf(stderr, "[fsdp_run] restart %d of %d in %g s\n", n, (int)s->n_restarts, pause_s);
    for (double left_s; (left_s = until_s - clock_now_s()) > 0;) {
        struct timespec left = {(time_t)left_s, (long)(1e9 * (left_s - floor(left_s)))};
        int signo = sigtimedwait(&s->signals, NULL, &left);
        if (signo != SIGINT && signo != SIGTERM && signo != SIGHUP)
            continue;
        s->exit_status = BY_SIGNAL + signo;
        return false;
    }
    if (until_s < s->limit_end_s)
        return true;
    fprintf(stderr, "[fsdp_run] not done after %g s\n", s->limit_s);
    s->exit_status = TIMED_OUT;
    return false;
}

int main(int argc, char **argv)
{
    launcher s = {.exit_status = USAGE};
    fsdp_status status = parse(argc, argv, &s);
    if (status == FSDP_HELP)
        return options_print_help(OPTIONS, "fsdp_run [OPTION...] [--] PROGRAM [ARGS...]", DOC) !=
               FSDP_OK;
    take_over_signals(&s);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    if (status == FSDP_OK) {
        s.exit_status = 1;
        status = start_guard(&s);
    }
    s.limit_end_s = s.next_s = s.limit_s > 0 ? clock_now_s() + s.limit_s : INFINITY;
    const launcher fresh = s;
    for (int n = 0; status == FSDP_OK && n <= s.n_restarts; n++) {
        if (n > 0 && !pause_before(&s, n))
            break;
        s = fresh;
        status = start_all(&s); /* if that fails, the kernel ends the ranks with this process */
        IF_OK(status, wait_for_all(&s));
        if (!s.failed || s.passed_on != 0)
            break;
    }
    if (status != FSDP_OK)
        fsdp_error_print(stderr, 0, 0);
    return s.exit_status;
}
