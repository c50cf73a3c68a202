/* run_start.c -- from a program to running ranks. See run_job.h. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "common/comm/shm_boot.h"
#include "lab5_prefetch/run_job.h"

/* The files of one rank on its way. */
typedef struct launch {
    int rank, job_fd, area_fd;
    int out[2], err[2];
    int verdict[2]; /* errno when the program cannot be executed; closed when it can */
} launch;

/* ---- the launcher's own files and signals --------------------------------------------------- */

/* Files 0 to 2 exist, so that no pipe gets their numbers. */
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

/* Signals come by a file from now on. What was ignored (nohup, a job in the background of a script)
 * stays so. */
static fsdp_status open_signals(run_job *job)
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
    sigprocmask(SIG_BLOCK, &set, &job->mask);
    job->sigpipe_kills = signal(SIGPIPE, SIG_IGN) != SIG_IGN;
    job->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (job->signals < 0)
        return fsdp_error(FSDP_ENOMEM, "", "fsdp_run: no signalfd: %s", strerror(errno));
    return FSDP_OK;
}

static fsdp_status open_sinks(run_job *job)
{
    bool one = is_same_file(STDOUT_FILENO, STDERR_FILENO);
    job->out = &job->sink[0];
    job->err = one ? job->out : &job->sink[1];
    for (int i = 0; i < (one ? 1 : 2); i++)
        if (!run_sink_open(&job->sink[i], i + 1, job->cfg.prefix))
            return fsdp_error(FSDP_ENOMEM, "", "fsdp_run: no memory for the output");
    return FSDP_OK;
}

/* ---- one rank ------------------------------------------------------------------------------- */

/* Rank 0 reads what the launcher would, but no terminal: only the launcher is in its foreground, so
 * a read would stop the rank. */
static void open_stdin(int rank)
{
    if (rank == 0 && !isatty(STDIN_FILENO))
        return;
    int nowhere = open("/dev/null", O_RDONLY | O_CLOEXEC);
    dup2(nowhere, STDIN_FILENO);
}

static _Noreturn void become_rank(const run_job *job, const launch *l, pid_t launcher)
{
    char text[64];
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != launcher) /* it died before the line above */
        _exit(RUN_CANNOT_EXECUTE);
    open_stdin(l->rank);
    dup2(l->out[1], STDOUT_FILENO);
    dup2(l->err[1], STDERR_FILENO);
    snprintf(text, sizeof text, "%d %d %d %d", l->rank, job->cfg.n_ranks, l->job_fd, l->area_fd);
    setenv(SHM_LAUNCH_ENV, text, 1);
    if (job->sigpipe_kills)
        signal(SIGPIPE, SIG_DFL);
    sigprocmask(SIG_SETMASK, &job->mask, NULL);
    execvp(job->cfg.argv[0], job->cfg.argv);
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

static fsdp_status not_executed(run_job *job, int why)
{
    const char *program = job->cfg.argv[0];
    job->exit_status = why == ENOENT ? RUN_NOT_FOUND : RUN_CANNOT_EXECUTE;
    return fsdp_error(FSDP_EINVAL,
                      strchr(program, '/') != NULL
                          ? "give the path of a program that can be executed"
                          : "a program that is not in PATH needs its path, "
                            "as in build/fsdp_train",
                      "fsdp_run: cannot start %.300s: %s", program, strerror(why));
}

/* The pipes are there: the rank behind them, its program started. */
static fsdp_status fork_rank(run_job *job, launch *l)
{
    run_rank *r = &job->rank[l->rank];
    pid_t launcher = getpid(), pid = fork();
    if (pid < 0)
        return fsdp_error(FSDP_ECOMM, "use fewer ranks, or see ulimit -u",
                          "fsdp_run: no process for rank %d: %s", l->rank, strerror(errno));
    if (pid == 0)
        become_rank(job, l, launcher);
    r->pid = pid;
    job->n_alive++;
    close(l->verdict[1]);
    l->verdict[1] = -1;
    int why;
    if (read(l->verdict[0], &why, sizeof why) == sizeof why)
        return not_executed(job, why);
    bool opened = run_stream_open(&r->out, l->out[0], l->rank, job->out) &&
                  run_stream_open(&r->err, l->err[0], l->rank, job->err);
    l->out[0] = l->err[0] = -1; /* the streams own them */
    return opened ? FSDP_OK : fsdp_error(FSDP_ENOMEM, "", "fsdp_run: no memory for the output");
}

static fsdp_status start_rank(run_job *job, launch *l)
{
    fsdp_status status;
    if (open_pipes(l))
        status = fork_rank(job, l);
    else
        status = fsdp_error(FSDP_ECOMM, "use fewer ranks, or see ulimit -n",
                            "fsdp_run: no pipe for rank %d: %s", l->rank, strerror(errno));
    close_launch(l);
    return status;
}

/* ---- all of them ---------------------------------------------------------------------------- */

static fsdp_status start_ranks(run_job *job)
{
    launch l = {.job_fd = -1, .area_fd = -1};
    fsdp_status status = FSDP_OK;
    if (!shm_launch_prepare(job->cfg.n_ranks, &l.job_fd, &l.area_fd))
        status = fsdp_error(FSDP_ECOMM, "see ulimit -f and the memory that is left",
                            "fsdp_run: no shared memory for %d ranks: %s", job->cfg.n_ranks,
                            strerror(errno));
    for (l.rank = 0; status == FSDP_OK && l.rank < job->cfg.n_ranks; l.rank++)
        status = start_rank(job, &l);
    close(l.job_fd);
    close(l.area_fd);
    return status;
}

fsdp_status run_job_start(run_job *job, const run_config *cfg)
{
    *job = (run_job){.cfg = *cfg, .signals = -1, .exit_status = 1};
    fill_standard_files();
    job->rank = calloc((size_t)cfg->n_ranks, sizeof *job->rank);
    if (job->rank == NULL)
        return fsdp_error(FSDP_ENOMEM, "", "fsdp_run: no memory for %d ranks", cfg->n_ranks);
    for (int i = 0; i < cfg->n_ranks; i++)
        job->rank[i].out.fd = job->rank[i].err.fd = -1;
    TRY(open_sinks(job));
    TRY(open_signals(job));
    TRY(start_ranks(job));
    job->exit_status = 0;
    return FSDP_OK;
}

void run_job_close(run_job *job)
{
    run_job_signal(job, SIGKILL); /* of a start that went wrong */
    for (int i = 0; job->rank != NULL && i < job->cfg.n_ranks; i++) {
        if (job->rank[i].pid > 0 && !job->rank[i].ended)
            waitpid(job->rank[i].pid, NULL, 0);
        run_stream_close(&job->rank[i].out);
        run_stream_close(&job->rank[i].err);
    }
    for (int i = 0; i < 2; i++)
        run_sink_close(&job->sink[i]);
    if (job->signals >= 0)
        close(job->signals);
    free(job->rank);
    *job = (run_job){.signals = -1};
}
