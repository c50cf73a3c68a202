/* prefetch_lib.c -- see prefetch_lib.h. */
#include "tests/grade/prefetch_lib.h"
#include <stdlib.h>
#include <string.h>

const char *mode_name(prefetch_mode mode)
{
    static const char *const names[] = {"none",    "backward", "backward-post",
                                        "forward", "both",     "auto"};
    return names[mode];
}

fsdp_status with_prefetch(fixture *fx, prefetch_mode mode, int limit, prefetch_part part)
{
    prefetch *p = calloc(1, sizeof *p); /* threads of a failed run may still look at it */
    unit_hooks unused;
    TRY(prefetch_create(&(prefetch_config){.mode = mode, .limit = limit}, &fx->r, p, &unused));
    fsdp_status status = part(fx, p);
    if (grade_is_broken(status))
        return status;
    if (status == FSDP_OK && fx->verdict != FSDP_OK) {
        status = fx->verdict;
        fsdp_error_set(&fx->info);
    }
    status = comm_agree(fx->world, status);
    if (status != FSDP_OK && status != FSDP_ETODO)
        return status;
    fsdp_error_info why = *fsdp_error_get();
    TRY(put_back(fx, p));
    prefetch_free(p);
    free(p);
    fsdp_error_set(&why);
    return status;
}

fsdp_status put_back(fixture *fx, prefetch *p)
{
    TRY(stream_sync(fx->compute));
    TRY(stream_sync(p->given.gather_stream));
    TRY(stream_sync(p->given.reduce_stream));
    for (int u = 0; u < fx->f.n_units; u++) {
        fsdp_unit *unit = &fx->f.units[u];
        unit_grad *g = &fx->r.grads[u];
        device_free(fx->compute, unit->full);
        device_free(fx->compute, g->buffer.full_grad);
        unit->full = NULL;
        unit->state = UNIT_SHARDED;
        g->buffer.full_grad = NULL;
        grad_acc_free(&g->buffer.acc, fx->compute);
        g->reducing = g->visited = false;
        p->limiter.held[u] = false;
    }
    p->limiter.n_held = p->limiter.n_freed = 0;
    p->reducing = NO_UNIT;
    return stream_sync(fx->compute);
}

void know_order(exec_order *o, const int *units, int n)
{
    memcpy(o->units, units, (size_t)n * sizeof *units);
    o->n = n;
    o->next = 0;
    o->complete = n > 0;
}

void expect_units(fixture *fx, const char *what, const exec_order *o, const int *units, int n)
{
    note(fx, expect_int(WHAT("%s: units known", what), o->n, n));
    for (int i = 0; i < n && i < o->n; i++) {
        note(fx, expect_int(WHAT("%s: unit number %d", what, i), o->units[i], units[i]));
    }
}

void issued_start(fixture *fx)
{
    fx->in_all_groups = true;
    fix_trace_start(fx);
}

void expect_begun(fixture *fx, prefetch *p, const char *what, int needed, int ahead)
{
    const int want[2] = {needed, ahead};
    for (int i = 0; i < 2; i++) {
        note(fx, expect_int(WHAT("%s: gathers begun by prefetch_unshard, ahead = %s", what,
                                 i ? "true" : "false"),
                            p->given.n_begun[i], want[i]));
        p->given.n_begun[i] = 0;
    }
}

fsdp_status expect_gathered(fixture *fx, const char *what, int u)
{
    note(fx, fix_check_full(fx, what, u, 0.0f, fx->compute));
    return FSDP_OK;
}

static bool compute_reaches(fixture *fx, int limit_ms)
{
    event *here;
    if (event_create(fx->dev, &here) != FSDP_OK || event_record(here, fx->compute) != FSDP_OK)
        return false;
    bool reached = reaches(here, fx->verdict == FSDP_OK ? limit_ms : 0);
    event_free(here);
    return reached;
}

void expect_runs(fixture *fx, const char *hint, const char *what)
{
    note(fx, EXPECT(compute_reaches(fx, SOON_MS), hint,
                    "%s: compute stood still, expected it to go on", what));
}

void expect_stands(fixture *fx, const char *hint, const char *what)
{
    note(fx, EXPECT(!compute_reaches(fx, NEVER_MS), hint,
                    "%s: compute went on, expected it to wait", what));
}
