/* unshard.h -- lab 2, provided: calls on units that other provided code makes. */
#pragma once
#include "lab2_forward/forward.h"

/* fsdp_forward_hooks -- the table of hooks of a forward pass. */
unit_hooks fsdp_forward_hooks(fsdp *f);
/* unit_use_groups -- set the groups in f, which tasks read, to u's groups. */
void unit_use_groups(fsdp *f, int u);
/* unit_gather_array -- all-gather an array of unit u, of which this rank has `shard`
 * [shard_elems] in fp32, to *full [padded_elems], whatever param_dtype is: for exports of masters
 * and optimizer states. u is SHARDED, before and after. The caller frees *full, also after an
 * error, in order of the compute stream, which waits for the gather. */
fsdp_status unit_gather_array(fsdp *f, int u, float *shard, float **full);
/* reshard_all -- make every unit SHARDED, whatever its state, unless reshard is a no-op for it. */
fsdp_status reshard_all(fsdp *f);
