/* fuzz_options.c -- random command lines through the trainer's options, for random numbers of
 * ranks.
 *
 *   fuzz_options [TRIES [SEED [FIRST_TRY]]]        5000 tries
 *
 * Names: known ones, near misses of these, and noise. Values: in range, at the limits, beyond, of
 * another kind, empty, long, UTF-8, control characters. A command line is refused with a message
 * and a hint, or its configuration is consistent: the batch adds up, the model can be made, and no
 * size of its activations has wrapped around. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "common/device/dry.h"
#include "common/model/family.h"
#include "common/model/runner.h"
#include "trainer/trainer_config.h"
#include "tests/cli/fuzz_lib.h"

enum {
    MAX_WORDS = 24,
    NAME_BYTES = 256,
    VALUE_BYTES = 6000,
    WORD_BYTES = NAME_BYTES + VALUE_BYTES + 8
};

/* One command line; words point into text. */
typedef struct line {
    char *words[MAX_WORDS + 2];
    char text[MAX_WORDS][WORD_BYTES];
    int n;
} line;

static int count_rows(void)
{
    int n = 0;
    while (TRAINER_OPTIONS[n].kind != OPT_END)
        n++;
    return n;
}

static void any_name(fuzz *f, const option_spec *spec, char *out)
{
    snprintf(out, NAME_BYTES, "%s", spec->name);
    if (fuzz_chance(f, 85))
        return;
    size_t n = strlen(out), at = fuzz_below(f, n);
    switch (fuzz_below(f, 5)) {
    case 0: /* shortened */
        out[at + 1] = '\0';
        break;
    case 1: /* one letter missing */
        memmove(out + at, out + at + 1, n - at);
        break;
    case 2:
        out[at] = (char)('!' + (int)fuzz_below(f, 94));
        break;
    case 3:
        for (char *c = out; *c; c++)
            *c = *c == '-' ? '_' : *c;
        break;
    default:
        for (size_t i = 0; i < n; i++)
            out[i] = (char)(1 + fuzz_below(f, 255));
    }
}

/* One of the words of a list; | separates the words. */
static void any_of(fuzz *f, const char *list, char *out)
{
    size_t n = 1;
    for (const char *c = list; *c; c++)
        n += *c == '|';
    for (size_t skip = fuzz_below(f, n); skip > 0; skip--)
        list = strchr(list, '|') + 1;
    snprintf(out, VALUE_BYTES, "%.*s", (int)strcspn(list, "|"), list);
}

static void good_number(fuzz *f, const option_spec *spec, char *out)
{
    double most = spec->max > spec->min ? spec->max : 1e6;
    double u = (double)(fuzz_next(f) >> 11) * 0x1p-53;
    double x = fuzz_chance(f, 60) ? spec->min + (double)fuzz_below(f, 17)
                                  : spec->min + (most - spec->min) * u;
    if (spec->kind == OPT_INT)
        snprintf(out, VALUE_BYTES, "%.0f", fuzz_chance(f, 10) ? most : x);
    else
        snprintf(out, VALUE_BYTES, "%.*g", (int)fuzz_below(f, 18), x);
}

/* A number in range, a choice, a word that other options know, something odd, or something long. */
static void any_value(fuzz *f, const option_spec *spec, char *out)
{
    static const char WORDS[] = "block|sub-block|size:1000|size:9999999999999999999999|size:|model|"
                                "tiny|small|124m|1558m|xl-2l|auto",
                      ODD[] =
                          "|0|1|-1|nan|NaN|inf|-inf|1e308|1e999|-0|0x10|1e3| 5|5 |1.5|+7|--|=|-|"
                          "1,5|\xc3\xa4\xe2\x82\xac|\xff\xfe|a\tb\nc|%s%n%d|/dev/null|1e-999|"
                          "9223372036854775807|-9223372036854775808|9223372036854775808|"
                          "18446744073709551616|4294967296|2147483648|65537";
    if (fuzz_chance(f, 70) && (spec->kind == OPT_INT || spec->kind == OPT_DOUBLE))
        good_number(f, spec, out);
    else if (fuzz_chance(f, 60))
        any_of(f, spec->kind == OPT_ENUM ? spec->choices : WORDS, out);
    else if (fuzz_chance(f, 90))
        any_of(f, ODD, out);
    else {
        size_t n = fuzz_below(f, VALUE_BYTES);
        memset(out, fuzz_chance(f, 50) ? '9' : 0xe4, n);
        out[n] = '\0';
    }
}

