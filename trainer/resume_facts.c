/* resume_facts.c -- the facts about a run that a checkpoint keeps, and that a run which resumes is
 * compared with.
 *
 * W, the mesh, the units, the transport and the threads are not facts: they may differ freely. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "trainer/trainer.h"

/* The facts that --resume-change may name: whether a run has the fact, its name, and its value. The
 * rows of TRAINER_OPTIONS say which options belong to it. */
#define CHANGEABLE(FACT)                                                                           \
    FACT(true, "data", "%s", data)                                                                 \
    FACT(true, "mask", "%s", mask)                                                                 \
    FACT(true, "seq-len", "%" PRId64, c->seq_len)                                                  \
    FACT(true, "global-batch", "%" PRId64, c->global_batch)                                        \
    FACT(true, "schedule", "rate %.9g %s, %" PRId64 " warm-up steps", c->opt->lr, end,             \
         c->opt->warmup_steps)                                                                     \
    FACT(true, "seed", "%" PRId64, o->seed)                                                        \
    FACT(true, "param-dtype", "%s", TRAINER_WORD("param-dtype", o->param_dtype))                   \
    FACT(true, "reduce-dtype", "%s", TRAINER_WORD("reduce-dtype", o->reduce_dtype))                \
    FACT(true, "reduction", "%s", TRAINER_WORD("reduction", o->reduction))                         \
    FACT(true, "freeze", "%s", o->freeze ? o->freeze : "nothing")                                  \
    FACT(true, "clip-grad", "%.9g", c->opt->clip_grad)                                             \
    FACT(true, "weight-decay", "%s", decay)                                                        \
    FACT(rule->betas, "betas", "%.9g and %.9g", c->opt->beta1, c->opt->beta2)                      \
    FACT(rule->eps > 0, "eps", "%.9g", c->eps)                                                     \
    FACT(true, "tp-blocks", "%s", blocks)                                                          \
    FACT(kind == OPTIMIZER_MOMENTUM, "momentum", "%.9g%s", c->opt->momentum,                       \
         c->opt->nesterov ? ", Nesterov's" : "")                                                   \
    FACT(kind == OPTIMIZER_ADADELTA, "rho", "%.9g", c->opt->rho)

#define NAME(has, name, ...) "," name
#define ADD(has, name, ...)                                                                        \
    if (has)                                                                                       \
        ckpt_about_add(a, name, false, __VA_ARGS__);

const char *const TRAINER_MAY_CHANGE = &("" CHANGEABLE(NAME))[1]; /* without the first comma */

fsdp_status trainer_check_change(const char *change)
{
    char names[512], *rest = names;
    snprintf(names, sizeof names, "%s", change ? change : "");
    while (rest && *rest) {
        const char *name = strsep(&rest, ",");
        if (options_choice(TRAINER_MAY_CHANGE, name) < 0)
            return fsdp_error(FSDP_EINVAL, "name what the message of --resume named",
                              "--resume-change: got '%s', expected some of %s", name,
                              TRAINER_MAY_CHANGE);
    }
    return FSDP_OK;
}

/* Only cosine and linear schedules depend on --steps; with any other, --steps may change. */
static void describe_end(const train_config *c, char *text, size_t text_bytes)
{
    snprintf(text, text_bytes, "for good");
    if (c->opt->lr_schedule == SCHEDULE_STEP)
        snprintf(text, text_bytes, "times %.9g every %" PRId64 " steps", c->lr_gamma,
                 c->opt->lr_step_size);
    else if (c->opt->lr_schedule != SCHEDULE_CONSTANT && c->opt->lr != c->min_lr)
        snprintf(text, text_bytes, "to %.9g at step %" PRId64 "%s", c->min_lr, c->steps,
                 c->opt->lr_schedule == SCHEDULE_LINEAR ? " in a line" : "");
}

