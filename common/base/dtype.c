/* dtype.c -- sizes and names of element types; checked size arithmetic. */
#include "common/base/dtype.h"

#include <limits.h>

static const struct {
    const char *name;
    size_t bytes;
} TYPES[] = {[DTYPE_F32] = {"f32", 4},
             [DTYPE_BF16] = {"bf16", 2},
             [DTYPE_I64] = {"i64", 8},
             [DTYPE_U8] = {"u8", 1}};
enum { N_TYPES = sizeof TYPES / sizeof *TYPES };

size_t dtype_bytes(dtype t)
{
    if ((unsigned)t >= N_TYPES)
        FSDP_ASSERT_EQ(t, DTYPE_F32); /* fails, and prints t */
    return TYPES[t].bytes;
}

const char *dtype_name(dtype t)
{
    /* no assertion: a message may name the type that a peer sent */
    return (unsigned)t < N_TYPES ? TYPES[t].name : "unknown type";
}

fsdp_status size_mul(size_t a, size_t b, const char *what, size_t *out)
{
    if (__builtin_mul_overflow(a, b, out))
        return fsdp_error(FSDP_EINVAL, "use smaller sizes", "%s: %zu x %zu does not fit a size_t",
                          what, a, b);
    return FSDP_OK;
}

fsdp_status size_align_up(size_t n, size_t align, const char *what, size_t *out)
{
    if (align < 1)
        return fsdp_error(FSDP_EINVAL, "align by 1 or more", "%s: %zu to be aligned by 0", what, n);
    const size_t over = n % align;
    if (__builtin_add_overflow(n, over == 0 ? 0 : align - over, out))
        return fsdp_error(FSDP_EINVAL, "use smaller sizes",
                          "%s: %zu aligned by %zu does not fit a size_t", what, n, align);
    return FSDP_OK;
}

int elems_to_int(size_t elems)
{
    if (elems > INT_MAX)
        FSDP_ASSERT_EQ(elems, INT_MAX); /* fails, and prints both numbers */
    return (int)elems;
}
