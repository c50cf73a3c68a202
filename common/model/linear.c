/* linear.c -- products with a weight, and sums over its blocks. See transformer.h.
 *
 *     by columns  y_g = x w_g + b_g        d_x = sum over g of d_y_g w_g^T
 *     by rows     y = sum over g of x_g w_g, + b      d_x_g = d_y w_g^T
 *
 * Each product is one call of one shape, whatever the number of ranks that share the blocks. */
#include "common/comm/comm_sums.h"
#include "common/model/tensor_parallel.h"
#include "common/model/transformer.h"

enum { NO_PARAM = -1 };

/* A linear layer's call, or what one block of it needs. */
typedef struct linear_shape {
    const layer *l;
    const ops *o;
    stream *s;
    const layer_io *io;
    const param_spec *w;
    int weight, bias;   /* NO_PARAM: it has none */
    size_t n_in, n_out; /* of the whole weight, and of the bias */
    bool in_out;
    bool by_cols, by_rows; /* neither: the weight is not cut */
    bool whole;            /* its rows are not cut by tokens */
} linear_shape;

static linear_shape find_linear(const layer *l, const ops *o, stream *s, const layer_io *io,
                                int weight, bool in_out)
{
    const param_spec *w = &l->model->params[l->first_param + weight];
    const param_cut *c = &w->cut;
    const bool has_bias = weight + 1 < l->n_params && w[1].n_dims == 1;
    const bool is_cut = l->model->config.tp_blocks > 1 && c->blocks > 0,
               first_dim = c->blocks * c->width >= c->elems;
    return (linear_shape){.l = l,
                          .o = o,
                          .s = s,
                          .io = io,
                          .w = w,
                          .weight = weight,
                          .bias = has_bias ? weight + 1 : NO_PARAM,
                          .n_in = c->dims[!in_out],
                          .n_out = c->dims[in_out],
                          .in_out = in_out,
                          .by_cols = is_cut && first_dim != in_out,
                          .by_rows = is_cut && first_dim == in_out,
                          .whole = l->model->token_parts == 1};
}

static size_t rows_of(const linear_shape *x)
{
    return x->io->batch * x->io->seq_len;
}

/* The number, among the blocks of the weight, of what the model's block i of this rank has. */
static size_t block_at(const linear_shape *x, size_t i)
{
    const model *m = x->l->model;
    return block_among(x->w->cut.blocks, m->config.tp_blocks, m->first_block + i);
}

/* How many blocks of the weight this rank has. */
static size_t n_blocks_of(const linear_shape *x)
{
    if (!x->by_cols && !x->by_rows)
        return 1;
    return block_at(x, x->l->model->n_tp_blocks - 1) + 1 - block_at(x, 0);
}

/* The shape of the product of this rank's block number i. */
static linear_shape block_of(const linear_shape *x, size_t i)
{
    const size_t G = x->w->cut.blocks, g = x->by_cols || x->by_rows ? block_at(x, 0) + i : 0;
    linear_shape part = *x;
    if (x->by_cols)
        part.n_out = cut_at(x->n_out, G, g + 1) - cut_at(x->n_out, G, g);
    if (x->by_rows)
        part.n_in = cut_at(x->n_in, G, g + 1) - cut_at(x->n_in, G, g);
    return part;
}

/* Block i of an array that has [rows, its columns] of each block; else the whole array. */
static void *part_at(const linear_shape *x, const void *array, size_t i, size_t stride)
{
    const size_t n = x->by_cols ? x->n_out : x->n_in, G = x->w->cut.blocks;
    if (i == 0)
        return element(array, 0, x->io->type);
    return element(array, i * rows_of(x) * (stride ? stride : cut_at(n, G, 1)), x->io->type);
}

/* Elements before block i of the weight and of the bias, in this rank's memory. */
static size_t weight_at(const linear_shape *x, size_t i)
{
    const size_t cols = x->by_cols ? x->n_out : x->n_in, G = x->w->cut.blocks;
    return i == 0 ? 0 : i * cut_at(cols, G, 1) * (x->by_cols ? x->n_in : x->n_out);
}
static size_t bias_at(const linear_shape *x, size_t i)
{
    return x->by_cols && i > 0 ? i * cut_at(x->n_out, x->w->cut.blocks, 1) : 0;
}

