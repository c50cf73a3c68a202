/* work.h -- what a piece of work on a device is, for those who watch it: its name and its cost.
 *
 * FLOPs and bytes are not measured. They come from formulas over the work's arguments
 * (ops/op_work.h), the same on every device. */
#pragma once
#include <stddef.h>

/* What one kind of work is called. Literals, compared as text, kept by reference. */
typedef struct work_key {
    const char *name; /* NULL: a part of something larger that is counted elsewhere */
    const char *form; /* NULL: named by `name` alone; else form, m, n and k are part of the name */
    size_t m, n, k;
} work_key;

typedef struct work_cost {
    double flops, bytes;
    double bf16_flops; /* those of flops that multiply in bf16 */
} work_cost;

typedef struct work_info {
    work_key key;
    work_cost cost;
} work_info;
