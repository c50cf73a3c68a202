/* files.c -- the files of a corpus: read and check them once, then read sequences from them.
 *
 *   corpus_begin -> corpus_add_file ... | corpus_add_dir | corpus_add_glob -> corpus_read ...
 *
 * Only one hash per block stays in memory, 1/2048 of the file's length. If others write to the file
 * during the run, the changed block is detected before its tokens are used. Files are not mapped,
 * because truncating a mapped file ends the process with SIGBUS. */
#include "common/data/data_impl.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>
#include "common/base/read_file.h"

static const char LEAVE_HINT[] = "leave the files of --data as they are until the run has ended";

static fsdp_status no_memory(const corpus *c)
{
    return fsdp_error(FSDP_ENOMEM, "", "data: %s: no host memory", c->source);
}

fsdp_status corpus_begin(corpus *c, const char *source, size_t vocab_limit)
{
    *c = (corpus){.vocab_size = vocab_limit, .sum = XXH3_createState()};
    snprintf(c->source, sizeof c->source, "%s", source);
    if (c->sum == NULL || XXH3_64bits_reset(c->sum) != XXH_OK)
        return no_memory(c);
    return FSDP_OK;
}

void corpus_close(corpus *c)
{
    for (size_t i = 0; i < c->n_files; i++) {
        close(c->files[i].fd);
        free(c->files[i].path);
        free(c->files[i].hashes);
    }
    free(c->files);
    free(c->tokens);
    images_free(c->images);
    XXH3_freeState(c->sum);
    *c = (corpus){0};
}

uint64_t corpus_hash(const corpus *c)
{
    if (c->images != NULL)
        return images_hash(c);
    return c->tokens ? XXH3_64bits(c->tokens, c->n_tokens * (size_t)c->token_bytes)
                     : XXH3_64bits_digest(c->sum);
}

/* ---- reading --------------------------------------------------------------------------------- */

static fsdp_status read_at(const corpus_file *f, char *to, size_t bytes, size_t at)
{
    if (pread_all(f->fd, to, bytes, at) == bytes)
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
    *bytes = left < BLOCK_BYTES ? left : BLOCK_BYTES;
    return read_at(f, block, *bytes, f->header_bytes + i * BLOCK_BYTES);
}

static unsigned token_of(const char *tokens, int token_bytes, size_t i)
{
    return token_bytes == 1 ? ((const uint8_t *)tokens)[i]
                            : ((const uint16_t *)(const void *)tokens)[i];
}

fsdp_status corpus_read(const corpus *c, size_t begin, size_t n, int32_t *out)
{
    const size_t width = (size_t)c->token_bytes, in_block = BLOCK_BYTES / width;
    _Alignas(uint16_t) char block[BLOCK_BYTES];
    for (size_t i = 0; i < n && c->tokens; i++)
        out[i] = (int32_t)token_of(c->tokens, c->token_bytes, begin + i);
    for (const corpus_file *f = c->files; n > 0 && !c->tokens; f++)
        while (n > 0 && begin < f->begin + f->n_tokens) {
            const size_t at = begin - f->begin, i = at / in_block, from = at % in_block;
            size_t bytes;
            TRY(read_block(c, f, i, block, &bytes));
            if (XXH3_64bits(block, bytes) != f->hashes[i])
                return fsdp_error(FSDP_EIO, LEAVE_HINT,
                                  "data: %s: was changed while the run used it", f->path);
            const size_t there = bytes / width - from, take = n < there ? n : there;
            for (size_t t = 0; t < take; t++)
                *out++ = (int32_t)token_of(block, c->token_bytes, from + t);
            begin += take;
            n -= take;
        }
    return FSDP_OK;
}

/* ---- opening --------------------------------------------------------------------------------- */

/* Read all tokens once: hash each block and the corpus, and check that every token is less than
 * vocab_limit. */
static fsdp_status scan(corpus *c, corpus_file *f, size_t vocab_limit)
{
    const bool is_text = c->token_bytes == 1;
    _Alignas(uint16_t) char block[BLOCK_BYTES];
    size_t at = 0, bad_at = 0, bytes;
    unsigned bad = 0, most = 0;
    for (size_t i = 0; i < n_blocks(c, f); i++) {
        TRY(read_block(c, f, i, block, &bytes));
        f->hashes[i] = XXH3_64bits(block, bytes);
        XXH3_64bits_update(c->sum, block, bytes);
        for (size_t t = 0; t < bytes / (size_t)c->token_bytes; t++, at++) {
            const unsigned token = token_of(block, c->token_bytes, t);
            if (token >= vocab_limit && most < vocab_limit) {
                bad_at = at;
                bad = token;
            }
            most = token > most ? token : most;
        }
    }
    if (at == 0 || most < vocab_limit)
        return FSDP_OK;
    char hint[96];
    snprintf(hint, sizeof hint, "use a model whose --vocab-size is at least %u",
             is_text ? BYTE_VOCAB : most + 1);
    return fsdp_error(FSDP_EINVAL, hint, "data: %s: %s %zu: got %u, expected less than %zu",
                      f->path, is_text ? "byte" : "token", bad_at, bad, vocab_limit);
}

