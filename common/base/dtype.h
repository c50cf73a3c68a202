/* dtype.h -- element types that cross the seams, and checked size arithmetic. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include "common/base/status.h"

typedef enum dtype { DTYPE_F32, DTYPE_BF16, DTYPE_I64, DTYPE_U8 } dtype;

size_t dtype_bytes(dtype t);
const char *dtype_name(dtype t);

/* size_mul -- *out = a * b, or FSDP_EINVAL naming `what` when it does not fit a size_t. */
fsdp_status size_mul(size_t a, size_t b, const char *what, size_t *out);

/* elems_to_int -- an element count for an interface that takes int; asserts that it fits. */
int elems_to_int(size_t elems);

/* size_log2_floor -- floor(log2(n)); 0 for n = 0. */
int size_log2_floor(size_t n);
