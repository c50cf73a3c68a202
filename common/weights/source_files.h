/* source_files.h -- what an export takes over from the folder that the weights came from.
 *
 *   source_files_open -> export_begin ... -> source_files_close
 *
 * That is the text of config.json, and every other regular file (or link to one) of at most
 * SOURCE_FILE_MAX_BYTES whose name is not hidden and not of weights: tokenizer, generation_config,
 * licence, ... The files stay open, so an export needs nothing of the folder later. */
#pragma once
#include <limits.h>
#include <stddef.h>
#include "common/base/status.h"

enum { SOURCE_FILE_MAX_BYTES = 64 << 20, SOURCE_MAX_FILES = 256 };

typedef struct source_file {
    char name[NAME_MAX + 1];
    int fd;
    size_t bytes;
} source_file;

typedef struct source_files {
    char *config; /* the text of config.json */
    int n_files;
    source_file files[SOURCE_MAX_FILES]; /* [n_files] */
} source_files;

/* source_files_open -- open the files in dir. A larger file is left out with a note on stderr.
 *   errors  FSDP_EIO: a file that cannot be read; FSDP_EINVAL: too many files; s is closed then */
fsdp_status source_files_open(const char *dir, source_files *s);
/* source_files_close -- a zeroed or closed struct is accepted. */
void source_files_close(source_files *s);
