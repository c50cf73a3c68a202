/* strategy.c -- task 3.5: how long a unit stays gathered, and what an unsharded one reduces to. */
#include "lab3_backward/backward.h"

bool keep_after_forward(sharding_strategy sharding, bool is_root)
{
    /* SOLUTION BEGIN 3.5 */
    /* STUB: return false; */
    return sharding != SHARDING_FULL || is_root;
    /* SOLUTION END 3.5 */
}

bool keep_after_backward(sharding_strategy sharding)
{
    /* SOLUTION BEGIN 3.5 */
    /* STUB: return false; */
    return sharding == SHARDING_NONE;
    /* SOLUTION END 3.5 */
}

fsdp_status strategy_post_forward_hook(void *self, int u)
{
    fsdp_backward *b = self;
    if (keep_after_forward(b->f->config.sharding, u == UNIT_ROOT))
        return FSDP_OK;
    return reshard(b->f, u);
}

fsdp_status grad_all_gather(fsdp_backward *b, int u)
{
    fsdp *f = b->f;
    const flat_layout *l = &f->units[u].layout;
    unit_grad *g = &b->grads[u];
    /* SOLUTION BEGIN 3.5 */
    comm *c = f->config.comm;
    float *full;
    TRY(comm_alloc_f32(c, f->compute, MEM_GRADS_SHARD, l->padded_elems, "gradient", &full));
    float *mine = full + (size_t)comm_rank(c) * l->shard_elems;
    fsdp_status status =
        device_copy(f->compute, mine, g->shard_grad, l->shard_elems * sizeof *mine);
    device_free(f->compute, g->shard_grad);
    g->shard_grad = full;
    TRY(status);
    TRY(event_record(g->computed, f->compute));
    TRY(stream_wait_event(f->comm_stream, g->computed));
    TRY(comm_all_gather(c, f->comm_stream, f->units[u].name, DTYPE_F32, mine, full,
                        l->shard_elems));
    TRY(event_record(g->reduced, f->comm_stream));
    return stream_wait_event(f->compute, g->reduced);
    /* SOLUTION END 3.5 */
}
