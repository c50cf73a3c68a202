/* corpus.c -- open a corpus of files, and read a sample of any corpus.
 *
 *   corpus_open_file | corpus_open_texts -> sample_read ... -> corpus_close
 *
 * files.c reads files, licences.c opens the licence texts, token_file.c checks the format of token
 * files, synthetic.c generates the synthetic corpus; images.c and digits.c provide images. */
#include "common/data/data_impl.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>
#include "common/base/dtype.h"
#include "common/base/glob_in.h"
#include "common/ops/ops.h"

fsdp_status corpus_check_length(const corpus *c, size_t seq_len)
{
    if (c->n_tokens > seq_len)
        return FSDP_OK;
    const bool is_text = c->token_bytes == 1;
    char hint[96];
    if (c->n_tokens > 1)
        snprintf(hint, sizeof hint, "pass --seq-len %zu or less, or more data", c->n_tokens - 1);
    else
        snprintf(hint, sizeof hint, "pass more data, such as a file that has text in it");
    return fsdp_error(FSDP_EINVAL, hint,
                      "data: %s: got %zu %s, expected at least %zu (one sequence of %zu and the "
                      "target of its last token)",
                      c->source, c->n_tokens, is_text ? "bytes" : "tokens", seq_len + 1, seq_len);
}

/* ---- files ---------------------------------------------------------------------------------- */

/* Whether something in a directory is data: not a directory nor, with no_links, a link. */
static bool is_data(const char *path, const corpus_request *r)
{
    struct stat st;
    if ((r->no_links ? lstat(path, &st) : stat(path, &st)) != 0)
        return true; /* its open says what is wrong */
    return !S_ISDIR(st.st_mode) && !S_ISLNK(st.st_mode);
}

static fsdp_status found_nothing(const corpus *c, bool is_dir)
{
    const bool is_llmc = c->format == CORPUS_LLMC;
    if (!is_dir)
        return fsdp_error(
            FSDP_EIO, "check the pattern given to --data or --val-data (quote it from the shell)",
            "data: %s: no file matches", c->source);
    return fsdp_error(FSDP_EIO,
                      is_llmc ? "pass a directory of llm.c shards (*.bin), or --data-format bytes "
                                "for a directory of texts"
                              : "pass a directory with files",
                      "data: %s: got a directory without %s", c->source,
                      is_llmc ? ".bin files" : "files");
}

/* Append the files of a directory, of llm.c's shards what is named *.bin, or the files that match a
 * pattern, in name order. */
static fsdp_status add_matches(corpus *c, bool is_dir, const corpus_request *r)
{
    glob_t g;
    fsdp_status status = FSDP_OK;
    if (is_dir && c->format == CORPUS_AUTO)
        c->format = CORPUS_LLMC;
    const char *names = c->format == CORPUS_LLMC ? "*.bin" : "*";
    const int rc =
        is_dir ? glob_in(r->path, names, GLOB_ERR, &g) : glob(r->path, GLOB_ERR, NULL, &g);
    if (rc == GLOB_NOSPACE)
        return corpus_no_memory(c);
    if (rc == GLOB_ABORTED)
        return fsdp_error(FSDP_EIO, "let this user read the directories of this path",
                          "data: %s: %s", r->path, strerror(errno));
    if (rc != 0)
        return found_nothing(c, is_dir);
    for (size_t i = 0; i < g.gl_pathc && status == FSDP_OK; i++)
        if (!is_dir || is_data(g.gl_pathv[i], r))
            status = corpus_add_file(c, g.gl_pathv[i], r);
    globfree(&g);
    return status != FSDP_OK || c->notes.n_files > 0 ? status : found_nothing(c, is_dir);
}

