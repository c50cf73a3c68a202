/* cpu_attention.c -- causal attention by blocks of BLOCK queries x BLOCK keys, with a running
 * softmax, so that no T x T array exists. Both tables; they differ in the gemm only.
 *
 * Forward, one tile = one block of queries of one head: for each block of keys, in order,
 *     s = scale q k^T;  top' = max(top, max s);  p = exp(s - top')
 *     out = out exp(top - top') + p v;  sum likewise
 * and in the end out /= sum, lse = top + log(sum). Backward rebuilds p = exp(s - lse).
 *
 * A block on the diagonal is cut into strips of STRIP queries, which see fewer keys:
 *     queries  0 ... 31   keys 0 ... 31
 *     queries 32 ... 63   keys 0 ... 63      three quarters of the products of the whole block
 * [Dao et al. 2022 (FlashAttention), alg. 1 and 4] */
#include "common/base/pmath.h"
#include "common/ops/cpu_kernels.h"

enum { BLOCK = 64, STRIP = 32 };

/* Multiplications of all score products below which a second thread does not pay. */
static const size_t MIN_PARALLEL_MACS = (size_t)1 << 20;

/* exp(MASKED - x) is 0 for every x that a score can be, and MASKED - MASKED is no NaN. */
static const float MASKED = -1e30f;

/* What a row of a block of scores sees: n_seen keys, for which `width` columns are computed (whole
 * vectors; MASKED fills them up). Columns beyond are 0. */
typedef struct row_extent {
    size_t n_seen, width;
} row_extent;

/* Query number `query` sees keys 0 ... query; of a block those from first_key on. */
static row_extent row_extent_of(size_t query, size_t first_key, size_t n_keys)
{
    const size_t n_seen = min_size(n_keys, query + 1 - first_key);
    return (row_extent){n_seen, tiles_of(n_seen, LANES) * LANES};
}

/* Columns from `width` on become 0; whole vectors. */
static void clear_from(float *row, size_t width)
{
    for (size_t c = width; c < BLOCK; c += LANES)
        memset(row + c, 0, LANES * sizeof *row);
}

/* Products become scores; what is not seen is masked. Whole vectors: what a block has beyond its
 * last key is overwritten. */
static void scale_and_mask(float *row, row_extent x, float scale)
{
    for (size_t c = 0; c < x.width; c += LANES)
        for (size_t l = 0; l < LANES; l++)
            row[c + l] *= scale;
    for (size_t c = x.n_seen; c < x.width; c++)
        row[c] = MASKED;
}

/* row[c] = exp(row[c] - shift); 0 where nothing is seen. No score is far above shift: it is their
 * maximum, or lse, which is no smaller. */
static void exp_row(float *row, row_extent x, float shift)
{
    for (size_t c = 0; c < x.width; c += LANES)
        for (size_t l = 0; l < LANES; l++)
            row[c + l] = pm_expf_upto40(row[c + l] - shift);
    clear_from(row, x.width);
}

/* End of the queries [begin, result) that are treated together: a strip on the diagonal, else the
 * block; and the keys they see. */
static size_t part_end(size_t begin, size_t n_queries, bool diagonal)
{
    return diagonal ? min_size(begin + STRIP, n_queries) : n_queries;
}

static size_t part_keys(size_t end, size_t n_keys, bool diagonal)
{
    return diagonal ? min_size(end, n_keys) : n_keys;
}

/* ---- forward -------------------------------------------------------------------------------- */

typedef struct attention_tiles {
    const attention_args *a;
    gemm_fn gemm;
    size_t n_blocks; /* of queries */
} attention_tiles;

/* A block of queries of one head, and its running softmax. */
typedef struct query_block {
    size_t first_query, n_queries;
    const float *q;
    float *out;
    float top[BLOCK], sum[BLOCK];
} query_block;

/* One row of the running softmax: scores become exponentials; returns the factor for what was
 * accumulated before. */
static float softmax_row(float *row, row_extent x, float *top, float *sum, bool first)
{
    const float block_top = vec_max(row, x.width);
    const float new_top = first || block_top > *top ? block_top : *top;
    exp_row(row, x, new_top);
    const float block_sum = vec_sum(row, x.width);
    const float keep = first ? 0.0f : pm_expf(*top - new_top);
    *sum = first ? block_sum : *sum * keep + block_sum;
    *top = new_top;
    return keep;
}

