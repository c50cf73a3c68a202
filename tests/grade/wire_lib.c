/* wire_lib.c -- see wire_lib.h. */
#include "tests/grade/wire_lib.h"
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

void wire_free(wire *w)
{
    free(w->bytes);
    *w = (wire){0};
}

static void make_room(wire *w, size_t bytes)
{
    if (w->used + bytes <= w->room)
        return;
    w->room = 2 * (w->used + bytes);
    w->bytes = realloc(w->bytes, w->room);
    FSDP_ASSERT(w->bytes != NULL);
}

void wire_put_bytes(wire *w, const void *bytes, size_t n)
{
    make_room(w, n);
    if (n > 0)
        memcpy(w->bytes + w->used, bytes, n);
    w->used += n;
}

void wire_get_bytes(wire *w, void *bytes, size_t n)
{
    w->is_torn = w->is_torn || n > w->used - w->read;
    if (w->is_torn) {
        memset(bytes, 0, n);
        return;
    }
    if (n > 0)
        memcpy(bytes, w->bytes + w->read, n);
    w->read += n;
}

void wire_begin(wire *w)
{
    w->used = w->read = 0;
    w->is_torn = false;
}

void wire_put(wire *w, long long x)
{
    wire_put_bytes(w, &x, sizeof x);
}

void wire_put_floats(wire *w, const float *x, size_t n)
{
    wire_put_bytes(w, x, n * sizeof *x);
}

void wire_put_rows(wire *w, const void *rows, size_t n, size_t row_bytes)
{
    wire_put(w, (long long)n);
    wire_put_bytes(w, rows, n * row_bytes);
}

void wire_put_text(wire *w, const char *text)
{
    wire_put_rows(w, text, strlen(text), 1);
}

long long wire_get(wire *w)
{
    long long x;
    wire_get_bytes(w, &x, sizeof x);
    return x;
}

void wire_get_floats(wire *w, float *x, size_t n)
{
    wire_get_bytes(w, x, n * sizeof *x);
}

size_t wire_get_below(wire *w, size_t end)
{
    const long long x = wire_get(w);
    w->is_torn = w->is_torn || x < 0 || (unsigned long long)x >= end;
    return w->is_torn ? 0 : (size_t)x;
}

size_t wire_get_rows(wire *w, void *rows, size_t most, size_t row_bytes)
{
    const size_t n = wire_get_below(w, most + 1);
    wire_get_bytes(w, rows, n * row_bytes);
    return n;
}

void wire_get_text(wire *w, char *text, size_t room)
{
    text[wire_get_rows(w, text, room - 1, 1)] = '\0';
}

fsdp_status wire_ended(const wire *w)
{
    if (!w->is_torn && w->read == w->used)
        return FSDP_OK;
    return fsdp_error(FSDP_EIO, "", "a message of %zu bytes does not have the form that was agreed",
                      w->used);
}

static fsdp_status closed(void)
{
    return fsdp_error(FSDP_EIO, "", "the other side ended before its answer was complete");
}

fsdp_status wire_send(const wire *w, int socket)
{
    const uint64_t n = w->used;
    struct iovec parts[] = {{(void *)&n, sizeof n}, {w->bytes, w->used}};
    struct msghdr whole = {.msg_iov = parts, .msg_iovlen = 2};
    while (parts[0].iov_len + parts[1].iov_len > 0) {
        ssize_t sent = sendmsg(socket, &whole, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent <= 0)
            return closed();
        for (int i = 0; i < 2; i++) {
            const size_t part = (size_t)sent < parts[i].iov_len ? (size_t)sent : parts[i].iov_len;
            parts[i].iov_base = (char *)parts[i].iov_base + part;
            parts[i].iov_len -= part;
            sent -= (ssize_t)part;
        }
    }
    return FSDP_OK;
}

static fsdp_status receive_all(int socket, void *bytes, size_t n)
{
    for (size_t done = 0; done < n;) {
        const ssize_t got = read(socket, (char *)bytes + done, n - done);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return closed();
        done += (size_t)got;
    }
    return FSDP_OK;
}

fsdp_status wire_receive(wire *w, int socket)
{
    uint64_t n;
    wire_begin(w);
    TRY(receive_all(socket, &n, sizeof n));
    if (n > WIRE_MOST_BYTES)
        return fsdp_error(FSDP_EIO, "", "a message of %llu bytes, expected at most %d",
                          (unsigned long long)n, WIRE_MOST_BYTES);
    make_room(w, n);
    w->used = n;
    return receive_all(socket, w->bytes, n);
}

int wire_address(const char *folder, struct sockaddr_un *out)
{
    const int fd = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
    *out = (struct sockaddr_un){.sun_family = AF_UNIX};
    snprintf(out->sun_path, sizeof out->sun_path, "/proc/self/fd/%d/judge", fd);
    return fd;
}
