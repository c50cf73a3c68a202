/* separate.c -- see separate.h: the CPU's streams and blocks over guarded memory, and what is said
 * of an access that nobody had the right to.
 *
 * The message comes from a signal handler: it takes no memory, and no lock but the guard's, which
 * no thread holds while it touches guarded memory. */
#include "common/device/separate.h"
#include <execinfo.h>
#include <stdatomic.h>
#include <ucontext.h>
#include <unistd.h>
#include "common/base/under_asan.h"
#include "common/device/cpu_impl.h"
#include "common/device/guard.h"
#if UNDER_ASAN
#include <sanitizer/asan_interface.h>
#endif

enum { MOST_FRAMES = 24 };

static struct {
    int rank, n_ranks;
    atomic_flag said;
} fault = {.said = ATOMIC_FLAG_INIT};

/* ---- the message ----------------------------------------------------------------------------- */

/* Up to the place in one write(2), so that ranks' lines do not mix. */
typedef struct line {
    char text[512];
    size_t chars;
} line;

static void add(line *l, const char *text)
{
    while (*text && l->chars < sizeof l->text)
        l->text[l->chars++] = *text++;
}

static void add_number(line *l, size_t number)
{
    char digits[24], *at = digits + sizeof digits;
    *--at = '\0';
    do {
        *--at = (char)('0' + number % 10);
        number /= 10;
    } while (number > 0);
    add(l, at);
}

static void say(const char *text, size_t chars)
{
    if (write(STDERR_FILENO, text, chars) < 0)
        return; /* nobody is left to tell */
}

/* The instruction that faulted; NULL where this is not known how to be found. */
static void *place_of(const ucontext_t *context)
{
#if defined(__x86_64__)
    return (void *)context->uc_mcontext.gregs[REG_RIP];
#elif defined(__aarch64__)
    return (void *)context->uc_mcontext.pc;
#else
    (void)context;
    return NULL;
#endif
}

/* "PROGRAM(+0x1234)[address]" of the place, then of its callers. */
static void say_places(void *place)
{
    static const char FROM[] = "  called from ";
    void *frames[MOST_FRAMES];
    int n = backtrace(frames, MOST_FRAMES), first = 0;
    backtrace_symbols_fd(&place, 1, STDERR_FILENO);
    while (first < n && frames[first] != place)
        first++;
    for (int i = first + 1; i < n; i++) {
        say(FROM, sizeof FROM - 1);
        backtrace_symbols_fd(&frames[i], 1, STDERR_FILENO);
    }
}

static void say_access(const void *addr, void *place)
{
    static const char HINT[] = "HINT: read it with device_download, write it with device_upload, "
                               "or launch a kernel; addr2line -fe PROGRAM 0x... names a place\n";
    cpu_block_facts b = cpu_guarded_find(addr);
    line l = {.chars = 0};
    if (fault.n_ranks > 0) {
        add(&l, "[rank ");
        add_number(&l, (size_t)fault.rank);
        add(&l, "/");
        add_number(&l, (size_t)fault.n_ranks);
        add(&l, "] ");
    }
    add(&l, "host access to device memory: '");
    add(&l, b.label);
    add(&l, "' (");
    add_number(&l, b.bytes);
    add(&l, b.is_live ? " bytes), byte " : " bytes, freed), byte ");
    add_number(&l, b.byte);
    add(&l, ", by ");
    say(l.text, l.chars);
    say_places(place);
    say(HINT, sizeof HINT - 1);
}

/* ---- the fault ------------------------------------------------------------------------------- */

static void on_forbidden(const void *addr, const void *context)
{
    while (atomic_flag_test_and_set(&fault.said))
        pause(); /* another thread is saying it, and ends the process */
    say_access(addr, place_of(context));
}

#if UNDER_ASAN
/* Behind the sanitizer's own words, which end the process. */
static void on_report(const char *report)
{
    (void)report;
    if (guard_find(__asan_get_report_address()) != NULL)
        say_access(__asan_get_report_address(), __asan_get_report_pc());
}
#endif

static void catch_faults(const device_config *config)
{
    void *frame;
#if UNDER_ASAN
    __asan_set_error_report_callback(on_report);
#endif
    (void)backtrace(&frame, 1); /* the first call loads a library */
    fault.rank = config->rank;
    fault.n_ranks = config->n_ranks;
    guard_open(on_forbidden);
}

static fsdp_status separate_open(const device_config *config, device **out)
{
    catch_faults(config);
    return cpu_open(config, out);
}

const device_backend device_separate = {
    .name = "separate", .runs_c = true, .open = separate_open, CPU_BACKEND_CALLS};
