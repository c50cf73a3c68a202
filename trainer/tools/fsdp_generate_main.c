/* fsdp_generate_main.c -- fsdp_generate DIR --prompt TEXT --length N: generate text from an export.
 *
 *   options -> config.json -> model, device, weights -> prompt to tokens -> one token after the
 *   other to stdout
 *
 * If the model has at most 256 symbols and no tokenizer, prompt and output are bytes. Otherwise
 * they are token numbers: tokenizers are not part of this project. */
#include <ctype.h>
#include <errno.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/environment.h"
#include "common/base/options.h"
#include "common/base/philox.h"
#include "common/base/openmp_settings.h"
#include "common/data/data.h"
#include "common/device/device.h"
#include "common/ops/backends.h"
#include "trainer/tools/generate.h"
#include "trainer/trainer.h"
#include "trainer/uncaught.h"

enum { BYTE_VOCAB = 256, SAMPLE_STREAM = 0 };

typedef struct generate_options {
    const char *prompt;
    int64_t length, top_k, seed, threads;
    double temperature;
    int ops, device; /* device: see backends.h */
} generate_options;

#define FIELD(f) offsetof(generate_options, f)
/* clang-format off */
static const option_spec OPTIONS[] = {
    {.name = "prompt", .kind = OPT_STRING, .offset = FIELD(prompt), .arg = "TEXT",
     .group = "Text", .help = "what the text begins with; token numbers when the vocabulary is over 256, or has a tokenizer"},
    {.name = "length", .kind = OPT_INT, .offset = FIELD(length), .def = "200", .min = 1, .max = 1e6, .arg = "N", .help = "tokens to add"},
    {.name = "temperature", .kind = OPT_DOUBLE, .offset = FIELD(temperature), .def = "0", .min = 0, .max = 1000, .arg = "X",
     .group = "Sampling", .help = "0: always the likeliest token; 1: as the model says; more: wilder"},
    {.name = "top-k", .kind = OPT_INT, .offset = FIELD(top_k), .needs = {{.rule = "temperature"}}, .def = "0", .min = 0, .max = 1e9, .arg = "K", .help = "choose among the K likeliest; 0: all"},
    {.name = "seed", .kind = OPT_INT, .offset = FIELD(seed), .needs = {{.rule = "temperature"}}, .def = "0", .min = 0, .max = 9e15, .arg = "S", .help = "the same seed gives the same text"},
    {.name = "device", .kind = OPT_ENUM, .offset = FIELD(device), .def = "cpu", .choices = BACKEND_CHOICES, .group = "Machine", .help = BACKEND_HELP},
    {.name = "ops", .kind = OPT_ENUM, .offset = FIELD(ops), .def = "fast", .choices = "fast|portable", .help = "portable: the same text on every machine"},
    {.name = "threads", .kind = OPT_INT, .offset = FIELD(threads), .def = "0", .min = 0, .max = 1024, .arg = "N", .help = "0: all cores"},
    {0}};
/* clang-format on */

typedef struct text {
    int32_t *tokens; /* [n_tokens], with room for the whole text */
    size_t n_tokens;
    bool is_bytes; /* tokens are bytes */
    float *logits; /* [2 * vocab] logits, then work space for pick_token */
} text;

/* ---- prompt --------------------------------------------------------------------------------- */

static fsdp_status bytes_to_tokens(const char *prompt, size_t vocab, text *t)
{
    for (const unsigned char *p = (const unsigned char *)prompt; *p != '\0'; p++) {
        if (*p >= vocab)
            return fsdp_error(FSDP_EINVAL, "use only bytes that the model knows",
                              "--prompt: byte %zu: got %u, expected less than %zu", t->n_tokens, *p,
                              vocab);
        t->tokens[t->n_tokens++] = *p;
    }
    return FSDP_OK;
}

/* Parse "464, 3290" or "464 3290". */
static fsdp_status numbers_to_tokens(const char *prompt, size_t vocab, text *t)
{
    const char *p = prompt;
    while (p += strspn(p, " \t\n,"), *p != '\0') {
        char *end;
        errno = 0;
        const long value = strtol(p, &end, 10);
        const bool ends = *end == '\0' || strchr(" \t\n,", *end) != NULL;
        if (end == p || !ends || errno != 0 || value < 0 || (size_t)value >= vocab)
            return fsdp_error(
                FSDP_EINVAL,
                "this model's vocabulary is no bytes, and tokenizer.json is not read: pass "
                "token numbers, such as --prompt '464 3290'. Python's tokenizers "
                "library makes them from a text, and a text from them",
                "--prompt: at '%.20s': expected token numbers from 0 to %zu", p, vocab - 1);
        t->tokens[t->n_tokens++] = (int32_t)value;
        p = end;
    }
    if (t->n_tokens == 0)
        return fsdp_error(FSDP_EINVAL, "pass --prompt with one token number or more",
                          "--prompt: got no token number");
    return FSDP_OK;
}