/* ---- sums over blocks ------------------------------------------------------------------------ */

/* A sum over blocks: add_part writes the part of this rank's block i to out [elems]. */
typedef struct block_sum block_sum;
struct block_sum {
    const linear_shape *x;
    fsdp_status (*add_part)(const block_sum *b, size_t i, float *out);
    const void *args;
    int n_args;
    size_t elems;
};

static fsdp_status sum_some(const block_sum *b, size_t first, size_t n, float *out)
{
    float *right = out + sum_step(b->elems);
    if (n == 1)
        return b->add_part(b, first, out);
    TRY(sum_some(b, first, n / 2, out));
    TRY(sum_some(b, first + n / 2, n / 2, right));
    return b->x->o->add(b->x->s, &(add_args){.out = out, .a = out, .b = right, .elems = b->elems});
}

/* Own rows of an array [rows, cols], or of one that has only these: runs of them, one after the
 * other. Without sequence parallelism there is one run of all rows. */
typedef struct row_runs {
    size_t n, rows;     /* of each run */
    size_t first, step; /* in an array of all rows: where they begin, and the rows between */
} row_runs;

static row_runs own_runs(const linear_shape *x)
{
    const size_t parts = x->l->model->token_parts, T = x->io->seq_len;
    if (x->whole)
        return (row_runs){1, rows_of(x), 0, 0};
    return (row_runs){x->io->batch, T / parts, (size_t)comm_rank(x->io->tp) * (T / parts), T};
}

/* out = the sum over all blocks, on all ranks that share them; of cut tokens only the own rows. */
static fsdp_status sum_blocks(const block_sum *b, float *out)
{
    const linear_shape *x = b->x;
    const row_runs own = own_runs(x);
    const size_t cols = b->elems / rows_of(x);
    TRY(sum_some(b, 0, x->l->model->n_tp_blocks, out));
    if (x->io->tp == NULL)
        return FSDP_OK;
    if (x->whole)
        return comm_all_reduce(x->io->tp, x->s, x->l->name, DTYPE_F32, out, b->elems);
    for (size_t j = 0; j < own.n; j++)
        TRY(comm_reduce_own(x->io->tp, x->s, x->l->name, out + j * own.step * cols,
                            own.rows * cols));
    return FSDP_OK;
}

/* *all = own if it has all rows, else all rows in k->full. */
static fsdp_status whole_rows(const linear_shape *x, const layer_arrays *k, const void *own,
                              const void **all)
{
    *all = own;
    if (x->whole)
        return FSDP_OK;
    *all = k->full;
    return gather_rows(x->l, x->s, x->io, own, k->full);
}

/* ---- y = x w + b ----------------------------------------------------------------------------- */

/* The product with this rank's block i. */
static matmul_args product(const linear_shape *x, const linear_args *a, size_t i)
{
    const linear_shape part = block_of(x, i);
    const dtype type = x->io->type;
    const void *bias = x->bias == NO_PARAM ? NULL : x->io->params[x->bias];
    return (matmul_args){.out = x->by_cols ? part_at(x, a->y, i, a->y_stride) : a->y,
                         .out_stride = a->y_stride,
                         .a = x->by_rows ? part_at(x, a->x, i, 0) : a->x,
                         .b = element(x->io->params[x->weight], weight_at(x, i), type),
                         .trans_b = !x->in_out,
                         .bias = element(bias, bias_at(x, i), type),
                         .residual = a->residual,
                         .m = rows_of(x),
                         .n = part.n_out,
                         .k = part.n_in,
                         .type = type,
                         .out_type = type};
}

static fsdp_status row_part(const block_sum *b, size_t i, float *out)
{
    matmul_args part = product(b->x, b->args, i);
    part.out = out;
    part.out_type = DTYPE_F32;
    part.bias = part.residual = NULL;
    return b->x->o->matmul(b->x->s, &part);
}

