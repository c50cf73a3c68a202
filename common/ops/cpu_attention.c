/* cpu_attention.c -- causal attention by blocks of BLOCK queries x BLOCK keys, with a running
 * softmax, so that no T x T array exists. Both tables use this file, each with its own gemm. Scores
 * and running sums are fp32, whatever q, k and v are.
 *
 * Forward, one tile = one block of queries of one head: for each block of keys, in order,
 *     s = scale q k^T;  top' = max(top, max s);  p = exp(s - top')
 *     out = out exp(top - top') + p v;  sum likewise
 * After the last block, out /= sum and lse = top + log(sum). Backward recomputes p = exp(s - lse).
 *
 * A block on the diagonal is cut into two strips of queries, because the first sees fewer keys:
 *     queries  0 ... 31   keys 0 ... 31
 *     queries 32 ... 63   keys 0 ... 63      three quarters of the products of the whole block
 *
 * With bf16 instructions and wide blocks, a product of two bf16 operands is several times as fast.
 * So with bf16 and long sequences, the fast table uses blocks of WIDE_BLOCK and rounds
 * probabilities, and gradients of scores, to bf16.
 * [Dao et al. 2022 (FlashAttention), alg. 1 and 4] */
#include "common/ops/cpu_kernels.h"
#include "common/ops/row_softmax.h"

/* HEAD_PIECE: columns of out that are accumulated at a time; scores are recomputed for each piece.
 * No model here has wider heads, so one piece is enough for them. */
enum { BLOCK = 64, WIDE_BLOCK = 256, HEAD_PIECE = 256 };

/* With fewer multiplications than this in the score products, one thread is used. */
static const size_t MIN_PARALLEL_MACS = (size_t)1 << 20;

/* How a call computes: `block` queries and keys at a time. rounds: probabilities are rounded to
 * bf16 before they are multiplied by v or d_out, and gradients of scores before k and q. */
typedef struct way {
    gemm_fn gemm;
    size_t block;
    bool rounds;
} way;

static way way_of(const attention_shape *x, gemm_fn gemm)
{
    const bool wide = gemm == gemm_dnnl && x->type == DTYPE_BF16 && x->seq_len >= WIDE_BLOCK;
    return (way){gemm, wide ? WIDE_BLOCK : BLOCK, wide};
}

/* The end of the queries [begin, end) that are computed together: a strip if the block is on the
 * diagonal, else the whole block. In a diagonal block these queries see only keys before `end`. */
static size_t part_end(size_t begin, size_t n_queries, size_t block, bool diagonal)
{
    return diagonal ? min_size(begin + block / 2, n_queries) : n_queries;
}

static size_t part_keys(size_t end, size_t n_keys, bool diagonal)
{
    return diagonal ? min_size(end, n_keys) : n_keys;
}

/* A block of scores, of probabilities, or of gradients of scores: rows of `block` elements. */
typedef struct scores {
    _Alignas(64) float x[WIDE_BLOCK * WIDE_BLOCK];
} scores;
typedef struct rounded_scores {
    _Alignas(64) uint16_t x[WIDE_BLOCK * WIDE_BLOCK];
} rounded_scores;

/* g->a = x, [rows, cols]: x itself, or x rounded into buf. */
static void set_scores(gemm_args *g, const way *w, const scores *x, size_t rows, size_t cols,
                       rounded_scores *buf)
{
    g->a = w->rounds ? (const void *)buf->x : (const void *)x->x;
    g->a_type = w->rounds ? DTYPE_BF16 : DTYPE_F32;
    g->lda = w->block;
    for (size_t r = 0; r < rows && w->rounds; r++)
        divide_row(buf->x, r * w->block, x->x + r * w->block, cols, 1.0f, DTYPE_BF16);
}

static size_t key_head_of(const attention_shape *x, size_t h)
{
    return h / (x->n_head / x->n_kv_head);
}

static size_t out_stride_of(const attention_shape *x)
{
    return x->n_head * x->v_head_dim;
}

static tiling tiling_of(const attention_shape *x, tile_fn tile, size_t n_tiles)
{
    const size_t macs = x->batch * x->n_head * x->seq_len * x->seq_len * x->head_dim;
    return (tiling){tile, n_tiles, macs, MIN_PARALLEL_MACS};
}

/* ---- forward -------------------------------------------------------------------------------- */

typedef struct attention_job {
    attention_args args;
    way way;
} attention_job;

