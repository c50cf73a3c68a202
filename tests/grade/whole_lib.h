/* whole_lib.h -- small_lib.h's model and its unsharded twin; task 3.7. Checks are noted as in a
 * fixture. */
#pragma once
#include "tests/equivalence/twin_lib.h"
#include "tests/grade/small_lib.h"

/* whole_run -- body(w) with a model of three blocks; whole_run sets model, seed and accum. */
fsdp_status whole_run(grade *g, whole_config config, fsdp_status (*body)(whole *w));

fsdp_status task_3_7(grade *g);
/* whole_hybrid -- task 3.7 under HSDP, in shard groups of fsdp_size. */
fsdp_status whole_hybrid(grade *g, int fsdp_size);
