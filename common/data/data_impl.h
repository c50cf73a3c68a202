/* data_impl.h -- what the sources of common/data share. Private to them and to their tests. */
#pragma once
#include <stdbool.h>
#include "common/data/data.h"

/* corpus_reserve -- have at least that many bytes at c->mapping, which may move; what is there
 * stays. errors  FSDP_ENOMEM */
fsdp_status corpus_reserve(corpus *c, size_t bytes);
/* file_append -- read a regular file to where c's tokens end; c->n_tokens stays as it is.
 *   errors  FSDP_EIO with the path and the reason; FSDP_ENOMEM */
fsdp_status file_append(const char *path, corpus *c, size_t *file_bytes);

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
/* token_file_take -- what file_append has just read is a token file: check it and add its tokens to
 * those of c.
 *   errors  those of token_file_check */
fsdp_status token_file_take(const char *path, size_t file_bytes, size_t vocab_limit, corpus *c);
/* corpus_add_files -- join several files, in order: texts (token_bytes 1, vocab_limit BYTE_VOCAB)
 * or token files (2).
 *   errors  as file_append and token_file_check */
fsdp_status corpus_add_files(const path_list *l, int token_bytes, size_t vocab_limit, corpus *out);

enum { SHARD_HEADER_BYTES = 1024, BYTE_VOCAB = 256 };

/* corpus_open_texts -- corpus_open_default for any directory. */
fsdp_status corpus_open_texts(const char *dir, size_t seq_len, corpus *out, const char **note);
/* corpus_check_length -- FSDP_EINVAL unless c holds one sequence of seq_len and its last target. */
fsdp_status corpus_check_length(const corpus *c, size_t seq_len);
