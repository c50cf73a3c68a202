/* run_output.h -- what the ranks print, line by line, for fsdp_run.
 *
 *   run_sink_open, run_stream_open -> poll -> run_stream_read, run_sink_write ... -> *_close
 *
 * Each rank has a pipe for its standard output and one for its errors: a run_stream cuts what comes
 * into lines. A run_sink queues lines for the launcher's own standard output or error. Nothing here
 * blocks: a sink is written when poll(2) says that it takes a write, and while its queue is full
 * the streams that feed it are left alone, so that ranks wait as they would for a slow terminal.
 *
 * Ranks see a pipe, not a terminal, so the C library of a rank holds back what it prints until its
 * buffer is full or flushed. build/fsdp_train flushes its lines itself; `fsdp_run -n 4 stdbuf -oL
 * PROGRAM` does it for others. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

enum { RUN_LINE_BYTES = 32 * 1024 }; /* a longer line is passed on in pieces */

struct run_stream;

typedef struct run_sink {
    int fd;
    bool prefix; /* "[rank] " before each line */
    int failed;  /* errno of a write; what is queued from then on is dropped */
    char *queue; /* [RUN_QUEUE_BYTES], begin..end wait to be written */
    size_t begin, end;
    const struct run_stream
        *unfinished; /* whose line the queue ends in the middle of, NULL: none */
} run_sink;

typedef struct run_stream {
    int fd; /* read end, O_NONBLOCK; -1 after its end */
    int rank;
    run_sink *sink;
    char *line; /* [RUN_LINE_BYTES], used_bytes of them came and are not passed on */
    size_t used_bytes;
} run_stream;

/* run_sink_open -- lines go to fd, which stays the caller's. false: no memory */
bool run_sink_open(run_sink *k, int fd, bool prefix);
void run_sink_close(run_sink *k);
/* run_sink_has_room -- for all that one run_stream_read can bring. */
bool run_sink_has_room(const run_sink *k);
bool run_sink_is_empty(const run_sink *k);
/* run_sink_write -- some of the queue; call when poll says POLLOUT (or that the file is broken). */
void run_sink_write(run_sink *k);
/* run_sink_say -- a line of the launcher's own, without its newline. */
void run_sink_say(run_sink *k, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* run_stream_open -- owns fd from now on. false: no memory */
bool run_stream_open(run_stream *s, int fd, int rank, run_sink *sink);
/* run_stream_read -- one read of what is there, whole lines go to the sink, which has room. At the
 * end of the file (or, if the writer is known to have ended, when there is nothing) the rest goes
 * too, and the stream is closed. */
void run_stream_read(run_stream *s, bool writer_ended);
void run_stream_close(run_stream *s);
