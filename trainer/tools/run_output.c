/* run_output.c -- see run_output.h. */
#include "trainer/tools/run_output.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LINE_BYTES = 1 << 19 /* a longer line is split */, PREFIX_BYTES = 16 };

typedef struct run_stream {
    size_t used_bytes;
    char text[PREFIX_BYTES + LINE_BYTES]; /* room for a prefix, then the bytes read */
} run_stream;

/* Writes the prefix and a line, or a piece of one. Overwrites up to PREFIX_BYTES before `line`. */
static void put_line(run_sink *k, const char *prefix, char *line, size_t bytes)
{
    char before[PREFIX_BYTES];
    int n = snprintf(before, sizeof before, "%s%s", k->in_line ? "\n" : "", prefix);
    char *at = memcpy(line - n, before, (size_t)n), *end = line + bytes;
    k->in_line = end[-1] != '\n';
    while (at < end && k->failed == 0) {
        ssize_t written = write(k->fd, at, (size_t)(end - at));
        if (written >= 0)
            at += written;
        else if (errno == EAGAIN)
            poll(&(struct pollfd){.fd = k->fd, .events = POLLOUT}, 1, -1);
        else if (errno != EINTR)
            k->failed = errno;
    }
}

/* Reads stream i once, and writes its whole lines; at the end of the stream, all that is left. If
 * at_end is set, no more output will come, and an empty pipe is closed. Returns false if the pipe
 * was empty or is closed. */
static bool stream_read(run_output *o, int i, bool at_end)
{
    run_stream *s = &o->stream[i];
    run_sink *k = i % 2 == 0 ? &o->sink[0] : o->err;
    char prefix[PREFIX_BYTES] = "", *at = s->text + PREFIX_BYTES, *line_end;
    int *fd = &o->polled[i].fd;
    if (*fd < 0)
        return false;
    ssize_t n = read(*fd, at + s->used_bytes, LINE_BYTES - s->used_bytes);
    if (n < 0 && (errno == EINTR || (errno == EAGAIN && !at_end)))
        return false;
    char *fresh = at + s->used_bytes, *end = fresh + (n > 0 ? n : 0); /* no line ends before */
    if (!o->bare && i / 2 < o->n_ranks)
        snprintf(prefix, sizeof prefix, "[%d] ", i / 2);
    for (; (line_end = memchr(fresh, '\n', (size_t)(end - fresh))) != NULL;
         at = fresh = line_end + 1)
        put_line(k, prefix, at, (size_t)(line_end + 1 - at));
    if (at < end && (n <= 0 || end - at == LINE_BYTES)) {
        put_line(k, prefix, at, (size_t)(end - at));
        at = end;
    }
    s->used_bytes = (size_t)(end - at);
    memmove(s->text + PREFIX_BYTES, at, s->used_bytes);
    if (n > 0 && (k->failed == 0 || i / 2 == o->n_ranks))
        return true;
    close(*fd); /* if the sink failed, the rank gets SIGPIPE, as if it wrote there itself */
    *fd = -1;
    return false;
}

static void *output_main(void *arg)
{
    run_output *o = arg;
    int own = 2 * o->n_ranks + 1;
    while (o->polled[own].fd >= 0) {
        if (poll(o->polled, (nfds_t)own + 1, -1) < 0)
            continue;
        /* Before a line of the launcher, read what ranks left. Three reads of a pipe are enough:
         * its content, the rest if that filled the room for a line, and its end. */
        const bool has_own = o->polled[own].revents != 0;
        for (int i = 0; i < own + has_own; i++)
            if (has_own || o->polled[i].revents != 0)
                for (int n = 0; n < (i < own ? 3 : 1) && stream_read(o, i, false); n++)
                    ;
    }
    for (int i = 0; i < own; i++)
        while (stream_read(o, i, true))
            ;
    atomic_store(&o->done, true);
    kill(getpid(), SIGCHLD);
    return NULL;
}

bool run_output_open(run_output *o, int n_ranks, bool bare)
{
    size_t n = 2 * (size_t)n_ranks + 2;
    struct stat out, err;
    bool is_one = fstat(1, &out) == 0 && fstat(2, &err) == 0 && out.st_dev == err.st_dev &&
                  out.st_ino == err.st_ino;
    *o = (run_output){.n_ranks = n_ranks,
                      .bare = bare,
                      .stream = calloc(n, sizeof *o->stream),
                      .polled = calloc(n, sizeof *o->polled),
                      .sink = {{.fd = 1}, {.fd = 2}},
                      .err = &o->sink[is_one ? 0 : 1]};
    if (o->stream == NULL || o->polled == NULL)
        return false;
    for (size_t i = 0; i < n; i++)
        o->polled[i] = (struct pollfd){.fd = -1, .events = POLLIN};
    o->own_fd = run_output_pipe(o, 2 * n_ranks + 1);
    return o->own_fd >= 0 && fcntl(o->own_fd, F_SETFL, O_NONBLOCK) == 0;
}

int run_output_pipe(run_output *o, int i)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0)
        return -1;
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    o->polled[i].fd = ends[0];
    return ends[1];
}

bool run_output_start(run_output *o)
{
    return pthread_create(&o->thread, NULL, output_main, o) == 0;
}

void run_output_close(run_output *o)
{
    pthread_join(o->thread, NULL);
    free(o->polled);
    free(o->stream);
}
