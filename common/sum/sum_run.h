/* sum_run.h -- many pushes into a grad_acc as one pass over memory.
 *
 *   sum_run_begin (host: advances the counter, gives vectors to its slots)
 *   -> sum_run_launch (one kernel on the stream) -> sum_run_end (host)
 *
 * W pushes one after the other read and write the running sum W times. But the host knows before
 * the call which slots are occupied now and which will be afterwards. So one kernel can take one
 * block of elements after the other and do all pushes on it: each addition finds the result of the
 * one before in the cache, and each vector in memory is accessed once. The additions and their
 * order are the same as for single pushes, and so are the bits.
 *
 * A run holds max(vectors before, vectors after) and no other memory: the slots occupied afterwards
 * take over the vectors of those occupied before. New vectors are allocated only if more slots are
 * occupied than before. */
#pragma once
#include "common/sum/grad_acc.h"

struct mem_access; /* see device.h */

/* Limits the stack of a thread of sum_run_cpu.c to one block of 8 kB per level: about 170 kB. */
enum { SUM_RUN_MAX_INPUTS = 1 << 20 };

/* sum_run_top -- the highest slot that the next n nodes of `level` change; the lowest is `level`.
 * In fast mode both are 0. */
int sum_run_top(const grad_acc *g, int level, int n);
/* sum_run_begin -- add the next n nodes of `level` to g. g's slots become those after the run, and
 * *r describes the work of the run. *r has no pointers into itself: it may be copied.
 *   order   vectors are allocated on s; issue the run and sum_run_end on s too
 *   errors  FSDP_EINVAL: n < 1 or n > SUM_RUN_MAX_INPUTS; FSDP_ENOMEM. g's sum is then unchanged */
fsdp_status sum_run_begin(grad_acc *g, stream *s, int level, int n, sum_run *r);
/* sum_run_launch -- run *r, which is read during the call, on s.
 *   in     [n_in] its inputs, read during the call
 *   name   a literal; label: read during the call (see launch_config)
 *   errors the stream's; FSDP_ENOMEM */
fsdp_status sum_run_launch(const sum_kernels *kernels, stream *s, const sum_run *r,
                           const void *const *in, const char *name, const char *label);
/* sum_run_end -- free, in order of s, the vectors that no slot has any more. Call it once, even if
 * the launch failed. */
void sum_run_end(const sum_run *r, stream *s);

/* sum_run_part -- the part of *r for elements begin ... begin+elems-1 of its vectors; no root. */
sum_run sum_run_part(const sum_run *r, size_t begin, size_t elems);

enum { SUM_RUN_MAX_ACCESSES = 2 * TREE_SUM_LEVELS + 1 };
/* sum_run_accesses -- list the memory that a run accesses besides its inputs in out
 * [SUM_RUN_MAX_ACCESSES]; returns the number of entries. */
int sum_run_accesses(const sum_run *r, struct mem_access *out);

/* sum_run_root -- a run without a grad_acc: out [elems] = the sum of n inputs, balanced in f32. It
 * needs no sum_run_end.
 *   out  may be one of the inputs
 *   n    1 ... SUM_RUN_MAX_INPUTS (asserted)
 *   t    DTYPE_F32 or DTYPE_I64 (asserted), of inputs and out */
sum_run sum_run_root(void *out, size_t elems, int n, dtype t);
