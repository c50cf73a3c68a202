/* digest_file.h -- the file of --digests: what it holds, and the first place where two differ.
 *
 *   digest_file_read of both -> digest_bisect -> digest_describe [-> digest_element]
 *   -> digest_file_free
 *
 * A file is text: DIGEST_TITLE, lines "# name: value" about the run, DIGEST_COLUMNS, the rows, and
 * a last line "# end: N rows". A row holds a sum (mod 2^64) of hashes of elements in 16 hex digits,
 * which is the same for every number of ranks and every way of sharding. The rows of a step stand
 * in the order in which the step computes:
 *
 *   each micro-step   tokens
 *                     params of a layer, output of the layer      layers in order
 *                     params-backward of a layer                  layers in reverse
 *   the step          gradient of the layers' parameters          layers in reverse; no micro-step
 *
 * params: what the model reads after pre_forward; params-backward: after pre_backward; output: of a
 * layer, and of the last one the loss; gradient: the mean gradient, before clipping. The row of a
 * parameter that ranks hold different copies of has that of the first rank that differs from rank
 * 0, and "rank R" in column value. Rows of kind params-value and gradient-value hold one element
 * each: its bits in column hash, then value, element, row and column. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include "common/base/status.h"

#define DIGEST_TITLE   "# digests of fsdp_train, form 1"
#define DIGEST_COLUMNS "step,micro,unit,kind,name,hash,value,element,row,column"

enum { DIGEST_MAX_FACTS = 32, DIGEST_TEXT_BYTES = 512 };

typedef struct digest_row { /* texts are of the file */
    const char *unit, *kind, *name, *hash, *value, *element, *row, *column;
    int64_t step, micro; /* micro -1: of the step */
    uint64_t sum;        /* hash as a number */
} digest_row;

/* The rows of a step: n_micro times micro_rows, then n_gradients. */
typedef struct digest_step {
    int64_t step;
    size_t first, n_micro, micro_rows, n_gradients;
} digest_step;

typedef struct digest_file {
    const char *path;                    /* borrowed, for messages */
    char *text;                          /* the whole file, cut into lines and fields */
    const char *facts[DIGEST_MAX_FACTS]; /* "name: value" */
    int n_facts;
    digest_row *rows;   /* [n_rows] of sums */
    digest_row *values; /* [n_values]; values[-i] is the i-th row of values */
    digest_step *steps; /* [n_steps] */
    size_t n_rows, n_values, n_steps;
} digest_file;

/* digest_file_read -- read and check a whole file from where `in` stands. path must outlive *out.
 *   errors  FSDP_EINVAL: no file of --digests, damaged, or cut; FSDP_EIO; FSDP_ENOMEM. *out is
 *           empty then */
fsdp_status digest_file_read(FILE *in, const char *path, digest_file *out);
/* digest_file_free -- a zeroed struct is accepted. */
void digest_file_free(digest_file *f);
/* digest_fact -- the value of a fact; NULL: the file does not have it. */
const char *digest_fact(const digest_file *f, const char *name);

typedef struct digest_verdict {
    const digest_row *a, *b; /* the first rows that differ; NULL: none do */
    size_t n_steps, n_sums;  /* how many steps and rows were compared */
    size_t n_whole; /* steps whose micro-steps hold other sequences: sums over the step were */
} digest_verdict;

/* digest_bisect -- compare the steps that both files have, in the order of computing.
 *   errors  FSDP_EINVAL: the runs have other models or sequences, or no step in common */
fsdp_status digest_bisect(const digest_file *a, const digest_file *b, digest_verdict *out);
/* digest_describe -- which step, micro-step, unit and array v's rows are about, in words. */
void digest_describe(const digest_verdict *v, char text[DIGEST_TEXT_BYTES]);
/* digest_element -- the first element of the array of v's rows that differs, by the rows of values;
 * "" if a file has none of that array, or none differs. */
void digest_element(const digest_file *a, const digest_file *b, const digest_verdict *v,
                    char text[DIGEST_TEXT_BYTES]);
