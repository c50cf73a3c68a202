/* equivalence.c -- one device, DDP and FSDP train the same model: to the bit in canonical mode,
 * within derived bounds in fast mode.
 *
 *   mpiexec -n W build/tests/equivalence/equivalence    tiny: every strategy and wrapping
 *   ... --quick                 fewer combinations of the two
 *   ... --xl                    GPT-2 XL's shape (d 1600, 25 heads, 2 layers)
 *   ... --random N --seed S     N drawn configurations
 *   ... --adamw-band            figures for tests/grade/tiny_lib.c
 *
 * Rank 0 prints "PASS name" or "FAIL name: first difference" and "N passed, N failed"; every rank
 * ends with "DONE rank r/W". Gradients come first, then one step of SGD, AdamW's losses last: Adam
 * hides a wrong scale.
 *
 * Gradients are read through one step of SGD with lr = 2^100 and no clipping: p - 2^100 g rounds to
 * -2^100 g (p is below half an ulp of it) unless g is below 2^-76 p or zero, and then both sides of
 * a comparison keep p. So any engine shows its gradient's bits without a door of its own.
 *
 * Bounds of fast mode, u = 2^-24, gamma_k = k u / (1 - k u) [Higham, Accuracy and Stability, ch. 4]
 *
 *   Calls of equal shape. A node is the gradient of one call over b sequences; equal calls give
 *   equal bits on any rank, so the W ranks and the twin add the same n nodes, only in other orders.
 *   Any order of n terms is within gamma_{n-1} * sum|node| of the exact sum, so two orders are
 *   within 2 gamma_{n-1} sum|node|. Scaling adds u|g| on either side, reading back through p - lr*g
 *   one more u|g| and u|p|/lr.
 *
 *   Sums in bf16, v = 2^-8. A node leaves a call in fp32, with the twin's bits here too. It is
 *   rounded once before it is sent, and each of the n-1 additions once (in fp32 first, which
 *   changes nothing: 24 >= 2*8 + 2 bits). Rounding x errs by at most half the spacing of bf16
 *   there, h(x) = v 2^floor(log2 |x|) <= v |x|. With S = sum|node|, and s the exact sum, in any
 *   order of the additions:
 *
 *       the nodes, rounded      sum h(node) <= v S
 *       n-2 partial sums        h(S (1+v)^(n-1)) each
 *       the last sum            h(|s| + the two above)
 *
 *   So for W = 2 no more than about 2 v S. One micro-step and 15 tokens make the bound tight: few
 *   terms, and 1/tokens is no power of two, so that a rounding behind the scaling would show. The
 *   norm is off by no more than the 2-norm of the elements' bounds, a weight after a step of SGD by
 *   lr times its gradient's; two runs differ by no more than twice that.
 *
 *   Calls of other shapes (b sequences in one call or one by one). The library may block a product
 *   otherwise and activations move by rounding; no useful bound exists, so the difference of every
 *   tensor is held to 8 times that of two single-device runs of other shapes.
 *
 *   bf16. The same bits are asked for with parameters in bf16, with sums in bf16, and with both:
 * the twin rounds its parameters once, and every leaf and every node of its sum.
 *
 *   AdamW's losses. Updates flip signs where a gradient is near zero, so no useful bound exists
 *   either: the band is measured from SAMPLES random orders of the same sum on one device, and 4
 *   times its width is allowed, as the largest of 8 draws is no maximum.
 */
#include <getopt.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "common/model/gpt2.h"
#include "tests/equivalence/run_lib.h"
#include "tests/equivalence/twin_lib.h"

enum { SAMPLES = 8, BAND_STEPS = 10 };
static const double U = 0x1p-24, UB = 0x1p-8; /* unit roundoffs of fp32 and bf16 */
static const float GRAD_LR = 0x1p100f;

typedef struct suite {
    device *dev[2]; /* [0] inline, 1 thread; [1] asynchronous, 2 threads, NaN in free memory */
    comm *world[2];
    comm *alone; /* this rank by itself, on dev[0] */
    int rank, world_size, passed, failed;
    bool quick;       /* the variants that are marked so */
    char detail[160]; /* a measured figure beside a PASS */
} suite;

/* ---- reporting ------------------------------------------------------------------------------ */
/* Collective: a check is passed when every rank's part is. */
static void report(suite *s, const char *name, fsdp_status mine)
{
    fsdp_status st = comm_agree(s->world[0], mine);
    s->passed += st == FSDP_OK;
    s->failed += st != FSDP_OK;
    if (s->rank == 0 && st == FSDP_OK)
        printf("PASS W=%d %s%s\n", s->world_size, name, s->detail);
    else if (s->rank == 0)
        printf("FAIL W=%d %s: %s\n", s->world_size, name, fsdp_error_get()->what);
    fflush(stdout);
    s->detail[0] = '\0';
}

static fsdp_status same_bits(const char *what, const float *got, const float *want, size_t elems)
{
    for (size_t i = 0; i < elems; i++)
        if (memcmp(&got[i], &want[i], sizeof got[i]) != 0)
            return fsdp_error(FSDP_EINVAL, "", "%s[%zu]: got %.9g, expected %.9g", what, i,
                              (double)got[i], (double)want[i]);
    return FSDP_OK;
}

