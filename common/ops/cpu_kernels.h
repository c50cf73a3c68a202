/* cpu_kernels.h -- what the CPU backends share. Internal to common/ops.
 *
 *   cpu_op  --kernel_launch-->  op_kernel(args, n_threads)  --tiles_run-->  op_tile(args, i)
 *           --tiles_launch--->  if the kernel would do nothing but run its tiles
 *
 * row_*.h defines what a tile computes for a row or an element. Only tiles_run starts threads. The
 * cut of an output into tiles depends only on the shapes, and one thread computes a whole tile. So
 * results do not depend on the number of threads. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include "common/device/cpu_tiles.h"
#include "common/ops/op_work.h"
#include "common/ops/ops.h"

/* kernel_launch -- launch an operation's kernel (stream_launch_work), or return work.status if
 * work.ends. */
static inline fsdp_status kernel_launch(stream *s, stream_fn kernel, const void *args,
                                        size_t args_bytes, op_work work)
{
    if (work.ends)
        return work.status;
    return stream_launch_work(s, &(launch_config){.fn = kernel,
                                                  .args = args,
                                                  .args_bytes = args_bytes,
                                                  .work = work.info,
                                                  .accesses = work.accesses,
                                                  .n_accesses = work.n_accesses});
}

/* A kernel that is a single tiles_run. */
typedef struct tiling {
    tile_fn tile;
    size_t n_tiles;
    size_t work, min_work; /* the arguments of threads_for */
} tiling;

/* The arguments of a tiles_launch as copied to its stream. */
enum { TILES_ARGS_BYTES = 640 };
typedef struct tiles_args {
    tiling t;
    _Alignas(max_align_t) char args[TILES_ARGS_BYTES];
} tiles_args;

/* tiles_kernel -- the kernel of every tiles_launch. */
static inline fsdp_status tiles_kernel(void *args, int n_threads)
{
    const tiles_args *a = args;
    n_threads = threads_for(n_threads, a->t.work, a->t.min_work);
    return tiles_run(n_threads, a->t.n_tiles, a->t.tile, a->args);
}

/* tiles_launch -- launch a kernel that is a single tiles_run.
 *   args  [args_bytes], at most TILES_ARGS_BYTES; copied, and every tile reads the copy */
static inline fsdp_status tiles_launch(stream *s, tiling t, const void *args, size_t args_bytes,
                                       op_work work)
{
    tiles_args a = {.t = t};
    FSDP_ASSERT(args_bytes <= sizeof a.args);
    memcpy(a.args, args, args_bytes);
    return kernel_launch(s, tiles_kernel, &a, offsetof(tiles_args, args) + args_bytes, work);
}

/* KERNEL(op) defines cpu_op, an operation of ops.h, which launches op_kernel with a copy of the
 * call's arguments *a. TILED(op, ...) defines cpu_op, which runs op_tile on n_tiles tiles.
 * ELEMENTWISE(op, ...) defines cpu_op, which runs op_tile on tiles of TILE_ELEMS elements. The
 * arguments of the macros may refer to `a`.
 *
 * ROW_TILE(op, rows, in_tile, row_fn) defines op_tile, which calls row_fn(a, r, type) for in_tile
 * of the rows. */
