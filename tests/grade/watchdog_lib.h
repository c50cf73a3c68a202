/* watchdog_lib.h -- a task that crashes, exits or hangs: which rank it was, where, and its last
 * calls.
 *
 *   watchdog_signals -> comm_open -> watchdog_open -> watchdog_task(id) ... watchdog_task(NULL) ->
 *   watchdog_close
 *
 * A fatal signal, a call of exit or _exit and a hang are told by two lines, then by the rank's last
 * collectives on stderr; a hang ends the job.
 *
 *   RANKFAIL 2.1 1 SIGSEGV died of SIGSEGV
 *   RANKSTACK 2.1 1 build/tests/grade/lab2 0x1f03=unshard_begin 0x2c41= ...
 *
 * RANKSTACK has offsets in the program, the innermost first, as addr2line takes them. It names the
 * functions that are not static.
 *
 * A task hangs when its process has used WATCHDOG_CPU_S of CPU time, or has done nothing for
 * WATCHDOG_QUIET_S, three times that while the machine has no CPU to spare. Both are ten times that
 * under sanitizers and on the stand-in of a device, and grow with FSDP_TIMEOUT_S. */
#pragma once
#include "common/comm/comm.h"

/* WATCHDOG_COMM_S: what a wait for other ranks may take; they report it before the rank that they
 * wait for is found to hang. */
enum { WATCHDOG_CPU_S = 8, WATCHDOG_QUIET_S = 9, WATCHDOG_COMM_S = 8 };

/* watchdog_signals -- call it before anything starts a thread. */
void watchdog_signals(void);

/* watchdog_open -- after comm_open. One per process.
 *   c    borrowed until watchdog_close. While the machine is busy, its waits may take longer
 *   say  prints one line; a signal handler calls it */
void watchdog_open(comm *c, void (*say)(const char *line));
void watchdog_close(void);

/* watchdog_task -- a task begins; NULL: none runs any more. id is kept by reference. */
void watchdog_task(const char *id);
