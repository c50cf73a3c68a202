/* logits.c -- print the logits of the token that follows the given tokens, one per line, to compare
 * with other programs.
 *
 *   logits DIR TOKEN...        DIR: weights, as for fsdp_generate */
#include <stdlib.h>
#include "common/device/device.h"
#include "common/model/family.h"
#include "common/ops/backends.h"
#include "trainer/tools/generate.h"

enum { MOST_TOKENS = 1024 };

static fsdp_status print_logits(const import *weights, device *dev, const int32_t *tokens,
                                size_t n_tokens)
{
    const size_t vocab = weights->m->config.vocab_size;
    generator *g;
    TRY(generator_create(weights->m, dev, ops_cpu_fast(), weights, SIZE_MAX, &g));
    float *logits = calloc(vocab, sizeof *logits);
    fsdp_status status = logits ? generator_logits(g, tokens, n_tokens, logits)
                                : fsdp_error(FSDP_ENOMEM, "", "logits: no memory");
    for (size_t i = 0; i < vocab && status == FSDP_OK; i++)
        printf("%.9g\n", (double)logits[i]);
    free(logits);
    generator_free(g);
    return status;
}

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
    status = print_logits(&weights, dev, tokens, n_tokens);
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
