/* run_lib.c -- see run_lib.h. */
#include "tests/equivalence/run_lib.h"
#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "common/model/family.h"
#include "common/model/runner.h"

typedef struct run {
    const run_config *cfg;
    device *dev;
    comm *group;
    mesh mesh;
    stream *s;
    model m;
    corpus data;
    engine e;
    digests *digests; /* NULL: none */
    runner *r;
    float *loss, *norm; /* device: [grad_accum * W] sums of this step's blocks, [1] */
    int32_t *tokens, *targets;
    run_result *out;
} run;

fsdp_status run_corpus(size_t vocab_size, corpus *out)
{
    return corpus_synthetic(0, 100000, vocab_size, out);
}

static run_context context_of(const run *r)
{
    const run_config *c = r->cfg;
    const int w = comm_size(r->group);
    return (run_context){.m = &r->m,
                         .shape = {.world_size = w,
                                   .world_rank = comm_rank(r->group),
                                   .size = {1, w, 1, 1, 1},
                                   .at = {[AXIS_REPLICATE] = comm_rank(r->group)}},
                         .ops = c->ops,
                         .dev = r->dev,
                         .world = r->group,
                         .mode = c->mode,
                         .batch = c->batch,
                         .seq_len = c->seq_len,
                         .grad_accum = c->grad_accum,
                         .no_sync = c->no_sync,
                         .seed = c->seed,
                         .param_dtype = c->param_dtype,
                         .reduce_dtype = c->reduce_dtype,
                         .optimizer = c->optimizer};
}

int run_hybrid_size(int world_size)
{
    for (int s = world_size / 2; s > 1; s--)
        if (world_size % s == 0)
            return s;
    return 0;
}

static fsdp_status make_engine(run *r, const run_context *context)
{
    const run_config *c = r->cfg;
    if (!c->fsdp)
        return baseline_create(context, &r->e);
    int w = comm_size(r->group);
    int shard_size = sharding_shard_size(c->sharding, w, run_hybrid_size(w));
    TRY(mesh_open(r->group, (const int[N_AXES]){[AXIS_SHARD] = shard_size}, &r->mesh));
    return fsdp_engine_create(&(fsdp_config){.run = *context,
                                             .mesh = &r->mesh,
                                             .offload = c->offload,
                                             .replicas_last = c->replicas_last,
                                             .per_param = c->per_param,
                                             .wrap = c->wrap,
                                             .merge = c->bucket_elems > 0 ? bucket_assign : NULL,
                                             .merge_max_elems = c->bucket_elems},
                              c->sharding, &c->prefetch, &r->e);
}

static fsdp_status run_create(run *r)
{
    const run_config *c = r->cfg;
    size_t blocks = (size_t)c->grad_accum * (size_t)comm_size(r->group);
    TRY(model_create(&c->model, &r->m));
    r->m.chunk_rows = c->chunk_rows;
    TRY(model_freeze(&r->m, c->freeze));
    TRY(c->corpus_tokens > 0 ? corpus_synthetic(0, c->corpus_tokens, c->model.vocab_size, &r->data)
                             : run_corpus(c->model.vocab_size, &r->data));
    run_context context = context_of(r);
    TRY(make_engine(r, &context));
    FILE *digests_out = comm_rank(r->group) == 0 ? c->digests : NULL;
    if (c->digests)
        TRY(digests_create(&context, &r->e, NULL, digests_out, &r->digests));
    TRY(runner_create(&(runner_config){.run = context,
                                       .layer_unit = r->e.layer_unit,
                                       .n_units = r->e.n_units,
                                       .hooks = r->e.hooks,
                                       .look = r->digests ? digests_look : NULL,
                                       .observer = r->digests,
                                       .views = r->e.views},
                      &r->r));
    TRY(device_alloc_f32(r->s, MEM_OTHER, blocks, "losses", &r->loss));
    TRY(device_alloc_f32(r->s, MEM_OTHER, 1, "norm", &r->norm));
    size_t tokens = c->batch * c->seq_len;
    r->tokens = calloc(2 * tokens, sizeof *r->tokens);
    r->targets = r->tokens + tokens;
    *r->out = (run_result){.steps = c->steps, .param_elems = r->m.n_param_elems};
    r->out->loss = calloc((size_t)c->steps + 1, sizeof(float));
    r->out->norm = calloc((size_t)c->steps + 1, sizeof(float));
    r->out->eval = calloc((size_t)c->steps + 1, sizeof(float));
    if (comm_rank(r->group) == 0)
        r->out->params = calloc(r->out->param_elems + 1, sizeof(float));
    return FSDP_OK;
}

static void run_free(run *r)
{
    runner_free(r->r);
    digests_free(r->digests);
    device_free(r->s, r->loss);
    device_free(r->s, r->norm);
    if (r->e.free)
        r->e.free(r->e.self);
    mesh_close(&r->mesh);
    corpus_close(&r->data);
    model_free(&r->m);
    free(r->tokens);
}

/* Micro-step a of this rank: its part of the global batch, by run_batch_node. An evaluation reads
 * the same batch. */
