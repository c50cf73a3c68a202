/* checkpoint.h -- lab 4: convert a shard to pieces of parameters that any number of ranks can read,
 * and back.
 *
 * A piece is a run of one parameter's elements: ckpt_piece {param, begin, elems}, begin counted
 * inside the parameter. ckpt_pieces {pieces [n_pieces], values, n_pieces} also has the values, one
 * piece after the other. */
#pragma once
#include "common/checkpoint/ckpt_file.h"
#include "lab1_flatparam/flat_layout.h"

/* ---- 4.5 ------------------------------------------------------------------------------------- */
/* ckpt_pack -- yours: copy the pieces of rank's shard to out->values, and list them in out->pieces
 * [layout->n_slots] in the same order. */
fsdp_status ckpt_pack(const flat_layout *layout, int rank, const float *shard, ckpt_pieces *out);
/* ckpt_unpack -- yours: copy the parts of pieces from any world size that lie in rank's shard.
 *   *n_elems  += the number of elements copied */
fsdp_status ckpt_unpack(const flat_layout *layout, int rank, const ckpt_pieces *in, float *shard,
                        size_t *n_elems);
