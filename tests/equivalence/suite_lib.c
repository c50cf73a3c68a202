/* suite_lib.c -- see suite_lib.h. */
#include "tests/equivalence/suite_lib.h"
#include <stdlib.h>
#include <string.h>
#include "common/model/family.h"
#include "tests/equivalence/twin_lib.h"
#include "tests/unit/target_lib.h"

fsdp_status suite_open(suite *s)
{
    const device_backend *target = target_backend()->device;
    const bool is_alone = target_backend()->fast != ops_cpu_fast; /* no other device has the same
                                                                   * maths */
    device_config dc[2] = {{.backend = is_alone ? target : &device_cpu, .n_threads = 1},
                           {.backend = target,
                            .n_threads = 2,
                            .debug_fill = true,
                            .async_compute = true,
                            .index = target_index()}};
    dc[0].index = is_alone ? target_index() : 0;
    TRY(comm_schedule_seed(&dc[1].schedule_seed));
    s->order = order_check_create();
    FSDP_ASSERT(s->order != NULL);
    const comm_config cc[2] = {dc[0].backend == target ? target_comm(0) : (comm_config){0},
                               target_comm(0)};
    const device_watch watch = order_check_watch(s->order);
    for (int d = 0; d < 2; d++) {
        TRY(device_open(&dc[d], &s->dev[d]));
        device_set_watch(s->dev[d], &watch);
        TRY(comm_open(s->dev[d], &cc[d], &s->world[d]));
    }
    s->rank = comm_rank(s->world[0]);
    s->world_size = comm_size(s->world[0]);
    return comm_range(s->world[0], s->rank, 1, 1, &s->alone);
}

void suite_close(suite *s)
{
    comm_close(s->alone);
    comm_close(s->world[1]);
    comm_close(s->world[0]);
    device_close(s->dev[1]);
    device_close(s->dev[0]);
    order_check_free(s->order);
}

void suite_report(suite *s, const char *name, fsdp_status mine)
{
    if (mine == FSDP_OK)
        mine = order_check_status(s->order);
    fsdp_status st = comm_agree(s->world[0], mine);
    s->passed += st == FSDP_OK;
    s->failed += st != FSDP_OK;
    if (s->rank == 0 && st == FSDP_OK)
        printf("PASS W=%d %s%s\n", s->world_size, name, s->detail);
    else if (s->rank == 0)
        printf("FAIL W=%d %s: %s\n", s->world_size, name, fsdp_error_get()->what);
    fflush(stdout);
    s->detail[0] = '\0';
}

/* clang-format off */
const variant VARIANTS[N_VARIANTS] = {
    {"ddp", false, SHARDING_FULL, WRAP_BLOCK, 2, {0}, 0, false, false, false},
    {"fsdp full, wrap block", true, SHARDING_FULL, WRAP_BLOCK, 1, {0}, 0, false, false, false},
    {"fsdp grad-op, wrap sub-block", true, SHARDING_GRAD_OP, WRAP_SUB_BLOCK, 1, {0}, 0, false, false, false},
    {"fsdp none, wrap model", true, SHARDING_NONE, WRAP_MODEL, 1, {0}, 0, false, false, false},
    {"fsdp hybrid, wrap block", true, SHARDING_HYBRID, WRAP_BLOCK, 2, {0}, 0, false, false, false},
    {"fsdp full, prefetch both", true, SHARDING_FULL, WRAP_BLOCK, 2, {PREFETCH_BOTH, 2, NULL}, 0, false, false, false},
    {"fsdp hybrid, wrap sub-block, prefetch backward-post", true, SHARDING_HYBRID, WRAP_SUB_BLOCK, 0, {PREFETCH_BACKWARD_POST, 1, NULL}, 0, false, false, false},
    {"fsdp grad-op, prefetch forward", true, SHARDING_GRAD_OP, WRAP_BLOCK, 1, {PREFETCH_FORWARD, 3, NULL}, 0, false, false, false},
    {"fsdp full, wrap sub-block, buckets, prefetch both", true, SHARDING_FULL, WRAP_SUB_BLOCK, 2, {PREFETCH_BOTH, 1, NULL}, 60000, false, false, false},
    {"fsdp full, per-param", true, SHARDING_FULL, WRAP_BLOCK, 2, {0}, 0, true, false, false},
    {.name = "fsdp full, no_sync", .fsdp = true, .level = 1, .no_sync = true},
    {.name = "fsdp hybrid, no_sync=replicas", .fsdp = true, .sharding = SHARDING_HYBRID, .level = 2, .replicas_last = true},
    {"fsdp hybrid, per-param, prefetch both", true, SHARDING_HYBRID, WRAP_BLOCK, 1, {PREFETCH_BOTH, 2, NULL}, 0, true, false, false},
};
/* clang-format on */
const dtypes DTYPES[N_DTYPES] = {{"", DTYPE_F32, DTYPE_F32},
                                 {", bf16 params", DTYPE_BF16, DTYPE_F32},
                                 {", bf16 sums", DTYPE_F32, DTYPE_BF16},
                                 {", bf16 params and sums", DTYPE_BF16, DTYPE_BF16}};