/* Detect the type of an open file unless it is known, and scan the file. */
static fsdp_status take_file(corpus *c, corpus_file *f, size_t vocab_limit)
{
    struct stat st;
    _Alignas(int32_t) char head[SHARD_HEADER_BYTES];
    if (fstat(f->fd, &st) != 0 || !S_ISREG(st.st_mode))
        return fsdp_error(FSDP_EIO, "pass --data with a regular file, a directory or a glob",
                          "data: %s: not a regular file", f->path);
    const size_t bytes = (size_t)st.st_size;
    TRY(read_at(f, head, bytes < sizeof head ? bytes : sizeof head, 0));
    if (c->token_bytes == 0) {
        c->token_bytes = token_file_is(f->path, head, bytes) ? 2 : 1;
        c->vocab_size = c->token_bytes == 2 ? vocab_limit : BYTE_VOCAB;
    }
    f->begin = c->n_tokens;
    f->n_tokens = bytes;
    f->header_bytes = c->token_bytes == 2 ? SHARD_HEADER_BYTES : 0;
    if (c->token_bytes == 2)
        TRY(token_file_check(f->path, head, bytes, &f->n_tokens));
    f->hashes = malloc((n_blocks(c, f) + 1) * sizeof *f->hashes);
    if (f->hashes == NULL)
        return no_memory(c);
    TRY(scan(c, f, vocab_limit));
    c->n_tokens += f->n_tokens;
    return FSDP_OK;
}

fsdp_status corpus_add_file(corpus *c, const char *path, size_t vocab_limit)
{
    corpus_file *files = realloc(c->files, (c->n_files + 1) * sizeof *files);
    char *name = strdup(path);
    c->files = files != NULL ? files : c->files;
    /* O_NONBLOCK: a FIFO without a writer is refused instead of waited for */
    const int fd = files && name ? open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK) : -1;
    const int why = errno;
    if (fd >= 0) {
        c->files[c->n_files] = (corpus_file){.path = name, .fd = fd};
        return take_file(c, &c->files[c->n_files++], vocab_limit);
    }
    free(name);
    if (files == NULL || name == NULL)
        return no_memory(c);
    return fsdp_error(FSDP_EIO,
                      why == EMFILE ? "raise ulimit -n, or join the files of --data to fewer"
                                    : "check the path given to --data",
                      "data: %s: %s", path, strerror(why));
}

/* ---- several files --------------------------------------------------------------------------- */

/* Append an entry of a directory. Texts must be regular files, not links. Shards are entries named
 * *.bin that are not directories. Other entries are ignored. */
static fsdp_status add_entry(corpus *c, const char *dir, const char *name, size_t vocab_limit)
{
    const bool texts = c->token_bytes == 1;
    fsdp_status status = FSDP_OK;
    struct stat st;
    char *path;
    if (!texts && fnmatch("*.bin", name, 0) != 0)
        return FSDP_OK;
    if (asprintf(&path, "%s/%s", dir, name) < 0)
        return no_memory(c);
    if ((texts ? lstat(path, &st) : stat(path, &st)) != 0)
        status = fsdp_error(FSDP_EIO, "remove it from the directory given to --data, or mend it",
                            "data: %s: %s", path, strerror(errno));
    else if (texts ? S_ISREG(st.st_mode) : !S_ISDIR(st.st_mode))
        status = corpus_add_file(c, path, vocab_limit);
    free(path);
    return status;
}

fsdp_status corpus_add_dir(corpus *c, const char *dir, size_t vocab_limit)
{
    struct dirent **entries;
    fsdp_status status = FSDP_OK;
    const int n = scandir(dir, &entries, NULL, alphasort); /* strcmp's order: no locale is set */
    if (n < 0)
        return fsdp_error(FSDP_EIO, "pass --data with a text file or llm.c shards", "data: %s: %s",
                          dir, strerror(errno));
    for (int i = 0; i < n; i++) {
        if (status == FSDP_OK)
            status = add_entry(c, dir, entries[i]->d_name, vocab_limit);
        free(entries[i]);
    }
    free(entries);
    return status;
}

fsdp_status corpus_add_glob(corpus *c, const char *pattern, size_t vocab_limit)
{
    glob_t g;
    fsdp_status status = FSDP_OK;
    int rc = glob(pattern, GLOB_ERR, NULL, &g); /* sorted in the same order */
    if (rc == GLOB_NOSPACE)
        return no_memory(c);
    if (rc == GLOB_ABORTED)
        return fsdp_error(FSDP_EIO, "let this user read the directories of the pattern",
                          "data: %s: %s", pattern, strerror(errno));
    if (rc != 0)
        return fsdp_error(FSDP_EIO, "check the pattern given to --data (quote it from the shell)",
                          "data: %s: no file matches", pattern);
    for (size_t i = 0; i < g.gl_pathc && status == FSDP_OK; i++)
        status = corpus_add_file(c, g.gl_pathv[i], vocab_limit);
    globfree(&g);
    return status;
}
