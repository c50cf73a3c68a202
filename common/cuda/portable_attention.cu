/* portable_attention.cu -- causal attention with the bits of cpu_attention.c over gemm_portable.c.
 * The order is the same: keys in blocks of 64; on the diagonal, a query multiplies the keys up to
 * the end of its strip of 32; products in order of the columns; the running softmax of
 * ops/row_softmax.h; sums in order of keys or queries.
 *
 * A warp computes one row: of a query in the forward pass and for d_q, of a key for d_k and d_v.
 * Lane l computes the scores of keys (or queries) l, l + 32, ... and stores them in shared memory.
 * Then it adds columns l, l + 32, ... of the row, in registers, over all scores in order; so
 * neighbouring lanes read neighbours. Only one warp computes a row, and writes it once, so there is
 * no scratch memory and there are no atomics. For heads wider than 256 columns, another block
 * computes the next 256 columns, and computes the scores again.
 *
 * Backward recomputes scores and d_out . out whenever it needs them.
 * [Dao et al. 2022 (FlashAttention), alg. 1 and 4] */
#include "common/cuda/kernels.h"
#include "common/cuda/launch.h"
#include "common/cuda/reduce.h"
#include "common/ops/row_softmax.h"

enum { WARPS = 4, BLOCK = 64, STRIP = 32, PIECE = 256, PER_LANE = PIECE / WARP_LANES };
enum { THREADS = WARPS * WARP_LANES };

/* The row of a warp: row t of head h in sequence b. */
typedef struct warp_row {
    size_t b, h, t;
} warp_row;

static __device__ inline unsigned warp_of_block(void)
{
    return threadIdx.x / WARP_LANES;
}

/* The first of the columns that this lane adds. */
static __device__ inline size_t first_column(void)
{
    return (size_t)blockIdx.y * PIECE + threadIdx.x % WARP_LANES;
}

/* If there is no row for this warp, b is the number of sequences. */
static __device__ inline warp_row row_of_warp(const attention_shape *x, size_t n_head)
{
    const size_t row = (size_t)blockIdx.x * WARPS + warp_of_block(), T = x->seq_len;
    const size_t b = row / T / n_head;
    const warp_row w = {b < x->batch ? b : x->batch, row / T % n_head, row % T};
    return w;
}

/* The number of keys from first_key on that are multiplied for a query. */
static __device__ inline size_t keys_for(const attention_shape *x, size_t query, size_t first_key)
{
    const size_t left = x->seq_len - first_key, in_block = query - first_key;
    const size_t n = in_block < BLOCK ? in_block / STRIP * STRIP + STRIP : (size_t)BLOCK;
    return n < left ? n : left;
}

/* The dot product of a and b. Terms are added in order, unlike in row_dot. */
static __device__ inline float product(const void *a, const void *b, size_t n, dtype type)
{
    float sum = 0.0f;
    for (size_t d = 0; d < n; d++)
        sum += row_load(a, d, type) * row_load(b, d, type);
    return sum;
}

/* Rows that are each multiplied by a factor and added. */
typedef struct weighted_rows {
    const float *factor; /* [n] */
    const void *rows;    /* [n,width], stride apart */
    size_t n, width, stride;
} weighted_rows;

/* sum[i] += factor[r] * rows[r,c] for all r; c: the columns of this lane. */
static __device__ inline void add_rows(float *sum, const weighted_rows *x, dtype type)
{
    for (size_t r = 0; r < x->n; r++)
        for (size_t i = 0; i < PER_LANE; i++) {
            const size_t c = first_column() + i * WARP_LANES;
            if (c < x->width)
                sum[i] += x->factor[r] * row_load(x->rows, r * x->stride + c, type);
        }
}

/* out[at + c] = sum[i] / divisor */
static __device__ inline void store_columns(void *out, size_t at, const float *sum, float divisor,
                                            size_t width, dtype type)
{
    for (size_t i = 0; i < PER_LANE; i++)
        if (first_column() + i * WARP_LANES < width)
            divide_row(out, at + first_column() + i * WARP_LANES, sum + i, 1, divisor, type);
}

static dim3 rows_by_pieces(const attention_shape *x, size_t n_head, size_t width)
{
    const size_t rows = x->batch * n_head * x->seq_len;
    return dim3(groups_of(rows, WARPS), groups_of(width, PIECE));
}

/* ---- forward --------------------------------------------------------------------------------- */

/* Turn the scores p of a block of keys into exponentials, as softmax_row does. Returns the factor
 * for the values accumulated before. Every lane computes the same maximum and sum. */
static __device__ inline float softmax_by_lanes(float *p, row_extent keys, float *top, float *sum,
                                                bool first)
{
    __syncwarp((unsigned)ALL_LANES);
    const float new_top = softmax_top(p, keys, *top, first);
    __syncwarp((unsigned)ALL_LANES);
    for (size_t c = threadIdx.x % WARP_LANES; c < keys.end; c += WARP_LANES)
        p[c] = c < keys.width ? pm_expf_upto40(p[c] - new_top) : 0.0f;
    __syncwarp((unsigned)ALL_LANES);
    return softmax_carry(p, keys, new_top, top, sum, first);
}

