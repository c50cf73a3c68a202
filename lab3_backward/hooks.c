/* hooks.c -- tasks 3.1, 3.2 and 3.6: the hooks of a backward pass, and the provided SGD. */
#include "lab3_backward/backward.h"

fsdp_status backward_pre_hook(void *self, int u)
{
    fsdp_backward *b = self;
    fsdp *f = b->f;
    /* SOLUTION BEGIN 3.1 */
    TRY(unshard_begin(f, u)); /* nothing happens for a unit that forward kept */
    TRY(unshard_wait(f, u));
    b->grads[u].visited = true;
    return f->units[u].frozen ? FSDP_OK : full_grad_alloc(b, u);
    /* SOLUTION END 3.1 */
}

fsdp_status backward_post_hook(void *self, int u)
{
    fsdp_backward *b = self;
    /* SOLUTION BEGIN 3.2 */
    if (!keep_after_backward(b->f->config.sharding))
        TRY(reshard(b->f, u));
    if (b->f->units[u].frozen)
        return FSDP_OK;
    TRY(reduce_begin(b, u));
    return reduce_wait(b, u);
    /* SOLUTION END 3.2 */
}

fsdp_status backward_end_hook(void *self)
{
    fsdp_backward *b = self;
    fsdp *f = b->f;
    /* SOLUTION BEGIN 3.6 */
    for (int u = f->n_units - 1; u >= 0; u--) {
        if (!b->grads[u].visited && !f->units[u].frozen) {
            TRY(full_grad_alloc(b, u));
            TRY(reduce_begin(b, u));
        }
        TRY(reduce_wait(b, u));
        if (!keep_after_backward(f->config.sharding))
            TRY(reshard(f, u));
        b->grads[u].visited = false;
    }
    return FSDP_OK;
    /* SOLUTION END 3.6 */
}

static fsdp_status pre_forward(void *self, int u)
{
    return forward_pre_hook(((fsdp_backward *)self)->f, u);
}

unit_hooks fsdp_backward_hooks(fsdp_backward *b)
{
    return (unit_hooks){.self = b,
                        .pre_forward = pre_forward,
                        .post_forward = strategy_post_forward_hook,
                        .pre_backward = backward_pre_hook,
                        .post_backward = backward_post_hook,
                        .end_backward = backward_end_hook};
}

fsdp_status sgd_step(fsdp_backward *b, float lr, float weight_decay, const float *grad_coef)
{
    fsdp *f = b->f;
    for (int u = 0; u < f->n_units; u++) {
        const flat_layout *l = &f->units[u].layout;
        size_t own = f->config.sharding == SHARDING_NONE ? l->padded_elems : l->shard_elems;
        if (f->units[u].frozen)
            continue;
        TRY(f->config.ops->sgd(f->compute, &(sgd_args){.param = f->units[u].shard,
                                                       .grad = b->grads[u].shard_grad,
                                                       .grad_coef = grad_coef,
                                                       .elems = own,
                                                       .lr = lr,
                                                       .weight_decay = weight_decay}));
    }
    return FSDP_OK;
}
