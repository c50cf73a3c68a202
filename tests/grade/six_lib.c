/* six_lib.c -- see six_lib.h. */
#include "tests/grade/six_lib.h"
#include <limits.h>
#include <stddef.h>
#include <stdlib.h>
#include <time.h>
#include "common/device/dry.h"
#include "common/model/family.h"
#include "lab2_forward/fsdp_setup.h"
#include "lab3_backward/reducer_setup.h"
#include "tests/equivalence/run_lib.h"
#include "tests/unit/target_lib.h"

enum { SEQ_LEN = 4 };

/* Two roots are smaller than a block, so one block too many shows in any peak. */
static const model_config SIX = GPT2_CONFIG(SIX_BLOCKS, 2, 16, 19, SEQ_LEN);

/* ---- compute as slow as can be ------------------------------------------------------------- */

/* Runs on the compute stream before a unit: sleeps until the host waits for the unit. After
 * GATE_LIMIT_S compute goes on, because the host waits for something else. */
static fsdp_status wait_for_host(void *args, int n_threads)
{
    six_turnstile *t = *(six_turnstile **)args;
    const struct timespec nap = {.tv_nsec = 50 * 1000};
    const int mine = ++t->n_run;
    long naps = 0;
    while (atomic_load(&t->n_let) < mine && naps++ < GATE_LIMIT_S * 20000L)
        nanosleep(&nap, NULL);
    if (atomic_load(&t->n_let) < mine)
        atomic_store(&t->n_let, INT_MAX);
    return FSDP_OK;
}

/* The number of units that had been issued when e was recorded. */
static int *issued_before(six_turnstile *t, const event *e)
{
    int i = 0;
    while (i < t->n_events && t->events[i].event != e)
        i++;
    FSDP_ASSERT(i < SIX_EVENTS);
    t->n_events += i == t->n_events;
    t->events[i].event = e;
    return &t->events[i].n_issued;
}

/* When the host waits for an event, the units issued before that event was recorded may run. When
 * the host waits for a stream or for a copy, all may run. */
static uint64_t see_host_wait(void *self, const device_act *act)
{
    six_turnstile *t = self;
    pthread_mutex_lock(&t->lock);
    int n = atomic_load(&t->n_let);
    if (act->kind == ACT_RECORD)
        *issued_before(t, act->event) = t->n_issued;
    else if (act->kind == ACT_SYNC && act->event != NULL)
        n = *issued_before(t, act->event);
    else if (act->kind == ACT_SYNC || act->kind == ACT_DOWNLOAD || act->kind == ACT_STREAM_FREE)
        n = t->n_issued;
    if (n > atomic_load(&t->n_let))
        atomic_store(&t->n_let, n);
    pthread_mutex_unlock(&t->lock);
    return 0;
}

static fsdp_status before_compute(six *s, const char *name)
{
    six_turnstile *t = &s->turnstile;
    if (!s->config->slow_compute && !s->line)
        return FSDP_OK;
    t->n_issued++;
    return stream_launch_work(s->f.compute, &(launch_config){.fn = wait_for_host,
                                                             .args = &t,
                                                             .args_bytes = sizeof t,
                                                             .on_host = true,
                                                             .work = {.key = {.name = name}},
                                                             .accesses = TOUCHES_NOTHING,
                                                             .waits_for = WAITS_FOR_HOST});
}

/* The hooks of lab 5 get the prefetch that a six holds. */
static six *six_of(void *self)
{
    return (six *)((char *)self - offsetof(six, p));
}

static fsdp_status pre_forward(void *self, int u)
{
    six *s = six_of(self);
    s->n_ahead += s->f.units[u].state == UNIT_GATHERING;
    TRY(s->hooks.pre_forward(self, u));
    return before_compute(s, SIX_FORWARD);
}

static fsdp_status pre_backward(void *self, int u)
{
    six *s = six_of(self);
    s->n_ahead += s->f.units[u].state == UNIT_GATHERING;
    TRY(s->hooks.pre_backward(self, u));
    return before_compute(s, SIX_BACKWARD);
}

static fsdp_status count_one(void *args, int n_threads)
{
    atomic_fetch_add(*(atomic_int **)args, 1);
    return FSDP_OK;
}

static fsdp_status end_backward(void *self)
{
    six *s = six_of(self);
    atomic_int *n_computed = &s->n_computed;
    TRY(grade_launch_idle(s->f.compute, count_one, &n_computed, sizeof n_computed, NULL));
    return s->hooks.end_backward(self);
}

/* ---- life ------------------------------------------------------------------------------------ */

static fsdp_status open_device(six *s)
{
    TRY(grade_device_open(s->g,
                          &(device_config){.n_threads = 1,
                                           .debug_fill = true,
                                           .async_compute = !s->config->inline_compute},
                          &s->dev));
    device_set_second_watch(s->dev,
                            &(device_watch){.self = &s->turnstile, .issued = see_host_wait});
    const comm_config cc = target_comm(8);
    return comm_open(s->dev, &cc, &s->comm);
}

