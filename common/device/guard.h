/* guard.h -- memory that a thread may touch only while it has the right to.
 *
 *   guard_open -> guard_map -> guard_right_set around the work on it -> guard_unmap
 *
 * Where the processor and the kernel have protection keys, the right is a register of the thread:
 * every access without it faults, a system call's gives EFAULT. Else, under AddressSanitizer, all
 * guarded memory is poisoned while no thread has the right. That is weaker: what a thread without
 * it touches while another one has it is not seen.
 *
 * A thread starts with the right of the one that created it, a signal handler without any. The
 * process has one kind of right, for all its devices. Thread-safe. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include "common/base/status.h"

enum { GUARD_PAGE_BYTES = 4096 };

/* guard_open -- find out how memory is guarded here; later calls find it known.
 *   errors  FSDP_ESKIP there is neither mechanism */
fsdp_status guard_open(void);

/* guard_map -- `bytes` zeroed bytes, a multiple of a page: the first page is open to all, the
 * others are guarded. NULL when there is no memory. guard_unmap gives them back. */
void *guard_map(size_t bytes);
void guard_unmap(void *base, size_t bytes);

/* guard_has_key -- whether this protection key, which a fault names, is that of guarded memory.
 * guard_holds -- whether addr is in poisoned memory. */
bool guard_has_key(int key_of_fault);
bool guard_holds(const void *addr);

/* guard_right -- whether this thread may touch guarded memory; false before guard_open.
 * guard_right_set -- from now on it may, or may not; returns whether it could before. */
bool guard_right(void);
bool guard_right_set(bool right);