/* A block of queries of one head, its running softmax, and a piece of its running sums of v. */
typedef struct query_block {
    size_t first_query, n_queries, width;
    const void *q;
    float top[WIDE_BLOCK], sum[WIDE_BLOCK];
    _Alignas(64) float out[WIDE_BLOCK * HEAD_PIECE]; /* [n_queries,width] */
} query_block;

typedef struct key_block {
    size_t first_key, n_keys;
    const void *k, *v;
} key_block;

/* Queries [begin, end) of a block and some keys. */
static fsdp_status attend(const attention_job *j, query_block *x, size_t begin, size_t end,
                          const key_block *keys)
{
    const attention_shape *shape = &j->args.shape;
    const bool first = keys->first_key == 0;
    const size_t width = x->width;
    scores p;
    rounded_scores buf;
    TRY(j->way.gemm(&(gemm_args){.c = p.x,
                                 .a = row_at(x->q, begin * shape->q_stride, shape->type),
                                 .b = keys->k,
                                 .m = end - begin,
                                 .n = keys->n_keys,
                                 .k = shape->head_dim,
                                 .ldc = j->way.block,
                                 .lda = shape->q_stride,
                                 .ldb = shape->k_stride,
                                 .a_type = shape->type,
                                 .b_type = shape->type,
                                 .trans_b = true}));
    for (size_t r = begin; r < end; r++) {
        float *row = p.x + (r - begin) * j->way.block;
        const row_extent seen = row_extent_of(x->first_query + r, keys->first_key, keys->n_keys);
        scale_and_mask(row, seen, shape->scale);
        const float keep = softmax_row(row, seen, &x->top[r], &x->sum[r], first);
        float *out = x->out + r * width;
        for (size_t d = 0; d < width && !first; d++)
            out[d] *= keep;
    }
    gemm_args sum = {.c = x->out + begin * width,
                     .b = keys->v,
                     .m = end - begin,
                     .n = width,
                     .k = keys->n_keys,
                     .ldc = width,
                     .ldb = shape->v_stride,
                     .b_type = shape->type,
                     .accumulate = !first};
    set_scores(&sum, &j->way, &p, end - begin, keys->n_keys, &buf);
    return j->way.gemm(&sum);
}

/* Store columns [column, column + x->width) of out, and lse, for a block of queries. */
static void block_finish(const attention_args *a, const query_block *x, size_t b, size_t h,
                         size_t column)
{
    const size_t stride = out_stride_of(&a->shape);
    const size_t at = value_element(&a->shape, stride, b, x->first_query, h) + column;
    float *lse = a->lse + (b * a->shape.n_head + h) * a->shape.seq_len + x->first_query;
    for (size_t r = 0; r < x->n_queries; r++) {
        const float *row = x->out + r * x->width;
        lse[r] = x->top[r] + pm_logf(x->sum[r]);
        BY_TYPE(divide_row, a->shape.type, a->out, at + r * stride, row, x->width, x->sum[r]);
    }
}

static fsdp_status attention_block(const attention_job *j, size_t b, size_t h, size_t query)
{
    const attention_args *a = &j->args;
    const attention_shape *shape = &a->shape;
    const size_t T = shape->seq_len, block = j->way.block, kv = key_head_of(shape, h);
    query_block x; /* no initialiser: it would clear all the sums on every call */
    x.first_query = query;
    x.n_queries = min_size(block, T - query);
    x.q = row_at(a->q, query_element(shape, shape->q_stride, b, query, h), shape->type);
    for (size_t column = 0; column < shape->v_head_dim; column += x.width) {
        x.width = min_size(HEAD_PIECE, shape->v_head_dim - column);
        for (size_t r = 0; r < x.n_queries; r++)
            x.top[r] = 0; /* unused, but gcc makes softmax_top compare it before it tests `first` */
        for (size_t key = 0; key <= query; key += block) {
            const size_t k_at = query_element(shape, shape->k_stride, b, key, kv);
            const size_t v_at = value_element(shape, shape->v_stride, b, key, kv) + column;
            key_block keys = {.first_key = key,
                              .k = row_at(a->k, k_at, shape->type),
                              .v = row_at(a->v, v_at, shape->type)};
            const bool diagonal = key == query;
            for (size_t begin = 0, end; begin < x.n_queries; begin = end) {
                end = part_end(begin, x.n_queries, block, diagonal);
                keys.n_keys = part_keys(end, min_size(block, T - key), diagonal);
                TRY(attend(j, &x, begin, end, &keys));
            }
        }
        block_finish(a, &x, b, h, column);
    }
    return FSDP_OK;
}

