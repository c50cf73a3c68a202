/* data_impl.h -- what the sources of common/data share. Private to them and to their tests. */
#pragma once
#include <stdbool.h>
#include "common/data/data.h"

/* file_map -- map a regular file for reading; the caller unmaps it. It must not be shortened until
 * then. An empty file gives *bytes NULL and *file_bytes 0.
 *   errors  FSDP_EIO with the path and the system's reason */
fsdp_status file_map(const char *path, const void **bytes, size_t *file_bytes);
/* file_unmap -- unmap what file_map gave; NULL is accepted. */
void file_unmap(const void *bytes, size_t file_bytes);

/* anon_map -- zeroed memory, given back by munmap like a file's mapping. errors: FSDP_ENOMEM. */
fsdp_status anon_map(size_t bytes, const char *what, void **out);

/* path_list -- owned names, in the order of strcmp. */
typedef struct path_list {
    char **paths;
    size_t n;
} path_list;

/* path_list_dir -- the regular files of dir ("dir/name") whose names end in `suffix`; "" takes all.
 * skip_links leaves symbolic links out.
 *   errors  FSDP_EIO, FSDP_ENOMEM; nothing is left behind */
fsdp_status path_list_dir(const char *dir, const char *suffix, bool skip_links, path_list *out);
/* path_list_glob -- the files that match the pattern.
 *   errors  FSDP_EIO if there are none; FSDP_ENOMEM; nothing is left behind */
fsdp_status path_list_glob(const char *pattern, path_list *out);
/* path_list_free -- free the names; a zeroed struct is accepted. */
void path_list_free(path_list *l);

/* token_file_is -- whether path ends in ".bin" or the file begins with a token file's magic. */
bool token_file_is(const char *path, const void *bytes, size_t file_bytes);
/* token_file_check -- check header, length and every token of a whole token file in memory;
 * *n_tokens = their number.
 *   errors  FSDP_EINVAL naming path and field, got and expected */
fsdp_status token_file_check(const char *path, const void *bytes, size_t file_bytes,
                             size_t vocab_limit, size_t *n_tokens);
/* token_files_open -- join several token files, in order.
 *   errors  those of file_map, token_file_check and anon_map; FSDP_EIO if a file grows meanwhile */
fsdp_status token_files_open(const path_list *l, size_t vocab_limit, corpus *out);

enum { SHARD_HEADER_BYTES = 1024 };

/* corpus_open_texts -- corpus_open_default for any directory. */
fsdp_status corpus_open_texts(const char *dir, size_t seq_len, corpus *out, const char **note);
/* corpus_check_length -- FSDP_EINVAL unless c holds one sequence of seq_len and its last target. */
fsdp_status corpus_check_length(const corpus *c, size_t seq_len);
