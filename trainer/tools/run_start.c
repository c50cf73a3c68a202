/* run_start.c -- from a program to running ranks. See rank_set.h. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "common/comm/transport/shm_launch.h"
#include "trainer/tools/rank_set.h"

/* The files of one rank while it is started. */
typedef struct launch {
    int rank, job_fd, area_fd;
    int out[2], err[2];
    int verdict[2]; /* carries errno if the program cannot be executed; closed if it can */
} launch;

/* ---- the launcher's own files and signals --------------------------------------------------- */

/* Opens files 0 to 2 if they are closed, so that no pipe gets their numbers. */
static void fill_standard_files(void)
{
    int fd;
    do
        fd = open("/dev/null", O_RDWR);
    while (fd >= 0 && fd <= STDERR_FILENO);
    close(fd);
}

static bool is_same_file(int a, int b)
{
    struct stat x, y;
    return fstat(a, &x) == 0 && fstat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

/* From now on signals come through a file. Those that were ignored (nohup, a script's background
 * job) stay ignored. */
static fsdp_status open_signals(rank_set *ranks)
{
    static const int passed_on[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGTSTP};
    sigset_t set;
    struct sigaction was;
    sigemptyset(&set);
    signal(SIGCHLD, SIG_DFL);
    sigaddset(&set, SIGCHLD);
    for (size_t i = 0; i < sizeof passed_on / sizeof *passed_on; i++)
        if (sigaction(passed_on[i], NULL, &was) == 0 && was.sa_handler != SIG_IGN)
            sigaddset(&set, passed_on[i]);
    sigprocmask(SIG_BLOCK, &set, &ranks->mask);
    ranks->sigpipe_kills = signal(SIGPIPE, SIG_IGN) != SIG_IGN;
    ranks->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (ranks->signals < 0)
        return fsdp_error(FSDP_ENOMEM, "", "fsdp_run: no signalfd: %s", strerror(errno));
    return FSDP_OK;
}

static fsdp_status open_sinks(rank_set *ranks)
{
    bool one = is_same_file(STDOUT_FILENO, STDERR_FILENO);
    ranks->out = &ranks->sink[0];
    ranks->err = one ? ranks->out : &ranks->sink[1];
    for (int i = 0; i < (one ? 1 : 2); i++)
        if (!run_sink_open(&ranks->sink[i], i + 1, ranks->cfg.prefix))
            return fsdp_error(FSDP_ENOMEM, "", "fsdp_run: no memory for the output");
    return FSDP_OK;
}

/* ---- one rank ------------------------------------------------------------------------------- */

/* Rank 0 reads the launcher's input unless it is a terminal: only the launcher is in the terminal's
 * foreground, so a read would stop the rank. */
static void open_stdin(int rank)
{
    if (rank == 0 && !isatty(STDIN_FILENO))
        return;
    int nowhere = open("/dev/null", O_RDONLY | O_CLOEXEC);
    dup2(nowhere, STDIN_FILENO);
}

static _Noreturn void become_rank(const rank_set *ranks, const launch *l, pid_t launcher)
{
    char text[64];
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != launcher) /* the launcher died before the line above */
        _exit(RUN_CANNOT_EXECUTE);
    open_stdin(l->rank);
    dup2(l->out[1], STDOUT_FILENO);
    dup2(l->err[1], STDERR_FILENO);
    snprintf(text, sizeof text, "%d %d %d %d", l->rank, ranks->cfg.n_ranks, l->job_fd, l->area_fd);
    setenv(COMM_RUN_ENV, text, 1);
    if (ranks->sigpipe_kills)
        signal(SIGPIPE, SIG_DFL);
    sigprocmask(SIG_SETMASK, &ranks->mask, NULL);
    execvp(ranks->cfg.argv[0], ranks->cfg.argv);
    (void)!write(l->verdict[1], &errno, sizeof errno);
    _exit(RUN_NOT_FOUND);
}

static void close_pair(int pair[2])
{
    for (int i = 0; i < 2; i++)
        if (pair[i] >= 0)
            close(pair[i]);
    pair[0] = pair[1] = -1;
}

static void close_launch(launch *l)
{
    close_pair(l->out);
    close_pair(l->err);
    close_pair(l->verdict);
}

static bool open_pipes(launch *l)
{
    l->out[0] = l->out[1] = l->err[0] = l->err[1] = l->verdict[0] = l->verdict[1] = -1;
    return pipe2(l->out, O_CLOEXEC) == 0 && pipe2(l->err, O_CLOEXEC) == 0 &&
           pipe2(l->verdict, O_CLOEXEC) == 0 && fcntl(l->out[0], F_SETFL, O_NONBLOCK) == 0 &&
           fcntl(l->err[0], F_SETFL, O_NONBLOCK) == 0;
}

