/* six_lib.c -- see six_lib.h. */
#include "tests/grade/six_lib.h"
#include <stdlib.h>
#include <unistd.h>
#include "common/model/gpt2.h"
#include "lab2_forward/fsdp_setup.h"
#include "lab3_backward/reducer_setup.h"
#include "tests/unit/target_lib.h"

enum { SEQ_LEN = 4 };

/* Two roots are smaller than a block, so a block too many shows in any peak. */
static const model_config SIX = {.family = "gpt2",
                                 .n_blocks = SIX_BLOCKS,
                                 .n_head = 2,
                                 .n_kv_head = 2,
                                 .d_model = 16,
                                 .d_ff = 64,
                                 .vocab_size = 19,
                                 .max_seq_len = SEQ_LEN,
                                 .norm_eps = 1e-5f};

/* ---- hooks with a nap behind ----------------------------------------------------------------- */

static fsdp_status nap(void *args, int n_threads)
{
    (void)n_threads;
    usleep(*(unsigned *)args);
    return FSDP_OK;
}

static fsdp_status before_compute(six *s, const char *name)
{
    unsigned nap_us = s->config->nap_us * (unsigned)(1 + s->g->rank);
    if (nap_us == 0 && !s->config->records)
        return FSDP_OK;
    return grade_launch_idle(s->f.compute, nap, &nap_us, sizeof nap_us, name);
}

static fsdp_status begin_micro(void *self, int a, int n_micro, bool training)
{
    six *s = self;
    return s->hooks.begin_micro(s->hooks.self, a, n_micro, training);
}

static fsdp_status pre_forward(void *self, int u)
{
    six *s = self;
    s->n_ahead += s->f.units[u].state == UNIT_GATHERING;
    TRY(s->hooks.pre_forward(s->hooks.self, u));
    return before_compute(s, SIX_FORWARD);
}

static fsdp_status post_forward(void *self, int u)
{
    six *s = self;
    return s->hooks.post_forward(s->hooks.self, u);
}

static fsdp_status pre_backward(void *self, int u)
{
    six *s = self;
    s->n_ahead += s->f.units[u].state == UNIT_GATHERING;
    TRY(s->hooks.pre_backward(s->hooks.self, u));
    return before_compute(s, SIX_BACKWARD);
}

static fsdp_status post_backward(void *self, int u)
{
    six *s = self;
    return s->hooks.post_backward(s->hooks.self, u);
}

static fsdp_status count_one(void *args, int n_threads)
{
    (void)n_threads;
    atomic_fetch_add(*(atomic_int **)args, 1);
    return FSDP_OK;
}

static fsdp_status end_backward(void *self)
{
    six *s = self;
    atomic_int *n_computed = &s->n_computed;
    TRY(grade_launch_idle(s->f.compute, count_one, &n_computed, sizeof n_computed, NULL));
    return s->hooks.end_backward(s->hooks.self);
}

/* ---- the timeline ---------------------------------------------------------------------------- */

/* The order checker goes on watching. */
static uint64_t tell_both(void *self, const device_act *act)
{
    six *s = self;
    (void)order_check_issued(s->g->order, act);
    const device_watch w = timeline_watch_device(s->watch);
    return w.issued(w.self, act);
}

static void tell_ran(void *self, const device_act *act)
{
    const device_watch w = timeline_watch_device(((six *)self)->watch);
    w.ran(w.self, act);
}

static void watch_too(six *s)
{
    s->recorded = timeline_create(s->g->rank);
    s->watch = timeline_watch_create(s->dev);
    FSDP_ASSERT(s->recorded && s->watch);
    const comm_watch collectives = timeline_watch_comm(s->watch);
    device_set_watch(s->dev, &(device_watch){s, tell_both, tell_ran});
    comm_set_watch(s->comm, &collectives);
}

