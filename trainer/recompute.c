/* recompute.c -- what --gradient-checkpointing means for this run: auto, and words for it. */
#include <stdlib.h>
#include "trainer/trainer.h"

/* Plan the run with a part of the last n blocks. Sets *fits, and *flops of a step. */
static fsdp_status try_blocks(trainer *t, recompute_part part, int n, size_t have, double *flops,
                              bool *fits)
{
    plan p;
    t->cfg.recompute = (recompute_spec){part, t->run.m->n_blocks - n, 1};
    const int rank = t->cfg.plan ? (int)t->cfg.plan_rank : 0;
    TRY(plan_make(t, rank, t->cfg.n_ranks, false, &p));
    *flops = p.flops;
    *fits = p.memory_bytes[MEM_TOTAL] <= have;
    return FSDP_OK;
}

/* The fewest of the last blocks whose `part` must run again; *fits is false if all are too few. The
 * more blocks share the memory of one, the less the run needs. */
static fsdp_status fewest_blocks(trainer *t, recompute_part part, size_t have, int *n,
                                 double *flops, bool *fits)
{
    int below = 0;
    *n = t->run.m->n_blocks;
    TRY(try_blocks(t, part, *n, have, flops, fits));
    while (*fits && *n - below > 1) {
        const int middle = (below + *n) / 2;
        double some_flops;
        bool some_fit;
        TRY(try_blocks(t, part, middle, have, &some_flops, &some_fit));
        if (some_fit) {
            *n = middle;
            *flops = some_flops;
        } else {
            below = middle;
        }
    }
    return FSDP_OK;
}

/* What the rank with the least memory has, or the device of a plan. */
static fsdp_status least_memory(trainer *t, size_t *have)
{
    bool limited;
    void *all;
    *have = trainer_memory(t, &limited);
    TRY(comm_host_gather(t->run.world, "memory", have, sizeof *have, &all));
    for (int r = 0; r < comm_size(t->run.world); r++)
        *have = ((size_t *)all)[r] < *have ? ((size_t *)all)[r] : *have;
    free(all);
    if (t->cfg.device_memory_mib > 0)
        *have = (size_t)t->cfg.device_memory_mib << 20;
    else if (t->cfg.plan && t->costs.machine.model)
        *have = (size_t)t->costs.machine.memory_bytes;
    return FSDP_OK;
}

fsdp_status trainer_choose_recompute(trainer *t)
{
    size_t have;
    int n;
    double flops, least_flops = 0;
    bool fits;
    if (!t->cfg.recompute_auto)
        return FSDP_OK;
    TRY(least_memory(t, &have));
    TRY(try_blocks(t, RECOMPUTE_NOTHING, 0, have, &flops, &fits));
    recompute_spec best = fits ? t->cfg.recompute : (recompute_spec){RECOMPUTE_BLOCK, 0, 1};
    for (int part = RECOMPUTE_BLOCK; part <= RECOMPUTE_MLP && best.part != RECOMPUTE_NOTHING;
         part++) {
        bool some_fit;
        TRY(fewest_blocks(t, (recompute_part)part, have, &n, &flops, &some_fit));
        if (some_fit && (!fits || flops < least_flops)) {
            best = (recompute_spec){(recompute_part)part, t->run.m->n_blocks - n, 1};
            least_flops = flops;
            fits = true;
        }
    }
    t->cfg.recompute = best;
    return FSDP_OK;
}

void trainer_print_recompute(const trainer *t, FILE *out)
{
    static const char *const parts[] = {"", "all layers", "attention", "mlp"};
    const recompute_spec *spec = &t->cfg.recompute;
    if (spec->part == RECOMPUTE_NOTHING && !t->cfg.recompute_auto)
        return;
    if (spec->part == RECOMPUTE_NOTHING)
        fprintf(out, "recompute: nothing");
    else
        fprintf(out, "recompute: %s of blocks from %d on", parts[spec->part], spec->from);
    if (spec->every > 1)
        fprintf(out, ", every %d-th", spec->every);
    if (t->n_cut > 0)
        fprintf(out, "; units cut the layers of %d block%s apart, and each part keeps its input",
                t->n_cut, t->n_cut == 1 ? "" : "s");
    fprintf(out, "%s\n", t->cfg.recompute_auto ? " (auto)" : "");
}
