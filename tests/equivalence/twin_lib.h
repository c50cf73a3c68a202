/* twin_lib.h -- the unsharded twin: one process, every parameter resident, one leaf at a time.
 *
 *   twin_create [-> twin_use_dtypes] -> twin_leaf ... or twin_gradient -> twin_free
 *
 * It shares the model and the runner with what it is compared to, and nothing else: no hooks, no
 * communication, no accumulators; sums are a recursive function over leaves, straight from the
 * definition in common/sum/tree_sum.h. It has an inline device of its own, so its arrays can be
 * read and written by the host at any time. */
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
    size_t *offset;      /* [n_params] in params and in gradients (tied: of its storage) */
    size_t *grad_offset; /* [n_params] in a leaf; a second use's gradient stands behind all */
    size_t param_elems, leaf_elems;
    float *params;     /* [param_elems] */
    uint16_t *rounded; /* [param_elems] params in bf16; NULL in fp32 */
    dtype reduce_dtype;
    float *leaf;      /* [leaf_elems] gradient of one sequence: sum over its tokens */
    float *loss;      /* [1] */
    double *abs_sum;  /* NULL, or the caller's [param_elems]: twin_gradient adds |leaf element| of
                         all  leaves and uses */
    double *spacings; /* NULL, or with abs_sum, likewise: what rounding every leaf element to bf16
                         may change (twin_bf16_spacing) */
    /* The same four where the device has them; the host's own where it computes in its memory. */
    struct {
        void *params, *rounded, *leaf, *loss;
    } on_device;
    const corpus *data;
    size_t batch, seq_len;
    const int *segment; /* [n_layers] borrowed, see runner_config; with them run_again too */
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
    const int *segment; /* NULL, or as in runner_config; with run_again */
    fsdp_status (*run_again)(runner *r, int first, int last);
} twin_config;

/* twin_create -- parameters are those of the seed, in fp32. */
fsdp_status twin_create(const twin_config *c, twin *t);
/* twin_use_dtypes -- compute in bf16, with params rounded (as they are now); sum leaves in bf16:
 * every leaf and every sum of two is rounded. Once, before the first leaf. */
fsdp_status twin_use_dtypes(twin *t, dtype param_dtype, dtype reduce_dtype);
void twin_free(twin *t); /* a zeroed struct is accepted */

/* twin_bf16_spacing -- half the distance of the bf16 numbers around x: the most that
 * rounding x changes. */
double twin_bf16_spacing(double x);

/* twin_leaf -- forward and backward of leaf k of the run (sequences k*batch ...):
 * t->leaf, its loss sum. */
fsdp_status twin_leaf(twin *t, uint64_t k, float *loss);

/* twin_gradient -- grad [param_elems] = scale * (tree over leaves first ... first+n-1 of every
 * parameter's first use, then the tree of its second use added).
 *   *loss  the tree over the leaves' losses */
fsdp_status twin_gradient(twin *t, uint64_t first, size_t n, float scale, float *grad, float *loss);
