/* small_lib.c -- see small_lib.h. */
#include "tests/grade/small_lib.h"
#include "common/model/family.h"
#include "lab2_forward/forward.h"
#include "lab2_forward/fsdp_setup.h"
#include "tests/unit/target_lib.h"

static fsdp_status pre_forward(void *self, int u)
{
    return forward_pre_hook(&((whole *)self)->f, u);
}

static fsdp_status post_forward(void *self, int u)
{
    whole *w = self;
    TRY(forward_post_hook(&w->f, u));
    return w->in_step ? stream_sync(w->f.compute) : FSDP_OK;
}

fsdp_status whole_open(grade *g, const whole_config *config, whole *w)
{
    const comm_config cc = target_comm(8);
    const model_config *shape = config->model;
    w->config = config;
    TRY(grade_device_open(
        g, &(device_config){.n_threads = 1, .debug_fill = true, .async_compute = true}, &w->dev));
    TRY(comm_open(w->dev, &cc, &w->comm));
    w->notes.comm = w->comm;
    w->notes.compute = device_compute_stream(w->dev);
    TRY(model_create(shape, &w->m));
    TRY(corpus_synthetic(config->seed, 4096, shape->vocab_size, &w->data));
    const run_context run = {.m = &w->m,
                             .ops = g->ops,
                             .dev = w->dev,
                             .world = w->comm,
                             .mode = GRAD_ACC_CANONICAL,
                             .batch = config->batch,
                             .seq_len = shape->max_seq_len,
                             .grad_accum = config->accum,
                             .seed = config->seed};
    const int shard_size = sharding_shard_size(config->sharding, g->world_size, config->fsdp_size);
    unit_hooks hooks = {.self = w, .pre_forward = pre_forward, .post_forward = post_forward};
    TRY(mesh_open(w->comm, (const int[N_AXES]){[AXIS_SHARD] = shard_size}, &w->grid));
    TRY(fsdp_create(&(fsdp_config){.run = run, .mesh = &w->grid, .wrap = config->wrap}, &w->f));
    if (config->trains) {
        TRY(reducer_create(&w->f, config->sharding, &w->r));
        hooks = fsdp_backward_hooks(&w->r);
    }
    TRY(device_alloc_f32(w->f.compute, MEM_OTHER, 1, "loss", &w->loss));
    TRY(runner_create(&(runner_config){.run = run,
                                       .layer_unit = w->f.layer_unit,
                                       .n_units = w->f.n_units,
                                       .hooks = hooks,
                                       .views = &w->f.views},
                      &w->run));
    return FSDP_OK;
}

fsdp_status whole_close(whole *w)
{
    runner_free(w->run);
    device_free(w->f.compute, w->loss);
    reducer_free(&w->r);
    fsdp_free(&w->f);
    corpus_close(&w->data);
    model_free(&w->m);
    TRY(stream_sync(device_compute_stream(w->dev)));
    TRY(grade_no_leak(w->dev));
    mesh_close(&w->grid);
    comm_close(w->comm);
    device_close(w->dev);
    return FSDP_OK;
}

uint64_t whole_leaf(const whole *w, int a)
{
    return (uint64_t)(a * comm_size(w->comm) + comm_rank(w->comm));
}

float whole_scale(const whole *w)
{
    const size_t leaves = (size_t)(w->config->accum * comm_size(w->comm)) * w->config->batch;
    return 1.0f / (float)(leaves * w->config->model->max_seq_len);
}

fsdp_status whole_forward(whole *w, int a, bool training, float *loss)
{
    const size_t batch = w->config->batch, seq_len = w->config->model->max_seq_len;
    const uint64_t first = whole_leaf(w, a) * batch;
    int32_t tokens[MOST_TOKENS], targets[MOST_TOKENS];
    FSDP_ASSERT(batch * seq_len <= MOST_TOKENS);
    for (size_t i = 0; i < batch; i++)
        TRY(sample_read(&w->data, first + i, seq_len, tokens + i * seq_len, targets + i * seq_len));
    TRY(runner_forward(w->run, &(micro_step){.inputs = tokens,
                                             .targets = targets,
                                             .a = a,
                                             .n_micro = w->config->accum,
                                             .training = training,
                                             .loss = w->loss}));
    if (training)
        TRY(runner_backward(w->run));
    return grade_read(w->f.compute, w->loss, sizeof *loss, loss);
}
