/* comm_cases_lib.h -- checks of the collectives, for test_comm.
 *
 * Every rank has different data. Sizes: none, one, fewer than ranks, not divisible, some
 * thousands. */
#pragma once
#include "common/ops/ops.h"
#include "tests/unit/comm_calls_lib.h"

/* One run of the program. */
typedef struct comm_fixture {
    device *dev;
    comm *c;
    stream *s; /* collectives run here: on a worker stream, or on the compute stream */
    stream *worker;
    const sum_kernels *sums; /* for reductions */
    int rank, world, n_failed;
    char why[200]; /* the first error of the running check */
} comm_fixture;

#define CHECK(f, cond, ...)                                                                        \
    do {                                                                                           \
        if (!(cond) && (f)->why[0] == '\0')                                                        \
            snprintf((f)->why, sizeof(f)->why, __VA_ARGS__);                                       \
    } while (0)
#define CHECK_OK(f, call)                                                                          \
    do {                                                                                           \
        fsdp_status got_ = (call);                                                                 \
        CHECK(f, got_ == FSDP_OK, "line %d: %.150s", __LINE__, fsdp_error_get()->what);            \
    } while (0)

/* comm_test_open -- opens a device, the group of all ranks and a worker stream, and sets s to the
 * worker stream. Prints a failure. debug_fill: see device_config. */
fsdp_status comm_test_open(comm_fixture *f, const device_backend *b, bool debug_fill);
/* comm_test_open_as -- the same with any configurations. */
fsdp_status comm_test_open_as(comm_fixture *f, const device_config *dc, const comm_config *cc);
/* comm_test_end -- frees all. comm_test_close: frees all, prints this rank's DONE line, and returns
 * what main returns. */
void comm_test_end(comm_fixture *f);
int comm_test_close(comm_fixture *f);

/* Runs a check; rank 0 prints its PASS or FAIL line. */
void comm_test_run(comm_fixture *f, const char *name, void (*test)(comm_fixture *));

/* Kernels for sums on the CPU. */
#define comm_test_sums (*ops_cpu_portable()->sums)

/* comm_test_up -- returns host [bytes] on the device: host itself, or a copy. comm_test_down: waits
 * for the stream, updates host from the device, and frees a copy. */
void *comm_test_up(comm_fixture *f, void *host, size_t bytes);
void comm_test_down(comm_fixture *f, void *host, void *ptr, size_t bytes);

/* comm_test_of -- a collective of one step. comm_test_call -- issues it on the fixture's group, as
 * number i of a check. Work on s then counts wrong elements, and the check fails. */
collective comm_test_of(comm_op op, dtype type, size_t elems);
void comm_test_call(comm_fixture *f, stream *s, int i, collective d);

/* Matrices of 5, 1, 12 and 3 rows of row_elems, with gaps of one element, as pieces of an array.
 * Each rank has the same number of rows of each matrix, rounded up; the last ranks have fewer or
 * none. */
enum { ROWS_MATRICES = 4 };
typedef struct comm_rows {
    comm_piece list[ROWS_MATRICES * 64];
    comm_pieces pieces;
    size_t array_elems;
} comm_rows;
void comm_rows_make(int world, size_t row_elems, comm_rows *x);

/* comm_case_calls -- calls of this operation: all sizes, each with two types, equal and unequal
 * slices (all-gather: in place or not) and both kinds of sums. Sums of integers wrap
 * around. */
void comm_case_calls(comm_fixture *f, comm_op op);

/* comm_cases -- [COMM_CASES] for every transport. comm_cases_run: runs cases; rank 0 prints
 * "NAME.where" (where NULL: "NAME"). */
typedef struct comm_case {
    const char *name;
    void (*run)(comm_fixture *);
} comm_case;
enum { COMM_CASES = 8 };
extern const comm_case comm_cases[COMM_CASES];
void comm_cases_run(comm_fixture *f, const comm_case *cases, size_t n, const char *where);
