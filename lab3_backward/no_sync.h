/* no_sync.h -- lab 3, a star: gradients of several micro-steps are added on each rank, and reduced
 * once a step [FSDP §3.3.4].
 *
 *   --no-sync           run.no_sync: in all micro-steps but the last, reduce_begin keeps a unit's
 *                       gradient (no_sync_keep); in the last one it adds the kept gradients to the
 *                       new one (no_sync_join) and reduces the sum. A step reduces 1/A of the
 *                       bytes, and holds up to log2(A)+1 gradients of the whole model
 *   --no-sync=replicas  placement.n_reduce < W: every micro-step reduces inside the shard group
 *                       only, into a sum of layout.shard_elems. At the end of the step the replicas
 *                       of a shard add up their sums (replicas_reduce). The order of additions
 *                       depends on the mesh, so canonical mode refuses this
 *
 * In canonical mode the kept gradients are nodes of the sum's tree: a rank's sequences of a step
 * are adjacent (run_batch_node), so its micro-steps form a subtree. */
#pragma once
#include "lab3_backward/reducer.h"

/* ---- 3.9, a star: unscored ------------------------------------------------------------------- */
/* no_sync_keep -- add u's full_grad to its local sum at level run_batch_level(&f->run), then
 * full_grad_free. Do the same for each buffer that grad_buffer_next gives (second_use.h).
 * grad_acc_give, in common/sum/grad_acc.h, avoids a copy: it may keep the vector, and then sets
 * full_grad to NULL. reduce_wait has no work.
 *   owner  full_grad is NULL afterwards, and so are the gradient views */
fsdp_status no_sync_keep(reducer *r, int u);
/* no_sync_join -- add the local sum to full_grad in place (grad_acc_finish_into), so that the
 * reduction reads memory of comm_alloc. A no-op if nothing was kept. */
fsdp_status no_sync_join(reducer *r, int u);

/* ---- provided -------------------------------------------------------------------------------- */
/* grad_buffer_next -- for a loop over the buffers of g, from &g->buffer on: b->next, the one after
 * b, or NULL. */
static inline grad_buffer *grad_buffer_next(const unit_grad *g, const grad_buffer *b)
{
    (void)g;
    return b->next;
}
/* replicas_reduce -- replace shard_grad [layout.shard_elems], the sum of this shard group, by this
 * rank's slice of the sum over all replicas.
 *   order       a reduce-scatter on reduce_stream, after compute; compute waits for it
 *   collective  all replicas of the shard, units in the same order
 *   moves       (R-1)*slice.elems*dtype_bytes(reduce_dtype) sent per rank */
fsdp_status replicas_reduce(reducer *r, int u);
