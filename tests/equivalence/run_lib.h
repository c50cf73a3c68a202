/* run_lib.h -- a training run inside one process group, for tests that compare runs.
 *
 *   run_training(dev, group, &config, &result) ... compare ... run_result_free
 *
 * Builds model, data and engine directly (without trainer and command line), trains, and returns
 * what an observer sees: loss and norm of every step, and the weights at the end. */
#pragma once
#include "common/data/data.h"
#include "common/steps/baseline.h"
#include "common/steps/digests.h"
#include "lab5_prefetch/bucket.h"
#include "trainer/fsdp_engine.h"

/* GPT2_CONFIG -- the initializer of a small GPT-2's model_config. */
#define GPT2_CONFIG(blocks, heads, d, vocab, seq)                                                  \
    {                                                                                              \
        .family = "gpt2", .n_blocks = (blocks), .n_head = (heads), .d_model = (d),                 \
        .d_ff = 4 * (d), .vocab_size = (vocab), .max_seq_len = (seq), .norm_eps = 1e-5f            \
    }

typedef struct run_config {
    bool fsdp; /* false: the baseline (DDP; on a group of one rank: single device) */
    sharding_strategy sharding;
    wrap_policy wrap;
    prefetch_config prefetch; /* zeroed: without overlap */
    size_t bucket_elems;      /* 0: units stay as they are */
    bool per_param;           /* the layout */
    model_config model;
    const ops *ops;
    grad_acc_mode mode;
    size_t batch, seq_len; /* per rank and micro-step */
    size_t chunk_rows;     /* of the head's loss; 0: all rows at once */
    size_t corpus_tokens;  /* a shorter text is made faster; 0: run_corpus's length */
    int grad_accum, steps;
    optimizer_kind optimizer;
    double lr;
    const double *lr_of_step; /* [steps]; NULL: lr */
    float clip_norm;
    uint64_t seed;
    const char *freeze; /* the pattern of --freeze; NULL: nothing is frozen */
    dtype param_dtype, reduce_dtype;
    offload_config offload;
    void (*after_step)(void *ctx); /* called after each step, if not NULL */
    void *ctx;
    bool evaluates;              /* an evaluation of two batches before each step */
    bool no_sync, replicas_last; /* see run_context and no_sync.h */
    FILE *digests; /* set on every rank; rank 0 of the group writes there; NULL: none */
} run_config;

typedef struct run_result {
    int steps;
    float *loss, *norm; /* [steps] before the update and before clipping; the same on every rank */
    float
        *eval; /* [steps] sums of the losses of the evaluation before the step; 0: there was none */
    size_t param_elems;
    float *params; /* [param_elems] in global order, tied ones once; only on the group's rank 0 */
} run_result;

/* run_training -- collective over `group`; dev is the device on which the group was opened. */
fsdp_status run_training(device *dev, comm *group, const run_config *config, run_result *out);
void run_result_free(run_result *r); /* a zeroed struct is accepted */

/* run_hybrid_size -- ranks of a shard group with SHARDING_HYBRID: the largest size that leaves
 * several groups of several ranks, or 0. W=4 -> 2, W=6 -> 3, W=8 -> 4; W=1, 2, 3, 5 -> 0 */
int run_hybrid_size(int world_size);

/* run_corpus -- the text of every test: 100,000 tokens of corpus_synthetic, seed 0 (what fsdp_train
 * --synthetic 100000 reads). */
fsdp_status run_corpus(size_t vocab_size, corpus *out);
