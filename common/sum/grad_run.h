/* grad_run.h -- many pushes into a grad_acc as one pass over memory.
 *
 *   grad_run_plan (host: moves the counter, allocates) -> grad_run_execute (on the stream)
 *   -> grad_run_retire (host, behind the launch) -> grad_run_free
 *
 * W pushes one after the other read and write the running sum W times. The additions they lead to
 * are known when the call is issued, so they are written down as a list of steps on whole vectors
 * and then run block by block: what one step leaves in the cache the next one finds there, and a
 * vector in memory is touched once. The additions and their order are those of the single pushes,
 * so the bits are too. Nodes come in as acc->sum_dtype: in bf16 they are expanded block by block,
 * and every sum is rounded.
 *
 * Worked example, canonical, W = 4, an empty counter: steps  t0 = v0+v1,  t1 = v2+v3,  x = t0+t1;
 * t0 and t1 are pieces on the stack, x is the one new vector. */
#pragma once
#include "common/sum/grad_acc.h"

/* One addition of vectors; numbers count places. right < 0: a copy. */
typedef struct grad_step {
    int16_t dst, left, right;
} grad_step;

/* A plan is one piece of memory without pointers into itself: it may be copied. */
typedef struct grad_run {
    size_t bytes; /* of the whole plan */
    size_t elems;
    dtype sum_dtype; /* of the inputs */
    int n_in, n_vecs, n_temps, n_steps, n_merged;
    size_t steps_at, merged_at; /* bytes from the start of the plan */
    float *vec[]; /* [n_vecs] device vectors; places are numbered inputs, vecs, temps */
} grad_run;

enum { GRAD_RUN_MAX_INPUTS = 4096 };

/* grad_run_plan -- take the next n nodes of `level` into g. *out: for grad_run_free. After a
 * failure g is undefined until grad_acc_free. errors: FSDP_ENOMEM; FSDP_EINVAL n >
 * GRAD_RUN_MAX_INPUTS      */
fsdp_status grad_run_plan(grad_acc *g, stream *s, int level, int n, grad_run **out);
/* grad_run_execute -- on the CPU: the additions. in [n][elems]: the nodes, in order, stored as
 * acc->sum_dtype; only read. */
fsdp_status grad_run_execute(const grad_run *r, const void *const *in, int n_threads);
/* grad_run_retire -- free, in order of s, the vectors that were merged into others. */
void grad_run_retire(const grad_run *r, stream *s);
/* grad_run_free -- the plan itself; NULL is accepted. */
void grad_run_free(grad_run *r);

/* grad_run_peak -- most vectors that g holds while n nodes come in behind n_before of the same
 * level. */
size_t grad_run_peak(grad_acc_mode mode, uint64_t n_before, int n);
