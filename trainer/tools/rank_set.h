/* rank_set.h -- the ranks that fsdp_run starts, watches and ends.
 *
 *   rank_set_start -> rank_set_wait -> rank_set_close
 *
 * run_start.c starts them, rank_set.c does the rest. One thread waits in one poll(2) for signals
 * (among them SIGCHLD, through a signalfd), the ranks' output, and deadlines.
 *
 * Every rank leads a process group of its own. So a signal, even one from the keyboard, reaches
 * only the launcher, which passes it on once to each rank and to what the rank has started. When
 * the launcher is killed, the kernel kills the ranks. */
#pragma once
#include <signal.h>
#include <sys/types.h>
#include "common/base/status.h"
#include "trainer/tools/run_output.h"

enum {
    RUN_MOST_RANKS = 256, /* each has two pipes, and a process may have 1024 files */
    RUN_USAGE = 2,
    RUN_TIMED_OUT = 124, /* as timeout(1) and shells number them */
    RUN_CANNOT_EXECUTE = 126,
    RUN_NOT_FOUND = 127,
    RUN_BY_SIGNAL = 128
};

typedef struct run_config {
    int n_ranks;
    bool prefix;
    double limit_s; /* 0: none */
    char **argv;    /* of the ranks; argv[0] is searched in PATH */
} run_config;

typedef struct run_rank {
    pid_t pid; /* 0: not started */
    bool ended;
    run_stream out, err;
} run_rank;

/* How far the job's end has come. Each phase follows from the one before it, after a while. */
typedef enum run_phase { RUN_GOING, RUN_FAILED, RUN_TERMINATED, RUN_KILLED } run_phase;

typedef struct rank_set {
    run_config cfg;
    run_rank *rank; /* [n_ranks] */
    int n_alive;
    run_sink sink[2]; /* for files 1 and 2; if both are the same file, only the first is used */
    run_sink *out, *err;
    int signals;        /* signalfd */
    sigset_t mask;      /* the launcher's own before, for the ranks */
    bool sigpipe_kills; /* SIGPIPE was not ignored before, so the ranks get its default */
    run_phase phase;
    double next_s;        /* when the next phase is due, 0: never */
    double limit_at_s;    /* 0: never */
    int passed_on;        /* the last signal passed on that ends programs, 0: none */
    double interrupted_s; /* when the first SIGINT came, 0: none */
    int exit_status;      /* of the launcher: that of the first rank that failed */
} rank_set;

/* rank_set_start -- start all ranks.
 *   ranks   call rank_set_close afterwards, also after a failure; exit_status is set then
 *   errors  FSDP_ENOMEM; FSDP_ECOMM: no shared memory, pipe or process; FSDP_EINVAL: the program
 *           cannot be started */
fsdp_status rank_set_start(rank_set *ranks, const run_config *cfg);
/* rank_set_wait -- wait until all ranks have ended and their output is written. Returns the
 * launcher's exit status. */
int rank_set_wait(rank_set *ranks);
/* rank_set_close -- kill ranks that are left from a failed start, and free everything. */
void rank_set_close(rank_set *ranks);

/* rank_set_signal -- send signo to every rank that has not ended, and to what it has started. */
void rank_set_signal(const rank_set *ranks, int signo);
