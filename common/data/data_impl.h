/* data_impl.h -- what the sources of common/data share. Private to them and to their tests. */
#pragma once
#include <stdbool.h>
#include "common/data/data.h"

enum { SHARD_HEADER_BYTES = 1024, BYTE_VOCAB = 256 };
enum { BLOCK_BYTES = 16384 /* that a sequence reads and checks at least; even */ };

/* A file of a corpus, which stays open. */
typedef struct corpus_file {
    char *path;
    int fd;
    size_t begin, n_tokens; /* in the corpus */
    size_t header_bytes;    /* before its first token */
    uint64_t *hashes;       /* of each block of BLOCK_BYTES after the header */
} corpus_file;

/* corpus_begin -- a corpus without files. errors: FSDP_ENOMEM. */
fsdp_status corpus_begin(corpus *c, const char *source, size_t vocab_limit);
/* corpus_add_file -- append a regular file: tokens or bytes as c->token_bytes says. 0: detect
 * the type from the file, and store it there. The whole file is read. errors  FSDP_EIO with the
 * path and the reason; FSDP_EINVAL: a bad header, or a token that is not less than vocab_limit;
 * FSDP_ENOMEM */
fsdp_status corpus_add_file(corpus *c, const char *path, size_t vocab_limit);
/* corpus_add_dir -- append the regular files of dir in name order: as texts if c->token_bytes is 1,
 * links left out; if it is 2, those called *.bin, as token files.
 *   errors  as corpus_add_file */
fsdp_status corpus_add_dir(corpus *c, const char *dir, size_t vocab_limit);
/* corpus_add_glob -- append the token files that match the pattern, in name order.
 *   errors  FSDP_EIO if there are none; as corpus_add_file */
fsdp_status corpus_add_glob(corpus *c, const char *pattern, size_t vocab_limit);
/* corpus_read -- tokens begin ... begin + n - 1. errors: as sample_read. */
fsdp_status corpus_read(const corpus *c, size_t begin, size_t n, int32_t *out);

/* token_file_is -- whether path ends in ".bin" or the file begins with a token file's magic.
 *   head  its first bytes, SHARD_HEADER_BYTES unless the file is shorter */
bool token_file_is(const char *path, const void *head, size_t file_bytes);
/* token_file_check -- check header and length of a token file; *n_tokens = their number.
 *   errors  FSDP_EINVAL naming path and field, got and expected */
fsdp_status token_file_check(const char *path, const void *head, size_t file_bytes,
                             size_t *n_tokens);

/* A set of images. pixels NULL: they are drawn, from number `begin` on. */
typedef struct image_set {
    unsigned char *pixels, *labels; /* [n][IMAGE_PIXELS], [n] */
    uint64_t begin, shuffle_seed;
} image_set;

/* image_read -- sample k, as sample_read. */
void image_read(const corpus *c, uint64_t k, float *pixels, int32_t *label);
/* images_hash -- of all pixels and labels, or of the numbers that drawn digits have. */
uint64_t images_hash(const corpus *c);
/* images_free -- NULL is accepted. */
void images_free(image_set *images);
/* digit_draw -- pixels [IMAGE_PIXELS] of digit `number`, 0: black. Returns the digit. */
int digit_draw(uint64_t number, unsigned char *pixels);