static fsdp_status not_executed(rank_set *ranks, int why)
{
    const char *program = ranks->cfg.argv[0];
    ranks->exit_status = why == ENOENT ? RUN_NOT_FOUND : RUN_CANNOT_EXECUTE;
    return fsdp_error(FSDP_EINVAL,
                      strchr(program, '/') != NULL
                          ? "give the path of a program that can be executed"
                          : "a program that is not in PATH needs its path, "
                            "as in build/fsdp_train",
                      "fsdp_run: cannot start %.300s: %s", program, strerror(why));
}

/* Starts one rank behind its pipes, and waits until its program runs. */
static fsdp_status fork_rank(rank_set *ranks, launch *l)
{
    run_rank *r = &ranks->rank[l->rank];
    pid_t launcher = getpid(), pid = fork();
    if (pid < 0)
        return fsdp_error(FSDP_ECOMM, "use fewer ranks, or see ulimit -u",
                          "fsdp_run: no process for rank %d: %s", l->rank, strerror(errno));
    if (pid == 0)
        become_rank(ranks, l, launcher);
    r->pid = pid;
    ranks->n_alive++;
    close(l->verdict[1]);
    l->verdict[1] = -1;
    int why;
    if (read(l->verdict[0], &why, sizeof why) == sizeof why)
        return not_executed(ranks, why);
    bool opened = run_stream_open(&r->out, l->out[0], l->rank, ranks->out) &&
                  run_stream_open(&r->err, l->err[0], l->rank, ranks->err);
    l->out[0] = l->err[0] = -1; /* the streams own them */
    return opened ? FSDP_OK : fsdp_error(FSDP_ENOMEM, "", "fsdp_run: no memory for the output");
}

static fsdp_status start_rank(rank_set *ranks, launch *l)
{
    fsdp_status status;
    if (open_pipes(l))
        status = fork_rank(ranks, l);
    else
        status = fsdp_error(FSDP_ECOMM, "use fewer ranks, or see ulimit -n",
                            "fsdp_run: no pipe for rank %d: %s", l->rank, strerror(errno));
    close_launch(l);
    return status;
}

/* ---- all of them ---------------------------------------------------------------------------- */

static fsdp_status start_ranks(rank_set *ranks)
{
    launch l = {.job_fd = -1, .area_fd = -1};
    fsdp_status status = FSDP_OK;
    if (!shm_launch_prepare(ranks->cfg.n_ranks, &l.job_fd, &l.area_fd))
        status = fsdp_error(FSDP_ECOMM, "see ulimit -f and the memory that is left",
                            "fsdp_run: no shared memory for %d ranks: %s", ranks->cfg.n_ranks,
                            strerror(errno));
    for (l.rank = 0; status == FSDP_OK && l.rank < ranks->cfg.n_ranks; l.rank++)
        status = start_rank(ranks, &l);
    close(l.job_fd);
    close(l.area_fd);
    return status;
}

fsdp_status rank_set_start(rank_set *ranks, const run_config *cfg)
{
    *ranks = (rank_set){.cfg = *cfg, .signals = -1, .exit_status = 1};
    fill_standard_files();
    ranks->rank = calloc((size_t)cfg->n_ranks, sizeof *ranks->rank);
    if (ranks->rank == NULL)
        return fsdp_error(FSDP_ENOMEM, "", "fsdp_run: no memory for %d ranks", cfg->n_ranks);
    for (int i = 0; i < cfg->n_ranks; i++)
        ranks->rank[i].out.fd = ranks->rank[i].err.fd = -1;
    TRY(open_sinks(ranks));
    TRY(open_signals(ranks));
    TRY(start_ranks(ranks));
    ranks->exit_status = 0;
    return FSDP_OK;
}

void rank_set_close(rank_set *ranks)
{
    rank_set_signal(ranks, SIGKILL); /* left by a start that failed */
    for (int i = 0; ranks->rank != NULL && i < ranks->cfg.n_ranks; i++) {
        if (ranks->rank[i].pid > 0 && !ranks->rank[i].ended)
            waitpid(ranks->rank[i].pid, NULL, 0);
        run_stream_close(&ranks->rank[i].out);
        run_stream_close(&ranks->rank[i].err);
    }
    for (int i = 0; i < 2; i++)
        run_sink_close(&ranks->sink[i]);
    if (ranks->signals >= 0)
        close(ranks->signals);
    free(ranks->rank);
    *ranks = (rank_set){.signals = -1};
}
