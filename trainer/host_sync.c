/* host_sync.c -- FSDP_HOST_SYNC=1: the host waits for the compute stream behind every unit, as a
 * program does that prints a figure there. A host that may not run ahead issues no gather early:
 * what prefetches implicitly stops to overlap, what prefetches explicitly goes on. */
#include "trainer/trainer.h"

static fsdp_status begin_micro(void *self, int a, int n_micro, bool training)
{
    const host_sync *h = self;
    return h->inner.begin_micro ? h->inner.begin_micro(h->inner.self, a, n_micro, training)
                                : FSDP_OK;
}

static fsdp_status pre_forward(void *self, int u)
{
    const host_sync *h = self;
    return h->inner.pre_forward ? h->inner.pre_forward(h->inner.self, u) : FSDP_OK;
}

static fsdp_status pre_backward(void *self, int u)
{
    const host_sync *h = self;
    return h->inner.pre_backward ? h->inner.pre_backward(h->inner.self, u) : FSDP_OK;
}

static fsdp_status post_forward(void *self, int u)
{
    const host_sync *h = self;
    if (h->inner.post_forward)
        TRY(h->inner.post_forward(h->inner.self, u));
    return stream_sync(h->compute);
}

static fsdp_status post_backward(void *self, int u)
{
    const host_sync *h = self;
    if (h->inner.post_backward)
        TRY(h->inner.post_backward(h->inner.self, u));
    return stream_sync(h->compute);
}

static fsdp_status end_backward(void *self)
{
    const host_sync *h = self;
    return h->inner.end_backward ? h->inner.end_backward(h->inner.self) : FSDP_OK;
}

unit_hooks host_sync_hooks(host_sync *h, const unit_hooks *inner, stream *compute)
{
    *h = (host_sync){.inner = *inner, .compute = compute};
    return (unit_hooks){.self = h,
                        .begin_micro = begin_micro,
                        .pre_forward = pre_forward,
                        .post_forward = post_forward,
                        .pre_backward = pre_backward,
                        .post_backward = post_backward,
                        .end_backward = end_backward};
}
