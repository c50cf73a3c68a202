/* embedding.cu -- token and position embeddings, with the CPU's bits (ops/row_elem.h), for both
 * tables. A block computes 256 columns of one position (b,t), so that its threads access
 * neighbours.
 *
 * Backward adds the rows of d_out at all positions of a token in order and without atomics. So it
 * first sorts the positions by token, in scratch memory: each CHUNK of positions on its own, where
 * a thread counts the keys that are smaller than its own, and then, if there are several chunks,
 * all of them: a thread looks up its key in each other chunk. */
#include "common/cuda/complaint.h"
#include "common/cuda/kernels.h"
#include "common/cuda/launch.h"
#include "common/cuda/reduce.h"
#include "common/ops/row_elem.h"

/* ---- forward --------------------------------------------------------------------------------- */

__global__ void embedding_kernel(embedding_args a, complaint_box *complaint)
{
    const block_place at = block_of(blocks_of(a.width));
    const size_t r = at.row, c = at.col * BLOCK_THREADS + threadIdx.x;
    if (c < a.width && number_fits(complaint, ABOUT_TOKEN, a.tokens[r], r, cut_all(a.cut, a.vocab)))
        BY_TYPE(embedding_row, a.type, &a, r, c, 1);
}

OPERATION(cuda, embedding, embedding_kernel, grid_of(a->batch * a->seq_len, blocks_of(a->width)),
          BLOCK_THREADS, *a, complaint_of(s))

/* ---- backward: positions by token ------------------------------------------------------------ */

static const size_t CHUNK = 1024; /* a multiple of BLOCK_THREADS */

/* Keys: the token above the position, so that keys in ascending order are positions by token. */
typedef struct embedding_job {
    embedding_backward_args args;
    size_t n;                   /* positions */
    uint64_t *in_chunks, *keys; /* [n] by chunk, [n]; the same array if there is one chunk */
    complaint_box *complaint;
} embedding_job;

static __device__ inline uint64_t key_at(const int32_t *tokens, size_t position)
{
    return (uint64_t)(uint32_t)tokens[position] << 32 | position;
}

static __device__ inline int32_t token_of(uint64_t key)
{
    return (int32_t)(key >> 32);
}

static __device__ inline size_t position_of(uint64_t key)
{
    return key & UINT32_MAX;
}

__global__ void sort_chunks_kernel(embedding_job j)
{
    __shared__ uint64_t keys[CHUNK];
    const size_t r = global_thread(), begin = r / CHUNK * CHUNK, n = smaller(j.n - begin, CHUNK);
    size_t n_below = 0;
    for (size_t i = threadIdx.x; i < n; i += BLOCK_THREADS)
        keys[i] = key_at(j.args.tokens, begin + i);
    __syncthreads();
    if (r >= j.n)
        return;
    for (size_t i = 0; i < n; i++)
        n_below += keys[i] < keys[r - begin];
    j.in_chunks[begin + n_below] = keys[r - begin];
}

__global__ void merge_chunks_kernel(embedding_job j)
{
    const size_t i = global_thread();
    if (i >= j.n)
        return;
    const uint64_t key = j.in_chunks[i];
    size_t n_below = i % CHUNK;
    for (size_t begin = 0; begin < j.n; begin += CHUNK) {
        size_t at = begin; /* the keys before it are smaller */
        for (size_t step = CHUNK; step > 0 && begin != i / CHUNK * CHUNK; step /= 2)
            if (at + step <= smaller(begin + CHUNK, j.n) && j.in_chunks[at + step - 1] < key)
                at += step;
        n_below += at - begin;
    }
    j.keys[n_below] = key;
}

/* ---- backward: sums -------------------------------------------------------------------------- */

enum { KEYS = 8 }; /* of a block; it adds those tokens whose first key is among them */

/* Add column c of all positions of the token that begins at keys[i]. The lanes of a warp look at 32
 * keys at a time. The element of d_wte is read and written once. */