static fsdp_status open_dry(six *s)
{
    TRY(device_open(
        &(device_config){.backend = device_dry(DRY_CPU), .n_threads = 1, .async_compute = true},
        &s->dev));
    TRY(comm_open(s->dev,
                  &(comm_config){.backend = COMM_DRY,
                                 .dry = {s->config->rank, s->g->world_size, MOVES_BY_SHOWING},
                                 .sums = ops_cpu_portable()->sums},
                  &s->comm));
    s->watch = timeline_watch_create(s->dev, s->comm, NULL, NULL);
    FSDP_ASSERT(s->watch);
    return FSDP_OK;
}

static fsdp_status six_create(six *s)
{
    TRY(s->line ? open_dry(s) : open_device(s));
    TRY(model_create(&SIX, &s->m));
    run_context run = {.m = &s->m,
                       .ops = s->line ? ops_cpu_portable() : s->g->ops,
                       .dev = s->dev,
                       .world = s->comm,
                       .mode = GRAD_ACC_FAST,
                       .batch = 1,
                       .seq_len = SEQ_LEN,
                       .grad_accum = SIX_MICRO_STEPS,
                       .seed = 7};
    TRY(mesh_open(s->comm, (const int[N_AXES]){[AXIS_SHARD] = s->g->world_size}, &s->grid));
    TRY(fsdp_create(&(fsdp_config){.run = run, .mesh = &s->grid, .wrap = WRAP_BLOCK}, &s->f));
    TRY(reducer_create(&s->f, SHARDING_FULL, &s->r));
    const prefetch_config config = {.mode = s->config->mode, .limit = s->config->limit};
    TRY(prefetch_create(&config, &s->r, &s->p, &s->hooks));
    FSDP_ASSERT(s->hooks.self == &s->p);
    unit_hooks hooks = s->hooks;
    hooks.pre_forward = pre_forward;
    hooks.pre_backward = pre_backward;
    hooks.end_backward = end_backward;
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
    TRY(expect_size("device blocks still live at the end",
                    ledger_read(device_ledger(s->dev)).live_blocks, 0));
    mesh_close(&s->grid);
    comm_set_watch(s->comm, NULL);
    comm_close(s->comm);
    device_close(s->dev);
    timeline_watch_free(s->watch);
    free(s);
    return FSDP_OK;
}

static fsdp_status run_on(grade *g, const six_config *config, timeline *line,
                          fsdp_status (*body)(six *s))
{
    six *s = calloc(1, sizeof *s); /* threads of a failed run may still look at it */
    FSDP_ASSERT_EQ(pthread_mutex_init(&s->turnstile.lock, NULL), 0);
    s->g = g;
    s->config = config;
    s->line = line;
    fsdp_status status = six_create(s);
    if (status == FSDP_OK)
        status = body(s);
    if (status != FSDP_ECOMM && status != FSDP_EMISMATCH && status != FSDP_ETIMEOUT)
        status = comm_agree(g->comm, status);
    return status == FSDP_OK ? six_free(s) : status;
}

fsdp_status six_run(grade *g, const six_config *config, fsdp_status (*body)(six *s))
{
    return run_on(g, config, NULL, body);
}

static fsdp_status second_step(six *s)
{
    TRY(six_step(s)); /* records the order of units */
    timeline_watch_to(s->watch, s->line);
    timeline_watch_step(s->watch, 0);
    TRY(six_step(s));
    timeline_watch_to(s->watch, NULL);
    return FSDP_OK;
}

fsdp_status six_record(grade *g, const six_config *config, timeline *line)
{
    return run_on(g, config, line, second_step);
}

static fsdp_status forward(six *s, int a, bool training)
{
    int32_t tokens[SEQ_LEN], targets[SEQ_LEN];
    for (int i = 0; i < SEQ_LEN; i++) {
        tokens[i] = (3 * i + 5 * s->g->rank + a) % (int)SIX.vocab_size;
        targets[i] = (tokens[i] + 1) % (int)SIX.vocab_size;
    }
    return runner_forward(s->run, &(micro_step){.inputs = tokens,
                                                .targets = targets,
                                                .a = a,
                                                .n_micro = SIX_MICRO_STEPS,
                                                .training = training,
                                                .loss = s->loss});
}

fsdp_status six_micro_step(six *s, int a)
{
    TRY(forward(s, a, true));
    return runner_backward(s->run);
}

fsdp_status six_evaluation(six *s)
{
    for (int a = 0; a < SIX_MICRO_STEPS; a++)
        TRY(forward(s, a, false));
    return FSDP_OK;
}

fsdp_status six_step(six *s)
{
    TRY(reshard_all(&s->f));
    TRY(zero_grad(&s->r));
    for (int a = 0; a < SIX_MICRO_STEPS; a++)
        TRY(six_micro_step(s, a));
    TRY(grads_finish(&s->r, 0.1f));
    return sgd_step(&s->r, 0.01f);
}
