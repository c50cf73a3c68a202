/* logits.c -- print the logits of the token that follows the given tokens, one per line, to compare
 * with other programs.
 *
 *   logits DIR TOKEN...        DIR: weights, as for fsdp_generate
 *
 * For a model of images, the arguments are numbers of drawn digits. Prints the logits of each digit
 * in turn. */
#include <stdlib.h>
#include "common/data/data.h"
#include "common/device/device.h"
#include "common/model/generate.h"
#include "common/model/family.h"
#include "common/model/runner.h"
#include "common/ops/backends.h"

enum { MOST_TOKENS = 1024, MOST_LAYERS = 16, MOST_DIGITS = 1 << 20 };

static void print(const float *logits, size_t n)
{
    for (size_t i = 0; i < n; i++)
        printf("%.9g\n", (double)logits[i]);
}

/* ---- texts ----------------------------------------------------------------------------------- */

static fsdp_status print_logits(const import *weights, device *dev, const int32_t *tokens,
                                size_t n_tokens)
{
    const size_t vocab = weights->m->config.vocab_size;
    generator *g;
    TRY(generator_create(weights->m, dev, ops_cpu_fast(), weights, SIZE_MAX, &g));
    float *logits = calloc(vocab, sizeof *logits);
    fsdp_status status = logits ? generator_logits(g, tokens, n_tokens, logits)
                                : fsdp_error(FSDP_ENOMEM, "", "logits: no memory");
    if (status == FSDP_OK)
        print(logits, vocab);
    free(logits);
    generator_free(g);
    return status;
}

/* ---- images ---------------------------------------------------------------------------------- */

/* The data of one forward over n images. The CPU's device memory is host memory. */
typedef struct images {
    model_views views;
    float *pixels, *logits, loss;
    int32_t *labels;
} images;

static void images_end(const model *m, images *x)
{
    for (int p = 0; x->views.params != NULL && p < m->n_params; p++)
        free(x->views.params[p]);
    model_views_free(&x->views);
    free(x->pixels);
    free(x->logits);
    free(x->labels);
}

static fsdp_status images_begin(const import *weights, const int32_t *numbers, size_t n, images *x)
{
    const model *m = weights->m;
    corpus digits;
    TRY(model_views_init(m, &x->views));
    x->pixels = calloc(n, IMAGE_PIXELS * sizeof *x->pixels);
    x->logits = calloc(n, IMAGE_CLASSES * sizeof *x->logits);
    x->labels = calloc(n, sizeof *x->labels);
    if (x->pixels == NULL || x->logits == NULL || x->labels == NULL)
        return fsdp_error(FSDP_ENOMEM, "", "logits: no memory");
    for (int p = 0; p < m->n_params; p++) {
        if ((x->views.params[p] = calloc(m->params[p].elems, sizeof(float))) == NULL)
            return fsdp_error(FSDP_ENOMEM, "", "logits: no memory");
        TRY(import_read(weights, p, 0, m->params[p].elems, x->views.params[p]));
    }
    TRY(corpus_digits(0, MOST_DIGITS, NO_SHUFFLE, &digits));
    for (size_t i = 0; i < n; i++)
        (void)sample_read(&digits, (uint64_t)numbers[i], 1, x->pixels + i * IMAGE_PIXELS,
                          x->labels + i);
    corpus_close(&digits);
    return FSDP_OK;
}

static fsdp_status print_image_logits(const import *weights, device *dev, const int32_t *numbers,
                                      size_t n)
{
    static const int UNITS[MOST_LAYERS] = {0};
    const model *m = weights->m;
    images x = {0};
    runner *r = NULL;
    fsdp_status status;
    GOTO_ON_FAIL(status, images_begin(weights, numbers, n, &x), done);
    FSDP_ASSERT(m->n_layers <= MOST_LAYERS);
    const runner_config config = {.run = {.m = m,
                                          .ops = ops_cpu_fast(),
                                          .dev = dev,
                                          .batch = n,
                                          .seq_len = 1,
                                          .grad_accum = 1,
                                          .forward_only = true},
                                  .layer_unit = UNITS,
                                  .n_units = 1,
                                  .views = &x.views};
    GOTO_ON_FAIL(status, runner_create(&config, &r), done);
    GOTO_ON_FAIL(status,
                 runner_forward(r, &(micro_step){.inputs = x.pixels,
                                                 .targets = x.labels,
                                                 .n_micro = 1,
                                                 .logits = x.logits,
                                                 .loss = &x.loss}),
                 done);
    print(x.logits, n * IMAGE_CLASSES);
done:
    runner_free(r);
    images_end(m, &x);
    return status;
}

/* ---------------------------------------------------------------------------------------------- */

static fsdp_status run(const char *dir, const int32_t *tokens, size_t n_tokens)
{
    const device_config dc = {.backend = backend_of(0)->device, .n_threads = 1};
    model_config config;
    model m = {0};
import weights = {0 };
    device *dev = NULL;
    const char *note;
    fsdp_status status;
    GOTO_ON_FAIL(status, import_model_config(dir, &config, &note), done);
    GOTO_ON_FAIL(status, model_create(&config, &m), done);
    GOTO_ON_FAIL(status, import_open(dir, &m, &weights), done);
    GOTO_ON_FAIL(status, device_open(&dc, &dev), done);
    status = m.family->is_images ? print_image_logits(&weights, dev, tokens, n_tokens)
                                 : print_logits(&weights, dev, tokens, n_tokens);
done:
    import_close(&weights);
    device_close(dev);
    model_free(&m);
    return status;
}

int main(int argc, char **argv)
{
    int32_t tokens[MOST_TOKENS];
    size_t n = 0;
    for (int i = 2; i < argc && n < MOST_TOKENS; i++)
        tokens[n++] = (int32_t)strtol(argv[i], NULL, 10);
    fsdp_status status = n > 0 ? run(argv[1], tokens, n)
                               : fsdp_error(FSDP_EINVAL, "logits DIR TOKEN...", "got no tokens");
    if (status == FSDP_OK)
        return 0;
    fsdp_error_print(stderr, 0, 0);
    return 1;
}
