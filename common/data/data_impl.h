/* data_impl.h -- shared by the sources of common/data; private to them and to their tests. */
#pragma once
#include <stdbool.h>
#include "common/data/data.h"

enum { SHARD_HEADER_BYTES = 1024, BYTE_VOCAB = 256 };
enum {
    BLOCK_BYTES = 16384, /* files are read and checked in blocks of this size; a multiple of 4 */
    MOST_OPEN = 64       /* files of a corpus that stay open */
};

/* A file of a corpus. */
typedef struct corpus_file {
    char *path;
    int fd;                 /* -1: opened for each read */
    size_t begin, n_tokens; /* its tokens are [begin, begin + n_tokens) of the corpus */
    size_t header_bytes;    /* before its first token */
    size_t first_block;     /* of its blocks of BLOCK_BYTES after the header, in the notes */
} corpus_file;

/* corpus_no_memory -- report that host memory ran out: FSDP_ENOMEM. */
fsdp_status corpus_no_memory(const corpus *c);
/* corpus_add_file -- append a regular file. If c->format is AUTO, detect the format and set it.
 *   errors  FSDP_EIO with the path and the reason; otherwise as corpus_open_file */
fsdp_status corpus_add_file(corpus *c, const char *path, const corpus_request *r);
/* corpus_read -- read tokens begin ... begin + n - 1. errors: as sample_read. */
fsdp_status corpus_read(const corpus *c, size_t begin, size_t n, int32_t *out);

/* token_file_format -- set c->format, if it is AUTO, and c->token_bytes by the first bytes of a
 * file, and find where its tokens are.
 *   head  the first bytes of the file, aligned for int32; head_bytes = BLOCK_BYTES, or fewer in a
 *         shorter file
 *   errors  FSDP_EINVAL naming the path, what was got and expected: a header that is damaged, or a
 *           file that does not look like its format */
fsdp_status token_file_format(corpus *c, const corpus_request *r, const void *head,
                              size_t head_bytes, size_t file_bytes, corpus_file *f);

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
