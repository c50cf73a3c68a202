/* runner_impl.h -- private to loop.c, activations.c, segments.c and leaf_sum.c. */
#pragma once
#include "common/comm/comm_calls.h"
#include "common/device/device.h"
#include "common/model/runner.h"

/* Why a layer is called: to evaluate, to train, or for its second forward or its backward. */
typedef enum runner_pass { PASS_EVALUATES, PASS_TRAINS, PASS_AGAIN } runner_pass;

struct runner {
    runner_config cfg;
    stream *s;
    size_t leaf_batch, n_leaves; /* samples of a leaf; leaves of a micro-batch, in fast mode one */
    size_t *out_bytes;           /* [n_layers] of the output for a leaf; 0 for the last layer */
    size_t *calls;               /* [n_layers] one for each leaf, or a single one in which the
                                    operations sum the leaves (ops.leaves_sum): with the same bits */
    void **outs;                 /* [n_layers] [n_leaves * out_bytes] */
    void **saved;                /* [n_layers] [calls * saved_bytes] */
    void *shared_outs, *shared_saved; /* shared by all segments: outputs within one; saved */
    size_t *saved_bytes;              /* [n_layers] of one call */
    void *d_ping, *d_pong;            /* gradients of a layer's outputs, laid out like them */
    void *scratch;
    float *leaf_loss;              /* [n_leaves] */
    void *inputs;                  /* [b,T,width] of the model's input */
    int32_t *targets;              /* [b,T] */
    int border;                    /* layers from here on have a backward */
    int *first_layer, *last_layer; /* [n_units] in forward order; -1 for a unit without layers */
    int *begin_layer, *end_layer;  /* [n_units] its first and last layer in backward: its last
                                      layer, and the first from the border on; or -1 */
    grad_acc loss_acc;
    micro_step ms; /* of the last forward; its inputs and targets are no longer valid */
};

/* runner_load -- copy the micro-batch's inputs and targets to the device. */
fsdp_status runner_load(runner *r, const micro_step *ms);
/* runner_alloc -- memory of activations; where there are tp ranks, they read it in place. */
static inline fsdp_status runner_alloc(runner *r, size_t bytes, const char *label, void **out)
{
    comm *tp = r->cfg.run.tp;
    return tp ? comm_alloc(tp, r->s, MEM_ACTIVATIONS, bytes, label, out)
              : device_alloc(r->s, MEM_ACTIVATIONS, bytes, label, out);
}
/* runner_call -- the arguments of a call of layer i: slices of the micro-batch's arrays. */
layer_io runner_call(const runner *r, int i, size_t call, runner_pass pass);
/* runner_layer_forward -- all calls of layer i. */
fsdp_status runner_layer_forward(runner *r, int i, bool training);
/* runner_in_segment -- whether layer i belongs to a segment and has a backward. */
bool runner_in_segment(const runner *r, int i);
/* runner_goes_on -- whether the next layer belongs to the same segment as layer i. */
bool runner_goes_on(const runner *r, int i);
/* runner_alloc_segments -- allocate the memory that segments share, and place outs and saved. */
fsdp_status runner_alloc_segments(runner *r);
/* runner_segment_begin -- the first layer of the segment whose last layer is i; -1: none ends
 * there. */
int runner_segment_begin(const runner *r, int i);
/* runner_layer_backward -- all calls of layer i; its parameters' gradients go to the views.
 *   d_out  gradient of its output (d_ping or d_pong), NULL for the last layer
 *   d_in   gradient of its input (the other one), NULL for the layer at the border */
fsdp_status runner_layer_backward(runner *r, int i, void *d_out, void *d_in);
/* runner_slice -- the part of an array [n * bytes] for leaf or call `i`; NULL if array is NULL. */
static inline void *runner_slice(void *array, size_t i, size_t bytes)
{
    return array ? (char *)array + i * bytes : NULL;
}
/* runner_unit_done -- call it after layer i is issued. With host_sync it synchronises if i is the
 * last layer of its unit in this pass; last [n_units]: the last layer of each unit. */
fsdp_status runner_unit_done(runner *r, int i, const int *last);
/* runner_sum_losses -- *loss = the sum of the leaves' losses, in order of the sequences. */
fsdp_status runner_sum_losses(runner *r, float *loss);
