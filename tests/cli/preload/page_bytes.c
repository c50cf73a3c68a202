/* page_bytes.c -- a system with larger pages. It is loaded in front of a program:
 *
 *   LD_PRELOAD=page_bytes.so PAGE_BYTES=65536 program ...
 *
 * mmap, munmap, mprotect, pkey_mprotect and madvise refuse with EINVAL what a kernel with such
 * pages refuses: an address or an offset in a file that is not a multiple of a page. They act on
 * whole pages, and new mappings begin at a page. sysconf, getpagesize and getauxval report the
 * size. The C library's own calls are not seen. */
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

long __sysconf(int name);
unsigned long __getauxval(unsigned long type);

/* A library's constructor may call this before any of this library. */
static size_t page_bytes(void)
{
    const char *text = getenv("PAGE_BYTES");
    return text ? (size_t)atol(text) : (size_t)__sysconf(_SC_PAGESIZE);
}

static bool is_part(uintptr_t at)
{
    return at % page_bytes() != 0;
}

static size_t whole(size_t bytes)
{
    return (bytes + page_bytes() - 1) / page_bytes() * page_bytes();
}

static int refuse(void)
{
    errno = EINVAL;
    return -1;
}

/* Reserve a page more than needed, and give back what lies outside whole pages. */
static char *reserve(size_t bytes)
{
    long got = syscall(SYS_mmap, NULL, bytes + page_bytes(), PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (got == -1)
        return NULL;
    size_t before = whole((size_t)got) - (size_t)got, after = page_bytes() - before;
    if (before > 0)
        syscall(SYS_munmap, got, before);
    if (after > 0)
        syscall(SYS_munmap, (size_t)got + before + bytes, after);
    return (char *)got + before;
}

void *mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    bool is_fixed = (flags & (MAP_FIXED | MAP_FIXED_NOREPLACE)) != 0;
    if (is_part((uintptr_t)offset) || (is_fixed && is_part((uintptr_t)at)) || bytes == 0) {
        refuse();
        return MAP_FAILED;
    }
    bytes = whole(bytes);
    char *place = is_fixed ? at : reserve(bytes);
    if (place == NULL)
        return MAP_FAILED;
    if (!is_fixed)
        flags |= MAP_FIXED;
    void *got = (void *)syscall(SYS_mmap, place, bytes, protection, flags, fd, offset);
    int err = errno;
    if (got == MAP_FAILED && !is_fixed)
        syscall(SYS_munmap, place, bytes);
    errno = err;
    return got;
}

void *mmap64(void *at, size_t bytes, int protection, int flags, int fd, off64_t offset)
{
    return mmap(at, bytes, protection, flags, fd, offset);
}

int munmap(void *at, size_t bytes)
{
    return is_part((uintptr_t)at) ? refuse() : (int)syscall(SYS_munmap, at, whole(bytes));
}

int mprotect(void *at, size_t bytes, int protection)
{
    return is_part((uintptr_t)at) ? refuse()
                                  : (int)syscall(SYS_mprotect, at, whole(bytes), protection);
}

int pkey_mprotect(void *at, size_t bytes, int protection, int key)
{
    return is_part((uintptr_t)at)
               ? refuse()
               : (int)syscall(SYS_pkey_mprotect, at, whole(bytes), protection, key);
}

int madvise(void *at, size_t bytes, int advice)
{
    return is_part((uintptr_t)at) ? refuse() : (int)syscall(SYS_madvise, at, whole(bytes), advice);
}

long sysconf(int name)
{
    long value = __sysconf(name), ratio = (long)page_bytes() / __sysconf(_SC_PAGESIZE);
    if (name == _SC_PAGESIZE)
        return (long)page_bytes();
    return name == _SC_PHYS_PAGES || name == _SC_AVPHYS_PAGES ? value / ratio : value;
}

int getpagesize(void)
{
    return (int)page_bytes();
}

unsigned long getauxval(unsigned long type)
{
    return type == AT_PAGESZ ? page_bytes() : __getauxval(type);
}
