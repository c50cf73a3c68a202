/* fast_attention_backward.cu -- causal attention by tiles, backward. See attention_tiles.h.
 *
 * The first kernel computes delta = d_out . out for each query. With, for a query and a key,
 *     p = exp(scale q . k - lse)       d_s = p (d_out . v - delta) scale
 * the gradients are sums over the other side:
 *     d_q = sum over keys of d_s k     d_k = sum over queries of d_s q     d_v = ... of p d_out
 *
 * The same functions compute all three. A block has 16 rows of its own side for each of its warps:
 * queries for d_q, keys for d_k and d_v. These rows stay in shared memory, while the block loops
 * over tiles of the other side in order. The lanes of a warp compute p or d_s for the warp's 16
 * rows and a tile, store them in shared memory (in bf16 rounded), and add their product with the
 * tile to their sums. Only one warp adds to a row of a gradient, and in one order. So there are no
 * atomics, and equal arguments give equal bits. The price: scores are computed three times.
 *
 * A block of keys adds the queries of all heads that share these keys, head by head.
 * [Dao 2023 (FlashAttention-2), alg. 2] */
#include "common/cuda/attention_tiles.h"
#include "common/cuda/kernels.h"

typedef enum gradient { OF_QUERIES, OF_KEYS, OF_VALUES } gradient;

typedef struct backward_call {
    attention_backward_args args;
    float *delta; /* [B,n_head,T] */
    bool wide;
} backward_call;

/* ---- delta ----------------------------------------------------------------------------------- */

/* A warp computes one row of d_out and out; lane l takes elements l, l + 32, ... */
__global__ void attention_delta_kernel(backward_call call)
{
    const attention_shape *x = &call.args.shape;
    const size_t i = global_thread() / WARP_LANES, T = x->seq_len, Dv = x->v_head_dim;
    if (i >= x->batch * x->n_head * T)
        return;
    const size_t t = i % T, h = i / T % x->n_head, b = i / T / x->n_head;
    const size_t at = ((b * T + t) * x->n_head + h) * Dv;
    float sum = 0.0f;
    for (size_t d = threadIdx.x % WARP_LANES; d < Dv; d += WARP_LANES)
        sum = fmaf(row_load(call.args.d_out, at + d, x->type),
                   row_load(call.args.out, at + d, x->type), sum);
    sum = warp_sum(sum);
    if (threadIdx.x % WARP_LANES == 0)
        call.delta[i] = sum;
}

/* ---- gradients ------------------------------------------------------------------------------- */

/* The shared memory of a block: its own rows, a tile of the other side, and this warp's parts. */
typedef struct backward_tiles {
    tile_place own[2], other[2]; /* q and d_out, or k and v */
    char *my_own[2], *my_p;
} backward_tiles;

static __device__ __forceinline__ backward_tiles backward_tiles_of(int head, int warps, int others,
                                                                   bool wide, dtype type)
{
    const int own_bytes = tile_bytes(MMA_ROWS * warps, head, type);
    const int other_bytes = tile_bytes(others, head, type), ld = tile_ld(head, type);
    const int warp = (int)threadIdx.x / WARP_LANES;
    backward_tiles t;
    char *at = tile_memory();
    for (int i = 0; i < 2; i++, at += own_bytes) {
        t.own[i] = (tile_place){at, ld, MMA_ROWS * warps, wide};
        t.my_own[i] = at + warp * tile_bytes(MMA_ROWS, head, type);
    }
    for (int i = 0; i < 2; i++, at += other_bytes)
        t.other[i] = (tile_place){at, ld, others, wide};
    t.my_p = at + warp * tile_bytes(MMA_ROWS, others, type);
    return t;
}

/* A warp's 16 rows from my_first on, and a tile of the other side from other_first on. */
typedef struct pair_of_tiles {
    const float *lse, *delta; /* of the head's queries, [T] */
    size_t my_first, other_first, seq_len;
    float scale;
    char *p;
    int others, depth[2]; /* depth of the products q k (a head's width) and d_out v, padded */
} pair_of_tiles;

