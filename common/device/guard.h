/* guard.h -- memory that a thread may touch only while it has the right to do so.
 *
 *   guard_open -> guard_map -> guard_right_set around the work on it -> guard_unmap
 *
 * There are three mechanisms; guard_open takes the first that is available:
 *   keys    memory protection keys (ospke in /proc/cpuinfo). A register of the thread holds the
 *           right: every access without it faults.
 *   poison  under AddressSanitizer all guarded memory is poisoned while no thread has the right.
 *   pages   guarded pages are closed (mprotect). When a thread with the right touches a mapping, it
 *           faults once, the handler opens the mapping, and the access runs again. When the last
 *           thread gives its right back, open mappings are closed.
 * With keys and pages, a system call on closed memory fails with EFAULT. Poison and pages are
 * weaker than keys: they miss accesses of a thread without the right while another thread has the
 * right (pages: only to mappings that a thread with the right has touched).
 *
 * With keys a new thread inherits the right of the thread that created it; otherwise it has none.
 * One right covers all devices of the process. Thread-safe. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include "common/base/page.h"
#include "common/base/status.h"

/* guard_open -- choose the mechanism and catch SIGSEGV. On a fault in guarded memory, the handler
 * calls `forbidden`, which can print a message, and then ends the process. Other faults go to the
 * handler that was set before. Later calls keep the mechanism, but replace `forbidden` and set the
 * handler again.
 *   context  of the signal, a ucontext_t */
typedef void (*guard_forbidden_fn)(const void *addr, const void *context);
void guard_open(guard_forbidden_fn forbidden);

/* guard_map -- map `bytes` bytes, a multiple of PAGE_BYTES. The first page is open to all,
 * but its first half belongs to the guard; the other pages are guarded and zero. NULL and errno:
 * there is no memory. guard_unmap -- unmap them. */
void *guard_map(size_t bytes);
void guard_unmap(void *base, size_t bytes);

/* guard_find -- the begin of the mapping that contains addr, as guard_map returned it; NULL: none.
 * Signal handlers may call it. */
void *guard_find(const void *addr);

/* guard_right -- whether this thread may touch guarded memory; false before guard_open.
 * guard_right_set -- give this thread the right, or take it away; returns whether the thread had
 * it. */
bool guard_right(void);
bool guard_right_set(bool right);
