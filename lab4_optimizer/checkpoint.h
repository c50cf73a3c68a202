/* checkpoint.h -- lab 4: checkpoints that any number of ranks can read.
 *
 *   ckpt_save and ckpt_load at any point between steps
 *     -> ckpt_pack, ckpt_unpack: between a shard and pieces of parameters
 *     -> ckpt_store.h, ckpt_source.h: the files */
#pragma once
#include "common/checkpoint/ckpt_source.h"
#include "lab4_optimizer/optimizer.h"

/* ---- 4.5 ------------------------------------------------------------------------------------- */
/* ckpt_pack -- yours: copy the pieces of rank's shard to out->values, and list them in out->pieces
 * [layout->n_slots] in the same order. */
fsdp_status ckpt_pack(const flat_layout *layout, int rank, const float *shard, ckpt_pieces *out);
/* ckpt_unpack -- yours: copy the parts of foreign pieces that fall into rank's shard.
 *   *n_elems  += the number of elements copied */
fsdp_status ckpt_unpack(const flat_layout *layout, int rank, const ckpt_pieces *in, float *shard,
                        size_t *n_elems);

/* ---- provided (ckpt_io.c) -------------------------------------------------------------------- */
/* ckpt_save -- write a checkpoint to the store. A rank's file holds the pieces of the parameters
 * and of m and v that lie in its world slice: so every element is written once, and padding never.
 *   collective  all ranks; every rank fails or none
 *   errors      FSDP_EIO, FSDP_ENOMEM; FSDP_ESTATE: ckpt_pack gave other pieces than there are */
fsdp_status ckpt_save(fsdp_optimizer *o, ckpt_store *to, int64_t next_step);
/* ckpt_load -- fill parameters and moments from a checkpoint that any number of ranks saved.
 *   collective  all ranks; every rank fails or none
 *   errors      FSDP_EIO, FSDP_ENOMEM; FSDP_EINVAL: ckpt_unpack placed too few or too many
 * elements. The parameters and moments are undefined then */
fsdp_status ckpt_load(fsdp_optimizer *o, const ckpt_source *from);
