/* suite_lib.h -- what the parts of the equivalence suite share: the ranks and devices, the variants
 * that are compared, the runs on one device that they are compared to, and the verdicts.
 *
 *   suite_open
 *   suite_config -> suite_use_variant -> run_training -> suite_report     for every comparison
 *   suite_close
 *
 * Gradients are read through one step of SGD with lr = GRAD_LR and no clipping: p - 2^100 g rounds
 * to -2^100 g (p is below half an ulp of it) unless g is below 2^-76 p or zero. Then both sides of
 * a comparison keep p. So every engine shows its gradient's bits without an extra interface. */
#pragma once
#include "common/device/instruments/order_check.h"
#include "tests/equivalence/run_lib.h"

#define GRAD_LR 0x1p100f

typedef struct suite {
    device *dev[2];     /* [0] the CPU with inline compute; a device of the same kind if its maths
                         * differs. [1] FSDP_DEVICE, asynchronous, 2 threads, NaN in free memory */
    order_check *order; /* watches both */
    comm *world[2];
    comm *alone; /* a group with this rank alone, on dev[0] */
    int rank, world_size, passed, failed;
    int level;        /* run variants of this level and above: 1 is --quick, 2 is --few */
    char detail[160]; /* a measured figure, printed after PASS */
} suite;

/* suite_open -- open the devices and groups of *s, which is zeroed except for `level`.
 *   errors  as device_open, comm_open, comm_range */
fsdp_status suite_open(suite *s);
/* suite_close -- collective, like suite_open. */
void suite_close(suite *s);

/* suite_report -- print and count a verdict; collective. A check passes if it passes on every rank
 * and no work so far lacked an event. */
void suite_report(suite *s, const char *name, fsdp_status mine);

typedef struct variant {
    const char *name;
    bool fsdp;
    sharding_strategy sharding;
    wrap_policy wrap;
    int level;                   /* 1: part of --quick, 2: of --few too */
    prefetch_config prefetch;    /* left out: without overlap */
    size_t bucket_elems;         /* left out: units stay as they are */
    bool per_param;              /* left out: the flat layout */
    bool no_sync, replicas_last; /* left out: every micro-step reduces to shards */
} variant;

enum { N_VARIANTS = 13 };
extern const variant VARIANTS[N_VARIANTS];

/* suite_skips -- whether variant v is skipped: --quick or --few does not run it, or hybrid has no
 * groups here. */
bool suite_skips(const suite *s, int v);

/* The types to compute in and to sum in. */
typedef struct dtypes {
    const char *name;
    dtype param, reduce;
} dtypes;

enum { FP32, BF16_PARAMS, BF16_SUMS, BF16_BOTH, N_DTYPES };
extern const dtypes DTYPES[N_DTYPES];

/* suite_config -- one step of SGD, 3 micro-steps of 2 sequences; the caller sets the rest. */
run_config suite_config(const model_config *m, const ops *o, grad_acc_mode mode);
/* suite_use_variant -- set the fields that the variant decides. */
void suite_use_variant(run_config *c, const variant *v);
/* suite_run_single -- run the same global batch on one device, `batch` sequences a call. Runs on
 * rank 0 only; the other ranks wait in the next report. */
fsdp_status suite_run_single(suite *s, const run_config *many, size_t batch, run_result *out);

/* The twin's weights and the gradient of the first step's global batch. Set on rank 0 only. */
typedef struct twin_step {
    float *before, *grad; /* [elems] */
    double *abs_sum;      /* [elems] sum of |node| */
    double *spacings;     /* [elems] sum of h(node) */
    float loss;
    size_t elems, nodes;
    double scale;
} twin_step;

/* twin_step_make -- compute *out in nodes of `batch` sequences. */
fsdp_status twin_step_make(const run_config *c, int world_size, size_t batch, twin_step *out);
/* twin_step_free -- a zeroed struct is accepted. */
void twin_step_free(twin_step *t);

/* suite_draw, suite_draw_range -- the next random number; the next one in lo ... hi. Every rank
 * gets the same numbers from the same state. */
uint64_t suite_draw(uint64_t *state);
int suite_draw_range(uint64_t *state, int lo, int hi);
