/* fast_attention.cu -- causal attention by tiles, forward. See attention_tiles.h.
 *
 * A block has 16 queries of one head for each of its warps, and keeps them in shared memory. Its
 * warps loop together over tiles of keys and values, which the block loads in order. For each tile,
 * the lanes of a warp hold the scores of its 16 queries; scores beyond the diagonal are masked.
 * Four neighbouring lanes share a row and exchange its maximum. Probabilities go through shared
 * memory (in bf16 rounded) and are multiplied by v:
 *     s = scale q k^T;  top' = max(top, max s);  p = exp(s - top')
 *     out = out exp(top - top') + p v;  sum likewise
 * At the end, out /= sum and lse = top + log(sum). The last blocks of queries have the most keys,
 * so they are started first.
 * [Dao 2023 (FlashAttention-2), alg. 1] */
#include "common/cuda/attention_tiles.h"
#include "common/cuda/kernels.h"

/* The running softmax of a warp's 16 queries. A lane holds rows g and g + 8 (mma.h). */
typedef struct query_rows {
    float top[2], sum[2]; /* top: of the whole row; sum: only of this lane's columns */
} query_rows;

/* A tile of scores: the first row sees `visible` of its keys, each later row one more. */
typedef struct score_tile {
    char *p; /* the probabilities, [16,keys] */
    long visible;
    float scale;
    int keys;
    dtype type;
} score_tile;

/* Turn the scores of one of a lane's two rows (`half`) into probabilities in x.p, and update the
 * row's maximum and sum. */
static __device__ __forceinline__ void softmax_half(float (*s)[4], query_rows *rows, int half,
                                                    score_tile x)
{
    float top = MASKED, sum = 0.0f;
#pragma unroll
    for (int n = 0; n < x.keys / MMA_COLS; n++)
        for (int i = 2 * half; i < 2 * half + 2; i++) {
            s[n][i] = lane_col(n, i) < x.visible + lane_row(i) ? s[n][i] * x.scale : MASKED;
            top = larger(s[n][i], top);
        }
    top = larger(quad_max(top), rows->top[half]);
#pragma unroll
    for (int n = 0; n < x.keys / MMA_COLS; n++) {
        const float left = expf(s[n][2 * half] - top), right = expf(s[n][2 * half + 1] - top);
        const int at = lane_row(2 * half) * tile_ld(x.keys, x.type) + lane_col(n, 0);
        sum += left + right;
        tile_store_pair(x.p, at, left, right, x.type);
    }
    rows->sum[half] = fmaf(rows->sum[half], expf(rows->top[half] - top), sum);
    rows->top[half] = top;
}

/* Do this for both rows of a lane, and rescale out to the new maxima. */
static __device__ __forceinline__ void softmax_step(float (*s)[4], query_rows *rows,
                                                    float (*out)[4], int n_tiles, score_tile x)
{
    const query_rows before = *rows;
    softmax_half(s, rows, 0, x);
    softmax_half(s, rows, 1, x);
    const float keep[2] = {expf(before.top[0] - rows->top[0]), expf(before.top[1] - rows->top[1])};
#pragma unroll
    for (int n = 0; n < n_tiles; n++)
        for (int i = 0; i < 4; i++)
            out[n][i] *= keep[i / 2];
}

typedef struct attention_call {
    attention_args args;
    bool wide;
} attention_call;

/* The shared memory of a block, and this warp's own parts of it. */
typedef struct forward_tiles {
    tile_place q, k, v;
    char *my_q, *my_p;
} forward_tiles;

static __device__ __forceinline__ forward_tiles forward_tiles_of(int head, int warps, int keys,
                                                                 bool wide, dtype type)
{
    const int ld = tile_ld(head, type), warp = (int)threadIdx.x / WARP_LANES;
    char *q = tile_memory(), *k = q + tile_bytes(MMA_ROWS * warps, head, type);
    char *v = k + tile_bytes(keys, head, type), *p = v + tile_bytes(keys, head, type);
    return (forward_tiles){{q, ld, MMA_ROWS * warps, wide},
                           {k, ld, keys, wide},
                           {v, ld, keys, wide},
                           q + warp * tile_bytes(MMA_ROWS, head, type),
                           p + warp * tile_bytes(MMA_ROWS, keys, type)};
}

