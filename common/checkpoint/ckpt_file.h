/* ckpt_file.h -- one rank's file of a checkpoint, in the form of safetensors.
 *
 *   write: ckpt_out_open -> ckpt_out_write ... -> ckpt_out_finish -> ckpt_out_close
 *   read:  ckpt_file_sum, to compare -> ckpt_file_list -> ckpt_source_read
 *
 * Each piece of each array is a tensor of one dimension: "transformer.h.0.ln_1.bias@32.m" is the
 * first moment of that parameter from element 32 on. First come the parameters of all pieces (.p),
 * then the optimizer's states of trained parameters, by their names in optimizers.h (.m and .v of
 * AdamW). __metadata__ names the run, step and rank of the
 * file, so that parts of two checkpoints are not mixed. A rank without pieces writes no tensor. */
#pragma once
#include <limits.h>
#include "common/model/safetensors.h"
#include "common/model/unit.h"
#include "common/ops/optimizers.h"

enum { CKPT_RUN_BYTES = 17, CKPT_NAME_ROOM = 128 };
#define CKPT_FORMAT     "fsdp-labs-checkpoint-2"
#define CKPT_OTHER_HINT "resume from another checkpoint"

/* A run of one parameter's elements. */
typedef struct ckpt_piece {
    int32_t param;
    uint64_t begin, elems; /* inside the parameter */
    const char *unit;      /* of a piece that is saved, for messages; borrowed */
} ckpt_piece;

/* Pieces of one array and their values, one after the other, in host memory of the caller. */
typedef struct ckpt_pieces {
    ckpt_piece *pieces; /* [n_pieces] */
    float *values;
    int n_pieces;
} ckpt_pieces;

/* What a file of a checkpoint says about itself. */
typedef struct ckpt_id {
    char run[CKPT_RUN_BYTES]; /* 16 hex digits: the run, however often it was resumed */
    int64_t step;             /* that training goes on with */
    int file, n_files;
    int n_arrays;                    /* 1, the parameters, and the states of the optimizer */
    const optimizer_rule *optimizer; /* NULL in a manifest that was only read */
    uint64_t shape;                  /* see ckpt_shape */
} ckpt_id;

typedef struct ckpt_sum {
    uint64_t bytes, xxh3; /* of the whole file, as xxhsum -H3 prints it */
} ckpt_sum;

/* ckpt_has -- whether a run saves array k of parameter p. Only trained parameters have states. */
bool ckpt_has(const model *m, int p, int k);
/* ckpt_shape -- a hash of the names and shapes of all parameters. */
uint64_t ckpt_shape(const model *m);
/* ckpt_plain_dir -- out = dir without slashes at its end.
 *   errors  FSDP_EINVAL: too long for a name of CKPT_NAME_ROOM bytes behind it */
fsdp_status ckpt_plain_dir(const char *dir, char out[PATH_MAX]);
/* ckpt_path_of -- DIR/NAME; ckpt_step_path -- DIR/step-N; ckpt_file_path --
 * DIR/rank-00007.safetensors. dir: as ckpt_plain_dir gave it, or one DIR/NAME in it. */
typedef struct ckpt_path {
    char text[PATH_MAX];
} ckpt_path;
ckpt_path ckpt_path_of(const char *dir, const char *name);
ckpt_path ckpt_step_path(const char *dir, int64_t step);
ckpt_path ckpt_file_path(const char *dir, int file);
/* ckpt_no_memory -- FSDP_ENOMEM, in words. */
fsdp_status ckpt_no_memory(void);

/* Where values come from, for messages. */
typedef struct ckpt_origin {
    const char *what;                /* "checkpoint", "export" */
    const model *m;                  /* borrowed */
    const optimizer_rule *optimizer; /* NULL: of parameters alone */
    int64_t step;
    int64_t newest; /* step of the newest checkpoint; 0: there is none */
} ckpt_origin;

/* ckpt_first_not_finite -- the index of the first infinity or NaN; n if there is none. */
size_t ckpt_first_not_finite(const float *values, size_t n);
/* ckpt_check_finite -- refuse values that have diverged: training cannot go on from them.
 *   values  [piece->elems] of array k (parameter, states)
 *   errors  FSDP_EINVAL naming step, unit and parameter, with the step to go back to in the hint */
fsdp_status ckpt_check_finite(const ckpt_origin *of, const ckpt_piece *piece, int k,
                              const float *values);

typedef struct ckpt_out {
    FILE *out;   /* NULL: not open */
    float *copy; /* where values go instead, of expected_bytes at most; NULL: to the file */
    ckpt_origin of;
    ckpt_path path;
    struct XXH3_state_s *hash;
    uint64_t bytes, expected_bytes;
} ckpt_out;

/* ckpt_out_open -- create file number id->file in dir, and write its header. The values of all
 * pieces follow, array after array.
 *   errors  FSDP_EIO, FSDP_ENOMEM; the caller closes f in any case */
fsdp_status ckpt_out_open(const char *dir, const ckpt_id *id, const model *m,
                          const ckpt_pieces *list, ckpt_out *f);
/* ckpt_out_write -- array k of the next piece; nothing if a run does not save that.
 *   values  [piece->elems]
 *   errors  FSDP_EIO; any error of ckpt_check_finite */
fsdp_status ckpt_out_write(ckpt_out *f, const ckpt_piece *piece, int k, const float *values);
/* ckpt_out_finish -- sync the file; *sum = what the manifest says about it.
 *   errors  FSDP_ESTATE values are missing; FSDP_EIO */
fsdp_status ckpt_out_finish(ckpt_out *f, ckpt_sum *sum);
/* ckpt_out_close -- close f; also after a failure. */
void ckpt_out_close(ckpt_out *f);

/* ckpt_file_sum -- read all of a regular file.
 *   diverged  place of the first infinity or NaN; 0: there is none. The text of a header has none:
 *             no character is 0x7f or 0xff
 *   errors    FSDP_EIO, FSDP_ENOMEM */
fsdp_status ckpt_file_sum(const char *path, ckpt_sum *sum, uint64_t *diverged);

/* One tensor of a file. */
typedef struct ckpt_entry {
    ckpt_piece piece;
    int array, file;
    size_t at; /* its first byte in the file */
} ckpt_entry;

typedef struct ckpt_entries {
    ckpt_entry *list; /* [n], owned */
    size_t n, room;
} ckpt_entries;

/* ckpt_file_list -- append the tensors of file number id->file in dir to *out.
 *   errors  FSDP_EIO; FSDP_EINVAL: not a file of *id, or a damaged one; FSDP_ENOMEM */
fsdp_status ckpt_file_list(const char *dir, const ckpt_id *id, const model *m, ckpt_entries *out);
/* ckpt_file_is_of -- whether the first file in dir says that it is of that run and step. */
bool ckpt_file_is_of(const char *dir, const char *run, int64_t step);
