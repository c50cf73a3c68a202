/* generate.c -- see generate.h. */
#include "trainer/tools/generate.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "common/base/pmath.h"
#include "common/device/device.h"

struct generator {
    const model *m;
    const ops *o;
    stream *s;
    model_views views; /* params are owned; a tied one points to the storage it shares */
    float *x[2];       /* [T,C] each: layers read one and write the other */
    void *scratch;     /* enough for every layer */
    size_t window;     /* tokens that the buffers hold */
    float *logits;     /* [V] */
    int32_t *tokens;   /* [T] */
};

/* ---- parameters ----------------------------------------------------------------------------- */

static fsdp_status load_param(generator *g, const import *weights, int p)
{
    const param_spec *spec = &g->m->params[p];
    void **view = &g->views.params[p];
    if (spec->tied_to != NOT_TIED) {
        *view = g->views.params[spec->tied_to];
        return FSDP_OK;
    }
    float *at;
    TRY(device_alloc_f32(g->s, MEM_PARAMS_FULL, spec->elems, "generate: parameter", &at));
    *view = at;
    float *host = malloc(spec->elems * sizeof *host);
    if (host == NULL)
        return fsdp_error(FSDP_ENOMEM, "", "generate: no host memory for %s", spec->name);
    fsdp_status status = import_read(weights, p, 0, spec->elems, host);
    IF_OK(status, device_upload(g->s, at, host, spec->elems * sizeof *host));
    free(host);
    return status;
}

static size_t scratch_bytes(const model *m, size_t seq_len)
{
    size_t most = 0;
    for (int i = 0; i < m->n_layers; i++) {
        const layer *l = &m->layers[i];
        /* the head computes only the last position */
        const size_t rows = i + 1 < m->n_layers ? seq_len : 1;
        const layer_bytes need = l->bytes(l, rows, DTYPE_F32); /* nothing is kept */
        most = need.saved > most ? need.saved : most;
        most = need.scratch > most ? need.scratch : most;
    }
    return most;
}

static fsdp_status alloc_buffers(generator *g)
{
    const model_config *c = &g->m->config;
    const size_t T = g->window, x_elems = T * c->d_model;
    const mem_category cat = MEM_ACTIVATIONS;
    TRY(device_alloc_f32(g->s, cat, x_elems, "generate: x", &g->x[0]));
    TRY(device_alloc_f32(g->s, cat, x_elems, "generate: x", &g->x[1]));
    TRY(device_alloc(g->s, cat, scratch_bytes(g->m, T), "generate: scratch", &g->scratch));
    TRY(device_alloc_f32(g->s, cat, c->vocab_size, "generate: logits", &g->logits));
    void *tokens;
    TRY(device_alloc(g->s, cat, T * sizeof *g->tokens, "generate: tokens", &tokens));
    g->tokens = tokens;
    return FSDP_OK;
}

fsdp_status generator_check(const model *m)
{
    if (!m->family->is_images)
        return FSDP_OK;
    return fsdp_error(FSDP_EINVAL, "pass the weights of a language model",
                      "generate: %s reads images, expected a model of texts", m->family->title);
}

fsdp_status generator_create(const model *m, device *dev, const ops *o, const import *weights,
                             size_t most_tokens, generator **out)
{
    *out = NULL;
    TRY(generator_check(m));
    generator *g = calloc(1, sizeof *g);
    if (g == NULL)
        return fsdp_error(FSDP_ENOMEM, "", "generate: no host memory");
    *g = (generator){.m = m,
                     .o = o,
                     .s = device_compute_stream(dev),
                     .window = min_size(most_tokens, m->config.max_seq_len)};
    fsdp_status status = model_views_init(m, &g->views);
    for (int p = 0; p < m->n_params && status == FSDP_OK; p++)
        status = load_param(g, weights, p);
    IF_OK(status, alloc_buffers(g));
    if (status != FSDP_OK) {
        generator_free(g);
        return status;
    }
    *out = g;
    return FSDP_OK;
}

