/* run_output.h -- what the ranks print, line by line, for fsdp_run.
 *
 *   run_sink_open, run_stream_open -> poll -> run_stream_read, run_sink_write ... -> *_close
 *
 * Each rank has one pipe for its standard output and one for its errors. A run_stream cuts what
 * comes out of a pipe into lines. A run_sink queues lines for the launcher's own standard output or
 * error. Nothing here blocks: a sink is written when poll(2) says that it takes a write. While its
 * queue is full, the streams that feed it are not read, so ranks wait as for a slow terminal.
 *
 * A rank sees a pipe, not a terminal, so its C library holds back what it prints until the buffer
 * is full or flushed. build/fsdp_train flushes its lines itself; for other programs, `fsdp_run -n 4
 * stdbuf -oL PROGRAM` does it. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

enum { RUN_LINE_BYTES = 32 * 1024 }; /* a longer line is passed on in pieces */

struct run_stream;

typedef struct run_sink {
    int fd;
    bool prefix; /* "[rank] " before each line */
    int failed;  /* errno of a failed write; then the queue is dropped, and all that follows */
    char *queue; /* [RUN_QUEUE_BYTES]; begin..end waits to be written */
    size_t begin, end;
    const struct run_stream
        *unfinished; /* the stream in whose line the queue ends; NULL: between lines */
} run_sink;

typedef struct run_stream {
    int fd; /* read end, O_NONBLOCK; -1 after the end of the file */
    int rank;
    run_sink *sink;
    char *line; /* [RUN_LINE_BYTES], of which used_bytes are not passed on yet */
    size_t used_bytes;
} run_stream;

/* run_sink_open -- lines go to fd, which stays the caller's. false: no memory. */
bool run_sink_open(run_sink *k, int fd, bool prefix);
/* run_sink_close -- free the queue; what is still in it is lost. */
void run_sink_close(run_sink *k);
/* run_sink_has_room -- whether everything that one run_stream_read can bring fits the queue. */
bool run_sink_has_room(const run_sink *k);
/* run_sink_is_empty -- whether nothing waits to be written. */
bool run_sink_is_empty(const run_sink *k);
/* run_sink_write -- write some of the queue. Call it when poll reports the file, also as broken. */
void run_sink_write(run_sink *k);
/* run_sink_say -- queue a line of the launcher's own; fmt has no newline. */
void run_sink_say(run_sink *k, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* run_stream_open -- s owns fd from now on. false: no memory. */
bool run_stream_open(run_stream *s, int fd, int rank, run_sink *sink);
/* run_stream_read -- read once; whole lines go to the sink, which must have room. At the end of the
 * file the rest goes too, and the stream is closed.
 *   writer_ended  true: an empty pipe counts as the end of the file */
void run_stream_read(run_stream *s, bool writer_ended);
/* run_stream_close -- close the file and free the buffer; a closed stream is accepted. */
void run_stream_close(run_stream *s);