/* The last blocks of queries see the most keys. They run first, so that no thread is still busy
 * with a long tile after the others have finished. */
static fsdp_status attention_tile(const void *args, size_t tile)
{
    const attention_job *j = args;
    const attention_shape *x = &j->args.shape;
    const size_t n_rows = x->batch * x->n_head, row = tile % n_rows;
    const size_t number = tiles_of(x->seq_len, j->way.block) - 1 - tile / n_rows;
    return attention_block(j, row / x->n_head, row % x->n_head, number * j->way.block);
}

fsdp_status attention_launch(stream *s, const attention_args *a, gemm_fn gemm)
{
    const attention_job j = {*a, way_of(&a->shape, gemm)};
    const size_t n_blocks = tiles_of(a->shape.seq_len, j.way.block);
    const tiling t =
        tiling_of(&a->shape, attention_tile, a->shape.batch * a->shape.n_head * n_blocks);
    return tiles_launch(s, t, &j, sizeof j, attention_work(a));
}

/* ---- backward ------------------------------------------------------------------------------- */

/* d_k [T,D] and d_v [T,Dv] of a key/value head of one sequence, and d_q of a block of queries, are
 * accumulated in fp32: in the output arrays if these are fp32, else in scratch. */
typedef struct backward_job {
    attention_backward_args args;
    way way;
    float *scratch; /* device memory of the launch: tile_scratch for each tile */
} backward_job;

static size_t tile_scratch(const attention_shape *x)
{
    return (x->seq_len + min_size(WIDE_BLOCK, x->seq_len)) * x->head_dim +
           x->seq_len * x->v_head_dim;
}

size_t attention_backward_scratch_bytes(const attention_shape *x)
{
    return x->type == DTYPE_F32 ? 0 : x->batch * x->n_kv_head * tile_scratch(x) * sizeof(float);
}

/* A matrix of partial sums: rows of `width` elements, which begin ld elements apart. */
typedef struct grad_sums {
    float *x;
    size_t width, ld;
} grad_sums;

/* Pointers of one pair of blocks. */
typedef struct block_pair {
    size_t n_queries, n_keys, first_query, first_key;
    const void *q, *k, *v, *d_out;
    const float *lse, *delta;
    grad_sums d_q, d_k, d_v;
} block_pair;

/* Rows of one pair of blocks times other rows, transposed: q k^T or d_out v^T. */
static fsdp_status scores_of(const attention_shape *shape, const way *w, const block_pair *x,
                             bool of_d_out, scores *out)
{
    return w->gemm(&(gemm_args){.c = out->x,
                                .a = of_d_out ? x->d_out : x->q,
                                .b = of_d_out ? x->v : x->k,
                                .m = x->n_queries,
                                .n = x->n_keys,
                                .k = of_d_out ? shape->v_head_dim : shape->head_dim,
                                .ldc = w->block,
                                .lda = of_d_out ? out_stride_of(shape) : shape->q_stride,
                                .ldb = of_d_out ? shape->v_stride : shape->k_stride,
                                .a_type = shape->type,
                                .b_type = shape->type,
                                .trans_b = true});
}

/* p = softmax of one pair of blocks, recomputed from lse. */
static fsdp_status softmax_again(const attention_shape *shape, const way *w, const block_pair *x,
                                 scores *p)
{
    TRY(scores_of(shape, w, x, false, p));
    for (size_t r = 0; r < x->n_queries; r++) {
        const row_extent row = row_extent_of(x->first_query + r, x->first_key, x->n_keys);
        scale_and_mask(p->x + r * w->block, row, shape->scale);
        exp_row(p->x + r * w->block, row, x->lse[r]);
    }
    return FSDP_OK;
}

/* Compute d_scores from p. */
static fsdp_status softmax_backward(const attention_shape *shape, const way *w, const block_pair *x,
                                    const scores *p, scores *d_scores)
{
    TRY(scores_of(shape, w, x, true, d_scores));
    for (size_t r = 0; r < x->n_queries; r++)
        softmax_backward_row(d_scores->x + r * w->block, p->x + r * w->block,
                             row_extent_of(x->first_query + r, x->first_key, x->n_keys),
                             x->delta[r], shape->scale);
    return FSDP_OK;
}

