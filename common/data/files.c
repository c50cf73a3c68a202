/* files.c -- the files of a corpus: check them once, then read sequences from them.
 *
 *   corpus_begin -> corpus_add_file ... | corpus_add_dir | corpus_add_glob -> corpus_take_notes
 *   -> corpus_read ...
 *
 * Only one hash per block stays in memory, 1/2048 of the file's length. If others write to the file
 * during the run, the changed block is detected before its tokens are used. A block of a file that
 * corpus_notes know is hashed when it is first read. Files are not mapped, because truncating a
 * mapped file ends the process with SIGBUS. */
#include "common/data/data_impl.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <glob.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>
#include "common/base/read_file.h"

static const char LEAVE_HINT[] = "leave the files of data as they are until the run has ended";

static fsdp_status no_memory(const corpus *c)
{
    return fsdp_error(FSDP_ENOMEM, "", "data: %s: no host memory", c->source);
}

fsdp_status corpus_begin(corpus *c, const char *source, const corpus_request *r)
{
    *c = (corpus){.vocab_size = r->vocab_limit, .format = r->format, .sum = XXH3_createState()};
    snprintf(c->source, sizeof c->source, "%s", source);
    if (c->sum == NULL || XXH3_64bits_reset(c->sum) != XXH_OK)
        return no_memory(c);
    return FSDP_OK;
}

void corpus_close(corpus *c)
{
    for (size_t i = 0; i < c->n_files; i++) {
        if (c->files[i].fd >= 0)
            close(c->files[i].fd);
        free(c->files[i].path);
        free(c->files[i].hashes);
    }
    free(c->files);
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
    if (c->known_hash != 0)
        return c->known_hash;
    return c->tokens ? XXH3_64bits(c->tokens, c->n_tokens * (size_t)c->token_bytes)
                     : XXH3_64bits_digest(c->sum);
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
    *bytes = left < BLOCK_BYTES ? left : BLOCK_BYTES;
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
    char hint[96];
    if (seen->most < c->vocab_size)
        return FSDP_OK;
    snprintf(hint, sizeof hint,
             "use a model whose --vocab-size is at least %u; with --init-from, other weights",
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
    if (f->hashes[i] == 0) {
        see_tokens(c, i, block, *bytes, &seen);
        TRY(check_seen(c, f, &seen));
        f->hashes[i] = hash;
    }
    if (hash == f->hashes[i])
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
            const size_t there = bytes / width - from, take = n < there ? n : there;
            for (size_t t = 0; t < take; t++)
                *out++ = (int32_t)token_of(block, c->token_bytes, from + t);
            begin += take;
            n -= take;
        }
    return FSDP_OK;
}

/* ---- opening --------------------------------------------------------------------------------- */

/* Read all tokens of a file: hash each block, the file and the corpus, and check every token. */
static fsdp_status scan(corpus *c, corpus_file *f)
{
    _Alignas(uint32_t) char block[BLOCK_BYTES];
    size_t bytes;
    tokens_seen seen = {0};
    uint64_t hash = 0;
    for (size_t i = 0; i < n_blocks(c, f); i++) {
        TRY(read_block(c, f, i, block, &bytes));
        f->hashes[i] = XXH3_64bits(block, bytes);
        hash = XXH3_64bits_withSeed(&f->hashes[i], sizeof hash, hash);
        XXH3_64bits_update(c->sum, block, bytes);
        see_tokens(c, i, block, bytes, &seen);
    }
    f->print.hash = hash;
    return check_seen(c, f, &seen);
}

/* Whether the notes know the file: it has the name, the length and the time of its place. */
static bool is_known(const corpus_notes *notes, size_t place, const corpus_print *print)
{
    return notes != NULL && strcmp(notes->files[place].name, print->name) == 0 &&
           notes->files[place].bytes == print->bytes &&
           notes->files[place].mtime_ns == print->mtime_ns;
}

/* Hash the file's tokens, or take the hashes from the notes if they know the file. */
static fsdp_status hash_file(corpus *c, corpus_file *f, const corpus_notes *notes)
{
    const size_t place = (size_t)(f - c->files);
    size_t first = 0; /* block of the corpus */
    for (const corpus_file *before = c->files; before < f; before++)
        first += n_blocks(c, before);
    if (notes != NULL && place >= notes->n_files)
        return fsdp_error(FSDP_EMISMATCH, "give all ranks of the run the same data",
                          "data: %s: got one more file, expected %zu", f->path, notes->n_files);
    if (!is_known(notes, place, &f->print)) {
        TRY(scan(c, f));
        const uint64_t wanted = notes != NULL ? notes->files[place].hash : 0;
        if (notes == NULL || wanted == f->print.hash)
            return FSDP_OK;
        return fsdp_error(FSDP_EMISMATCH, "give all ranks of the run the same data",
                          "data: %s: got tokens with the hash %016" PRIx64 ", expected %016" PRIx64,
                          f->path, f->print.hash, wanted);
    }
    f->print.hash = notes->files[place].hash;
    for (size_t i = 0; i < n_blocks(c, f) && first + i < notes->n_blocks; i++)
        f->hashes[i] = notes->blocks[first + i];
    return FSDP_OK;
}

