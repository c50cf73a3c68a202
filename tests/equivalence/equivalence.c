/* equivalence.c -- one device, DDP and FSDP train the same model: to the bit in canonical mode,
 * within derived bounds in fast mode.
 *
 *   mpiexec -n W build/tests/equivalence/equivalence    tiny: every strategy and wrapping
 *   ... --quick                 fewer combinations of the two
 *   ... --few                   a handful, for a device that is slow
 *   ... --xl                    GPT-2 XL's shape (d 1600, 25 heads, 2 layers)
 *   ... --random N --seed S     N drawn configurations
 *   ... --adamw-band            figures for tests/grade/tiny_lib.c
 *
 * Rank 0 prints "PASS name" or "FAIL name: first difference" and "N passed, N failed"; every rank
 * ends with "DONE rank r/W". Gradients come first, then one step of SGD, AdamW's losses last: Adam
 * hides a wrong scale. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include "common/model/gpt2.h"
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
    fsdp_status st = gpt2_preset("tiny", &m);
    FSDP_ASSERT_EQ(st, FSDP_OK);
    m.max_seq_len = 16;
    const bool quick = s->level > 0;
    if (s->level > 1) {
        few_suite(s, &m);
        return;
    }
    const ops *tables[] = {target_ops(), target_backend()->fast()};
    for (int k = 0; k < 2; k++) {
        canonical_gradients(s, &m, tables[k], &DTYPES[FP32]);
        if (k == 0 && quick)
            continue;
        canonical_steps(s, &m, tables[k], OPTIMIZER_SGD, &DTYPES[FP32]);
        canonical_steps(s, &m, tables[k], OPTIMIZER_ADAMW, &DTYPES[FP32]);
    }
    for (int t = BF16_PARAMS; t < N_DTYPES; t++) {
        canonical_gradients(s, &m, tables[quick], &DTYPES[t]);
        if (t != BF16_SUMS || !quick)
            canonical_steps(s, &m, tables[1], OPTIMIZER_ADAMW, &DTYPES[t]);
    }
    canonical_frozen(s, &m, tables[0], &DTYPES[FP32]);
    if (!quick)
        canonical_frozen(s, &m, tables[1], &DTYPES[BF16_BOTH]);
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
    fsdp_status st = gpt2_preset("xl-2l", &m);
    FSDP_ASSERT_EQ(st, FSDP_OK);
    m.max_seq_len = 16;
    run_config c = suite_config(&m, target_backend()->fast(), GRAD_ACC_CANONICAL);
    c.batch = 1;
    c.grad_accum = s->world_size == 1 ? 2 : 1;
    c.lr = (double)GRAD_LR;
    st = suite_run_single(s, &c, 1, &single);
    suite_report(s, "XL shape: one device, gradients", st);
    const int variants[] = {1, 5};
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

/* A configuration from the generator: the same on every rank. *single_batch: calls of
 * the single device. */
static run_config draw_config(uint64_t *rng, int world_size, size_t *single_batch, int *d)
{
    static const size_t batches[] = {1, 2, 4};
    model_config m = {.family = "gpt2", .norm_eps = 1e-5f};
    m.n_blocks = (size_t)suite_draw_range(rng, 1, 3);
    m.n_head = (size_t)suite_draw_range(rng, 1, 4);
    m.d_model = m.n_head * (size_t)suite_draw_range(rng, 3, 17);
    m.d_ff = 4 * m.d_model;
    m.vocab_size = (size_t)suite_draw_range(rng, 17, 256);
    m.max_seq_len = (size_t)suite_draw_range(rng, 3, 24);
    run_config c = suite_config(&m, suite_draw(rng) & 1 ? target_backend()->fast() : target_ops(),
                                GRAD_ACC_CANONICAL);
    c.batch = batches[suite_draw_range(rng, 0, 2)];
    c.grad_accum = suite_draw_range(rng, 1, 5);
    const variant *v = &VARIANTS[suite_draw_range(rng, 0, N_VARIANTS - 1)];
    bool has_groups = v->sharding != SHARDING_HYBRID || run_hybrid_size(world_size) > 0;
    suite_use_variant(&c, has_groups ? v : &VARIANTS[1]);
    if (c.wrap == WRAP_SIZE)
        c.wrap_min_elems = (size_t)suite_draw_range(rng, 1, 40000);
    c.prefetch.mode = (prefetch_mode)suite_draw_range(rng, PREFETCH_NONE, PREFETCH_BOTH);
    c.prefetch.limit = suite_draw_range(rng, 1, 4);
    c.buckets.max_elems = suite_draw(rng) & 1 ? (size_t)1 << 40 : 0; /* all in one, or none */
    c.optimizer = suite_draw(rng) & 1 ? OPTIMIZER_ADAMW : OPTIMIZER_SGD;
    c.lr = c.optimizer == OPTIMIZER_ADAMW ? 3e-3 : 0.5;
    c.steps = suite_draw_range(rng, 1, 3);
    c.clip_norm = suite_draw(rng) & 1 ? 0.5f : 0.0f;
    c.seed = suite_draw(rng);
    const int t = suite_draw_range(rng, 0, N_DTYPES - 1);
    c.param_dtype = DTYPES[t].param;
    c.reduce_dtype = DTYPES[t].reduce;
    size_t leaves = c.batch * (size_t)(c.grad_accum * world_size);
    *single_batch = 1;
    while (leaves % (2 * *single_batch) == 0 && *single_batch < 4 && suite_draw(rng) & 1)
        *single_batch *= 2;
    *d = (int)(suite_draw(rng) & 1);
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
        fsdp_status st = comm_agree(s->world[0], suite_run_single(s, &c, single_batch, &single));
        if (st == FSDP_OK)
            canonical_compare(s, name, d, &c, NULL, &single);
        else
            suite_report(s, name, st);
        run_result_free(&single);
    }
}

typedef struct request {
    int mode; /* the letter of an option below; t: the tiny suite */
    int n_random;
    uint64_t seed;
} request;

static bool request_read(int argc, char **argv, request *r, suite *s)
{
    static const struct option options[] = {{"xl", no_argument, NULL, 'x'},
                                            {"quick", no_argument, NULL, 'q'},
                                            {"few", no_argument, NULL, 'f'},
                                            {"random", required_argument, NULL, 'r'},
                                            {"seed", required_argument, NULL, 's'},
                                            {"adamw-band", no_argument, NULL, 'b'},
                                            {0}};
    *r = (request){.mode = 't', .seed = 1};
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        if (c == '?')
            return false;
        if (c == 's')
            r->seed = strtoull(optarg, NULL, 10);
        else if (c == 'q')
            s->level = 1;
        else if (c == 'f')
            s->level = 2;
        else
            r->mode = c;
        if (c == 'r')
            r->n_random = atoi(optarg);
    }
    return true;
}

int main(int argc, char **argv)
{
    suite s = {0};
    request r;
    if (!request_read(argc, argv, &r, &s))
        return 2;
    fsdp_status st = suite_open(&s);
    if (st == FSDP_ESKIP) {
        printf("SKIP equivalence: %s\n", fsdp_error_get()->what);
        return 77;
    }
    if (st == FSDP_OK && r.mode == 't')
        tiny_suite(&s);
    else if (st == FSDP_OK && r.mode == 'x')
        xl_suite(&s);
    else if (st == FSDP_OK && r.mode == 'r')
        random_suite(&s, r.n_random, r.seed);
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
