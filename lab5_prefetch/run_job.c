/* run_job.c -- the ranks while they run: signals, output, and the end. See run_job.h.
 *
 * A rank that fails takes the job with it, in stages: for GRACE_S the others may notice by
 * themselves and say what they saw; then they get SIGTERM, and KILL_AFTER_S later SIGKILL. */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "lab5_prefetch/run_job.h"

static const double GRACE_S = 1.5, KILL_AFTER_S = 2;
/* timeout(1) and others signal a process and then its group: that is one SIGINT, not two. */
static const double SAME_SIGINT_S = 0.2;

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void run_job_signal(const run_job *job, int signo)
{
    for (int i = 0; job->rank != NULL && i < job->cfg.n_ranks; i++)
        if (job->rank[i].pid > 0 && !job->rank[i].ended)
            kill(-job->rank[i].pid, signo);
}

/* ---- ending --------------------------------------------------------------------------------- */

static void go_to_stage(run_job *job, run_stage stage)
{
    if (stage <= job->stage)
        return;
    job->stage = stage;
    job->next_s = stage == RUN_FAILED ? now_s() + GRACE_S : now_s() + KILL_AFTER_S;
    if (stage == RUN_TERMINATED)
        run_job_signal(job, SIGTERM);
    if (stage == RUN_KILLED) {
        run_job_signal(job, SIGKILL);
        job->next_s = 0;
    }
}

/* What is due: the next stage, or the time limit. */
static void check_deadlines(run_job *job)
{
    double now = now_s();
    if (job->n_alive == 0)
        return;
    if (job->stage != RUN_GOING && job->next_s > 0 && now >= job->next_s)
        go_to_stage(job, job->stage + 1);
    if (job->limit_at_s > 0 && now >= job->limit_at_s && job->stage == RUN_GOING) {
        run_sink_say(job->err, "[fsdp_run] not done after %g s; ending the ranks",
                     job->cfg.limit_s);
        job->exit_status = RUN_TIMED_OUT;
        go_to_stage(job, RUN_TERMINATED);
    }
}

/* For poll: -1 when only an event can bring news. */
static int wait_ms(const run_job *job)
{
    double until = job->stage == RUN_GOING ? job->limit_at_s : job->next_s;
    if (until <= 0 || job->n_alive == 0)
        return -1;
    double left = until - now_s();
    return left > 0 ? (int)(left < 1e6 ? left * 1e3 : 1e9) + 1 : 0;
}

/* ---- ranks that have ended ------------------------------------------------------------------ */

static void tell_failure(run_job *job, int rank, int wait_status)
{
    char how[128];
    const char *rest = job->n_alive > 0 ? "; ending the others" : "";
    if (WIFSIGNALED(wait_status))
        snprintf(how, sizeof how, "was ended by signal %d (%s)", WTERMSIG(wait_status),
                 strsignal(WTERMSIG(wait_status)));
    else
        snprintf(how, sizeof how, "ended with status %d", WEXITSTATUS(wait_status));
    run_sink_say(job->err, "[fsdp_run] rank %d (process %d) %s%s", rank, (int)job->rank[rank].pid,
                 how, rest);
}

/* The last lines of a rank come before the launcher's about it. */
static void read_last_lines(run_rank *r)
{
    run_stream *both[] = {&r->out, &r->err};
    for (int i = 0; i < 2; i++)
        while (both[i]->fd >= 0 && run_sink_has_room(both[i]->sink))
            run_stream_read(both[i], true);
}

static void rank_ended(run_job *job, int rank, int wait_status)
{
    run_rank *r = &job->rank[rank];
    r->ended = true;
    job->n_alive--;
    read_last_lines(r);
    if (wait_status == 0)
        return;
    int code =
        WIFSIGNALED(wait_status) ? RUN_BY_SIGNAL + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
    bool asked_for = job->passed_on != 0 && code == RUN_BY_SIGNAL + job->passed_on;
    bool reader_left = job->out->failed != 0 && code == RUN_BY_SIGNAL + SIGPIPE;
    if (job->stage == RUN_GOING && !asked_for && !reader_left)
        tell_failure(job, rank, wait_status);
    if (job->exit_status == 0)
        job->exit_status = code;
    go_to_stage(job, RUN_FAILED);
}

/* One SIGCHLD may stand for several. What a failed rank has started goes with it, while its number
 * still names the group, that is before it is reaped. */