/* Store p or d_s in x.p; s: products of q and k; d_p: products of d_out and v. */
static __device__ __forceinline__ void scores_store(float (*s)[4], float (*d_p)[4], pair_of_tiles x,
                                                    gradient of, dtype type)
{
#pragma unroll
    for (int n = 0; n < x.others / MMA_COLS; n++)
        for (int half = 0; half < 2; half++) {
            float value[2];
            for (int j = 0; j < 2; j++) {
                const int i = 2 * half + j;
                const size_t mine = x.my_first + lane_row(i),
                             other = x.other_first + lane_col(n, i);
                const size_t query = of == OF_QUERIES ? mine : other;
                const bool seen = (of == OF_QUERIES ? other : mine) <= query && query < x.seq_len;
                const float p = seen ? expf(s[n][i] * x.scale - x.lse[query]) : 0.0f;
                value[j] = of == OF_VALUES ? p
                           : seen          ? p * (d_p[n][i] - x.delta[query]) * x.scale
                                           : 0.0f;
            }
            tile_store_pair(x.p,
                            lane_row(2 * half) * tile_ld(x.others, type) + lane_col(n, 2 * half),
                            value[0], value[1], type);
        }
}

/* Compute the scores of this warp and one tile of the other side, and add to the sums. */
static __device__ __forceinline__ void add_tile(float (*sum)[4], int head, const backward_tiles *t,
                                                pair_of_tiles x, gradient of, dtype type)
{
    const int n_scores = x.others / MMA_COLS;
    float s[SCORE_TILES][4], d_p[SCORE_TILES][4];
    tiles_clear(s, n_scores);
    tiles_clear(d_p, n_scores);
    warp_product(s, n_scores,
                 (product){t->my_own[0], t->other[0].tile, t->own[0].ld, t->other[0].ld, x.depth[0],
                           n_scores, true},
                 type);
    if (of != OF_VALUES)
        warp_product(d_p, n_scores,
                     (product){t->my_own[1], t->other[1].tile, t->own[1].ld, t->other[1].ld,
                               x.depth[1], n_scores, true},
                     type);
    scores_store(s, d_p, x, of, type);
    __syncwarp(); /* p is complete */
    const tile_place other = t->other[of == OF_VALUES];
    warp_product(sum, head / MMA_COLS,
                 (product){x.p, other.tile, tile_ld(x.others, type), other.ld, x.others,
                           x.depth[of == OF_VALUES] / MMA_COLS, false},
                 type);
}

/* One side's rows of a head and sequence: q and d_out, or k and v. */
typedef struct side {
    head_rows rows[2];
} side;

static __device__ __forceinline__ side queries_of(const attention_backward_args *a, size_t b,
                                                  size_t h)
{
    const attention_shape *x = &a->shape;
    return (side){{query_rows_of(x, a->q, x->q_stride, b, h),
                   value_rows_of(x, a->d_out, x->n_head * x->v_head_dim, b, h)}};
}

static __device__ __forceinline__ side keys_of(const attention_backward_args *a, size_t b, size_t h)
{
    const attention_shape *x = &a->shape;
    return (side){
        {query_rows_of(x, a->k, x->k_stride, b, h), value_rows_of(x, a->v, x->v_stride, b, h)}};
}

static __device__ __forceinline__ head_rows gradient_of(const attention_backward_args *a,
                                                        gradient of, size_t b, size_t h)
{
    const attention_shape *x = &a->shape;
    return of == OF_QUERIES ? query_rows_of(x, a->d_q, x->q_stride, b, h)
           : of == OF_KEYS  ? query_rows_of(x, a->d_k, x->k_stride, b, h)
                            : value_rows_of(x, a->d_v, x->v_stride, b, h);
}

