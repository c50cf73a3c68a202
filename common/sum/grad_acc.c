/* grad_acc.c -- a running sum of device vectors: plain in fast mode, tree_sum in canonical mode.
 *
 * The tree knows nothing of devices. Its `space` here allocates, copies and adds on the stream of
 * the call in progress (grad_acc.stream): the counter decides when the call is issued, the work
 * follows in stream order. Fast mode keeps its one vector in the tree's slot 0, so that both modes
 * are freed by the same code. */
#include "common/sum/grad_acc.h"

static fsdp_status space_get(void *ctx, float **vec)
{
    grad_acc *g = ctx;
    return device_alloc_f32(g->stream, g->category, g->elems, g->label, vec);
}

static void space_put(void *ctx, float *vec)
{
    grad_acc *g = ctx;
    device_free(g->stream, vec);
}

static fsdp_status space_copy(void *ctx, float *dst, const float *src)
{
    grad_acc *g = ctx;
    if (g->sum_dtype == DTYPE_F32)
        return device_copy(g->stream, dst, src, g->elems * sizeof *dst);
    return g->ops->add(
        g->stream, &(add_args){.out = dst, .a = src, .elems = g->elems, .round_to = g->sum_dtype});
}

static fsdp_status space_add(void *ctx, float *left, const float *right)
{
    grad_acc *g = ctx;
    return g->ops->add(
        g->stream,
        &(add_args){
            .out = left, .a = left, .b = right, .elems = g->elems, .round_to = g->sum_dtype});
}

void grad_acc_init(grad_acc *g, grad_acc_mode mode, const ops *o, size_t elems,
                   mem_category category, const char *label)
{
    *g = (grad_acc){.mode = mode, .ops = o, .elems = elems, .category = category, .label = label};
    tree_sum_init(
        &g->tree,
        (tree_sum_space){
            .ctx = g, .get = space_get, .put = space_put, .copy = space_copy, .add = space_add});
}

/* Fast mode: the first vector is copied, later ones are added in the order of the calls. */
static fsdp_status fast_push(grad_acc *g, const float *vec)
{
    float **sum = &g->tree.slot[0];
    if (*sum != NULL)
        return space_add(g, *sum, vec);
    TRY(space_get(g, sum));
    return space_copy(g, *sum, vec);
}

fsdp_status grad_acc_push(grad_acc *g, stream *s, int level, const float *vec)
{
    FSDP_ASSERT(g->tree.space.ctx == g); /* initialised, and not moved since */
    g->stream = s;
    if (g->mode == GRAD_ACC_FAST)
        TRY(fast_push(g, vec));
    else
        TRY(tree_sum_push(&g->tree, level, vec));
    g->n_pushed++;
    return FSDP_OK;
}

fsdp_status grad_acc_give(grad_acc *g, stream *s, int level, float **vec)
{
    int slot = g->mode == GRAD_ACC_FAST ? 0 : level;
    bool waits = g->tree.slot[slot] == NULL;
    for (int k = 0; k < slot; k++)
        waits = waits && g->tree.slot[k] == NULL;
    if (!waits)
        return grad_acc_push(g, s, level, *vec);
    g->stream = s;
    if (g->sum_dtype != DTYPE_F32)
        TRY(space_copy(g, *vec, *vec));
    g->tree.slot[slot] = *vec;
    g->n_pushed++;
    *vec = NULL;
    return FSDP_OK;
}

fsdp_status grad_acc_finish(grad_acc *g, stream *s, float **sum)
{
    FSDP_ASSERT(g->tree.space.ctx == g);
    g->stream = s;
    *sum = NULL;
    if (g->mode == GRAD_ACC_FAST) {
        *sum = g->tree.slot[0];
        g->tree.slot[0] = NULL;
    } else {
        TRY(tree_sum_finish(&g->tree, sum));
    }
    g->n_pushed = 0;
    if (*sum != NULL)
        return FSDP_OK;
    TRY(space_get(g, sum));
    fsdp_status status = device_zero(s, *sum, g->elems * sizeof **sum);
    if (status != FSDP_OK) {
        device_free(s, *sum);
        *sum = NULL;
    }
    return status;
}

void grad_acc_free(grad_acc *g, stream *s)
{
    if (g->tree.space.ctx == NULL)
        return;
    g->stream = s;
    tree_sum_clear(&g->tree);
    g->n_pushed = 0;
}
