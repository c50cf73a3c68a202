/* corpus.c -- open a corpus of files, and read a sample of any corpus.
 *
 *   corpus_open_file | corpus_open_texts -> sample_read ... -> corpus_close
 *
 * files.c reads files, licences.c opens folders of texts, token_file.c checks the format of token
 * files, synthetic.c generates the synthetic corpus; images.c and digits.c provide images. */
#include "common/data/data_impl.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

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

static fsdp_status open_many(const char *path, bool is_dir, size_t vocab_limit, corpus *out)
{
    out->token_bytes = 2;
    TRY(is_dir ? corpus_add_dir(out, path, vocab_limit) : corpus_add_glob(out, path, vocab_limit));
    if (out->n_files > 0)
        return FSDP_OK;
    return fsdp_error(FSDP_EIO, "pass a text file, or a directory of llm.c shards (*.bin)",
                      "data: %s: got a directory without .bin files", path);
}

fsdp_status corpus_open_file(const char *path, size_t vocab_limit, size_t seq_len, corpus *out)
{
    struct stat st;
    const bool exists = stat(path, &st) == 0;
    const bool is_glob = !exists && strpbrk(path, "*?[") != NULL;
    fsdp_status status = corpus_begin(out, path, vocab_limit);
    if (status == FSDP_OK && (is_glob || (exists && S_ISDIR(st.st_mode))))
        status = open_many(path, !is_glob, vocab_limit, out);
    else if (status == FSDP_OK)
        status = corpus_add_file(out, path, vocab_limit);
    if (status == FSDP_OK)
        status = corpus_check_length(out, seq_len);
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
