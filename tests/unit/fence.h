/* fence.h -- memory that ends where a read or write of one byte more stops the program. */
#pragma once
#include <sys/mman.h>
#include <unistd.h>
#include "tests/unit/unit_lib.h"

/* before_a_fence -- memory whose end is the start of a page that nobody may read or write. It is
 * never freed. */
static inline void *before_a_fence(size_t bytes)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), room = (bytes + page - 1) / page * page;
    char *at = mmap(NULL, room + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(at != MAP_FAILED);
    assert_int_equal(mprotect(at + room, page, PROT_NONE), 0);
    return at + room - bytes;
}
