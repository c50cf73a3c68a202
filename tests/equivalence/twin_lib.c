/* twin_lib.c -- see twin_lib.h. */
#include "tests/equivalence/twin_lib.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "common/model/init.h"
#include "tests/unit/target_lib.h"

static fsdp_status no_memory(void)
{
    return fsdp_error(FSDP_ENOMEM, "", "twin: no host memory");
}

static fsdp_status lay_out(twin *t, grad_acc_mode mode)
{
    const model *m = t->m;
    t->offset = calloc((size_t)m->n_params, sizeof *t->offset);
    t->grad_offset = calloc((size_t)m->n_params, sizeof *t->grad_offset);
    t->layer_unit = calloc((size_t)m->n_layers, sizeof *t->layer_unit);
    if (!t->offset || !t->grad_offset || !t->layer_unit)
        return no_memory();
    for (int p = 0; p < m->n_params; p++) {
        bool tied = m->params[p].tied_to != NOT_TIED;
        t->offset[p] = tied ? t->offset[m->params[p].tied_to] : t->param_elems;
        t->param_elems += tied ? 0 : m->params[p].elems;
    }
    t->leaf_elems = t->param_elems;
    for (int p = 0; p < m->n_params; p++) {
        bool apart = m->params[p].tied_to != NOT_TIED && mode == GRAD_ACC_CANONICAL;
        t->grad_offset[p] = apart ? t->leaf_elems : t->offset[p];
        t->leaf_elems += apart ? m->params[p].elems : 0;
    }
    return FSDP_OK;
}

/* The device's address of a host array: the same address, or a copy in the device's own memory. */
static fsdp_status place(twin *t, void *host, size_t bytes, void **out)
{
    stream *s = device_compute_stream(t->dev);
    *out = host;
    if (device_memory_is_host(t->dev))
        return FSDP_OK;
    TRY(device_alloc(s, MEM_OTHER, bytes, "twin", out));
    return device_upload(s, *out, host, bytes);
}

static void unplace(const twin *t, void *placed)
{
    if (t->dev != NULL && !device_memory_is_host(t->dev))
        device_free(device_compute_stream(t->dev), placed);
}

static fsdp_status fill(twin *t, uint64_t seed)
{
    t->params = calloc(t->param_elems + 1, sizeof *t->params);
    t->leaf = calloc(t->leaf_elems + 1, sizeof *t->leaf);
    t->loss = calloc(1, sizeof *t->loss);
    if (!t->params || !t->leaf || !t->loss)
        return no_memory();
    for (int p = 0; p < t->m->n_params; p++) {
        const param_spec *spec = &t->m->params[p];
        if (spec->tied_to == NOT_TIED)
            param_init_range(spec, p, seed, 0, spec->elems, t->params + t->offset[p]);
    }
    TRY(place(t, t->params, t->param_elems * sizeof *t->params, &t->on_device.params));
    TRY(place(t, t->leaf, t->leaf_elems * sizeof *t->leaf, &t->on_device.leaf));
    TRY(place(t, t->loss, sizeof *t->loss, &t->on_device.loss));
    for (int p = 0; p < t->m->n_params; p++) {
        t->views.params[p] = (float *)t->on_device.params + t->offset[p];
        t->views.grads[p] = (float *)t->on_device.leaf + t->grad_offset[p];
    }
    return FSDP_OK;
}

static fsdp_status make_runner(twin *t, dtype param_type)
{
    return runner_create(&(runner_config){.run = {.m = t->m,
                                                  .ops = t->ops,
                                                  .dev = t->dev,
                                                  .mode = GRAD_ACC_FAST,
                                                  .batch = t->batch,
                                                  .seq_len = t->seq_len,
                                                  .grad_accum = 1,
                                                  .param_dtype = param_type},
                                          .layer_unit = t->layer_unit,
                                          .n_units = 1,
                                          .segment = t->segment,
                                          .run_again = t->run_again,
                                          .views = &t->views},
                         &t->run);
}

fsdp_status twin_create(const twin_config *c, twin *t)
{
    *t = (twin){.m = c->m,
                .ops = c->ops,
                .data = c->data,
                .batch = c->batch,
                .seq_len = c->seq_len,
                .segment = c->segment,
                .run_again = c->run_again};
    const bool of_cpu = c->ops->sums->launch == sum_launch_cpu;
    const device_backend *kind = of_cpu ? &device_cpu : target_backend()->device;
    TRY(lay_out(t, c->mode));
    TRY(model_views_init(c->m, &t->views));
    TRY(device_open(
        &(device_config){.backend = kind, .n_threads = 1, .index = of_cpu ? 0 : target_index()},
        &t->dev));
    TRY(fill(t, c->seed));
    return make_runner(t, DTYPE_F32);
}

fsdp_status twin_use_dtypes(twin *t, dtype param_dtype, dtype reduce_dtype)
{
    t->reduce_dtype = reduce_dtype;
    if (param_dtype == DTYPE_F32)
        return FSDP_OK;
    t->rounded = malloc(t->param_elems * sizeof *t->rounded + 1);
    if (!t->rounded)
        return no_memory();
    for (size_t i = 0; i < t->param_elems; i++)
        t->rounded[i] = bf16_from_f32(t->params[i]);
    TRY(place(t, t->rounded, t->param_elems * sizeof *t->rounded, &t->on_device.rounded));
    for (int p = 0; p < t->m->n_params; p++)
        t->views.params[p] = (uint16_t *)t->on_device.rounded + t->offset[p];
    runner_free(t->run);
    t->run = NULL;
    return make_runner(t, param_dtype);
}

