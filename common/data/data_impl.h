/* data_impl.h -- shared by the sources of common/data; private to them and to their tests. */
#pragma once
#include <stdbool.h>
#include "common/data/data.h"

enum { SHARD_HEADER_BYTES = 1024, BYTE_VOCAB = 256 };
enum { BLOCK_BYTES = 16384 /* files are read and checked in blocks of this size; even */ };

/* An open file of a corpus. */
typedef struct corpus_file {
    char *path;
    int fd;
    size_t begin, n_tokens; /* its tokens are [begin, begin + n_tokens) of the corpus */
    size_t header_bytes;    /* before its first token */
    uint64_t *hashes;       /* one for each block of BLOCK_BYTES after the header */
} corpus_file;

/* corpus_begin -- make a corpus without files; source: for the log. errors: FSDP_ENOMEM. */
fsdp_status corpus_begin(corpus *c, const char *source, size_t vocab_limit);
/* corpus_add_file -- append a regular file, of tokens of c->token_bytes. If that is 0, detect the
 * type of the file and set it. The whole file is read.
 *   errors  FSDP_EIO with the path and the reason; FSDP_EINVAL: a bad header, or a token that is
 *           not less than vocab_limit; FSDP_ENOMEM */
fsdp_status corpus_add_file(corpus *c, const char *path, size_t vocab_limit);
/* corpus_add_dir -- append files of dir in name order. If c->token_bytes is 1, it appends the
 * regular files as texts, but no links; if it is 2, the files named *.bin as token files.
 *   errors  as corpus_add_file */
fsdp_status corpus_add_dir(corpus *c, const char *dir, size_t vocab_limit);
/* corpus_add_glob -- append the token files that match the pattern, in name order.
 *   errors  FSDP_EIO if no file matches; as corpus_add_file */
fsdp_status corpus_add_glob(corpus *c, const char *pattern, size_t vocab_limit);
/* corpus_read -- read tokens begin ... begin + n - 1. errors: as sample_read. */
fsdp_status corpus_read(const corpus *c, size_t begin, size_t n, int32_t *out);

/* token_file_is -- whether path ends in ".bin" or the file begins with a token file's magic.
 *   head  the first SHARD_HEADER_BYTES of the file, or all of a shorter file */
bool token_file_is(const char *path, const void *head, size_t file_bytes);
/* token_file_check -- check header and length of a token file; *n_tokens = its number of tokens.
 *   errors  FSDP_EINVAL naming path and field, got and expected */
fsdp_status token_file_check(const char *path, const void *head, size_t file_bytes,
                             size_t *n_tokens);

/* A set of images. If pixels is NULL, they are drawn digits from number `begin` on. */
typedef struct image_set {
    unsigned char *pixels, *labels; /* [n][IMAGE_PIXELS], [n] */
    uint64_t begin, shuffle_seed;
} image_set;

/* image_read -- read sample k, as sample_read does. */
void image_read(const corpus *c, uint64_t k, float *pixels, int32_t *label);
/* images_hash -- a hash of all pixels and labels; for drawn digits, of their numbers. */
uint64_t images_hash(const corpus *c);
/* images_free -- NULL is accepted. */
void images_free(image_set *images);
/* digit_draw -- draw digit `number` to pixels [IMAGE_PIXELS]; 0 is black. Returns the digit. */
int digit_draw(uint64_t number, unsigned char *pixels);