static fsdp_status idle(six *s)
{
    TRY(stream_sync(s->f.compute));
    TRY(stream_sync(s->f.gather_stream));
    return stream_sync(s->f.reduce_stream);
}

/* Ranks may differ by an item: only some have padding to zero. */
static fsdp_status most_items(six *s, int64_t mine, size_t *most)
{
    stream *compute = s->f.compute;
    int64_t counts[8], *all;
    const int w = s->g->world_size;
    FSDP_ASSERT(w <= 8);
    void *new_all = NULL;
    TRY(device_alloc(compute, MEM_OTHER, (size_t)w * sizeof *all, "counts", &new_all));
    all = new_all;
    TRY(grade_write(compute, all + s->g->rank, &mine, sizeof mine));
    TRY(comm_all_gather(s->comm, compute, "counts", DTYPE_I64, all + s->g->rank, all, 1));
    TRY(grade_read(compute, all, (size_t)w * sizeof *all, counts));
    device_free(compute, all);
    *most = 0;
    for (int r = 0; r < w; r++)
        *most = (size_t)counts[r] > *most ? (size_t)counts[r] : *most;
    return FSDP_OK;
}

/* Streams have the names and numbers of this rank's on all ranks. What a rank has fewer of is
 * RECORDs that nobody waits for. */
static fsdp_status gather_views(six *s, timeline_view **views)
{
    const timeline_view mine = timeline_read(s->recorded);
    const timeline_item filler = {.kind = TIMELINE_RECORD, .after = TIMELINE_NONE};
    const size_t w = (size_t)s->g->world_size;
    stream *compute = s->f.compute;
    size_t most;
    char *all;
    TRY(most_items(s, mine.n_items, &most));
    const size_t bytes = most * sizeof *mine.items;
    *views = malloc(w * sizeof **views + w * bytes);
    if (!*views)
        return fsdp_error(FSDP_ENOMEM, "", "no memory for %zu timelines", w);
    timeline_item *items = (timeline_item *)(void *)(*views + w);
    for (size_t i = 0; i < most; i++)
        items[i] = i < (size_t)mine.n_items ? mine.items[i] : filler;
    void *new_all = NULL;
    TRY(device_alloc(compute, MEM_OTHER, w * bytes, "timelines", &new_all));
    all = new_all;
    char *own = all + (size_t)s->g->rank * bytes;
    TRY(grade_write(compute, own, items, bytes));
    TRY(comm_all_gather(s->comm, compute, "timelines", DTYPE_U8, own, all, bytes));
    TRY(grade_read(compute, all, w * bytes, items));
    device_free(compute, all);
    for (size_t r = 0; r < w; r++) {
        (*views)[r] = mine;
        (*views)[r].rank = (int)r;
        (*views)[r].items = items + r * most;
        (*views)[r].n_items = (int64_t)most;
    }
    return FSDP_OK;
}

fsdp_status six_record(six *s, timeline_view **views)
{
    *views = NULL;
    TRY(idle(s));
    timeline_clear(s->recorded);
    timeline_watch_to(s->watch, s->recorded);
    timeline_watch_step(s->watch, 0);
    TRY(six_step(s));
    TRY(idle(s));
    timeline_watch_to(s->watch, NULL);
    return gather_views(s, views);
}

void six_views_free(timeline_view *views)
{
    free(views);
}

/* ---- life ------------------------------------------------------------------------------------ */

