/* watchdog_lib.h -- report a task that crashes, exits or hangs: which rank, where, and its last
 * calls.
 *
 *   watchdog_signals -> comm_open -> watchdog_open -> watchdog_task(id) ... watchdog_task(NULL)
 *   ->
 *   watchdog_close
 *
 * A fatal signal, a call of exit or _exit, or a hang prints two lines and then the rank's last
 * collectives on stderr. A hang also ends the job.
 *
 *   RANKFAIL 2.1 1 SIGSEGV died of SIGSEGV
 *   RANKSTACK 2.1 1 build/tests/grade/lab2 0x1f03=unshard_begin 0x2c41= ...
 *
 * RANKSTACK has offsets in the program, the innermost first, in the form that addr2line takes. It
 * names only functions that are not static.
 *
 * A task hangs when its process has used WATCHDOG_CPU_S of CPU time, or has done nothing for
 * WATCHDOG_QUIET_S (three times as long while the machine has no idle CPU). Both limits are ten
 * times as long under sanitizers and on the stand-in of a device, and grow with FSDP_TIMEOUT_S. */
#pragma once
#include "common/comm/comm.h"

/* WATCHDOG_COMM_S limits a wait for other ranks. A waiting rank reports before the watchdog finds
 * that the rank it waits for hangs. */
enum { WATCHDOG_CPU_S = 8, WATCHDOG_QUIET_S = 9, WATCHDOG_COMM_S = 8 };

/* watchdog_signals -- call this before any thread starts. */
void watchdog_signals(void);

/* watchdog_open -- call it after comm_open, once per process.
 *   c    borrowed until watchdog_close. While the machine is busy, waits on c may take longer
 *   say  prints one line; a signal handler calls it */
void watchdog_open(comm *c, void (*say)(const char *line));
void watchdog_close(void);

/* watchdog_task -- a task begins; NULL: no task runs. id is kept by reference. */
void watchdog_task(const char *id);
