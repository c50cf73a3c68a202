/* checked.c -- --check-order: every step is checked for work on two streams that no event orders.
 *
 *   order_run_open (before the engine) -> order_run_watch (the engine) -> training
 *   -> order_run_end -> order_run_close
 *
 * The training loop gets an engine that looks at the checker when a step begins, so that a run ends
 * behind the step in which something was found. All ranks look at the same time and agree. */
#include "trainer/trainer.h"

static fsdp_status agree(const trainer *t)
{
    return comm_agree(t->run.world, order_check_status(t->order));
}

/* ---- the engine: itself, and a look at the checker ------------------------------------------- */

static fsdp_status checked_begin_step(void *self)
{
    const trainer *t = self;
    TRY(agree(t));
    return t->unchecked_engine->begin_step(t->unchecked_engine->self);
}

static fsdp_status checked_optimizer_step(void *self, const step_scalars *sc, float *norm)
{
    const engine *e = ((const trainer *)self)->unchecked_engine;
    return e->optimizer_step(e->self, sc, norm);
}

static fsdp_status checked_read_params(void *self, engine_sink sink, void *ctx)
{
    const engine *e = ((const trainer *)self)->unchecked_engine;
    return e->read_params(e->self, sink, ctx);
}

static fsdp_status checked_save(void *self, const char *dir, int64_t next_step)
{
    const engine *e = ((const trainer *)self)->unchecked_engine;
    return e->save(e->self, dir, next_step);
}

engine *order_run_watch(trainer *t, engine *e)
{
    if (!t->order)
        return e;
    t->unchecked_engine = e;
    t->checked_engine = *e;
    t->checked_engine.self = t;
    t->checked_engine.begin_step = checked_begin_step;
    t->checked_engine.optimizer_step = checked_optimizer_step;
    t->checked_engine.read_params = checked_read_params;
    t->checked_engine.save = checked_save;
    return &t->checked_engine;
}

/* ---- life ------------------------------------------------------------------------------------ */

fsdp_status order_run_open(trainer *t)
{
    if (!t->cfg.check_order)
        return FSDP_OK;
    t->order = order_check_create();
    if (!t->order)
        return fsdp_error(FSDP_ENOMEM, "", "order check: no host memory");
    const device_watch watch = order_check_watch(t->order);
    device_set_watch(t->run.dev, &watch);
    return FSDP_OK;
}

fsdp_status order_run_explain(const trainer *t, fsdp_status status)
{
    if (status == FSDP_OK || !t->order)
        return status;
    fsdp_status found = order_check_status(t->order);
    return found != FSDP_OK ? found : status;
}

fsdp_status order_run_end(const trainer *t, FILE *out)
{
    if (!t->order)
        return FSDP_OK;
    TRY(agree(t));
    order_figures f = order_check_read(t->order);
    if (comm_rank(t->run.world) == 0)
        fprintf(out, "order: %llu launches, %llu memory blocks, %llu violations\n",
                (unsigned long long)f.launches, (unsigned long long)f.blocks,
                (unsigned long long)f.violations);
    return FSDP_OK;
}

void order_run_close(trainer *t)
{
    if (!t->order)
        return;
    device_set_watch(t->run.dev, NULL);
    order_check_free(t->order);
    t->order = NULL;
}
