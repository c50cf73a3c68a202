/* gpt2_double_lib.h -- GPT-2's forward pass in double, written as plainly as possible, to compare
 * the layers with. Shares no code with common/. */
#pragma once
#include "common/model/unit.h"

typedef struct gpt2_double_batch {
    const int32_t *tokens, *targets; /* [batch, seq_len] */
    size_t batch, seq_len;
} gpt2_double_batch;

/* gpt2_double_loss -- sum of -log p(target) over the tokens.
 *   params  [n_params] by global index (the tied lm_head.weight is not read: the head uses wte)
 *   logits  [batch*seq_len, V], or NULL */
double gpt2_double_loss(const model *m, double *const *params, const gpt2_double_batch *in,
                        double *logits);