/* The same in an fp32 array of d_k or d_v. */
static __device__ __forceinline__ head_rows wide_gradient_of(const attention_backward_args *a,
                                                             gradient of, size_t b, size_t h)
{
    head_rows to = gradient_of(a, of, b, h);
    const char *array = (const char *)(of == OF_KEYS ? a->d_k : a->d_v);
    to.x = array + ((const char *)to.x - array) * 2;
    return to;
}

/* The constants of a kernel. */
typedef struct layout {
    int head, warps, others; /* widest head; warps of a block; rows of a tile of the other side */
    gradient of;
} layout;

/* Add all tiles of one head of the other side: for a block of queries, the keys up to the block's
 * end; for a block of keys, the queries from the block's beginning on. */
static __device__ __forceinline__ void add_head(float (*sum)[4], const backward_tiles *t,
                                                side other, pair_of_tiles x, layout l, dtype type)
{
    const size_t first = x.my_first - threadIdx.x / WARP_LANES * MMA_ROWS;
    const size_t end = first + MMA_ROWS * l.warps, T = x.seq_len;
    const bool of_queries = l.of == OF_QUERIES;
    for (size_t at = of_queries ? 0 : first / l.others * l.others; at < T; at += l.others) {
        if (of_queries && at >= end)
            return;
        __syncthreads(); /* the previous tiles are no longer used */
        tile_load(t->other[0], other.rows[0], at, type);
        tile_load(t->other[1], other.rows[1], at, type);
        __syncthreads();
        x.other_first = at;
        /* a warp skips a tile that the mask hides from all its rows */
        if (of_queries ? at < x.my_first + MMA_ROWS : at + l.others > x.my_first)
            add_tile(sum, l.head, t, x, l.of, type);
    }
}

/* The work of a block. */
static __device__ __forceinline__ void attend_backward(const backward_call *call, layout l,
                                                       dtype type)
{
    const attention_backward_args *a = &call->args;
    const attention_shape *x = &a->shape;
    const bool of_queries = l.of == OF_QUERIES;
    const size_t group = x->n_head / x->n_kv_head, rows = MMA_ROWS * l.warps;
    const size_t heads = of_queries ? x->n_head : x->n_kv_head, n_heads = x->batch * heads;
    const size_t n_blocks = (x->seq_len + rows - 1) / rows, number = blockIdx.x / n_heads;
    const size_t b = blockIdx.x % n_heads / heads, h = blockIdx.x % heads;
    /* start the blocks with the most work first */
    const size_t first = (of_queries ? n_blocks - 1 - number : number) * rows;
    const backward_tiles t = backward_tiles_of(l.head, l.warps, l.others, call->wide, type);
    const size_t my_first = first + threadIdx.x / WARP_LANES * MMA_ROWS;
    pair_of_tiles pair = {NULL,   NULL,       my_first,
                          0,      x->seq_len, x->scale,
                          t.my_p, l.others,   {padded(x->head_dim), padded(x->v_head_dim)}};
    const side own = of_queries ? queries_of(a, b, h) : keys_of(a, b, h);
    float sum[HEAD_TILES][4];
    tiles_clear(sum, l.head / MMA_COLS);
    tile_load(t.own[0], own.rows[0], first, type);
    if (l.of != OF_VALUES)
        tile_load(t.own[1], own.rows[1], first, type);
    for (size_t i = 0; i < (of_queries ? 1 : group); i++) {
        const size_t query_head = of_queries ? h : h * group + i;
        const size_t at = (b * x->n_head + query_head) * x->seq_len;
        pair.lse = a->lse + at;
        pair.delta = call->delta + at;
        const side other = of_queries ? keys_of(a, b, h / group) : queries_of(a, b, query_head);
        add_head(sum, &t, other, pair, l, type);
    }
    const float one[2] = {1.0f, 1.0f};
    if (type == DTYPE_BF16 && a->wide_kv && !of_queries)
        rows_store(wide_gradient_of(a, l.of, b, h), my_first, sum, l.head / MMA_COLS, one,
                   DTYPE_F32);
    else
        rows_store(gradient_of(a, l.of, b, h), my_first, sum, l.head / MMA_COLS, one, type);
}