#define KERNEL(op)                                                                                 \
    fsdp_status cpu_##op(stream *s, const op##_args *a)                                            \
    {                                                                                              \
        return kernel_launch(s, op##_kernel, a, sizeof *a, op##_work(a));                          \
    }
#define TILED(op, n_tiles, work, min_work)                                                         \
    fsdp_status cpu_##op(stream *s, const op##_args *a)                                            \
    {                                                                                              \
        const tiling t = {op##_tile, n_tiles, work, min_work};                                     \
        return tiles_launch(s, t, a, sizeof *a, op##_work(a));                                     \
    }
#define ROW_TILE(op, rows, in_tile, row_fn)                                                        \
    static fsdp_status op##_tile(const void *args, size_t tile)                                    \
    {                                                                                              \
        const op##_args *a = args;                                                                 \
        const size_t n = in_tile, end = min_size(rows, (tile + 1) * n);                            \
        for (size_t r = tile * n; r < end; r++)                                                    \
            BY_TYPE(row_fn, a->type, a, r);                                                        \
        return FSDP_OK;                                                                            \
    }
#define ELEMENTWISE(op, min_work) TILED(op, tiles_of(a->elems, TILE_ELEMS), a->elems, min_work)

/* ---- matrix products (gemm_*.c, cpu_matmul.c) ------------------------------------------------ */

/* Finished nodes of a tree of sums, whose right siblings are in the making: [rows,cols] dense, from
 * the lowest to the highest. */
typedef struct leaf_left {
    const float *x;
    const struct leaf_left *next;
} leaf_left;

/* c[m,n] = op(a)[m,k] * op(b)[k,n] (+ c when accumulate) on the calling thread. a and b are stored
 * as a_type and b_type; ld*: elements from one stored row to the next. k > 0. */
typedef struct gemm_args {
    float *c;
    const void *a, *b;
    size_t m, n, k;
    size_t ldc, lda, ldb;
    dtype a_type, b_type;
    bool trans_a, trans_b, accumulate;
    const leaf_left *left; /* of n columns, added to the products; NULL: none. Not by oneDNN */
    bool streams;          /* c is not read soon: it may be written past the caches */
} gemm_args;
typedef fsdp_status (*gemm_fn)(const gemm_args *g);

/* gemm_portable -- every element is ((c + a0*b0) + a1*b1) + ... in order of k, from c = 0 when not
 * accumulating; no fused multiply-add. So its bits depend on nothing but the operands' values. */
fsdp_status gemm_portable(const gemm_args *g);

/* gemm_dnnl -- the gemm of the fast table. Two fp32 operands: gemm_fp32; oneDNN's sgemm where the
 * processor has neither AVX-512 nor AVX2. Two bf16 operands: gemm_amx where it has AMX; oneDNN's
 * bf16 product where it has other bf16 instructions and b is large; else, as for operands of two
 * types, fp32 products of expanded pieces. Without oneDNN, gemm_portable.
 *   m       at most GEMM_MAX_M if an operand is bf16
 *   errors  FSDP_ENOMEM */
fsdp_status gemm_dnnl(const gemm_args *g);
/* gemm_dnnl_by_rows -- whether an element's bits depend neither on m nor on n. */
bool gemm_dnnl_by_rows(dtype type);
enum { GEMM_MAX_M = 256 };

/* gemm_fp32 -- a gemm of fp32 operands. An element is c or 0, then a fused multiply-add for each k
 * in order. So its bits depend on k and on the values, not on m, n, the element's place or the
 * instruction set. gemm_fp32_open chooses that set and returns whether gemm_fp32 can be called. */
bool gemm_fp32_open(bool has_avx512, bool has_avx2);
void gemm_fp32(const gemm_args *g);

/* gemm_amx -- a gemm of bf16 operands, of at most GEMM_AMX_MAX_N columns, or so many rows if
 * trans_b; not with both transposed. Its bits depend on k and on the values too. gemm_amx_open
 * returns whether gemm_amx can be called; it asks Linux for the memory of tiles, for all threads of
 * the process. */
bool gemm_amx_open(void);
void gemm_amx(const gemm_args *g);
enum { GEMM_AMX_MAX_N = 384 };

/* leaves_sum -- out [rows,cols], row stride ld = the sum of n leaves, a power of two, in the shape
 * of a tree, from number `leaf` on. rows * cols: at most LEAVES_ELEMS. fn writes the sum of one
 * leaf to out and adds the left siblings to it, as leaf_add does. */
typedef struct leaf_part {
    float *out;
    size_t rows, cols, ld, leaf;
    const leaf_left *left;
} leaf_part;
typedef fsdp_status (*leaf_fn)(const void *args, const leaf_part *p);
fsdp_status leaves_sum(leaf_fn fn, const void *args, leaf_part p, size_t n);
/* leaf_add -- out += the left siblings, one after the other. */
void leaf_add(const leaf_part *p);
/* LEAVES_SLACK -- elements behind a sibling that products may read, for nothing: enough for parts
 * of 128 x 96 or 256 x 48 elements. */
enum { LEAVES_ELEMS = 256 * 48, LEAVES_SLACK = 8 * 48 };

/* check_numbers -- FSDP_EINVAL unless all n numbers are in the vocabulary or NO_TARGET, which only
 * targets may be. The message puts `what` ("embedding: token") before the bad number and `where`
 * ("at position") before its index. */
fsdp_status check_numbers(const char *what, const char *where, const int32_t *numbers, size_t n,
                          size_t vocab, bool targets);

/* ---- the operations of op_list.h ------------------------------------------------------------- */

/* BOTH: cpu_bias_backward ..., for both tables. EACH: matmul_launch ...
 * attention_backward_launch, which multiply matrices by the gemm of a table. If gemm is gemm_dnnl
 * itself, attention may round probabilities and gradients of scores to bf16, so that gemm_dnnl gets
 * two bf16 operands. */
#define DECLARE_BOTH(op)    fsdp_status cpu_##op(stream *s, const op##_args *a);
#define DECLARE_EACH(op)    fsdp_status op##_launch(stream *s, const op##_args *a, gemm_fn gemm);
#define OP(op, on_cpu, ...) DECLARE_##on_cpu(op)
#include "common/ops/op_list.h"
#undef DECLARE_BOTH
#undef DECLARE_EACH
