/* ops_cases_lib.h -- every operation of an ops table on inputs from Philox, by number.
 *
 *     for (size_t i = 0; i < ops_case_count(); i++) {
 *         ops_result r = ops_case_run(i, ops_cpu_portable(), stream);
 *         ... r.data[0 ... r.elems-1]: all that the operation wrote ...
 *         free(r.data);
 *     }
 * Inputs are the same on every machine, so results may be compared by bits between thread counts,
 * tables, compilers and instruction sets. */
#pragma once
#include "common/device/device.h"
#include "common/ops/ops.h"

typedef struct ops_result {
    float *data; /* malloc'd, the caller frees; bf16 is expanded to fp32 */
    size_t elems;
    dtype type; /* how activations and parameters were stored */
    fsdp_status status;
} ops_result;

size_t ops_case_count(void);
const char *ops_case_name(size_t i);

/* ops_case_run -- run case i on s and wait for it. */
ops_result ops_case_run(size_t i, const ops *o, stream *s);

/* ops_test_fill -- elems standard normal values times std; `name` picks the numbers. */
void ops_test_fill(uint64_t name, float std, float *out, size_t elems);
