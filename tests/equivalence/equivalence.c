/* equivalence.c -- one device, DDP and FSDP train the same model: to the bit in canonical mode,
 * within derived bounds in fast mode.
 *
 *   mpiexec -n W build/tests/equivalence/equivalence    tiny: every strategy and wrapping
 *   ... --quick                 fewer combinations of the two
 *   ... --few                   a handful, for a device that is slow
 *   ... --xl                    GPT-2 XL's shape (d 1600, 25 heads, 2 layers)
 *   ... --adamw-band            figures for tests/grade/tiny_lib.c
 *   ... --probe                 run nothing; only check that there is a device
 *
 * Rank 0 prints "PASS name" or "FAIL name: first difference" and "N passed, N failed"; every rank
 * ends with "DONE rank r/W". Gradients come first, then one step of SGD, AdamW's losses last: Adam
 * hides a wrong scale. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include "common/model/family.h"
#include "tests/equivalence/adamw_band_lib.h"
#include "tests/equivalence/canonical_lib.h"
#include "tests/equivalence/fast_lib.h"
#include "tests/unit/target_lib.h"

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
    for (int k = 0; k < 2; k++)
        canonical_gradients(s, &m, tables[k], &DTYPES[FP32]);
    for (int t = BF16_PARAMS; t < N_DTYPES; t++)
        canonical_gradients(s, &m, tables[quick], &DTYPES[t]);
    for (int t = FP32; t < N_DTYPES; t++)
        if (t != BF16_SUMS || !quick)
            fast_sgd(s, &m, tables[1], &DTYPES[t]);
    fast_shapes(s, &m, tables[1], &DTYPES[FP32]);
    fast_shapes(s, &m, tables[1], &DTYPES[BF16_PARAMS]);
    fast_adamw(s, &m, tables[1], &DTYPES[FP32]);
    if (!quick)
        fast_adamw(s, &m, tables[1], &DTYPES[BF16_BOTH]);
}

static void xl_suite(suite *s)
{
    model_config m = {0};
    run_result single = {0};
    fsdp_status st = model_preset("gpt2", "xl-2l", &m);
    FSDP_ASSERT_EQ(st, FSDP_OK);
    m.max_seq_len = 16;
    run_config c = suite_config(&m, target_backend()->fast(), GRAD_ACC_CANONICAL);
    c.batch = 1;
    c.grad_accum = s->world_size == 1 ? 2 : 1;
    c.lr = (double)GRAD_LR;
    st = suite_run_single(s, &c, 1, &single);
    suite_report(s, "XL shape: one device, gradients", st);
    const int variants[] = {1, 2};
    for (int k = 0; k < 2 && st == FSDP_OK; k++) {
        char name[96];
        suite_use_variant(&c, &VARIANTS[variants[k]]);
        snprintf(name, sizeof name, "XL shape, canonical: gradients, %s",
                 VARIANTS[variants[k]].name);
        canonical_compare(s, name, 0, &c, NULL, &single);
    }
    run_result_free(&single);
    c.optimizer = OPTIMIZER_ADAMW;
    c.lr = 3e-4;
    c.steps = 10;
    c.clip_norm = 1.0f;
    st = suite_run_single(s, &c, 1, &single);
    suite_report(s, "XL shape: one device, 10 steps of adamw", st);
    for (int k = 0; k < 2 && st == FSDP_OK; k++) {
        char name[96];
        suite_use_variant(&c, &VARIANTS[k]);
        snprintf(name, sizeof name, "XL shape, canonical: 10 steps of adamw, %s", VARIANTS[k].name);
        canonical_compare(s, name, 0, &c, NULL, &single);
    }
    run_result_free(&single);
}

/* *mode: the letter of an option below; t: the tiny suite. */
static bool read_mode(int argc, char **argv, int *mode, suite *s)
{
    static const struct option options[] = {
        {"xl", no_argument, NULL, 'x'},    {"quick", no_argument, NULL, 'q'},
        {"few", no_argument, NULL, 'f'},   {"adamw-band", no_argument, NULL, 'b'},
        {"probe", no_argument, NULL, 'p'}, {0}};
    *mode = 't';
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        if (c == '?')
            return false;
        if (c == 'q')
            s->level = 1;
        else if (c == 'f')
            s->level = 2;
        else
            *mode = c;
    }
    return true;
}

int main(int argc, char **argv)
{
    suite s = {0};
    int mode;
    if (!read_mode(argc, argv, &mode, &s))
        return 2;
    fsdp_status st = suite_open(&s);
    if (st == FSDP_ESKIP) {
        printf("SKIP equivalence: %s\n", fsdp_error_get()->what);
        return 77;
    }
    if (st == FSDP_OK && mode == 't')
        tiny_suite(&s);
    else if (st == FSDP_OK && mode == 'x')
        xl_suite(&s);
    else if (st == FSDP_OK && mode == 'b')
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
