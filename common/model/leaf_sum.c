/* leaf_sum.c -- the sums over the leaves of a micro-batch: losses, and gradients of a layer that is
 * called for each leaf.
 *
 * A leaf is one sample: a sequence, an image. A micro-batch of b leaves is a node of the tree
 * (tree_sum.h), so its sum is recursive: sum the left half in place and the right half in separate
 * memory, then add the two. */
#include "common/model/runner_impl.h"

/* Gradients begin at multiples of 64 bytes, as in all other gradient arrays: a library may choose
 * its algorithm, and so the bits, by the alignment. */
static size_t place_elems(const param_spec *p)
{
    enum { ALIGN_ELEMS = 64 / sizeof(float) };
    return p->frozen ? 0 : size_round_up(p->elems, ALIGN_ELEMS);
}

fsdp_status runner_sum_losses(runner *r, float *loss)
{
    for (size_t leaf = 0; leaf < r->n_leaves; leaf++)
        TRY(grad_acc_push(&r->loss_acc, r->s, 0, r->leaf_loss + leaf));
    float *sum;
    TRY(grad_acc_finish(&r->loss_acc, r->s, &sum));
    fsdp_status status = device_copy(r->s, loss, sum, sizeof *loss);
    device_free(r->s, sum);
    return status;
}

/* Point grads at a layer's own parameters, one after the other in vec; NULL for frozen ones.
 * Returns the elements of vec. With vec NULL it only computes that number. */
static size_t point_into(const model *m, const layer *l, float *vec, float **grads)
{
    size_t elems = 0;
    for (int k = 0; k < l->n_params; k++) {
        const param_spec *p = &m->params[l->first_param + k];
        grads[k] = p->frozen || !vec ? NULL : vec + elems;
        elems += place_elems(p);
    }
    return elems;
}

/* A node of the tree: its calls, one for each leaf, and the gradients of the layer's output and
 * input, for the whole micro-batch. */
typedef struct leaf_node {
    int layer;
    size_t first, n; /* n is a power of two */
    void *d_out, *d_in;
    const bool *overwrite; /* as in layer_io, for all leaves */
} leaf_node;

/* Backward of the layer for the first leaf of the node. */
static fsdp_status call_backward(runner *r, const leaf_node *node, float *const *grads)
{
    const layer *l = &r->cfg.run.m->layers[node->layer];
    layer_io io = runner_call(r, node->layer, node->first, PASS_AGAIN);
    io.d_out = runner_slice(node->d_out, node->first, r->out_bytes[node->layer]);
    if (node->d_in != NULL)
        io.d_in = runner_slice(node->d_in, node->first, r->out_bytes[node->layer - 1]);
    io.grads = grads;
    io.overwrite = node->overwrite;
    return l->backward(l, r->cfg.run.ops, r->s, &io);
}

/* grads = the node's sum. The left half is summed in grads, the right half in separate memory, and
 * then added to grads. So the leftmost leaf is computed in place; nothing is zeroed or copied. */
static fsdp_status sum_leaves(runner *r, const leaf_node *node, float *const *grads)
{
    const model *m = r->cfg.run.m;
    const layer *l = &m->layers[node->layer];
    if (node->n == 1)
        return call_backward(r, node, grads);
    leaf_node left = *node, right = *node;
    left.n = right.n = node->n / 2;
    right.first += left.n;
    TRY(sum_leaves(r, &left, grads));
    float *vec, *right_grads[LAYER_MAX_PARAMS];
    const size_t elems = point_into(m, l, NULL, right_grads);
    TRY(device_alloc_f32(r->s, MEM_GRADS_FULL, elems, "leaf gradients", &vec));
    point_into(m, l, vec, right_grads);
    fsdp_status status = sum_leaves(r, &right, right_grads);
    for (int k = 0; k < l->n_params && status == FSDP_OK; k++)
        if (grads[k] && right_grads[k])
            status =
                r->cfg.run.ops->add(r->s, &(add_args){.out = grads[k],
                                                      .a = grads[k],
                                                      .b = right_grads[k],
                                                      .elems = m->params[l->first_param + k].elems,
                                                      .round_to = r->cfg.run.reduce_dtype});
    device_free(r->s, vec);
    return status;
}

/* A parameter may share its gradient view with a tied parameter of a later layer, whose backward
 * has already run. Its gradient is then added to what the view holds. */
static void find_overwrites(const runner *r, const layer *l, bool *overwrite)
{
    const model *m = r->cfg.run.m;
    float **grads = r->cfg.views->grads;
    for (int k = 0; k < l->n_params; k++) {
        int p = l->first_param + k;
        overwrite[k] = true;
        for (int q = m->params[p].next_use; q > 0; q = m->params[q].next_use)
            if (q >= l->first_param + l->n_params && grads[q] == grads[p])
                overwrite[k] = false;
    }
}

fsdp_status runner_layer_backward(runner *r, int i, void *d_out, void *d_in)
{
    const layer *l = &r->cfg.run.m->layers[i];
    bool overwrite[LAYER_MAX_PARAMS];
    find_overwrites(r, l, overwrite);
    const leaf_node all = {
        .layer = i, .n = r->calls[i], .d_out = d_out, .d_in = d_in, .overwrite = overwrite};
    device_set_scope(r->cfg.run.dev, l->name, "backward");
    TRY(sum_leaves(r, &all, r->cfg.views->grads + l->first_param));
    return runner_unit_done(r, i, r->end_layer);
}
