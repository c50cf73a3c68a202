/* run_output.h -- forward the output of the ranks line by line, for fsdp_run.
 *
 *   run_output_open -> run_output_pipe ... -> run_output_start -> dprintf(o.own_fd, ...) ...
 *   -> close(o.own_fd) -> run_output_close when o.done is set
 *
 * Each rank has one pipe for its standard output and one for its standard error. A thread reads the
 * pipes and writes whole lines to the launcher's standard output and error. While a terminal
 * accepts no output, the thread waits, and so do the ranks. The launcher itself does not wait; its
 * own lines may then be lost. The output of a rank that has ended comes before the launcher's line
 * about it.
 *
 * A rank writes to a pipe, not to a terminal, so its C library buffers the output until the buffer
 * is full or flushed. build/fsdp_train flushes every line; for other programs use `fsdp_run -n 4
 * stdbuf -oL PROGRAM`. */
#pragma once
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

/* The launcher's standard output or error. */
typedef struct run_sink {
    int fd;
    atomic_int failed; /* errno of a failed write, after which all output is dropped; 0: none */
    bool in_line;      /* the last write did not end with a newline */
} run_sink;

typedef struct run_output {
    bool bare; /* no "[rank] " before each line */
    int n_ranks;
    struct run_stream *stream; /* [2 * n_ranks + 2] stdout of rank r is 2r, its stderr 2r + 1 */
    struct pollfd *polled;     /* the pipes, by the same index; fd -1: closed */
    run_sink sink[2], *err;    /* err: the sink of stderr, sink[0] if both are the same file */
    int own_fd;                /* pipe for the launcher's own lines, as stderr of rank n_ranks */
    pthread_t thread;
    atomic_bool done;
} run_output;

/* run_output_open -- prepare *o, without a thread. false: out of memory, or too many files. */
bool run_output_open(run_output *o, int n_ranks, bool bare);
/* run_output_pipe -- create the pipe of stream i; returns the end that the rank writes, which the
 * caller closes; -1: no pipe. */
int run_output_pipe(run_output *o, int i);
/* run_output_start -- start the thread; false: it cannot be started. */
bool run_output_start(run_output *o);
/* run_output_close -- wait until all output is written, and free o. Close own_fd before, after all
 * ranks have ended. When all is written, the thread sets `done` and sends this process SIGCHLD. */
void run_output_close(run_output *o);