/* A product with a weight that is cut by rows. */
static fsdp_status row_product(const linear_shape *x, const linear_args *a)
{
    const block_sum sum = {x, row_part, a, 1, rows_of(x) * x->n_out};
    const row_runs own = own_runs(x);
    TRY(sum_blocks(&sum, a->k->sum));
    for (size_t j = 0; j < own.n; j++) {
        const size_t at = j * own.rows * x->n_out;
        matmul_finish_args run = {product(x, a, 0),
                                  a->k->sum + (own.first + j * own.step) * x->n_out};
        run.of.out = element(a->y, at, x->io->type);
        run.of.residual = element(a->residual, at, x->io->type);
        run.of.m = own.rows;
        TRY(x->o->matmul_finish(x->s, &run));
    }
    return FSDP_OK;
}

fsdp_status linear(const layer *l, const ops *o, stream *s, const layer_io *io,
                   const linear_args *a, int n)
{
    const void *in = a->x;
    for (int k = 0; k < n; k++) {
        linear_shape x = find_linear(l, o, s, io, a[k].weight, a[k].in_out);
        x.whole |= a->whole;
        if (x.by_rows)
            return row_product(&x, a);
        if (x.by_cols && k == 0)
            TRY(whole_rows(&x, a->k, a->x, &in));
        for (size_t i = 0; i < n_blocks_of(&x); i++) {
            matmul_args block = product(&x, &a[k], i);
            block.a = in;
            TRY(o->matmul(s, &block));
        }
    }
    return FSDP_OK;
}

/* ---- its gradients --------------------------------------------------------------------------- */

/* The gradient of the bias of a product by rows, from this rank's rows of d_y. */
static fsdp_status bias_part(const token_sum *t, size_t first, size_t rows, float *out)
{
    const void *d_y = element(t->args, first * t->cols, t->io->type);
    return t->o->bias_backward(t->s, &(bias_backward_args){.d_bias = out,
                                                           .d_out = d_y,
                                                           .rows = rows,
                                                           .cols = t->cols,
                                                           .overwrite = true,
                                                           .type = t->io->type});
}

/* d_w of this rank's block i, and d_b. */
static fsdp_status param_grads(const linear_shape *x, const linear_grad *g, size_t i)
{
    const linear_shape part = block_of(x, i);
    const layer_io *io = x->io;
    const void *in = x->by_rows ? part_at(x, g->x, i, 0) : g->x;
    const void *d_y = x->by_cols ? part_at(x, g->d_y, i, g->d_y_stride) : g->d_y;
    float *d_w = io->grads[x->weight];
    float *d_b = x->bias == NO_PARAM ? NULL : io->grads[x->bias];
    if (d_w != NULL)
        TRY(x->o->matmul(x->s, &(matmul_args){.out = d_w + weight_at(x, i),
                                              .a = x->in_out ? in : d_y,
                                              .a_stride = g->d_y_stride,
                                              .trans_a = true,
                                              .b = x->in_out ? d_y : in,
                                              .m = x->in_out ? part.n_in : part.n_out,
                                              .n = x->in_out ? part.n_out : part.n_in,
                                              .k = rows_of(x),
                                              .leaves = io->leaves,
                                              .accumulate = grad_adds(io, x->weight),
                                              .type = io->type}));
    if (d_b == NULL || x->by_rows)
        return FSDP_OK;
    return x->o->bias_backward(x->s, &(bias_backward_args){.d_bias = d_b + bias_at(x, i),
                                                           .d_out = d_y,
                                                           .rows = rows_of(x),
                                                           .leaves = io->leaves,
                                                           .cols = part.n_out,
                                                           .overwrite = !grad_adds(io, x->bias),
                                                           .type = io->type});
}

/* The product that gives block i's part of d_x, in d_x of the weight's type. */
static matmul_args input_product(const linear_shape *x, const linear_grad *g, size_t i)
{
    const linear_shape part = block_of(x, i);
    return (matmul_args){.out = x->by_rows ? part_at(x, g->d_x, i, 0) : g->d_x,
                         .a = x->by_cols ? part_at(x, g->d_y, i, g->d_y_stride) : g->d_y,
                         .a_stride = g->d_y_stride,
                         .b = element(x->io->params[x->weight], weight_at(x, i), x->io->type),
                         .trans_b = x->in_out,
                         .m = rows_of(x),
                         .n = part.n_in,
                         .k = part.n_out,
                         .type = x->io->type,
                         .out_type = x->io->type};
}

