/* grad_offload.h -- lab 3, provided: sums of gradients that live in host memory (lab 2's
 * host_state.h) between the reductions of a step. A reduction needs only the partial sums that it
 * adds to on the device: in canonical mode, the nodes of the tree that merge. grads_fetch and
 * grads_park do nothing unless config.shards is set; grad_park requires it. */
#pragma once
#include "lab3_backward/reducer.h"

/* grads_fetch -- bring u's partial sums to the device: the sums that the next reduction changes or,
 * if `all`, every sum.
 *   order  later work on `on` waits for the copies */
fsdp_status grads_fetch(reducer *r, int u, stream *on, bool all);
/* grads_park -- move u's partial sums, which `on` has written, to the host. */
fsdp_status grads_park(reducer *r, int u, stream *on);
/* grad_park -- move u's shard_grad [layout.shard_elems], which compute has written, to the host. */
fsdp_status grad_park(reducer *r, int u);
