/* fast_lib.h -- fast mode: results within derived bounds, or within measured bounds if none can be
 * derived. */
#pragma once
#include "tests/equivalence/suite_lib.h"

/* fast_sgd -- gradients, and in fp32 the weights after one step of SGD, are close to the twin's. */
void fast_sgd(suite *s, const model_config *m, const ops *o, const dtypes *types);
/* fast_shapes -- compared with 1 sequence a call, 4 sequences a call on W ranks move gradients only
 * a little more than 2 a call on one device; in bf16, at most twice as far as rounding does. The
 * head of the former computes its loss in chunks that end inside sequences. */
void fast_shapes(suite *s, const model_config *mc, const ops *o, const dtypes *types);
