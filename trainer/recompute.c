/* recompute.c -- --gradient-checkpointing=auto: choose what is recomputed; print the choice. */
#include <math.h>
#include <stdlib.h>
#include "trainer/trainer.h"

/* *have = the memory of the rank that has the least. */
static fsdp_status least_memory(trainer *t, size_t *have)
{
    bool limited;
    void *all;
    *have = trainer_memory(t, &limited);
    TRY(comm_host_gather(t->run.world, "memory", have, sizeof *have, &all));
    for (int r = 0; r < comm_size(t->run.world); r++)
        *have = ((size_t *)all)[r] < *have ? ((size_t *)all)[r] : *have;
    free(all);
    return FSDP_OK;
}

/* For each part of a block, find the smallest n with which the plan fits if the part is recomputed
 * in the last n blocks: more blocks need less memory but more work, so bisect. Take the part with
 * the fewest FLOPs; parts are not mixed. If no plan fits, recompute all blocks. */
fsdp_status trainer_choose_recompute(trainer *t)
{
    recompute_spec best = {RECOMPUTE_BLOCK, 0, 1};
    double least_flops = INFINITY;
    size_t have;
    if (!t->cfg.recompute_auto)
        return FSDP_OK;
    TRY(least_memory(t, &have));
    for (recompute_part part = RECOMPUTE_NOTHING; part <= RECOMPUTE_MLP; part++) {
        const int n_blocks = part == RECOMPUTE_NOTHING ? 1 : t->run.m->n_blocks;
        for (int too_few = 0, enough = n_blocks + 1; enough - too_few > 1;) {
            const int n = (too_few + enough) / 2;
            plan p;
            t->cfg.recompute = (recompute_spec){part, t->run.m->n_blocks - n, 1};
            TRY(plan_make(t, t->cfg.plan_rank, false, &p));
            const bool fits = p.memory_bytes[MEM_TOTAL] <= have;
            *(fits ? &enough : &too_few) = n;
            if (fits && p.flops < least_flops) {
                best = t->cfg.recompute;
                least_flops = p.flops;
            }
        }
    }
    t->cfg.recompute = best;
    t->cfg.recompute_short = least_flops == INFINITY;
    return FSDP_OK;
}

void trainer_print_recompute(const trainer *t, FILE *out)
{
    static const char *const parts[] = {"nothing", "all layers", "attention", "mlp"};
    const recompute_spec *spec = &t->cfg.recompute;
    if (spec->part == RECOMPUTE_NOTHING && !t->cfg.recompute_auto)
        return;
    fprintf(out, "recompute: %s", parts[spec->part]);
    if (spec->part != RECOMPUTE_NOTHING)
        fprintf(out, " of blocks from %d on", spec->from);
    if (spec->every > 1)
        fprintf(out, ", one of %d", spec->every);
    if (t->n_cut > 0)
        fprintf(out, "; units cut the layers of %d block%s apart, and each part keeps its input",
                t->n_cut, t->n_cut == 1 ? "" : "s");
    fprintf(out, "%s\n",
            t->cfg.recompute_short  ? " (auto: no choice fits)"
            : t->cfg.recompute_auto ? " (auto)"
                                    : "");
}