static fsdp_status same_run(const run_result *got, const run_result *want)
{
    TRY(same_bits("loss of step", got->loss, want->loss, (size_t)want->steps));
    TRY(same_bits("norm of step", got->norm, want->norm, (size_t)want->steps));
    return same_bits("weight", got->params, want->params, want->param_elems);
}

/* ---- runs ----------------------------------------------------------------------------------- */
typedef struct variant {
    const char *name;
    bool fsdp;
    sharding_strategy sharding;
    wrap_policy wrap;
    size_t min_elems;
    bool quick; /* part of --quick */
} variant;

static const variant VARIANTS[] = {
    {"ddp", false, SHARDING_FULL, WRAP_BLOCK, 0, true},
    {"fsdp full, wrap block", true, SHARDING_FULL, WRAP_BLOCK, 0, true},
    {"fsdp full, wrap sub-block", true, SHARDING_FULL, WRAP_SUB_BLOCK, 0, false},
    {"fsdp full, wrap size:20000", true, SHARDING_FULL, WRAP_SIZE, 20000, false},
    {"fsdp full, wrap model", true, SHARDING_FULL, WRAP_MODEL, 0, false},
    {"fsdp grad-op, wrap block", true, SHARDING_GRAD_OP, WRAP_BLOCK, 0, false},
    {"fsdp grad-op, wrap sub-block", true, SHARDING_GRAD_OP, WRAP_SUB_BLOCK, 0, true},
    {"fsdp none, wrap block", true, SHARDING_NONE, WRAP_BLOCK, 0, false},
    {"fsdp none, wrap model", true, SHARDING_NONE, WRAP_MODEL, 0, true},
    {"fsdp hybrid, wrap block", true, SHARDING_HYBRID, WRAP_BLOCK, 0, true},
    {"fsdp hybrid, wrap sub-block", true, SHARDING_HYBRID, WRAP_SUB_BLOCK, 0, false},
};
enum { N_VARIANTS = sizeof VARIANTS / sizeof *VARIANTS };

static bool skips(const suite *s, int v)
{
    bool has_groups = VARIANTS[v].sharding != SHARDING_HYBRID || run_hybrid_size(s->world_size) > 0;
    return !has_groups || (s->quick && !VARIANTS[v].quick);
}

static run_config base_config(const model_config *m, const ops *o, grad_acc_mode mode)
{
    return (run_config){.model = *m,
                        .ops = o,
                        .mode = mode,
                        .batch = 2,
                        .seq_len = m->max_seq_len,
                        .grad_accum = 3,
                        .steps = 1,
                        .optimizer = OPTIMIZER_SGD,
                        .lr = 0.5,
                        .seed = 11};
}

static void use_variant(run_config *c, const variant *v)
{
    c->fsdp = v->fsdp;
    c->sharding = v->sharding;
    c->wrap = v->wrap;
    c->wrap_min_elems = v->min_elems;
}

/* The same global batch on one device, on rank 0 only (the others wait in the next report). */
static fsdp_status run_single(suite *s, const run_config *many, size_t batch, run_result *out)
{
    run_config c = *many;
    *out = (run_result){0};
    if (s->rank != 0)
        return FSDP_OK;
    c.fsdp = false;
    size_t leaves = many->batch * (size_t)many->grad_accum * (size_t)s->world_size;
    FSDP_ASSERT_EQ(leaves % batch, 0);
    c.batch = batch;
    c.grad_accum = (int)(leaves / batch);
    return run_training(s->dev[0], s->alone, &c, out);
}

/* The twin's weights after p - lr*g, g the gradient of the first step's global batch. Rank 0 only.
 */
typedef struct twin_step {
    float *before, *grad; /* [elems] */
    double *abs_sum;      /* [elems] sum of |node| */
    double *spacings;     /* [elems] sum of h(node) */
    float loss;
    size_t elems, nodes;
    double scale;
} twin_step;

static fsdp_status twin_first_step(const run_config *c, int world_size, size_t batch,
                                   twin_step *out)
{
    model m;
    corpus data;
    twin t;
    size_t nodes = c->batch * (size_t)c->grad_accum * (size_t)world_size / batch;
    float scale = (float)(1.0 / (double)(nodes * batch * c->seq_len));
    out->nodes = nodes;
    out->scale = (double)scale;
    TRY(gpt2_create(&c->model, &m));
    TRY(run_corpus(c->model.vocab_size, &data));
    TRY(twin_create(&(twin_config){.m = &m,
                                   .ops = c->ops,
                                   .data = &data,
                                   .batch = batch,
                                   .seq_len = c->seq_len,
                                   .mode = c->mode,
                                   .seed = c->seed},
                    &t));
    TRY(twin_use_dtypes(&t, c->param_dtype, c->reduce_dtype));
    out->elems = t.param_elems;
    out->before = malloc(t.param_elems * sizeof *out->before);
    out->grad = malloc(t.param_elems * sizeof *out->grad);
    out->abs_sum = t.abs_sum = calloc(t.param_elems, sizeof *out->abs_sum);
    out->spacings = t.spacings = calloc(t.param_elems, sizeof *out->spacings);
    memcpy(out->before, t.params, t.param_elems * sizeof *out->before);
    fsdp_status st = twin_gradient(&t, 0, nodes, scale, out->grad, &out->loss);
    out->loss *= scale;
    twin_free(&t);
    corpus_close(&data);
    model_free(&m);
    return st;
}

