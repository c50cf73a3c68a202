/* sum_kernels.h -- the table of kernels that add device vectors.
 *
 * A backend fills in the table, and its `ops` table points to it (ops.h: sums). Running sums
 * (grad_acc.h) and collectives get this table and use no other operation. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/base/dtype.h"
#include "common/device/device_calls.h"
#include "common/sum/tree_sum.h"

EXTERN_C_BEGIN

/* out[i] = a[i] + b[i]. out may be a or b. With round_to = DTYPE_BF16 a[i], b[i] and their sum are
 * each rounded to bf16 (bf16_from_f32) and stay in fp32 arrays: a node of a sum in bf16. Only then
 * may b be NULL: out[i] = a[i], rounded. */
typedef struct add_args {
    float *out;
    const float *a, *b;
    size_t elems;
    dtype round_to;
} add_args;

/* out[i] = in[i]: bf16_from_f32 or f32_from_bf16; equal types are a copy. Each type is DTYPE_F32 or
 * DTYPE_BF16, else FSDP_EINVAL. */
typedef struct cast_args {
    void *out;
    const void *in;
    dtype out_type, in_type;
    size_t elems;
} cast_args;

/* A run pushes the next n_in nodes of `level` into one running sum, in one pass over memory. A
 * kernel needs only this struct, which points to device memory, and the inputs.
 *
 * n_before and n_after count nodes of `level`: bit k of n_before is set if slot level + k is
 * occupied before the run, bit k of n_after if it is afterwards. The run reads before[level ...
 * top] and writes after[level ... top]. Slots above top stay as they are. A vector may be in both
 * arrays, in different slots, so a kernel writes an element after all its reads of that element.
 *
 * Worked example: level 0, slots 0 and 2 occupied (n_before = 5), three nodes x, y, z (n_after =
 * 8). Slot 3 becomes slot2 + ((slot0 + x) + (y + z)); top = 3; after[3] is before[2]. */
typedef struct sum_run {
    size_t elems;
    dtype sum_dtype; /* the inputs' type; DTYPE_BF16: every sum is rounded; DTYPE_I64: root only */
    bool in_turn;    /* no tree: slot 0 is a plain sum in the order of the pushes */
    int level, top;
    int n_in;
    int n_surplus; /* vectors of `before` that no slot has afterwards, from the lowest slots */
    uint64_t n_before, n_after;
    uint64_t fresh; /* bit k: after[k] is a new vector, not one of `before` */
    float *before[TREE_SUM_LEVELS], *after[TREE_SUM_LEVELS];
    void *root; /* not NULL: the sum of the inputs is written here, and the slots stay empty */
} sum_run;

/* One launch: a run, its inputs, and its description for a watch. */
typedef struct sum_launch {
    const sum_run *run;
    const void *const *in; /* [n_in] vectors of run->elems, only read; the array: host memory */
    const struct launch_config *what; /* name, label and accesses; the backend fills in the rest */
} sum_launch;

typedef struct sum_kernels {
    fsdp_status (*add)(stream *s, const add_args *a);
    /* cast -- used by reductions in bf16, which send rounded values */
    fsdp_status (*cast)(stream *s, const cast_args *a);

    /* launch -- run the nodes l->in, in order, on s; elems is not 0. DTYPE_I64: root[i] = the
     * inputs' sum, which wraps as two's complement does. The call reads l and the array of inputs,
     * which has up to SUM_RUN_MAX_INPUTS pointers: a backend passes them with *l->run in the
     * kernel's arguments, or copies them to device memory if they do not fit there. */
    fsdp_status (*launch)(stream *s, const sum_launch *l);
} sum_kernels;

/* sum_launch_cpu -- `launch` of every table whose kernels are functions of this program.
 * sum_run_cpu: run the kernel now, for a caller that is already in the stream's task. */
fsdp_status sum_launch_cpu(stream *s, const sum_launch *l);
fsdp_status sum_run_cpu(const sum_run *r, const void *const *in, int n_threads);

EXTERN_C_END
