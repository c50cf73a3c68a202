/* cpu_image.c -- convolution, max-pooling and dropout; relu is in cpu_elementwise.c.
 *
 * A convolution is a product of matrices: row (c,i,j) of the lowered image has the element of
 * channel c at (y+i, x+j) for each position (y,x) of the output, so that
 *
 *     out [Cout, positions]  = weight [Cout, C K K] * lowered [C K K, positions]
 *     d_weight              += d_out [Cout, positions] * lowered^T, sample after sample
 *     d_in [C, positions]    = weight' [C, Cout K K] * lowered'
 *
 * where lowered' takes d_out at (y-i, x-j), or 0 outside of d_out, and weight' is the weight with
 * its first two dimensions exchanged. So each element of d_in is a finished sum when it is stored,
 * and is rounded once. A whole lowered image never exists: each tile builds the block that one gemm
 * call needs, in its own memory. Tiles depend only on the shape of an image, and no tile of out or
 * d_in spans samples, so the bits of out and d_in do not depend on the batch. oneDNN's convolutions
 * are not used: they would duplicate this code for the fast table alone. */
#include "common/ops/cpu_kernels.h"
#include "common/ops/row_image.h"

/* A block of a lowered image: 288 rows are 32 channels of 3 x 3. */
enum { BLOCK_OUT = 64, BLOCK_ROWS = 288, BLOCK_COLS = 256 };
/* Blocks for gradients of weights: as many bytes, but longer rows, because sums run along a row. */
enum { GRAD_ROWS = 48, GRAD_COLS = BLOCK_ROWS * BLOCK_COLS / GRAD_ROWS };
static const size_t MIN_TILE_MACS = (size_t)1 << 20;

/* How images are lowered: `channels` planes per image, for a convolution of kernel x kernel. The
 * function positions() counts the positions of one output plane. */
typedef struct lowering {
    const void *in;
    size_t channels, height, width, kernel;
    size_t out_height, out_width;
    bool backward; /* (y-i, x-j) in place of (y+i, x+j) */
    dtype type;
} lowering;

static size_t positions(const lowering *x)
{
    return x->out_height * x->out_width;
}

static size_t depth(const lowering *x)
{
    return x->channels * x->kernel * x->kernel;
}

/* out[0 ... n-1] = elements x ... x+n-1 of row y of a plane; 0 outside of the plane. y and
 * x are unsigned, so a negative position has wrapped around. */
static void lower_run(const lowering *l, const char *plane, size_t y, size_t x, size_t n, char *out)
{
    const size_t bytes = dtype_bytes(l->type);
    const size_t before = y >= l->height ? n : x < l->width ? 0 : min_size(n, 0 - x);
    const size_t inside = min_size(n - before, l->width - (x + before));
    if (inside < n)
        memset(out, 0, n * bytes);
    if (before < n)
        memcpy(out + before * bytes, plane + (y * l->width + x + before) * bytes, inside * bytes);
}

/* Rows [row, row + m) and columns [begin, begin + n) of sample b's part of a matrix. */
typedef struct block {
    size_t b, row, m, begin, n;
} block;

/* out = row k.row + r of the lowered image, in the columns of block k. */
static void lower_row(const lowering *l, block k, size_t r, char *out)
{
    const size_t K = l->kernel, i = (k.row + r) / K % K, j = (k.row + r) % K;
    const size_t channel = k.b * l->channels + (k.row + r) / K / K;
    const char *plane = row_at(l->in, channel * l->height * l->width, l->type);
    size_t y = k.begin / l->out_width, x = k.begin % l->out_width;
    for (size_t done = 0, run; done < k.n; done += run, x = 0, y++) {
        run = min_size(l->out_width - x, k.n - done);
        lower_run(l, plane, l->backward ? y - i : y + i, l->backward ? x - j : x + j, run,
                  out + done * dtype_bytes(l->type));
    }
}

/* out [m, n] = a block of lowered images. */
static void lower(const lowering *l, block k, void *out)
{
    for (size_t r = 0; r < k.m; r++)
        lower_row(l, k, r, (char *)out + r * k.n * dtype_bytes(l->type));
}

/* ---- out, and d_in -------------------------------------------------------------------------- */

/* One convolution, forward or backward to its input. */
typedef struct conv_job {
    lowering l;
    void *out;
    const void *weight, *bias; /* bias NULL: none */
    size_t batch, out_channels;
    gemm_fn gemm;
} conv_job;

/* out [m, n] = a block of weight' [out_channels, depth]. */
ROW_FN void turn_weight(const conv_job *j, block k, void *out, dtype type)
{
    const size_t square = j->l.kernel * j->l.kernel;
    for (size_t c = 0; c < k.n; c++) {
        const size_t first = (k.begin + c) / square * j->out_channels + k.row;
        const size_t at = first * square + (k.begin + c) % square;
        for (size_t r = 0; r < k.m; r++)
            row_store(out, r * k.n + c, row_load(j->weight, at + r * square, type), type);
    }
}

