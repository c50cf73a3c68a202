/* sum_run.h -- many pushes into a grad_acc as one pass over memory.
 *
 *   sum_run_begin (host: moves the counter, gives vectors to its slots)
 *   -> r.kernels->run (on the stream) -> sum_run_end (host, behind the launch)
 *
 * W pushes one after the other read and write the running sum W times. The host knows which slots
 * are occupied before the call and which are afterwards. So a kernel runs the whole counter on one
 * block of elements after the other: what one addition leaves in the cache the next one finds
 * there, and a vector in memory is touched once. The additions and their order are those of the
 * single pushes, so the bits are too.
 *
 * A run holds max(vectors before, vectors after) and nothing else: the slots occupied afterwards
 * take the vectors of those occupied before. A new vector is allocated only when there are more
 * slots than before. */
#pragma once
#include "common/sum/grad_acc.h"

enum { SUM_RUN_MAX_INPUTS = 4096 };

/* sum_run_begin -- take the next n nodes of `level` into g: g's slots are those after the run, *r
 * says what the run has to do. *r has no pointers into itself: it may be copied.
 *   order   vectors are allocated on s; the run and sum_run_end belong on s too
 *   errors  FSDP_ENOMEM; FSDP_EINVAL: n < 1 or n > SUM_RUN_MAX_INPUTS; g is then as it was */
fsdp_status sum_run_begin(grad_acc *g, stream *s, int level, int n, sum_run *r);
/* sum_run_end -- free, in order of s, the vectors that no slot has any more. Once, also when the
 * run could not be launched. */
void sum_run_end(const sum_run *r, stream *s);

/* sum_run_root -- a run without a grad_acc: out [elems] = the balanced sum of n fp32 inputs, 1 <= n
 * <= SUM_RUN_MAX_INPUTS (asserted). out may be one of them. It needs no sum_run_end, and has no
 * kernels: the caller calls the one it wants. */
sum_run sum_run_root(float *out, size_t elems, int n);

/* sum_run_peak -- most vectors that g holds while n nodes come in behind n_before of the same
 * level: max(before, after). */
size_t sum_run_peak(grad_acc_mode mode, uint64_t n_before, int n);
