/* handmade_lib.h -- a sharded model made by hand, for the tests of labs 2 to 5.
 *
 *   fixture_run(g, &spec, body)      makes it, runs body, takes it apart, agrees on the verdict
 *
 * Every offset is a literal of the spec. Shards, events and streams are made here, so the test of a
 * task does not depend on the learner's labs 1 and 2. It calls unshard and reshard only where the
 * function under test does. The fixture has its own device: fresh and freed memory holds NaN, and
 * the test fails if memory is live at the end.
 *
 * Checks inside a body are noted (note()), not returned. All ranks go through the same collectives
 * and then report the first difference, so a wrong rank leaves no other rank waiting. */
#pragma once
#include <pthread.h>
#include "lab3_backward/reducer_setup.h"
#include "lab3_backward/second_use.h"
#include "tests/grade/grade_lib.h"

enum {
    FIX_UNITS = 4,
    FIX_PARAMS = 12,
    FIX_TRACE_BYTES = 4096,
    MAX_ELEMS = 64,
    MAX_SHARD_ELEMS = 4096
};

typedef struct fix_param {
    int unit;
    size_t offset, elems; /* offset in the unit's flat array */
    bool decay, frozen;
    int tied; /* 1 + index of the parameter whose storage this one shares; 0: not tied */
} fix_param;

typedef struct fix_spec {
    int n_units, n_params;
    const fix_param *params; /* in ascending offset within a unit; a layer is a run of one unit */
    size_t used_elems[FIX_UNITS];
    sharding_strategy sharding;
    int shard_size;   /* ranks of a shard group; 0: the strategy's */
    bool by_strategy; /* reducer_create sets stays_* and residency, not the fixture */
    grad_acc_mode mode;
    size_t batch;       /* 0: 1 */
    int no_sync;        /* > 0: run with --no-sync and this many micro-steps */
    bool async_compute; /* the compute stream is a thread: only events order it */
    int group_ranks;    /* > 0: ranks below this form one group, the others another */
} fix_spec;

/* The model of tasks 3.1 to 3.6 and 4.3 to 4.5. It has four units whose sizes no world size
 * divides, gaps between parameters, a frozen unit, and a unit of 5 elements that leaves rank 3 of 4
 * with nothing but padding. The last parameter is tied to the second, which is cut between two
 * ranks. With 8 parameters the model has no tied parameter. */
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

#define MODEL_SPEC(list, h2_elems, ...)                                                            \
    &(const fix_spec)                                                                              \
    {                                                                                              \
        .n_units = N_UNITS, .params = list, .used_elems = {13, 14, 5, h2_elems}, __VA_ARGS__       \
    }
/* FIX_SPEC(.n_params = 8 or 9, ...) -- a fix_spec of that model; other arguments set fields of
 * fix_spec. */
#define FIX_SPEC(...) MODEL_SPEC(PARAMS, 5, __VA_ARGS__)
/* ONE_SPEC -- the model without its last two parameters: H2 has one element. It lies in the shard
 * of rank 0, so every other rank has only padding of H2, but takes part in every collective. */
#define ONE_SPEC(...) MODEL_SPEC(PARAMS, 1, .n_params = 7, __VA_ARGS__)
/* TIED_SPEC -- the model with its tied parameter. */
enum { TIED_PARAM = 8 };
#define TIED_SPEC(...) FIX_SPEC(.n_params = 9, __VA_ARGS__)
/* IDLE_SPEC -- ONE_SPEC whose other units are frozen: every rank but 0 has nothing to train. */
static const fix_param IDLE_PARAMS[] = {
    {.unit = ROOT, .offset = 0, .elems = 5, .frozen = true},
    {.unit = ROOT, .offset = 8, .elems = 5, .frozen = true},
    {.unit = H0, .offset = 0, .elems = 7, .frozen = true},
    {.unit = H0, .offset = 8, .elems = 2, .frozen = true},
    {.unit = H0, .offset = 11, .elems = 3, .frozen = true},
    {.unit = FROZEN, .offset = 0, .elems = 5, .frozen = true},
    {.unit = H2, .offset = 0, .elems = 1, .decay = true},
};
#define IDLE_SPEC(...) MODEL_SPEC(IDLE_PARAMS, 1, .n_params = 7, __VA_ARGS__)
/* The units that are not frozen. */
enum { N_LEARNING = 3 };
static const int LEARNING[N_LEARNING] = {ROOT, H0, H2};