typedef struct key_block {
    size_t first_key, n_keys;
    const float *k, *v;
} key_block;

/* Queries [begin, end) of a block and some keys. */
static fsdp_status attend(const attention_tiles *j, query_block *x, size_t begin, size_t end,
                          const key_block *keys)
{
    const attention_args *a = j->a;
    const size_t out_stride = a->n_head * a->head_dim;
    const bool first = keys->first_key == 0;
    float *out = x->out + begin * out_stride;
    _Alignas(64) float scores[BLOCK * BLOCK];
    TRY(j->gemm(&(gemm_args){.c = scores,
                             .a = x->q + begin * a->q_stride,
                             .b = keys->k,
                             .m = end - begin,
                             .n = keys->n_keys,
                             .k = a->head_dim,
                             .ldc = BLOCK,
                             .lda = a->q_stride,
                             .ldb = a->k_stride,
                             .trans_b = true}));
    for (size_t r = begin; r < end; r++) {
        float *row = scores + (r - begin) * BLOCK;
        const row_extent seen = row_extent_of(x->first_query + r, keys->first_key, keys->n_keys);
        scale_and_mask(row, seen, a->scale);
        const float keep = softmax_row(row, seen, &x->top[r], &x->sum[r], first);
        for (size_t d = 0; d < a->head_dim && !first; d++)
            x->out[r * out_stride + d] *= keep;
    }
    return j->gemm(&(gemm_args){.c = out,
                                .a = scores,
                                .b = keys->v,
                                .m = end - begin,
                                .n = a->head_dim,
                                .k = keys->n_keys,
                                .ldc = out_stride,
                                .lda = BLOCK,
                                .ldb = a->v_stride,
                                .accumulate = !first});
}

static fsdp_status attention_block(const attention_tiles *j, size_t b, size_t h, size_t first_query)
{
    const attention_args *a = j->a;
    const size_t kv_head = h / (a->n_head / a->n_kv_head), out_stride = a->n_head * a->head_dim;
    const size_t row = b * a->seq_len + first_query;
    query_block x = {.first_query = first_query,
                     .n_queries = min_size(BLOCK, a->seq_len - first_query),
                     .q = a->q + row * a->q_stride + h * a->head_dim,
                     .out = a->out + row * out_stride + h * a->head_dim};
    for (size_t key = 0; key <= first_query; key += BLOCK) {
        const size_t n_keys = min_size(BLOCK, a->seq_len - key);
        key_block keys = {.first_key = key,
                          .k = a->k + (b * a->seq_len + key) * a->k_stride + kv_head * a->head_dim,
                          .v = a->v + (b * a->seq_len + key) * a->v_stride + kv_head * a->head_dim};
        const bool diagonal = key == first_query;
        for (size_t begin = 0, end; begin < x.n_queries; begin = end) {
            end = part_end(begin, x.n_queries, diagonal);
            keys.n_keys = part_keys(end, n_keys, diagonal);
            TRY(attend(j, &x, begin, end, &keys));
        }
    }
    float *lse = a->lse + (b * a->n_head + h) * a->seq_len + first_query;
    for (size_t r = 0; r < x.n_queries; r++) {
        lse[r] = x.top[r] + pm_logf(x.sum[r]);
        for (size_t d = 0; d < a->head_dim; d++)
            x.out[r * out_stride + d] /= x.sum[r];
    }
    return FSDP_OK;
}

/* The last blocks of queries see the most keys: they come first, so that no thread is left with a
 * long one at the end. */
static fsdp_status attention_tile(const void *args, size_t tile)
{
    const attention_tiles *j = args;
    const size_t n_rows = j->a->batch * j->a->n_head;
    const size_t block = j->n_blocks - 1 - tile / n_rows, row = tile % n_rows;
    return attention_block(j, row / j->a->n_head, row % j->a->n_head, block * BLOCK);
}