static fsdp_status one_micro_step(run *r, int step, int a, bool training)
{
    const run_config *c = r->cfg;
    int w = comm_size(r->group), x = comm_rank(r->group);
    size_t blocks = (size_t)w * (size_t)c->grad_accum;
    const run_context context = context_of(r);
    size_t block = run_batch_node(&context, (size_t)a, x);
    float *loss = r->loss + a * w + x;
    TRY(stream_sync(r->s)); /* the last micro-step may still read the tokens */
    for (size_t i = 0; i < c->batch; i++) {
        uint64_t k = ((uint64_t)step * blocks + block) * c->batch + i;
        sample_read(&r->data, k, c->seq_len, r->tokens + i * c->seq_len,
                    r->targets + i * c->seq_len);
    }
    const micro_step ms = {.inputs = r->tokens,
                           .targets = r->targets,
                           .first_sample = ((uint64_t)step * blocks + block) * c->batch,
                           .a = a,
                           .n_micro = c->grad_accum,
                           .training = training,
                           .loss = loss};
    TRY(runner_forward(r->r, &ms));
    if (training)
        TRY(runner_backward(r->r));
    return comm_all_gather(r->group, r->s, "loss", DTYPE_F32, loss, r->loss + a * w, 1);
}

/* Two batches, so that the second sees what the first left gathered. */
static fsdp_status evaluate(run *r, int step)
{
    const size_t w = (size_t)comm_size(r->group);
    float *host = calloc(w, sizeof *host);
    fsdp_status st = FSDP_OK;
    for (int batch = 0; batch < 2 && st == FSDP_OK; batch++) {
        st = one_micro_step(r, step, 0, false);
        if (st == FSDP_OK)
            st = device_download(r->s, host, r->loss, w * sizeof *host);
        if (st == FSDP_OK)
            st = stream_sync(r->s);
        r->out->eval[step] += tree_sum_f32(host, w);
    }
    free(host);
    return st;
}

static fsdp_status one_step(run *r, int step)
{
    const run_config *c = r->cfg;
    size_t blocks = (size_t)c->grad_accum * (size_t)comm_size(r->group);
    float scale = (float)(1.0 / (double)(blocks * c->batch * c->seq_len));
    if (c->evaluates)
        TRY(evaluate(r, step));
    if (r->e.begin_step)
        TRY(r->e.begin_step(r->e.self));
    for (int a = 0; a < c->grad_accum; a++)
        TRY(one_micro_step(r, step, a, true));
    step_scalars sc = {.optim = {.step = step,
                                 .lr = c->lr_of_step ? c->lr_of_step[step] : c->lr,
                                 .beta1 = 0.9,
                                 .beta2 = 0.95,
                                 .eps = 1e-8,
                                 .weight_decay = c->optimizer == OPTIMIZER_ADAMW ? 0.1 : 0},
                       .clip_norm = c->clip_norm,
                       .grad_scale = scale};
    TRY(r->e.optimizer_step(r->e.self, &sc, r->norm));
    if (r->digests)
        TRY(digests_end_step(r->digests));
    float *host = calloc(blocks + 1, sizeof *host);
    fsdp_status st = device_download(r->s, host, r->loss, blocks * sizeof *host);
    if (st == FSDP_OK)
        st = device_download(r->s, &host[blocks], r->norm, sizeof *host);
    if (st == FSDP_OK)
        st = stream_sync(r->s);
    if (c->after_step)
        c->after_step(c->ctx);
    float *in_order = calloc(blocks + 1, sizeof *in_order);
    const run_context context = context_of(r);
    const size_t w = (size_t)comm_size(r->group);
    for (size_t i = 0; i < blocks; i++)
        in_order[run_batch_node(&context, i / w, (int)(i % w))] = host[i];
    r->out->loss[step] = tree_sum_f32(in_order, blocks) * scale;
    r->out->norm[step] = host[blocks];
    free(host);
    free(in_order);
    return st;
}

typedef struct sink_at {
    float *dst;
    size_t used, room;
} sink_at;

static fsdp_status keep_params(void *ctx, const float *values, size_t elems)
{
    sink_at *at = ctx;
    FSDP_ASSERT(at->used + elems <= at->room);
    memcpy(at->dst + at->used, values, elems * sizeof *values);
    at->used += elems;
    return FSDP_OK;
}

/* The number of this process's threads with this name. A stream's thread has the stream's name. */
static int threads_called(const char *name)
{
    int n = 0;
    glob_t tasks;
    if (glob("/proc/self/task/*/comm", 0, NULL, &tasks) != 0)
        return 0;
    for (size_t i = 0; i < tasks.gl_pathc; i++) {
        char text[32] = "";
        FILE *in = fopen(tasks.gl_pathv[i], "r");
        n += in && fgets(text, sizeof text, in) && strncmp(text, name, strlen(name)) == 0;
        if (in)
            fclose(in);
    }
    globfree(&tasks);
    return n;
}

fsdp_status run_training(device *dev, comm *group, const run_config *config, run_result *out)
{
    run r = {
        .cfg = config, .dev = dev, .group = group, .s = device_compute_stream(dev), .out = out};
    fsdp_status st = run_create(&r);
    for (int step = 0; step < config->steps && st == FSDP_OK; step++)
        st = one_step(&r, step);
    if (st == FSDP_OK && r.digests)
        digests_end(r.digests);
    sink_at at = {.dst = out->params, .room = out->param_elems};
    if (st == FSDP_OK)
        st = r.e.read_array(r.e.self, 0, keep_params, &at);
    if (st == FSDP_OK && out->params)
        FSDP_ASSERT_EQ(at.used, out->param_elems);
    run_free(&r);
    for (int ms = 0; ms < 2000 && threads_called("gather") + threads_called("reduce") > 0; ms++)
        usleep(1000); /* a thread that was joined leaves /proc a little later */
    FSDP_ASSERT_EQ(threads_called("gather") + threads_called("reduce"), 0);
    return st;
}

void run_result_free(run_result *r)
{
    free(r->loss);
    free(r->norm);
    free(r->eval);
    free(r->params);
    *r = (run_result){0};
}