static __device__ inline void attention_row(const attention_args *a, float *p, const warp_row *w,
                                            dtype type)
{
    const attention_shape *x = &a->shape;
    const size_t D = x->head_dim, Dv = x->v_head_dim, kv = w->h / (x->n_head / x->n_kv_head);
    const void *q = row_at(a->q, query_element(x, x->q_stride, w->b, w->t, w->h), type);
    float top = 0.0f, sum = 0.0f, out[PER_LANE] = {0};
    for (size_t first = 0; first <= w->t; first += BLOCK) {
        const void *k = row_at(a->k, query_element(x, x->k_stride, w->b, first, kv), type);
        const void *v = row_at(a->v, value_element(x, x->v_stride, w->b, first, kv), type);
        const size_t n_keys = keys_for(x, w->t, first);
        const row_extent keys = row_extent_of(w->t, first, n_keys);
        const weighted_rows values = {p, v, n_keys, Dv, x->v_stride};
        for (size_t c = threadIdx.x % WARP_LANES; c < keys.width; c += WARP_LANES)
            p[c] = c < keys.n_seen
                       ? product(q, row_at(k, c * x->k_stride, type), D, type) * x->scale
                       : MASKED;
        const float keep = softmax_by_lanes(p, keys, &top, &sum, first == 0);
        for (size_t i = 0; i < PER_LANE && first > 0; i++)
            out[i] *= keep;
        add_rows(out, &values, type);
        __syncwarp((unsigned)ALL_LANES); /* all lanes have read p before it is overwritten */
    }
    store_columns(a->out, value_element(x, x->n_head * Dv, w->b, w->t, w->h), out, sum, Dv, type);
    if (first_column() == 0)
        a->lse[(w->b * x->n_head + w->h) * x->seq_len + w->t] = top + pm_logf(sum);
}

__global__ void attention_kernel(attention_args a)
{
    __shared__ float scores[WARPS][BLOCK];
    const warp_row w = row_of_warp(&a.shape, a.shape.n_head);
    if (w.b < a.shape.batch)
        BY_TYPE(attention_row, a.shape.type, &a, scores[warp_of_block()], &w);
}

OPERATION(portable, attention, attention_kernel,
          rows_by_pieces(&a->shape, a->shape.n_head, a->shape.v_head_dim), THREADS, *a)

/* ---- backward -------------------------------------------------------------------------------- */

/* One query and one key of its head. */
typedef struct pair {
    size_t b, h, query, key;
} pair;

/* The probability of a pair and the gradient of its score. */
typedef struct pair_scores {
    float p, d_score;
} pair_scores;

/* d_out . out of a query. */
static __device__ inline float delta_of(const attention_backward_args *a, const pair *x, dtype type)
{
    const size_t Dv = a->shape.v_head_dim;
    const size_t at = value_element(&a->shape, a->shape.n_head * Dv, x->b, x->query, x->h);
    return row_dot(row_at(a->d_out, at, type), row_at(a->out, at, type), Dv, type);
}

static __device__ inline pair_scores scores_of(const attention_backward_args *a, const pair *x,
                                               float delta, dtype type)
{
    const attention_shape *shape = &a->shape;
    const size_t D = shape->head_dim, Dv = shape->v_head_dim;
    const size_t kv = x->h / (shape->n_head / shape->n_kv_head);
    const size_t first = x->key / BLOCK * BLOCK, c = x->key - first;
    const row_extent keys = row_extent_of(x->query, first, keys_for(shape, x->query, first));
    const size_t q_at = query_element(shape, shape->q_stride, x->b, x->query, x->h);
    const size_t k_at = query_element(shape, shape->k_stride, x->b, x->key, kv);
    const size_t v_at = value_element(shape, shape->v_stride, x->b, x->key, kv);
    const size_t out_at = value_element(shape, shape->n_head * Dv, x->b, x->query, x->h);
    const float lse = a->lse[(x->b * shape->n_head + x->h) * shape->seq_len + x->query];
    pair_scores y = {0.0f, 0.0f};
    if (c >= keys.width)
        return y;
    const float score =
        c < keys.n_seen
            ? product(row_at(a->q, q_at, type), row_at(a->k, k_at, type), D, type) * shape->scale
            : MASKED;
    const float d_p = product(row_at(a->d_out, out_at, type), row_at(a->v, v_at, type), Dv, type);
    y.p = pm_expf_upto40(score - lse);
    y.d_score = y.p * (d_p - delta) * shape->scale;
    return y;
}