static void twin_step_free(twin_step *t)
{
    free(t->before);
    free(t->grad);
    free(t->abs_sum);
    free(t->spacings);
    *t = (twin_step){0};
}

/* ---- canonical: bits ------------------------------------------------------------------------ */
static fsdp_status same_as_twin(const run_result *got, const twin_step *t, float lr)
{
    TRY(same_bits("loss", got->loss, &t->loss, 1));
    for (size_t i = 0; i < t->elems; i++) {
        float want = t->before[i] - lr * (t->grad[i] * 1.0f + 0.0f * t->before[i]);
        if (memcmp(&got->params[i], &want, sizeof want) != 0)
            return fsdp_error(
                FSDP_EINVAL, "", "gradient of weight %zu: got %.9g, the twin has %.9g", i,
                ((double)t->before[i] - (double)got->params[i]) / (double)lr, (double)t->grad[i]);
    }
    return FSDP_OK;
}

/* Run c on all ranks on device d, then compare on rank 0. */
static void compare_with(suite *s, const char *name, int d, const run_config *c, const twin_step *t,
                         const run_result *single)
{
    run_result got = {0};
    fsdp_status st = run_training(s->dev[d], s->world[d], c, &got);
    char text[64] = "";
    if (st == FSDP_OK)
        snprintf(text, sizeof text, "%a %a", (double)got.loss[c->steps - 1],
                 (double)got.norm[c->steps - 1]);
    if (st == FSDP_OK)
        st = comm_same(s->world[0], "loss and norm", text);
    if (st == FSDP_OK && s->rank == 0)
        st = t ? same_as_twin(&got, t, (float)c->lr) : same_run(&got, single);
    report(s, name, st);
    run_result_free(&got);
}

/* What is computed with and summed in. */
typedef struct dtypes {
    const char *name;
    dtype param, reduce;
} dtypes;

static const dtypes DTYPES[] = {{"", DTYPE_F32, DTYPE_F32},
                                {", bf16 params", DTYPE_BF16, DTYPE_F32},
                                {", bf16 sums", DTYPE_F32, DTYPE_BF16},
                                {", bf16 params and sums", DTYPE_BF16, DTYPE_BF16}};
enum { FP32, BF16_PARAMS, BF16_SUMS, BF16_BOTH, N_DTYPES };

static void canonical_gradients(suite *s, const model_config *m, const ops *o, const dtypes *types)
{
    run_config c = base_config(m, o, GRAD_ACC_CANONICAL);
    c.param_dtype = types->param;
    c.reduce_dtype = types->reduce;
    twin_step t = {0};
    run_result single = {0};
    char name[128];
    c.batch = 4; /* a tree of 4 leaves is no running sum */
    c.lr = (double)GRAD_LR;
    fsdp_status st = s->rank == 0 ? twin_first_step(&c, s->world_size, 1, &t) : FSDP_OK;
    if (st == FSDP_OK)
        st = run_single(s, &c, 1, &single);
    if (st == FSDP_OK && s->rank == 0)
        st = same_as_twin(&single, &t, GRAD_LR);
    snprintf(name, sizeof name, "canonical, ops %s%s: gradients of one device are the twin's",
             o->name, types->name);
    report(s, name, st);
    for (int v = 0; v < N_VARIANTS; v++) {
        if (skips(s, v))
            continue;
        use_variant(&c, &VARIANTS[v]);
        snprintf(name, sizeof name, "canonical, ops %s%s: gradients, %s", o->name, types->name,
                 VARIANTS[v].name);
        compare_with(s, name, v % 2, &c, &t, NULL);
    }
    twin_step_free(&t);
    run_result_free(&single);
}

/* Steps: one of SGD, then 10 of AdamW with clipping; one device takes the batch in
 * calls of other sizes. */
static void canonical_steps(suite *s, const model_config *m, const ops *o, optimizer_kind kind,
                            const dtypes *t)
{
    bool adamw = kind == OPTIMIZER_ADAMW;
    run_config c = base_config(m, o, GRAD_ACC_CANONICAL);
    c.param_dtype = t->param;
    c.reduce_dtype = t->reduce;
    run_result single = {0};
    char name[128];
    c.optimizer = kind;
    c.lr = adamw ? 3e-3 : 0.5;
    c.steps = adamw ? 10 : 1;
    c.clip_norm = adamw ? 1.0f : 0.0f;
    fsdp_status st = run_single(s, &c, adamw ? 1 : 2, &single);
    snprintf(name, sizeof name, "canonical, ops %s%s: one device runs %d steps", o->name, t->name,
             c.steps);
    report(s, name, st);
    for (int v = 0; v < N_VARIANTS && st == FSDP_OK; v++) {
        if (skips(s, v))
            continue;
        use_variant(&c, &VARIANTS[v]);
        snprintf(name, sizeof name, "canonical, ops %s%s: %d steps of %s, %s", o->name, t->name,
                 c.steps, adamw ? "adamw" : "sgd", VARIANTS[v].name);
        compare_with(s, name, (v + 1) % 2, &c, NULL, &single);
    }
    run_result_free(&single);
}