/* A block of out = products [m, n] + bias. */
ROW_FN void conv_finish(const conv_job *j, block k, const float *products, dtype type)
{
    for (size_t r = 0; r < k.m; r++) {
        const size_t at = (k.b * j->out_channels + k.row + r) * positions(&j->l) + k.begin;
        const float bias = j->bias ? row_load(j->bias, k.row + r, type) : 0.0f;
        for (size_t c = 0; c < k.n; c++) {
            const float x = products[r * k.n + c];
            row_store(j->out, at + c, j->bias ? x + bias : x, type);
        }
    }
}

static size_t conv_tiles(const conv_job *j)
{
    return j->batch * tiles_of(j->out_channels, BLOCK_OUT) * tiles_of(positions(&j->l), BLOCK_COLS);
}

/* products [m, n] = the block's rows of the weights * its columns of a lowered image. */
static fsdp_status conv_products(const conv_job *j, block k, float *products)
{
    _Alignas(64) float lowered[BLOCK_ROWS * BLOCK_COLS], weights[BLOCK_OUT * BLOCK_ROWS];
    const dtype type = j->l.type;
    for (size_t r = 0; r < depth(&j->l); r += BLOCK_ROWS) {
        const size_t n = min_size(BLOCK_ROWS, depth(&j->l) - r);
        gemm_args g = {.c = products,
                       .a = row_at(j->weight, k.row * depth(&j->l) + r, type),
                       .b = lowered,
                       .m = k.m,
                       .n = k.n,
                       .k = n,
                       .ldc = k.n,
                       .lda = depth(&j->l),
                       .ldb = k.n,
                       .a_type = type,
                       .b_type = type,
                       .accumulate = r > 0};
        if (j->l.backward) {
            BY_TYPE(turn_weight, type, j, ((block){0, k.row, k.m, r, n}), weights);
            g.a = weights;
            g.lda = n;
        }
        lower(&j->l, (block){k.b, r, n, k.begin, k.n}, lowered);
        TRY(j->gemm(&g));
    }
    return FSDP_OK;
}

static fsdp_status conv_tile(const void *args, size_t tile)
{
    const conv_job *j = args;
    _Alignas(64) float products[BLOCK_OUT * BLOCK_COLS];
    const size_t n_cols = tiles_of(positions(&j->l), BLOCK_COLS);
    const size_t n_rows = tiles_of(j->out_channels, BLOCK_OUT);
    block k = {.b = tile / n_cols / n_rows,
               .row = tile / n_cols % n_rows * BLOCK_OUT,
               .begin = tile % n_cols * BLOCK_COLS};
    k.m = min_size(BLOCK_OUT, j->out_channels - k.row);
    k.n = min_size(BLOCK_COLS, positions(&j->l) - k.begin);
    TRY(conv_products(j, k, products));
    BY_TYPE(conv_finish, j->l.type, j, k, products);
    return FSDP_OK;
}

static lowering image_of(const conv_shape *x, const void *in)
{
    return (lowering){.in = in,
                      .channels = x->in_channels,
                      .height = x->height,
                      .width = x->width,
                      .kernel = x->kernel,
                      .out_height = x->height + 1 - x->kernel,
                      .out_width = x->width + 1 - x->kernel,
                      .type = x->type};
}

fsdp_status conv2d_launch(stream *s, const conv2d_args *a, gemm_fn gemm)
{
    const conv_shape *x = &a->shape;
    const conv_job j = {.l = image_of(x, a->in),
                        .out = a->out,
                        .weight = a->weight,
                        .bias = a->bias,
                        .batch = x->batch,
                        .out_channels = x->out_channels,
                        .gemm = gemm};
    const size_t macs = x->batch * x->out_channels * positions(&j.l) * depth(&j.l);
    return tiles_launch(s, (tiling){conv_tile, conv_tiles(&j), macs, MIN_TILE_MACS}, &j, sizeof j,
                        conv2d_work(a));
}

/* ---- gradients ------------------------------------------------------------------------------ */

typedef struct conv_backward_job {
    conv2d_backward_args args;
    gemm_fn gemm;
} conv_backward_job;

