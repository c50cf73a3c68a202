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
    uint64_t *hashes;       /* one for each block of BLOCK_BYTES after the header; 0: not known */
    corpus_print print;
} corpus_file;

/* corpus_begin -- make a corpus without files, of r->format; source: for the log.
 *   errors  FSDP_ENOMEM */
fsdp_status corpus_begin(corpus *c, const char *source, const corpus_request *r);
/* corpus_add_file -- append a regular file. If c->format is AUTO, detect the format and set it.
 *   errors  FSDP_EIO with the path and the reason; otherwise as corpus_open_file */
fsdp_status corpus_add_file(corpus *c, const char *path, const corpus_request *r);
/* corpus_add_dir -- append files of dir in name order, without hidden ones; of CORPUS_LLMC those
 * named *.bin.
 *   errors  as corpus_add_file */
fsdp_status corpus_add_dir(corpus *c, const char *dir, const corpus_request *r);
/* corpus_add_glob -- append the files that match r->path, in name order.
 *   errors  FSDP_EIO if no file matches; as corpus_add_file */
fsdp_status corpus_add_glob(corpus *c, const corpus_request *r);
/* corpus_take_notes -- after the last file: take the hash of the whole corpus from r->notes unless
 * all files were read.
 *   errors  FSDP_EMISMATCH: another number of files */
fsdp_status corpus_take_notes(corpus *c, const corpus_request *r);
/* corpus_read -- read tokens begin ... begin + n - 1. errors: as sample_read. */
fsdp_status corpus_read(const corpus *c, size_t begin, size_t n, int32_t *out);

/* token_file_format -- set c->format, if it is AUTO, and c->token_bytes by the first bytes of a
 * file, and find where its tokens are.
 *   head  the first bytes of the file, head_bytes = BLOCK_BYTES, or fewer in a shorter file
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