fsdp_status attention_tiled(const attention_args *a, int n_threads, gemm_fn gemm)
{
    if (a->batch == 0 || a->seq_len == 0 || a->n_head == 0 || a->head_dim == 0)
        return FSDP_OK;
    FSDP_ASSERT(a->n_kv_head > 0 && a->n_head % a->n_kv_head == 0);
    const attention_tiles job = {a, gemm, tiles_of(a->seq_len, BLOCK)};
    const size_t macs = a->batch * a->n_head * a->seq_len * a->seq_len * a->head_dim;
    n_threads = threads_for(n_threads, macs, MIN_PARALLEL_MACS);
    return tiles_run(n_threads, a->batch * a->n_head * job.n_blocks, attention_tile, &job);
}

/* ---- backward ------------------------------------------------------------------------------- */

typedef struct attention_backward_tiles {
    const attention_backward_args *a;
    gemm_fn gemm;
} attention_backward_tiles;

/* Pointers of one pair of blocks. */
typedef struct block_pair {
    size_t n_queries, n_keys, first_query, first_key;
    const float *q, *k, *v, *d_out, *lse, *delta;
    float *d_q, *d_k, *d_v;
} block_pair;

/* d_scores = p * (d_p - delta) * scale. Rows are BLOCK wide; columns that are not seen become 0. */
static void softmax_backward(const attention_backward_args *a, const block_pair *x, const float *p,
                             float *d_scores)
{
    for (size_t r = 0; r < x->n_queries; r++) {
        const size_t width = row_extent_of(x->first_query + r, x->first_key, x->n_keys).width;
        const float *p_row = p + r * BLOCK;
        float *d_row = d_scores + r * BLOCK;
        for (size_t c = 0; c < width; c += LANES)
            for (size_t l = 0; l < LANES; l++)
                d_row[c + l] = p_row[c + l] * (d_row[c + l] - x->delta[r]) * a->scale;
        clear_from(d_row, width);
    }
}

/* p = softmax of one pair of blocks, made anew from lse. Rows are BLOCK wide. */
static fsdp_status softmax_again(const attention_backward_args *a, gemm_fn gemm,
                                 const block_pair *x, float *p)
{
    TRY(gemm(&(gemm_args){.c = p,
                          .a = x->q,
                          .b = x->k,
                          .m = x->n_queries,
                          .n = x->n_keys,
                          .k = a->head_dim,
                          .ldc = BLOCK,
                          .lda = a->q_stride,
                          .ldb = a->k_stride,
                          .trans_b = true}));
    for (size_t r = 0; r < x->n_queries; r++) {
        const row_extent row = row_extent_of(x->first_query + r, x->first_key, x->n_keys);
        scale_and_mask(p + r * BLOCK, row, a->scale);
        exp_row(p + r * BLOCK, row, x->lse[r]);
    }
    return FSDP_OK;
}

static fsdp_status pair_backward(const attention_backward_args *a, gemm_fn gemm,
                                 const block_pair *x)
{
    const size_t out_stride = a->n_head * a->head_dim, width = a->head_dim;
    _Alignas(64) float p[BLOCK * BLOCK], d_scores[BLOCK * BLOCK];
    TRY(softmax_again(a, gemm, x, p));
    TRY(gemm(&(gemm_args){.c = x->d_v,
                          .a = p,
                          .b = x->d_out,
                          .m = x->n_keys,
                          .n = width,
                          .k = x->n_queries,
                          .ldc = a->v_stride,
                          .lda = BLOCK,
                          .ldb = out_stride,
                          .trans_a = true,
                          .accumulate = true}));
    TRY(gemm(&(gemm_args){.c = d_scores,
                          .a = x->d_out,
                          .b = x->v,
                          .m = x->n_queries,
                          .n = x->n_keys,
                          .k = width,
                          .ldc = BLOCK,
                          .lda = out_stride,
                          .ldb = a->v_stride,
                          .trans_b = true}));
    softmax_backward(a, x, p, d_scores);
    TRY(gemm(&(gemm_args){.c = x->d_q,
                          .a = d_scores,
                          .b = x->k,
                          .m = x->n_queries,
                          .n = width,
                          .k = x->n_keys,
                          .ldc = a->q_stride,
                          .lda = BLOCK,
                          .ldb = a->k_stride,
                          .accumulate = x->first_key > 0}));
    return gemm(&(gemm_args){.c = x->d_k,
                             .a = d_scores,
                             .b = x->q,
                             .m = x->n_keys,
                             .n = width,
                             .k = x->n_queries,
                             .ldc = a->k_stride,
                             .lda = BLOCK,
                             .ldb = a->q_stride,
                             .trans_a = true,
                             .accumulate = true});
}

