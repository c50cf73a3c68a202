/* canonical_lib.h -- canonical mode: one device, DDP and FSDP give the same bits. */
#pragma once
#include "tests/equivalence/suite_lib.h"

/* canonical_compare -- run c on all ranks on device d, and report under `name` whether it gives the
 * bits of the twin's step or, when t is NULL, of the run on one device. */
void canonical_compare(suite *s, const char *name, int d, const run_config *c, const twin_step *t,
                       const run_result *single);
/* canonical_gradients -- one device and every variant give the twin's gradients. */
void canonical_gradients(suite *s, const model_config *m, const ops *o, const dtypes *types);
/* canonical_steps -- after one step of SGD, or 10 of AdamW with clipping, every variant gives what
 * one device does, which takes the batch in calls of other sizes. */
void canonical_steps(suite *s, const model_config *m, const ops *o, optimizer_kind kind,
                     const dtypes *t);
/* canonical_frozen -- steps of AdamW with some parameters frozen; each variant has one of a few
 * patterns: the first layers, or a kind of parameter in every layer. The frozen ones keep their
 * initial values, and the rest is what one device makes of them. */
void canonical_frozen(suite *s, const model_config *m, const ops *o, const dtypes *t);