/* ---- fast: bounds --------------------------------------------------------------------------- */
static double gamma_of(size_t k)
{
    return (double)k * U / (1.0 - (double)k * U);
}

/* How far element i of a sum in bf16 may be from the exact one, which is `sum`. */
static double bf16_sum_error(const twin_step *t, size_t i, double sum)
{
    double off = t->spacings[i], n = (double)t->nodes;
    if (t->nodes == 1)
        return off;
    off += (n - 2.0) * twin_bf16_spacing(t->abs_sum[i] * pow(1.0 + UB, n - 1.0));
    return off + twin_bf16_spacing(fabs(sum) + off);
}

/* |got - twin| of element i of the gradient. The twin's own sum is in fp32. */
static double gradient_bound(const twin_step *t, size_t i, dtype reduce)
{
    double g = fabs((double)t->grad[i]), sum_off = 2.0 * gamma_of(t->nodes - 1) * t->abs_sum[i];
    if (reduce == DTYPE_BF16)
        sum_off += bf16_sum_error(t, i, g * (1.0 + 2.0 * U) / t->scale + sum_off);
    return sum_off * t->scale + 3.0 * U * (g + sum_off * t->scale);
}

/* |got - twin| <= bound for every element, and for the norm; the largest quotient goes into the
 * PASS line. */
static fsdp_status within_bound(suite *s, const run_result *got, const twin_step *t, double lr,
                                dtype reduce)
{
    double worst = 0.0, norm = 0.0, norm_bound = 0.0;
    for (size_t i = 0; i < t->elems; i++) {
        double p = (double)t->before[i], g = (double)t->grad[i];
        double bound_g = gradient_bound(t, i, reduce);
        double bound =
            lr * bound_g + U * (fabs(p) + 2.0 * lr * (fabs(g) + bound_g)) + 0x1p-149 * lr;
        double off = fabs((double)got->params[i] - (p - lr * g));
        norm += g * g;
        norm_bound += bound_g * bound_g;
        worst = off / bound > worst ? off / bound : worst;
        if (!(off <= bound))
            return fsdp_error(FSDP_EINVAL, "", "weight %zu after lr %.3g: off by %.3g, bound %.3g",
                              i, lr, off, bound);
    }
    norm = sqrt(norm);
    norm_bound = sqrt(norm_bound) + 2.0 * U * norm;
    double norm_off = fabs((double)got->norm[0] - norm);
    snprintf(s->detail, sizeof s->detail, " (at most %.2f of the bound, the norm %.2g)", worst,
             norm_off / norm_bound);
    if (!(norm_off <= norm_bound))
        return fsdp_error(FSDP_EINVAL, "", "the norm is off by %.3g, bound %.3g", norm_off,
                          norm_bound);
    return FSDP_OK;
}

/* Gradients, and with all in fp32 the weights after one step of SGD. */
static void fast_sgd(suite *s, const model_config *m, const ops *o, const dtypes *types)
{
    run_config c = base_config(m, o, GRAD_ACC_FAST);
    bool rounds = types->reduce == DTYPE_BF16, steps = types == &DTYPES[FP32];
    twin_step t = {0};
    char name[128];
    c.param_dtype = types->param; /* the twin sums in fp32 */
    c.grad_accum = rounds ? 1 : c.grad_accum;
    c.seq_len -= rounds ? 1 : 0;
    fsdp_status st = s->rank == 0 ? twin_first_step(&c, s->world_size, c.batch, &t) : FSDP_OK;
    snprintf(name, sizeof name, "fast%s: the twin's gradient, nodes of 2 sequences", types->name);
    report(s, name, st);
    c.reduce_dtype = types->reduce;
    for (int v = 0; v < (1 + steps) * N_VARIANTS && st == FSDP_OK; v++) {
        bool step = v >= N_VARIANTS;
        const variant *var = &VARIANTS[v % N_VARIANTS];
        run_result got = {0};
        if (skips(s, v % N_VARIANTS))
            continue;
        use_variant(&c, var);
        c.lr = step ? 0.5 : (double)GRAD_LR;
        st = run_training(s->dev[0], s->world[0], &c, &got);
        fsdp_status mine = st;
        if (st == FSDP_OK && s->rank == 0)
            mine = within_bound(s, &got, &t, c.lr, types->reduce);
        snprintf(name, sizeof name, "fast, ops %s%s: %s, %s", o->name, types->name,
                 step ? "one step of sgd within the bound" : "gradients within the bound",
                 var->name);
        report(s, name, mine);
        run_result_free(&got);
    }
    twin_step_free(&t);
}

