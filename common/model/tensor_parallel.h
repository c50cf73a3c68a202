/* tensor_parallel.h -- a model whose matrices are cut into blocks, of which each tp rank has some.
 *
 * --tp-blocks G says how many products a product over a cut dimension consists of, and how their
 * sum is rounded, on one device too. So the bits do not depend on the number of ranks that share
 * the blocks. [Shoeybi et al. 2019] cuts in the same places:
 *
 *     columns  c_attn, c_fc; q, k, v, gate, up   y_g = x w_g + b_g: block g of y. Its input's
 *                                                gradient is a sum over the blocks
 *     rows     c_proj; o, down                   y = sum over g of x_g w_g, + b
 *     tokens   wte, lm_head                      a block has the rows of some tokens
 *
 * Where there are fewer heads of keys and values than blocks, neighbouring blocks share one: k and
 * v have as many blocks as heads, and all ranks of blocks that share one store it. Its gradients
 * are summed over these blocks, and the first of them adds its part to the input's gradient.
 *
 * Sums over blocks are a balanced tree of fp32 matrices, rounded once at the end.
 *
 * Gradients of gains, and of biases after a sum over blocks, are sums over rows that all ranks have
 * alike. With G blocks they are a tree over G runs of the tokens of each leaf; so it makes no
 * difference whether a rank has all rows or, with sequence parallelism, one of those runs or
 * several. [Korthikanti et al. 2022] */
#pragma once
#include "common/model/unit.h"

/* model_share -- keep the blocks of tp rank `rank` of `size`: set the dims of every parameter.
 *   by_tokens  sequence parallelism: norms and the arrays between layers are cut by tokens, too
 *   errors  FSDP_EINVAL: size does not divide config.tp_blocks */
fsdp_status model_share(model *m, int rank, int size, bool by_tokens);

/* model_copy -- a copy of the lists, to share out for another rank. Free it with model_free.
 *   to      must not move, as in model_create
 *   errors  FSDP_ENOMEM */
fsdp_status model_copy(const model *from, model *to);

/* param_in_file -- where element `at` of the whole parameter, in the order of storage, lies in
 * Hugging Face's order, and at least how many elements, *run, follow each other in both
 * orders from there on. */
size_t param_in_file(const param_spec *p, size_t at, size_t *run);

/* param_from_file -- the reverse: the place in the order of storage by `blocks` blocks, which may
 * be others than this run's. */
size_t param_from_file(const param_spec *p, size_t blocks, size_t at, size_t *run);
/* param_is_elsewhere -- whether another tp rank, below `rank`, has the same elements. */
bool param_is_elsewhere(const param_spec *p, size_t tp_blocks, int rank, int size);
/* param_share_elems -- how many elements the first of `size` tp ranks has; no rank has more. */
size_t param_share_elems(const param_spec *p, int size);

/* block_among -- a parameter may have fewer blocks than the model, which share them: which of
 * `blocks` the model's block i, of `all`, has. */
static inline size_t block_among(size_t blocks, size_t all, size_t i)
{
    return i * blocks / all;
}

/* cut_at -- the place, in a whole dimension of n elements, where block i of `blocks` begins. */
static inline size_t cut_at(size_t n, size_t blocks, size_t i)
{
    const size_t each = (n + blocks - 1) / blocks;
    return i * each < n ? i * each : n;
}
