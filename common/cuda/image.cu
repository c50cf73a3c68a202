/* image.cu -- convolution, max-pooling and dropout, for both tables, with the CPU's bits. relu is
 * in elementwise.cu.
 *
 * A convolution builds no im2col matrix: a thread computes one element of out, d_in or d_weight, in
 * the order in which gemm_portable.c adds the products of cpu_image.c. Most lanes of a warp compute
 * neighbours of a row, so they read neighbours and multiply them by the same number. */
#include "common/cuda/kernels.h"
#include "common/cuda/launch.h"
#include "common/cuda/reduce.h"
#include "common/ops/row_image.h"

/* ---- convolution ----------------------------------------------------------------------------- */

/* The height and width of an output plane. */
static __host__ __device__ inline size_t out_height(const conv_shape *s)
{
    return s->height + 1 - s->kernel;
}
static __host__ __device__ inline size_t out_width(const conv_shape *s)
{
    return s->width + 1 - s->kernel;
}

/* Element (y, x) of plane number `plane`, of images or of weights. */
typedef struct pixel {
    size_t plane, y, x;
} pixel;

static __device__ inline pixel pixel_of(size_t i, size_t height, size_t width)
{
    const pixel at = {i / width / height, i / width % height, i % width};
    return at;
}

/* CONV_KERNEL(name, args) defines name_kernel: thread i calls name_elem for element i. */
#define CONV_KERNEL(name, args)                                                                    \
    __global__ void name##_kernel(args a, size_t elems)                                            \
    {                                                                                              \
        const size_t i = global_thread();                                                          \
        if (i < elems)                                                                             \
            BY_TYPE(name##_elem, a.shape.type, &a, i);                                             \
    }

/* Element `i` of out. */
static __device__ inline void conv2d_elem(const conv2d_args *a, size_t i, dtype type)
{
    const conv_shape *s = &a->shape;
    const size_t C = s->in_channels, K = s->kernel, H = s->height, W = s->width;
    const pixel to = pixel_of(i, out_height(s), out_width(s));
    const size_t b = to.plane / s->out_channels, o = to.plane % s->out_channels;
    float sum = 0.0f;
    for (size_t c = 0; c < C; c++)
        for (size_t y = 0; y < K; y++)
            for (size_t x = 0; x < K; x++)
                sum += row_load(a->in, ((b * C + c) * H + to.y + y) * W + to.x + x, type) *
                       row_load(a->weight, ((o * C + c) * K + y) * K + x, type);
    row_store(a->out, i, sum + row_load(a->bias, o, type), type);
}

CONV_KERNEL(conv2d, conv2d_args)

static size_t conv_out_elems(const conv_shape *s)
{
    return s->batch * s->out_channels * out_height(s) * out_width(s);
}

OPERATION(cuda, conv2d, conv2d_kernel, blocks_of(conv_out_elems(&a->shape)), BLOCK_THREADS, *a,
          conv_out_elems(&a->shape))

/* ---- gradients of a convolution -------------------------------------------------------------- */

/* Element `i` of d_in. y and x are unsigned: a negative row or column of d_out becomes a huge one,
 * which is outside too. Elements outside are 0 and are multiplied like on the CPU: with an infinite
 * weight, the product is NaN. */
static __device__ inline void conv_input_elem(const conv2d_backward_args *a, size_t i, dtype type)
{
    const conv_shape *s = &a->shape;
    const size_t C = s->in_channels, K = s->kernel, O = s->out_channels;
    const size_t H = out_height(s), W = out_width(s);
    const pixel to = pixel_of(i, s->height, s->width);
    const size_t b = to.plane / C, c = to.plane % C;
    float sum = 0.0f;
    for (size_t o = 0; o < O; o++)
        for (size_t k = 0; k < K; k++)
            for (size_t j = 0; j < K; j++) {
                const size_t y = to.y - k, x = to.x - j;
                const float d =
                    y < H && x < W ? row_load(a->d_out, ((b * O + o) * H + y) * W + x, type) : 0.0f;
                sum += d * row_load(a->weight, ((o * C + c) * K + k) * K + j, type);
            }
    row_store(a->d_in, i, sum, type);
}

CONV_KERNEL(conv_input, conv2d_backward_args)

/* Element `i` of d_weight. */
static __device__ inline void conv_weight_elem(const conv2d_backward_args *a, size_t i, dtype type)
{
    const conv_shape *s = &a->shape;
    const size_t C = s->in_channels, H = out_height(s), W = out_width(s);
    const pixel to = pixel_of(i, s->kernel, s->kernel);
    const size_t o = to.plane / C, c = to.plane % C;
    float sum = a->overwrite ? 0.0f : a->d_weight[i];
    for (size_t b = 0; b < s->batch; b++)
        for (size_t y = 0; y < H; y++)
            for (size_t x = 0; x < W; x++)
                sum += row_load(a->d_out, ((b * s->out_channels + o) * H + y) * W + x, type) *
                       row_load(a->in, ((b * C + c) * s->height + to.y + y) * s->width + to.x + x,
                                type);
    a->d_weight[i] = sum;
}

CONV_KERNEL(conv_weight, conv2d_backward_args)

/* A plane is summed in the CPU's order, which is by lanes (row_sum). */
__global__ void conv_bias_kernel(conv2d_backward_args a)
{
    const conv_shape *s = &a.shape;
    const size_t o = global_thread(), plane = out_height(s) * out_width(s);
    if (o >= s->out_channels)
        return;
    float sum = a.overwrite ? 0.0f : a.d_bias[o];
    for (size_t b = 0; b < s->batch; b++) {
        const void *d_out = row_at(a.d_out, (b * s->out_channels + o) * plane, s->type);
        sum += BY_TYPE(row_sum, s->type, d_out, plane);
    }
    a.d_bias[o] = sum;
}

static cudaError_t conv2d_backward_issue(stream *s, const void *args)
{
    const conv2d_backward_args *a = (const conv2d_backward_args *)args;
    const conv_shape *x = &a->shape;
    const size_t in = x->batch * x->in_channels * x->height * x->width;
    const size_t weights = x->out_channels * x->in_channels * x->kernel * x->kernel;
    cudaError_t error = cudaSuccess;
    if (a->d_weight != NULL && weights > 0)
        error =
            LAUNCH(conv_weight_kernel, groups_of(weights, WARP_LANES), WARP_LANES, s, *a, weights);
    if (a->d_bias != NULL && error == cudaSuccess)
        error = LAUNCH(conv_bias_kernel, groups_of(x->out_channels, WARP_LANES), WARP_LANES, s, *a);
    if (a->d_in != NULL && in > 0 && error == cudaSuccess)
        error = LAUNCH(conv_input_kernel, blocks_of(in), BLOCK_THREADS, s, *a, in);
    return error;
}

ISSUED(cuda, conv2d_backward)

/* ---- max_pool2d ------------------------------------------------------------------------------ */

/* One thread per plane. */
ROW_OPERATION(cuda, max_pool2d, planes, max_pool2d_plane)

ROW_OPERATION(cuda, max_pool2d_backward, planes, max_pool2d_backward_plane)

/* ---- dropout --------------------------------------------------------------------------------- */

/* The number of Philox calls per sample; a thread makes one call, for four elements. */
static __host__ __device__ inline size_t dropout_calls(const dropout_args *a)
{
    return (a->width + 3) / 4;
}

__global__ void dropout_kernel(dropout_args a)
{
    const size_t i = global_thread(), calls = dropout_calls(&a);
    if (i < a.samples * calls)
        BY_TYPE(dropout_four, a.type, &a, i / calls, i % calls);
}

OPERATION(cuda, dropout, dropout_kernel, blocks_of(dropout_calls(a) * a->samples), BLOCK_THREADS,
          *a)
