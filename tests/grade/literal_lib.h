/* literal_lib.h -- a small sharded model made without any learner's code, so that a task of lab 2
 * can be tested alone. */
#pragma once
#include "lab2_forward/fsdp_setup.h"
#include "tests/grade/grade_lib.h"

/* literal_fsdp -- unit u has parameters of elems[u][0] and elems[u][1] elements (0: no second one):
 * the first at offset 0, the second at the next multiple of 4; used_elems is the end of the last
 * (so that sizes below W can be had), shard_elems = ceil(used/W). Unit 0 is "root", unit u is
 * "h.<u-1>"; parameters are numbered by unit, one layer per unit; strategy FULL (only the root
 * stays after forward); each shard holds this rank's part of literal_value. The struct must not
 * move. */
fsdp_status literal_fsdp(grade *g, int n_units, const size_t (*elems)[2], fsdp *out);
/* literal_fsdp_whole -- the same in shard groups of one: every shard is the whole padded array. No
 * unit is resident yet. */
fsdp_status literal_fsdp_whole(grade *g, int n_units, const size_t (*elems)[2], fsdp *out);
void literal_fsdp_free(fsdp *f); /* a zeroed struct is accepted */
/* literal_value -- element j of unit u's flat array: 1000*(u+1) + j + 1 inside a parameter (an
 * integer that names unit and element, and so rank), 0 in gaps and padding. */
float literal_value(const fsdp *f, int u, size_t j);
/* literal_model -- the fixture's model, to mark parameters frozen, decay, ... before the learner's
 * code sees it. */
model *literal_model(fsdp *f);
/* literal_tie -- append one parameter whose storage is that of `param` (as lm_head is tied to wte).
 * Returns its global index. At most three times, before the views are used. */
int literal_tie(fsdp *f, int param);
/* literal_swap -- let two untied parameters of different units trade their numbers: then the
 * parameters of a unit do not stand side by side in the model. Before literal_tie. */
void literal_swap(fsdp *f, int p, int q);
