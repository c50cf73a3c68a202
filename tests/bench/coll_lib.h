/* coll_lib.h -- times collectives of a transport: the loop, the checks and the output that ours and
 * the peer share.
 *
 *   coll_parse -> (open the transport, fill in coll_transport) -> coll_run
 *
 * Inputs are small whole numbers, so every sum is exact in any order. Every element of every result
 * is compared; "wrong" counts differences over all ranks. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include "common/base/status.h"

typedef enum coll_op {
    COLL_ALL_GATHER,     /* in place: rank r's slice of buf -> buf */
    COLL_REDUCE_SCATTER, /* buf -> out [elems] */
    COLL_ALL_REDUCE,     /* in place, buf */
    COLL_ALL_TO_ALL,     /* buf -> out */
    COLL_BARRIER,
    COLL_OPS
} coll_op;

typedef struct coll_transport coll_transport;
struct coll_transport {
    const char *name;
    int rank, world;
    float *buf, *out; /* [max_elems] each */
    /* run -- issue n calls back to back and wait for the last one. slice_elems: elements of buf /
     * world. */
    fsdp_status (*run)(coll_transport *t, coll_op op, size_t slice_elems, size_t n);
    /* agree -- give every rank the maximum and the sum of all ranks' values. Also a barrier. */
    fsdp_status (*agree)(coll_transport *t, double value, double *greatest, double *sum);
};

typedef struct coll_options {
    int backend; /* 0: auto, 1: mpi, 2: shm */
    int only;    /* coll_op; COLL_OPS: all */
    const char *csv;
    int64_t min_bytes, max_bytes, factor;
    double budget_s; /* per operation and size */
} coll_options;

/* coll_parse -- --backend B --csv FILE --only OP --min-bytes N --max-bytes N --factor N --budget S.
 *   errors: FSDP_EINVAL, FSDP_HELP (options.h); on either, main ends with coll_leave */
fsdp_status coll_parse(const char *program, int argc, char **argv, coll_options *o);

/* coll_leave -- rank 0 prints why coll_parse failed; returns the exit status. */
int coll_leave(fsdp_status parsed, const char *program);

/* coll_max_elems -- the number of floats that buf and out must hold. */
size_t coll_max_elems(const coll_options *o);

/* coll_run -- measure and check everything; rank 0 writes lines of CSV.
 *   errors: the transport's; FSDP_EIO; FSDP_ESTATE if a result was wrong. */
fsdp_status coll_run(coll_transport *t, const coll_options *o);