/* d_weight: a tile is GRAD_ROWS rows of the lowered images for BLOCK_OUT channels of the output. */
static fsdp_status conv_weight_tile(const void *args, size_t tile)
{
    const conv_backward_job *j = args;
    const conv_shape *x = &j->args.shape;
    const lowering l = image_of(x, j->args.in);
    _Alignas(64) float lowered[GRAD_ROWS * GRAD_COLS];
    const size_t n_rows = tiles_of(depth(&l), GRAD_ROWS);
    const size_t row = tile % n_rows * GRAD_ROWS, first = tile / n_rows * BLOCK_OUT;
    gemm_args g = {.c = j->args.d_weight + first * depth(&l) + row,
                   .m = min_size(BLOCK_OUT, x->out_channels - first),
                   .n = min_size(GRAD_ROWS, depth(&l) - row),
                   .ldc = depth(&l),
                   .lda = positions(&l),
                   .b = lowered,
                   .trans_b = true,
                   .a_type = x->type,
                   .b_type = x->type,
                   .accumulate = !j->args.overwrite};
    for (size_t r = 0; r < g.m && x->batch == 0; r++)
        memset(g.c + r * g.ldc, 0, g.n * sizeof *g.c);
    for (size_t b = 0; b < x->batch; b++)
        for (size_t p = 0; p < positions(&l); p += GRAD_COLS) {
            g.k = g.ldb = min_size(GRAD_COLS, positions(&l) - p);
            g.a = row_at(j->args.d_out, (b * x->out_channels + first) * g.lda + p, x->type);
            lower(&l, (block){b, row, g.n, p, g.k}, lowered);
            TRY(j->gemm(&g));
            g.accumulate = true;
        }
    return FSDP_OK;
}

/* d_bias: a tile is one channel of the output. */
static fsdp_status conv_bias_tile(const void *args, size_t channel)
{
    const conv_backward_job *j = args;
    const conv_shape *x = &j->args.shape;
    const lowering l = image_of(x, NULL);
    float sum = j->args.overwrite ? 0.0f : j->args.d_bias[channel];
    for (size_t b = 0; b < x->batch; b++) {
        const size_t at = (b * x->out_channels + channel) * positions(&l);
        sum += BY_TYPE(row_sum, x->type, row_at(j->args.d_out, at, x->type), positions(&l));
    }
    j->args.d_bias[channel] = sum;
    return FSDP_OK;
}

static fsdp_status conv_input(const conv_backward_job *j, int n_threads)
{
    const conv_shape *x = &j->args.shape;
    const lowering in = image_of(x, j->args.in);
    const conv_job d_in = {.l = {.in = j->args.d_out,
                                 .channels = x->out_channels,
                                 .height = in.out_height,
                                 .width = in.out_width,
                                 .kernel = x->kernel,
                                 .out_height = x->height,
                                 .out_width = x->width,
                                 .backward = true,
                                 .type = x->type},
                           .out = j->args.d_in,
                           .weight = j->args.weight,
                           .batch = x->batch,
                           .out_channels = x->in_channels,
                           .gemm = j->gemm};
    return tiles_run(n_threads, conv_tiles(&d_in), conv_tile, &d_in);
}

static fsdp_status conv2d_backward_kernel(void *args, int n_threads)
{
    const conv_backward_job *j = args;
    const conv_shape *x = &j->args.shape;
    const lowering l = image_of(x, j->args.in);
    const size_t macs = x->batch * x->out_channels * positions(&l) * depth(&l);
    n_threads = threads_for(n_threads, macs, MIN_TILE_MACS);
    if (j->args.d_weight != NULL)
        TRY(tiles_run(n_threads,
                      tiles_of(depth(&l), GRAD_ROWS) * tiles_of(x->out_channels, BLOCK_OUT),
                      conv_weight_tile, j));
    if (j->args.d_bias != NULL)
        TRY(tiles_run(n_threads, x->out_channels, conv_bias_tile, j));
    return j->args.d_in != NULL ? conv_input(j, n_threads) : FSDP_OK;
}

fsdp_status conv2d_backward_launch(stream *s, const conv2d_backward_args *a, gemm_fn gemm)
{
    const conv_backward_job j = {*a, gemm};
    return kernel_launch(s, conv2d_backward_kernel, &j, sizeof j, conv2d_backward_work(a));
}

/* ---- max_pool2d ----------------------------------------------------------------------------- */

/* Planes of one tile. */
static size_t tile_planes(size_t elems)
{
    return elems > 0 && elems < TILE_ELEMS ? TILE_ELEMS / elems : 1;
}

#define POOLED(op)                                                                                 \
    ROW_TILE(op, a->planes, tile_planes(a->height * a->width), op##_plane)                         \
    TILED(op, tiles_of(a->planes, tile_planes(a->height * a->width)),                              \
          a->planes * a->height * a->width, MIN_PARALLEL_EXPS)

POOLED(max_pool2d)
POOLED(max_pool2d_backward)

/* ---- dropout -------------------------------------------------------------------------------- */

static fsdp_status dropout_tile(const void *args, size_t sample)
{
    const dropout_args *a = args;
    for (size_t four = 0; 4 * four < a->width; four++)
        BY_TYPE(dropout_four, a->type, a, sample, four);
    return FSDP_OK;
}

TILED(dropout, a->samples, a->samples * a->width, MIN_PARALLEL_EXPS)
