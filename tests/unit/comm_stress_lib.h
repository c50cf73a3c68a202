/* comm_stress_lib.h -- the data of comm_stress: inputs as functions of a key and an index, and
 * tasks that fill buffers with them and check results against them. */
#pragma once
#include <stdatomic.h>
#include "tests/unit/comm_cases_lib.h"

enum { STRESS_RANKS = 8, STRESS_STEPS = 5 };

/* Of this process, so far. The first few differences are printed. */
extern atomic_llong stress_differences, stress_checked_bytes;

uint64_t stress_mix(uint64_t h);
/* stress_draw -- a number below n. */
uint64_t stress_draw(uint64_t *seed, uint64_t n);
/* stress_key -- of one rank's (or one pair's) data in a call. */
uint64_t stress_key(uint64_t call_key, int a, int b);

/* What a task of a stream works on: bytes, or floats first ... first + n of a key. */
typedef struct stress_data {
    char *at;
    size_t bytes, first;
    uint64_t key;
    bool floats;
    const char *label;
    int round, from;
} stress_data;

fsdp_status stress_fill(void *args, int n_threads);
fsdp_status stress_check(void *args, int n_threads);

/* What one rank has of a sum: elements first ... first + elems. Rank r's contribution of a step has
 * key stress_key(key, step, rank[r]). */
typedef struct stress_sum {
    const void *sum;
    size_t first, elems;
    uint64_t key;
    dtype type, sum_dtype; /* sum_dtype DTYPE_BF16: a sum in bf16 */
    grad_acc_mode mode;
    int size, steps, round;
    int run;                /* fast_run of the group */
    int rank[STRESS_RANKS]; /* of the job, by place in the group */
    int level[STRESS_STEPS];
    const char *label;
} stress_sum;

fsdp_status stress_check_sum(void *args, int n_threads);