/* ---- kernels --------------------------------------------------------------------------------- */

static cudaError_t delta_issue(stream *s, const backward_call *call)
{
    const attention_shape *x = &call->args.shape;
    return LAUNCH(attention_delta_kernel, blocks_of(x->batch * x->n_head * x->seq_len * WARP_LANES),
                  BLOCK_THREADS, s, *call);
}

/* The kernel of one gradient, for heads of up to `head` elements. */
#define KERNEL(name, head, warps, others, type, of)                                                \
    __global__ void __launch_bounds__(WARP_LANES *warps) name(backward_call call)                  \
    {                                                                                              \
        attend_backward(&call, (layout){head, warps, others, of}, type);                           \
    }

/* The kernels of all three gradients, and the function that launches them. Tiles fit TILE_BYTES. */
#define BACKWARD(name, head, warps, others, type)                                                  \
    KERNEL(attention_d_q_##name, head, warps, others, type, OF_QUERIES)                            \
    KERNEL(attention_d_k_##name, head, warps, others, type, OF_KEYS)                               \
    KERNEL(attention_d_v_##name, head, warps, others, type, OF_VALUES)                             \
    static cudaError_t backward_##name##_issue(stream *s, const void *args)                        \
    {                                                                                              \
        const backward_call *call = (const backward_call *)args;                                   \
        const attention_shape *x = &call->args.shape;                                              \
        const size_t n_blocks = groups_of(x->seq_len, MMA_ROWS * warps) * x->batch;                \
        const unsigned q = (unsigned)(n_blocks * x->n_head), threads = WARP_LANES * warps;         \
        const unsigned kv = (unsigned)(n_blocks * x->n_kv_head);                                   \
        cudaError_t error = delta_issue(s, call);                                                  \
        if (error == cudaSuccess)                                                                  \
            error = LAUNCH(attention_d_q_##name, q, threads, s, *call);                            \
        if (error == cudaSuccess)                                                                  \
            error = LAUNCH(attention_d_k_##name, kv, threads, s, *call);                           \
        return error == cudaSuccess ? LAUNCH(attention_d_v_##name, kv, threads, s, *call) : error; \
    }

BACKWARD(f32_64, 64, 4, 16, DTYPE_F32)     /* 48640 bytes */
BACKWARD(f32_128, 128, 2, 8, DTYPE_F32)    /* 43776 */
BACKWARD(bf16_64, 64, 4, 64, DTYPE_BF16)   /* 46080 */
BACKWARD(bf16_128, 128, 4, 16, DTYPE_BF16) /* 46592 */
BACKWARD(bf16_256, 256, 1, 16, DTYPE_BF16) /* 34560 */

/* Indexed by attention_tiling. */
static const cuda_issue_fn ISSUES[ATTENTION_TILINGS] = {
    backward_f32_64_issue, backward_f32_128_issue, backward_bf16_64_issue, backward_bf16_128_issue,
    backward_bf16_256_issue};

fsdp_status fast_attention_backward(stream *s, const attention_backward_args *a)
{
    const attention_shape *x = &a->shape;
    const int tiling = attention_tiling(x);
    if (tiling < 0)
        return portable_attention_backward(s, a);
    const void *const arrays[] = {a->q, a->k, a->v, a->d_out};
    backward_call call = {*a, NULL, all_wide(x, arrays, 4)};
    op_work work = attention_backward_work(a);
    const size_t elems = x->batch * x->n_head * x->seq_len;
    if (work.ends)
        return work.status;
    TRY(device_alloc_f32(s, MEM_OTHER, elems, "attention_backward delta", &call.delta));
    op_writes(&work, call.delta, elems * sizeof *call.delta);
    fsdp_status status = cuda_issue(s, ISSUES[tiling], &call, work);
    device_free(s, call.delta);
    return status;
}
