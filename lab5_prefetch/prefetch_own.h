/* prefetch_own.h -- lab 5, provided: what only prefetch_setup.c and prefetch_queries.c use. */
#pragma once
#include "lab2_forward/fsdp.h"

typedef struct prefetch_own {
    stream *gather_stream, *reduce_stream; /* r->f's for as long as p lives; so are the groups */
    comm *gather_group, *reduce_group;
    comm *lab2_reduce_group; /* borrowed; r->f gets it back when p is freed */
    event *ended[2];         /* recorded on compute at the end of the last two micro-steps */
    unsigned n_ended;        /* micro-steps */
    bool *drops;             /* [n_units] scratch */
    int n_begun[2];          /* gathers that prefetch_unshard began: needed, ahead */
} prefetch_own;
