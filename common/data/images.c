/* images.c -- labelled images: read MNIST's files, and shuffle epochs.
 *
 *   corpus_open_images | corpus_digits -> image_read ... -> images_free
 *
 * An IDX file is big-endian: two zero bytes, 8 for unsigned bytes, the number of dimensions, each
 * dimension in four bytes, and the elements. http://yann.lecun.com/exdb/mnist/ */
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>
#ifdef FSDP_HAVE_ZLIB
#include <zlib.h>
#else /* packed files are refused for their first bytes */
typedef FILE *gzFile;
#define gzdopen                   fdopen
#define gzread(file, to, n_bytes) (int)fread(to, 1, n_bytes, file)
#define gzclose                   fclose
#define Z_OK                      0
#endif
#include "common/base/glob_in.h"
#include "common/base/philox.h"
#include "common/base/read_file.h"
#include "common/data/data_impl.h"

static const char FILES_HINT[] = "pass a folder with MNIST's files, unpacked (gunzip) if `make "
                                 "doctor` finds no zlib; for drawn digits leave --data out and "
                                 "pass --val-data digits";

/* ---- IDX files ------------------------------------------------------------------------------- */

enum { MOST_HEAD_BYTES = 16, MOST_BYTES = 1 << 30 };

static size_t big_endian(const unsigned char *at)
{
    return (size_t)at[0] << 24 | (size_t)at[1] << 16 | (size_t)at[2] << 8 | at[3];
}

/* Check a file's header: it must have n_dims dimensions, the first any number *n, the others
 * IMAGE_SIDE. */
static fsdp_status check_header(const char *path, const unsigned char *head, size_t file_bytes,
                                int n_dims, size_t *n)
{
    const size_t head_bytes = 4 + 4 * (size_t)n_dims;
    const unsigned char magic[4] = {0, 0, 8, (unsigned char)n_dims};
    if (file_bytes < head_bytes || memcmp(head, magic, sizeof magic) != 0)
        return fsdp_error(FSDP_EINVAL, FILES_HINT,
                          "data: %s: got %zu bytes that begin %02x%02x%02x%02x, expected at least "
                          "%zu that begin 0000080%d: unsigned bytes in %d dimension%s",
                          path, file_bytes, head[0], head[1], head[2], head[3], head_bytes, n_dims,
                          n_dims, n_dims > 1 ? "s" : "");
    const size_t rows = n_dims > 1 ? big_endian(head + 8) : IMAGE_SIDE;
    const size_t columns = n_dims > 1 ? big_endian(head + 12) : IMAGE_SIDE;
    if (rows != IMAGE_SIDE || columns != IMAGE_SIDE)
        return fsdp_error(FSDP_EINVAL, FILES_HINT,
                          "data: %s: got images of %zu x %zu, expected %d x %d", path, rows,
                          columns, IMAGE_SIDE, IMAGE_SIDE);
    *n = big_endian(head + 4);
    const size_t elems = *n * (n_dims > 1 ? IMAGE_PIXELS : 1);
    if (*n > 0 && elems <= MOST_BYTES && file_bytes == head_bytes + elems)
        return FSDP_OK;
    return fsdp_error(
        FSDP_EINVAL, FILES_HINT,
        "data: %s: got %zu bytes, expected %zu for the %zu %s that its header has, 1 to %d of them "
        "after the header",
        path, file_bytes, head_bytes + elems, *n, n_dims > 1 ? "images" : "labels", MOST_BYTES);
}

/* Read a whole file, unpacked if it is packed. *all = its bytes, and zeros where a short file lacks
 * bytes of a header; the caller frees them, after an error too. */
