/* separate.c -- see separate.h: the CPU's streams and blocks over guarded memory, and the message
 * after a forbidden access.
 *
 * A signal handler prints the message. It allocates no memory and takes no lock except the guard's,
 * which no thread holds while it touches guarded memory. glibc's snprintf needs neither for these
 * formats. */
#include "common/device/instruments/separate.h"
#include <execinfo.h>
#include <stdatomic.h>
#include <stdio.h>
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

static void say(const char *text, size_t chars)
{
    if (write(STDERR_FILENO, text, chars) < 0)
        return; /* the error cannot be reported anywhere */
}

/* The instruction that faulted; NULL on machines not listed here. */
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

/* Print "PROGRAM(+0x1234)[address]" for the place and for its callers. */
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
    char rank[40] = "", text[512];
    if (fault.n_ranks > 0)
        snprintf(rank, sizeof rank, "[rank %d/%d] ", fault.rank, fault.n_ranks);
    int chars = snprintf(text, sizeof text,
                         "%shost access to device memory: '%.300s' (%zu bytes%s), byte %zu, by ",
                         rank, b.label, b.bytes, b.is_live ? "" : ", freed", b.byte);
    say(text, (size_t)chars); /* in one write(2), so that ranks' lines do not mix */
    say_places(place);
    say(HINT, sizeof HINT - 1);
}

/* ---- the fault ------------------------------------------------------------------------------- */

static void on_forbidden(const void *addr, const void *context)
{
    while (atomic_flag_test_and_set(&fault.said))
        pause(); /* another thread prints its message and ends the process */
    say_access(addr, place_of(context));
}

#if UNDER_ASAN
/* The sanitizer calls this after its own report and before it ends the process. */
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
