/* ckpt_file.h -- provided: the files behind ckpt_save and ckpt_load. ckpt_file.c has the format.
 *
 *   write: ckpt_file_write_begin -> ckpt_file_write ... -> ckpt_file_write_end -> ckpt_file_close
 *   read:  ckpt_file_open -> ckpt_file_read ... -> ckpt_file_read_end -> ckpt_file_close */
#pragma once
#include <limits.h>
#include "lab4_optimizer/checkpoint.h"

typedef struct ckpt_header {
    char magic[8];
    uint64_t n_pieces, n_values; /* of one array */
    uint64_t n_arrays;           /* 3: parameter and both moments; 1: parameter alone */
    uint64_t file, next_step;    /* so that parts of two checkpoints are not mixed */
} ckpt_header;

typedef struct ckpt_file {
    int fd;
    char path[PATH_MAX];
    uint64_t hash;
} ckpt_file;

typedef struct ckpt_meta {
    int64_t next_step, param_elems;
    int n_files, n_params, n_arrays;
} ckpt_meta;

/* ckpt_file_write_begin -- create rank's file in dir and write the header and the pieces. The
 * caller closes f also after a failure. */
fsdp_status ckpt_file_write_begin(const char *dir, int rank, const ckpt_header *header,
                                  const ckpt_piece *pieces, ckpt_file *f);
/* ckpt_file_write -- append values; an array may come in parts of any length. */
fsdp_status ckpt_file_write(ckpt_file *f, const float *values, size_t elems);
/* ckpt_file_write_end -- append the hash of everything before it, and fsync. */
fsdp_status ckpt_file_write_end(ckpt_file *f);
/* ckpt_file_open -- open file number `file` of dir, read its header and pieces, and check them. The
 * caller frees *pieces and closes f, also after a failure. */
fsdp_status ckpt_file_open(const char *dir, int file, ckpt_header *header, ckpt_piece **pieces,
                           ckpt_file *f);
/* ckpt_file_read -- the next elems values. */
fsdp_status ckpt_file_read(ckpt_file *f, float *values, size_t elems);
/* ckpt_file_read_end -- compare the hash; FSDP_EINVAL if the file is damaged. */
fsdp_status ckpt_file_read_end(ckpt_file *f);
/* ckpt_file_close -- close f; f->fd may be -1. */
void ckpt_file_close(ckpt_file *f);

/* ckpt_meta_write -- write DIR/meta.json and fsync it. */
fsdp_status ckpt_meta_write(const char *dir, const ckpt_meta *meta);
/* ckpt_meta_read -- read DIR/meta.json and check its ranges. */
fsdp_status ckpt_meta_read(const char *dir, ckpt_meta *meta);

/* ckpt_sibling -- out = DIR + suffix, without slashes at the end of DIR. */
fsdp_status ckpt_sibling(const char *dir, const char *suffix, char out[PATH_MAX]);
/* ckpt_remove_dir -- remove DIR and all checkpoint files in it; OK if DIR does not exist. */
fsdp_status ckpt_remove_dir(const char *dir);
/* ckpt_publish_dir -- rename DIR.tmp to DIR. */
fsdp_status ckpt_publish_dir(const char *dir);
/* ckpt_hash -- the hash of data appended to what `hash` is the hash of; 0 is that of nothing. */
uint64_t ckpt_hash(uint64_t hash, const void *data, size_t bytes);
