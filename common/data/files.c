/* files.c -- the files of a corpus: check them once, then read sequences from them.
 *
 *   corpus_add_file ... -> corpus_read ... -> corpus_close
 *
 * Only one hash per block stays in memory, 1/2048 of the file's length. If others write to the file
 * during the run, the changed block is detected before its tokens are used. A block of a file that
 * corpus_notes know is hashed when it is first read. Files are not mapped, because truncating a
 * mapped file ends the process with SIGBUS. */
#include "common/data/data_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>
#include "common/base/dtype.h"
#include "common/base/read_file.h"

static const char LEAVE_HINT[] = "leave the files of data as they are until the run has ended";

fsdp_status corpus_no_memory(const corpus *c)
{
    return fsdp_error(FSDP_ENOMEM, "", "data: %s: no host memory", c->source);
}

void corpus_close(corpus *c)
{
    for (size_t i = 0; i < c->notes.n_files; i++) {
        if (c->files[i].fd >= 0)
            close(c->files[i].fd);
        free(c->files[i].path);
    }
    free(c->files);
    corpus_notes_free(&c->notes);
    free(c->tokens);
    images_free(c->images);
    if (c->mask != NULL)
        corpus_close(c->mask);
    free(c->mask);
    XXH3_freeState(c->sum);
    *c = (corpus){0};
}

uint64_t corpus_hash(const corpus *c)
{
    if (c->images != NULL)
        return images_hash(c);
    return c->tokens ? XXH3_64bits(c->tokens, c->n_tokens * (size_t)c->token_bytes) : c->notes.hash;
}

void corpus_notes_free(corpus_notes *notes)
{
    free(notes->files);
    free(notes->blocks);
    *notes = (corpus_notes){0};
}

/* ---- reading --------------------------------------------------------------------------------- */

static fsdp_status cannot_open(const char *path, int why)
{
    return fsdp_error(FSDP_EIO,
                      why == EMFILE ? "raise ulimit -n"
                                    : "check the path given to --data, --val-data or a mask",
                      "data: %s: %s", path, strerror(why));
}

static fsdp_status read_at(const corpus_file *f, int fd, char *to, size_t bytes, size_t at)
{
    if (pread_all(fd, to, bytes, at) == bytes)
        return FSDP_OK;
    return fsdp_error(FSDP_EIO, LEAVE_HINT, "data: %s: %s", f->path,
                      errno != 0 ? strerror(errno) : "was shortened while it was read");
}

static size_t n_blocks(const corpus *c, const corpus_file *f)
{
    return (f->n_tokens * (size_t)c->token_bytes + BLOCK_BYTES - 1) / BLOCK_BYTES;
}

