/* comm_calls_lib.h -- runs one collective, and compares every element of its result with a plain
 * reference. comm_cases_lib chooses the calls, comm_stress draws them.
 *
 * Inputs are functions of (key, rank, index), so each rank can compute what the others sent. A call
 * puts several pieces of work on its stream: fill, collective, check, free. The host does not wait
 * for them. If the device cannot run C, copies on the host are filled and checked. Each rank draws
 * for itself where its buffers lie (comm_alloc, device_alloc, malloc). A failing call ends the
 * process. */
#pragma once
#include <stdatomic.h>
#include "common/comm/comm_impl.h"
#include "common/ops/backend.h"

enum { CALL_RANKS = 8, CALL_STEPS = 5 };

/* A collective: what all ranks of the group have chosen alike, and this rank's place. */
typedef struct collective {
    device *dev;
    comm *c;
    stream *s;
    const char *label;
    comm_op op;
    dtype type;
    size_t elems; /* of a slice */
    bool other;   /* all-gather: in place; all-to-all, reduce-scatter: slices of unequal length */
    const comm_pieces *pieces; /* of an array of array_elems; NULL: slices. Must outlive the call */
    size_t array_elems;
    grad_acc_mode mode; /* with sum_dtype, steps and level: of a reduce-scatter */
    dtype sum_dtype;
    int steps, level[CALL_STEPS];
    const sum_kernels *sums;
    uint64_t key;   /* of the data */
    uint64_t *mine; /* this rank's seed */
    int round;      /* printed with a difference */
} collective;

void collective_run(const collective *d);

/* Of this process so far. The first few differences are printed. */
extern atomic_llong call_differences, call_checked_bytes;

/* comm_test_alloc -- malloc that never returns NULL; 0 bytes are allowed. comm_test_free: free, in
 * order of the stream. */
void *comm_test_alloc(size_t bytes);
void comm_test_free(stream *s, void *p);

/* call_draw -- returns a number below n. */
uint64_t call_draw(uint64_t *seed, uint64_t n);

#define MUST(call)                                                                                 \
    do {                                                                                           \
        if ((call) != FSDP_OK) {                                                                   \
            fsdp_error_print(stderr, 0, 0);                                                        \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)
