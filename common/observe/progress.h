/* progress.h -- what a person sees while training runs.
 *
 *   progress_open -> progress_step after every step -> progress_close
 *
 * On a terminal one line is redrawn in place, at most ten times a second and once at the end.
 * Anything else is a log and gets plain lines: every step if there are at most 50, otherwise about
 * 50 lines, always with the first and the last step. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef struct progress progress;

/* progress_open -- returns NULL on other ranks, and if there is no memory: progress is no reason to
 * stop training. The functions below do nothing with NULL.
 *   out       borrowed until progress_close
 *   per_step  how many of unit, "tok" or "img", a step computes */
progress *progress_open(FILE *out, int64_t total_steps, int64_t per_step, const char *unit,
                        bool is_rank0);

/* progress_step -- step `step` (from 0) took `ms` milliseconds.
 *   grad_norm  NaN leaves it out
 *   mem_bytes  peak memory of this rank; 0 leaves it out */
void progress_step(progress *p, int64_t step, double loss, double grad_norm, double ms,
                   size_t mem_bytes);

/* progress_close -- end the redrawn line and free p. */
void progress_close(progress *p);