typedef struct fixture {
    grade *g;
    const fix_spec *spec;
    device *dev;
    comm *world, *comm;       /* comm: the group of the sharding; == world without group_ranks */
    stream *compute, *reduce; /* gathers use f.comm_stream, so a mistaken stream shows */
    bool runs_ahead;          /* the host runs ahead of compute */
    int rank, world_size;     /* of comm */
    int shard_rank;           /* of this rank in its shard group */
    int slice;                /* the world slice, of W, that this rank keeps */
    model m;
    fsdp f;
    reducer r;
    fsdp_status verdict; /* the first check that failed */
    fsdp_error_info info;
    char trace[FIX_TRACE_BYTES]; /* what was issued since fix_trace_start, on comm ... */
    bool in_all_groups;          /* ... or on any group of its job */
    void (*on_issue)(struct fixture *fx, comm_op op, const char *label);
    pthread_t host;         /* the thread that runs the bodies */
    const char *waited_for; /* the last stream that it waited for since fix_call_starts, or NULL */
    int waits_for_events;   /* how often it waited for an event since then */
    ledger_figures before;  /* the ledger then */
    comm_stats calls_before;
    float **copies; /* [n_copies], made by fix_read */
    size_t n_copies;
} fixture;

typedef fsdp_status (*fix_body)(fixture *fx);
fsdp_status fixture_run(grade *g, const fix_spec *spec, fix_body body);

/* note -- remember the first failure; the body goes on. */
void note(fixture *fx, fsdp_status check);

/* fix_read -- copy a device array of floats after everything issued on compute. The copy is valid
 * until fix_copies_free or the end of the fixture. NULL if array is NULL. */
const float *fix_read(fixture *fx, const void *array, size_t elems);
void fix_copies_free(fixture *fx);
/* expect_values -- note the first element of a device array whose bits differ, or a NULL array. */
void expect_values(fixture *fx, const char *what, const float *got, const float *want,
                   size_t elems);

/* fix_value -- element i of parameter p: 1000*(p+1) + i, a small integer, exact in fp32. */
float fix_value(int p, size_t i);

/* fix_integer -- integers that differ on every rank, in every buffer and at every element. Their
 * sums are exact in any order. */
float fix_integer(int rank, int buffer, size_t i);

/* fix_fraction -- values that differ on every rank, in every buffer and at every element. The order
 * of their sum shows in the last bits. */
float fix_fraction(int rank, int buffer, size_t i);

/* fix_layout -- the layout of slots [n_slots] over world_size ranks: shard_elems = ceil(used / W).
 * The caller keeps the slots. */
flat_layout fix_layout(int world_size, const flat_slot *slots, int n_slots, size_t used);

/* fix_settle -- the ranks agree on what was noted so far. Continue only if FSDP_OK. */
fsdp_status fix_settle(fixture *fx);
/* fix_master -- the value of element `flat` of unit u in the fixture's model: fix_value, or 0 in a
 * gap or in padding. */
float fix_master(const fixture *fx, int u, size_t flat);
/* fix_param_at -- the parameter that holds element `flat` of unit u; -1 in a gap or in padding.
 * *elem is the index within that parameter. */
int fix_param_at(const fixture *fx, int u, size_t flat, size_t *elem);
/* First flat element of this rank's shard, and of its world slice. */
size_t fix_shard_begin(const fixture *fx, int u);
size_t fix_slice_begin(const fixture *fx, int u);
/* fix_used_in_slice -- the elements of this rank's slice of u that are not padding. */
size_t fix_used_in_slice(const fixture *fx, int u);
/* fix_n_buffers, fix_buffer -- the gradient buffers of u: 0 is the unit's own, 1 belongs to the
 * second use of a tied parameter. */
int fix_n_buffers(const fixture *fx, int u);
grad_buffer *fix_buffer(const fixture *fx, int u, int k);
/* fix_buffer_begin -- index in buffer k's unreduced array where this rank's slice begins. */
size_t fix_buffer_begin(const fixture *fx, int u, int k);
/* fix_reduced_elems -- elements that this rank sends in one reduction of u: other ranks' slices. */
size_t fix_reduced_elems(const fixture *fx, int u);

