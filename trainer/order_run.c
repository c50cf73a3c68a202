/* order_run.c -- --check-order: every step is checked for work on two streams that no event orders.
 *
 *   order_run_open (before the engine) -> order_run_look, when a step begins ... -> order_run_end
 *   -> order_run_close
 *
 * A run ends behind the step in which something was found. All ranks look at the same time and
 * agree. */
#include "trainer/trainer.h"

fsdp_status order_run_look(const trainer *t)
{
    return t->order ? comm_agree(t->run.world, order_check_status(t->order)) : FSDP_OK;
}

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
    TRY(order_run_look(t));
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