static __device__ inline void d_query_row(const attention_backward_args *a, float *d_score,
                                          const warp_row *w, dtype type)
{
    const attention_shape *x = &a->shape;
    const size_t kv = w->h / (x->n_head / x->n_kv_head);
    pair pair_ = {w->b, w->h, w->t, 0};
    const float delta = delta_of(a, &pair_, type);
    float d_q[PER_LANE] = {0};
    for (size_t first = 0; first <= w->t; first += BLOCK) {
        const void *k = row_at(a->k, query_element(x, x->k_stride, w->b, first, kv), type);
        const size_t n_keys = keys_for(x, w->t, first);
        const weighted_rows keys = {d_score, k, n_keys, x->head_dim, x->k_stride};
        for (size_t c = threadIdx.x % WARP_LANES; c < n_keys; c += WARP_LANES) {
            pair_.key = first + c;
            d_score[c] = scores_of(a, &pair_, delta, type).d_score;
        }
        __syncwarp((unsigned)ALL_LANES);
        add_rows(d_q, &keys, type);
        __syncwarp((unsigned)ALL_LANES);
    }
    store_columns(a->d_q, query_element(x, x->q_stride, w->b, w->t, w->h), d_q, 1.0f, x->head_dim,
                  type);
}

__global__ void d_query_kernel(attention_backward_args a)
{
    __shared__ float d_scores[WARPS][BLOCK];
    const warp_row w = row_of_warp(&a.shape, a.shape.n_head);
    if (w.b < a.shape.batch)
        BY_TYPE(d_query_row, a.shape.type, &a, d_scores[warp_of_block()], &w);
}

/* Scores of 32 queries with one key. */
typedef struct strip_scores {
    float p[WARP_LANES], d_score[WARP_LANES];
} strip_scores;

/* Add the part of query head of->h to the row of d_k and d_v. */
static __device__ inline void add_query_head(const attention_backward_args *a, strip_scores *scores,
                                             const pair *of, float *d_k, float *d_v, dtype type)
{
    const attention_shape *x = &a->shape;
    const size_t D = x->head_dim, Dv = x->v_head_dim, out_stride = x->n_head * Dv;
    const size_t lane = threadIdx.x % WARP_LANES;
    pair pair_ = *of;
    for (size_t first = of->key / STRIP * STRIP; first < x->seq_len; first += STRIP) {
        const size_t n = x->seq_len - first < STRIP ? x->seq_len - first : (size_t)STRIP;
        const size_t q_at = query_element(x, x->q_stride, of->b, first, of->h);
        const size_t out_at = value_element(x, out_stride, of->b, first, of->h);
        const weighted_rows queries = {scores->d_score, row_at(a->q, q_at, type), n, D,
                                       x->q_stride};
        const weighted_rows d_outs = {scores->p, row_at(a->d_out, out_at, type), n, Dv, out_stride};
        pair_.query = first + lane;
        if (lane < n) {
            const pair_scores y = scores_of(a, &pair_, delta_of(a, &pair_, type), type);
            scores->p[lane] = y.p;
            scores->d_score[lane] = y.d_score;
        }
        __syncwarp((unsigned)ALL_LANES);
        add_rows(d_v, &d_outs, type);
        add_rows(d_k, &queries, type);
        __syncwarp((unsigned)ALL_LANES);
    }
}

static __device__ inline void d_key_row(const attention_backward_args *a, strip_scores *scores,
                                        const warp_row *w, dtype type)
{
    const attention_shape *x = &a->shape;
    const size_t group = x->n_head / x->n_kv_head;
    float d_k[PER_LANE] = {0}, d_v[PER_LANE] = {0};
    pair of = {w->b, w->h * group, 0, w->t};
    for (; of.h < (w->h + 1) * group; of.h++)
        add_query_head(a, scores, &of, d_k, d_v, type);
    const dtype stored = a->wide_kv ? DTYPE_F32 : type;
    store_columns(a->d_k, query_element(x, x->k_stride, w->b, w->t, w->h), d_k, 1.0f, x->head_dim,
                  stored);
    store_columns(a->d_v, value_element(x, x->v_stride, w->b, w->t, w->h), d_v, 1.0f, x->v_head_dim,
                  stored);
}

__global__ void d_key_kernel(attention_backward_args a)
{
    __shared__ strip_scores scores[WARPS];
    const warp_row w = row_of_warp(&a.shape, a.shape.n_kv_head);
    if (w.b < a.shape.batch)
        BY_TYPE(d_key_row, a.shape.type, &a, &scores[warp_of_block()], &w);
}

static cudaError_t attention_backward_issue(stream *s, const void *args)
{
    const attention_backward_args *a = (const attention_backward_args *)args;
    const attention_shape *x = &a->shape;
    const size_t D = x->head_dim, widest = D > x->v_head_dim ? D : x->v_head_dim;
    const cudaError_t error =
        LAUNCH(d_query_kernel, rows_by_pieces(x, x->n_head, D), THREADS, s, *a);
    if (error != cudaSuccess)
        return error;
    return LAUNCH(d_key_kernel, rows_by_pieces(x, x->n_kv_head, widest), THREADS, s, *a);
}

ISSUED(portable, attention_backward)
