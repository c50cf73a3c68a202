/* jury_lib.h -- what the judge's checks use: numbers drawn from the seed, and a call of a learner's
 * function in a worker (worker.c).
 *
 *   wire *q = jury_ask(rank); wire_put(q, ...) ... jury_send(rank); jury_answer(rank, &a) */
#pragma once
#include <stdint.h>
#include "tests/grade/grade_lib.h"
#include "tests/grade/wire_lib.h"

enum { JURY_MOST_RANKS = 8 };

/* jury_open -- sockets [n_ranks] of the workers. jury_begin_task -- what is drawn from now on
 * depends on seed and number only. jury_end_task -- no more requests of a task. */
void jury_open(const int *sockets, int n_ranks, uint64_t seed);
void jury_begin_task(int number);
fsdp_status jury_end_task(void);
int jury_ranks(void);

/* jury_below -- a drawn number in 0 ... n-1; n > 0. jury_between -- in low ... high. */
size_t jury_below(size_t n);
int jury_between(int low, int high);
/* jury_float -- a drawn number in [-0.5, 0.5), a multiple of 2^-24. jury_floats draws n of them. */
float jury_float(void);
void jury_floats(float *x, size_t n);

wire *jury_ask(int rank);
fsdp_status jury_send(int rank);
/* jury_answer -- rank's answer: the status of its call, with its text, or of the connection. *a is
 * valid until the next answer. */
fsdp_status jury_answer(int rank, wire **a);
/* jury_call -- jury_send and jury_answer. */
fsdp_status jury_call(int rank, wire **a);
/* jury_array -- the values [n] of an array in an answer; FSDP_EINVAL if there is none. */
fsdp_status jury_array(wire *a, const char *what, float *x, size_t n);