static char *new_word(line *l)
{
    char *word = l->text[l->n++];
    l->words[l->n] = word;
    return word;
}

static void add_option(fuzz *f, line *l, const option_spec *spec)
{
    char name[NAME_BYTES], value[VALUE_BYTES];
    any_name(f, spec, name);
    any_value(f, spec, value);
    bool alone = fuzz_chance(f, spec->kind == OPT_BOOL ? 95 : 2);
    bool together = fuzz_chance(f, 50);
    snprintf(new_word(l), WORD_BYTES, "%s%s%s%s", fuzz_chance(f, 98) ? "--" : "-", name,
             !alone && together ? "=" : "", !alone && together ? value : "");
    if (!alone && !together)
        snprintf(new_word(l), WORD_BYTES, "%s", value);
}

static void end_line(fuzz *f, line *l)
{
    size_t used = 0;
    l->words[0] = (char *)"fsdp_train";
    l->words[l->n + 1] = NULL;
    for (int i = 1; i <= l->n && used < sizeof f->input - 1; i++)
        used += (size_t)snprintf(f->input + used, sizeof f->input - used, " '%.60s'", l->words[i]);
}

static void make_line(fuzz *f, line *l, int n_rows)
{
    l->n = 0;
    for (size_t options = fuzz_below(f, 9); options > 0; options--)
        add_option(f, l, &TRAINER_OPTIONS[fuzz_below(f, (size_t)n_rows)]);
    end_line(f, l);
}

/* A lower bound of the bytes that training holds, as a double, which does not wrap around. It
 * leaves out the padding of a layer's arrays, of which there are fewer than eight. */
static double least_activation_bytes(const model *m, const run_context *run)
{
    double bytes = 0;
    for (int i = 0; i < m->n_layers; i++) {
        const layer *l = &m->layers[i];
        double padded = (double)l->bytes(l, run->seq_len, run->param_dtype).saved;
        bytes += fmax(0, padded - 8 * LAYER_ALIGN_BYTES);
    }
    return bytes * (double)run->batch;
}

/* The bytes that a runner with these options allocates. */
static size_t runner_bytes(const run_context *run)
{
    int *one_unit = calloc((size_t)run->m->n_layers, sizeof *one_unit);
    model_views views = {0};
    runner *r = NULL;
    runner_config c = {.run = *run, .layer_unit = one_unit, .n_units = 1, .views = &views};
    device_config dc = {.backend = device_dry(DRY_CPU), .n_threads = 1};
    if (device_open(&dc, &c.run.dev) != FSDP_OK || runner_create(&c, &r) != FSDP_OK)
        abort();
    size_t bytes = ledger_read(device_ledger(c.run.dev)).live_bytes[MEM_ACTIVATIONS];
    runner_free(r);
    device_close(c.run.dev);
    free(one_unit);
    return bytes;
}

static void check_model(fuzz *f, const trainer_options *o, const trainer_config *cfg,
                        const model_config *mc)
{
    model m = {0};
    fsdp_status status = model_create(mc, &m);
    if (status != FSDP_OK) {
        fuzz_expect_error(f, status);
        return;
    }
    m.chunk_rows = (size_t)o->chunk_loss;
    const run_context run = {.m = &m,
                             .ops = ops_cpu_fast(),
                             .mode = (grad_acc_mode)o->reduction,
                             .batch = (size_t)cfg->train.batch_size,
                             .seq_len = (size_t)cfg->train.seq_len,
                             .param_dtype = (dtype)o->param_dtype};
    FUZZ_EXPECT(f, m.n_param_elems > 0);
    FUZZ_EXPECT(f, m.config.n_head == 0 || m.config.d_model % m.config.n_head == 0); /* 0: images */
    size_t bytes = runner_bytes(&run);
    FUZZ_EXPECT(f, (double)bytes > 0.999 * least_activation_bytes(&m, &run));
    model_free(&m);
}