static __device__ inline void add_token(const embedding_job *j, size_t i, size_t c, dtype type)
{
    const embedding_backward_args *a = &j->args;
    const int32_t token = token_of(j->keys[i]);
    const size_t lane = threadIdx.x % WARP_LANES, width = a->width;
    unsigned same = (unsigned)ALL_LANES;
    if (!number_fits(j->complaint, ABOUT_TOKEN, token, position_of(j->keys[i]),
                     cut_all(a->cut, a->vocab)) ||
        cut_place(a->cut, token) >= a->vocab)
        return;
    float *grad = a->d_wte + cut_place(a->cut, token) * width;
    float sum = c < width ? grad[c] : 0.0f;
    for (; same == (unsigned)ALL_LANES; i += WARP_LANES) {
        const bool is_same = i + lane < j->n && token_of(j->keys[i + lane]) == token;
        same = __ballot_sync((unsigned)ALL_LANES, is_same);
        for (size_t k = 0; k < WARP_LANES && (same >> k & 1) != 0 && c < width; k++)
            sum += row_load(a->d_out, position_of(j->keys[i + k]) * width + c, type);
    }
    if (c < width)
        grad[c] = sum;
}

/* A thread computes one element of d_wpe, in the order of the sequences. */
static __device__ inline void add_position(const embedding_backward_args *a, size_t i, dtype type)
{
    const size_t elems = a->seq_len * a->width;
    if (i >= elems)
        return;
    float sum = a->d_wpe[i];
    for (size_t b = 0; b < a->batch; b++)
        sum += row_load(a->d_out, b * elems + i, type);
    a->d_wpe[i] = sum;
}

/* The first n_blocks blocks are for d_wte, the others for d_wpe. */
__global__ void embedding_backward_kernel(embedding_job j, size_t n_blocks)
{
    const embedding_backward_args *a = &j.args;
    const block_place at = block_of(blocks_of(a->width));
    if (blockIdx.x >= n_blocks) {
        BY_TYPE(add_position, a->type, a, global_thread() - n_blocks * BLOCK_THREADS);
        return;
    }
    for (size_t i = at.row * KEYS; i < smaller((at.row + 1) * KEYS, j.n); i++)
        if (i == 0 || token_of(j.keys[i - 1]) != token_of(j.keys[i]))
            BY_TYPE(add_token, a->type, &j, i, at.col * BLOCK_THREADS + threadIdx.x);
}

static cudaError_t embedding_backward_issue(stream *s, const void *args)
{
    const embedding_job *j = (const embedding_job *)args;
    const embedding_backward_args *a = &j->args;
    const unsigned n_blocks = grid_of(groups_of(j->n, KEYS), blocks_of(a->width));
    const unsigned more = a->d_wpe ? blocks_of(a->seq_len * a->width) : 0;
    cudaError_t error = LAUNCH(sort_chunks_kernel, blocks_of(j->n), BLOCK_THREADS, s, *j);
    if (error == cudaSuccess && j->n > CHUNK)
        error = LAUNCH(merge_chunks_kernel, blocks_of(j->n), BLOCK_THREADS, s, *j);
    if (error != cudaSuccess)
        return error;
    return LAUNCH(embedding_backward_kernel, n_blocks + more, BLOCK_THREADS, s, *j,
                  (size_t)n_blocks);
}

fsdp_status cuda_embedding_backward(stream *s, const embedding_backward_args *a)
{
    op_work work = embedding_backward_work(a);
    embedding_job j = {*a, a->batch * a->seq_len, NULL, NULL, complaint_of(s)};
    const size_t bytes = (j.n > CHUNK ? 2 : 1) * j.n * sizeof *j.keys;
    void *keys;
    if (work.ends)
        return work.status;
    TRY(device_alloc(s, MEM_OTHER, bytes, "positions by token", &keys));
    j.in_chunks = (uint64_t *)keys;
    j.keys = j.in_chunks + (j.n > CHUNK ? j.n : 0);
    op_writes(&work, keys, bytes);
    const fsdp_status status = cuda_issue(s, embedding_backward_issue, &j, work);
    device_free(s, keys);
    return status;
}
