/* alloc_fail.c -- lets a request for memory fail. It is loaded in front of a program:
 *
 *   LD_PRELOAD=alloc_fail.so ALLOC_FAIL=N ALLOC_RANK=R ALLOC_LOG=FILE ALLOC_OF=LIBRARY program ...
 *
 * Request N fails, counted from 1; with "N+" all later ones fail too. Only requests of the program
 * count, and requests that the C library, cJSON and xxHash make. Other libraries (libgomp, oneDNN,
 * MPICH) end the process if they get no memory, so their requests are served. LIBRARY: only
 * requests of the library whose name begins so count, for instance libstdc++: C++'s new. R: only in
 * that rank of fsdp_run; empty or not set: in all. Without ALLOC_FAIL a program can call
 * alloc_fail_at. FILE gets a line "injected CALLER" if there was a request N, and at the end a line
 * "end REQUESTS". */
#include <fcntl.h>
#include <link.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "alloc_calls.h"

enum { MAX_RANGES = 8 };
static struct {
    uintptr_t begin, end;
} ranges[MAX_RANGES]; /* the code whose requests count; the program is the first */
static int n_ranges;
static atomic_long n_requests;
static long failing; /* 0: none, and nothing is counted */
static bool all_after;

void alloc_fail_at(long n);

static void say(const char *text, int n)
{
    const char *path = getenv("ALLOC_LOG");
    int fd = path ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666) : -1;
    if (fd >= 0) {
        (void)!write(fd, text, (size_t)n);
        close(fd);
    }
}

/* name: of a library; "" is the program. */
static bool counts(const char *name)
{
    const char *only = getenv("ALLOC_OF");
    if (only)
        return strncmp(name, only, strlen(only)) == 0;
    return !*name || strncmp(name, "libc.so", 7) == 0 || strncmp(name, "libcjson", 8) == 0 ||
           strncmp(name, "libxxhash", 9) == 0;
}

static int note_range(struct dl_phdr_info *info, size_t info_bytes, void *unused)
{
    const char *slash = strrchr(info->dlpi_name, '/'), *name = slash ? slash + 1 : info->dlpi_name;
    (void)info_bytes;
    (void)unused;
    if (!counts(name) || n_ranges == MAX_RANGES || strstr(name, "vdso"))
        return 0;
    ranges[n_ranges].begin = UINTPTR_MAX;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *p = &info->dlpi_phdr[i];
        uintptr_t at = info->dlpi_addr + p->p_vaddr;
        if (p->p_type != PT_LOAD)
            continue;
        if (at < ranges[n_ranges].begin)
            ranges[n_ranges].begin = at;
        if (at + p->p_memsz > ranges[n_ranges].end)
            ranges[n_ranges].end = at + p->p_memsz;
    }
    n_ranges++;
    return 0;
}

/* Lets the program's n-th request from now on fail; 0: none. */
void alloc_fail_at(long n)
{
    if (n_ranges == 0)
        dl_iterate_phdr(note_range, NULL);
    atomic_store(&n_requests, 0);
    failing = n;
}

/* Runs after the requests of the dynamic linker and of the libraries' constructors. */
__attribute__((constructor)) static void begin(void)
{
    const char *text = getenv("ALLOC_FAIL"), *rank = getenv("ALLOC_RANK"), *me = getenv("FSDP_RUN");
    if (!text || (rank && *rank && (!me || atoi(me) != atoi(rank))))
        return;
    all_after = strchr(text, '+') != NULL;
    alloc_fail_at(atol(text));
}

__attribute__((destructor)) static void end(void)
{
    char text[64];
    if (failing)
        say(text, snprintf(text, sizeof text, "end %ld\n", atomic_load(&n_requests)));
    failing = 0;
}

static bool refused(void *return_address, size_t bytes)
{
    uintptr_t caller = (uintptr_t)return_address;
    char text[64];
    bool ours = false;
    (void)bytes;
    for (int i = 0; i < n_ranges && failing; i++)
        ours = ours || (caller >= ranges[i].begin && caller < ranges[i].end);
    if (!ours)
        return false;
    long n = atomic_fetch_add(&n_requests, 1) + 1;
    if (n == failing)
        say(text, snprintf(text, sizeof text, "injected %lx\n",
                           (unsigned long)(caller - ranges[0].begin)));
    if (n != failing && !(all_after && n > failing))
        return false;
    errno = ENOMEM;
    return true;
}
