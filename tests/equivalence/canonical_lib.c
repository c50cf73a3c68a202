/* canonical_lib.c -- see canonical_lib.h.
 *
 * bf16: the same bits are asked for with parameters in bf16, with sums in bf16, and with both:
 * the twin rounds its parameters once, and every leaf and every node of its sum. */
#include "tests/equivalence/canonical_lib.h"
#include <string.h>

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

void canonical_compare(suite *s, const char *name, int d, const run_config *c, const twin_step *t,
                       const run_result *single)
{
    run_result got = {0};
    fsdp_status st = suite_train(s, d, c, &got);
    char text[64] = "";
    if (st == FSDP_OK)
        snprintf(text, sizeof text, "%a %a", (double)got.loss[c->steps - 1],
                 (double)got.norm[c->steps - 1]);
    if (st == FSDP_OK)
        st = comm_same(s->world[0], "loss and norm", text);
    if (st == FSDP_OK && s->rank == 0)
        st = t ? same_as_twin(&got, t, (float)c->lr) : same_run(&got, single);
    suite_report(s, name, st);
    run_result_free(&got);
}

void canonical_gradients(suite *s, const model_config *m, const ops *o, const dtypes *types)
{
    run_config c = suite_config(m, o, GRAD_ACC_CANONICAL);
    c.param_dtype = types->param;
    c.reduce_dtype = types->reduce;
    twin_step t = {0};
    run_result single = {0};
    char name[128];
    c.batch = 4; /* a tree of 4 leaves is no running sum */
    c.lr = (double)GRAD_LR;
    fsdp_status st = s->rank == 0 ? twin_step_make(&c, s->world_size, 1, &t) : FSDP_OK;
    if (st == FSDP_OK)
        st = suite_run_single(s, &c, 1, &single);
    if (st == FSDP_OK && s->rank == 0)
        st = same_as_twin(&single, &t, GRAD_LR);
    snprintf(name, sizeof name, "canonical, ops %s%s: gradients of one device are the twin's",
             o->name, types->name);
    suite_report(s, name, st);
    for (int v = 0; v < N_VARIANTS; v++) {
        if (suite_skips(s, v) || VARIANTS[v].no_sync || VARIANTS[v].replicas_last)
            continue;
        suite_use_variant(&c, &VARIANTS[v]);
        snprintf(name, sizeof name, "canonical, ops %s%s: gradients, %s", o->name, types->name,
                 VARIANTS[v].name);
        canonical_compare(s, name, v % 2, &c, &t, NULL);
    }
    twin_step_free(&t);
    run_result_free(&single);
}
