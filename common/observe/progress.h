/* progress.h -- print the progress of training for people.
 *
 *   progress_open -> progress_step after every step -> progress_close
 *
 * On a terminal one line is redrawn in place, at most ten times a second and once at the end.
 * Any other output is a log of plain lines: every step if there are at most 50, otherwise about 25
 * to 50 steps at equal distances, always including the first and the last step. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef struct progress progress;

/* progress_open -- returns NULL on ranks other than 0, and if out of memory, because progress is no
 * reason to stop training. The functions below do nothing with NULL.
 *   out       borrowed until progress_close
 *   per_step  tokens or images of a step; unit is "tok" or "img" */
progress *progress_open(FILE *out, int64_t total_steps, int64_t per_step, const char *unit,
                        bool is_rank0);

/* progress_step -- report that step `step` (from 0) took `ms` milliseconds.
 *   grad_norm  not printed if NaN
 *   mem_bytes  peak memory of this rank; not printed if 0 */
void progress_step(progress *p, int64_t step, double loss, double grad_norm, double ms,
                   size_t mem_bytes);

/* progress_close -- end the redrawn line and free p. */
void progress_close(progress *p);
