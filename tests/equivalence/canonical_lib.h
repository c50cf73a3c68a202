/* canonical_lib.h -- canonical mode: one device, DDP and FSDP give the same bits. */
#pragma once
#include "tests/equivalence/suite_lib.h"

/* canonical_compare -- run c on all ranks on device d, and report under `name` whether it gives the
 * bits of the twin's step or, when t is NULL, of the run on one device. */
void canonical_compare(suite *s, const char *name, int d, const run_config *c, const twin_step *t,
                       const run_result *single);
/* canonical_gradients -- one device and every variant give the twin's gradients. */
void canonical_gradients(suite *s, const model_config *m, const ops *o, const dtypes *types);
