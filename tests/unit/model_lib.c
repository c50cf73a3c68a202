/* model_lib.c -- see model_lib.h. */
#include "tests/unit/model_lib.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/philox.h"
#include "common/device/device.h"
#include "tests/unit/unit_lib.h"

enum { SEED = 11 };

const model_config RIG_SMALL = {.family = "gpt2",
                                .n_blocks = 2,
                                .n_head = 2,
                                .d_model = 6,
                                .d_ff = 14,
                                .vocab_size = 11,
                                .max_seq_len = 7};

static const char CANARY[] = "nobody writes here";

/* Wrong programs and failing calls end the test program at once. */
static void must(fsdp_status status)
{
    if (status != FSDP_OK)
        fsdp_error_print(stderr, 0, 0);
    FSDP_ASSERT_EQ(status, FSDP_OK);
}

void *rig_array(size_t bytes)
{
    const size_t room = size_round_up(bytes + sizeof CANARY, LAYER_ALIGN_BYTES);
    char *x = aligned_alloc(LAYER_ALIGN_BYTES, room);
    memset(x, 0xff, bytes); /* NaN: what is read must have been written */
    memcpy(x + bytes, CANARY, sizeof CANARY);
    return x;
}

static void check(const void *x, size_t bytes)
{
    FSDP_ASSERT(memcmp((const char *)x + bytes, CANARY, sizeof CANARY) == 0);
}

static size_t most_scratch(const rig *r, bool training)
{
    size_t most = 0;
    for (int i = 0; i < r->m.n_layers; i++) {
        const layer *l = &r->m.layers[i];
        layer_bytes need = l->bytes(l, r->batch * r->seq_len, r->type);
        size_t bytes = training || need.scratch > need.saved ? need.scratch : need.saved;
        most = bytes > most ? bytes : most;
    }
    return most;
}

static size_t saved_bytes(const rig *r, int i)
{
    const layer *l = &r->m.layers[i];
    return l->bytes(l, r->batch * r->seq_len, r->type).saved;
}

static size_t x_bytes(const rig *r)
{
    return r->batch * r->seq_len * r->m.config.d_model * dtype_bytes(r->type);
}

static size_t logits_bytes(const rig *r)
{
    return r->batch * r->seq_len * r->m.config.vocab_size * dtype_bytes(r->type);
}

float rig_at(const rig *r, const void *array, size_t i)
{
    return r->type == DTYPE_F32 ? ((const float *)array)[i]
                                : f32_from_bf16(((const uint16_t *)array)[i]);
}

static void fill_param(const rig *r, const rig_config *c, int p)
{
    const param_spec *spec = &r->m.params[p];
    float *x = malloc(spec->elems * sizeof *x);
    philox_normal_fill(SEED, (uint64_t)p, 0, spec->elems, 0.25f, x);
    for (size_t i = 0; i < spec->elems; i++) {
        x[i] += spec->init == INIT_ONE ? 1.0f : 0.0f;
        x[i] = c->rounded ? bf16_round(x[i]) : x[i];
        if (r->type == DTYPE_F32)
            ((float *)r->views.params[p])[i] = x[i];
        else
            ((uint16_t *)r->views.params[p])[i] = bf16_from_f32(x[i]);
    }
    free(x);
}

