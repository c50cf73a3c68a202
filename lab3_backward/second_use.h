/* second_use.h -- lab 3, provided: the second use of a tied parameter (GPT-2: the embedding, used
 * by the head) delivers its gradient at another time than the first use. In canonical mode, where
 * the sum must have one fixed shape, the two uses are summed separately, and their sums are added
 * last. So the second use has its own buffer. These calls do to that buffer what backward.c does to
 * a unit's buffer. A unit without a second use has second == NULL. */
#pragma once
#include "lab3_backward/backward.h"

typedef struct second_use {
    grad_buffer buffer; /* of the tied parameter's range */
    int param;          /* global index of the second use */
    size_t slice_begin; /* where this rank's part starts in its slice of the flat array */
} second_use;

/* grad_buffer_next -- for a loop over g->buffer and the second use's buffer: the one after b, or
 * NULL. */
static inline grad_buffer *grad_buffer_next(const unit_grad *g, const grad_buffer *b)
{
    return g->second && b == &g->buffer ? &g->second->buffer : NULL;
}

/* grad_buffer_init -- slices and acc of a buffer for elements begin ... begin+elems-1 of the unit's
 * flat array: each rank keeps the part in its world slice (replicas_last: in its shard).
 *   errors  FSDP_ENOMEM */
fsdp_status grad_buffer_init(const fsdp *f, int u, size_t begin, size_t elems, const char *label,
                             grad_buffer *out);
/* grad_buffer_free -- free a buffer's memory, in order of compute; a zeroed struct is accepted. */
void grad_buffer_free(const fsdp *f, grad_buffer *b);

/* second_use_init -- set grads[u].second if u has a trained tied parameter and mode is canonical.
 *   errors  FSDP_ENOMEM */
fsdp_status second_use_init(reducer *r, int u);
/* second_use_free -- free it; NULL is accepted. */
void second_use_free(reducer *r, int u);

/* second_use_reduce -- the end of reduce_begin: if there is a second use, reduce-scatter its buffer
 * too, and record `reduced` again; then, in any case, grads_park. */
fsdp_status second_use_reduce(reducer *r, int u);
/* grad_sum -- shard_grad = this rank's slice of the unit's sum: everything in acc, plus the sum of
 * the second use. The accumulators are empty afterwards. */
fsdp_status grad_sum(reducer *r, int u);