static void check_config(fuzz *f, const trainer_options *o)
{
    static const int RANKS[] = {1, 1, 2, 3, 4, 7, 8, 64, 1000, 65536};
    int w = RANKS[fuzz_below(f, sizeof RANKS / sizeof *RANKS)];
    char text[1 << 16];
    trainer_config cfg;
    model_config mc;
    options_canonical(TRAINER_OPTIONS, o, text, sizeof text);
    FUZZ_EXPECT(f, strlen(text) > 100);
    fsdp_status status = trainer_config_resolve(o, w, &cfg, &mc);
    w = trainer_config_data_ranks(&cfg);
    if (status != FSDP_OK) {
        fuzz_expect_error(f, status);
        return;
    }
    int64_t b = cfg.train.batch_size;
    FUZZ_EXPECT(f, b >= 1 && cfg.train.grad_accum >= 1 && cfg.train.seq_len >= 1);
    FUZZ_EXPECT(f, (double)cfg.train.global_batch ==
                       (double)w * (double)b * (double)cfg.train.grad_accum);
    FUZZ_EXPECT(f, o->reduction != GRAD_ACC_CANONICAL || (b & (b - 1)) == 0);
    FUZZ_EXPECT(f, cfg.wrap_min_elems > 0);
    for (int64_t step = 0; step < 3; step++)
        FUZZ_EXPECT(f, isfinite(train_lr(&cfg.train, step * (cfg.train.steps / 2))));
    check_model(f, o, &cfg, &mc);
}

/* The largest sizes that are accepted, most of them at once, so that products are near overflow. */
static void make_large(fuzz *f, line *l)
{
    static const char *const NAMES[] = {"n-layer", "d-model", "d-ff", "vocab-size"};
    const bool is_long = fuzz_chance(f, 50); /* as many tokens, in fewer sequences */
    l->n = 0;
    snprintf(new_word(l), WORD_BYTES, "--size=1558m");
    snprintf(new_word(l), WORD_BYTES, "--n-positions=1048576");
    snprintf(new_word(l), WORD_BYTES, "--seq-len=%d", is_long ? 1048576 : 1024);
    snprintf(new_word(l), WORD_BYTES, "--batch-size=%d", is_long ? 64 : 65536);
    snprintf(new_word(l), WORD_BYTES, "--n-head=%d", fuzz_chance(f, 50) ? 1000 : 1);
    snprintf(new_word(l), WORD_BYTES, "--reduction=%s", fuzz_chance(f, 50) ? "fast" : "canonical");
    for (const option_spec *row = TRAINER_OPTIONS; row->kind != OPT_END; row++)
        for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++)
            if (strcmp(row->name, NAMES[i]) == 0 && fuzz_chance(f, 85))
                snprintf(new_word(l), WORD_BYTES, "--%s=%.0f", row->name, row->max);
    end_line(f, l);
}

static bool try_line(fuzz *f, line *l)
{
    trainer_options o;
    fsdp_status status = trainer_options_parse(l->n + 1, l->words, &o);
    if (status == FSDP_OK)
        check_config(f, &o);
    else if (status != FSDP_HELP)
        fuzz_expect_error(f, status);
    return status == FSDP_OK;
}

int main(int argc, char **argv)
{
    static fuzz f;
    static line l;
    fuzz_open(&f, argc, argv, 5000);
    fuzz_group(&f, "command lines");
    int n_rows = count_rows();
    long accepted = 0, end = f.first_try + f.tries;
    for (long i = f.first_try; i < end && !f.failed; i++) {
        fuzz_try(&f, i);
        make_line(&f, &l, n_rows);
        accepted += try_line(&f, &l);
    }
    FUZZ_EXPECT(&f,
                f.tries < 1000 || (accepted > f.tries / 20 && accepted < f.tries)); /* both ways */
    fuzz_expect_no_leak(&f);
    fuzz_group(&f, "large models");
    for (long i = f.first_try; i < end && i < f.first_try + 1000 && !f.failed; i++) {
        fuzz_try(&f, i);
        make_large(&f, &l);
        FUZZ_EXPECT(&f, try_line(&f, &l));
    }
    fuzz_expect_no_leak(&f);
    return fuzz_close(&f);
}
