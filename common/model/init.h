/* init.h -- initial values of a parameter, by element range, so that any part can
 * be made anywhere. */
#pragma once
#include "common/model/unit.h"

/* param_init_range -- out[i] = initial value of element begin+i of parameter p (global index: the
 * Philox stream number), host memory. Same values for any cut into ranges.                       */
void param_init_range(const param_spec *spec, int p, uint64_t seed, size_t begin, size_t elems,
                      float *out);
