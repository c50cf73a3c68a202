/* work.h -- the name and the cost of a piece of work on a device, for the device's watches, and a
 * model of a link.
 *
 * FLOPs and bytes are not measured. Formulas compute them from the work's arguments
 * (ops/op_work.h), the same on every device. */
#pragma once
#include <stddef.h>

/* The name of a kind of work. The strings are literals, compared as text, kept by reference. */
typedef struct work_key {
    const char *name; /* NULL: a part of larger work that is counted elsewhere */
    const char *form; /* if not NULL, form, m, n and k are part of the name */
    size_t m, n, k;
} work_key;

typedef struct work_cost {
    double flops, bytes;
    double bf16_flops; /* the part of flops that multiplies in bf16 */
} work_cost;

/* A link, measured or assumed: a transfer takes latency_s + bytes / bytes_per_s. */
typedef struct virtual_link {
    double latency_s;
    double bytes_per_s; /* in each direction; 0: bytes take no time */
} virtual_link;

typedef struct work_info {
    work_key key;
    work_cost cost;
} work_info;
