/* status.c -- the error record of each thread, and how main() prints it.
 *
 *   fsdp_error (where it happened) -> TRY ... TRY -> fsdp_error_print (main)
 *
 * The record is thread-local, like errno. A worker thread that fails hands its record over with
 * fsdp_error_get and fsdp_error_set. */
#include "common/base/status.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The words that go with the last status this thread returned. */
static _Thread_local fsdp_error_info record;

fsdp_status fsdp_error(fsdp_status status, const char *hint, const char *fmt, ...)
{
    FSDP_ASSERT(hint != NULL);
    /* Format beside the record and copy last: the arguments may point into the record, when a
     * message quotes the one before it. */
    fsdp_error_info next = {.status = status};
    va_list args;
    va_start(args, fmt);
    if (vsnprintf(next.what, sizeof next.what, fmt, args) < 0)
        snprintf(next.what, sizeof next.what, "%s", fmt);
    va_end(args);
    snprintf(next.hint, sizeof next.hint, "%s", hint);
    record = next;
    return status;
}

const fsdp_error_info *fsdp_error_get(void)
{
    return &record;
}

void fsdp_error_set(const fsdp_error_info *info)
{
    fsdp_error_info next = *info; /* info may be the record itself */
    record = next;
}

/* write_all -- normally one write(2); more only when the kernel took a part. */
static void write_all(int fd, const char *text, size_t text_bytes)
{
    while (text_bytes > 0) {
        ssize_t written = write(fd, text, text_bytes);
        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0)
            return; /* nobody is left to tell */
        text += written;
        text_bytes -= (size_t)written;
    }
}

void fsdp_error_print(FILE *out, int rank, int world_size)
{
    char text[sizeof record.what + sizeof record.hint + 64];
    char who[32] = "";
    if (world_size > 0)
        snprintf(who, sizeof who, "[rank %d/%d] ", rank, world_size);
    snprintf(text, sizeof text, "%s%s\n%s%s%s", who, record.what, record.hint[0] ? "HINT: " : "",
             record.hint, record.hint[0] ? "\n" : "");
    fflush(out); /* keep the order of what was printed before */
    if (fileno(out) >= 0) {
        write_all(fileno(out), text, strlen(text));
    } else { /* a memory stream */
        fputs(text, out);
        fflush(out);
    }
}

const char *fsdp_status_name(fsdp_status status)
{
    switch (status) {
    case FSDP_OK:
        return "FSDP_OK";
    case FSDP_EINVAL:
        return "FSDP_EINVAL";
    case FSDP_ENOMEM:
        return "FSDP_ENOMEM";
    case FSDP_EIO:
        return "FSDP_EIO";
    case FSDP_ECOMM:
        return "FSDP_ECOMM";
    case FSDP_EMISMATCH:
        return "FSDP_EMISMATCH";
    case FSDP_ETIMEOUT:
        return "FSDP_ETIMEOUT";
    case FSDP_EORDER:
        return "FSDP_EORDER";
    case FSDP_ESTATE:
        return "FSDP_ESTATE";
    case FSDP_ETODO:
        return "FSDP_ETODO";
    case FSDP_EDEVICE:
        return "FSDP_EDEVICE";
    case FSDP_ESKIP:
        return "FSDP_ESKIP";
    case FSDP_HELP:
        return "FSDP_HELP";
    }
    return "unknown status"; /* a number from another version's file or messages */
}

fsdp_status fsdp_todo(const char *task)
{
    char hint[128];
    snprintf(hint, sizeof hint, "write it where fsdp_todo(\"%s\") stands", task);
    return fsdp_error(FSDP_ETODO, hint, "task %s is not implemented", task);
}

_Noreturn void fsdp_assert_fail(const char *file, int line, const char *func, const char *cond)
{
    fprintf(stderr, "%s:%d: %s: assertion failed: %s\n", file, line, func, cond);
    abort();
}

_Noreturn void fsdp_assert_eq_fail(const char *file, int line, const char *func, const char *cond,
                                   long long a, long long b)
{
    fprintf(stderr, "%s:%d: %s: assertion failed: %s (%lld != %lld)\n", file, line, func, cond, a,
            b);
    abort();
}