/* fix_gather_by_hand -- make unit u GATHERED with the right values, without a collective. */
fsdp_status fix_gather_by_hand(fixture *fx, int u);
/* fix_grad_by_hand -- set element i of full_grad of every buffer k of u to value(rank, k, i). */
fsdp_status fix_grad_by_hand(fixture *fx, int u, float (*value)(int rank, int buffer, size_t i));

/* fix_value_of -- the value of element `elem` of parameter p; p < 0: of a gap or of padding.
 * fix_initial -- the fixture's initial values: fix_value, or 0 in a gap; ctx is unused. */
typedef float (*fix_value_of)(void *ctx, int p, size_t elem);
float fix_initial(void *ctx, int p, size_t elem);
/* fix_fill_shard -- fill an array with the form of u's shard: the shard, its gradient, its state.
 * fix_expect_shard -- note the first element of such an array that differs from value(ctx, ...). */
fsdp_status fix_fill_shard(fixture *fx, int u, float *array, fix_value_of value, void *ctx);
void fix_expect_shard(fixture *fx, const char *what, int u, const float *array, fix_value_of value,
                      void *ctx);
/* fix_full -- full [padded_elems]: what unit u's gathered array holds after `added` was added to
 * the initial values. It is rounded to bf16 if parameters are gathered in bf16.
 * fix_check_full -- compare the gathered array with fix_full. `on` is the stream that reads it. */
void fix_full(const fixture *fx, int u, float added, float *full);
fsdp_status fix_check_full(fixture *fx, const char *what, int u, float added, stream *on);

/* fix_sum -- the sum of leaves [n] in the order of the spec's mode: canonical adds them in a tree,
 * fast in sequence. */
float fix_sum(const fixture *fx, const float *leaves, int n);
/* fix_push -- put leaves base ... base+n_leaves-1 into every buffer's accumulator, as reductions
 * would. Element i of buffer k of leaf n is value(n, k, i), where i counts in the unreduced array.
 * The padding gets NaN, because a reduction may leave anything there. */
fsdp_status fix_push(fixture *fx, int u, int n_leaves, int base,
                     float (*value)(int leaf, int buffer, size_t i));

/* fix_expect_acc -- finish the accumulators of u's buffers, and note a sum that differs from the
 * sum of value(leaf, k, i) over leaf = 0 ... n_leaves-1 in the order of the spec's mode. */
fsdp_status fix_expect_acc(fixture *fx, int u, int n_leaves,
                           float (*value)(int leaf, int buffer, size_t i));

/* fix_trace_start -- from now on record collectives in fx->trace: "all-gather h.0;reduce-scatter
 * root;...". */
void fix_trace_start(fixture *fx);
/* fix_expect_trace -- note a trace that differs from `want`, and start a new one. */
void fix_expect_trace(fixture *fx, const char *what, const char *want);
/* RUNS_AHEAD -- make a call of a task and return its status. Note a failure if the host waits for a
 * stream or an event during the call, or a category has memory that no task allocates
 * (fix_expect_no_scratch). `what` names the call.
 * RUNS_ON -- the same, but the host may wait for events.
 * fix_expect_rise -- note if the peak of a category in the last such call was not `bytes` above
 * what there was before it. fix_issued -- whether this rank issued `want` collectives of this kind
 * in the last such call; notes it if not, because the other ranks' failures only follow from it.
 * fix_waits_watch -- set the device's second watch, which sees these waits. fixture_run sets it; a
 * body that sets another one calls this afterwards. */
#define RUNS_AHEAD(fx, what, call) fix_ran_ahead(fx, what, false, (fix_call_starts(fx), (call)))
#define RUNS_ON(fx, what, call)    fix_ran_ahead(fx, what, true, (fix_call_starts(fx), (call)))
void fix_waits_watch(fixture *fx);
void fix_call_starts(fixture *fx);
void fix_expect_rise(fixture *fx, const char *what, mem_category c, size_t bytes);
void fix_expect_no_scratch(fixture *fx, const char *what);
bool fix_issued(fixture *fx, const char *what, int u, comm_op op, size_t want);
fsdp_status fix_ran_ahead(fixture *fx, const char *what, bool may_wait, fsdp_status status);
size_t fix_live(fixture *fx, mem_category c); /* live bytes after all streams are drained */
