/* status.c -- the error record of each thread, and how main() prints it; see status.h.
 *
 *   fsdp_error (where it happened) -> TRY ... TRY -> fsdp_error_print (main) */
#include "common/base/status.h"

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* The message of this thread's last error. */
static _Thread_local fsdp_error_info record;

/* U+0080 to U+009F are c2 80 to c2 9f in UTF-8. Terminals treat them like ESC sequences. */
static bool is_utf8_control(unsigned char first, unsigned char second)
{
    return first == 0xc2 && second >= 0x80 && second < 0xa0;
}

fsdp_text fsdp_printable(const char *text)
{
    fsdp_text out;
    size_t n = 0;
    unsigned char before = 0;
    for (const unsigned char *c = (const unsigned char *)text; *c != '\0'; before = *c++) {
        const bool escapes =
            *c < 0x20 || *c == 0x7f || is_utf8_control(c[0], c[1]) || is_utf8_control(before, *c);
        if (n + (escapes ? 4 : 1) >= sizeof out.text)
            break;
        n += (size_t)snprintf(out.text + n, sizeof out.text - n, escapes ? "\\x%02x" : "%c", *c);
    }
    out.text[n] = '\0';
    return out;
}

fsdp_text fsdp_commands(const char *text)
{
    static const char *const FOLDER = "build/";
    const bool ours = strncmp(program_invocation_short_name, "fsdp_", 5) == 0;
    const char *folder = ours ? program_invocation_name : FOLDER;
    const int length =
        (int)((ours ? program_invocation_short_name : strchr(FOLDER, '\0')) - folder);
    fsdp_text out = {""};
    size_t n = 0;
    for (const char *at; n < sizeof out.text && (at = strstr(text, "build/fsdp_")) != NULL;
         text = at + strlen(FOLDER))
        n += (size_t)snprintf(out.text + n, sizeof out.text - n, "%.*s%.*s", (int)(at - text), text,
                              length, folder);
    if (n < sizeof out.text)
        snprintf(out.text + n, sizeof out.text - n, "%s", text);
    return out;
}

fsdp_status fsdp_error(fsdp_status status, const char *hint, const char *fmt, ...)
{
    FSDP_ASSERT(hint != NULL);
    /* Format elsewhere and copy last: the arguments may point into the record, if a message quotes
     * the message before it. */
    fsdp_error_info next = {.status = status};
    char what[sizeof next.what];
    va_list args;
    va_start(args, fmt);
    if (vsnprintf(what, sizeof what, fmt, args) < 0)
        snprintf(what, sizeof what, "%s", fmt);
    va_end(args);
    snprintf(next.what, sizeof next.what, "%s", fsdp_printable(what).text);
    snprintf(next.hint, sizeof next.hint, "%.*s", (int)sizeof next.hint - 1,
             fsdp_printable(fsdp_commands(hint).text).text);
    record = next;
    return status;
}

const fsdp_error_info *fsdp_error_get(void)
{
    return &record;
}

fsdp_status fsdp_error_set(const fsdp_error_info *info)
{
    fsdp_error_info next = *info; /* info may be the record itself */
    record = next;
    return next.status;
}

void fsdp_error_print(FILE *out, int rank, int world_size)
{
    char text[sizeof record.what + sizeof record.hint + 64], who[32] = "";
    if (world_size > 0)
        snprintf(who, sizeof who, "[rank %d/%d] ", rank, world_size);
    snprintf(text, sizeof text, "%s%s\n%s%s%s", who, record.what, record.hint[0] ? "HINT: " : "",
             record.hint, record.hint[0] ? "\n" : "");
    fflush(out); /* so that text goes out in one write(2) */
    fputs(text, out);
    fflush(out);
}

fsdp_status fsdp_flush_stdout(const char *hint)
{
    if (fflush(stdout) == 0 && !ferror(stdout))
        return FSDP_OK;
    return fsdp_error(FSDP_EIO, hint, "cannot write to standard output");
}

const char *fsdp_status_name(fsdp_status status)
{
    static const char *const NAMES[] = {
        [FSDP_OK] = "FSDP_OK",
        [FSDP_EINVAL] = "FSDP_EINVAL",
        [FSDP_ENOMEM] = "FSDP_ENOMEM",
        [FSDP_EIO] = "FSDP_EIO",
        [FSDP_ECOMM] = "FSDP_ECOMM",
        [FSDP_EMISMATCH] = "FSDP_EMISMATCH",
        [FSDP_ETIMEOUT] = "FSDP_ETIMEOUT",
        [FSDP_EORDER] = "FSDP_EORDER",
        [FSDP_ESTATE] = "FSDP_ESTATE",
        [FSDP_ETODO] = "FSDP_ETODO",
        [FSDP_EDEVICE] = "FSDP_EDEVICE",
        [FSDP_ESKIP] = "FSDP_ESKIP",
        [FSDP_HELP] = "FSDP_HELP",
    };
    /* the number may come from another version's files or messages */
    return (size_t)status < sizeof NAMES / sizeof *NAMES ? NAMES[status] : "unknown status";
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