/* The work of a block: `warps` warps, heads of up to `head` elements, `keys` keys at a time. */
static __device__ __forceinline__ void attend(const attention_call *call, int head, int warps,
                                              int keys, dtype type)
{
    const attention_args *a = &call->args;
    const attention_shape *x = &a->shape;
    const int queries = MMA_ROWS * warps, n_tiles = head / MMA_COLS;
    const size_t n_heads = x->batch * x->n_head, n_blocks = (x->seq_len + queries - 1) / queries;
    const size_t b = blockIdx.x % n_heads / x->n_head, h = blockIdx.x % x->n_head;
    const size_t kv = h / (x->n_head / x->n_kv_head), out_stride = x->n_head * x->v_head_dim;
    const size_t first = (n_blocks - 1 - blockIdx.x / n_heads) * queries;
    const size_t my_first = first + threadIdx.x / WARP_LANES * MMA_ROWS;
    const head_rows k_rows = query_rows_of(x, a->k, x->k_stride, b, kv);
    const head_rows v_rows = value_rows_of(x, a->v, x->v_stride, b, kv);
    const forward_tiles t = forward_tiles_of(head, warps, keys, call->wide, type);
    query_rows rows = {{MASKED, MASKED}, {0.0f, 0.0f}};
    float out[HEAD_TILES][4], s[SCORE_TILES][4];
    tiles_clear(out, n_tiles);
    tile_load(t.q, query_rows_of(x, a->q, x->q_stride, b, h), first, type);
    for (size_t key = 0; key < first + queries && key < x->seq_len; key += keys) {
        __syncthreads(); /* the previous tiles are no longer used */
        tile_load(t.k, k_rows, key, type);
        tile_load(t.v, v_rows, key, type);
        __syncthreads();
        if (key >= my_first + MMA_ROWS)
            continue; /* all these keys are beyond the diagonal for this warp */
        tiles_clear(s, keys / MMA_COLS);
        warp_product(
            s, keys / MMA_COLS,
            (product){t.my_q, t.k.tile, t.q.ld, t.k.ld, padded(x->head_dim), keys / MMA_COLS, true},
            type);
        softmax_step(s, &rows, out, n_tiles,
                     (score_tile){t.my_p, (long)my_first + 1 - (long)key, x->scale, keys, type});
        __syncwarp(); /* p is complete */
        warp_product(out, n_tiles,
                     (product){t.my_p, t.v.tile, tile_ld(keys, type), t.v.ld, keys,
                               padded(x->v_head_dim) / MMA_COLS, false},
                     type);
    }
    const float sum[2] = {quad_sum(rows.sum[0]), quad_sum(rows.sum[1])};
    const float by[2] = {1.0f / sum[0], 1.0f / sum[1]};
    rows_store(value_rows_of(x, a->out, out_stride, b, h), my_first, out, n_tiles, by, type);
    for (int half = 0; half < 2; half++) {
        const size_t query = my_first + lane_row(2 * half);
        if (threadIdx.x % 4 == 0 && query < x->seq_len)
            a->lse[(b * x->n_head + h) * x->seq_len + query] = rows.top[half] + logf(sum[half]);
    }
}

/* ---- kernels --------------------------------------------------------------------------------- */

/* A kernel for heads of up to `head` elements, and its launch. Its tiles fit TILE_BYTES. */
#define FORWARD(name, head, warps, keys, type)                                                     \
    __global__ void __launch_bounds__(WARP_LANES *warps) attention_##name(attention_call call)     \
    {                                                                                              \
        attend(&call, head, warps, keys, type);                                                    \
    }                                                                                              \
    static cudaError_t attention_##name##_issue(stream *s, const void *args)                       \
    {                                                                                              \
        const attention_call *call = (const attention_call *)args;                                 \
        const attention_shape *x = &call->args.shape;                                              \
        const size_t n_blocks = groups_of(x->seq_len, MMA_ROWS * warps);                           \
        return LAUNCH(attention_##name, (unsigned)(n_blocks * x->batch * x->n_head),               \
                      WARP_LANES * warps, s, *call);                                               \
    }

FORWARD(f32_64, 64, 4, 32, DTYPE_F32)     /* 44032 bytes */
FORWARD(f32_128, 128, 2, 16, DTYPE_F32)   /* 36352 */
FORWARD(bf16_64, 64, 4, 64, DTYPE_BF16)   /* 36864 */
FORWARD(bf16_128, 128, 4, 32, DTYPE_BF16) /* 39936 */
FORWARD(bf16_256, 256, 2, 16, DTYPE_BF16) /* 35328 */

/* Indexed by attention_tiling. */
static const cuda_issue_fn ISSUES[ATTENTION_TILINGS] = {
    attention_f32_64_issue, attention_f32_128_issue, attention_bf16_64_issue,
    attention_bf16_128_issue, attention_bf16_256_issue};

fsdp_status fast_attention(stream *s, const attention_args *a)
{
    const attention_shape *x = &a->shape;
    const int tiling = attention_tiling(x);
    if (tiling < 0)
        return portable_attention(s, a);
    const void *const arrays[] = {a->q, a->k, a->v};
    const attention_call call = {*a, all_wide(x, arrays, 3)};
    return cuda_issue(s, ISSUES[tiling], &call, attention_work(a));
}