static fsdp_status pair_backward(const attention_shape *shape, const way *w, const block_pair *x)
{
    scores p, d_scores;
    rounded_scores buf;
    gemm_args to_v = {.c = x->d_v.x,
                      .b = x->d_out,
                      .m = x->n_keys,
                      .n = x->d_v.width,
                      .k = x->n_queries,
                      .ldc = x->d_v.ld,
                      .ldb = out_stride_of(shape),
                      .b_type = shape->type,
                      .trans_a = true,
                      .accumulate = true};
    gemm_args to_k = to_v, to_q = {.c = x->d_q.x,
                                   .b = x->k,
                                   .m = x->n_queries,
                                   .n = x->d_q.width,
                                   .k = x->n_keys,
                                   .ldc = x->d_q.ld,
                                   .ldb = shape->k_stride,
                                   .b_type = shape->type,
                                   .accumulate = x->first_key > 0};
    to_k.c = x->d_k.x;
    to_k.b = x->q;
    to_k.n = x->d_k.width;
    to_k.ldc = x->d_k.ld;
    to_k.ldb = shape->q_stride;
    TRY(softmax_again(shape, w, x, &p));
    set_scores(&to_v, w, &p, x->n_queries, x->n_keys, &buf);
    TRY(w->gemm(&to_v));
    TRY(softmax_backward(shape, w, x, &p, &d_scores));
    set_scores(&to_q, w, &d_scores, x->n_queries, x->n_keys, &buf);
    TRY(w->gemm(&to_q));
    to_k.a = to_q.a;
    to_k.a_type = to_q.a_type;
    to_k.lda = to_q.lda;
    return w->gemm(&to_k);
}

/* A key/value head of one sequence, the arrays that accumulate its gradients, and the current block
 * of queries, which belongs to query head h and begins at query `query`. */
typedef struct kv_head {
    size_t b, head, h, query;
    grad_sums d_q, d_k, d_v;
    float delta[WIDE_BLOCK]; /* dot product of d_out and out, by row */
} kv_head;

static grad_sums sums_from(const grad_sums *sum, size_t row)
{
    return (grad_sums){sum->x + row * sum->ld, sum->width, sum->ld};
}

/* Store the sums, rounded, as out[rows,width], whose rows begin `stride` elements apart at element
 * `at`. A no-op if the sums were accumulated in out itself. */
static void store_sums(const attention_shape *x, const grad_sums *sum, size_t rows, void *out,
                       size_t at, size_t stride)
{
    for (size_t r = 0; r < rows && x->type == DTYPE_BF16; r++)
        divide_row(out, at + r * stride, sum->x + r * sum->ld, sum->width, 1.0f, DTYPE_BF16);
}

/* Backward of the block of queries and one block of keys. */
static fsdp_status key_block_backward(const backward_job *j, const kv_head *kv, size_t key)
{
    const attention_backward_args *a = &j->args;
    const attention_shape *shape = &a->shape;
    const size_t T = shape->seq_len, query = kv->query, b = kv->b, h = kv->h;
    const size_t block = j->way.block, n_queries = min_size(block, T - query);
    const bool diagonal = key == query;
    for (size_t begin = 0, end; begin < n_queries; begin = end) {
        end = part_end(begin, n_queries, block, diagonal);
        const size_t first = query + begin;
        const block_pair pair = {
            .n_queries = end - begin,
            .n_keys = part_keys(end, min_size(block, T - key), diagonal),
            .first_query = first,
            .first_key = key,
            .q = row_at(a->q, query_element(shape, shape->q_stride, b, first, h), shape->type),
            .k = row_at(a->k, query_element(shape, shape->k_stride, b, key, kv->head), shape->type),
            .v = row_at(a->v, value_element(shape, shape->v_stride, b, key, kv->head), shape->type),
            .d_out = row_at(a->d_out, value_element(shape, out_stride_of(shape), b, first, h),
                            shape->type),
            .lse = a->lse + (b * shape->n_head + h) * T + first,
            .delta = kv->delta + begin,
            .d_q = sums_from(&kv->d_q, begin),
            .d_k = sums_from(&kv->d_k, key),
            .d_v = sums_from(&kv->d_v, key),
        };
        TRY(pair_backward(shape, &j->way, &pair));
    }
    return FSDP_OK;
}

