/* prefetch_own.h -- lab 5, provided: members of prefetch that only provided code and tests use. */
#pragma once
#include "lab2_forward/fsdp.h"

typedef struct prefetch_own {
    stream *gather_stream, *reduce_stream; /* r->f uses these streams and groups until p is freed */
    comm *gather_group, *reduce_group;
    comm *lab2_reduce_group; /* borrowed; prefetch_free gives it back to r->f */
    event *ended[2];         /* recorded on compute at the end of the last two micro-steps */
    unsigned n_ended;        /* number of micro-steps that have ended */
    bool *drops;             /* [n_units] scratch */
    int n_begun[2];          /* gathers that prefetch_unshard began: [0] needed, [1] ahead */
} prefetch_own;
