/* alloc_count.c -- counts who asks for memory. It is loaded in front of a program:
 *
 *   LD_PRELOAD=alloc_count.so ALLOC_COUNT=DIR program ...
 *
 * Every call of malloc and its relatives, mmap and memfd_create is counted by its return address.
 * At the end of the process DIR/PID has these lines:
 *
 *     NAME OFFSET CALLS BYTES      NAME: "program", or the library of the caller;
 *                                  OFFSET: of the return address in it, in hex
 *     peak_kb N 0 0                the most memory that the process ever held (VmHWM)
 *
 * What a library allocates for the program (oneDNN's packing buffers, stdio's buffers) counts for
 * the library. */
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include "alloc_calls.h"

/* ---- the table: open addressing by return address, never full ------------------------------- */
enum { SLOTS_LOG2 = 16, SLOTS = 1 << SLOTS_LOG2 };
static struct {
    _Atomic(uintptr_t) caller; /* 0: free */
    atomic_ulong calls, bytes;
} table[SLOTS];

/* Counts the request, and refuses none. */
static bool refused(void *return_address, size_t bytes)
{
    uintptr_t caller = (uintptr_t)return_address;
    size_t i = (caller * UINT64_C(0x9e3779b97f4a7c15)) >> (64 - SLOTS_LOG2);
    for (;; i = (i + 1) % SLOTS) {
        uintptr_t held = 0;
        if (atomic_compare_exchange_strong(&table[i].caller, &held, caller) || held == caller)
            break;
    }
    atomic_fetch_add_explicit(&table[i].calls, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&table[i].bytes, bytes, memory_order_relaxed);
    return false;
}

/* ---- the report ----------------------------------------------------------------------------- */
static void print_peak(FILE *out)
{
    char line[128];
    unsigned long kb = 0;
    FILE *f = fopen("/proc/self/status", "re");
    while (f && kb == 0 && fgets(line, sizeof line, f))
        (void)sscanf(line, "VmHWM: %lu", &kb);
    if (f)
        fclose(f);
    fprintf(out, "peak_kb %lu 0 0\n", kb);
}

static void print_callers(FILE *out)
{
    Dl_info program, at;
    if (!dladdr((void *)getauxval(AT_PHDR), &program)) /* the program's headers: its first page */
        return;
    for (size_t i = 0; i < SLOTS; i++) {
        void *caller = (void *)table[i].caller;
        if (!caller)
            continue;
        const char *name = "unknown";
        if (dladdr(caller, &at)) {
            const char *slash = strrchr(at.dli_fname, '/');
            name = at.dli_fbase == program.dli_fbase ? "program" : slash ? slash + 1 : at.dli_fname;
        } else {
            at.dli_fbase = NULL;
        }
        fprintf(out, "%s %lx %lu %lu\n", name,
                (unsigned long)((uintptr_t)caller - (uintptr_t)at.dli_fbase), table[i].calls,
                table[i].bytes);
    }
}

__attribute__((destructor)) static void report(void)
{
    const char *dir = getenv("ALLOC_COUNT");
    char path[4096];
    if (!dir || snprintf(path, sizeof path, "%s/%d", dir, (int)getpid()) >= (int)sizeof path)
        return;
    FILE *out = fopen(path, "we");
    if (!out)
        return;
    print_peak(out);
    print_callers(out);
    fclose(out);
}
