/* matrix_run_lib.h -- run the trainer inside this process, as build/fsdp_train does with the same
 * words, and compare what it computes.
 *
 *   matrix_run (one device; keep its result) -> matrix_run (ranks; compare with it) ... */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include "common/base/status.h"

enum { MATRIX_MOST_CHARS = 2048 };

/* What one device computed; set on rank 0. */
typedef struct matrix_result {
    char *rows;    /* of the loss file: step,loss,grad_norm,lr */
    char *evals;   /* lines of evaluations */
    float *params; /* [elems] in the order of an export */
    size_t elems;
} matrix_result;

typedef struct matrix_job {
    const char *words;    /* for the command line and the environment */
    const char *loss_csv; /* a file that the run may write */
    bool alone;           /* run on this rank only */
    /* On rank 0: what the run must compute; NULL: nothing is compared. */
    const matrix_result *want;
    matrix_result *keep; /* gets the run's result; NULL: it is not kept */
    /* the first difference that this rank finds, from `want` or from the run's plan; else "" */
    char differs[320];
    bool failed_alike; /* all ranks have the same status */
} matrix_job;

/* matrix_run -- run the words to the last step, with an export if they ask for one, and compare.
 * With --stop-after the run has two parts: the second resumes from the checkpoint of the first.
 *   collective  unless alone
 *   errors      the trainer's */
fsdp_status matrix_run(matrix_job *j);
/* matrix_diverged -- if the last error is that training diverged, say whether the loss or only the
 * gradient norm differs from what one device computed in that step. */
void matrix_diverged(const matrix_result *want);
/* matrix_global_batch -- the number of sequences of a step on world_size ranks with these words.
 *   errors  as trainer_options_parse */
fsdp_status matrix_global_batch(const char *words, int world_size, long long *sequences);
/* matrix_is_variable -- whether a word sets an environment variable, NAME=VALUE. */
bool matrix_is_variable(const char *word);
void matrix_result_free(matrix_result *r); /* a zeroed struct is accepted */
