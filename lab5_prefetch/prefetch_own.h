/* prefetch_own.h -- lab 5, provided: what only prefetch_setup.c and prefetch_queries.c use. */
#pragma once
#include "lab2_forward/fsdp.h"

/* Where a run communicates. */
typedef struct prefetch_comm {
    stream *gather_stream, *reduce_stream;
    comm *gather_group, *reduce_group;
} prefetch_comm;

typedef struct prefetch_own {
    prefetch_comm apart;  /* a stream and a group for gathers, and for reductions */
    prefetch_comm before; /* what r->f had */
    event *ended[2];      /* recorded on compute at the end of the last two micro-steps */
    unsigned n_ended;     /* micro-steps */
    bool *drops;          /* [n_units] scratch */
    bool is_told;         /* of a task that is not written */
} prefetch_own;
