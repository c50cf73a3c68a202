/* cpu_matmul.c -- matrix products over a fixed grid of tiles. See cpu_kernels.h.
 *
 * A tile spans the whole of k and is one single-threaded gemm call, so the grid is what fixes the
 * bits (gemm_portable does not even depend on that). It is chosen by (m,n,k) alone.
 *
 * With compute = bf16, fp32 operands are rounded into scratch memory first, each element once and
 * not once per tile that reads it. op(a) is rounded a group of tile rows at a time, since gradients
 * of logits are as large as an activation gets: 4096 tokens of 50,257 logits take 824 MB.
 *
 *     round b;  for each group of rows of op(a): round it, run its tiles */
#include "common/ops/cpu_kernels.h"

/* oneDNN runs tiles of 256 x 384 within a few percent of its speed on the whole, in fp32 and in
 * bf16; multiples of 48 columns suit it best. Narrower tiles cost it 5%, so they are used only when
 * there would be few tiles for the threads, and only where one is still worth handing out (2 MFLOP:
 * some 20 us). */
enum { TILE_M = MATMUL_TILE_M, TILE_N = MATMUL_TILE_N, NARROW_TILE_N = 192, FEW_TILES = 16 };
static const size_t MIN_TILE_MACS = (size_t)1 << 20;

/* Elements of a group of rows of op(a), if one row of tiles is not more. */
static const size_t GROUP_ELEMS = (size_t)8 << 20;

static size_t choose_tile_n(const matmul_args *a)
{
    const size_t n_tiles = tiles_of(a->m, TILE_M) * tiles_of(a->n, TILE_N);
    const size_t narrow_macs = min_size(a->m, TILE_M) * NARROW_TILE_N * a->k;
    return n_tiles < FEW_TILES && narrow_macs >= MIN_TILE_MACS ? NARROW_TILE_N : TILE_N;
}

/* A matmul on its stream. What needs no rounding has no scratch (NULL). */
typedef struct matmul_tiles {
    matmul_args args;
    gemm_fn f32;
    gemm_mixed_fn mixed;
    uint16_t *a_scratch, *b_scratch; /* device memory, of matmul_launch */
} matmul_tiles;

static bool needs_rounding(const matmul_args *a, dtype type)
{
    return a->compute == DTYPE_BF16 && type == DTYPE_F32;
}

/* Rows of op(a) that are rounded at a time, a multiple of TILE_M unless they are all. */
static size_t group_rows(const matmul_args *a)
{
    const size_t rows = GROUP_ELEMS / a->k / TILE_M * TILE_M;
    return needs_rounding(a, a->a_type) ? min_size(a->m, rows > TILE_M ? rows : TILE_M) : a->m;
}

size_t matmul_scratch_bytes(const matmul_args *a)
{
    if (a->m == 0 || a->n == 0 || a->k == 0)
        return 0;
    const size_t of_a = needs_rounding(a, a->a_type) ? group_rows(a) * a->k : 0;
    const size_t of_b = needs_rounding(a, a->b_type) ? a->k * a->n : 0;
    return (of_a + of_b) * sizeof(uint16_t);
}

/* ---- rounding ------------------------------------------------------------------------------- */

/* out[rows,cols] dense = in[rows,cols] with stride ld. */
typedef struct rounding {
    uint16_t *out;
    const float *in;
    size_t rows, cols, ld;
} rounding;

static size_t round_tile_rows(size_t cols)
{
    return cols >= TILE_ELEMS ? 1 : TILE_ELEMS / cols;
}

static fsdp_status round_tile(const void *args, size_t tile)
{
    const rounding *j = args;
    const size_t n_rows = round_tile_rows(j->cols), end = min_size(j->rows, (tile + 1) * n_rows);
    for (size_t r = tile * n_rows; r < end; r++) {
        uint16_t *restrict out = j->out + r * j->cols;
        const float *restrict in = j->in + r * j->ld;
        for (size_t c = 0; c < j->cols; c++)
            out[c] = bf16_from_f32(in[c]);
    }
    return FSDP_OK;
}

static fsdp_status round_operand(const rounding *j, int n_threads)
{
    n_threads = threads_for(n_threads, j->rows * j->cols, MIN_PARALLEL_ELEMS);
    return tiles_run(n_threads, tiles_of(j->rows, round_tile_rows(j->cols)), round_tile, j);
}

/* ---- tiles ---------------------------------------------------------------------------------- */

/* An operand as the tiles read it. */
typedef struct operand {
    const void *at;
    dtype type;
    size_t ld;
} operand;

/* A group of rows of the output: its first is `row`, op(a) begins with the same. */
typedef struct matmul_group {
    const matmul_tiles *job;
    operand a, b;
    size_t row, rows, tile_n;
} matmul_group;

static const void *operand_at(const operand *x, size_t elems)
{
    return (const char *)x->at + elems * dtype_bytes(x->type);
}

