/* generate.h -- text from a trained model, one token at a time.
 *
 *   generator_create -> generator_logits, pick_token ... -> generator_free
 *
 * There is no KV cache: each token costs a forward pass over the window of tokens before it. This
 * is simple, and fast enough for the models of the labs. */
#pragma once
#include "common/weights/export.h"

typedef struct generator generator;

/* generator_check -- FSDP_EINVAL: m reads images. */
fsdp_status generator_check(const model *m);
/* generator_create -- read every parameter of m from weights into memory of dev.
 *   m, dev, o    borrowed until generator_free; weights are read only during the call
 *   most_tokens  the most tokens that generator_logits will get; memory is allocated for this many,
 *                or for max_seq_len if that is less
 *   errors       as generator_check and import_read; FSDP_ENOMEM; *out is NULL then */
fsdp_status generator_create(const model *m, device *dev, const ops *o, const import *weights,
                             size_t most_tokens, generator **out);

/* generator_logits -- the logits of the token that follows tokens [n_tokens], n_tokens >= 1
 * (asserted). The model sees only the last max_seq_len of them.
 *   logits  [V], host
 *   errors  FSDP_EINVAL (a token outside the vocabulary); FSDP_ENOMEM */
fsdp_status generator_logits(generator *g, const int32_t *tokens, size_t n_tokens, float *logits);
/* generator_free -- NULL is accepted. */
void generator_free(generator *g);

/* pick_token -- choose *token by its logits [vocab].
 *   temperature  0: the largest logit, the first of equals; else softmax(logits / temperature)
 *   top_k        choose among the k largest (of equals at the edge, the first); 0: all
 *   u            uniform in (0,1): the first token at which the running sum of probabilities, in
 *                order of token number, exceeds u. Worked example: probabilities 1/2, 1/4, 1/4: u
 *                = 0.6 -> 1
 *   work         [vocab] scratch
 *   errors       FSDP_EINVAL: a logit is not finite */
typedef struct pick_args {
    const float *logits;
    float *work;
    size_t vocab, top_k;
    double temperature, u;
} pick_args;
fsdp_status pick_token(const pick_args *a, int32_t *token);
