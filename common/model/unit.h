/* unit.h -- a model is an ordered list of layers; a unit is the layers that are sharded together.
 *
 * A layer (embedding, attention, MLP, head) declares named parameters and has a forward and a
 * backward function that read parameter views. It never allocates parameters and never knows about
 * ranks. A unit is the set of layers whose parameters are gathered and reduced together. The runner
 * (runner.h; its loop is loop.c) calls a unit's hooks around its first and last use:
 *
 *     pre_forward(u)  forward  post_forward(u)          in order
 *     pre_backward(u) backward post_backward(u)         in reverse
 *
 * The same layers run with no hooks and resident parameters (the single-device baseline) and with
 * the hooks of labs 2-5 (FSDP), so the results of the two can be compared. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/base/status.h"
#include "common/device/device_calls.h"
#include "common/ops/ops.h"

enum { PARAM_MAX_DIMS = 4, PARAM_NAME_BYTES = 64, LAYER_MAX_PARAMS = 16, NOT_TIED = -1 };
enum { LAYER_ALIGN_BYTES = 64 }; /* arrays of a call begin at multiples: whole cache lines */

typedef enum init_rule { INIT_ZERO, INIT_ONE, INIT_NORMAL, INIT_UNIFORM } init_rule;

/* A parameter that tensor parallelism cuts is stored block by block: Hugging Face's order [n,
 * blocks, width] becomes [blocks, n, width], so every block is a dense matrix. A rank has some
 * adjacent blocks (tensor_parallel.h). */
typedef struct param_cut {
    size_t blocks, width;        /* blocks 0: it is not cut; the last block may be shorter */
    size_t dims[PARAM_MAX_DIMS]; /* of the whole parameter, as in Hugging Face's files */
    size_t elems;                /* of the whole parameter */
    size_t begin;                /* this rank's first element, in the order of storage */
    bool elsewhere;              /* another tp rank has the same elements: it counts them in the
                                    norm, and saves them */
} param_cut;

typedef struct param_spec {
    char name[PARAM_NAME_BYTES]; /* Hugging Face's name: "transformer.h.0.attn.c_attn.weight" */
    int n_dims;
    size_t dims[PARAM_MAX_DIMS]; /* of what this rank stores: rows of its blocks, one below the
                                    other */
    size_t elems;                /* product of dims */
    param_cut cut;
    init_rule init;
    float init_scale; /* INIT_NORMAL: standard deviation; INIT_UNIFORM: b of [-b, b) */
    bool decay;       /* weight decay applies: tensors with >= 2 dimensions */
    bool frozen;      /* gathered, but never reduced or updated */
    int tied_to;  /* the parameter whose storage this one shares (a smaller index), or NOT_TIED */
    int next_use; /* the next parameter that shares this one's storage; 0: none */
} param_spec;

/* The model's input: `width` elements at each position of each sample. A sample is a sequence of
 * seq_len tokens, or an image, which has one position. */
typedef enum array_kind {
    ARRAY_VALUES, /* stored as layer_io.type */
    ARRAY_INDICES /* int32 */
} array_kind;

typedef struct array_spec {
    const char *name; /* "tokens", "pixels"; static */
    size_t width;
    array_kind kind;
} array_spec;

typedef struct layer layer;

/* Memory of one call of a layer, in multiples of LAYER_ALIGN_BYTES. If it is aligned to that, so is
 * every array in it. Without `saved`, scratch has at least the larger of the two. */
typedef struct layer_bytes {
    size_t saved, scratch;
} layer_bytes;

/* One call of a layer: `batch` samples of `seq_len` positions. All pointers are device memory.
 * Parameters are stored as `type`, arrays between layers as their array_spec says. */
typedef struct layer_io {
    size_t batch, seq_len;
    size_t leaves; /* above 1, for a layer that sums_leaves: gradients of parameters are sums over
                      as many groups of samples in a tree (ops.h), and each has its own loss */
    dtype type;    /* DTYPE_F32 or DTYPE_BF16 */
    /* Arrays [B, T, width], or of this rank's part of T (model.token_parts). in: the output of the
     * layer before, or the model's input. out: the layer's output, of `type`; NULL for the last
     * layer, and for a second forward that only saves and leaves its last product out. Backward may
     * read what forward wrote there. */
    const void *in;
    void *out;
    const void *d_out; /* backward: the gradient of out; NULL for the last layer */
    void *d_in; /* backward: the gradient of in; NULL for the last layer that runs backward */
    const int32_t *targets; /* [B,T]; for the last layer */
    void *saved;            /* forward writes, backward reads */
    void *scratch;          /* contents do not survive the call */
    float *loss;  /* [1] or [leaves], the SUM over their positions. The last layer's forward
                     writes it, or with model.chunk_rows its backward, if there is
                     one */
    void *logits; /* [B,T,V], last layer's forward; NULL unless wanted */
    /* Random numbers of a call are a function of the run's seed and of the number of the call's
     * first sample, counted over the run. So they are the same in a second forward and on any
     * number of ranks. */
    uint64_t seed, first_sample;
    struct comm *kv;     /* the tp ranks whose blocks share keys and values; NULL: only this one */
    struct comm *tp;     /* the ranks among which blocks are shared out; NULL: this one has all */
    void *const *params; /* [n_params] views, by the layer's own parameter order */
    float *const *grads; /* [n_params] views; NULL for a frozen parameter */
    const bool *overwrite; /* [n_params] backward. true: the view holds nothing yet and is written;
                              false: it is added to. NULL: all are added to */
    bool training;         /* false: forward only; loss is wanted only if targets is not NULL */
    bool keeps;            /* a backward reads what this forward saves; false: saved may be NULL */
} layer_io;

