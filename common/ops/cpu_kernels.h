/* cpu_kernels.h -- what the CPU backends share. Internal to common/ops.
 *
 *   ops_cpu_*  --kernel_launch-->  kernel(args, n_threads)  --tiles_run-->  tile(args, i)
 *              --tiles_launch--->  where the kernel would only run its tiles
 *
 * What a tile computes for a row or an element stands in row_*.h. tiles_run is the only place that
 * starts threads; how an output is cut into tiles depends on the shapes alone, and a tile is
 * computed by one thread. So results do not depend on the number of threads. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include "common/device/cpu_tiles.h"
#include "common/ops/check_args.h"
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

/* A kernel that is one tiles_run. */
typedef struct tiling {
    tile_fn tile;
    size_t n_tiles;
    size_t work, min_work; /* threads_for */
} tiling;

/* by_elems -- element-wise work in tiles of TILE_ELEMS. */
static inline tiling by_elems(tile_fn tile, size_t elems, size_t min_work)
{
    return (tiling){tile, tiles_of(elems, TILE_ELEMS), elems, min_work};
}

/* tiles_launch -- kernel_launch of such a kernel.
 *   args  [args_bytes], at most TILES_ARGS_BYTES; copied: each tile gets the copy */
enum { TILES_ARGS_BYTES = 256 };
fsdp_status tiles_launch(stream *s, tiling t, const void *args, size_t args_bytes, op_work work);

/* ---- matrix products (gemm_*.c, cpu_matmul.c) ------------------------------------------------ */

/* c[m,n] = op(a)[m,k] * op(b)[k,n] (+ c when accumulate) on the calling thread. a and b are stored
 * as a_type and b_type; ld*: elements from one stored row to the next. k > 0. */
typedef struct gemm_args {
    float *c;
    const void *a, *b;
    size_t m, n, k;
    size_t ldc, lda, ldb;
    dtype a_type, b_type;
    bool trans_a, trans_b, accumulate;
} gemm_args;
typedef fsdp_status (*gemm_fn)(const gemm_args *g);

/* gemm_portable -- every element is ((c + a0*b0) + a1*b1) + ... in order of k, from c = 0 when not
 * accumulating; no fused multiply-add. So its bits depend on nothing but the operands' values. */
fsdp_status gemm_portable(const gemm_args *g);

/* gemm_dnnl -- oneDNN's sgemm, or its product of bf16 where both operands are, the processor has
 * the instructions and the product is large; the portable one when built without oneDNN.
 *   m       at most GEMM_MAX_M where an operand is bf16
 *   errors  FSDP_ENOMEM */
fsdp_status gemm_dnnl(const gemm_args *g);
enum { GEMM_MAX_M = 256 };

/* matmul_launch -- a matmul on s as gemm calls over a grid of tiles chosen by (m,n,k). */
fsdp_status matmul_launch(stream *s, const matmul_args *a, gemm_fn gemm);
/* attention_launch, attention_backward_launch -- gemm calls over blocks of keys. may_round: in
 * bf16, probabilities and gradients of scores may be rounded so that gemm gets two operands of
 * bf16. */
fsdp_status attention_launch(stream *s, const attention_args *a, gemm_fn gemm, bool may_round);
fsdp_status attention_backward_launch(stream *s, const attention_backward_args *a, gemm_fn gemm,
                                      bool may_round);

/* check_numbers -- FSDP_EINVAL unless all n numbers are in the vocabulary: `what` ("embedding:
 * token") is said of the one that is not, and `where` ("at position") of its index. */
fsdp_status check_numbers(const char *what, const char *where, const int32_t *numbers, size_t n,
                          size_t vocab);

/* ---- operations that both tables share ------------------------------------------------------ */

/* cpu_bias_backward ... cpu_sgd -- ops->bias_backward ... ops->sgd. */
fsdp_status cpu_bias_backward(stream *s, const bias_backward_args *a);
fsdp_status cpu_embedding(stream *s, const embedding_args *a);
fsdp_status cpu_embedding_backward(stream *s, const embedding_backward_args *a);
fsdp_status cpu_layernorm(stream *s, const layernorm_args *a);
fsdp_status cpu_layernorm_backward(stream *s, const layernorm_backward_args *a);
fsdp_status cpu_gelu(stream *s, const gelu_args *a);
fsdp_status cpu_gelu_backward(stream *s, const gelu_backward_args *a);
fsdp_status cpu_cross_entropy(stream *s, const cross_entropy_args *a);
fsdp_status cpu_cast(stream *s, const cast_args *a);
fsdp_status cpu_add(stream *s, const add_args *a);
fsdp_status cpu_scale(stream *s, const scale_args *a);
fsdp_status cpu_sum_squares(stream *s, const sum_squares_args *a);
fsdp_status cpu_clip_coef(stream *s, const clip_coef_args *a);
fsdp_status cpu_adamw(stream *s, const adamw_args *a);
fsdp_status cpu_sgd(stream *s, const sgd_args *a);
