/* synthetic.c -- generate order-2 Markov text from Philox: tokens that are the same on every
 * machine and that a model can learn. For 256 symbols, a model that knows nothing has a loss
 * of 5.55 nats per token; one that knows the frequencies 3.2 (measured); the previous token 1.7
 * (measured); two previous tokens at most 1.57 (1.30 for the choice below, 4.34/16 for noise).
 *
 * The text is defined in integers (tests/interop/replay_corpus.py does the same in Python): there
 * are V symbols, at most 65536, and w(stream, i) = philox_u32(seed, stream, i). A 32-bit word
 * becomes a symbol, small symbols more often, by
 *
 *     u = w >> 16;  u = (u*u) >> 16;  u = (u*u) >> 16;  symbol(w) = (u*V) >> 16
 *
 * Token t[i] after a = t[i-2] and b = t[i-1] (both 0 before the start), with r = w(NOISE, i):
 *
 *     r >> 28 is 0..7    symbol(w(AFTER_ONE, b))            a half: depends only on b
 *                8..11   symbol(w(AFTER_TWO, 4*(a*V+b)))    a quarter
 *                12, 13  symbol(w(AFTER_TWO, 4*(a*V+b)+1))  an eighth
 *                14      symbol(w(AFTER_TWO, 4*(a*V+b)+2))  a sixteenth
 *                15      symbol(r << 4)                     a sixteenth: noise
 *
 * The choice and the noise use different bits of r. A model first learns that small symbols are
 * frequent, then what follows b, then what follows (a, b). */
#include "common/base/philox.h"
#include "common/data/data_impl.h"

#include <stdio.h>
#include <stdlib.h>

enum {
    STREAM_NOISE = 0,
    STREAM_AFTER_ONE = 1,
    STREAM_AFTER_TWO = 2,
    MAX_VOCAB = 65536 /* tokens are stored in 16 bits */
};

static uint32_t skewed_symbol(uint32_t word, uint32_t vocab)
{
    uint32_t u = word >> 16;
    u = (u * u) >> 16;
    u = (u * u) >> 16;
    return (u * vocab) >> 16; /* u < 2^16 and vocab <= 2^16: the product fits */
}

static uint32_t next_token(uint64_t seed, uint64_t i, uint32_t vocab, uint32_t a, uint32_t b)
{
    const uint32_t r = philox_u32(seed, STREAM_NOISE, i), choice = r >> 28;
    const uint64_t context = 4 * ((uint64_t)a * vocab + b);
    uint32_t word;
    if (choice < 8)
        word = philox_u32(seed, STREAM_AFTER_ONE, b);
    else if (choice < 12)
        word = philox_u32(seed, STREAM_AFTER_TWO, context);
    else if (choice < 14)
        word = philox_u32(seed, STREAM_AFTER_TWO, context + 1);
    else if (choice == 14)
        word = philox_u32(seed, STREAM_AFTER_TWO, context + 2);
    else
        word = r << 4;
    return skewed_symbol(word, vocab);
}

fsdp_status corpus_synthetic(uint64_t seed, size_t n_tokens, size_t vocab, corpus *out)
{
    *out = (corpus){0};
    if (vocab == 0 || vocab > MAX_VOCAB)
        return fsdp_error(FSDP_EINVAL, "use a smaller --vocab-size",
                          "data: synthetic corpus: vocabulary: got %zu, expected 1 ... %d", vocab,
                          MAX_VOCAB);
    if (n_tokens == 0 || n_tokens > SIZE_MAX / 2)
        return fsdp_error(FSDP_EINVAL, "use a number from 2 to some millions",
                          "data: synthetic corpus: tokens: got %zu, expected at least 1", n_tokens);
    out->n_tokens = n_tokens;
    out->vocab_size = vocab;
    out->token_bytes = vocab <= BYTE_VOCAB ? 1 : 2;
    snprintf(out->source, sizeof out->source, "synthetic (seed %llu, %zu tokens, %zu symbols)",
             (unsigned long long)seed, n_tokens, vocab);
    out->tokens = malloc(n_tokens * (size_t)out->token_bytes);
    if (out->tokens == NULL)
        return fsdp_error(FSDP_ENOMEM, "use a smaller corpus", "data: %s: no memory for %zu bytes",
                          out->source, n_tokens * (size_t)out->token_bytes);
    uint32_t a = 0, b = 0;
    for (size_t i = 0; i < n_tokens; i++) {
        const uint32_t t = next_token(seed, i, (uint32_t)vocab, a, b);
        if (out->token_bytes == 1)
            ((uint8_t *)out->tokens)[i] = (uint8_t)t;
        else
            ((uint16_t *)out->tokens)[i] = (uint16_t)t;
        a = b;
        b = t;
    }
    return FSDP_OK;
}