/* Largest relative 2-norm difference over the tensors of two weight arrays moved by -lr*g. */
static double tensor_distance(const model *m, const run_result *a, const run_result *b)
{
    double worst = 0.0;
    size_t at = 0;
    for (int p = 0; p < m->n_params; p++) {
        double diff = 0.0, norm = 0.0;
        if (m->params[p].tied_to != NOT_TIED)
            continue;
        for (size_t i = 0; i < m->params[p].elems; i++, at++) {
            double x = (double)a->params[at] / (double)GRAD_LR,
                   y = (double)b->params[at] / (double)GRAD_LR;
            diff += (x - y) * (x - y);
            norm += y * y;
        }
        double rel = norm > 0.0 ? sqrt(diff / norm) : 0.0;
        worst = rel > worst ? rel : worst;
    }
    return worst;
}

/* Calls of other shapes: 4 sequences a call on W ranks against one by one, beside 2 against one by
 * one on one device. */
static void fast_shapes(suite *s, const model_config *mc, const ops *o)
{
    run_config c = base_config(mc, o, GRAD_ACC_FAST);
    run_result one = {0}, two = {0}, many = {0};
    model m = {0};
    use_variant(&c, &VARIANTS[1]);
    c.batch = 4;
    c.lr = (double)GRAD_LR;
    fsdp_status st = gpt2_create(mc, &m);
    if (st == FSDP_OK)
        st = run_single(s, &c, 1, &one);
    if (st == FSDP_OK)
        st = run_single(s, &c, 2, &two);
    if (st == FSDP_OK)
        st = run_training(s->dev[0], s->world[0], &c, &many);
    if (st == FSDP_OK && s->rank == 0) {
        double band = tensor_distance(&m, &two, &one), got = tensor_distance(&m, &many, &one);
        double allowed = 8.0 * (band > 4.0 * U ? band : 4.0 * U);
        snprintf(s->detail, sizeof s->detail, " (%.2g, allowed %.2g)", got, allowed);
        if (!(got <= allowed))
            st = fsdp_error(FSDP_EINVAL, "", "a tensor's gradient is off by %.3g, allowed %.3g",
                            got, allowed);
    }
    char name[96];
    snprintf(name, sizeof name, "fast, ops %s: gradients of calls of other shapes", o->name);
    report(s, name, st);
    model_free(&m);
    run_result_free(&one);
    run_result_free(&two);
    run_result_free(&many);
}

