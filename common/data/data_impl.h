/* data_impl.h -- what the sources of common/data share. Private to them and to their tests. */
#pragma once
#include <stdbool.h>
#include "common/data/data.h"

/* corpus_reserve -- make room for `bytes` bytes at c->tokens, which may move; its contents stay.
 *   errors  FSDP_ENOMEM */
fsdp_status corpus_reserve(corpus *c, size_t bytes);
/* file_append -- read a regular file to where c's tokens end; c->n_tokens stays as it is.
 *   errors  FSDP_EIO with the path and the reason; FSDP_ENOMEM */
fsdp_status file_append(const char *path, corpus *c, size_t *file_bytes);

/* corpus_add_dir -- append the regular files of dir in name order: as texts if c->token_bytes is 1,
 * links left out; if it is 2, those called *.bin, as token files.
 *   errors  FSDP_EIO, FSDP_ENOMEM; as file_append and token_file_check */
fsdp_status corpus_add_dir(const char *dir, corpus *c);
/* corpus_add_glob -- append the token files that match the pattern, in name order.
 *   errors  FSDP_EIO if there are none; FSDP_ENOMEM; as file_append and token_file_check */
fsdp_status corpus_add_glob(const char *pattern, corpus *c);

/* token_file_is -- whether path ends in ".bin" or the file begins with a token file's magic. */
bool token_file_is(const char *path, const void *bytes, size_t file_bytes);
/* token_file_check -- check header, length and every token of a whole token file in memory;
 * *n_tokens = their number.
 *   errors  FSDP_EINVAL naming path and field, got and expected */
fsdp_status token_file_check(const char *path, const void *bytes, size_t file_bytes,
                             size_t vocab_limit, size_t *n_tokens);
/* token_file_take -- what file_append has just read is a token file: check that its tokens are less
 * than c->vocab_size, and count them in c->n_tokens.
 *   errors  those of token_file_check */
fsdp_status token_file_take(const char *path, size_t file_bytes, corpus *c);

enum { SHARD_HEADER_BYTES = 1024, BYTE_VOCAB = 256 };
