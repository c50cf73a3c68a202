/* init.c -- see init.h. Element i of parameter p is a function of (seed, p, i) alone. */
#include "common/model/init.h"

#include "common/base/philox.h"

void param_init_range(const param_spec *spec, int p, uint64_t seed, size_t begin, size_t elems,
                      float *out)
{
    FSDP_ASSERT(p >= 0 && begin <= spec->elems && elems <= spec->elems - begin);
    if (spec->init == INIT_NORMAL) {
        philox_normal_fill(seed, (uint64_t)p, begin, elems, spec->init_scale, out);
        return;
    }
    if (spec->init == INIT_UNIFORM) {
        philox_uniform_fill(seed, (uint64_t)p, begin, elems, spec->init_scale, out);
        return;
    }
    const float value = spec->init == INIT_ONE ? 1.0f : 0.0f;
    for (size_t i = 0; i < elems; i++)
        out[i] = value;
}
