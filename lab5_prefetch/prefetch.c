/* prefetch.c -- tasks 5.1 to 5.3 and 5.5: which unit comes next, when its gather is issued, and
 * reductions that run while the next unit computes. */
#include "common/device/device_calls.h"
#include "lab2_forward/forward.h"
#include "lab5_prefetch/prefetch.h"

/* ---- the order of units ---------------------------------------------------------------------- */

fsdp_status order_begin(exec_order *o)
{
    /* SOLUTION BEGIN 5.1 */
    if (o->complete && o->next < o->n) {
        o->n = o->next;
        o->changes++;
    }
    o->complete = o->n > 0;
    o->next = 0;
    return FSDP_OK;
    /* SOLUTION END 5.1 */
}

fsdp_status order_visit(exec_order *o, int u)
{
    /* SOLUTION BEGIN 5.1 */
    bool expected = o->next < o->n && o->units[o->next] == u;
    if (!expected && o->complete) {
        o->complete = false;
        o->changes++;
    }
    if (!expected) {
        o->units[o->next] = u;
        o->n = o->next + 1;
    }
    o->next++;
    return FSDP_OK;
    /* SOLUTION END 5.1 */
}

fsdp_status prefetch_post_forward(void *self, int u)
{
    prefetch *p = self;
    /* SOLUTION BEGIN 5.1 */
    TRY(order_visit(&p->post_forward, u));
    return forward_post_hook(p->r->f, u);
    /* SOLUTION END 5.1 */
}

/* ---- prefetch -------------------------------------------------------------------------------- */

fsdp_status prefetch_backward(prefetch *p, int u)
{
    /* SOLUTION BEGIN 5.2 */
    int next = order_before(&p->post_forward, u);
    if (next == NO_UNIT || p->r->grads[next].visited)
        return FSDP_OK;
    return prefetch_unshard(p, next, true);
    /* SOLUTION END 5.2 */
}

fsdp_status prefetch_pre_backward(void *self, int u)
{
    prefetch *p = self;
    prefetch_mode mode = p->config.mode;
    /* SOLUTION BEGIN 5.2 */
    TRY(prefetch_unshard(p, u, false));
    TRY(backward_pre_hook(p->r, u));
    if (mode == PREFETCH_BACKWARD || mode == PREFETCH_BOTH)
        return prefetch_backward(p, u);
    return FSDP_OK;
    /* SOLUTION END 5.2 */
}

fsdp_status prefetch_pre_forward(void *self, int u)
{
    prefetch *p = self;
    prefetch_mode mode = p->config.mode;
    /* SOLUTION BEGIN 5.3 */
    TRY(prefetch_unshard(p, u, false));
    TRY(unshard_wait(p->r->f, u));
    TRY(order_visit(&p->forward, u));
    int next = order_after(&p->forward, u);
    if (next == NO_UNIT || (mode != PREFETCH_FORWARD && mode != PREFETCH_BOTH))
        return FSDP_OK;
    return prefetch_unshard(p, next, true);
    /* SOLUTION END 5.3 */
}

/* ---- what overlaps with backward, and where a step begins and ends --------------------------- */

fsdp_status prefetch_begin_micro(void *self, int a, int n_micro, bool training)
{
    prefetch *p = self;
    (void)n_micro;
    (void)training;
    /* SOLUTION BEGIN 5.5 */
    if (a > 0)
        return FSDP_OK;
    p->r->f->gather_after = p->updated;
    return event_record(p->updated, p->r->f->compute);
    /* SOLUTION END 5.5 */
}

fsdp_status prefetch_post_backward(void *self, int u)
{
    prefetch *p = self;
    /* SOLUTION BEGIN 5.5 */
    TRY(reshard(p->r->f, u));
    if (p->config.mode == PREFETCH_BACKWARD_POST)
        TRY(prefetch_backward(p, u));
    if (p->reducing != NO_UNIT)
        TRY(reduce_wait(p->r, p->reducing));
    p->reducing = u;
    return reduce_begin(p->r, u);
    /* SOLUTION END 5.5 */
}

fsdp_status prefetch_end_backward(void *self)
{
    prefetch *p = self;
    /* SOLUTION BEGIN 5.5 */
    for (int u = 0; u < p->r->f->n_units; u++)
        TRY(unshard_drop(p->r->f, u));
    p->reducing = NO_UNIT;
    return backward_end_hook(p->r);
    /* SOLUTION END 5.5 */
}
