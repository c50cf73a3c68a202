/* ckpt_source.h -- a checkpoint to resume from, whatever number of ranks saved it.
 *
 *   ckpt_source_open -> ckpt_source_find, ckpt_source_read ... -> ckpt_source_close
 *
 * When it is open, every file has been read once and agrees with the manifest, and together they
 * hold every element of every array once: only now may anything be changed. The states of
 * parameters that the saving run did not train are in no file, and start at zero. */
#pragma once
#include "common/checkpoint/ckpt_store.h"
#include "common/model/export.h"

typedef struct ckpt_source {
    char dir[PATH_MAX]; /* DIR/step-N; "": there is none */
    ckpt_manifest manifest;
    ckpt_entries entries; /* by array, parameter and begin */
import weights;       /* ckpt_source_weights: what is read in place of a checkpoint */
} ckpt_source;

/* ckpt_source_open -- find the checkpoint and check it.
 *   now         what the run is: world, m, about and optimizer
 *   dir         as given to --save, or one DIR/step-N in it
 *   automatic   if the latest checkpoint is not whole, or has values that are not finite, take the
 *               one before it, with a note on stderr; without any src->dir is "". Else there must
 *               be one, whole and finite
 *   change      facts of now->about that may differ
 *   collective  all ranks of now->world; all fail or none; each reads 1/W of the bytes
 *   errors      FSDP_ENOMEM; FSDP_EIO, FSDP_EINVAL: a missing or damaged file, another model */
fsdp_status ckpt_source_open(const ckpt_store *now, const char *dir, bool automatic,
                             const char *change, ckpt_source *src);
/* ckpt_source_weights -- present the weights in dir as a checkpoint of array 0 alone, for engines
 * to load. errors: any error of import_open; FSDP_ENOMEM. The caller closes src after errors as
 * well. */
fsdp_status ckpt_source_weights(const char *dir, const model *m, ckpt_source *src);
/* ckpt_source_find -- the pieces of a parameter in array 0 (parameter), or k + 1 (state k),
 * ascending; *n = how many. Valid until ckpt_source_close. */
const ckpt_entry *ckpt_source_find(const ckpt_source *src, int array, int param, size_t *n);
/* ckpt_source_read -- read elements [begin, begin + elems) of e's parameter, which the piece has.
 *   values  [elems], host
 *   errors  FSDP_EIO; any error of import_read */
fsdp_status ckpt_source_read(const ckpt_source *src, const ckpt_entry *e, uint64_t begin,
                             size_t elems, float *values);
/* ckpt_source_close -- free src; a zeroed struct is accepted. */
void ckpt_source_close(ckpt_source *src);
