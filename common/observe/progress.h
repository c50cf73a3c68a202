/* progress.h -- what a person sees while training runs.
 *
 *   progress_open -> progress_step after every step -> progress_close
 *
 * On a terminal one line is redrawn in place, at most ten times a second and once at the end. In a
 * log (anything else) plain lines: every step when there are at most 50, else about 50 lines,
 * always with the first and the last step. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef struct progress progress;

/* progress_open -- out is borrowed until progress_close. is_rank0: the other ranks get NULL, which
 * every call below accepts and does nothing with (so does a failed allocation: progress is no
 * reason to stop training). */
progress *progress_open(FILE *out, int64_t total_steps, int64_t tokens_per_step, bool is_rank0);

/* progress_step -- step `step` (0-based) took `ms` milliseconds. mem_bytes: peak memory of this
 * rank, 0 leaves it out. */
void progress_step(progress *p, int64_t step, double loss, double grad_norm, double ms,
                   size_t mem_bytes);

/* progress_close -- ends the redrawn line. */
void progress_close(progress *p);