/* One block of queries of one head against all the keys it sees, in order. */
static fsdp_status query_block_backward(const attention_backward_tiles *j, size_t b, size_t h,
                                        size_t query)
{
    const attention_backward_args *a = j->a;
    const size_t T = a->seq_len, width = a->head_dim, out_stride = a->n_head * width;
    const size_t kv_head = h / (a->n_head / a->n_kv_head), n_queries = min_size(BLOCK, T - query);
    const float *d_out = a->d_out + (b * T + query) * out_stride + h * width;
    const float *out = a->out + (b * T + query) * out_stride + h * width;
    float delta[BLOCK]; /* d_out . out by row */
    for (size_t r = 0; r < n_queries; r++)
        delta[r] = vec_dot(d_out + r * out_stride, out + r * out_stride, width);
    for (size_t key = 0; key <= query; key += BLOCK) {
        const size_t k_at = (b * T + key) * a->k_stride + kv_head * width;
        const size_t v_at = (b * T + key) * a->v_stride + kv_head * width;
        const bool diagonal = key == query;
        for (size_t begin = 0, end; begin < n_queries; begin = end) {
            end = part_end(begin, n_queries, diagonal);
            const size_t q_at = (b * T + query + begin) * a->q_stride + h * width;
            const block_pair pair = {
                .n_queries = end - begin,
                .n_keys = part_keys(end, min_size(BLOCK, T - key), diagonal),
                .first_query = query + begin,
                .first_key = key,
                .q = a->q + q_at,
                .k = a->k + k_at,
                .v = a->v + v_at,
                .d_out = d_out + begin * out_stride,
                .lse = a->lse + (b * a->n_head + h) * T + query + begin,
                .delta = delta + begin,
                .d_q = a->d_q + q_at,
                .d_k = a->d_k + k_at,
                .d_v = a->d_v + v_at,
            };
            TRY(pair_backward(a, j->gemm, &pair));
        }
    }
    return FSDP_OK;
}

/* One key/value head of one sequence: the query heads of its group in order, blocks of queries in
 * order. d_k and d_v are added up over them. */
static fsdp_status backward_tile(const void *args, size_t tile)
{
    const attention_backward_tiles *j = args;
    const attention_backward_args *a = j->a;
    const size_t b = tile / a->n_kv_head, kv_head = tile % a->n_kv_head;
    const size_t group = a->n_head / a->n_kv_head, width = a->head_dim;
    for (size_t t = b * a->seq_len; t < (b + 1) * a->seq_len; t++) {
        memset(a->d_k + t * a->k_stride + kv_head * width, 0, width * sizeof *a->d_k);
        memset(a->d_v + t * a->v_stride + kv_head * width, 0, width * sizeof *a->d_v);
    }
    for (size_t h = kv_head * group; h < (kv_head + 1) * group; h++)
        for (size_t query = 0; query < a->seq_len; query += BLOCK)
            TRY(query_block_backward(j, b, h, query));
    return FSDP_OK;
}

fsdp_status attention_backward_tiled(const attention_backward_args *a, int n_threads, gemm_fn gemm)
{
    if (a->batch == 0 || a->seq_len == 0 || a->n_head == 0 || a->head_dim == 0)
        return FSDP_OK;
    FSDP_ASSERT(a->n_kv_head > 0 && a->n_head % a->n_kv_head == 0);
    const attention_backward_tiles job = {a, gemm};
    const size_t macs = a->batch * a->n_head * a->seq_len * a->seq_len * a->head_dim;
    n_threads = threads_for(n_threads, macs, MIN_PARALLEL_MACS);
    return tiles_run(n_threads, a->batch * a->n_kv_head, backward_tile, &job);
}
