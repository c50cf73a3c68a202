/* cpu_kernels.h -- what the CPU backends share. Internal to common/ops.
 *
 *   ops_cpu_*  --kernel_launch-->  kernel(args, n_threads)  --tiles_run-->  tile(args, i)
 *
 * Two rules keep results independent of the number of threads and, in plain C, of the compiler:
 *   - tiles_run is the only place that starts threads; how an output is cut into tiles depends on
 *     the shapes alone, and a tile is computed by one thread.
 *   - a sum along a vector is LANES partial sums (element i goes to lane i % LANES), added by one
 *     fixed tree. Compilers vectorise that without changing an order. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include "common/device/cpu_tiles.h"
#include "common/ops/op_work.h"
#include "common/ops/ops.h"

/* kernel_launch -- stream_launch_work of what one operation does. */
static inline fsdp_status kernel_launch(stream *s, stream_fn kernel, const void *args,
                                        size_t args_bytes, op_work work)
{
    return stream_launch_work(s, &(launch_config){.fn = kernel,
                                                  .args = args,
                                                  .args_bytes = args_bytes,
                                                  .work = work.info,
                                                  .accesses = work.accesses,
                                                  .n_accesses = work.n_accesses});
}

/* ---- parameters in fp32 or bf16 -------------------------------------------------------------- */

/* A parameter is read a piece at a time: PARAM_PIECE elements or what is left. A multiple of LANES,
 * so that sums by lanes do not see the pieces. */
enum { PARAM_PIECE = 256 };

/* param_piece -- elements begin ... begin+n-1 (n <= PARAM_PIECE) of a parameter as fp32: where they
 * stand, or expanded into buf. */
static inline const float *param_piece(const void *param, dtype type, size_t begin, size_t n,
                                       float buf[PARAM_PIECE])
{
    if (type == DTYPE_F32)
        return (const float *)param + begin;
    const uint16_t *bf16 = (const uint16_t *)param + begin;
    for (size_t i = 0; i < n; i++)
        buf[i] = f32_from_bf16(bf16[i]);
    return buf;
}

/* ---- matrix products (gemm_*.c, cpu_matmul.c) ------------------------------------------------ */

/* c[m,n] = op(a)[m,k] * op(b)[k,n] (+ c when accumulate) on the calling thread. ld*: elements from
 * one stored row to the next. */
typedef struct gemm_args {
    float *c;
    const float *a, *b;
    size_t m, n, k;
    size_t ldc, lda, ldb;
    bool trans_a, trans_b, accumulate;
} gemm_args;
typedef fsdp_status (*gemm_fn)(const gemm_args *g);

/* gemm_portable -- every element is ((c + a0*b0) + a1*b1) + ... in order of k, from c = 0 when not
 * accumulating; no fused multiply-add. So its bits depend on nothing but the operands. */
fsdp_status gemm_portable(const gemm_args *g);

/* gemm_dnnl -- oneDNN's sgemm; the portable one when built without oneDNN. errors: FSDP_ENOMEM. */
fsdp_status gemm_dnnl(const gemm_args *g);

/* The largest tile of a matmul. */
enum { MATMUL_TILE_M = 256, MATMUL_TILE_N = 384 };

/* A gemm whose operands are stored as a_type and b_type: these stand for g->a and g->b, which are
 * not looked at; g->lda and g->ldb count their elements. m <= MATMUL_TILE_M, n <= MATMUL_TILE_N. */
typedef struct gemm_mixed_args {
    gemm_args g;
    const void *a, *b;
    dtype a_type, b_type;
} gemm_mixed_args;

/* gemm_expanded -- expands bf16 operands to fp32, which is exact, and calls f32 on pieces of k: the
 * bits of f32 called on the whole where that adds in order of k, as gemm_portable does. */
fsdp_status gemm_expanded(const gemm_mixed_args *x, gemm_fn f32);
typedef fsdp_status (*gemm_mixed_fn)(const gemm_mixed_args *x);
/* gemm_mixed_portable -- gemm_expanded onto gemm_portable. */
fsdp_status gemm_mixed_portable(const gemm_mixed_args *x);

/* gemm_mixed_dnnl -- both operands in bf16: the processor's bf16 instructions by way of oneDNN,
 * where there are any; else expanded. errors: FSDP_ENOMEM. */
fsdp_status gemm_mixed_dnnl(const gemm_mixed_args *x);

/* matmul_launch -- a matmul on s as gemm calls over a grid of tiles chosen by (m,n,k): f32 where
 * both operands are fp32, else mixed. */
fsdp_status matmul_launch(stream *s, const matmul_args *a, gemm_fn f32, gemm_mixed_fn mixed);
/* attention_tiled -- ops->attention, done before it returns: gemm calls over blocks of keys. */
fsdp_status attention_tiled(const attention_args *a, int n_threads, gemm_fn gemm);
fsdp_status attention_backward_tiled(const attention_backward_args *a, int n_threads, gemm_fn gemm);

