/* rank_set.c -- the ranks while they run: signals, output, and the end. See rank_set.h.
 *
 * A rank that fails takes the job with it, in phases. For GRACE_S the others may notice by
 * themselves and say what they saw. Then they get SIGTERM, and KILL_AFTER_S later SIGKILL. */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>
#include "common/base/clock.h"
#include "trainer/tools/rank_set.h"

static const double GRACE_S = 1.5, KILL_AFTER_S = 2;
/* timeout(1) and others signal a process and then its group. That is one SIGINT, not two. */
static const double SAME_SIGINT_S = 0.2;

void rank_set_signal(const rank_set *ranks, int signo)
{
    for (int i = 0; ranks->rank != NULL && i < ranks->cfg.n_ranks; i++)
        if (ranks->rank[i].pid > 0 && !ranks->rank[i].ended)
            kill(-ranks->rank[i].pid, signo);
}

/* ---- ending --------------------------------------------------------------------------------- */

static void go_to_phase(rank_set *ranks, run_phase phase)
{
    if (phase <= ranks->phase)
        return;
    ranks->phase = phase;
    ranks->next_s = phase == RUN_FAILED ? clock_now_s() + GRACE_S : clock_now_s() + KILL_AFTER_S;
    if (phase == RUN_TERMINATED)
        rank_set_signal(ranks, SIGTERM);
    if (phase == RUN_KILLED) {
        rank_set_signal(ranks, SIGKILL);
        ranks->next_s = 0;
    }
}

/* Does what is due: goes to the next phase, or ends the job at its time limit. */
static void check_deadlines(rank_set *ranks)
{
    double now = clock_now_s();
    if (ranks->n_alive == 0)
        return;
    if (ranks->phase != RUN_GOING && ranks->next_s > 0 && now >= ranks->next_s)
        go_to_phase(ranks, ranks->phase + 1);
    if (ranks->limit_at_s > 0 && now >= ranks->limit_at_s && ranks->phase == RUN_GOING) {
        run_sink_say(ranks->err, "[fsdp_run] not done after %g s; ending the ranks",
                     ranks->cfg.limit_s);
        ranks->exit_status = RUN_TIMED_OUT;
        go_to_phase(ranks, RUN_TERMINATED);
    }
}

/* The time limit for poll: -1 if only an event can bring news. */
static int wait_ms(const rank_set *ranks)
{
    double until = ranks->phase == RUN_GOING ? ranks->limit_at_s : ranks->next_s;
    if (until <= 0 || ranks->n_alive == 0)
        return -1;
    double left = until - clock_now_s();
    return left > 0 ? (int)(left < 1e6 ? left * 1e3 : 1e9) + 1 : 0;
}

/* ---- ranks that have ended ------------------------------------------------------------------ */

static void tell_failure(rank_set *ranks, int rank, int wait_status)
{
    char how[128];
    const char *rest = ranks->n_alive > 0 ? "; ending the others" : "";
    if (WIFSIGNALED(wait_status))
        snprintf(how, sizeof how, "was ended by signal %d (%s)", WTERMSIG(wait_status),
                 strsignal(WTERMSIG(wait_status)));
    else
        snprintf(how, sizeof how, "ended with status %d", WEXITSTATUS(wait_status));
    run_sink_say(ranks->err, "[fsdp_run] rank %d (process %d) %s%s", rank,
                 (int)ranks->rank[rank].pid, how, rest);
}

/* A rank's last lines come before what the launcher says about it. */
static void read_last_lines(run_rank *r)
{
    run_stream *both[] = {&r->out, &r->err};
    for (int i = 0; i < 2; i++)
        while (both[i]->fd >= 0 && run_sink_has_room(both[i]->sink))
            run_stream_read(both[i], true);
}

static void rank_ended(rank_set *ranks, int rank, int wait_status)
{
    run_rank *r = &ranks->rank[rank];
    r->ended = true;
    ranks->n_alive--;
    read_last_lines(r);
    if (wait_status == 0)
        return;
    int code =
        WIFSIGNALED(wait_status) ? RUN_BY_SIGNAL + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
    bool asked_for = ranks->passed_on != 0 && code == RUN_BY_SIGNAL + ranks->passed_on;
    bool reader_left = ranks->out->failed != 0 && code == RUN_BY_SIGNAL + SIGPIPE;
    if (ranks->phase == RUN_GOING && !asked_for && !reader_left)
        tell_failure(ranks, rank, wait_status);
    if (ranks->exit_status == 0)
        ranks->exit_status = code;
    go_to_phase(ranks, RUN_FAILED);
}

/* One SIGCHLD may stand for several. What a failed rank has started is killed with it, while its
 * pid still names the group, that is before it is reaped. */