static void reap(run_job *job)
{
    for (int i = 0; i < job->cfg.n_ranks; i++) {
        run_rank *r = &job->rank[i];
        siginfo_t info = {0};
        int wait_status;
        if (r->ended || waitid(P_PID, (id_t)r->pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
            info.si_pid == 0)
            continue;
        if (info.si_code != CLD_EXITED || info.si_status != 0)
            kill(-r->pid, SIGKILL);
        waitpid(r->pid, &wait_status, 0);
        rank_ended(job, i, wait_status);
    }
}

/* ---- signals -------------------------------------------------------------------------------- */

static void interrupt(run_job *job)
{
    if (job->interrupted_s == 0) {
        job->interrupted_s = now_s();
        run_sink_say(job->err, "[fsdp_run] SIGINT: passed on to the ranks; another one kills them");
        run_job_signal(job, SIGINT);
    } else if (now_s() - job->interrupted_s > SAME_SIGINT_S) {
        job->exit_status = RUN_BY_SIGNAL + SIGINT;
        go_to_stage(job, RUN_KILLED);
    }
}

/* Ctrl-Z: the ranks stop with the launcher and go on with it. */
static void pause_all(run_job *job)
{
    run_job_signal(job, SIGTSTP);
    raise(SIGSTOP);
    run_job_signal(job, SIGCONT);
}

/* When all ranks have ended only their output is waited for: a signal ends that. */
static void drop_output(run_job *job, int signo)
{
    for (int i = 0; i < job->cfg.n_ranks; i++) {
        run_stream_close(&job->rank[i].out);
        run_stream_close(&job->rank[i].err);
    }
    for (int i = 0; i < 2; i++)
        job->sink[i].begin = job->sink[i].end;
    if (job->exit_status == 0)
        job->exit_status = RUN_BY_SIGNAL + signo;
}

static void take_signal(run_job *job, int signo)
{
    bool ends = signo == SIGINT || signo == SIGTERM || signo == SIGHUP;
    if (signo == SIGCHLD) {
        reap(job);
    } else if (signo == SIGTSTP) {
        pause_all(job);
    } else if (ends && job->n_alive == 0) {
        drop_output(job, signo);
    } else {
        if (ends)
            job->passed_on = signo;
        if (signo == SIGINT)
            interrupt(job);
        else
            run_job_signal(job, signo);
    }
}

static void take_signals(run_job *job)
{
    struct signalfd_siginfo info;
    while (read(job->signals, &info, sizeof info) == sizeof info)
        take_signal(job, (int)info.ssi_signo);
}

/* ---- output --------------------------------------------------------------------------------- */

/* A reader that is gone or a full disk: the ranks learn it as if they wrote there themselves. */
static void close_if_broken(run_stream *s)
{
    if (s->fd >= 0 && s->sink->failed != 0)
        run_stream_close(s);
}

static int poll_fd(const run_stream *s)
{
    return s->fd >= 0 && run_sink_has_room(s->sink) ? s->fd : -1;
}

/* Files for poll: signals, two sinks, two streams of each rank; a negative one is passed over. */
static void fill_polled(const run_job *job, struct pollfd *polled)
{
    *polled++ = (struct pollfd){.fd = job->signals, .events = POLLIN};
    for (int i = 0; i < 2; i++) {
        const run_sink *k = &job->sink[i];
        *polled++ = (struct pollfd){.fd = run_sink_is_empty(k) ? -1 : k->fd, .events = POLLOUT};
    }
    for (int i = 0; i < job->cfg.n_ranks; i++) {
        *polled++ = (struct pollfd){.fd = poll_fd(&job->rank[i].out), .events = POLLIN};
        *polled++ = (struct pollfd){.fd = poll_fd(&job->rank[i].err), .events = POLLIN};
    }
}

static void move_output(run_job *job, const struct pollfd *polled)
{
    for (int i = 0; i < 2; i++)
        if (polled[1 + i].revents != 0)
            run_sink_write(&job->sink[i]);
    for (int i = 0; i < job->cfg.n_ranks; i++) {
        run_rank *r = &job->rank[i];
        if (polled[3 + 2 * i].revents != 0 && run_sink_has_room(r->out.sink))
            run_stream_read(&r->out, r->ended);
        if (polled[4 + 2 * i].revents != 0 && run_sink_has_room(r->err.sink))
            run_stream_read(&r->err, r->ended);
        if (r->ended)
            read_last_lines(r);
        close_if_broken(&r->out);
        close_if_broken(&r->err);
    }
}

static bool is_over(const run_job *job)
{
    bool over = job->n_alive == 0 && run_sink_is_empty(job->out) && run_sink_is_empty(job->err);
    for (int i = 0; over && i < job->cfg.n_ranks; i++)
        over = job->rank[i].out.fd < 0 && job->rank[i].err.fd < 0;
    return over;
}

/* ---- the loop ------------------------------------------------------------------------------- */

static void tell_broken(run_job *job)
{
    const run_sink *k = job->out;
    if (k->failed == 0 || k->failed == EPIPE)
        return;
    (void)fsdp_error(FSDP_EIO, "send the output elsewhere",
                     "fsdp_run: cannot write to standard output: %s", strerror(k->failed));
    fsdp_error_print(stderr, 0, 0);
    if (job->exit_status == 0)
        job->exit_status = 1;
}

int run_job_wait(run_job *job)
{
    size_t n = 3 + 2 * (size_t)job->cfg.n_ranks;
    struct pollfd *polled = calloc(n, sizeof *polled);
    if (polled == NULL) {
        run_job_signal(job, SIGKILL);
        return 1;
    }
    job->limit_at_s = job->cfg.limit_s > 0 ? now_s() + job->cfg.limit_s : 0;
    reap(job);
    while (!is_over(job)) {
        fill_polled(job, polled);
        if (poll(polled, n, wait_ms(job)) < 0)
            continue;
        move_output(job, polled);
        if (polled[0].revents != 0)
            take_signals(job);
        check_deadlines(job);
    }
    free(polled);
    tell_broken(job);
    return job->exit_status;
}
