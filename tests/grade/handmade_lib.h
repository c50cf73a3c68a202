/* handmade_lib.h -- a sharded model made by hand, for the tests of labs 2 to 5.
 *
 *   fixture_run(g, &spec, body)      makes it, runs body, takes it apart, agrees on the verdict
 *
 * Every offset is a literal of the spec; shards, events and streams are made here, so a task's test
 * does not rest on the learner's labs 1 and 2 (it calls unshard and reshard only where the task's
 * own function does). The device is the fixture's own: fresh and freed memory holds NaN, and it is
 * empty at the end or the test fails.
 *
 * Checks inside a body are noted (note()), not returned: all ranks walk through the same
 * collectives and the first difference is reported when they are through. So one wrong
 * rank strands nobody. */
#pragma once
#include "lab3_backward/reducer_setup.h"
#include "lab3_backward/second_use.h"
#include "tests/grade/grade_lib.h"

enum { FIX_UNITS = 4, FIX_PARAMS = 12, FIX_TRACE_BYTES = 4096 };

typedef struct fix_param {
    int unit;
    size_t offset, elems; /* offset in the unit's flat array */
    bool decay, frozen;
    int tied; /* 1 + index of the parameter whose storage this one shares, 0: none */
} fix_param;

typedef struct fix_spec {
    int n_units, n_params;
    const fix_param *params; /* of a unit: in ascending offset. Layers are runs of one unit */
    size_t used_elems[FIX_UNITS];
    sharding_strategy sharding;
    int shard_size;   /* ranks of a shard group; 0: as the strategy has it */
    bool by_strategy; /* stays_* and residency by reducer_create, not by the fixture */
    grad_acc_mode mode;
    size_t batch;       /* 0: 1 */
    int no_sync;        /* > 0: with --no-sync and this number of micro-steps */
    bool async_compute; /* the compute stream is a thread: only events order it */
    int group_ranks;    /* > 0: ranks below it form the group, the others one of their own */
} fix_spec;

/* The model of tasks 3.1 to 3.6 and 4.3 to 4.5: four units whose sizes no world size divides, with
 * gaps between parameters, one frozen unit, and a unit of 5 elements that leaves
 * rank 3 of 4 with nothing but padding. The last parameter is tied to the second, which is
 * cut between two ranks; a spec of 8 parameters is the model without it. */
enum { ROOT, H0, FROZEN, H2, N_UNITS };
static const fix_param PARAMS[] = {
    {.unit = ROOT, .offset = 0, .elems = 5, .decay = true},
    {.unit = ROOT, .offset = 8, .elems = 5},
    {.unit = H0, .offset = 0, .elems = 7, .decay = true},
    {.unit = H0, .offset = 8, .elems = 2},
    {.unit = H0, .offset = 11, .elems = 3},
    {.unit = FROZEN, .offset = 0, .elems = 5, .frozen = true},
    {.unit = H2, .offset = 0, .elems = 1},
    {.unit = H2, .offset = 2, .elems = 3},
    {.unit = ROOT, .offset = 8, .elems = 5, .tied = 2},
};

/* FIX_SPEC(.n_params = 8 or 9, ...) -- a fix_spec of that model; the rest as fix_spec's fields. */
#define FIX_SPEC(...)                                                                              \
    &(const fix_spec)                                                                              \
    {                                                                                              \
        .n_units = N_UNITS, .params = PARAMS, .used_elems = {13, 14, 5, 5}, __VA_ARGS__            \
    }
/* TIED_SPEC -- the model with its tied parameter. */
enum { TIED_PARAM = 8 };
#define TIED_SPEC(...) FIX_SPEC(.n_params = 9, __VA_ARGS__)
/* The units that are not frozen. */
enum { N_LEARNING = 3 };
static const int LEARNING[N_LEARNING] = {ROOT, H0, H2};

typedef struct fixture {
    grade *g;
    const fix_spec *spec;
    device *dev;
    comm *world, *comm; /* comm: what the sharding runs on; == world without group_ranks */
    stream *compute,
        *reduce;          /* gathers have f.comm_stream, so a stream mistaken for another shows */
    bool runs_ahead;      /* the host, of compute */
    int rank, world_size; /* of comm */
    int shard_rank;       /* of this rank in its shard group */
    int slice;            /* which of the W world slices this rank keeps */
    model m;
    fsdp f;
    reducer r;
    fsdp_status verdict; /* of the first check that failed */
    fsdp_error_info info;
    char trace[FIX_TRACE_BYTES]; /* what fix_trace_start has seen issued on comm since */
    void (*on_issue)(struct fixture *fx, comm_op op, const char *label);
    float **copies; /* [n_copies] of fix_read */
    size_t n_copies;
} fixture;

typedef fsdp_status (*fix_body)(fixture *fx);
fsdp_status fixture_run(grade *g, const fix_spec *spec, fix_body body);

