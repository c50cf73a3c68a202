/* alloc_calls.h -- the functions that ask for memory, for a library that is loaded in front of the
 * C library. The file that includes this decides what happens at each request:
 *
 *   refused   true: the request fails; refused has set errno. caller: the request's return address;
 *             bytes: 0 if the size is not known
 *
 * The functions call glibc's own by their __libc names: dlsym would allocate. */
#pragma once
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t n, size_t bytes);
void *__libc_realloc(void *ptr, size_t bytes);
void *__libc_memalign(size_t align, size_t bytes);

static bool refused(void *caller, size_t bytes);

#define REFUSED(bytes) refused(__builtin_return_address(0), bytes)

void *malloc(size_t bytes)
{
    return REFUSED(bytes) ? NULL : __libc_malloc(bytes);
}

void *calloc(size_t n, size_t bytes)
{
    return REFUSED(n * bytes) ? NULL : __libc_calloc(n, bytes);
}

void *realloc(void *ptr, size_t bytes)
{
    return REFUSED(bytes) ? NULL : __libc_realloc(ptr, bytes);
}

void *memalign(size_t align, size_t bytes)
{
    return REFUSED(bytes) ? NULL : __libc_memalign(align, bytes);
}

void *aligned_alloc(size_t align, size_t bytes)
{
    return REFUSED(bytes) ? NULL : __libc_memalign(align, bytes);
}

int posix_memalign(void **out, size_t align, size_t bytes)
{
    void *ptr = REFUSED(bytes) ? NULL : __libc_memalign(align, bytes);
    if (!ptr)
        return ENOMEM;
    *out = ptr;
    return 0;
}

void *mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    return REFUSED(bytes) ? MAP_FAILED
                          : (void *)syscall(SYS_mmap, at, bytes, protection, flags, fd, offset);
}

void *mmap64(void *at, size_t bytes, int protection, int flags, int fd, off64_t offset)
{
    return REFUSED(bytes) ? MAP_FAILED
                          : (void *)syscall(SYS_mmap, at, bytes, protection, flags, fd, offset);
}

int memfd_create(const char *name, unsigned flags)
{
    return REFUSED(0) ? -1 : (int)syscall(SYS_memfd_create, name, flags);
}
