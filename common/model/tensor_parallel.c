/* tensor_parallel.c -- see tensor_parallel.h. */
#include "common/model/tensor_parallel.h"
#include <stdlib.h>
#include <string.h>

/* Elements of a whole block: n runs of `width`. */
static size_t block_elems(const param_cut *c)
{
    const size_t row = c->blocks * c->width, n = c->elems / row;
    return (n > 0 ? n : 1) * c->width;
}

/* A block of [n, blocks, width] with n = 1 is rows of the whole matrix; else it has all rows, and
 * some of their columns. */
static void set_dims(param_spec *p, size_t n_blocks)
{
    const param_cut *c = &p->cut;
    const bool by_rows = block_elems(c) == c->width;
    if (p->n_dims == 1) {
        p->dims[0] = p->elems;
    } else if (by_rows) {
        p->dims[0] = p->elems / c->dims[1];
    } else {
        p->dims[0] = c->dims[0] * n_blocks;
        p->dims[1] = c->dims[1] / c->blocks;
    }
}

fsdp_status model_share(model *m, int rank, int size, bool by_tokens)
{
    const size_t G = m->config.tp_blocks;
    if (G % (size_t)size != 0)
        return fsdp_error(FSDP_EINVAL, "pass --tp-blocks with a multiple of --tp, a power of two",
                          "--tp: got %d, expected a divisor of --tp-blocks, %zu", size, G);
    m->n_tp_blocks = G / (size_t)size;
    m->first_block = m->n_tp_blocks * (size_t)rank;
    m->token_parts = by_tokens ? (size_t)size : 1;
    m->kv_share = m->config.n_kv_head > 0 && m->config.n_kv_head < G ? G / m->config.n_kv_head : 1;
    m->n_kv_blocks = m->n_tp_blocks > m->kv_share ? m->n_tp_blocks / m->kv_share : 1;
    for (int i = 0; i < m->n_params; i++) {
        param_spec *p = &m->params[i];
        param_cut *c = &p->cut;
        c->elsewhere = param_is_elsewhere(p, G, rank, size);
        if (c->blocks == 0)
            continue;
        const size_t each = block_elems(c), first = block_among(c->blocks, G, m->first_block);
        const size_t last = block_among(c->blocks, G, m->first_block + m->n_tp_blocks - 1);
        const size_t end = (last + 1) * each;
        c->begin = first * each < c->elems ? first * each : c->elems;
        p->elems = (end < c->elems ? end : c->elems) - c->begin;
        set_dims(p, last + 1 - first);
    }
    return FSDP_OK;
}

bool param_is_elsewhere(const param_spec *p, size_t tp_blocks, int rank, int size)
{
    const size_t first = tp_blocks / (size_t)size * (size_t)rank, blocks = p->cut.blocks;
    if (blocks == 0)
        return rank > 0;
    return first > 0 &&
           block_among(blocks, tp_blocks, first - 1) == block_among(blocks, tp_blocks, first);
}

fsdp_status model_copy(const model *from, model *to)
{
    *to = *from;
    to->layers = malloc((size_t)from->n_layers * sizeof *to->layers);
    to->params = malloc((size_t)from->n_params * sizeof *to->params);
    if (!to->layers || !to->params) {
        model_free(to);
        return fsdp_error(FSDP_ENOMEM, "", "model: no host memory for a copy of the lists");
    }
    memcpy(to->layers, from->layers, (size_t)from->n_layers * sizeof *to->layers);
    memcpy(to->params, from->params, (size_t)from->n_params * sizeof *to->params);
    for (int i = 0; i < to->n_layers; i++)
        to->layers[i].model = to;
    return FSDP_OK;
}

/* [n, blocks, width] and [blocks, n, width]: the same run of `width`, or of all, in both. */
static size_t turn(const param_cut *c, size_t at, size_t outer, size_t inner, size_t *run)
{
    const size_t rest = at % (inner * c->width), i = at / (inner * c->width), col = rest % c->width;
    *run = c->width - col;
    return (rest / c->width * outer + i) * c->width + col;
}

/* n of [n, blocks, width]; 1: both orders are the same. */
static size_t n_of(const param_cut *c)
{
    return c->blocks > 0 ? block_elems(c) / c->width : 1;
}

size_t param_in_file(const param_spec *p, size_t at, size_t *run)
{
    const size_t n = n_of(&p->cut);
    *run = SIZE_MAX - at;
    return n == 1 ? at : turn(&p->cut, at, p->cut.blocks, n, run);
}

size_t param_from_file(const param_spec *p, size_t blocks, size_t at, size_t *run)
{
    const size_t n = n_of(&p->cut);
    param_cut as = p->cut;
    *run = SIZE_MAX - at;
    if (n == 1)
        return at;
    as.width = as.width * as.blocks / blocks;
    return turn(&as, at, n, blocks, run);
}

size_t param_share_elems(const param_spec *p, int size)
{
    const param_cut *c = &p->cut;
    const size_t n = c->blocks > (size_t)size ? c->blocks / (size_t)size : 1;
    const size_t most = c->blocks > 0 ? n * block_elems(c) : c->elems;
    return most < c->elems ? most : c->elems;
}
