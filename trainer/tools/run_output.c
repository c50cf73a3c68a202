/* run_output.c -- see run_output.h. */
#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "trainer/tools/run_output.h"

/* Prefixes make a stream's buffer longer, at worst one for each byte ("\n" -> "[255] \n", 7 bytes).
 * So does a newline after another stream's unfinished line. */
enum { PREFIX_BYTES = 16, ROOM_BYTES = 8 * RUN_LINE_BYTES, RUN_QUEUE_BYTES = 2 * ROOM_BYTES };

/* ---- sinks ---------------------------------------------------------------------------------- */

bool run_sink_open(run_sink *k, int fd, bool prefix)
{
    *k = (run_sink){.fd = fd, .prefix = prefix, .queue = malloc(RUN_QUEUE_BYTES)};
    return k->queue != NULL;
}

void run_sink_close(run_sink *k)
{
    free(k->queue);
    k->queue = NULL;
}

bool run_sink_is_empty(const run_sink *k)
{
    return k->begin == k->end;
}

bool run_sink_has_room(const run_sink *k)
{
    return RUN_QUEUE_BYTES - (k->end - k->begin) >= ROOM_BYTES;
}

static void queue_bytes(run_sink *k, const char *data, size_t bytes)
{
    if (k->failed != 0)
        return;
    if (RUN_QUEUE_BYTES - k->end < bytes) {
        memmove(k->queue, k->queue + k->begin, k->end - k->begin);
        k->end -= k->begin;
        k->begin = 0;
    }
    if (RUN_QUEUE_BYTES - k->end < bytes)
        return; /* only a line of the launcher itself can find the queue full */
    memcpy(k->queue + k->end, data, bytes);
    k->end += bytes;
}

/* How much of the queue goes into one write: no more than a pipe takes at once, and whole lines, so
 * that another process's writes to the same file come between lines. */
static size_t write_bytes(const run_sink *k)
{
    size_t bytes = k->end - k->begin;
    if (bytes <= PIPE_BUF)
        return bytes;
    const char *last = memrchr(k->queue + k->begin, '\n', PIPE_BUF);
    return last != NULL ? (size_t)(last + 1 - (k->queue + k->begin)) : PIPE_BUF;
}

void run_sink_write(run_sink *k)
{
    ssize_t n = write(k->fd, k->queue + k->begin, write_bytes(k));
    if (n >= 0) {
        k->begin += (size_t)n;
    } else if (errno != EAGAIN && errno != EINTR) {
        k->failed = errno;
        k->begin = k->end;
    }
}

/* Called before anything that does not continue the unfinished line. */
static void finish_line(run_sink *k)
{
    if (k->unfinished != NULL)
        queue_bytes(k, "\n", 1);
    k->unfinished = NULL;
}

void run_sink_say(run_sink *k, const char *fmt, ...)
{
    char text[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    finish_line(k);
    queue_bytes(k, text, strlen(text));
    queue_bytes(k, "\n", 1);
}

/* ---- streams -------------------------------------------------------------------------------- */

bool run_stream_open(run_stream *s, int fd, int rank, run_sink *sink)
{
    *s = (run_stream){.fd = fd, .rank = rank, .sink = sink, .line = malloc(RUN_LINE_BYTES)};
    return s->line != NULL;
}

void run_stream_close(run_stream *s)
{
    if (s->fd >= 0)
        close(s->fd);
    free(s->line);
    s->fd = -1;
    s->line = NULL;
}

/* Passes on a line, or a piece of one that is too long. */
static void pass_on(run_stream *s, const char *data, size_t bytes)
{
    run_sink *k = s->sink;
    if (k->unfinished != s) {
        char prefix[PREFIX_BYTES];
        finish_line(k);
        if (k->prefix)
            queue_bytes(k, prefix, (size_t)snprintf(prefix, sizeof prefix, "[%d] ", s->rank));
    }
    queue_bytes(k, data, bytes);
    k->unfinished = data[bytes - 1] == '\n' ? NULL : s;
}

static void pass_lines(run_stream *s)
{
    char *at = s->line, *end = s->line + s->used_bytes, *newline;
    while (at < end && (newline = memchr(at, '\n', (size_t)(end - at))) != NULL) {
        pass_on(s, at, (size_t)(newline + 1 - at));
        at = newline + 1;
    }
    s->used_bytes = (size_t)(end - at);
    memmove(s->line, at, s->used_bytes);
}

static void pass_rest(run_stream *s)
{
    if (s->used_bytes > 0)
        pass_on(s, s->line, s->used_bytes);
    s->used_bytes = 0;
}

void run_stream_read(run_stream *s, bool writer_ended)
{
    if (s->fd < 0)
        return;
    ssize_t n = read(s->fd, s->line + s->used_bytes, RUN_LINE_BYTES - s->used_bytes);
    bool nothing_yet = n < 0 && (errno == EINTR || (errno == EAGAIN && !writer_ended));
    if (nothing_yet)
        return;
    if (n > 0) {
        s->used_bytes += (size_t)n;
        pass_lines(s);
        if (s->used_bytes == RUN_LINE_BYTES)
            pass_rest(s);
        return;
    }
    pass_rest(s);
    if (s->sink->prefix && s->sink->unfinished == s)
        finish_line(s->sink);
    run_stream_close(s);
}
