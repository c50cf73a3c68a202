/* init.h -- initial values of a parameter, by element range: any part can be made anywhere. */
#pragma once
#include "common/model/unit.h"

/* param_init_range -- out[i] = the initial value of element begin+i. Any cut into ranges gives the
 * same values.
 *   p    the parameter's global index, which is its Philox stream number
 *   out  [elems], host */
void param_init_range(const param_spec *spec, int p, uint64_t seed, size_t begin, size_t elems,
                      float *out);
