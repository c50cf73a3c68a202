/* loop.c -- the two loops that call the hooks: a forward and a backward pass over the layers.
 *
 *   begin_micro
 *   pre_forward(u)   forward   post_forward(u)      layers in order
 *   pre_backward(u)  backward  post_backward(u)     layers in reverse; each segment first runs
 *                                                   forward again
 *   end_backward
 *
 * A unit's hooks are called before the first and after the last of its layers. Backward ends at the
 * border, the first layer that trains a parameter: the layers before it run no backward, and no
 * hook of backward is called for them. With no hooks and resident parameters this is training on
 * one device. With the hooks of labs 2 and 3 it is FSDP; with the hooks of lab 5 it is FSDP with
 * overlap. With model.chunk_rows, the last layer computes its loss in backward, so the loss is
 * summed and `look` is called for it there. activations.c has the memory, leaf_sum.c the sums. */
#include "common/model/runner_impl.h"

static fsdp_status call_hook(fsdp_status (*hook)(void *, int), void *self, int unit)
{
    return hook ? hook(self, unit) : FSDP_OK;
}

static fsdp_status look(const runner *r, const micro_step *ms, runner_moment when, int i)
{
    if (!r->cfg.look || (ms && !ms->training))
        return FSDP_OK;
    return r->cfg.look(r->cfg.observer, r, ms, when, i);
}

/* Whether the loss of layer i is known only after its backward. */
static bool is_late(const runner *r, int i)
{
    const model *m = r->cfg.run.m;
    return r->ms.training && m->chunk_rows > 0 && i + 1 == m->n_layers;
}

static fsdp_status layer_forward(runner *r, int i)
{
    TRY(look(r, &r->ms, BEFORE_FORWARD, i));
    TRY(runner_layer_forward(r, i, r->ms.training));
    return is_late(r, i) ? FSDP_OK : look(r, &r->ms, AFTER_FORWARD, i);
}

fsdp_status runner_forward(runner *r, const micro_step *ms)
{
    const unit_hooks *h = &r->cfg.hooks;
    r->ms = *ms;
    TRY(runner_load(r, ms));
    if (h->begin_micro)
        TRY(h->begin_micro(h->self, ms->a, ms->n_micro, ms->training));
    for (int i = 0; i < r->cfg.run.m->n_layers; i++) {
        int u = r->cfg.layer_unit[i];
        if (i == r->first_layer[u])
            TRY(call_hook(h->pre_forward, h->self, u));
        TRY(layer_forward(r, i));
        if (i == r->last_layer[u])
            TRY(call_hook(h->post_forward, h->self, u));
    }
    return is_late(r, r->cfg.run.m->n_layers - 1) ? FSDP_OK : runner_sum_losses(r, ms->loss);
}

/* After backward of layer i, whose loss is late: make its calls of `look`, in the usual order. */
static fsdp_status take_late_loss(runner *r, int i)
{
    TRY(look(r, &r->ms, AFTER_FORWARD, i));
    TRY(look(r, NULL, BEFORE_BACKWARD, i));
    return runner_sum_losses(r, r->ms.loss);
}

/* The gradient of a layer's input is the gradient of the output of the layer before it. */
static fsdp_status layer_backward(runner *r, int i)
{
    const int n_done = r->cfg.run.m->n_layers - 1 - i, first = runner_segment_begin(r, i);
    void *const d[] = {r->d_ping, r->d_pong};
    if (i < r->border)
        return FSDP_OK;
    if (!is_late(r, i))
        TRY(look(r, NULL, BEFORE_BACKWARD, i));
    if (first >= 0)
        TRY(r->cfg.run_again(r, first, i));
    TRY(runner_layer_backward(r, i, n_done > 0 ? d[(n_done - 1) % 2] : NULL,
                              i > r->border ? d[n_done % 2] : NULL));
    return is_late(r, i) ? take_late_loss(r, i) : FSDP_OK;
}

fsdp_status runner_backward(runner *r)
{
    const unit_hooks *h = &r->cfg.hooks;
    for (int i = r->cfg.run.m->n_layers - 1; i >= 0; i--) {
        int u = r->cfg.layer_unit[i];
        if (i == r->begin_layer[u])
            TRY(call_hook(h->pre_backward, h->self, u));
        TRY(layer_backward(r, i));
        if (i == r->end_layer[u])
            TRY(call_hook(h->post_backward, h->self, u));
    }
    return h->end_backward ? h->end_backward(h->self) : FSDP_OK;
}
