/* run_output.h -- what the ranks print, line by line, for fsdp_run.
 *
 *   run_output_open -> run_output_pipe ... -> run_output_start -> dprintf(o.own_fd, ...) ...
 *   -> close(o.own_fd) -> run_output_close when it is done
 *
 * Each rank has one pipe for its standard output and one for its errors. A thread cuts what comes
 * out of them into lines and writes these to the launcher's own, one by one. While a terminal takes
 * nothing the thread waits, and so do the ranks; the launcher itself does not: its own lines may
 * then get lost. Before each of them comes what ranks wrote that have ended.
 *
 * A rank sees a pipe, not a terminal, so its C library holds back what it prints until the buffer
 * is full or flushed. build/fsdp_train flushes its lines itself; for other programs, `fsdp_run -n 4
 * stdbuf -oL PROGRAM` does it. */
#pragma once
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

/* The launcher's standard output or error. */
typedef struct run_sink {
    int fd;
    atomic_int failed; /* errno of a write; then all that follows is dropped */
    bool in_line;      /* what was written last does not end a line */
} run_sink;

typedef struct run_output {
    bool bare; /* no "[rank] " before each line */
    int n_ranks;
    struct run_stream *stream; /* [2 * n_ranks + 2] r's output is 2r, its errors 2r + 1 */
    struct pollfd *polled;     /* the same; fd -1: none, or at its end */
    run_sink sink[2], *err;    /* when both are the same file, err is the first, too */
    int own_fd;                /* for the launcher's own lines, as the errors of rank n_ranks */
    pthread_t thread;
    atomic_bool done;
} run_output;

/* run_output_open -- no thread yet. false: no memory, or too many files. */
bool run_output_open(run_output *o, int n_ranks, bool bare);
/* run_output_pipe -- the end of stream i that a rank writes; the caller closes it. -1: no pipe. */
int run_output_pipe(run_output *o, int i);
bool run_output_start(run_output *o);
/* run_output_close -- after own_fd was closed, which says that every rank has ended. When all is
 * written, `done` is set and the process gets a SIGCHLD; until then this call waits. */
void run_output_close(run_output *o);