/* ---- operations that both tables share ------------------------------------------------------ */

/* cpu_bias_add ... cpu_sgd -- ops->bias_add ... ops->sgd; cpu_round is the `round` of the sums. */
fsdp_status cpu_bias_add(stream *s, const bias_add_args *a);
fsdp_status cpu_bias_backward(stream *s, const bias_backward_args *a);
fsdp_status cpu_embedding(stream *s, const embedding_args *a);
fsdp_status cpu_embedding_backward(stream *s, const embedding_backward_args *a);
fsdp_status cpu_layernorm(stream *s, const layernorm_args *a);
fsdp_status cpu_layernorm_backward(stream *s, const layernorm_backward_args *a);
fsdp_status cpu_gelu(stream *s, const gelu_args *a);
fsdp_status cpu_gelu_backward(stream *s, const gelu_backward_args *a);
fsdp_status cpu_cross_entropy(stream *s, const cross_entropy_args *a);
fsdp_status cpu_cast(stream *s, const cast_args *a);
fsdp_status cpu_round(stream *s, const round_args *a);
fsdp_status cpu_add(stream *s, const add_args *a);
fsdp_status cpu_scale(stream *s, const scale_args *a);
fsdp_status cpu_sum_squares(stream *s, const sum_squares_args *a);
fsdp_status cpu_clip_coef(stream *s, const clip_coef_args *a);
fsdp_status cpu_adamw(stream *s, const adamw_args *a);
fsdp_status cpu_sgd(stream *s, const sgd_args *a);

/* ---- sums along a vector -------------------------------------------------------------------- */

enum { LANES = 16 };
typedef float lanes __attribute__((vector_size(LANES * sizeof(float))));

/* lanes_load -- the next n <= LANES elements, `fill` in the rest. */
static inline void lanes_load(lanes *v, const float *x, size_t n, float fill)
{
    if (n >= LANES) {
        memcpy(v, x, sizeof *v);
        return;
    }
    float part[LANES];
    for (size_t i = 0; i < LANES; i++)
        part[i] = i < n ? x[i] : fill;
    memcpy(v, part, sizeof *v);
}

/* lanes_sum -- lanes 0+8, 1+9, ...; then 0+4, ...; 0+2, 1+3; 0+1. Element by element, so that it
 * stays in registers: an array on the stack would wait for the store at every step. */
static inline float lanes_sum(const lanes *v)
{
    typedef float half __attribute__((vector_size(8 * sizeof(float))));
    typedef float quarter __attribute__((vector_size(4 * sizeof(float))));
    const lanes x = *v;
    const half low = {x[0], x[1], x[2], x[3], x[4], x[5], x[6], x[7]};
    const half high = {x[8], x[9], x[10], x[11], x[12], x[13], x[14], x[15]};
    const half h = low + high;
    const quarter q = (quarter){h[0], h[1], h[2], h[3]} + (quarter){h[4], h[5], h[6], h[7]};
    return (q[0] + q[2]) + (q[1] + q[3]);
}

/* vec_sum -- x[0] + ... + x[n-1] by lanes. */
static inline float vec_sum(const float *x, size_t n)
{
    lanes acc = {0};
    for (size_t i = 0; i < n; i += LANES) {
        lanes v;
        lanes_load(&v, x + i, n - i, 0.0f);
        acc += v;
    }
    return lanes_sum(&acc);
}

/* vec_dot -- sum of a[i]*b[i] by lanes. */
static inline float vec_dot(const float *a, const float *b, size_t n)
{
    lanes acc = {0};
    for (size_t i = 0; i < n; i += LANES) {
        lanes va, vb;
        lanes_load(&va, a + i, n - i, 0.0f);
        lanes_load(&vb, b + i, n - i, 0.0f);
        acc += va * vb;
    }
    return lanes_sum(&acc);
}

/* vec_max -- the largest element (NaNs are passed over); -infinity for n = 0. A comparison of GNU
 * vectors gives all ones or zeros in each lane, by which the bits are selected. */
static inline float vec_max(const float *x, size_t n)
{
    typedef int32_t lane_bits __attribute__((vector_size(LANES * sizeof(int32_t))));
    const float lowest = -__builtin_inff();
    lanes best = lowest - (lanes){0};
    for (size_t i = 0; i < n; i += LANES) {
        lanes v;
        lanes_load(&v, x + i, n - i, lowest);
        const lane_bits larger = v > best;
        best = (lanes)(((lane_bits)v & larger) | ((lane_bits)best & ~larger));
    }
    float top[4]; /* four at a time: one comparison after the other would take 16 times one */
    for (size_t l = 0; l < 4; l++) {
        const float a = best[l] > best[l + 4] ? best[l] : best[l + 4];
        const float b = best[l + 8] > best[l + 12] ? best[l + 8] : best[l + 12];
        top[l] = a > b ? a : b;
    }
    const float a = top[0] > top[1] ? top[0] : top[1], b = top[2] > top[3] ? top[2] : top[3];
    return a > b ? a : b;
}
