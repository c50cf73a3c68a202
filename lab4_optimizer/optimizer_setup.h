/* optimizer_setup.h -- lab 4, provided: the optimizer's memory; checkpoints that any number of
 * ranks can read.
 *
 *   optimizer_create -> per step: optimizer_step -> optimizer_free
 *   ckpt_save and ckpt_load at any point between steps
 *     -> ckpt_pack, ckpt_unpack: convert a shard to pieces of parameters, and back
 *     -> ckpt_store.h, ckpt_source.h: the files */
#pragma once
#include "common/checkpoint/ckpt_source.h"
#include "lab4_optimizer/optimizer.h"

/* optimizer_create -- make the ranges and the states of every unit, for r->f->run.optimizer.
 *   r       must outlive the optimizer, and must not move
 *   errors  FSDP_ENOMEM, and errors of decay_ranges; nothing is left behind */
fsdp_status optimizer_create(reducer *r, fsdp_optimizer *o);
/* optimizer_free -- free everything; a zeroed struct is accepted. */
void optimizer_free(fsdp_optimizer *o);

/* ckpt_unit_array -- this rank's shard of array k (0: parameters, k + 1: state k) of unit u, on the
 * device or the host (offload); NULL for the states of a frozen unit, or if only o->r is set. */
float *ckpt_unit_array(const fsdp_optimizer *o, int u, int k);
/* ckpt_save -- write a checkpoint to the store. A rank's file holds the elements of parameters
 * and states in its world slice, so every element is written once, and padding is never written.
 *   collective  all ranks; every rank fails or none
 *   errors      FSDP_EIO, FSDP_ENOMEM; FSDP_ESTATE: ckpt_pack gave wrong pieces */
fsdp_status ckpt_save(fsdp_optimizer *o, ckpt_store *to, int64_t next_step);
/* ckpt_saved_elems -- *out = an upper bound for the number of floats in this rank's file. Fails if
 * ckpt_save would not work: before training, not after it. */
fsdp_status ckpt_saved_elems(const fsdp_optimizer *o, size_t *out);
/* ckpt_load -- fill parameters and states from a checkpoint that any number of ranks saved.
 *   collective  all ranks; every rank fails or none
 *   errors      FSDP_EIO, FSDP_ENOMEM; FSDP_EINVAL: ckpt_unpack placed too few or too many
 *               elements. After an error parameters and states are undefined */
fsdp_status ckpt_load(fsdp_optimizer *o, const ckpt_source *from);
