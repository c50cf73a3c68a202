/* six_lib.h -- a GPT-2 of six equal blocks on W ranks, with lab 5's hooks. Its compute stream
 * stands still until the host waits for it, so the host runs ahead as far as it may.
 *
 *   six_run(g, &config, body)      body: six_micro_step ..., read the ledger
 *   six_record(g, &config, line)   record on a dry device what one step issues */
#pragma once
#include <pthread.h>
#include "common/model/runner.h"
#include "common/observe/timeline_watch.h"
#include "lab5_prefetch/prefetch_setup.h"
#include "tests/grade/grade_lib.h"

#define SIX_FORWARD  "unit forward"
#define SIX_BACKWARD "unit backward"

enum { SIX_BLOCKS = 6, SIX_MICRO_STEPS = 2, SIX_EVENTS = 256 };

typedef struct six_config {
    prefetch_mode mode;
    int limit;
    bool inline_compute; /* the host computes itself and is never ahead */
    bool slow_compute;   /* compute runs a unit only when the host waits for it */
    int rank;            /* six_record: the rank to act as */
} six_config;

/* The units that compute may run: those the host waits for. Nothing depends on time. */
typedef struct six_turnstile {
    atomic_int n_issued, n_let;
    int n_run; /* of the compute stream */
    pthread_mutex_t lock;
    int n_events;
    struct {
        const event *event;
        int n_issued; /* units issued when the event was last recorded */
    } events[SIX_EVENTS];
} six_turnstile;

typedef struct six {
    const six_config *config;
    grade *g;
    device *dev;
    comm *comm;
    mesh grid;
    model m;
    fsdp f;
    reducer r;
    prefetch p;
    unit_hooks hooks; /* made by prefetch_create; the runner and the turnstile use them */
    runner *run;
    float *loss;                    /* device [1] */
    size_t root_bytes, block_bytes; /* of a gathered unit, and of its gradient */
    int n_ahead;                    /* gathers in flight when their unit's pre hook was called */
    six_turnstile turnstile;
    atomic_int n_computed; /* micro-steps whose last layer has run on compute */
    timeline_watch *watch; /* set by six_record, else NULL */
    timeline *line;
} six;

/* six_run -- make it, run body, take it apart. All ranks return the same verdict. */
fsdp_status six_run(grade *g, const six_config *config, fsdp_status (*body)(six *s));
/* six_micro_step -- forward and backward of micro-step a of SIX_MICRO_STEPS, without a wait. */
fsdp_status six_micro_step(six *s, int a);
/* six_evaluation -- as many forward passes as a step has micro-steps, without a wait. */
fsdp_status six_evaluation(six *s);
/* six_step -- all micro-steps of a step, then SGD. */
fsdp_status six_step(six *s);
/* six_record -- add to *line what the second step issues on a dry device, where the computation of
 * a unit is one SIX_FORWARD or SIX_BACKWARD. Nothing runs, and no other rank takes part. */
fsdp_status six_record(grade *g, const six_config *config, timeline *line);
