/* guard.h -- memory that a thread may touch only while it has the right to.
 *
 *   guard_open -> guard_map -> guard_right_set around the work on it -> guard_unmap
 *
 * Three mechanisms; guard_open takes the first that the machine has:
 *   keys    memory protection keys (ospke in /proc/cpuinfo). The right is a register of the thread:
 *           every access without it faults.
 *   poison  under AddressSanitizer all guarded memory is poisoned while no thread has the right.
 *   pages   guarded pages are closed (mprotect). When a thread with the right touches a mapping, it
 *           faults once, the handler opens the mapping, and the access runs again. When the last
 *           thread gives its right back, open mappings are closed.
 * With keys and pages a system call that is handed closed memory fails with EFAULT. Poison and
 * pages are weaker than keys: they miss what a thread without the right touches while another
 * thread has it (pages: only in mappings that such a thread has touched itself).
 *
 * With keys a new thread starts with the right of the thread that created it, else with none. The
 * process has one kind of right, for all its devices. Thread-safe. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include "common/base/status.h"

enum { GUARD_PAGE_BYTES = 65536 }; /* a multiple of every system's page */

/* guard_open -- choose the mechanism, and take SIGSEGV: faults in guarded memory are told to
 * `forbidden`, which may say so and return, and then end the process; all others go to the handler
 * that was there before. Later calls do nothing.
 *   context  of the signal, a ucontext_t */
typedef void (*guard_forbidden_fn)(const void *addr, const void *context);
void guard_open(guard_forbidden_fn forbidden);

/* guard_map -- `bytes` bytes, a multiple of GUARD_PAGE_BYTES: the first page is open to all, and
 * its first half is the guard's own; the other pages are guarded and zero. NULL: no memory.
 * guard_unmap gives them back. */
void *guard_map(size_t bytes);
void guard_unmap(void *base, size_t bytes);

/* guard_find -- what guard_map returned for the mapping that addr is in; NULL: in none. Signal
 * handlers may call it. */
void *guard_find(const void *addr);

/* guard_right -- whether this thread may touch guarded memory; false before guard_open.
 * guard_right_set -- from now on it may, or may not; returns whether it could before. */
bool guard_right(void);
bool guard_right_set(bool right);
