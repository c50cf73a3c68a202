/* twin_lib.h -- the unsharded twin: one process, every parameter resident, one leaf at a time.
 *
 *   twin_create [-> twin_use_dtypes] -> twin_leaf ... or twin_gradient -> twin_free
 *
 * The twin shares only the model and the runner with the code that it is compared with. It has no
 * hooks, no communication and no accumulators. Its sums are a recursive function over leaves,
 * straight from the definition in common/sum/tree_sum.h. It has its own inline device, so the host
 * can read and write its arrays at any time. */
#pragma once
#include "common/data/data.h"
#include "common/model/runner.h"

typedef struct twin {
    const model *m;
    const ops *ops;
    device *dev;
    runner *run;
    model_views views;
    int *layer_unit;
    size_t *offset;      /* [n_params] in params and in gradients (tied: of the storage) */
    size_t *grad_offset; /* [n_params] in a leaf; second uses' gradients come last */
    size_t param_elems, leaf_elems;
    float *params;     /* [param_elems] */
    uint16_t *rounded; /* [param_elems] params in bf16; NULL in fp32 */
    dtype reduce_dtype;
    float *leaf;      /* [leaf_elems] gradient of one sequence: sum over its tokens */
    float *loss;      /* [1] */
    double *abs_sum;  /* NULL, or the caller's [param_elems]: twin_gradient adds |leaf element| of
                       * all leaves and uses */
    double *spacings; /* NULL, or the same with abs_sum: the most that rounding every leaf element
                       * to bf16 may change (twin_bf16_spacing) */
    /* The same four arrays at their device addresses (host addresses if memory is shared). */
    struct {
        void *params, *rounded, *leaf, *loss;
    } on_device;
    const corpus *data;
    size_t batch, seq_len;
    const int *segment; /* [n_layers] borrowed, see runner_config; used with run_again */
    fsdp_status (*run_again)(runner *r, int first, int last);
} twin;

typedef struct twin_config {
    const model *m;
    const ops *ops;
    const corpus *data;
    size_t batch, seq_len; /* a leaf is a call over `batch` sequences */
    grad_acc_mode mode;    /* GRAD_ACC_CANONICAL (batch 1): a tied parameter's second use has a
                              gradient of its own; GRAD_ACC_FAST: both uses add into one array, as a
                              backward pass of one device does */
    uint64_t seed;
    const int *segment; /* NULL, or as in runner_config; used with run_again */
    fsdp_status (*run_again)(runner *r, int first, int last);
} twin_config;

/* twin_create -- make the twin, with the seed's parameters in fp32. */
fsdp_status twin_create(const twin_config *c, twin *t);
/* twin_use_dtypes -- compute in bf16, with params rounded now; sum leaves in bf16, where every leaf
 * and every sum of two is rounded. Call it at most once, before the first leaf. */
fsdp_status twin_use_dtypes(twin *t, dtype param_dtype, dtype reduce_dtype);
void twin_free(twin *t); /* a zeroed struct is accepted */

/* twin_bf16_spacing -- half the distance between the bf16 numbers around x: the most that rounding
 * changes x. */
double twin_bf16_spacing(double x);

/* twin_leaf -- forward and backward of leaf k of the run (sequences k*batch ...). Sets t->leaf and
 * *loss, its loss sum. */
fsdp_status twin_leaf(twin *t, uint64_t k, float *loss);

/* twin_gradient -- grad [param_elems] = scale * (the tree over leaves first ... first+n-1 of every
 * parameter's first use, plus the tree of its second use).
 *   *loss  the tree over the leaves' losses */
fsdp_status twin_gradient(twin *t, uint64_t first, size_t n, float scale, float *grad, float *loss);
