/* matrix_run_lib.h -- one run of the trainer inside this process, as build/fsdp_train makes it from
 * the same words, and what it is compared with.
 *
 *   matrix_run (the single device, which keeps what it got) -> matrix_run (ranks) ... */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include "common/base/status.h"

enum { MATRIX_MOST_CHARS = 2048 };

/* What one device computed; on rank 0. */
typedef struct matrix_result {
    char *rows;    /* of the loss file: step,loss,grad_norm,lr */
    char *evals;   /* lines of evaluations */
    float *params; /* [elems] in the order of an export */
    size_t elems;
} matrix_result;

typedef struct matrix_job {
    const char *words;    /* of the command line and of the environment */
    const char *loss_csv; /* a file that the run may write */
    bool alone;           /* this rank by itself, however many were started */
    /* The run's, to be compared with these; NULL: not compared. On rank 0. */
    const matrix_result *want;
    matrix_result *keep; /* the run's own; NULL: not kept */
    /* the first difference from `want` or from the run's plan, where a rank sees one; else "" */
    char differs[320];
    bool failed_alike; /* the status is that of all ranks */
} matrix_job;

/* matrix_run -- from words to the last step, an export if they ask for one, and the comparisons.
 * With --stop-after the run is made in two parts: the second goes on from the checkpoint of the
 * first.
 *   collective  unless alone
 *   errors      those of the trainer */
fsdp_status matrix_run(matrix_job *j);
/* matrix_global_batch -- sequences of a step that world_size ranks make by those words.
 *   errors  those of trainer_config_parse */
fsdp_status matrix_global_batch(const char *words, int world_size, long long *sequences);
/* matrix_is_variable -- whether a word is NAME=VALUE of the environment. */
bool matrix_is_variable(const char *word);
void matrix_result_free(matrix_result *r); /* a zeroed struct is accepted */
