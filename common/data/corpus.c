/* corpus.c -- opens a corpus from files, and finds the part of it that a sequence reads.
 *
 *   corpus_open_file | corpus_open_texts -> sample_sequence ... -> corpus_close
 *
 * Files are read into memory, several are joined there: what becomes of them afterwards does not
 * matter. synthetic.c has the synthetic corpus, token_file.c the format of token files. */
#include "common/data/data_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

void corpus_close(corpus *c)
{
    free(c->tokens);
    *c = (corpus){0};
}

fsdp_status corpus_check_length(const corpus *c, size_t seq_len)
{
    if (c->n_tokens > seq_len)
        return FSDP_OK;
    const bool is_text = c->token_bytes == 1;
    char hint[96];
    if (c->n_tokens > 1)
        snprintf(hint, sizeof hint, "pass --seq-len %zu or less, or more data", c->n_tokens - 1);
    else
        snprintf(hint, sizeof hint, "pass --data with a file that has text in it");
    return fsdp_error(FSDP_EINVAL, hint,
                      "data: %s: got %zu %s, expected at least %zu (one sequence of %zu and the "
                      "target of its last token)",
                      c->source, c->n_tokens, is_text ? "bytes" : "tokens", seq_len + 1, seq_len);
}

/* ---- files ---------------------------------------------------------------------------------- */

static fsdp_status check_text(const corpus *c, size_t vocab_limit)
{
    const unsigned char *text = c->tokens;
    for (size_t i = 0; vocab_limit < BYTE_VOCAB && i < c->n_tokens; i++)
        if (text[i] >= vocab_limit)
            return fsdp_error(FSDP_EINVAL, "use a model whose --vocab-size is at least 256",
                              "data: %s: byte %zu: got %u, expected less than %zu", c->source, i,
                              text[i], vocab_limit);
    return FSDP_OK;
}

/* Opens one file, tokens or a text. */
static fsdp_status open_one(const char *path, size_t vocab_limit, corpus *out)
{
    size_t file_bytes;
    TRY(file_append(path, out, &file_bytes));
    if (token_file_is(path, out->tokens, file_bytes)) {
        out->token_bytes = 2;
        out->vocab_size = vocab_limit;
        return token_file_take(path, file_bytes, out);
    }
    out->n_tokens = file_bytes;
    out->token_bytes = 1;
    out->vocab_size = BYTE_VOCAB;
    return check_text(out, vocab_limit);
}

static fsdp_status open_many(const char *path, bool is_dir, size_t vocab_limit, corpus *out)
{
    out->token_bytes = 2;
    out->vocab_size = vocab_limit;
    TRY(is_dir ? corpus_add_dir(path, out) : corpus_add_glob(path, out));
    if (out->tokens != NULL)
        return FSDP_OK;
    return fsdp_error(FSDP_EIO, "pass a text file, or a directory of llm.c shards (*.bin)",
                      "data: %s: got a directory without .bin files", path);
}

fsdp_status corpus_open_file(const char *path, size_t vocab_limit, size_t seq_len, corpus *out)
{
    *out = (corpus){0};
    snprintf(out->source, sizeof out->source, "%s", path);
    struct stat st;
    const bool exists = stat(path, &st) == 0;
    const bool is_glob = !exists && strpbrk(path, "*?[") != NULL;
    fsdp_status status;
    if (is_glob || (exists && S_ISDIR(st.st_mode)))
        status = open_many(path, !is_glob, vocab_limit, out);
    else
        status = open_one(path, vocab_limit, out);
    if (status == FSDP_OK)
        status = corpus_check_length(out, seq_len);
    if (status != FSDP_OK)
        corpus_close(out);
    return status;
}

uint64_t corpus_hash(const corpus *c)
{
    return XXH3_64bits(c->tokens, c->n_tokens * (size_t)c->token_bytes);
}

/* ---- which part a sequence reads ------------------------------------------------------------ */

size_t sample_offset(size_t n_tokens, uint64_t k, size_t seq_len)
{
    FSDP_ASSERT(seq_len > 0 && n_tokens > seq_len);
    /* (k*T) mod (m*T) = (k mod m)*T, which cannot overflow */
    const size_t n_places = (n_tokens - 1) / seq_len;
    return (size_t)(k % n_places) * seq_len;
}

static int32_t token_at(const corpus *c, size_t i)
{
    return c->token_bytes == 1 ? ((const uint8_t *)c->tokens)[i] : ((const uint16_t *)c->tokens)[i];
}

void sample_sequence(const corpus *c, uint64_t k, size_t seq_len, int32_t *tokens, int32_t *targets)
{
    const size_t o = sample_offset(c->n_tokens, k, seq_len);
    for (size_t t = 0; t < seq_len; t++) {
        tokens[t] = token_at(c, o + t);
        targets[t] = token_at(c, o + t + 1);
    }
}