static void add_facts(ckpt_about *a, const trainer *t, const char *data, const char *mask)
{
    const trainer_options *o = t->opt;
    const train_config *c = &t->cfg.train;
    const model_config *m = &t->model_cfg;
    const optimizer_kind kind = t->run.optimizer;
    const optimizer_rule *rule = optimizer_of(kind);
    char more[224] = ""; /* facts that a GPT-2 preset does not need */
    char end[96], decay[32] = "nothing", blocks[32] = "nothing"; /* as in one that lacks the fact */
    size_t n = 0;
    describe_end(c, end, sizeof end);
    if (m->tp_blocks > 1)
        snprintf(blocks, sizeof blocks, "%zu", m->tp_blocks);
    if (kind == OPTIMIZER_ADAMW || c->weight_decay > 0)
        snprintf(decay, sizeof decay, "%.9g", c->weight_decay);
    if (m->norm_eps != 1e-5f)
        n = (size_t)snprintf(more, sizeof more, ", epsilon %.9g", (double)m->norm_eps);
    if (m->rope_theta != 0.0f)
        snprintf(more + n, sizeof more - n,
                 ", %zu key heads of %zu, theta %.9g, scaled %.9g %.9g %.9g %zu%s", m->n_kv_head,
                 m->head_dim, (double)m->rope_theta, (double)m->rope_factor, (double)m->rope_low,
                 (double)m->rope_high, m->rope_original, m->untied ? ", untied" : "");
    ckpt_about_add(
        a, "model", true,
        "%s of %zu blocks, %zu heads, width %zu, MLP %zu, vocabulary %zu, %zu positions%s",
        m->family, m->n_blocks, m->n_head, m->d_model, m->d_ff, m->vocab_size, m->max_seq_len,
        more);
    ckpt_about_add(a, "optimizer", true, "%s", rule->name);
    CHANGEABLE(ADD)
}

enum { FACT_BYTES = 64 };

/* Check that all ranks have the same corpus; text describes it. c NULL: there is none. */
static fsdp_status check_same(comm *world, const char *what, const corpus *c, char text[FACT_BYTES])
{
    snprintf(text, FACT_BYTES, "nothing");
    if (c)
        snprintf(text, FACT_BYTES, "%zu %s, XXH3 %016" PRIx64, c->n_tokens,
                 c->images ? "images" : "tokens", corpus_hash(c));
    return comm_same(world, what, text);
}

fsdp_status trainer_about(trainer *t)
{
    char data[FACT_BYTES], mask[FACT_BYTES], unused[FACT_BYTES];
    comm *world = t->run.world;
    TRY(check_same(world, "the training data", &t->data, data));
    TRY(check_same(world, "the mask of the training data", t->data.mask, mask));
    if (t->opt->val_data) {
        TRY(check_same(world, "--val-data", &t->val_data, unused));
        TRY(check_same(world, "the mask of --val-data", t->val_data.mask, unused));
    }
    t->store.world = world;
    t->store.m = &t->m;
    t->store.optimizer = optimizer_of(t->run.optimizer);
    t->store.keep = t->opt->keep;
    t->store.batch = t->cfg.train.global_batch;
    add_facts(&t->store.about, t, data, mask);
    return FSDP_OK;
}

/* ---- where reading goes on ------------------------------------------------------------------- */

/* A number among the facts of the run that saved. */
static int64_t number_of(const ckpt_manifest *saved, const char *name)
{
    return strtoll(ckpt_about_value(&saved->about, name), NULL, 10);
}

static bool differs(const trainer *t, const ckpt_manifest *saved, const char *name)
{
    return strcmp(ckpt_about_value(&saved->about, name), ckpt_about_value(&t->store.about, name)) !=
           0;
}

/* The first sample of the present length after n samples of an older one: in the same epoch the
 * first that begins where no token was read yet, or the next epoch. */
static int64_t resized(const trainer *t, int64_t n, int64_t old_len)
{
    const int64_t len = t->cfg.train.seq_len, n_tokens = (int64_t)t->data.n_tokens;
    const int64_t old_places = (n_tokens - 1) / old_len, places = (n_tokens - 1) / len;
    if (old_places < 1)
        return 0;
    const int64_t tokens = n % old_places * old_len, place = (tokens + len - 1) / len;
    return n / old_places * places + (place < places ? place : places);
}

void trainer_place(trainer *t, const ckpt_manifest *saved)
{
    const int64_t step = saved->id.step;
    int64_t n = saved->n_samples >= 0 ? saved->n_samples : step * number_of(saved, "global-batch");
    const char *why = NULL;
    if (differs(t, saved, "data")) {
        n = 0;
        why = "the checkpoint was saved with other data";
    } else if (differs(t, saved, "seq-len")) {
        n = resized(t, n, number_of(saved, "seq-len"));
        why = "--seq-len has changed, the tokens before were read";
    } else if (t->data.images && differs(t, saved, "seed")) {
        why = "--seed has changed, so the order of images is another";
    }
    t->store.sample_offset = n - step * t->cfg.train.global_batch;
    if (why && comm_rank(t->run.world) == 0)
        fprintf(stderr, "note: reading begins at sample %" PRId64 " of %s: %s\n", n,
                fsdp_printable(t->data.source).text, why);
}
