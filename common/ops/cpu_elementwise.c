/* cpu_elementwise.c -- operations that treat each element alone: bias_add, gelu, add, scale and the
 * optimizers' updates.
 *
 * An element gets the same bits wherever it stands in its array: compiled with -ffp-contract=off,
 * a vector's body and its tail do the same roundings. Both tables use this file. */
#include <math.h>
#include "common/base/pmath.h"
#include "common/ops/cpu_kernels.h"

/* The part of [0, elems) that tile number `tile` covers. */
typedef struct span {
    size_t begin, end;
} span;

static span tile_span(size_t elems, size_t tile)
{
    return (span){tile * TILE_ELEMS, min_size(elems, (tile + 1) * TILE_ELEMS)};
}

/* ---- bias_add ------------------------------------------------------------------------------- */

static size_t bias_tile_rows(size_t cols)
{
    return cols >= TILE_ELEMS ? 1 : TILE_ELEMS / cols;
}

static fsdp_status bias_add_tile(const void *args, size_t tile)
{
    const bias_add_args *a = args;
    const size_t tile_rows = bias_tile_rows(a->cols);
    const size_t end = min_size(a->rows, (tile + 1) * tile_rows);
    for (size_t r = tile * tile_rows; r < end; r++) {
        const float *in = a->in + r * a->cols;
        float *out = a->out + r * a->cols;
        for (size_t begin = 0; begin < a->cols; begin += PARAM_PIECE) {
            const size_t n = min_size(PARAM_PIECE, a->cols - begin);
            float buf[PARAM_PIECE];
            const float *bias = param_piece(a->bias, a->param_type, begin, n, buf);
            for (size_t c = 0; c < n; c++)
                out[begin + c] = in[begin + c] + bias[c];
        }
    }
    return FSDP_OK;
}

static fsdp_status bias_add_kernel(void *args, int n_threads)
{
    const bias_add_args *a = args;
    if (a->rows == 0 || a->cols == 0)
        return FSDP_OK;
    n_threads = threads_for(n_threads, a->rows * a->cols, MIN_PARALLEL_ELEMS);
    return tiles_run(n_threads, tiles_of(a->rows, bias_tile_rows(a->cols)), bias_add_tile, a);
}

fsdp_status cpu_bias_add(stream *s, const bias_add_args *a)
{
    return kernel_launch(s, bias_add_kernel, a, sizeof *a, bias_add_work(a));
}

/* ---- gelu ----------------------------------------------------------------------------------- */

static const float GELU_SCALE = 0.7978845608028654f; /* sqrt(2/pi) */
static const float GELU_CUBIC = 0.044715f;

/* tanh's argument: sqrt(2/pi) (x + 0.044715 x^3). */
static inline float gelu_inner(float x)
{
    return GELU_SCALE * (x + GELU_CUBIC * (x * x * x));
}

static fsdp_status gelu_tile(const void *args, size_t tile)
{
    const gelu_args *a = args;
    const span t = tile_span(a->elems, tile);
    for (size_t i = t.begin; i < t.end; i++) {
        const float x = a->in[i];
        a->out[i] = 0.5f * x * (1.0f + pm_tanhf(gelu_inner(x)));
    }
    return FSDP_OK;
}

static fsdp_status gelu_kernel(void *args, int n_threads)
{
    const gelu_args *a = args;
    n_threads = threads_for(n_threads, a->elems, MIN_PARALLEL_EXPS);
    return tiles_run(n_threads, tiles_of(a->elems, TILE_ELEMS), gelu_tile, a);
}

fsdp_status cpu_gelu(stream *s, const gelu_args *a)
{
    return kernel_launch(s, gelu_kernel, a, sizeof *a, gelu_work(a));
}

/* gelu'(x) = (1 + t)/2 + x/2 (1 - t^2) u', t = tanh(u), u' = sqrt(2/pi) (1 + 3*0.044715 x^2). */
static fsdp_status gelu_backward_tile(const void *args, size_t tile)
{
    const gelu_backward_args *a = args;
    const span span_ = tile_span(a->elems, tile);
    for (size_t i = span_.begin; i < span_.end; i++) {
        const float x = a->in[i];
        const float t = pm_tanhf(gelu_inner(x));
        const float d_inner = GELU_SCALE * (1.0f + 3.0f * GELU_CUBIC * (x * x));
        const float slope = 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * d_inner;
        a->d_in[i] = a->d_out[i] * slope;
    }
    return FSDP_OK;
}

static fsdp_status gelu_backward_kernel(void *args, int n_threads)
{
    const gelu_backward_args *a = args;
    n_threads = threads_for(n_threads, a->elems, MIN_PARALLEL_EXPS);
    return tiles_run(n_threads, tiles_of(a->elems, TILE_ELEMS), gelu_backward_tile, a);
}

fsdp_status cpu_gelu_backward(stream *s, const gelu_backward_args *a)
{
    return kernel_launch(s, gelu_backward_kernel, a, sizeof *a, gelu_backward_work(a));
}

/* ---- add, scale ----------------------------------------------------------------------------- */

static fsdp_status add_tile(const void *args, size_t tile)
{
    const add_args *a = args;
    const span t = tile_span(a->elems, tile);
    for (size_t i = t.begin; i < t.end; i++)
        a->out[i] = a->a[i] + a->b[i];
    return FSDP_OK;
}

static fsdp_status add_rounded_tile(const void *args, size_t tile)
{
    const add_args *a = args;
    const span t = tile_span(a->elems, tile);
    for (size_t i = t.begin; i < t.end && !a->b; i++)
        a->out[i] = bf16_round(a->a[i]);
    for (size_t i = t.begin; i < t.end && a->b; i++)
        a->out[i] = bf16_round(bf16_round(a->a[i]) + bf16_round(a->b[i]));
    return FSDP_OK;
}

static fsdp_status add_kernel(void *args, int n_threads)
{
    const add_args *a = args;
    n_threads = threads_for(n_threads, a->elems, MIN_PARALLEL_ELEMS);
    return tiles_run(n_threads, tiles_of(a->elems, TILE_ELEMS),
                     a->round_to == DTYPE_BF16 ? add_rounded_tile : add_tile, a);
}

fsdp_status cpu_add(stream *s, const add_args *a)
{
    FSDP_ASSERT(a->round_to == DTYPE_BF16 || (a->round_to == DTYPE_F32 && a->b) || a->elems == 0);
    return kernel_launch(s, add_kernel, a, sizeof *a, add_work(a));
}

static fsdp_status scale_tile(const void *args, size_t tile)
{
    const scale_args *a = args;
    const span t = tile_span(a->elems, tile);
    const float factor = a->device_factor ? a->factor * *a->device_factor : a->factor;
    float *x = a->x;
    for (size_t i = t.begin; i < t.end; i++)
        x[i] *= factor;
    return FSDP_OK;
}

static fsdp_status scale_kernel(void *args, int n_threads)
{
    const scale_args *a = args;
    n_threads = threads_for(n_threads, a->elems, MIN_PARALLEL_ELEMS);
    return tiles_run(n_threads, tiles_of(a->elems, TILE_ELEMS), scale_tile, a);
}

fsdp_status cpu_scale(stream *s, const scale_args *a)
{
    return kernel_launch(s, scale_kernel, a, sizeof *a, scale_work(a));
}