/* Allocate t, and fill in the tokens of the prompt. The caller frees t's arrays in any case. */
static fsdp_status text_init(const generate_options *opt, size_t vocab, text *t)
{
    t->tokens = calloc(strlen(opt->prompt) + (size_t)opt->length, sizeof *t->tokens);
    t->logits = calloc(2 * vocab, sizeof *t->logits);
    if (t->tokens == NULL || t->logits == NULL)
        return fsdp_error(FSDP_ENOMEM, "use a smaller --length", "generate: no host memory");
    return t->is_bytes ? bytes_to_tokens(opt->prompt, vocab, t)
                       : numbers_to_tokens(opt->prompt, vocab, t);
}

/* ---- output --------------------------------------------------------------------------------- */

static void put_token(const text *t, size_t i)
{
    if (t->is_bytes)
        putchar(t->tokens[i]);
    else
        printf("%s%d", i > 0 ? " " : "", (int)t->tokens[i]);
}

static fsdp_status write_text(generator *g, const generate_options *opt, size_t vocab, text *t)
{
    for (size_t i = 0; i < t->n_tokens; i++)
        put_token(t, i);
    for (int64_t n = 0; n < opt->length; n++) {
        TRY(fsdp_flush_stdout(""));
        TRY(generator_logits(g, t->tokens, t->n_tokens, t->logits));
        const uint32_t word = philox_u32((uint64_t)opt->seed, SAMPLE_STREAM, (uint64_t)n);
        const pick_args pick = {.logits = t->logits,
                                .work = t->logits + vocab,
                                .vocab = vocab,
                                .top_k = (size_t)opt->top_k,
                                .temperature = opt->temperature,
                                .u = ((double)word + 0.5) * 0x1p-32};
        TRY(pick_token(&pick, &t->tokens[t->n_tokens]));
        put_token(t, t->n_tokens++);
    }
    putchar('\n');
    return fsdp_flush_stdout("");
}

/* ---- model ---------------------------------------------------------------------------------- */

static fsdp_status generate(const char *dir, const generate_options *opt)
{
    model_config config;
    model m = {0};
    device *dev = NULL;
    const ops *o;
    text t = {0};
    generator *g = NULL;
import weights = {0 };
    const char *note; /* not printed: it is about dropout, which only training uses */
    fsdp_status status;
    GOTO_ON_FAIL(status, backend_check(opt->device), done);
    GOTO_ON_FAIL(status, import_model_config(dir, &config, &note), done);
    GOTO_ON_FAIL(status, model_create(&config, &m), done);
    GOTO_ON_FAIL(status, generator_check(&m), done);
    const device_config dc = {.backend = backend_of(opt->device)->device,
                              .n_threads =
                                  opt->threads > 0 ? (int)opt->threads : omp_get_num_procs()};
    GOTO_ON_FAIL(status, device_open(&dc, &dev), done);
    GOTO_ON_FAIL(status, backend_ops(opt->device, opt->ops != OPS_FAST, &o), done);
    t.is_bytes = config.vocab_size <= BYTE_VOCAB && !tokenizer_in(dir);
    GOTO_ON_FAIL(status, text_init(opt, config.vocab_size, &t), done);
    GOTO_ON_FAIL(status, import_open(dir, &m, &weights), done);
    GOTO_ON_FAIL(
        status, generator_create(&m, dev, o, &weights, t.n_tokens + (size_t)opt->length, &g), done);
    status = write_text(g, opt, config.vocab_size, &t);
done:
    generator_free(g);
    import_close(&weights);
    free(t.logits);
    free(t.tokens);
    device_close(dev);
    model_free(&m);
    return status;
}

/* The directory is the first argument; options follow. */
static fsdp_status run(int argc, char **argv)
{
    static const char DOC[] =
        "Writes a text that begins with TEXT, from the weights that fsdp_train --export DIR wrote, "
        "or from a GPT-2 or Llama model of Hugging Face.";
    generate_options opt = {0};
    const char *dir = argc > 1 && argv[1][0] != '-' ? argv[1] : NULL;
    const int skip = dir != NULL;
    fsdp_status parsed =
        options_parse(OPTIONS, "build/fsdp_generate", argc - skip, argv + skip, &opt);
    if (parsed == FSDP_HELP)
        return options_print_help(OPTIONS, "fsdp_generate DIR --prompt TEXT [OPTION...]", DOC);
    TRY(parsed);
    if (dir == NULL || dir[0] == '\0' || opt.prompt == NULL)
        return fsdp_error(FSDP_EINVAL, "run build/fsdp_generate DIR --prompt TEXT",
                          "got no %s, expected the directory, then --prompt with some text",
                          opt.prompt == NULL ? "--prompt" : "directory");
    TRY(environment_check(true));
    TRY(stack_check());
    if (opt.ops != OPS_FAST)
        TRY(check_float_mode("ops", "portable"));
    return generate(dir, &opt);
}

int main(int argc, char **argv)
{
    openmp_settings(argv);
    uncaught_report();
    if (run(argc, argv) == FSDP_OK)
        return 0;
    fflush(stdout);
    fsdp_error_print(stderr, 0, 0);
    return 1;
}
