/* ckpt_file.h -- one rank's file of a checkpoint, in the safetensors format.
 *
 *   write: ckpt_out_open -> ckpt_out_write ... -> ckpt_out_finish -> ckpt_out_close
 *   read:  ckpt_file_sum, to compare with the manifest -> ckpt_file_list -> ckpt_source_read
 *
 * Each piece of each array is a tensor of one dimension: "transformer.h.0.ln_1.bias@32.m" holds the
 * first moments of that parameter from element 32 on. The parameters of all pieces (.p) come first,
 * then the optimizer states of the trained parameters, under their names in optimizers.h (.m and
 * .v for AdamW). __metadata__ names the run, the step and the rank, so that files of two
 * checkpoints are not mixed. The file of a rank without pieces holds no tensors. */
#pragma once
#include <limits.h>
#include "common/model/unit.h"
#include "common/ops/optimizers.h"
#include "common/weights/safetensors.h"

enum { CKPT_RUN_BYTES = 17, CKPT_NAME_ROOM = 128 };
#define CKPT_FORMAT     "fsdp-labs-checkpoint-2"
#define CKPT_OTHER_HINT "resume from another checkpoint"

/* Consecutive elements of one parameter. */
typedef struct ckpt_piece {
    int32_t param;
    uint64_t begin, elems; /* inside the parameter */
    const char *unit;      /* for messages, set only when saving; borrowed */
} ckpt_piece;

/* Pieces of one array, and their values one piece after the other, in the caller's host memory. */
typedef struct ckpt_pieces {
    ckpt_piece *pieces; /* [n_pieces] */
    float *values;
    int n_pieces;
} ckpt_pieces;

/* What a file's header says: which checkpoint and which rank the file belongs to. */
typedef struct ckpt_id {
    char run[CKPT_RUN_BYTES];        /* 16 hex digits: the run's id, kept when the run is resumed */
    int64_t step;                    /* the next step to train */
    int file, n_files;               /* the rank that saved it; number of ranks */
    int n_arrays;                    /* 1 for the parameters + the states of the optimizer */
    const optimizer_rule *optimizer; /* NULL after ckpt_manifest_read */
    uint64_t shape;                  /* see ckpt_shape */
} ckpt_id;

typedef struct ckpt_sum {
    uint64_t bytes, xxh3; /* of the whole file; xxh3 is what xxhsum -H3 prints */
} ckpt_sum;

/* ckpt_has -- whether a checkpoint holds array k of parameter p (0: the parameter, k: state k - 1).
 * Only trained parameters have optimizer states. p must not be tied to another parameter. */
bool ckpt_has(const model *m, int p, int k);
/* ckpt_shape -- a hash of the names and shapes of all parameters. */
uint64_t ckpt_shape(const model *m);
/* ckpt_plain_dir -- out = dir without trailing slashes.
 *   errors  FSDP_EINVAL: too long to append a name of CKPT_NAME_ROOM bytes */
fsdp_status ckpt_plain_dir(const char *dir, char out[PATH_MAX]);
/* ckpt_path_of -- DIR/NAME; ckpt_step_path -- DIR/step-N; ckpt_file_path --
 * DIR/rank-00007.safetensors. dir is a result of ckpt_plain_dir, or a directory right below it. */
typedef struct ckpt_path {
    char text[PATH_MAX];
} ckpt_path;
ckpt_path ckpt_path_of(const char *dir, const char *name);
ckpt_path ckpt_step_path(const char *dir, int64_t step);
ckpt_path ckpt_file_path(const char *dir, int file);
/* ckpt_no_memory -- report that host memory ran out: FSDP_ENOMEM. */
fsdp_status ckpt_no_memory(void);

/* Where values come from, for error messages. */
typedef struct ckpt_origin {
    const char *what;                /* "checkpoint", "export" */
    const model *m;                  /* borrowed */
    const optimizer_rule *optimizer; /* NULL: there are only parameters */
    int64_t step;
    int64_t newest; /* step of the newest checkpoint; 0: none */
} ckpt_origin;

/* ckpt_check_finite -- refuse an infinity or NaN: training has diverged and cannot go on from it.
 *   values  [piece->elems] of array k (0: the parameter, k: state k - 1)
 *   errors  FSDP_EINVAL naming step, unit and parameter; the hint names the step to resume from, if
 *           there is one */
fsdp_status ckpt_check_finite(const ckpt_origin *of, const ckpt_piece *piece, int k,
                              const float *values);

typedef struct ckpt_out {
    FILE *out;   /* NULL: not open */
    float *copy; /* [expected_bytes / 4] values are copied here; NULL: they are written to `out` */
    ckpt_origin of;
    ckpt_path path;
    struct XXH3_state_s *hash;
    uint64_t bytes, expected_bytes;
} ckpt_out;

/* ckpt_out_open -- create file number id->file in dir, and write its header. Then pass the values
 * of all pieces to ckpt_out_write, array after array.
 *   errors  FSDP_EIO, FSDP_ENOMEM; the caller closes f after an error too */
fsdp_status ckpt_out_open(const char *dir, const ckpt_id *id, const model *m,
                          const ckpt_pieces *list, ckpt_out *f);
/* ckpt_out_write -- write array k of the next piece; do nothing if ckpt_has is false for it.
 *   values  [piece->elems]
 *   errors  FSDP_EIO; any error of ckpt_check_finite */
fsdp_status ckpt_out_write(ckpt_out *f, const ckpt_piece *piece, int k, const float *values);
/* ckpt_out_finish -- sync the file; *sum = its size and hash, for the manifest.
 *   errors  FSDP_ESTATE: values are missing; FSDP_EIO */
fsdp_status ckpt_out_finish(ckpt_out *f, ckpt_sum *sum);
/* ckpt_out_close -- close the file and free f's memory, also after a failure. */
void ckpt_out_close(ckpt_out *f);

/* ckpt_file_sum -- read a whole regular file to get its size and hash.
 *   diverged  byte offset of the first infinity or NaN if the whole file is read as floats; 0:
 *             none. The header holds no such float, because none of its bytes is 0x7f or 0xff
 *   errors    FSDP_EIO, FSDP_ENOMEM */
fsdp_status ckpt_file_sum(const char *path, ckpt_sum *sum, uint64_t *diverged);

/* One tensor of a file. */
typedef struct ckpt_entry {
    ckpt_piece piece;
    int array, file;
    size_t at; /* byte offset in the file */
} ckpt_entry;

typedef struct ckpt_entries {
    ckpt_entry *list; /* [n], owned */
    size_t n, room;
} ckpt_entries;

/* ckpt_file_list -- append the tensors of file number id->file in dir to *out.
 *   errors  FSDP_EIO; FSDP_EINVAL: the file is damaged, or does not belong to *id; FSDP_ENOMEM */
fsdp_status ckpt_file_list(const char *dir, const ckpt_id *id, const model *m, ckpt_entries *out);
/* ckpt_file_is_of -- whether the header of rank 0's file in dir names that run and step. */
bool ckpt_file_is_of(const char *dir, const char *run, int64_t step);
