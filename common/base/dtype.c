/* dtype.c -- sizes and names of element types; checked size arithmetic. */
#include "common/base/dtype.h"

#include <limits.h>

size_t dtype_bytes(dtype t)
{
    switch (t) {
    case DTYPE_F32:
        return 4;
    case DTYPE_BF16:
        return 2;
    case DTYPE_I64:
        return 8;
    case DTYPE_U8:
        return 1;
    }
    FSDP_ASSERT_EQ(t, DTYPE_F32); /* no such type: prints its number */
    return 0;
}

const char *dtype_name(dtype t)
{
    switch (t) {
    case DTYPE_F32:
        return "f32";
    case DTYPE_BF16:
        return "bf16";
    case DTYPE_I64:
        return "i64";
    case DTYPE_U8:
        return "u8";
    }
    return "unknown type"; /* no assertion: a message may name the type that a peer sent */
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
        FSDP_ASSERT_EQ(elems, INT_MAX); /* prints both */
    return (int)elems;
}

int size_log2_floor(size_t n)
{
    int k = 0;
    while (n >>= 1)
        k++;
    return k;
}