static uint64_t draw(uint64_t *state) /* splitmix64 */
{
    uint64_t z = (*state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

static int draw_range(uint64_t *state, int lo, int hi)
{
    return lo + (int)(draw(state) % (uint64_t)(hi - lo + 1));
}

/* Losses of one device with the sequences of every step in random order: *band [steps], the largest
 * distance from `want` so far. Rank 0.                                                          */
static fsdp_status measure_band(suite *s, const run_config *many, const run_result *want,
                                double *band)
{
    enum { MAX_LEAVES = 64 };
    size_t order[MAX_LEAVES];
    uint64_t state = 5;
    size_t leaves = many->batch * (size_t)many->grad_accum * (size_t)s->world_size;
    FSDP_ASSERT(leaves <= MAX_LEAVES);
    for (int k = 0; k < SAMPLES; k++) {
        run_result r;
        run_config c = *many;
        for (size_t i = 0; i < leaves; i++) {
            size_t j = (size_t)draw_range(&state, 0, (int)i); /* Fisher-Yates, growing */
            order[i] = order[j];
            order[j] = i;
        }
        c.order = order;
        TRY(run_single(s, &c, many->batch, &r));
        for (int t = 0; t < want->steps; t++) {
            double off = fabs((double)r.loss[t] - (double)want->loss[t]);
            band[t] = off > band[t] ? off : band[t];
        }
        run_result_free(&r);
    }
    for (int t = 1; t < want->steps; t++)
        band[t] = band[t - 1] > band[t] ? band[t - 1] : band[t];
    return FSDP_OK;
}

static fsdp_status within_band(suite *s, const run_result *got, const run_result *want,
                               const double *band)
{
    double worst = 0.0;
    for (int t = 0; t < want->steps; t++) {
        double off = fabs((double)got->loss[t] - (double)want->loss[t]);
        double allowed = 4.0 * (band[t] + 2.0 * U * (double)want->loss[t]);
        worst = off / allowed > worst ? off / allowed : worst;
        if (!(off <= allowed))
            return fsdp_error(FSDP_EINVAL, "", "loss of step %d: off by %.3g, allowed %.3g", t, off,
                              allowed);
    }
    snprintf(s->detail, sizeof s->detail, " (at most %.2f of 4 bands, band %.2g)", worst,
             band[want->steps - 1]);
    return FSDP_OK;
}

static void fast_adamw(suite *s, const model_config *m, const ops *o, const dtypes *types)
{
    run_config c = base_config(m, o, GRAD_ACC_FAST);
    run_result single = {0};
    char name[128];
    double band[BAND_STEPS] = {0};
    c.param_dtype = types->param;
    c.reduce_dtype = types->reduce;
    c.optimizer = OPTIMIZER_ADAMW;
    c.lr = 3e-3;
    c.steps = BAND_STEPS;
    c.clip_norm = 1.0f;
    fsdp_status st = run_single(s, &c, c.batch, &single);
    if (st == FSDP_OK && s->rank == 0)
        st = measure_band(s, &c, &single, band);
    snprintf(name, sizeof name, "fast%s: band of AdamW's losses on one device", types->name);
    report(s, name, st);
    for (int v = 0; v < N_VARIANTS && st == FSDP_OK; v++) {
        run_result got = {0};
        if (skips(s, v))
            continue;
        use_variant(&c, &VARIANTS[v]);
        st = run_training(s->dev[v % 2], s->world[v % 2], &c, &got);
        fsdp_status mine = st == FSDP_OK && s->rank == 0 ? within_band(s, &got, &single, band) : st;
        snprintf(name, sizeof name, "fast, ops %s%s: %d adamw losses in the band, %s", o->name,
                 types->name, BAND_STEPS, VARIANTS[v].name);
        report(s, name, mine);
        run_result_free(&got);
    }
    run_result_free(&single);
}

/* ---- modes ---------------------------------------------------------------------------------- */
static void tiny_suite(suite *s)
{
    model_config m = {0};
    fsdp_status st = gpt2_preset("tiny", &m);
    FSDP_ASSERT_EQ(st, FSDP_OK);
    m.max_seq_len = 16;
    const ops *tables[] = {ops_cpu_portable(), ops_cpu_fast()};
    for (int k = 0; k < 2; k++) {
        canonical_gradients(s, &m, tables[k], &DTYPES[FP32]);
        if (k == 0 && s->quick)
            continue;
        canonical_steps(s, &m, tables[k], OPTIMIZER_SGD, &DTYPES[FP32]);
        canonical_steps(s, &m, tables[k], OPTIMIZER_ADAMW, &DTYPES[FP32]);
    }
    for (int t = BF16_PARAMS; t < N_DTYPES; t++) {
        canonical_gradients(s, &m, tables[s->quick], &DTYPES[t]);
        if (t != BF16_SUMS || !s->quick)
            canonical_steps(s, &m, tables[1], OPTIMIZER_ADAMW, &DTYPES[t]);
    }
    for (int t = FP32; t < N_DTYPES; t++)
        if (t != BF16_SUMS || !s->quick)
            fast_sgd(s, &m, tables[1], &DTYPES[t]);
    fast_shapes(s, &m, tables[1]);
    fast_adamw(s, &m, tables[1], &DTYPES[FP32]);
    if (!s->quick)
        fast_adamw(s, &m, tables[1], &DTYPES[BF16_BOTH]);
}

static void xl_suite(suite *s)
{
    model_config m = {0};
    run_result single = {0};
    fsdp_status st = gpt2_preset("xl-2l", &m);
    FSDP_ASSERT_EQ(st, FSDP_OK);
    m.max_seq_len = 16;
    run_config c = base_config(&m, ops_cpu_fast(), GRAD_ACC_CANONICAL);
    c.batch = 1;
    c.grad_accum = s->world_size == 1 ? 2 : 1;
    c.lr = (double)GRAD_LR;
    st = run_single(s, &c, 1, &single);
    report(s, "XL shape: one device, gradients", st);
    const int variants[] = {1, 5};
    for (int k = 0; k < 2 && st == FSDP_OK; k++) {
        char name[96];
        use_variant(&c, &VARIANTS[variants[k]]);
        snprintf(name, sizeof name, "XL shape, canonical: gradients, %s",
                 VARIANTS[variants[k]].name);
        compare_with(s, name, 0, &c, NULL, &single);
    }
    run_result_free(&single);
    c.optimizer = OPTIMIZER_ADAMW;
    c.lr = 3e-4;
    c.steps = 10;
    c.clip_norm = 1.0f;
    st = run_single(s, &c, 1, &single);
    report(s, "XL shape: one device, 10 steps of adamw", st);
    for (int k = 0; k < 2 && st == FSDP_OK; k++) {
        char name[96];
        use_variant(&c, &VARIANTS[k]);
        snprintf(name, sizeof name, "XL shape, canonical: 10 steps of adamw, %s", VARIANTS[k].name);
        compare_with(s, name, 0, &c, NULL, &single);
    }
    run_result_free(&single);
}

/* A configuration from the generator: the same on every rank. *single_batch: calls of
 * the single device. */
static run_config draw_config(uint64_t *rng, int world_size, size_t *single_batch, int *d)
{
    static const size_t batches[] = {1, 2, 4};
    model_config m = {.family = "gpt2", .norm_eps = 1e-5f};
    m.n_blocks = (size_t)draw_range(rng, 1, 3);
    m.n_head = m.n_kv_head = (size_t)draw_range(rng, 1, 4);
    m.d_model = m.n_head * (size_t)draw_range(rng, 3, 17);
    m.d_ff = 4 * m.d_model;
    m.vocab_size = (size_t)draw_range(rng, 17, 256);
    m.max_seq_len = (size_t)draw_range(rng, 3, 24);
    run_config c =
        base_config(&m, draw(rng) & 1 ? ops_cpu_fast() : ops_cpu_portable(), GRAD_ACC_CANONICAL);
    c.batch = batches[draw_range(rng, 0, 2)];
    c.grad_accum = draw_range(rng, 1, 5);
    const variant *v = &VARIANTS[draw_range(rng, 0, N_VARIANTS - 1)];
    bool has_groups = v->sharding != SHARDING_HYBRID || run_hybrid_size(world_size) > 0;
    use_variant(&c, has_groups ? v : &VARIANTS[1]);
    if (c.wrap == WRAP_SIZE)
        c.wrap_min_elems = (size_t)draw_range(rng, 1, 40000);
    c.optimizer = draw(rng) & 1 ? OPTIMIZER_ADAMW : OPTIMIZER_SGD;
    c.lr = c.optimizer == OPTIMIZER_ADAMW ? 3e-3 : 0.5;
    c.steps = draw_range(rng, 1, 3);
    c.clip_norm = draw(rng) & 1 ? 0.5f : 0.0f;
    c.seed = draw(rng);
    const int t = draw_range(rng, 0, N_DTYPES - 1);
    c.param_dtype = DTYPES[t].param;
    c.reduce_dtype = DTYPES[t].reduce;
    size_t leaves = c.batch * (size_t)(c.grad_accum * world_size);
    *single_batch = 1;
    while (leaves % (2 * *single_batch) == 0 && *single_batch < 4 && draw(rng) & 1)
        *single_batch *= 2;
    *d = (int)(draw(rng) & 1);
    return c;
}

static void random_suite(suite *s, int n, uint64_t seed)
{
    uint64_t rng = seed;
    static const char *const shardings[] = {"full", "grad-op", "none", "hybrid"};
    static const char *const wraps[] = {"block", "sub-block", "size", "model"};
    for (int i = 0; i < n; i++) {
        size_t single_batch;
        int d;
        run_result single = {0};
        char name[256];
        run_config c = draw_config(&rng, s->world_size, &single_batch, &d);
        snprintf(name, sizeof name,
                 "random %d: %s %s %s, %s, layers %zu, d %zu, heads %zu, vocab %zu, T %zu, b %zu, "
                 "accum %d, "
                 "%s x %d, params %s, sums %s, device %d, against b %zu",
                 i, c.fsdp ? "fsdp" : "ddp", shardings[c.sharding], wraps[c.wrap], c.ops->name,
                 c.model.n_blocks, c.model.d_model, c.model.n_head, c.model.vocab_size, c.seq_len,
                 c.batch, c.grad_accum, c.optimizer == OPTIMIZER_ADAMW ? "adamw" : "sgd", c.steps,
                 dtype_name(c.param_dtype), dtype_name(c.reduce_dtype), d, single_batch);
        fsdp_status st = comm_agree(s->world[0], run_single(s, &c, single_batch, &single));
        if (st == FSDP_OK)
            compare_with(s, name, d, &c, NULL, &single);
        else
            report(s, name, st);
        run_result_free(&single);
    }
}

/* ---- the band of reordered AdamW ------------------------------------------------------------ */
/* Three other orders of the same formula: PyTorch's (p times 1-decay first, quotient before the
 * step size), Kingma's (corrected moments first), and moments by interpolation. */
static fsdp_status adamw_reordered(const adamw_args *a, int order)
{
    float coef = a->grad_coef ? *a->grad_coef : 1.0f;
    for (size_t i = 0; i < a->elems; i++) {
        float g = a->grad[i] * coef, p = a->param[i] * (1.0f - a->decay);
        if (order == 2) {
            a->m[i] = a->m[i] + a->one_minus_beta1 * (g - a->m[i]);
            a->v[i] = a->v[i] + a->one_minus_beta2 * (g * g - a->v[i]);
        } else {
            a->m[i] = a->beta1 * a->m[i] + a->one_minus_beta1 * g;
            a->v[i] = a->beta2 * a->v[i] + a->one_minus_beta2 * g * g;
        }
        if (order == 1) {
            float v_hat = a->v[i] / (a->sqrt_bias2 * a->sqrt_bias2);
            a->param[i] = p - a->step_size * (a->m[i] / (sqrtf(v_hat) + a->eps));
        } else {
            a->param[i] = p - a->step_size * (a->m[i] / (sqrtf(a->v[i]) / a->sqrt_bias2 + a->eps));
        }
    }
    return FSDP_OK;
}

static fsdp_status adamw_torch(void *args, int n_threads)
{
    (void)n_threads;
    return adamw_reordered(args, 0);
}

static fsdp_status adamw_kingma(void *args, int n_threads)
{
    (void)n_threads;
    return adamw_reordered(args, 1);
}

static fsdp_status adamw_lerp(void *args, int n_threads)
{
    (void)n_threads;
    return adamw_reordered(args, 2);
}

static fsdp_status launch_torch(stream *s, const adamw_args *a)
{
    return stream_launch(s, adamw_torch, a, sizeof *a);
}

static fsdp_status launch_kingma(stream *s, const adamw_args *a)
{
    return stream_launch(s, adamw_kingma, a, sizeof *a);
}

static fsdp_status launch_lerp(stream *s, const adamw_args *a)
{
    return stream_launch(s, adamw_lerp, a, sizeof *a);
}

static double widest(const float *got, const float *want, int n)
{
    double worst = 0.0;
    for (int t = 0; t < n; t++) {
        double rel = fabs((double)got[t] - (double)want[t]) / (double)want[t];
        worst = rel > worst ? rel : worst;
    }
    return worst;
}

/* The run of tests/reference/tiny.csv with each order. */
static fsdp_status adamw_band(suite *s)
{
    enum { STEPS = 20 };
    double lr[STEPS];
    model_config m = {0};
    TRY(gpt2_preset("tiny", &m));
    m.max_seq_len = 32;
    for (int t = 0; t < STEPS; t++)
        lr[t] =
            t < 5 ? 1e-3 * (t + 1) / 5.0 : 1e-4 + 9e-4 * (1.0 + cos(M_PI * (t - 5) / 15.0)) / 2.0;
    ops orders[] = {*ops_cpu_portable(), *ops_cpu_portable(), *ops_cpu_portable(),
                    *ops_cpu_portable()};
    orders[1].adamw = launch_torch;
    orders[2].adamw = launch_kingma;
    orders[3].adamw = launch_lerp;
    static const char *const names[] = {"reference", "PyTorch's", "Kingma's", "interpolation"};
    run_result want = {0}, got = {0};
    for (int k = 0; k < 4; k++) {
        run_config c = base_config(&m, &orders[k], GRAD_ACC_CANONICAL);
        c.batch = 8;
        c.optimizer = OPTIMIZER_ADAMW;
        c.lr_of_step = lr;
        c.steps = STEPS;
        c.clip_norm = 1.0f;
        c.seed = 1;
        TRY(run_training(s->dev[0], s->alone, &c, k ? &got : &want));
        if (k)
            printf("%s: loss %.3g, norm %.3g (largest relative difference of %d steps)\n", names[k],
                   widest(got.loss, want.loss, STEPS), widest(got.norm, want.norm, STEPS), STEPS);
        run_result_free(&got);
    }
    run_result_free(&want);
    return FSDP_OK;
}

/* ---- main ----------------------------------------------------------------------------------- */
static fsdp_status suite_open(suite *s)
{
    device_config dc[2] = {
        {.kind = DEVICE_CPU, .n_threads = 1},
        {.kind = DEVICE_CPU, .n_threads = 2, .debug_fill = true, .async_compute = true}};
    for (int d = 0; d < 2; d++) {
        TRY(device_open(&dc[d], &s->dev[d]));
        TRY(comm_open(s->dev[d], &(comm_config){0}, &s->world[d]));
    }
    s->rank = comm_rank(s->world[0]);
    s->world_size = comm_size(s->world[0]);
    return comm_split(s->world[0], s->rank, 0, &s->alone);
}

static void suite_close(suite *s)
{
    comm_close(s->alone);
    comm_close(s->world[1]);
    comm_close(s->world[0]);
    device_close(s->dev[1]);
    device_close(s->dev[0]);
}

int main(int argc, char **argv)
{
    static const struct option options[] = {
        {"xl", no_argument, NULL, 'x'},           {"quick", no_argument, NULL, 'q'},
        {"random", required_argument, NULL, 'r'}, {"seed", required_argument, NULL, 's'},
        {"adamw-band", no_argument, NULL, 'b'},   {0}};
    suite s = {0};
    int mode = 't', n_random = 0;
    uint64_t seed = 1;
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        if (c == '?')
            return 2;
        if (c == 's')
            seed = strtoull(optarg, NULL, 10);
        else if (c == 'q')
            s.quick = true;
        else
            mode = c;
        if (c == 'r')
            n_random = atoi(optarg);
    }
    fsdp_status st = suite_open(&s);
    if (st == FSDP_OK && mode == 't')
        tiny_suite(&s);
    else if (st == FSDP_OK && mode == 'x')
        xl_suite(&s);
    else if (st == FSDP_OK && mode == 'r')
        random_suite(&s, n_random, seed);
    else if (st == FSDP_OK)
        st = s.rank == 0 ? adamw_band(&s) : FSDP_OK;
    if (st != FSDP_OK) {
        fsdp_error_print(stderr, s.rank, s.world_size);
        if (s.world[0])
            comm_abort(s.world[0], 2);
        return 2;
    }
    if (s.rank == 0)
        printf("%d passed, %d failed\n", s.passed, s.failed);
    printf("DONE rank %d/%d\n", s.rank, s.world_size);
    fflush(stdout);
    suite_close(&s);
    return s.failed ? 1 : 0;
}
