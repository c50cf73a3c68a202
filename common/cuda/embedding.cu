/* embedding.cu -- token and position embeddings, with the CPU's bits (ops/row_elem.h), for both
 * tables. A block computes 256 columns of one position (b,t), so that its threads access
 * neighbours. */
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
    if (c < a.width && number_fits(complaint, ABOUT_TOKEN, a.tokens[r], r, a.vocab))
        BY_TYPE(embedding_row, a.type, &a, r, c, 1);
}

OPERATION(cuda, embedding, embedding_kernel, grid_of(a->batch * a->seq_len, blocks_of(a->width)),
          BLOCK_THREADS, *a, complaint_of(s))

/* ---- backward -------------------------------------------------------------------------------- */

/* One bit for each of the positions first ... first+31: whether it is in [begin, end) and holds the
 * token. */
static __device__ inline unsigned same_tokens(const int32_t *tokens, int32_t token, size_t first,
                                              size_t begin, size_t end)
{
    const size_t at = first + threadIdx.x % WARP_LANES;
    return __ballot_sync((unsigned)ALL_LANES, at >= begin && at < end && tokens[at] == token);
}

/* Add the rows of d_out at all positions of a token to its row of d_wte, in order and without
 * atomics: the block of the token's first position adds all of them, the other blocks return. The
 * lanes of a warp look at 32 positions at a time. The row of d_wte is read and written once. */
__global__ void embedding_backward_kernel(embedding_backward_args args, complaint_box *complaint)
{
    const embedding_backward_args *a = &args;
    const block_place at_block = block_of(blocks_of(a->width));
    const size_t n = a->batch * a->seq_len, width = a->width;
    const size_t r = at_block.row, c = at_block.col * BLOCK_THREADS + threadIdx.x;
    const int32_t token = a->tokens[r];
    if (!number_fits(complaint, ABOUT_TOKEN, token, r, a->vocab))
        return;
    for (size_t first = 0; first < r; first += WARP_LANES)
        if (same_tokens(a->tokens, token, first, 0, r) != 0)
            return;
    float *grad = a->d_wte + (size_t)token * width;
    float sum = c < width ? grad[c] : 0.0f;
    for (size_t first = r; first < n; first += WARP_LANES) {
        unsigned same = same_tokens(a->tokens, token, first, r, n);
        for (size_t at = first; same != 0; at++, same >>= 1)
            if ((same & 1) != 0 && c < width)
                sum += row_load(a->d_out, at * width + c, a->type);
    }
    if (c < width)
        grad[c] = sum;
}

/* A thread computes one element of d_wpe, in the order of the sequences. */
__global__ void positions_backward_kernel(embedding_backward_args a)
{
    const size_t i = global_thread(), elems = a.seq_len * a.width;
    if (i >= elems)
        return;
    float sum = a.d_wpe[i];
    for (size_t b = 0; b < a.batch; b++)
        sum += row_load(a.d_out, b * elems + i, a.type);
    a.d_wpe[i] = sum;
}

static cudaError_t embedding_backward_issue(stream *s, const void *args)
{
    const embedding_backward_args *a = (const embedding_backward_args *)args;
    const unsigned grid = grid_of(a->batch * a->seq_len, blocks_of(a->width));
    const cudaError_t error =
        LAUNCH(embedding_backward_kernel, grid, BLOCK_THREADS, s, *a, complaint_of(s));
    if (error != cudaSuccess || a->d_wpe == NULL)
        return error;
    return LAUNCH(positions_backward_kernel, blocks_of(a->seq_len * a->width), BLOCK_THREADS, s,
                  *a);
}

ISSUED(cuda, embedding_backward)