/* Read block i of the tokens; *bytes = BLOCK_BYTES, or less for the last block. */
static fsdp_status read_block(const corpus *c, const corpus_file *f, size_t i, char *block,
                              size_t *bytes)
{
    const size_t left = f->n_tokens * (size_t)c->token_bytes - i * BLOCK_BYTES;
    const int fd = f->fd >= 0 ? f->fd : open(f->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return cannot_open(f->path, errno);
    *bytes = min_size(left, BLOCK_BYTES);
    const fsdp_status status = read_at(f, fd, block, *bytes, f->header_bytes + i * BLOCK_BYTES);
    if (fd != f->fd)
        close(fd);
    return status;
}

static unsigned token_of(const char *tokens, int token_bytes, size_t i)
{
    const void *at = tokens + i * (size_t)token_bytes;
    return token_bytes == 1   ? *(const uint8_t *)at
           : token_bytes == 2 ? *(const uint16_t *)at
                              : *(const uint32_t *)at;
}

/* The tokens that were read: the largest one, and the first that is not in the vocabulary. */
typedef struct tokens_seen {
    unsigned most, bad;
    size_t bad_at;
} tokens_seen;

/* Look at the tokens of block i. */
static void see_tokens(const corpus *c, size_t i, const char *block, size_t bytes,
                       tokens_seen *seen)
{
    const size_t width = (size_t)c->token_bytes, first = i * (BLOCK_BYTES / width);
    for (size_t t = 0; t < bytes / width; t++) {
        const unsigned token = token_of(block, c->token_bytes, t);
        if (token >= c->vocab_size && seen->most < c->vocab_size) {
            seen->bad = token;
            seen->bad_at = first + t;
        }
        seen->most = token > seen->most ? token : seen->most;
    }
}

static fsdp_status check_seen(const corpus *c, const corpus_file *f, const tokens_seen *seen)
{
    const bool is_text = c->token_bytes == 1;
    const bool is_plain = c->format == CORPUS_UINT16 || c->format == CORPUS_UINT32;
    char hint[160];
    if (seen->most < c->vocab_size)
        return FSDP_OK;
    snprintf(hint, sizeof hint,
             is_plain ? "pass another --data-format if the file has another, or use a model whose "
                        "--vocab-size is at least %u"
                      : "use a model whose --vocab-size is at least %u; with --init-from, other "
                        "weights",
             is_text ? BYTE_VOCAB : seen->most + 1);
    return fsdp_error(FSDP_EINVAL, hint, "data: %s: %s %zu: got %u, expected less than %zu",
                      f->path, is_text ? "byte" : "token", seen->bad_at, seen->bad, c->vocab_size);
}

/* Read block i and compare it with its hash; if that is not known yet, check the block and keep
 * its hash. */
static fsdp_status read_checked(const corpus *c, const corpus_file *f, size_t i, char *block,
                                size_t *bytes)
{
    tokens_seen seen = {0};
    TRY(read_block(c, f, i, block, bytes));
    const uint64_t hash = XXH3_64bits(block, *bytes);
    uint64_t *known = &c->notes.blocks[f->first_block + i];
    if (*known == 0) {
        see_tokens(c, i, block, *bytes, &seen);
        TRY(check_seen(c, f, &seen));
        *known = hash;
    }
    if (hash == *known)
        return FSDP_OK;
    return fsdp_error(FSDP_EIO, LEAVE_HINT, "data: %s: was changed while the run used it", f->path);
}

fsdp_status corpus_read(const corpus *c, size_t begin, size_t n, int32_t *out)
{
    const size_t width = (size_t)c->token_bytes, in_block = BLOCK_BYTES / width;
    _Alignas(uint32_t) char block[BLOCK_BYTES];
    for (size_t i = 0; i < n && c->tokens; i++)
        out[i] = (int32_t)token_of(c->tokens, c->token_bytes, begin + i);
    for (const corpus_file *f = c->files; n > 0 && !c->tokens; f++)
        while (n > 0 && begin < f->begin + f->n_tokens) {
            const size_t at = begin - f->begin, from = at % in_block;
            size_t bytes;
            TRY(read_checked(c, f, at / in_block, block, &bytes));
            const size_t take = min_size(n, bytes / width - from);
            for (size_t t = 0; t < take; t++)
                *out++ = (int32_t)token_of(block, c->token_bytes, from + t);
            begin += take;
            n -= take;
        }
    return FSDP_OK;
}

/* ---- opening --------------------------------------------------------------------------------- */

/* Read all tokens of a file: hash each block, the file and the corpus, and check every token. */
static fsdp_status scan(corpus *c, const corpus_file *f, uint64_t *file_hash)
{
    _Alignas(uint32_t) char block[BLOCK_BYTES];
    uint64_t *hashes = c->notes.blocks + f->first_block;
    size_t bytes;
    tokens_seen seen = {0};
    for (size_t i = 0; i < n_blocks(c, f); i++) {
        TRY(read_block(c, f, i, block, &bytes));
        hashes[i] = XXH3_64bits(block, bytes);
        *file_hash = XXH3_64bits_withSeed(&hashes[i], sizeof *hashes, *file_hash);
        XXH3_64bits_update(c->sum, block, bytes);
        see_tokens(c, i, block, bytes, &seen);
    }
    return check_seen(c, f, &seen);
}

/* Hash the file's tokens, or take the hashes from the notes if they know the file: if it has the
 * name, the length and the times of its place. */
static fsdp_status hash_file(corpus *c, const corpus_file *f, const corpus_notes *known)
{
    const size_t place = (size_t)(f - c->files), n = n_blocks(c, f);
    corpus_print *now = &c->notes.files[place];
    const corpus_print *was = place < known->n_files ? &known->files[place] : NULL;
    if (was != NULL && memcmp(was, now, offsetof(corpus_print, hash)) == 0) {
        now->hash = was->hash;
        if (f->first_block + n <= known->n_blocks)
            memcpy(c->notes.blocks + f->first_block, known->blocks + f->first_block,
                   n * sizeof *known->blocks);
        return FSDP_OK;
    }
    TRY(scan(c, f, &now->hash));
    if (was == NULL || was->hash == now->hash)
        return FSDP_OK;
    return fsdp_error(FSDP_EMISMATCH, "give all ranks of the run the same data",
                      "data: %s: got tokens with the hash %016" PRIx64 ", expected %016" PRIx64,
                      f->path, now->hash, was->hash);
}

/* Find out what an open file has, and hash its tokens. */
static fsdp_status take_file(corpus *c, corpus_file *f, const corpus_request *r)
{
    corpus_notes *notes = &c->notes;
    corpus_print *print = &notes->files[f - c->files];
    struct stat st;
    _Alignas(uint32_t) char head[BLOCK_BYTES];
    const char *slash = strrchr(f->path, '/');
    if (fstat(f->fd, &st) != 0 || !S_ISREG(st.st_mode))
        return fsdp_error(FSDP_EIO, "pass a regular file, a directory or a glob",
                          "data: %s: not a regular file", f->path);
    const size_t bytes = (size_t)st.st_size, in_head = min_size(bytes, sizeof head);
    print->bytes = bytes;
    print->mtime_ns = (uint64_t)(st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec);
    print->ctime_ns = (uint64_t)(st.st_ctim.tv_sec * 1000000000 + st.st_ctim.tv_nsec);
    snprintf(print->name, sizeof print->name, "%s", slash != NULL ? slash + 1 : f->path);
    TRY(read_at(f, f->fd, head, in_head, 0));
    TRY(token_file_format(c, r, head, in_head, bytes, f));
    const size_t n = n_blocks(c, f);
    uint64_t *blocks = realloc(notes->blocks, (notes->n_blocks + n + 1) * sizeof *blocks);
    if (blocks == NULL)
        return corpus_no_memory(c);
    memset(blocks + notes->n_blocks, 0, n * sizeof *blocks); /* unknown */
    f->first_block = notes->n_blocks;
    notes->blocks = blocks;
    notes->n_blocks += n;
    f->begin = c->n_tokens;
    TRY(hash_file(c, f, &r->notes));
    c->n_tokens += f->n_tokens;
    return FSDP_OK;
}

fsdp_status corpus_add_file(corpus *c, const char *path, const corpus_request *r)
{
    const size_t n = c->notes.n_files;
    corpus_file *files = realloc(c->files, (n + 1) * sizeof *files);
    c->files = files != NULL ? files : c->files;
    corpus_print *prints = realloc(c->notes.files, (n + 1) * sizeof *prints);
    c->notes.files = prints != NULL ? prints : c->notes.files;
    char *name = strdup(path);
    /* O_NONBLOCK: a FIFO without a writer is refused instead of waited for */
    const int fd = files && prints && name ? open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK) : -1;
    if (fd < 0) {
        const int why = errno;
        free(name);
        return why == ENOMEM ? corpus_no_memory(c) : cannot_open(path, why);
    }
    files[n] = (corpus_file){.path = name, .fd = fd};
    prints[n] = (corpus_print){0};
    c->notes.n_files++;
    const fsdp_status status = take_file(c, &files[n], r);
    if (n >= MOST_OPEN) {
        close(fd);
        files[n].fd = -1;
    }
    return status;
}
