/* data.h -- one token stream, and which part of it sequence k reads.
 *
 *   corpus_open_file | corpus_open_default | corpus_synthetic
 *   -> sample_sequence ... -> corpus_close
 *
 * Data order (so that any oracle can replay a run): the corpus has n tokens; sequence number k,
 * counted over the whole run, global batch after global batch, reads tokens o ... o+T-1 and targets
 * o+1 ... o+T, with o = (k*T) mod (floor((n-1)/T)*T). Worked example: n=10, T=4: k=0 -> 0, 1 -> 4,
 * 2 -> 0. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include "common/base/status.h"

typedef struct corpus {
    size_t n_tokens;
    size_t vocab_size; /* tokens are < vocab_size; 256 for bytes */
    const void *tokens;
    int token_bytes; /* 1 or 2 */
    void *mapping;   /* what corpus_close gives back */
    size_t mapping_bytes;
    char source[256]; /* for the log: path or description */
} corpus;

/* corpus_open_file -- path: a text file read as bytes, an llm.c .bin shard (magic 20240520), or a
 * glob / directory of such shards read one after the other. vocab_size of .bin: vocab_limit, and
 * every token is checked against it. errors: FSDP_EIO (missing), FSDP_EINVAL (header, tokens >=
 * vocab_limit, too short for one sequence of seq_len). */
fsdp_status corpus_open_file(const char *path, size_t vocab_limit, size_t seq_len, corpus *out);

/* corpus_open_default -- the licence texts under /usr/share/common-licenses, regular files in name
 * order joined (237 kB of English on Debian 12). *note: "" or a sentence saying that the texts
 * differ from Debian 12's; static. */
fsdp_status corpus_open_default(size_t seq_len, corpus *out, const char **note);

/* corpus_synthetic -- n tokens of order-2 Markov text over `vocab` symbols, from Philox: the same
 * on every machine. What tests and reference losses use. */
fsdp_status corpus_synthetic(uint64_t seed, size_t n_tokens, size_t vocab, corpus *out);
void corpus_close(corpus *c); /* a zeroed struct is accepted */

/* sample_sequence -- tokens [T], targets [T] of sequence k (host). */
void sample_sequence(const corpus *c, uint64_t k, size_t seq_len, int32_t *tokens,
                     int32_t *targets);
/* sample_offset -- o of the formula above. */
size_t sample_offset(size_t n_tokens, uint64_t k, size_t seq_len);
