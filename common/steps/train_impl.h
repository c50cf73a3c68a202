/* train_impl.h -- what the files of the training loop share; private to them.
 *
 * train_batch.c  loading the samples of a batch; its figures, from all ranks to the host
 * evaluate.c     evaluations
 * train_save.c   checkpoints, and the loss file that each one publishes
 * train.c        the steps */
#pragma once
#include "common/base/atomic_file.h"
#include "common/checkpoint/ckpt_store.h"
#include "common/observe/progress.h"
#include "common/steps/train.h"

#define DIVERGED_HINT "lower --lr, add --warmup-steps or set --clip-grad 1"

/* How many ranks a signal has asked to save, or to save and end, and how many ranks' threads still
 * write a checkpoint. The counts come with a step's losses, so all ranks see them at one step. */
enum { ASKED_TO_SAVE, ASKED_TO_END, STILL_WRITING, N_COUNTS };

/* The figures of a step, which the host reads after it has issued the next step. There are two: the
 * host reads one while the device fills the other. */
typedef struct step_figures {
    float *losses;      /* device [W*A]: rank r's A sums at r*A */
    float *norm;        /* device [1] */
    float *host_losses; /* [W*A] */
    float host_norm;
    void *counts;                  /* device [N_COUNTS]; NULL without setup->store */
    int64_t host_counts[N_COUNTS]; /* of this rank, until the sums arrive */
    float scale;     /* 1 / the number of targets that count: losses and gradients are sums */
    event *begun;    /* timed; recorded on compute before the step */
    event *computed; /* recorded on compute after it */
    event *arrived;  /* timed; recorded on loss_stream: the host may read */
} step_figures;

/* Buffers of one run. A micro-steps, b sequences in each, T tokens in a sequence, W ranks. */
struct train_loop {
    const train_setup *setup;
    stream *s;           /* compute */
    stream *loss_stream; /* owned; gathers the losses, over loss_group */
    comm *loss_group;    /* owned; all ranks */
    size_t A, b, T, W;
    size_t n_nodes;                   /* of the tree of a step's losses: leaf ranks * A */
    bool asked_to_save, asked_to_end; /* a rank was, in a step read, and it is not yet obeyed */
    bool writing;       /* some rank was STILL_WRITING in the last step read, or a save has begun */
    size_t input_bytes; /* of a sample: T rows of the model's input */
    char *inputs;       /* host, [A][b] samples of the step being issued */
    int32_t *targets;   /* host, [A][b][T] */
    float *values;      /* [T*width] inputs of a sample before they are rounded to bf16, or NULL */
    /* If the family has a metric, the logits of a micro-step on the device and on the host, and the
     * number of correct answers in an evaluation. Else NULL and 0. */
    void *logits, *host_logits;
    int64_t n_correct;
    step_figures figures[2]; /* step t uses figures[t % 2] */
    bool failed_alike;       /* what failed has failed on all ranks */
    int64_t next_read;       /* the step whose figures the host reads next */
    int64_t n_counting;      /* targets that count, of the samples that this rank has loaded */
    float *in_order;         /* [n_nodes] losses in order of run_batch_node */
    float *eval_losses;      /* losses of an evaluation, batch after batch, each as in_order */
    double *ms;              /* [steps] */
    atomic_file csv;
    progress *progress;
};

/* ---- batches (train_batch.c) ----------------------------------------------------------------- */

/* train_open_figures -- allocate *f, which is zeroed; after an error train_close_figures frees it.
 * train_close_figures -- a zeroed *f is accepted. */
fsdp_status train_open_figures(train_loop *l, step_figures *f);
void train_close_figures(train_loop *l, step_figures *f);
/* train_load_micro_step -- fill in micro-step ms->a of this rank in the batch that starts at sample
 * `first`, and load its samples, those from `end` on as nothing. data NULL: they stay zero. */
fsdp_status train_load_micro_step(train_loop *l, const corpus *data, uint64_t first, uint64_t end,
                                  const step_figures *f, micro_step *ms);
/* train_send_figures -- issue the transfer of all ranks' losses, of the norm and, for a step, of
 * the counts to the host. It is complete when f->arrived is reached. */
fsdp_status train_send_figures(train_loop *l, step_figures *f, bool of_step);
/* train_await_figures -- wait for the figures. *loss = the sum over the sequences of all ranks'
 * micro-steps, as one tree in the order of run_batch_node. */
fsdp_status train_await_figures(train_loop *l, step_figures *f, float *loss);
/* train_sum_ranks -- *n = its sum over all leaf ranks, each of which counts its own. The hosts wait
 * for each other; streams go on. */
fsdp_status train_sum_ranks(const train_loop *l, const char *what, int64_t *n);
/* train_scale_of -- *scale = 1 / the number of targets that count in the samples first ... end - 1,
 * which all ranks have loaded since n_counting was 0. what: for the message. */
fsdp_status train_scale_of(train_loop *l, const corpus *data, const char *what, int64_t first,
                           int64_t end, float *scale);

/* ---- evaluations (evaluate.c) ---------------------------------------------------------------- */

/* train_open_answers -- allocate what the metric needs. */
fsdp_status train_open_answers(train_loop *l);
/* train_note_evaluation -- say so if --eval-batches asks for more than there is. */
void train_note_evaluation(const train_loop *l);
/* train_evaluate -- print the mean loss and the family's metric over the first samples of the
 * validation corpus, each once. The losses of all micro-batches are summed as one tree, whose shape
 * does not depend on the number of ranks or, in canonical mode, on the sizes of batches. All steps
 * must have been read. */
fsdp_status train_evaluate(train_loop *l, int64_t step, comm_stats *last_batch);

/* ---- checkpoints (train_save.c) -------------------------------------------------------------- */

/* train_save -- begin a checkpoint. All issued steps must have been read. */
fsdp_status train_save(train_loop *l);
/* train_end_save -- publish the checkpoint in flight if all ranks have written it. at_end: wait
 * until they have. */
fsdp_status train_end_save(train_loop *l, bool at_end);
/* train_save_unmade -- if no step was left to make, save what was resumed, or the initial state,
 * unless the directory has this step. */
fsdp_status train_save_unmade(train_loop *l);