static fsdp_status read_unpacked(const char *path, unsigned char **all, size_t *bytes)
{
    size_t room = 0;
    int fd, got = 1;
    const char *why = open_regular(path, &fd, &room);
    gzFile file = why == NULL ? gzdopen(fd, "rb") : NULL;
    if (why == NULL && file == NULL) {
        close(fd);
        why = "no host memory";
    }
    *bytes = 0;
    for (room++; why == NULL && got > 0 && *bytes < MOST_BYTES; room *= 2) {
        unsigned char *more = realloc(*all, room + MOST_HEAD_BYTES);
        if (more == NULL) {
            why = "no host memory";
            break;
        }
        *all = more;
        got = gzread(file, more + *bytes, (unsigned)(room - *bytes));
        *bytes += got > 0 ? (size_t)got : 0;
        memset(more + *bytes, 0, MOST_HEAD_BYTES);
    }
    if (file != NULL && (gzclose(file) != Z_OK || got < 0))
        why = "the packed file is damaged, or cannot be read";
    return why == NULL ? FSDP_OK : fsdp_error(FSDP_EIO, FILES_HINT, "data: %s: %s", path, why);
}

/* Read a whole file. *out = its elements, which the caller frees, after an error too; *n = its
 * first dimension. */
static fsdp_status read_idx(const char *path, int n_dims, unsigned char **out, size_t *n)
{
    const size_t head_bytes = 4 + 4 * (size_t)n_dims;
    size_t bytes;
    TRY(read_unpacked(path, out, &bytes));
    TRY(check_header(path, *out, bytes, n_dims, n));
    memmove(*out, *out + head_bytes, bytes - head_bytes);
    return FSDP_OK;
}

/* Find a file in dir: what is "train-images", for example. Its name is as published or with a dot,
 * packed or not. It may be in the folders that torchvision makes, but in one only. path has
 * PATH_MAX bytes. If there is none, it is the first place, whose open will say what is wrong. */
static fsdp_status find_idx(const char *dir, const char *what, int n_dims, char *path)
{
    char names[96];
    const char *first = NULL;
    struct stat st;
    glob_t g = {0};
    fsdp_status status = FSDP_OK;
    size_t dir_bytes = 0;
    snprintf(path, PATH_MAX, "%.4000s/%s-idx%d-ubyte", dir, what, n_dims);
    snprintf(names, sizeof names, "{,raw/,*/raw/}%s{-,.}idx%d-ubyte{,.gz}", what, n_dims);
    if (glob_in(dir, names, GLOB_BRACE, &g) != 0)
        return FSDP_OK;
    for (size_t i = 0; i < g.gl_pathc && status == FSDP_OK; i++) {
        const char *at = g.gl_pathv[i];
        if (stat(at, &st) != 0 || !S_ISREG(st.st_mode))
            continue;
        first = first != NULL ? first : at;
        dir_bytes = (size_t)(strrchr(first, '/') - first);
        if (dir_bytes > strlen(dir) && strncmp(first, at, dir_bytes + 1) != 0)
            status =
                fsdp_error(FSDP_EINVAL, "pass the folder of one of them",
                           "data: %s: got %s and %s, expected one set of images", dir, first, at);
    }
    if (first != NULL)
        snprintf(path, PATH_MAX, "%s", first);
    globfree(&g);
    return status;
}

static fsdp_status read_files(const char *dir, bool test, corpus *c)
{
    char images[PATH_MAX], labels[PATH_MAX], folder[PATH_MAX];
    size_t n_labels = 0;
    TRY(find_idx(dir, test ? "t10k-images" : "train-images", 3, images));
    TRY(find_idx(dirname(strcpy(folder, images)), test ? "t10k-labels" : "train-labels", 1,
                 labels));
    TRY(read_idx(images, 3, &c->images->pixels, &c->n_tokens));
    TRY(read_idx(labels, 1, &c->images->labels, &n_labels));
    if (n_labels != c->n_tokens)
        return fsdp_error(FSDP_EINVAL, FILES_HINT, "data: %s: got %zu labels, expected %zu", labels,
                          n_labels, c->n_tokens);
    for (size_t i = 0; i < n_labels; i++)
        if (c->images->labels[i] >= IMAGE_CLASSES)
            return fsdp_error(FSDP_EINVAL, FILES_HINT,
                              "data: %s: label %zu: got %d, expected 0 to %d", labels, i,
                              c->images->labels[i], IMAGE_CLASSES - 1);
    return FSDP_OK;
}