/* Backward of the block of queries and all the keys that it sees, in order. */
static fsdp_status query_block_backward(const backward_job *j, kv_head *kv)
{
    const attention_backward_args *a = &j->args;
    const attention_shape *shape = &a->shape;
    const size_t n_queries = min_size(j->way.block, shape->seq_len - kv->query);
    const size_t out_stride = out_stride_of(shape);
    const size_t out_at = value_element(shape, out_stride, kv->b, kv->query, kv->h);
    const size_t q_at = query_element(shape, shape->q_stride, kv->b, kv->query, kv->h);
    if (shape->type == DTYPE_F32)
        kv->d_q = (grad_sums){(float *)a->d_q + q_at, shape->head_dim, shape->q_stride};
    for (size_t r = 0; r < n_queries; r++) {
        const size_t at = out_at + r * out_stride;
        kv->delta[r] = BY_TYPE(row_dot, shape->type, row_at(a->d_out, at, shape->type),
                               row_at(a->out, at, shape->type), shape->v_head_dim);
    }
    for (size_t key = 0; key <= kv->query; key += j->way.block)
        TRY(key_block_backward(j, kv, key));
    store_sums(shape, &kv->d_q, n_queries, a->d_q, q_at, shape->q_stride);
    return FSDP_OK;
}

/* Whether d_k and d_v are accumulated in the output arrays. */
static bool sums_in_place(const attention_backward_args *a)
{
    return a->wide_kv || a->shape.type == DTYPE_F32;
}

static kv_head kv_head_of(const backward_job *j, size_t tile)
{
    const attention_backward_args *a = &j->args;
    const attention_shape *x = &a->shape;
    const size_t D = x->head_dim, Dv = x->v_head_dim;
    kv_head kv = {.b = tile / x->n_kv_head, .head = tile % x->n_kv_head};
    float *const scratch = j->scratch + tile * tile_scratch(x);
    kv.d_q = (grad_sums){scratch + x->seq_len * (D + Dv), D, D};
    if (sums_in_place(a)) {
        kv.d_k = (grad_sums){(float *)a->d_k + query_element(x, x->k_stride, kv.b, 0, kv.head), D,
                             x->k_stride};
        kv.d_v = (grad_sums){(float *)a->d_v + value_element(x, x->v_stride, kv.b, 0, kv.head), Dv,
                             x->v_stride};
    } else {
        kv.d_k = (grad_sums){scratch, D, D};
        kv.d_v = (grad_sums){scratch + x->seq_len * D, Dv, Dv};
    }
    return kv;
}

/* One tile is one key/value head of one sequence. It goes through the query heads of its group in
 * order, and through each head's blocks of queries in order, and accumulates d_k and d_v. */
static fsdp_status backward_tile(const void *args, size_t tile)
{
    const backward_job *j = args;
    const attention_backward_args *a = &j->args;
    const attention_shape *x = &a->shape;
    const size_t group = x->n_head / x->n_kv_head;
    kv_head kv = kv_head_of(j, tile);
    for (size_t t = 0; t < x->seq_len; t++) {
        memset(kv.d_k.x + t * kv.d_k.ld, 0, kv.d_k.width * sizeof(float));
        memset(kv.d_v.x + t * kv.d_v.ld, 0, kv.d_v.width * sizeof(float));
    }
    for (kv.h = kv.head * group; kv.h < (kv.head + 1) * group; kv.h++)
        for (kv.query = 0; kv.query < x->seq_len; kv.query += j->way.block)
            TRY(query_block_backward(j, &kv));
    if (sums_in_place(a))
        return FSDP_OK;
    store_sums(x, &kv.d_k, x->seq_len, a->d_k, query_element(x, x->k_stride, kv.b, 0, kv.head),
               x->k_stride);
    store_sums(x, &kv.d_v, x->seq_len, a->d_v, value_element(x, x->v_stride, kv.b, 0, kv.head),
               x->v_stride);
    return FSDP_OK;
}

fsdp_status attention_backward_launch(stream *s, const attention_backward_args *a, gemm_fn gemm)
{
    const size_t bytes = attention_backward_scratch_bytes(&a->shape);
    op_work w = attention_backward_work(a);
    void *scratch = NULL;
    if (w.ends)
        return w.status;
    if (bytes > 0)
        TRY(device_alloc(s, MEM_OTHER, bytes, "attention_backward", &scratch));
    const backward_job j = {*a, way_of(&a->shape, gemm), scratch};
    const tiling t = tiling_of(&a->shape, backward_tile, a->shape.batch * a->shape.n_kv_head);
    op_writes(&w, scratch, bytes);
    fsdp_status status = tiles_launch(s, t, &j, sizeof j, w);
    device_free(s, scratch);
    return status;
}
