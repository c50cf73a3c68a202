/* freeze.c -- see freeze.h. */
#include "lab3_backward/freeze.h"
#include "lab2_forward/forward.h"
#include "lab2_forward/reshard_to.h"
#include "lab3_backward/backward.h"

static fsdp_status begin_micro(void *self, int a, int n_micro, bool training)
{
    const unit_hooks *h = &((freeze *)self)->inner;
    return h->begin_micro ? h->begin_micro(h->self, a, n_micro, training) : FSDP_OK;
}

static fsdp_status pre_forward(void *self, int u)
{
    freeze *z = self;
    const int c = z->r->f->units[u].own.companion;
    TRY(z->inner.pre_forward(z->inner.self, u));
    return c ? forward_pre_hook(z->r->f, c) : FSDP_OK;
}

static fsdp_status post_forward(void *self, int u)
{
    freeze *z = self;
    const int c = z->r->f->units[u].own.companion;
    if (c) {
        TRY(near_keep(z->r->f, c));
        TRY(forward_post_hook(z->r->f, c));
    }
    return z->inner.post_forward(z->inner.self, u);
}

static fsdp_status pre_backward(void *self, int u)
{
    freeze *z = self;
    const int c = z->r->f->units[u].own.companion;
    TRY(z->inner.pre_backward(z->inner.self, u));
    return c && !z->r->f->units[c].own.forward_only ? backward_pre_hook(z->r, c) : FSDP_OK;
}

static fsdp_status post_backward(void *self, int u)
{
    freeze *z = self;
    const int c = z->r->f->units[u].own.companion;
    if (c)
        TRY(backward_post_hook(z->r, c));
    return z->inner.post_backward(z->inner.self, u);
}

static fsdp_status end_backward(void *self)
{
    const unit_hooks *h = &((freeze *)self)->inner;
    return h->end_backward(h->self);
}

void freeze_hooks(reducer *r, freeze *out, unit_hooks *hooks)
{
    fsdp_unit *units = r->f->units;
    *out = (freeze){.r = r, .inner = *hooks};
    for (int u = 0; u < r->f->n_units; u++) { /* companions come after all others */
        if (units[u].own.companion)
            units[units[u].own.companion].stays_after_forward = units[u].stays_after_forward;
        if (units[u].own.forward_only && !units[u].stays_after_backward)
            units[u].stays_after_forward = false;
    }
    *hooks = (unit_hooks){.self = out,
                          .begin_micro = begin_micro,
                          .pre_forward = pre_forward,
                          .post_forward = post_forward,
                          .pre_backward = pre_backward,
                          .post_backward = post_backward,
                          .end_backward = end_backward};
}
