/* checkpoint.h -- the files behind ckpt_save and ckpt_load (provided). Format: checkpoint.c. */
#pragma once
#include <limits.h>
#include "lab4_optimizer/optimizer.h"

typedef struct ckpt_header {
    char magic[8];
    uint64_t n_pieces, n_values; /* values of one array */
    uint64_t n_arrays;           /* 3: parameter and both moments; 1: parameter alone */
    uint64_t file, next_step;    /* which file of which checkpoint: parts of two cannot be mixed */
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

/* Writing: begin, the arrays in pieces of any length, end, close. Reading: open (*pieces is freed
 * by the caller, also on failure), the arrays, end (compares the hash), close (fd may be -1). */
fsdp_status ckpt_file_write_begin(const char *dir, int rank, const ckpt_header *header,
                                  const ckpt_piece *pieces, ckpt_file *f);
fsdp_status ckpt_file_write(ckpt_file *f, const float *values, size_t elems);
fsdp_status ckpt_file_write_end(ckpt_file *f);
fsdp_status ckpt_file_open(const char *dir, int file, ckpt_header *header, ckpt_piece **pieces,
                           ckpt_file *f);
fsdp_status ckpt_file_read(ckpt_file *f, float *values, size_t elems);
fsdp_status ckpt_file_read_end(ckpt_file *f);
void ckpt_file_close(ckpt_file *f);

fsdp_status ckpt_meta_write(const char *dir, const ckpt_meta *meta);
fsdp_status ckpt_meta_read(const char *dir, ckpt_meta *meta);

/* ckpt_sibling -- out = DIR + suffix, slashes at the end of DIR left out.
 * ckpt_remove_dir -- DIR with all files of a checkpoint; none is fine. ckpt_publish_dir -- DIR.tmp
 * becomes DIR. */
fsdp_status ckpt_sibling(const char *dir, const char *suffix, char out[PATH_MAX]);
fsdp_status ckpt_remove_dir(const char *dir);
fsdp_status ckpt_publish_dir(const char *dir);
uint64_t ckpt_hash(uint64_t hash, const void *data, size_t bytes);
