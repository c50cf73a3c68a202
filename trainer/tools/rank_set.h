/* rank_set.h -- the ranks that fsdp_run starts, watches and ends.
 *
 *   rank_set_start -> rank_set_wait -> rank_set_close
 *
 * run_start.c starts them, rank_set.c does the rest. One thread, one poll(2): for signals (among
 * them SIGCHLD, by a signalfd), the ranks' output, and deadlines.
 *
 * Every rank leads a process group of its own. A signal for the launcher, also one from the
 * keyboard, so reaches the ranks once, by the launcher, and with it what a rank has started itself.
 * When the launcher is killed the kernel kills the ranks. */
#pragma once
#include <signal.h>
#include <sys/types.h>
#include "common/base/status.h"
#include "trainer/tools/run_output.h"

enum {
    RUN_MOST_RANKS = 256, /* two pipes each, of the 1024 files that a process may have */
    RUN_USAGE = 2,
    RUN_TIMED_OUT = 124, /* the numbers of timeout(1) and of shells */
    RUN_CANNOT_EXECUTE = 126,
    RUN_NOT_FOUND = 127,
    RUN_BY_SIGNAL = 128
};

typedef struct run_config {
    int n_ranks;
    bool prefix;
    double limit_s; /* 0: none */
    char **argv;    /* of the ranks, argv[0] is looked for in PATH */
} run_config;

typedef struct run_rank {
    pid_t pid; /* 0: not started */
    bool ended;
    run_stream out, err;
} run_rank;

/* What has begun to end the job: each phase is the last one's consequence, after a while. */
typedef enum run_phase { RUN_GOING, RUN_FAILED, RUN_TERMINATED, RUN_KILLED } run_phase;

typedef struct rank_set {
    run_config cfg;
    run_rank *rank; /* [n_ranks] */
    int n_alive;
    run_sink sink[2]; /* for 1 and 2; when both are the same file, only the first is used */
    run_sink *out, *err;
    int signals;        /* signalfd */
    sigset_t mask;      /* as it was, for the ranks */
    bool sigpipe_kills; /* as it was */
    run_phase phase;
    double next_s;        /* when the next phase is due, 0: never */
    double limit_at_s;    /* 0: never */
    int passed_on;        /* the last signal that ends programs and was passed on, 0: none */
    double interrupted_s; /* when the first SIGINT came, 0: none */
    int exit_status;      /* of the launcher: the first rank's that failed */
} rank_set;

/* rank_set_start -- start all ranks.
 *   ranks   filled; rank_set_close it whatever is returned
 *   errors  FSDP_ENOMEM; FSDP_ECOMM no shared memory, no more processes; FSDP_EINVAL the program
 *           cannot be started. ranks->exit_status is set then, and no rank is left. */
fsdp_status rank_set_start(rank_set *ranks, const run_config *cfg);
/* rank_set_wait -- until all ranks have ended and their output is written; the exit status. */
int rank_set_wait(rank_set *ranks);
void rank_set_close(rank_set *ranks);

/* rank_set_signal -- to every rank that has not ended, and what it has started. */
void rank_set_signal(const rank_set *ranks, int signo);
