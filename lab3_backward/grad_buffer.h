/* grad_buffer.h -- lab 3, provided: what one reduction reads and writes.
 *
 *   grad_buffer_init -> fill slices -> grad_buffer_ready -> grad_buffer_free */
#pragma once
#include "lab2_forward/fsdp.h"

typedef struct grad_buffer {
    size_t begin, elems; /* range of the flat array: all, or a tied parameter (second_use.h) */
    float *full_grad;    /* [elems] MEM_GRADS_FULL, owned from pre hook to end of reduction */
    comm_slice *slices;  /* [ranks of reduce_group] the slice that each rank keeps */
    grad_acc acc;        /* this rank's slice */
    /* provided */
    grad_acc local;           /* full_grads of several micro-steps (no_sync.h) */
    struct grad_buffer *next; /* owned: of a tied parameter's second use; NULL: none */
    int param;                /* of a second use: its global index ... */
    size_t slice_begin;       /* ... and where its part starts in this rank's slice of the unit */
} grad_buffer;

/* grad_buffer_init -- a buffer for elements begin ... begin+elems-1 of the unit's flat array, with
 * empty slices. grad_buffer_ready -- make its sums, when the slices are filled in.
 *   errors  FSDP_ENOMEM */
fsdp_status grad_buffer_init(const fsdp *f, int u, size_t begin, size_t elems, grad_buffer *out);
void grad_buffer_ready(const fsdp *f, int u, const char *label, grad_buffer *b);
/* grad_buffer_free -- free a buffer's memory and the buffers after it, in order of compute; a
 * zeroed struct is accepted. */
void grad_buffer_free(const fsdp *f, grad_buffer *b);