static fsdp_status six_create(six *s)
{
    TRY(grade_device_open(s->g,
                          &(device_config){.n_threads = 1,
                                           .debug_fill = true,
                                           .async_compute = !s->config->inline_compute},
                          &s->dev));
    const comm_config cc = target_comm(8);
    TRY(comm_open(s->dev, &cc, &s->comm));
    if (s->config->records)
        watch_too(s);
    TRY(gpt2_create(&SIX, &s->m));
    run_context run = {.m = &s->m,
                       .ops = s->g->ops,
                       .dev = s->dev,
                       .world = s->comm,
                       .mode = GRAD_ACC_FAST,
                       .batch = 1,
                       .seq_len = SEQ_LEN,
                       .grad_accum = SIX_MICRO_STEPS,
                       .seed = 7};
    TRY(mesh_open(s->comm, s->g->world_size, &s->grid));
    TRY(fsdp_create(&(fsdp_config){.run = run, .mesh = &s->grid, .wrap = WRAP_BLOCK}, &s->f));
    TRY(reducer_create(&s->f, SHARDING_FULL, &s->r));
    const prefetch_config config = {.mode = s->config->mode, .limit = s->config->limit};
    TRY(prefetch_create(&config, &s->r, &s->p, &s->hooks));
    const unit_hooks hooks = {.self = s,
                              .begin_micro = begin_micro,
                              .pre_forward = pre_forward,
                              .post_forward = post_forward,
                              .pre_backward = pre_backward,
                              .post_backward = post_backward,
                              .end_backward = end_backward};
    s->root_bytes = s->f.units[UNIT_ROOT].layout.padded_elems * sizeof(float);
    s->block_bytes = s->f.units[1].layout.padded_elems * sizeof(float);
    TRY(device_alloc_f32(s->f.compute, MEM_OTHER, 1, "loss", &s->loss));
    return runner_create(&(runner_config){.run = run,
                                          .layer_unit = s->f.layer_unit,
                                          .n_units = s->f.n_units,
                                          .hooks = hooks,
                                          .views = &s->f.views},
                         &s->run);
}

static fsdp_status six_free(six *s)
{
    TRY(stream_sync(s->f.compute));
    runner_free(s->run);
    device_free(s->f.compute, s->loss);
    prefetch_free(&s->p);
    reducer_free(&s->r);
    fsdp_free(&s->f);
    model_free(&s->m);
    TRY(stream_sync(device_compute_stream(s->dev)));
    TRY(expect_int("device blocks still live at the end",
                   (long long)ledger_read(device_ledger(s->dev)).live_blocks, 0));
    mesh_close(&s->grid);
    comm_set_watch(s->comm, NULL);
    comm_close(s->comm);
    device_close(s->dev);
    timeline_watch_free(s->watch);
    timeline_free(s->recorded);
    free(s);
    return FSDP_OK;
}

fsdp_status six_run(grade *g, const six_config *config, fsdp_status (*body)(six *s))
{
    six *s = calloc(1, sizeof *s); /* threads of a failed run may still look at it */
    s->g = g;
    s->config = config;
    fsdp_status status = six_create(s);
    if (status == FSDP_OK)
        status = body(s);
    if (status != FSDP_ECOMM && status != FSDP_EMISMATCH && status != FSDP_ETIMEOUT)
        status = comm_agree(g->comm, status);
    return status == FSDP_OK ? six_free(s) : status;
}

fsdp_status six_micro_step(six *s, int a)
{
    int32_t tokens[SEQ_LEN], targets[SEQ_LEN];
    for (int i = 0; i < SEQ_LEN; i++) {
        tokens[i] = (3 * i + 5 * s->g->rank + a) % (int)SIX.vocab_size;
        targets[i] = (tokens[i] + 1) % (int)SIX.vocab_size;
    }
    TRY(runner_forward(s->run, &(micro_step){.tokens = tokens,
                                             .targets = targets,
                                             .a = a,
                                             .n_micro = SIX_MICRO_STEPS,
                                             .training = true,
                                             .loss = s->loss}));
    return runner_backward(s->run);
}

fsdp_status six_step(six *s)
{
    TRY(reshard_all(&s->f));
    TRY(zero_grad(&s->r));
    for (int a = 0; a < SIX_MICRO_STEPS; a++)
        TRY(six_micro_step(s, a));
    TRY(grads_finish(&s->r, 0.1f));
    return sgd_step(&s->r, 0.01f, 0.0f, NULL);
}