static void reap(rank_set *ranks)
{
    for (int i = 0; i < ranks->cfg.n_ranks; i++) {
        run_rank *r = &ranks->rank[i];
        siginfo_t info = {0};
        int wait_status;
        if (r->ended || waitid(P_PID, (id_t)r->pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
            info.si_pid == 0)
            continue;
        if (info.si_code != CLD_EXITED || info.si_status != 0)
            kill(-r->pid, SIGKILL);
        waitpid(r->pid, &wait_status, 0);
        rank_ended(ranks, i, wait_status);
    }
}

/* ---- signals -------------------------------------------------------------------------------- */

static void interrupt(rank_set *ranks)
{
    if (ranks->interrupted_s == 0) {
        ranks->interrupted_s = clock_now_s();
        run_sink_say(ranks->err,
                     "[fsdp_run] SIGINT: passed on to the ranks; another one kills them");
        rank_set_signal(ranks, SIGINT);
    } else if (clock_now_s() - ranks->interrupted_s > SAME_SIGINT_S) {
        ranks->exit_status = RUN_BY_SIGNAL + SIGINT;
        go_to_phase(ranks, RUN_KILLED);
    }
}

/* Ctrl-Z: the ranks stop with the launcher and continue with it. */
static void pause_all(rank_set *ranks)
{
    rank_set_signal(ranks, SIGTSTP);
    raise(SIGSTOP);
    rank_set_signal(ranks, SIGCONT);
}

/* When all ranks have ended, only their output is waited for. A signal ends that wait. */
static void drop_output(rank_set *ranks, int signo)
{
    for (int i = 0; i < ranks->cfg.n_ranks; i++) {
        run_stream_close(&ranks->rank[i].out);
        run_stream_close(&ranks->rank[i].err);
    }
    for (int i = 0; i < 2; i++)
        ranks->sink[i].begin = ranks->sink[i].end;
    if (ranks->exit_status == 0)
        ranks->exit_status = RUN_BY_SIGNAL + signo;
}

static void take_signal(rank_set *ranks, int signo)
{
    bool ends = signo == SIGINT || signo == SIGTERM || signo == SIGHUP;
    if (signo == SIGCHLD) {
        reap(ranks);
    } else if (signo == SIGTSTP) {
        pause_all(ranks);
    } else if (ends && ranks->n_alive == 0) {
        drop_output(ranks, signo);
    } else {
        if (ends)
            ranks->passed_on = signo;
        if (signo == SIGINT)
            interrupt(ranks);
        else
            rank_set_signal(ranks, signo);
    }
}

static void take_signals(rank_set *ranks)
{
    struct signalfd_siginfo info;
    while (read(ranks->signals, &info, sizeof info) == sizeof info)
        take_signal(ranks, (int)info.ssi_signo);
}

/* ---- output --------------------------------------------------------------------------------- */

/* The reader is gone or the disk is full: the ranks learn it as if they wrote there themselves. */
static void close_if_broken(run_stream *s)
{
    if (s->fd >= 0 && s->sink->failed != 0)
        run_stream_close(s);
}

static int poll_fd(const run_stream *s)
{
    return s->fd >= 0 && run_sink_has_room(s->sink) ? s->fd : -1;
}

/* Files for poll: signals, two sinks, two streams of each rank. poll skips negative ones. */
static void fill_polled(const rank_set *ranks, struct pollfd *polled)
{
    *polled++ = (struct pollfd){.fd = ranks->signals, .events = POLLIN};
    for (int i = 0; i < 2; i++) {
        const run_sink *k = &ranks->sink[i];
        *polled++ = (struct pollfd){.fd = run_sink_is_empty(k) ? -1 : k->fd, .events = POLLOUT};
    }
    for (int i = 0; i < ranks->cfg.n_ranks; i++) {
        *polled++ = (struct pollfd){.fd = poll_fd(&ranks->rank[i].out), .events = POLLIN};
        *polled++ = (struct pollfd){.fd = poll_fd(&ranks->rank[i].err), .events = POLLIN};
    }
}

static void move_output(rank_set *ranks, const struct pollfd *polled)
{
    for (int i = 0; i < 2; i++)
        if (polled[1 + i].revents != 0)
            run_sink_write(&ranks->sink[i]);
    for (int i = 0; i < ranks->cfg.n_ranks; i++) {
        run_rank *r = &ranks->rank[i];
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

static bool is_over(const rank_set *ranks)
{
    bool over =
        ranks->n_alive == 0 && run_sink_is_empty(ranks->out) && run_sink_is_empty(ranks->err);
    for (int i = 0; over && i < ranks->cfg.n_ranks; i++)
        over = ranks->rank[i].out.fd < 0 && ranks->rank[i].err.fd < 0;
    return over;
}

/* ---- the loop ------------------------------------------------------------------------------- */

static void tell_broken(rank_set *ranks)
{
    const run_sink *k = ranks->out;
    if (k->failed == 0 || k->failed == EPIPE)
        return;
    (void)fsdp_error(FSDP_EIO, "send the output elsewhere",
                     "fsdp_run: cannot write to standard output: %s", strerror(k->failed));
    fsdp_error_print(stderr, 0, 0);
    if (ranks->exit_status == 0)
        ranks->exit_status = 1;
}

int rank_set_wait(rank_set *ranks)
{
    size_t n = 3 + 2 * (size_t)ranks->cfg.n_ranks;
    struct pollfd *polled = calloc(n, sizeof *polled);
    if (polled == NULL) {
        rank_set_signal(ranks, SIGKILL);
        return 1;
    }
    ranks->limit_at_s = ranks->cfg.limit_s > 0 ? clock_now_s() + ranks->cfg.limit_s : 0;
    reap(ranks);
    while (!is_over(ranks)) {
        fill_polled(ranks, polled);
        if (poll(polled, n, wait_ms(ranks)) < 0)
            continue;
        move_output(ranks, polled);
        if (polled[0].revents != 0)
            take_signals(ranks);
        check_deadlines(ranks);
    }
    free(polled);
    tell_broken(ranks);
    return ranks->exit_status;
}
