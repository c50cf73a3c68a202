/* corpus.c -- open a corpus of files, and read a sample of any corpus.
 *
 *   corpus_open_file | corpus_open_texts -> sample_read ... -> corpus_close
 *
 * files.c reads files, licences.c opens folders of texts, token_file.c checks the format of token
 * files, synthetic.c generates the synthetic corpus; images.c and digits.c provide images. */
#include "common/data/data_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

fsdp_status corpus_check_length(const corpus *c, size_t seq_len)
{
    if (c->n_tokens > seq_len)
        return FSDP_OK;
    const bool is_text = c->token_bytes <= 1; /* 0: no file */
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

static fsdp_status open_dir(const char *dir, const corpus_request *r, corpus *out)
{
    out->format = r->format == CORPUS_AUTO ? CORPUS_LLMC : r->format;
    TRY(corpus_add_dir(out, dir, r));
    if (out->n_files > 0)
        return FSDP_OK;
    const bool is_llmc = out->format == CORPUS_LLMC;
    return fsdp_error(FSDP_EIO,
                      is_llmc ? "pass a directory of llm.c shards (*.bin), or --data-format bytes "
                                "for a directory of texts"
                              : "pass a directory with files",
                      "data: %s: got a directory without %s", dir,
                      is_llmc ? ".bin files" : "files");
}

static fsdp_status add_files(const corpus_request *r, corpus *out)
{
    struct stat st;
    const bool exists = stat(r->path, &st) == 0;
    TRY(corpus_begin(out, r->path, r));
    if (exists && S_ISDIR(st.st_mode))
        TRY(open_dir(r->path, r, out));
    else if (!exists && strpbrk(r->path, "*?[") != NULL)
        TRY(corpus_add_glob(out, r));
    else
        TRY(corpus_add_file(out, r->path, r));
    return corpus_take_notes(out, r);
}

fsdp_status corpus_open_file(const corpus_request *request, corpus *out)
{
    fsdp_status status = add_files(request, out);
    if (status == FSDP_OK)
        status = corpus_check_length(out, request->seq_len);
    if (status != FSDP_OK)
        corpus_close(out);
    return status;
}

fsdp_status corpus_open_mask(const char *path, const corpus_notes *notes, corpus *c)
{
    const corpus_request request = {
        .path = path, .format = CORPUS_BYTES, .vocab_limit = BYTE_VOCAB, .notes = notes};
    c->mask = calloc(1, sizeof *c->mask);
    if (c->mask == NULL)
        return fsdp_error(FSDP_ENOMEM, "", "data: %s: no host memory", path);
    TRY(add_files(&request, c->mask));
    if (c->mask->n_tokens == c->n_tokens)
        return FSDP_OK;
    return fsdp_error(FSDP_EINVAL, "pass a mask with one byte for each token of the data",
                      "data: %s: got a mask of %zu bytes, expected %zu, one for each token of %s",
                      path, c->mask->n_tokens, c->n_tokens, c->source);
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

fsdp_status sample_read(const corpus *c, uint64_t k, size_t seq_len, void *inputs, int32_t *targets)
{
    if (c->images != NULL) {
        FSDP_ASSERT_EQ(seq_len, 1);
        image_read(c, k, inputs, targets);
        return FSDP_OK;
    }
    const size_t o = sample_offset(c->n_tokens, k, seq_len);
    TRY(corpus_read(c, o, seq_len, inputs));
    return corpus_read(c, o + 1, seq_len, targets);
}

fsdp_status sample_mask(const corpus *c, uint64_t k, size_t seq_len, int32_t *counts)
{
    return corpus_read(c->mask, sample_offset(c->n_tokens, k, seq_len) + 1, seq_len, counts);
}