/* Whether no block before this rank's block i has the same block of the weight. */
static bool is_first_sharer(const linear_shape *x, size_t i)
{
    const model *m = x->l->model;
    const size_t before = m->first_block + i - 1;
    return m->first_block + i == 0 ||
           block_among(x->w->cut.blocks, m->config.tp_blocks, before) != block_at(x, i);
}

/* Block i's part of d_x, of all linears with that input. */
static fsdp_status col_part(const block_sum *b, size_t i, float *out)
{
    const linear_shape *x = b->x;
    const linear_grad *g = b->args;
    for (int n = 0; n < b->n_args; n++) {
        const linear_shape y = find_linear(x->l, x->o, x->s, x->io, g[n].weight, g[n].in_out);
        if (!is_first_sharer(&y, i))
            continue;
        matmul_args part = input_product(&y, &g[n], block_at(&y, i) - block_at(&y, 0));
        part.out = out;
        part.out_type = DTYPE_F32;
        part.accumulate = n > 0;
        TRY(x->o->matmul(x->s, &part));
    }
    return FSDP_OK;
}

static fsdp_status input_grad(const linear_shape *x, const linear_grad *g, int n)
{
    const block_sum sum = {x, col_part, g, n, rows_of(x) * x->n_in};
    if (x->by_cols) {
        const row_runs own = own_runs(x);
        TRY(sum_blocks(&sum, g->k->sum));
        for (size_t j = 0; j < own.n; j++)
            TRY(x->o->cast(x->s,
                           &(cast_args){.out = element(g->d_x, j * own.rows * x->n_in, x->io->type),
                                        .in = g->k->sum + (own.first + j * own.step) * x->n_in,
                                        .out_type = x->io->type,
                                        .in_type = DTYPE_F32,
                                        .elems = own.rows * x->n_in}));
        return FSDP_OK;
    }
    for (int k = 0; k < n; k++)
        for (size_t i = 0; i < n_blocks_of(x); i++) {
            const linear_shape y = find_linear(x->l, x->o, x->s, x->io, g[k].weight, g[k].in_out);
            matmul_args block = input_product(&y, &g[k], i);
            block.residual = k > 0 ? block.out : NULL;
            TRY(x->o->matmul(x->s, &block));
        }
    return FSDP_OK;
}

static bool wants_weights(const linear_shape *x, const linear_grad *g, int n)
{
    bool wants = false;
    for (int k = 0; k < n; k++)
        wants = wants || x->io->grads[g[k].weight] != NULL;
    return wants;
}

fsdp_status linear_backward(const layer *l, const ops *o, stream *s, const layer_io *io,
                            const linear_grad *g, int n)
{
    linear_shape first = find_linear(l, o, s, io, g->weight, g->in_out);
    const void *x_all = g->x, *d_y_all = g->d_y;
    linear_grad whole;
    first.whole |= g->whole;
    if (first.by_cols && wants_weights(&first, g, n))
        TRY(whole_rows(&first, g->k, g->x, &x_all));
    if (first.by_rows)
        TRY(whole_rows(&first, g->k, g->d_y, &d_y_all));
    for (int k = 0; k < n; k++) {
        const linear_shape x = find_linear(l, o, s, io, g[k].weight, g[k].in_out);
        FSDP_ASSERT(g[k].d_y_stride == 0 || (!x.in_out && x.bias == NO_PARAM));
        whole = g[k];
        whole.x = x_all;
        whole.d_y = first.by_rows ? d_y_all : g[k].d_y;
        for (size_t i = 0; i < n_blocks_of(&x); i++)
            TRY(param_grads(&x, &whole, i));
        if (x.by_rows && x.bias != NO_PARAM && io->grads[x.bias] != NULL)
            TRY(token_sum_run(
                &(token_sum){bias_part, l, o, s, io, g->d_y, x.n_out, x.n_out, x.bias}));
    }
    if (!grad_wanted(io, g->weight))
        return FSDP_OK;
    return input_grad(&first, first.by_rows ? &whole : g, n);
}
