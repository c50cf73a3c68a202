/* checkpoint.h -- lab 4: checkpoints that any number of ranks can read.
 *
 *   ckpt_save and ckpt_load at any point between steps
 *     -> ckpt_pack, ckpt_unpack: between a shard and pieces of parameters
 *     -> ckpt_file.h: the files */
#pragma once
#include "lab4_optimizer/optimizer.h"

/* ---- 4.5 ------------------------------------------------------------------------------------- */
/* A run of one parameter's elements in a checkpoint file. */
typedef struct ckpt_piece {
    int32_t param;
    uint64_t begin, elems; /* inside the parameter */
} ckpt_piece;

/* Pieces of one array and their values, one after the other, in host memory of the caller. */
typedef struct ckpt_pieces {
    ckpt_piece *pieces; /* [n_pieces] */
    float *values;
    int n_pieces;
} ckpt_pieces;

/* ckpt_pack -- yours: copy the pieces of rank's shard to out->values, and list them in out->pieces
 * [layout->n_slots] in the same order. */
fsdp_status ckpt_pack(const flat_layout *layout, int rank, const float *shard, ckpt_pieces *out);
/* ckpt_unpack -- yours: copy the parts of foreign pieces that fall into rank's shard.
 *   *n_elems  += the number of elements copied */
fsdp_status ckpt_unpack(const flat_layout *layout, int rank, const ckpt_pieces *in, float *shard,
                        size_t *n_elems);

/* ---- provided (ckpt_io.c) -------------------------------------------------------------------- */
/* ckpt_save -- write DIR/rank-RRRRR.ckpt on every rank, then DIR/meta.json on rank 0. A rank's file
 * holds pieces (parameter, begin, elems) of the parameters and of m and v, those in its world
 * slice: so every element is written once, and padding never. Everything goes to DIR.tmp, is
 * fsynced, and is then renamed. An old DIR stays whole until then.
 *   collective  all ranks; every rank fails or none
 *   errors      FSDP_EIO, FSDP_ENOMEM */
fsdp_status ckpt_save(fsdp_optimizer *o, const char *dir, int64_t next_step);
/* ckpt_load -- read a checkpoint that any number of ranks saved. Every element must come once.
 *   collective  all ranks; every rank fails or none
 *   *next_step  the step that training goes on with
 *   errors      FSDP_EIO, FSDP_EINVAL: another model or optimizer, a missing or damaged file. The
 *               parameters and moments are undefined then */
fsdp_status ckpt_load(fsdp_optimizer *o, const char *dir, int64_t *next_step);
/* ckpt_exists -- whether dir, or the DIR.old of a save that was cut short, holds a checkpoint. */
bool ckpt_exists(const char *dir);
