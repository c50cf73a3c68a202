/* equivalence.c -- one device, DDP and FSDP train like the unsharded twin. In canonical mode one
 * device has the twin's bits (matrix.c checks that ranks have the bits of one device). In fast mode
 * all stay within derived bounds.
 *
 *   build/fsdp_run -n W build/tests/equivalence/equivalence    tiny: every strategy and wrapping
 *   ... --quick                 fewer combinations of strategy and wrapping
 *   ... --few                   a few combinations, for a slow device
 *   ... --probe                 run nothing; only check that there is a device
 *
 * Rank 0 prints "PASS name" or "FAIL name: first difference" and "N passed, N failed"; every rank
 * ends with "DONE rank r/W". Gradients and one step of SGD are compared, and not AdamW's losses,
 * because Adam hides a wrong scale; matrix.c and the labs' graders test the optimizers. */
#include <getopt.h>
#include <stdio.h>
#include <string.h>
#include "common/model/family.h"
#include "tests/equivalence/adamw_band_lib.h"
#include "tests/equivalence/fast_lib.h"
#include "tests/unit/target_lib.h"

/* ---- canonical mode: the twin's bits --------------------------------------------------------- */

static fsdp_status same_as_twin(const run_result *got, const twin_step *t, float lr)
{
    if (memcmp(got->loss, &t->loss, sizeof t->loss) != 0)
        return fsdp_error(FSDP_EINVAL, "", "loss: got %.9g, the twin has %.9g",
                          (double)got->loss[0], (double)t->loss);
    for (size_t i = 0; i < t->elems; i++) {
        float want = t->before[i] - lr * (t->grad[i] * 1.0f + 0.0f * t->before[i]);
        if (memcmp(&got->params[i], &want, sizeof want) != 0)
            return fsdp_error(
                FSDP_EINVAL, "", "gradient of weight %zu: got %.9g, the twin has %.9g", i,
                ((double)t->before[i] - (double)got->params[i]) / (double)lr, (double)t->grad[i]);
    }
    return FSDP_OK;
}

/* The gradients of one device are the twin's, bit for bit. In bf16 the twin rounds its parameters
 * once, and every leaf and every node of its sum. */
static void canonical_gradients(suite *s, const model_config *m, const ops *o, const dtypes *types)
{
    run_config c = suite_config(m, o, GRAD_ACC_CANONICAL);
    twin_step t = {0};
    run_result single = {0};
    char name[128];
    c.param_dtype = types->param;
    c.reduce_dtype = types->reduce;
    c.batch = 4; /* with 4 leaves a tree differs from a running sum */
    c.lr = (double)GRAD_LR;
    fsdp_status st = s->rank == 0 ? twin_step_make(&c, s->world_size, 1, &t) : FSDP_OK;
    if (st == FSDP_OK)
        st = suite_run_single(s, &c, 1, &single);
    if (st == FSDP_OK && s->rank == 0)
        st = same_as_twin(&single, &t, GRAD_LR);
    snprintf(name, sizeof name, "canonical, ops %s%s: gradients of one device are the twin's",
             o->name, types->name);
    suite_report(s, name, st);
    twin_step_free(&t);
    run_result_free(&single);
}

/* ---- the suites ------------------------------------------------------------------------------ */

static void few_suite(suite *s, const model_config *m)
{
    const ops *o = target_backend()->fast();
    canonical_gradients(s, m, o, &DTYPES[FP32]);
    canonical_gradients(s, m, o, &DTYPES[BF16_BOTH]);
    fast_sgd(s, m, o, &DTYPES[FP32]);
}

static void tiny_suite(suite *s)
{
    model_config m = {0};
    fsdp_status st = model_preset("gpt2", "tiny", &m);
    FSDP_ASSERT_EQ(st, FSDP_OK);
    m.max_seq_len = 16;
    const bool quick = s->level > 0;
    if (s->level > 1) {
        few_suite(s, &m);
        return;
    }
    const ops *tables[] = {target_ops(), target_backend()->fast()};
    if (s->world_size == 1 && device_runs_c(s->dev[0]))
        suite_report(s, "AdamW in three other orders", adamw_band(s));
    for (int k = 0; k < 2; k++)
        canonical_gradients(s, &m, tables[k], &DTYPES[FP32]);
    for (int t = BF16_PARAMS; t < N_DTYPES; t++)
        canonical_gradients(s, &m, tables[quick], &DTYPES[t]);
    for (int t = FP32; t < N_DTYPES; t++)
        if (t != BF16_SUMS || !quick)
            fast_sgd(s, &m, tables[1], &DTYPES[t]);
    fast_shapes(s, &m, tables[1], &DTYPES[FP32]);
    fast_shapes(s, &m, tables[1], &DTYPES[BF16_PARAMS]);
}

static bool read_options(int argc, char **argv, suite *s, bool *probes)
{
    static const struct option options[] = {{"quick", no_argument, NULL, 'q'},
                                            {"few", no_argument, NULL, 'f'},
                                            {"probe", no_argument, NULL, 'p'},
                                            {0}};
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        if (c == '?')
            return false;
        *probes = *probes || c == 'p';
        s->level = c == 'q' ? 1 : c == 'f' ? 2 : s->level;
    }
    return true;
}

int main(int argc, char **argv)
{
    suite s = {0};
    bool probes = false;
    if (!read_options(argc, argv, &s, &probes))
        return 2;
    fsdp_status st = suite_open(&s);
    if (st == FSDP_ESKIP) {
        printf("SKIP equivalence: %s\n", fsdp_error_get()->what);
        return 77;
    }
    if (st != FSDP_OK) {
        fsdp_error_print(stderr, s.rank, s.world_size);
        if (s.world[0])
            comm_abort(s.world[0], 2);
        return 2;
    }
    if (!probes)
        tiny_suite(&s);
    if (s.rank == 0)
        printf("%d passed, %d failed\n", s.passed, s.failed);
    printf("DONE rank %d/%d\n", s.rank, s.world_size);
    fflush(stdout);
    suite_close(&s);
    return s.failed ? 1 : 0;
}