void generator_free(generator *g)
{
    if (g == NULL)
        return;
    for (int p = 0; g->views.params != NULL && p < g->m->n_params; p++)
        if (g->m->params[p].tied_to == NOT_TIED)
            device_free(g->s, g->views.params[p]);
    void *buffers[] = {g->x[0], g->x[1], g->scratch, g->logits, g->tokens};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++)
        device_free(g->s, buffers[i]);
    model_views_free(&g->views);
    free(g);
}

/* ---- one token ------------------------------------------------------------------------------ */

fsdp_status generator_logits(generator *g, const int32_t *tokens, size_t n_tokens, float *logits)
{
    const model_config *c = &g->m->config;
    const size_t T = min_size(n_tokens, c->max_seq_len);
    FSDP_ASSERT(n_tokens > 0 && T <= g->window);
    TRY(device_upload(g->s, g->tokens, tokens + (n_tokens - T), T * sizeof *tokens));
    for (int i = 0; i < g->m->n_layers; i++) {
        const layer *l = &g->m->layers[i];
        const bool last = i + 1 == g->m->n_layers;
        const float *in = g->x[i % 2] + (last ? (T - 1) * c->d_model : 0);
        TRY(l->forward(l, g->o, g->s,
                       &(layer_io){.batch = 1,
                                   .seq_len = last ? 1 : T,
                                   .in = i > 0 ? (const void *)in : g->tokens,
                                   .out = last ? NULL : g->x[(i + 1) % 2],
                                   .scratch = g->scratch,
                                   .logits = last ? g->logits : NULL,
                                   .params = g->views.params + l->first_param}));
    }
    TRY(device_download(g->s, logits, g->logits, c->vocab_size * sizeof *logits));
    return stream_sync(g->s);
}

static int descending(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return (x < y) - (x > y);
}

static fsdp_status find_largest(const pick_args *a, size_t *at)
{
    *at = 0;
    for (size_t i = 0; i < a->vocab; i++) {
        if (!isfinite(a->logits[i]))
            return fsdp_error(FSDP_EINVAL, "the weights are damaged, or their training diverged",
                              "generate: logit of token %zu: got %g, expected a finite number", i,
                              (double)a->logits[i]);
        if (a->logits[i] > a->logits[*at])
            *at = i;
    }
    return FSDP_OK;
}

/* work[i] = weight of token i, 0 if top_k excludes it. Returns the sum of the weights. */
static double weigh(const pick_args *a, float largest)
{
    const size_t k = a->top_k > 0 && a->top_k < a->vocab ? a->top_k : a->vocab;
    memcpy(a->work, a->logits, a->vocab * sizeof *a->work);
    qsort(a->work, a->vocab, sizeof *a->work, descending);
    const float edge = a->work[k - 1];
    size_t room = k; /* places for logits equal to the edge */
    while (room > 0 && a->work[k - room] > edge)
        room--;
    double sum = 0.0;
    for (size_t i = 0; i < a->vocab; i++) {
        const float x = a->logits[i];
        const bool takes_part = x > edge || (x == edge && room > 0);
        room -= takes_part && x == edge;
        const double scaled = ((double)x - (double)largest) / a->temperature;
        a->work[i] = takes_part ? pm_expf((float)scaled) : 0.0f;
        sum += (double)a->work[i];
    }
    return sum;
}

fsdp_status pick_token(const pick_args *a, int32_t *token)
{
    size_t at;
    TRY(find_largest(a, &at));
    *token = (int32_t)at;
    if (a->temperature == 0.0)
        return FSDP_OK;
    const double passes = a->u * weigh(a, a->logits[at]);
    double sum = 0.0;
    for (size_t i = 0; i < a->vocab; i++) {
        if (a->work[i] == 0.0f)
            continue;
        sum += (double)a->work[i];
        *token = (int32_t)i;
        if (sum > passes)
            break;
    }
    return FSDP_OK;
}
