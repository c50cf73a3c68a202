/* gpt2_double_lib.h -- GPT-2's forward pass once more, in double and as plainly as it can be said:
 * what the layers are compared to. Shares no code with common/. */
#pragma once
#include "common/model/unit.h"

/* gpt2_double_loss -- sum of -log p(target) over the batch*seq_len tokens.
 *   params  [n_params] by global index (the tied lm_head.weight is not read: the head uses wte)
 *   logits  [batch*seq_len, V], or NULL                                                          */
double gpt2_double_loss(const model *m, double *const *params, const int32_t *tokens,
                        const int32_t *targets, size_t batch, size_t seq_len, double *logits);
