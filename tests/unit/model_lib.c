/* model_lib.c -- see model_lib.h. */
#include "tests/unit/model_lib.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/philox.h"

enum { CANARY_ELEMS = 8, SEED = 11 };

static const float CANARY = 12345.678f;

/* Wrong programs and failing calls end the test program at once. */
static void must(fsdp_status status)
{
    if (status != FSDP_OK)
        fsdp_error_print(stderr, 0, 0);
    FSDP_ASSERT_EQ(status, FSDP_OK);
}

static float *make(size_t elems)
{
    float *x = malloc((elems + CANARY_ELEMS) * sizeof *x);
    memset(x, 0xff, elems * sizeof *x); /* NaN: what is read must have been written */
    for (size_t i = 0; i < CANARY_ELEMS; i++)
        x[elems + i] = CANARY;
    return x;
}

static void check(const float *x, size_t elems)
{
    for (size_t i = 0; i < CANARY_ELEMS; i++)
        FSDP_ASSERT(x[elems + i] == CANARY);
}

static size_t most_scratch(const rig *r, bool training)
{
    size_t most = 0;
    for (int i = 0; i < r->m.n_layers; i++) {
        const layer *l = &r->m.layers[i];
        size_t elems = l->scratch_elems(l, r->batch, r->seq_len, training);
        most = elems > most ? elems : most;
    }
    return most;
}

static void make_params(rig *r)
{
    must(model_views_init(&r->m, &r->views));
    for (int p = 0; p < r->m.n_params; p++) {
        const param_spec *spec = &r->m.params[p];
        if (spec->tied_to != NOT_TIED) {
            r->views.params[p] = r->views.params[spec->tied_to];
            r->views.grads[p] = r->views.grads[spec->tied_to];
            continue;
        }
        float *param = make(spec->elems);
        r->views.params[p] = param;
        r->views.grads[p] = make(spec->elems);
        philox_normal_fill(SEED, (uint64_t)p, 0, spec->elems, 0.25f, param);
        for (size_t i = 0; i < spec->elems && spec->init == INIT_ONE; i++)
            param[i] += 1.0f;
    }
}

static void make_tokens(rig *r)
{
    const size_t n = r->batch * r->seq_len, V = r->m.config.vocab_size;
    r->tokens = malloc(n * sizeof *r->tokens);
    r->targets = malloc(n * sizeof *r->targets);
    for (size_t i = 0; i < n; i++) {
        r->tokens[i] = (int32_t)(philox_u32(SEED, 1000, i) % V);
        r->targets[i] = (int32_t)(philox_u32(SEED, 1001, i) % V);
    }
}

void rig_open(rig *r, const model_config *config, const ops *o, size_t batch, size_t seq_len)
{
    *r = (rig){.o = o, .batch = batch, .seq_len = seq_len};
    must(gpt2_create(config, &r->m));
    must(device_open(&(device_config){.backend = &device_cpu, .n_threads = 1}, &r->dev));
    r->s = device_compute_stream(r->dev);
    make_params(r);
    make_tokens(r);
    const size_t n = (size_t)r->m.n_layers, x_elems = batch * seq_len * r->m.config.d_model;
    r->out = calloc(n, sizeof *r->out);
    r->saved = calloc(n, sizeof *r->saved);
    for (size_t i = 0; i < n; i++) {
        const layer *l = &r->m.layers[i];
        r->out[i] = make(x_elems);
        r->saved[i] = make(l->saved_elems(l, batch, seq_len));
    }
    r->scratch[0] = make(most_scratch(r, false));
    r->scratch[1] = make(most_scratch(r, true));
    r->d_a = make(x_elems);
    r->d_b = make(x_elems);
    r->loss = make(1);
    r->logits = make(batch * seq_len * r->m.config.vocab_size);
    rig_zero_grads(r);
}

static layer_io call_of(rig *r, int i)
{
    const bool last = i + 1 == r->m.n_layers;
    return (layer_io){.batch = r->batch,
                      .seq_len = r->seq_len,
                      .in = i > 0 ? r->out[i - 1] : NULL,
                      .out = last ? NULL : r->out[i],
                      .tokens = r->tokens,
                      .targets = r->targets,
                      .saved = r->saved[i],
                      .loss = r->loss,
                      .params = r->views.params + r->m.layers[i].first_param,
                      .grads = r->views.grads + r->m.layers[i].first_param};
}

float rig_forward(rig *r, bool training, bool keep_saved)
{
    *r->loss = -1.0f;
    for (int i = 0; i < r->m.n_layers; i++) {
        layer_io io = call_of(r, i);
        io.training = training;
        io.scratch = r->scratch[training];
        io.saved = keep_saved ? io.saved : NULL;
        io.logits = training ? NULL : r->logits;
        must(r->m.layers[i].forward(&r->m.layers[i], r->o, r->s, &io));
    }
    rig_check_canaries(r);
    return *r->loss;
}

void rig_backward(rig *r)
{
    const float *d_out = NULL;
    for (int i = r->m.n_layers - 1; i >= 0; i--) {
        layer_io io = call_of(r, i);
        io.training = true;
        io.scratch = r->scratch[1];
        io.d_out = d_out;
        io.d_in = i == 0 ? NULL : d_out == r->d_a ? r->d_b : r->d_a;
        must(r->m.layers[i].backward(&r->m.layers[i], r->o, r->s, &io));
        d_out = io.d_in;
    }
    rig_check_canaries(r);
}

void rig_zero_grads(rig *r)
{
    for (int p = 0; p < r->m.n_params; p++)
        memset(r->views.grads[p], 0, r->m.params[p].elems * sizeof(float));
}

void rig_check_canaries(const rig *r)
{
    const size_t rows = r->batch * r->seq_len, x_elems = rows * r->m.config.d_model;
    for (int i = 0; i < r->m.n_layers; i++) {
        check(r->saved[i], r->m.layers[i].saved_elems(&r->m.layers[i], r->batch, r->seq_len));
        check(r->out[i], x_elems);
    }
    for (int p = 0; p < r->m.n_params; p++) {
        check(r->views.params[p], r->m.params[p].elems);
        if (r->views.grads[p] != NULL)
            check(r->views.grads[p], r->m.params[p].elems);
    }
    check(r->scratch[0], most_scratch(r, false));
    check(r->scratch[1], most_scratch(r, true));
    check(r->d_a, x_elems);
    check(r->d_b, x_elems);
    check(r->loss, 1);
    check(r->logits, rows * r->m.config.vocab_size);
}

void rig_close(rig *r)
{
    for (int p = 0; p < r->m.n_params; p++)
        if (r->m.params[p].tied_to == NOT_TIED) {
            free(r->views.params[p]);
            free(r->views.grads[p]);
        }
    for (int i = 0; i < r->m.n_layers; i++) {
        free(r->out[i]);
        free(r->saved[i]);
    }
    void *rest[] = {r->out, r->saved, r->scratch[0], r->scratch[1], r->d_a,
                    r->d_b, r->loss,  r->logits,     r->tokens,     r->targets};
    for (size_t i = 0; i < sizeof rest / sizeof *rest; i++)
        free(rest[i]);
    model_views_free(&r->views);
    model_free(&r->m);
    device_close(r->dev);
}