/* Find out what an open file has, and hash its tokens. */
static fsdp_status take_file(corpus *c, corpus_file *f, const corpus_request *r)
{
    struct stat st;
    _Alignas(uint32_t) char head[BLOCK_BYTES];
    const char *slash = strrchr(f->path, '/');
    if (fstat(f->fd, &st) != 0 || !S_ISREG(st.st_mode))
        return fsdp_error(FSDP_EIO, "pass a regular file, a directory or a glob",
                          "data: %s: not a regular file", f->path);
    const size_t bytes = (size_t)st.st_size, in_head = bytes < sizeof head ? bytes : sizeof head;
    f->print = (corpus_print){.bytes = bytes,
                              .mtime_ns = st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec};
    snprintf(f->print.name, sizeof f->print.name, "%s", slash != NULL ? slash + 1 : f->path);
    TRY(read_at(f, f->fd, head, in_head, 0));
    TRY(token_file_format(c, r, head, in_head, bytes, f));
    f->begin = c->n_tokens;
    f->hashes = calloc(n_blocks(c, f) + 1, sizeof *f->hashes);
    if (f->hashes == NULL)
        return no_memory(c);
    TRY(hash_file(c, f, r->notes));
    c->n_tokens += f->n_tokens;
    return FSDP_OK;
}

fsdp_status corpus_add_file(corpus *c, const char *path, const corpus_request *r)
{
    corpus_file *files = realloc(c->files, (c->n_files + 1) * sizeof *files);
    char *name = strdup(path);
    c->files = files != NULL ? files : c->files;
    /* O_NONBLOCK: a FIFO without a writer is refused instead of waited for */
    const int fd = files && name ? open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK) : -1;
    const int why = errno;
    if (fd >= 0) {
        corpus_file *f = &c->files[c->n_files++];
        *f = (corpus_file){.path = name, .fd = fd};
        const fsdp_status status = take_file(c, f, r);
        if (c->n_files > MOST_OPEN) {
            close(fd);
            f->fd = -1;
        }
        return status;
    }
    free(name);
    return files == NULL || name == NULL ? no_memory(c) : cannot_open(path, why);
}

fsdp_status corpus_take_notes(corpus *c, const corpus_request *r)
{
    if (r->notes == NULL)
        return FSDP_OK;
    c->known_hash = r->notes->hash;
    if (c->n_files == r->notes->n_files)
        return FSDP_OK;
    return fsdp_error(FSDP_EMISMATCH, "give all ranks of the run the same data",
                      "data: %s: got %zu files, expected %zu", c->source, c->n_files,
                      r->notes->n_files);
}

fsdp_status corpus_notes_of(const corpus *c, corpus_notes *out)
{
    *out = (corpus_notes){.n_files = c->n_files, .hash = corpus_hash(c)};
    for (size_t i = 0; i < c->n_files; i++)
        out->n_blocks += n_blocks(c, &c->files[i]);
    out->files = calloc(out->n_files + 1, sizeof *out->files);
    out->blocks = calloc(out->n_blocks + 1, sizeof *out->blocks);
    if (out->files == NULL || out->blocks == NULL) {
        corpus_notes_free(out);
        return no_memory(c);
    }
    uint64_t *to = out->blocks;
    for (size_t i = 0; i < c->n_files; i++) {
        const size_t n = n_blocks(c, &c->files[i]);
        out->files[i] = c->files[i].print;
        memcpy(to, c->files[i].hashes, n * sizeof *to);
        to += n;
    }
    return FSDP_OK;
}

void corpus_notes_free(corpus_notes *notes)
{
    free(notes->files);
    free(notes->blocks);
    *notes = (corpus_notes){0};
}

/* ---- several files --------------------------------------------------------------------------- */

/* Append an entry of a directory: files, but of llm.c's shards only those named *.bin. Folders and
 * hidden entries are ignored: programs leave such beside files. */
static fsdp_status add_entry(corpus *c, const char *dir, const char *name, const corpus_request *r)
{
    fsdp_status status = FSDP_OK;
    struct stat st;
    char *path;
    if (name[0] == '.' || (c->format == CORPUS_LLMC && fnmatch("*.bin", name, 0) != 0))
        return FSDP_OK;
    if (asprintf(&path, "%s/%s", dir, name) < 0)
        return no_memory(c);
    if ((r->no_links ? lstat(path, &st) : stat(path, &st)) != 0)
        status = fsdp_error(FSDP_EIO, "remove it from the directory given to --data, or mend it",
                            "data: %s: %s", path, strerror(errno));
    else if (!S_ISDIR(st.st_mode) && !S_ISLNK(st.st_mode))
        status = corpus_add_file(c, path, r);
    free(path);
    return status;
}

fsdp_status corpus_add_dir(corpus *c, const char *dir, const corpus_request *r)
{
    struct dirent **entries;
    fsdp_status status = FSDP_OK;
    const int n = scandir(dir, &entries, NULL, alphasort); /* strcmp's order: no locale is set */
    if (n < 0)
        return fsdp_error(FSDP_EIO, "pass a text file or llm.c shards", "data: %s: %s", dir,
                          strerror(errno));
    for (int i = 0; i < n; i++) {
        if (status == FSDP_OK)
            status = add_entry(c, dir, entries[i]->d_name, r);
        free(entries[i]);
    }
    free(entries);
    return status;
}

fsdp_status corpus_add_glob(corpus *c, const corpus_request *r)
{
    glob_t g;
    const char *pattern = r->path;
    fsdp_status status = FSDP_OK;
    int rc = glob(pattern, GLOB_ERR, NULL, &g); /* sorted in the same order */
    if (rc == GLOB_NOSPACE)
        return no_memory(c);
    if (rc == GLOB_ABORTED)
        return fsdp_error(FSDP_EIO, "let this user read the directories of the pattern",
                          "data: %s: %s", pattern, strerror(errno));
    if (rc != 0)
        return fsdp_error(
            FSDP_EIO, "check the pattern given to --data or --val-data (quote it from the shell)",
            "data: %s: no file matches", pattern);
    for (size_t i = 0; i < g.gl_pathc && status == FSDP_OK; i++)
        status = corpus_add_file(c, g.gl_pathv[i], r);
    globfree(&g);
    return status;
}