/* ---- sets ------------------------------------------------------------------------------------ */

static fsdp_status begin_set(uint64_t shuffle_seed, corpus *c)
{
    *c = (corpus){.vocab_size = IMAGE_CLASSES, .images = calloc(1, sizeof(image_set))};
    if (c->images == NULL)
        return fsdp_error(FSDP_ENOMEM, "", "data: no host memory");
    c->images->shuffle_seed = shuffle_seed;
    return FSDP_OK;
}

fsdp_status corpus_open_images(const char *dir, bool test, uint64_t shuffle_seed, corpus *out)
{
    fsdp_status status = begin_set(shuffle_seed, out);
    IF_OK(status, read_files(dir, test, out));
    snprintf(out->source, sizeof out->source, "%s", dir);
    if (status == FSDP_OK)
        return FSDP_OK;
    images_free(out->images);
    *out = (corpus){0};
    return status;
}

fsdp_status corpus_digits(uint64_t begin, size_t n, uint64_t shuffle_seed, corpus *out)
{
    *out = (corpus){0};
    if (n == 0)
        return fsdp_error(FSDP_EINVAL, "use a number from 1 on", "data: drawn digits: got 0");
    TRY(begin_set(shuffle_seed, out));
    out->n_tokens = n;
    out->images->begin = begin;
    snprintf(out->source, sizeof out->source, "drawn digits (%zu, from number %llu)", n,
             (unsigned long long)begin);
    return FSDP_OK;
}

void images_free(image_set *images)
{
    if (images == NULL)
        return;
    free(images->pixels);
    free(images->labels);
    free(images);
}

uint64_t images_hash(const corpus *c)
{
    const uint64_t drawn[2] = {c->images->begin, c->n_tokens};
    if (c->images->pixels == NULL)
        return XXH3_64bits(drawn, sizeof drawn);
    return XXH3_64bits_withSeed(c->images->pixels, c->n_tokens * IMAGE_PIXELS,
                                XXH3_64bits(c->images->labels, c->n_tokens));
}

/* ---- samples --------------------------------------------------------------------------------- */

/* The first Philox stream for the orders of epochs. Initial weights and dropout use lower ones. */
static const uint64_t SHUFFLE = (uint64_t)1 << 63;

/* A Feistel network of four rounds permutes all numbers of 2 * half bits; half is the least that
 * covers n. If the result is not less than n, the network is applied again: at most four times on
 * average. */
size_t shuffle_index(uint64_t seed, uint64_t epoch, size_t n, size_t at)
{
    FSDP_ASSERT(at < n);
    int half = 1;
    while (half < 32 && (uint64_t)1 << 2 * half < n)
        half++;
    const uint64_t mask = ((uint64_t)1 << half) - 1;
    uint64_t x = at;
    do {
        uint64_t left = x >> half, right = x & mask;
        for (uint64_t round = 0; round < 4; round++) {
            const uint64_t mixed =
                left ^ (philox_u32(seed, SHUFFLE | epoch, round << 32 | right) & mask);
            left = right;
            right = mixed;
        }
        x = left << half | right;
    } while (x >= n);
    return (size_t)x;
}

void image_read(const corpus *c, uint64_t k, float *pixels, int32_t *label)
{
    const image_set *set = c->images;
    const uint64_t epoch = k / c->n_tokens;
    unsigned char drawn[IMAGE_PIXELS], *from = drawn;
    size_t at = (size_t)(k % c->n_tokens);
    if (set->shuffle_seed != NO_SHUFFLE)
        at = shuffle_index(set->shuffle_seed, epoch, c->n_tokens, at);
    if (set->pixels != NULL) {
        from = set->pixels + at * IMAGE_PIXELS;
        *label = set->labels[at];
    } else {
        *label = digit_draw(set->begin + at, drawn);
    }
    for (int i = 0; i < IMAGE_PIXELS; i++)
        pixels[i] = ((float)from[i] / 255.0f - 0.1307f) / 0.3081f;
}
