/* init.c -- see init.h. Element i of parameter p is a function of (seed, p, i) alone. */
#include "common/model/init.h"

#include "common/base/philox.h"
#include "common/model/tensor_parallel.h"

/* Initial values of elements that lie side by side in Hugging Face's order. */
static void fill(const param_spec *spec, uint64_t p, uint64_t seed, size_t begin, size_t elems,
                 float *out)
{
    if (spec->init == INIT_NORMAL) {
        philox_normal_fill(seed, p, begin, elems, spec->init_scale, out);
        return;
    }
    if (spec->init == INIT_UNIFORM) {
        philox_uniform_fill(seed, p, begin, elems, spec->init_scale, out);
        return;
    }
    const float value = spec->init == INIT_ONE ? 1.0f : 0.0f;
    for (size_t i = 0; i < elems; i++)
        out[i] = value;
}

void param_init_range(const param_spec *spec, int p, uint64_t seed, size_t begin, size_t elems,
                      float *out)
{
    FSDP_ASSERT(p >= 0 && begin <= spec->elems && elems <= spec->elems - begin);
    for (size_t done = 0, n; done < elems; done += n) {
        const size_t at = param_in_file(spec, spec->cut.begin + begin + done, &n);
        n = n < elems - done ? n : elems - done;
        fill(spec, (uint64_t)p, seed, at, n, out + done);
    }
}