/* What a layer computes; --gradient-checkpointing can select attention or MLPs. */
typedef enum layer_kind { LAYER_OTHER, LAYER_ATTENTION, LAYER_MLP } layer_kind;

struct layer {
    char name[32]; /* "embed", "h.0.attn", "h.0.mlp", "head" */
    layer_kind kind;
    int block;                 /* the transformer block of this layer; -1: the root unit */
    int first_param, n_params; /* global indices first_param ... first_param + n_params - 1 */
    size_t out_width;          /* of the array for the next layer; 0: this is the last layer */
    const struct model *model;
    layer_bytes (*bytes)(const layer *l, size_t rows, dtype type); /* rows: B*T */
    fsdp_status (*forward)(const layer *l, const ops *o, stream *s, const layer_io *io);
    fsdp_status (*backward)(const layer *l, const ops *o, stream *s, const layer_io *io);
    bool sums_leaves; /* it passes io->leaves to its operations */
};

/* The sizes of a model. Sizes that a family does not use are 0. */
typedef struct model_config {
    char family[16]; /* "gpt2" */
    size_t n_blocks, n_head, d_model, d_ff, vocab_size;
    size_t max_seq_len; /* positions */
    float norm_eps;
    size_t n_kv_head, head_dim; /* heads of keys and values; width of every head */
    bool untied;                /* the head has a weight of its own */
    float rope_theta;           /* base of the rotary positions' frequencies */
    /* Llama 3.1's scaling of frequencies; factor 0: none */
    float rope_factor, rope_low, rope_high;
    size_t rope_original; /* positions that the model was first trained on */
    size_t tp_blocks;     /* G: the number of products that a product over a cut dimension consists
                             of, whatever the number of ranks; 0 is 1 */
} model_config;

struct model_family;

typedef struct model {
    model_config config;
    const struct model_family *family;
    int n_layers, n_params, n_blocks;
    array_spec input; /* what the first layer reads */
    layer *layers;
    param_spec *params;              /* global order: by layer, then by the layer's own order */
    size_t n_param_elems;            /* of the whole model; tied parameters counted once */
    size_t first_block, n_tp_blocks; /* this rank's blocks, of config.tp_blocks */
    size_t kv_share, n_kv_blocks;    /* how many of all blocks share one of keys and values; this
                                        rank's of these */
    size_t token_parts; /* sequence parallelism: arrays between layers hold one part, of so many, of
                           the positions of each sequence; 1: all of them */
    size_t chunk_rows;  /* > 0: logits of at most this many tokens exist at a time, and in
                           training the last layer computes them and the loss in backward */
} model;

/* unit_hooks -- what a sharding runtime attaches to the units. Any function may be NULL.
 *   begin_micro    before the first layer of a micro-step: number a of n_micro, in order; training:
 *                  a backward follows
 *   pre_forward    leaves every parameter view of the unit valid
 *   post_forward   may make these views invalid again
 *   pre_backward   leaves every parameter and gradient view of the unit valid. The gradients'
 *                  contents are undefined: the first layer that has a gradient for a view
 *                  overwrites it
 *   post_backward  takes the gradients of this micro-step
 *   end_backward   after the last layer of a micro-step's backward: for units whose hooks were not
 *                  called, and for reductions still in flight */
typedef struct unit_hooks {
    void *self;
    fsdp_status (*begin_micro)(void *self, int a, int n_micro, bool training);
    fsdp_status (*pre_forward)(void *self, int unit);
    fsdp_status (*post_forward)(void *self, int unit);
    fsdp_status (*pre_backward)(void *self, int unit);
    fsdp_status (*post_backward)(void *self, int unit);
    fsdp_status (*end_backward)(void *self);
} unit_hooks;

/* model_views -- where each parameter and its gradient are now, by global parameter index. The view
 * of a parameter is NULL unless its unit is gathered; the view of a gradient is NULL unless it has
 * memory. A tied parameter has views of its own: its params view is the storage it shares; its
 * grads view is the same array too, unless the two uses are summed apart. Parameters are all fp32
 * or all bf16; gradients are fp32. */
typedef struct model_views {
    void **params; /* [n_params] */
    float **grads; /* [n_params] */
} model_views;

/* model_views_init -- views that are all NULL. errors: FSDP_ENOMEM; nothing is left behind. */
fsdp_status model_views_init(const model *m, model_views *v);
/* model_views_free -- free the lists, not what they point to; a zeroed struct is accepted. */
void model_views_free(model_views *v);

/* model_tie -- let parameter p, the last so far, share the storage of parameter `of`. */
void model_tie(model *m, int p, int of);

/* model_border -- the first layer, in forward order, that trains a parameter; n_layers if none
 * does. Backward stops there, because no earlier layer needs a gradient. Tied parameters are
 * trained or frozen together, so they count at both of their uses. */
int model_border(const model *m);

/* model_check_ops -- the error of the first operation of forward that the table lacks. Forward runs
 * on 0 samples, so it issues nothing to s and needs no memory. */
fsdp_status model_check_ops(const model *m, const ops *o, stream *s);

/* model_freeze -- set `frozen` of the parameters whose names match. Either name of a tied weight
 * freezes the shared storage, and so both parameters.
 *   patterns  the value of --freeze: globs (fnmatch(3)) with commas between; NULL: freeze nothing
 *   errors    FSDP_EINVAL: a pattern is empty or matches no name, or nothing is left to train;
 *             FSDP_ENOMEM */
fsdp_status model_freeze(model *m, const char *patterns);

/* model_free -- free the lists; a zeroed struct is accepted. */
void model_free(model *m);
