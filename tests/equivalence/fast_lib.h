/* fast_lib.h -- fast mode: within derived bounds, or measured ones where none exists. */
#pragma once
#include "tests/equivalence/suite_lib.h"

/* fast_sgd -- gradients, and in fp32 the weights after one step of SGD, are near the twin's. */
void fast_sgd(suite *s, const model_config *m, const ops *o, const dtypes *types);
/* fast_shapes -- 4 sequences a call on W ranks move gradients, against one by one, by little more
 * than 2 a call on one device do; in bf16, by no more than twice what rounding does. */
void fast_shapes(suite *s, const model_config *mc, const ops *o, const dtypes *types);
/* fast_adamw -- AdamW's losses of every variant are in the band of one device's. */
void fast_adamw(suite *s, const model_config *m, const ops *o, const dtypes *types);