void twin_free(twin *t)
{
    runner_free(t->run);
    unplace(t, t->on_device.params);
    unplace(t, t->on_device.leaf);
    unplace(t, t->on_device.loss);
    unplace(t, t->on_device.rounded);
    device_close(t->dev);
    model_views_free(&t->views);
    free(t->offset);
    free(t->grad_offset);
    free(t->layer_unit);
    free(t->params);
    free(t->rounded);
    free(t->leaf);
    free(t->loss);
    *t = (twin){0};
}

fsdp_status twin_leaf(twin *t, uint64_t k, float *loss)
{
    size_t n = t->batch * t->seq_len;
    int32_t *tokens = calloc(2 * n, sizeof *tokens);
    if (!tokens)
        return no_memory();
    for (size_t i = 0; i < t->batch; i++)
        sample_read(t->data, k * t->batch + i, t->seq_len, tokens + i * t->seq_len,
                    tokens + n + i * t->seq_len);
    stream *s = device_compute_stream(t->dev);
    fsdp_status st = device_zero(s, t->on_device.leaf, t->leaf_elems * sizeof *t->leaf);
    if (st == FSDP_OK)
        st = runner_forward(t->run, &(micro_step){.inputs = tokens,
                                                  .targets = tokens + n,
                                                  .n_micro = 1,
                                                  .training = true,
                                                  .loss = t->on_device.loss});
    if (st == FSDP_OK)
        st = runner_backward(t->run);
    if (st == FSDP_OK && !device_memory_is_host(t->dev))
        st = device_download(s, t->leaf, t->on_device.leaf, t->leaf_elems * sizeof *t->leaf);
    if (st == FSDP_OK && !device_memory_is_host(t->dev))
        st = device_download(s, t->loss, t->on_device.loss, sizeof *t->loss);
    if (st == FSDP_OK)
        st = stream_sync(s);
    *loss = *t->loss;
    free(tokens);
    return st;
}

double twin_bf16_spacing(double x)
{
    return fmax(ldexp(0x1p-8, ilogb(x)), 0x1p-134);
}

/* Add one parameter of a leaf to the sums from which bounds are derived. */
static void measure_leaf(const twin *t, int p)
{
    const float *leaf = t->leaf + t->grad_offset[p];
    for (size_t i = 0; i < t->m->params[p].elems; i++) {
        t->abs_sum[t->offset[p] + i] += fabs((double)leaf[i]);
        if (t->spacings)
            t->spacings[t->offset[p] + i] += twin_bf16_spacing((double)leaf[i]);
    }
}

static float node_value(const twin *t, float x)
{
    return t->reduce_dtype == DTYPE_BF16 ? f32_from_bf16(bf16_from_f32(x)) : x;
}

/* sum [leaf_elems + 1] = the node of leaves first ... first+n-1; the last element is the loss. */
static fsdp_status sum_leaves(twin *t, uint64_t first, size_t n, float *sum)
{
    if (n == 1) {
        TRY(twin_leaf(t, first, &sum[t->leaf_elems]));
        for (size_t i = 0; i < t->leaf_elems; i++)
            sum[i] = node_value(t, t->leaf[i]);
        for (int p = 0; t->abs_sum && p < t->m->n_params; p++) {
            bool shares = t->m->params[p].tied_to != NOT_TIED && t->grad_offset[p] == t->offset[p];
            if (!shares)
                measure_leaf(t, p);
        }
        return FSDP_OK;
    }
    size_t left = 1;
    while (left * 2 < n)
        left *= 2;
    TRY(sum_leaves(t, first, left, sum));
    float *right = malloc((t->leaf_elems + 1) * sizeof *right);
    if (!right)
        return no_memory();
    fsdp_status st = sum_leaves(t, first + left, n - left, right);
    for (size_t i = 0; i < t->leaf_elems && st == FSDP_OK; i++)
        sum[i] = node_value(t, sum[i] + right[i]);
    sum[t->leaf_elems] += right[t->leaf_elems]; /* losses are summed in fp32 */
    free(right);
    return st;
}

fsdp_status twin_gradient(twin *t, uint64_t first, size_t n, float scale, float *grad, float *loss)
{
    float *sum = malloc((t->leaf_elems + 1) * sizeof *sum);
    if (!sum)
        return no_memory();
    fsdp_status st = sum_leaves(t, first, n, sum);
    for (int p = 0; p < t->m->n_params && st == FSDP_OK; p++) {
        float *g = grad + t->offset[p];
        const float *use = sum + t->grad_offset[p];
        bool tied = t->m->params[p].tied_to != NOT_TIED;
        bool shares = tied && t->grad_offset[p] == t->offset[p];
        for (size_t i = 0; i < t->m->params[p].elems && !shares; i++)
            g[i] = tied ? g[i] + use[i] : use[i];
    }
    for (size_t i = 0; i < t->param_elems && st == FSDP_OK; i++)
        grad[i] = grad[i] * scale;
    *loss = sum[t->leaf_elems];
    free(sum);
    return st;
}
