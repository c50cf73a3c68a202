/* grad_acc.c -- a running sum of device vectors: plain in fast mode, a tree in canonical mode.
 *
 * tree_sum does not use devices. Its `space` here allocates, copies and adds on the stream of the
 * call in progress (grad_acc.stream). A call decides at once what is added; the work runs in
 * stream order. */
#include "common/sum/grad_acc.h"
#include "common/device/device.h"

static fsdp_status space_get(grad_acc *g, float **vec)
{
    return device_alloc_f32(g->stream, g->category, g->elems, g->label, vec);
}

static void space_put(void *ctx, float *vec)
{
    grad_acc *g = ctx;
    device_free(g->stream, vec);
}

/* out = a + b as a node of the sum. With b NULL out = a. */
static fsdp_status node_add(grad_acc *g, float *out, const float *a, const float *b)
{
    return g->kernels->add(
        g->stream,
        &(add_args){.out = out, .a = a, .b = b, .elems = g->elems, .round_to = g->sum_dtype});
}

static fsdp_status space_keep(void *ctx, const float *vec, float **slot)
{
    grad_acc *g = ctx;
    TRY(space_get(g, slot));
    if (g->sum_dtype == DTYPE_F32)
        return device_copy(g->stream, *slot, vec, g->elems * sizeof *vec);
    return node_add(g, *slot, vec, NULL);
}

static fsdp_status space_add(void *ctx, int level, float **left, const float *right)
{
    (void)level;
    return node_add(ctx, *left, *left, right);
}

void grad_acc_init(grad_acc *g, grad_acc_mode mode, const sum_kernels *kernels, size_t elems,
                   mem_category category, const char *label)
{
    *g = (grad_acc){
        .mode = mode, .kernels = kernels, .elems = elems, .category = category, .label = label};
    tree_sum_init(&g->tree, (tree_sum_space){
                                .ctx = g, .keep = space_keep, .add = space_add, .put = space_put});
    g->tree.in_turn = mode == GRAD_ACC_FAST;
}

fsdp_status grad_acc_push(grad_acc *g, stream *s, int level, const float *vec)
{
    FSDP_ASSERT(g->tree.space.ctx == g); /* initialised, and not moved since */
    g->stream = s;
    TRY(tree_sum_push(&g->tree, level, vec));
    g->n_pushed++;
    return FSDP_OK;
}

fsdp_status grad_acc_give(grad_acc *g, stream *s, int level, float **vec)
{
    int slot = g->mode == GRAD_ACC_FAST ? 0 : level;
    if (tree_sum_waiting(&g->tree, slot) & 1) /* its left sibling waits, so add */
        return grad_acc_push(g, s, level, *vec);
    g->stream = s;
    if (g->sum_dtype != DTYPE_F32)
        TRY(node_add(g, *vec, *vec, NULL));
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
    TRY(tree_sum_finish(&g->tree, sum));
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

/* vec is the last node, to the right of all waiting nodes. Its sibling is in the lowest occupied
 * slot, the sibling of their sum in the next one, and so on. */
fsdp_status grad_acc_finish_into(grad_acc *g, stream *s, float *vec)
{
    FSDP_ASSERT(g->tree.space.ctx == g);
    g->stream = s;
    if (g->n_pushed > 0 && g->sum_dtype != DTYPE_F32)
        TRY(node_add(g, vec, vec, NULL));
    for (int k = 0; k < TREE_SUM_LEVELS; k++) {
        float **left = &g->tree.slot[k];
        if (*left == NULL)
            continue;
        TRY(node_add(g, vec, *left, vec));
        device_free(s, *left);
        *left = NULL;
    }
    g->n_pushed = 0;
    return FSDP_OK;
}

void grad_acc_free(grad_acc *g, stream *s)
{
    if (g->tree.space.ctx == NULL)
        return;
    g->stream = s;
    tree_sum_clear(&g->tree);
    g->n_pushed = 0;
}
