/* data_impl.h -- what the sources of common/data share. Private to them and to their tests. */
#pragma once
#include <stdbool.h>
#include "common/data/data.h"

/* file_map -- a read-only mapping of a regular file. *bytes NULL and *file_bytes 0 for an empty
 * one. The file must not be shortened while it is mapped. Owner: caller (munmap). errors  FSDP_EIO
 * with the path and the system's words                                        */
fsdp_status file_map(const char *path, const void **bytes, size_t *file_bytes);
void file_unmap(const void *bytes, size_t file_bytes);

/* anon_map -- zeroed memory, given back by munmap (as a file's mapping is). */
fsdp_status anon_map(size_t bytes, const char *what, void **out);

/* path_list -- owned names in order of strcmp. */
typedef struct path_list {
    char **paths;
    size_t n;
} path_list;

/* path_list_dir -- the regular files of dir ("dir/name") whose names end in `suffix` ("" takes
 * all); symbolic links are left out when skip_links. errors: FSDP_EIO, FSDP_ENOMEM. */
fsdp_status path_list_dir(const char *dir, const char *suffix, bool skip_links, path_list *out);
/* path_list_glob -- what the pattern matches. errors: FSDP_EIO when that is nothing. */
fsdp_status path_list_glob(const char *pattern, path_list *out);
void path_list_free(path_list *l); /* a zeroed struct is accepted */

/* token_file_is -- the path ends in ".bin" or the file begins with a token file's magic number. */
bool token_file_is(const char *path, const void *bytes, size_t file_bytes);
/* token_file_check -- *n_tokens from a whole token file in memory; header, length and every token.
 *   errors  FSDP_EINVAL naming path, field, got and expected                                     */
fsdp_status token_file_check(const char *path, const void *bytes, size_t file_bytes,
                             size_t vocab_limit, size_t *n_tokens);
/* token_files_open -- several token files joined, in order. */
fsdp_status token_files_open(const path_list *l, size_t vocab_limit, corpus *out);

enum { SHARD_HEADER_BYTES = 1024 };

/* corpus_open_texts -- corpus_open_default for any directory. */
fsdp_status corpus_open_texts(const char *dir, size_t seq_len, corpus *out, const char **note);
/* corpus_check_length -- error unless c holds at least one sequence of seq_len and its target. */
fsdp_status corpus_check_length(const corpus *c, size_t seq_len);