/* note -- remember the first failure and go on. */
void note(fixture *fx, fsdp_status check);

/* fix_read -- a copy of a device array of floats, behind everything issued on compute; the
 * fixture's until it ends (fix_copies_free). NULL if array is NULL. */
const float *fix_read(fixture *fx, const void *array, size_t elems);
void fix_copies_free(fixture *fx);
/* fix_fill -- array [elems], on the device: element i = value(ctx, i), in order of compute. */
fsdp_status fix_fill(fixture *fx, float *array, size_t elems, float (*value)(void *ctx, size_t i),
                     void *ctx);

/* expect_values -- notes the first of elems of a device array whose bits differ; got NULL: it is
 * missing. */
void expect_values(fixture *fx, const char *what, const float *got, const float *want,
                   size_t elems);

/* fix_value -- element i of parameter p, a small integer, exact in fp32: 1000*(p+1) + i. */
float fix_value(int p, size_t i);

/* fix_integer -- integers, other ones on every rank, in every buffer and at every element: sums of
 * them are exact, in any order. */
float fix_integer(int rank, int buffer, size_t i);

/* fix_fraction -- a value that no rank, buffer or element shares; the order in which such are added
 * shows in the last bits. */
float fix_fraction(int rank, int buffer, size_t i);

/* fix_layout -- the layout of slots [n_slots] over world_size ranks: shard_elems = ceil(used / W).
 * The slots stay the caller's. */
flat_layout fix_layout(int world_size, const flat_slot *slots, int n_slots, size_t used);

/* fix_settle -- the ranks agree on what was noted so far: go on if this is FSDP_OK. */
fsdp_status fix_settle(fixture *fx);
/* fix_master -- what element `flat` of unit u is in the fixture's model: fix_value, or 0 in a gap
 * or in padding. */
float fix_master(const fixture *fx, int u, size_t flat);
/* fix_param_at -- which parameter holds element `flat` of unit u, and which of its elements that
 * is; -1 in a gap or in padding. */
int fix_param_at(const fixture *fx, int u, size_t flat, size_t *elem);
/* First flat element of this rank's shard, and of its world slice. */
size_t fix_shard_begin(const fixture *fx, int u);
size_t fix_slice_begin(const fixture *fx, int u);
/* fix_n_buffers, fix_buffer -- the gradient buffers of u: 0 is the unit's own, 1 that of a tied
 * parameter's second use. */
int fix_n_buffers(const fixture *fx, int u);
grad_buffer *fix_buffer(const fixture *fx, int u, int k);
/* fix_buffer_begin -- index in buffer k's unreduced array of what this rank's slice begins with. */
size_t fix_buffer_begin(const fixture *fx, int u, int k);
/* fix_reduced_elems -- what this rank sends in one reduction of u: other ranks' slices. */
size_t fix_reduced_elems(const fixture *fx, int u);

/* fix_gather_by_hand -- unit u GATHERED with the right values, without a collective. */
fsdp_status fix_gather_by_hand(fixture *fx, int u);
/* fix_grad_by_hand -- full_grad of every buffer k of u: element i = value(rank, k, i). */
fsdp_status fix_grad_by_hand(fixture *fx, int u, float (*value)(int rank, int buffer, size_t i));

/* fix_fill_params -- the shard of unit u as the fixture begins with it. */
fsdp_status fix_fill_params(fixture *fx, int u);

/* fix_sum -- the sum of leaves [n] in the order of the spec's mode: canonical adds them in a tree,
 * fast one after the other. */
float fix_sum(const fixture *fx, const float *leaves, int n);
/* fix_push -- deliver by hand what reductions would: leaves base ... base+n_leaves-1 into every
 * buffer's accumulator. Element i of buffer k of leaf n = value(n, k, i), i counted in the
 * unreduced array; NaN in the padding (a reduction may leave anything there). */
fsdp_status fix_push(fixture *fx, int u, int n_leaves, int base,
                     float (*value)(int leaf, int buffer, size_t i));

/* fix_expect_acc -- finish the accumulators of u's buffers, and note a sum that differs from the
 * sum of leaves value(leaf, k, i), leaf = 0 ... n_leaves-1, in the order of the spec's mode. */
fsdp_status fix_expect_acc(fixture *fx, int u, int n_leaves,
                           float (*value)(int leaf, int buffer, size_t i));

/* fix_trace_start -- from now on fx->trace gets "all-gather h.0;reduce-scatter root;...". */
void fix_trace_start(fixture *fx);
/* fix_expect_trace -- notes a trace other than `want`, and starts a new one. */
void fix_expect_trace(fixture *fx, const char *what, const char *want);
size_t fix_live(const fixture *fx, mem_category c); /* bytes live now, both streams drained */
