/* status.h -- how the functions of this project report errors.
 *
 *   TRY(device_alloc(...));                           pass a failure up
 *   return fsdp_error(FSDP_EINVAL, "pass --n-head 4", "n_head %d does not divide %d", h, c);
 *   fsdp_error_print(stderr, rank, world_size);       only main() does this, then exits
 *
 * The status is the return value. Its message is kept in a thread-local record, like errno, until
 * the next fsdp_error of that thread. A worker thread passes its record to another thread with
 * fsdp_error_get and fsdp_error_set. Wrong input or a wrong environment gives a status; an error in
 * the program fails an assertion, which aborts. Libraries never exit. */
#pragma once
#include <stdio.h>
#include <stddef.h>

/* For the functions of a header that C++ sources (kernels) include too. */
#ifdef __cplusplus
#define EXTERN_C_BEGIN extern "C" {
#define EXTERN_C_END   }
#else
#define EXTERN_C_BEGIN
#define EXTERN_C_END
#endif

EXTERN_C_BEGIN

typedef enum fsdp_status {
    FSDP_OK = 0,
    FSDP_EINVAL,    /* an argument, option or file holds a value that cannot be used */
    FSDP_ENOMEM,    /* out of memory */
    FSDP_EIO,       /* a file or the terminal failed */
    FSDP_ECOMM,     /* the transport between ranks failed */
    FSDP_EMISMATCH, /* ranks disagree (operation, elements, options) */
    FSDP_ETIMEOUT,  /* a wait passed FSDP_TIMEOUT_S */
    FSDP_EORDER,    /* work on two streams touches the same memory, and no event orders it */
    FSDP_ESTATE,    /* the object's state does not allow the call */
    FSDP_ETODO,     /* a task of a lab is not implemented yet */
    FSDP_EDEVICE,   /* the device or its driver failed */
    FSDP_ESKIP,     /* not available here: a backend that was not built */
    FSDP_HELP       /* --help was given: not an error; the caller prints the help and exits */
} fsdp_status;

typedef struct fsdp_error_info {
    fsdp_status status;
    char what[768];
    char hint[384];
} fsdp_error_info;

/* fsdp_printable -- text from a file, a path or an option, made safe for a terminal: control
 * characters become \x1b and the like, UTF-8 stays. Cut to the length of a message. */
typedef struct fsdp_text {
    char text[sizeof((fsdp_error_info *)0)->what];
} fsdp_text;
fsdp_text fsdp_printable(const char *text);
/* fsdp_commands -- text with commands as this program was called: for each "build/fsdp_run" the
 * fsdp_run in the folder that was typed before this program's own name (none if it was found in
 * $PATH). Programs whose names do not begin with fsdp_ keep the text. Cut to the length of a
 * message. */
fsdp_text fsdp_commands(const char *text);

/* fsdp_error -- record an error in this thread, and return `status`.
 *   hint  what the user should do next, passed through fsdp_commands; "" if nothing helps; never
 *         NULL (asserted)
 *   fmt   what failed and where, got and expected; its arguments may point into the record itself
 * Both are passed through fsdp_printable, so each is one line. */
fsdp_status fsdp_error(fsdp_status status, const char *hint, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* fsdp_error_get -- this thread's record; valid until the next fsdp_error or fsdp_error_set. */
const fsdp_error_info *fsdp_error_get(void);
/* fsdp_error_set -- replace this thread's record by *info, which may be the record itself. Returns
 * its status. */
fsdp_status fsdp_error_set(const fsdp_error_info *info);

/* fsdp_error_print -- "[rank r/W] what" and, if there is one, "HINT: ..." on a line of its own.
 * world_size 0 leaves the rank out. One write(2), so that ranks' lines do not mix. */
void fsdp_error_print(FILE *out, int rank, int world_size);

/* fsdp_flush_stdout -- flush stdout. errors: FSDP_EIO, with this hint. */
fsdp_status fsdp_flush_stdout(const char *hint);

/* fsdp_status_name -- "FSDP_EINVAL", or "unknown status". */
const char *fsdp_status_name(fsdp_status status);

/* fsdp_todo -- the error of a task without code: FSDP_ETODO, "task 2.1 is not implemented". */
fsdp_status fsdp_todo(const char *task);

/* TRY -- return the callee's status from this function if it is not FSDP_OK. */
#define TRY(call)                                                                                  \
    do {                                                                                           \
        fsdp_status try_status_ = (call);                                                          \
        if (try_status_ != FSDP_OK)                                                                \
            return try_status_;                                                                    \
    } while (0)

/* IF_OK -- if `status` is FSDP_OK, set it to what the call returns; else do not make the call. */
#define IF_OK(status, call)                                                                        \
    do {                                                                                           \
        if ((status) == FSDP_OK)                                                                   \
            (status) = (call);                                                                     \
    } while (0)

/* GOTO_ON_FAIL -- set `status`, and go to a label that releases resources if it is not FSDP_OK. */
#define GOTO_ON_FAIL(status, call, label)                                                          \
    do {                                                                                           \
        (status) = (call);                                                                         \
        if ((status) != FSDP_OK)                                                                   \
            goto label;                                                                            \
    } while (0)

/* FSDP_ASSERT, FSDP_ASSERT_EQ -- for programmer errors, in every build; EQ prints both values. */
#define FSDP_ASSERT(cond) ((cond) ? (void)0 : fsdp_assert_fail(__FILE__, __LINE__, __func__, #cond))
#define FSDP_ASSERT_EQ(a, b)                                                                       \
    ((long long)(a) == (long long)(b)                                                              \
         ? (void)0                                                                                 \
         : fsdp_assert_eq_fail(__FILE__, __LINE__, __func__, #a " == " #b, (long long)(a),         \
                               (long long)(b)))
/* fsdp_assert_fail, fsdp_assert_eq_fail -- print place, condition and values, then abort(). */
__attribute__((noreturn)) void fsdp_assert_fail(const char *file, int line, const char *func,
                                                const char *cond);
__attribute__((noreturn)) void fsdp_assert_eq_fail(const char *file, int line, const char *func,
                                                   const char *cond, long long a, long long b);

EXTERN_C_END