static fsdp_status matmul_tile(const void *args, size_t tile)
{
    const matmul_group *j = args;
    const matmul_args *a = &j->job->args;
    const size_t n_tiles_n = tiles_of(a->n, j->tile_n);
    const size_t row = tile / n_tiles_n * TILE_M, col = tile % n_tiles_n * j->tile_n;
    gemm_mixed_args x = {
        .a = operand_at(&j->a, a->trans_a ? row : row * j->a.ld),
        .b = operand_at(&j->b, a->trans_b ? col * j->b.ld : col),
        .a_type = j->a.type,
        .b_type = j->b.type,
        .g = {.c = a->out + (j->row + row) * a->n + col,
              .m = min_size(TILE_M, j->rows - row),
              .n = min_size(j->tile_n, a->n - col),
              .k = a->k,
              .ldc = a->n,
              .lda = j->a.ld,
              .ldb = j->b.ld,
              .trans_a = a->trans_a,
              .trans_b = a->trans_b,
              .accumulate = a->accumulate},
    };
    if (x.a_type != DTYPE_F32 || x.b_type != DTYPE_F32)
        return j->job->mixed(&x);
    x.g.a = x.a;
    x.g.b = x.b;
    return j->job->f32(&x.g);
}

/* op(a)'s rows of a group: where they stand, or rounded. Stored [k,m] they are columns. */
static fsdp_status take_a(const matmul_tiles *j, size_t row, size_t rows, int n_threads,
                          operand *out)
{
    const matmul_args *a = &j->args;
    *out = (operand){a->a, a->a_type, a->trans_a ? a->m : a->k};
    out->at = operand_at(out, a->trans_a ? row : row * out->ld);
    if (!j->a_scratch)
        return FSDP_OK;
    const rounding r = {j->a_scratch, out->at, a->trans_a ? a->k : rows, a->trans_a ? rows : a->k,
                        out->ld};
    *out = (operand){j->a_scratch, DTYPE_BF16, r.cols};
    return round_operand(&r, n_threads);
}

static fsdp_status take_b(const matmul_tiles *j, int n_threads, operand *out)
{
    const matmul_args *a = &j->args;
    *out = (operand){a->b, a->b_type, a->trans_b ? a->k : a->n};
    if (!j->b_scratch)
        return FSDP_OK;
    const rounding r = {j->b_scratch, a->b, a->trans_b ? a->n : a->k, out->ld, out->ld};
    *out = (operand){j->b_scratch, DTYPE_BF16, out->ld};
    return round_operand(&r, n_threads);
}

static fsdp_status matmul_kernel(void *args, int n_threads)
{
    const matmul_tiles *j = args;
    const matmul_args *a = &j->args;
    if (a->k == 0) {
        if (!a->accumulate)
            memset(a->out, 0, a->m * a->n * sizeof *a->out);
        return FSDP_OK;
    }
    n_threads = threads_for(n_threads, a->m * a->n * a->k, MIN_TILE_MACS);
    matmul_group g = {.job = j, .tile_n = choose_tile_n(a)};
    TRY(take_b(j, n_threads, &g.b));
    for (g.row = 0; g.row < a->m; g.row += g.rows) {
        g.rows = min_size(group_rows(a), a->m - g.row);
        TRY(take_a(j, g.row, g.rows, n_threads, &g.a));
        TRY(tiles_run(n_threads, tiles_of(g.rows, TILE_M) * tiles_of(a->n, g.tile_n), matmul_tile,
                      &g));
    }
    return FSDP_OK;
}

/* ---- launch --------------------------------------------------------------------------------- */

static fsdp_status scratch_alloc(stream *s, size_t rows, size_t cols, uint16_t **out)
{
    size_t elems, bytes;
    TRY(size_mul(rows, cols, "matmul: operand", &elems));
    TRY(size_mul(elems, sizeof **out, "matmul: operand", &bytes));
    return device_alloc(s, MEM_ACTIVATIONS, bytes, "operand in bf16", (void **)out);
}

static fsdp_status scratch_get(stream *s, matmul_tiles *j)
{
    const matmul_args *a = &j->args;
    if (a->k == 0)
        return FSDP_OK;
    if (needs_rounding(a, a->a_type))
        TRY(scratch_alloc(s, group_rows(a), a->k, &j->a_scratch));
    if (needs_rounding(a, a->b_type))
        TRY(scratch_alloc(s, a->k, a->n, &j->b_scratch));
    return FSDP_OK;
}

static bool is_float_type(dtype t)
{
    return t == DTYPE_F32 || t == DTYPE_BF16;
}

fsdp_status matmul_launch(stream *s, const matmul_args *a, gemm_fn f32, gemm_mixed_fn mixed)
{
    if (!is_float_type(a->a_type) || !is_float_type(a->b_type) || !is_float_type(a->compute))
        return fsdp_error(FSDP_EINVAL, "matmul knows f32 and bf16",
                          "matmul: operands in %s and %s, computed in %s", dtype_name(a->a_type),
                          dtype_name(a->b_type), dtype_name(a->compute));
    if (a->m == 0 || a->n == 0)
        return FSDP_OK;
    matmul_tiles j = {.args = *a, .f32 = f32, .mixed = mixed};
    fsdp_status status = scratch_get(s, &j);
    if (status == FSDP_OK) {
        op_work w = matmul_work(a);
        if (j.a_scratch)
            op_writes(&w, j.a_scratch, group_rows(a) * a->k * sizeof *j.a_scratch);
        op_writes(&w, j.b_scratch, a->k * a->n * sizeof *j.b_scratch);
        status = kernel_launch(s, matmul_kernel, &j, sizeof j, w);
    }
    device_free(s, j.b_scratch);
    device_free(s, j.a_scratch);
    return status;
}
