/* init.h -- initial values of any range of a parameter, computed on any rank. */
#pragma once
#include "common/model/unit.h"

/* param_init_range -- out[i] = the initial value of element begin+i. The values do not depend on
 * how a parameter is divided into ranges.
 *   p    the parameter's global index, which is its Philox stream number
 *   out  [elems], host */
void param_init_range(const param_spec *spec, int p, uint64_t seed, size_t begin, size_t elems,
                      float *out);
