/* ckpt_source.h -- a checkpoint to resume from, saved by any number of ranks.
 *
 *   ckpt_source_open -> ckpt_source_find, ckpt_source_read ... -> ckpt_source_close
 *
 * After ckpt_source_open every file has been read once and agrees with the manifest, and together
 * the files hold every element of every array exactly once. Only then may the caller change its own
 * state. Parameters that the saving run froze have no optimizer states in the files; such states
 * start at zero. */
#pragma once
#include "common/checkpoint/ckpt_store.h"
#include "common/weights/export.h"

typedef struct ckpt_source {
    char dir[PATH_MAX]; /* DIR/step-N; "": no checkpoint */
    ckpt_manifest manifest;
    ckpt_entries entries; /* by array, parameter and begin */
    size_t tp_blocks;     /* what the saving run had; 0: as many as the model here */
import weights;       /* set by ckpt_source_weights; values are then read from here */
} ckpt_source;

/* ckpt_source_open -- find a checkpoint and check it.
 *   now         world, m, about and optimizer of this run
 *   dir         a --save directory, or one DIR/step-N in it
 *   automatic   true: if the latest checkpoint is damaged or not finite, print a note and try the
 *               one before it; if dir has none at all, succeed with src->dir "". false: the latest
 *               must exist and be whole and finite
 *   change      comma-separated names of facts in now->about that may differ; NULL: none
 *   collective  all ranks of now->world; all fail or none; each rank hashes 1/W of the files
 *   errors      FSDP_ENOMEM; FSDP_EIO, FSDP_EINVAL: a missing or damaged file, another model, or a
 *               fact that differs; FSDP_EMISMATCH: ranks see different checkpoints */
fsdp_status ckpt_source_open(const ckpt_store *now, const char *dir, bool automatic,
                             const char *change, ckpt_source *src);
/* ckpt_source_peek -- read the manifest that ckpt_source_open would read first, and compare
 * nothing; *out is empty if it cannot be read. Not collective. */
void ckpt_source_peek(const char *dir, ckpt_manifest *out);
/* ckpt_source_weights -- open the weights in dir as a checkpoint that has only array 0, so that an
 * engine can load them. errors: any error of import_open; FSDP_ENOMEM. The caller closes src after
 * an error too. */
fsdp_status ckpt_source_weights(const char *dir, const model *m, ckpt_source *src);
/* ckpt_source_find -- the pieces of a parameter in one array, in ascending order; *n = their
 * number. Array 0 has the parameters, array k + 1 their state k. Valid until ckpt_source_close. */
const ckpt_entry *ckpt_source_find(const ckpt_source *src, int array, int param, size_t *n);
/* ckpt_source_read -- read elements [begin, begin + elems) of e's parameter, all in e's piece.
 *   values  [elems], host
 *   errors  FSDP_EIO; any error of import_read */
fsdp_status ckpt_source_read(const ckpt_source *src, const ckpt_entry *e, uint64_t begin,
                             size_t elems, float *values);
/* ckpt_source_range -- the elements of a piece, in the order in which m stores the whole parameter,
 * whatever the blocks of the run that saved. They must be there (ckpt_source_find).
 *   values  [piece.elems], host
 *   errors  as ckpt_source_read */
fsdp_status ckpt_source_range(const ckpt_source *src, const model *m, ckpt_piece piece, int array,
                              float *values);
/* ckpt_source_close -- free src; a zeroed struct is accepted. */
void ckpt_source_close(ckpt_source *src);