/* Append all files of r->path. */
static fsdp_status add_files(const corpus_request *r, corpus *c)
{
    const corpus_notes *known = &r->notes;
    struct stat st;
    const bool exists = stat(r->path, &st) == 0;
    *c = (corpus){.vocab_size = r->vocab_limit, .format = r->format, .sum = XXH3_createState()};
    snprintf(c->source, sizeof c->source, "%s", r->path);
    if (c->sum == NULL || XXH3_64bits_reset(c->sum) != XXH_OK)
        return corpus_no_memory(c);
    const bool is_dir = exists && S_ISDIR(st.st_mode);
    if (is_dir || (!exists && strpbrk(r->path, "*?[") != NULL))
        TRY(add_matches(c, is_dir, r));
    else
        TRY(corpus_add_file(c, r->path, r));
    c->notes.hash = known->n_files > 0 ? known->hash : XXH3_64bits_digest(c->sum);
    if (known->n_files == 0 || known->n_files == c->notes.n_files)
        return FSDP_OK;
    return fsdp_error(FSDP_EMISMATCH, "give all ranks of the run the same data",
                      "data: %s: got %zu files, expected %zu", c->source, c->notes.n_files,
                      known->n_files);
}

static fsdp_status add_mask(const corpus_request *r, corpus *c)
{
    const corpus_request request = {
        .path = r->mask, .format = CORPUS_BYTES, .vocab_limit = BYTE_VOCAB, .notes = r->mask_notes};
    if (r->mask == NULL)
        return FSDP_OK;
    c->mask = calloc(1, sizeof *c->mask);
    if (c->mask == NULL)
        return corpus_no_memory(c);
    TRY(add_files(&request, c->mask));
    if (c->mask->n_tokens == c->n_tokens)
        return FSDP_OK;
    return fsdp_error(FSDP_EINVAL, "pass a mask with one byte for each token of the data",
                      "data: %s: got a mask of %zu bytes, expected %zu, one for each token of %s",
                      r->mask, c->mask->n_tokens, c->n_tokens, c->source);
}

fsdp_status corpus_open_file(const corpus_request *request, corpus *out)
{
    fsdp_status status = add_files(request, out);
    IF_OK(status, corpus_check_length(out, request->seq_len));
    IF_OK(status, add_mask(request, out));
    if (status != FSDP_OK)
        corpus_close(out);
    return status;
}

/* ---- the tokens of a sequence --------------------------------------------------------------- */

static size_t n_places(size_t n_tokens, size_t seq_len)
{
    FSDP_ASSERT(seq_len > 0 && n_tokens > seq_len);
    return (n_tokens - 1) / seq_len;
}

size_t corpus_samples(const corpus *c, size_t seq_len)
{
    return c->images ? c->n_tokens : n_places(c->n_tokens, seq_len);
}

size_t sample_offset(size_t n_tokens, uint64_t k, size_t seq_len)
{
    /* (k*T) mod (m*T) = (k mod m)*T, which cannot overflow */
    return (size_t)(k % n_places(n_tokens, seq_len)) * seq_len;
}

/* Replace the targets of tokens `first` ... that do not count. */
static fsdp_status mask_targets(const corpus *c, size_t first, size_t n, int32_t *targets)
{
    int32_t counts[1024];
    for (size_t t = 0; t < n; t++) {
        const size_t at = t % 1024;
        if (at == 0)
            TRY(corpus_read(c->mask, first + t, min_size(n - t, 1024), counts));
        targets[t] = counts[at] != 0 ? targets[t] : NO_TARGET;
    }
    return FSDP_OK;
}

size_t corpus_eval_samples(const corpus *c)
{
    return c->images ? SIZE_MAX : EVAL_SEQUENCES;
}

fsdp_status sample_read(const corpus *c, uint64_t k, size_t seq_len, void *inputs, int32_t *targets)
{
    if (c->images != NULL) {
        FSDP_ASSERT_EQ(seq_len, 1);
        image_read(c, k, inputs, targets);
        return FSDP_OK;
    }
    const size_t o = sample_offset(c->n_tokens, k, seq_len);
    TRY(corpus_read(c, o, seq_len, inputs));
    TRY(corpus_read(c, o + 1, seq_len, targets));
    return c->mask ? mask_targets(c, o + 1, seq_len, targets) : FSDP_OK;
}