static void make_params(rig *r, const rig_config *c)
{
    must(model_views_init(&r->m, &r->views));
    for (int p = 0; p < r->m.n_params; p++) {
        const param_spec *spec = &r->m.params[p];
        if (spec->tied_to != NOT_TIED) {
            r->views.params[p] = r->views.params[spec->tied_to];
            r->views.grads[p] = r->views.grads[spec->tied_to];
            continue;
        }
        r->views.params[p] = rig_array(spec->elems * dtype_bytes(r->type));
        r->views.grads[p] = rig_array(spec->elems * sizeof(float));
        fill_param(r, c, p);
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

void rig_open(rig *r, const rig_config *c)
{
    *r = (rig){.o = c->ops, .batch = c->batch, .seq_len = c->seq_len, .type = c->type};
    must(model_create(c->model, &r->m));
    r->m.chunk_rows = c->chunk_rows;
    must(device_open(&(device_config){.backend = &device_cpu, .n_threads = 1}, &r->dev));
    r->s = device_compute_stream(r->dev);
    make_params(r, c);
    make_tokens(r);
    const size_t n = (size_t)r->m.n_layers;
    r->out = calloc(n, sizeof *r->out);
    r->saved = calloc(n, sizeof *r->saved);
    r->d_out = calloc(n, sizeof *r->d_out);
    for (size_t i = 0; i < n; i++) {
        r->out[i] = rig_array(x_bytes(r));
        r->d_out[i] = rig_array(x_bytes(r));
        r->saved[i] = rig_array(saved_bytes(r, (int)i));
    }
    r->scratch[0] = rig_array(most_scratch(r, false));
    r->scratch[1] = rig_array(most_scratch(r, true));
    r->loss = rig_array(sizeof *r->loss);
    r->logits = rig_array(logits_bytes(r));
    rig_zero_grads(r);
}

layer_io rig_io(rig *r, int i)
{
    const bool last = i + 1 == r->m.n_layers;
    return (layer_io){.batch = r->batch,
                      .seq_len = r->seq_len,
                      .type = r->type,
                      .in = i > 0 ? (const void *)r->out[i - 1] : r->tokens,
                      .out = last ? NULL : r->out[i],
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
        layer_io io = rig_io(r, i);
        io.training = io.keeps = training;
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
    for (int i = r->m.n_layers - 1; i >= 0; i--) {
        layer_io io = rig_io(r, i);
        io.training = true;
        io.scratch = r->scratch[1];
        io.d_out = io.out ? r->d_out[i] : NULL;
        io.d_in = i == 0 ? NULL : r->d_out[i - 1];
        must(r->m.layers[i].backward(&r->m.layers[i], r->o, r->s, &io));
    }
    rig_check_canaries(r);
}

void rig_run(rig *r, const rig_config *c)
{
    rig_open(r, c);
    rig_forward(r, true, true);
    rig_backward(r);
}

void rig_zero_grads(rig *r)
{
    for (int p = 0; p < r->m.n_params; p++)
        memset(r->views.grads[p], 0, r->m.params[p].elems * sizeof(float));
}

void rig_expect_same_grads(const rig *got, const rig *want)
{
    for (int p = 0; p < got->m.n_params; p++)
        for (size_t i = 0; i < got->m.params[p].elems && !got->m.params[p].frozen; i++)
            if (memcmp(&got->views.grads[p][i], &want->views.grads[p][i], sizeof(float)) != 0)
                fail_msg("%s[%zu]: got %.9g, expected %.9g", got->m.params[p].name, i,
                         (double)got->views.grads[p][i], (double)want->views.grads[p][i]);
}

void rig_check_canaries(const rig *r)
{
    for (int i = 0; i < r->m.n_layers; i++) {
        check(r->saved[i], saved_bytes(r, i));
        check(r->out[i], x_bytes(r));
        check(r->d_out[i], x_bytes(r));
    }
    for (int p = 0; p < r->m.n_params; p++) {
        check(r->views.params[p], r->m.params[p].elems * dtype_bytes(r->type));
        if (r->views.grads[p] != NULL)
            check(r->views.grads[p], r->m.params[p].elems * sizeof(float));
    }
    check(r->scratch[0], most_scratch(r, false));
    check(r->scratch[1], most_scratch(r, true));
    check(r->loss, sizeof *r->loss);
    check(r->logits, logits_bytes(r));
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
        free(r->d_out[i]);
        free(r->saved[i]);
    }
    void *rest[] = {r->out,  r->saved,  r->d_out,  r->scratch[0], r->scratch[1],
                    r->loss, r->logits, r->tokens, r->targets};
    for (size_t i = 0; i < sizeof rest / sizeof *rest; i++)
        free(rest[i]);
    model_views_free(&r->views);
    model_free(&r->m);
    device_close(r->dev);
}