bool suite_skips(const suite *s, int v)
{
    bool has_groups = VARIANTS[v].sharding != SHARDING_HYBRID || run_hybrid_size(s->world_size) > 0;
    return !has_groups || VARIANTS[v].level < s->level;
}

run_config suite_config(const model_config *m, const ops *o, grad_acc_mode mode)
{
    return (run_config){.model = *m,
                        .ops = o,
                        .mode = mode,
                        .batch = 2,
                        .seq_len = m->max_seq_len,
                        .grad_accum = 3,
                        .steps = 1,
                        .optimizer = OPTIMIZER_SGD,
                        .lr = 0.5,
                        .seed = 11};
}

void suite_use_variant(run_config *c, const variant *v)
{
    c->fsdp = v->fsdp;
    c->sharding = v->sharding;
    c->wrap = v->wrap;
    c->prefetch = v->prefetch;
    c->bucket_elems = v->bucket_elems;
    c->per_param = v->per_param;
    c->no_sync = v->no_sync;
    c->replicas_last = v->replicas_last;
}

fsdp_status suite_run_single(suite *s, const run_config *many, size_t batch, run_result *out)
{
    run_config c = *many;
    *out = (run_result){0};
    if (s->rank != 0)
        return FSDP_OK;
    c.fsdp = false;
    size_t leaves = many->batch * (size_t)many->grad_accum * (size_t)s->world_size;
    FSDP_ASSERT_EQ(leaves % batch, 0);
    c.batch = batch;
    c.grad_accum = (int)(leaves / batch);
    return run_training(s->dev[0], s->alone, &c, out);
}

fsdp_status twin_step_make(const run_config *c, int world_size, size_t batch, twin_step *out)
{
    model m;
    corpus data;
    twin t;
    size_t nodes = c->batch * (size_t)c->grad_accum * (size_t)world_size / batch;
    float scale = (float)(1.0 / (double)(nodes * batch * c->seq_len));
    out->nodes = nodes;
    out->scale = (double)scale;
    TRY(model_create(&c->model, &m));
    TRY(run_corpus(c->model.vocab_size, &data));
    TRY(twin_create(&(twin_config){.m = &m,
                                   .ops = c->ops,
                                   .data = &data,
                                   .batch = batch,
                                   .seq_len = c->seq_len,
                                   .mode = c->mode,
                                   .seed = c->seed},
                    &t));
    TRY(twin_use_dtypes(&t, c->param_dtype, c->reduce_dtype));
    out->elems = t.param_elems;
    out->before = malloc(t.param_elems * sizeof *out->before);
    out->grad = malloc(t.param_elems * sizeof *out->grad);
    out->abs_sum = t.abs_sum = calloc(t.param_elems, sizeof *out->abs_sum);
    out->spacings = t.spacings = calloc(t.param_elems, sizeof *out->spacings);
    memcpy(out->before, t.params, t.param_elems * sizeof *out->before);
    fsdp_status st = twin_gradient(&t, 0, nodes, scale, out->grad, &out->loss);
    out->loss *= scale;
    twin_free(&t);
    corpus_close(&data);
    model_free(&m);
    return st;
}

void twin_step_free(twin_step *t)
{
    free(t->before);
    free(t->grad);
    free(t->abs_sum);
    free(t->spacings);
    *t = (twin_step){0};
}

uint64_t suite_draw(uint64_t *state) /* splitmix64 */
{
    uint64_t z = (*state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

int suite_draw_range(uint64_t *state, int lo, int hi)
{
    return lo + (int)(suite_draw(state) % (uint64_t)(hi - lo + 1));
}
