/* prefetch_queries.c -- provided, no task: functions that the tasks call; which units count. */
#include "lab2_forward/freeze.h"
#include "lab5_prefetch/prefetch_impl.h"

/* ---- the order of units ---------------------------------------------------------------------- */

static int neighbour(const exec_order *o, int u, int step)
{
    for (int i = 0; i < o->n; i++)
        if (o->units[i] == u)
            return i + step >= 0 && i + step < o->n ? o->units[i + step] : NO_UNIT;
    return NO_UNIT;
}

int order_after(const exec_order *o, int u)
{
    return neighbour(o, u, 1);
}

int order_before(const exec_order *o, int u)
{
    return neighbour(o, u, -1);
}

/* ---- tasks that are not written -------------------------------------------------------------- */

bool prefetch_unwritten(prefetch *p, fsdp_status status)
{
    if (status != FSDP_ETODO || strncmp(fsdp_error_get()->what, "task 5.", 7) != 0)
        return false; /* training cannot do without a task of another lab */
    bool *told = p->config.told;
    if (told && !*told && comm_rank(p->r->f->run.world) == 0)
        fprintf(stderr, "note: lab 5: %s; training goes on without what it would overlap\n",
                fsdp_error_get()->what);
    if (told)
        *told = true;
    return true;
}

/* ---- the limiter's books --------------------------------------------------------------------- */

/* Units that are resharded after every use. Not the root, and not units that stay after forward. */
static bool is_limited(const prefetch *p, int u)
{
    return u != UNIT_ROOT && !p->r->f->units[u].stays_after_forward;
}

/* The limiter counts a unit and its companion as one, because together they hold the parameters of
 * one wrapped unit. A gathered unit may have a companion that is not gathered (freeze.h). */
fsdp_status prefetch_unshard(prefetch *p, int u, bool ahead)
{
    fsdp *f = p->r->f;
    if (u < 0 || u >= f->n_units)
        return fsdp_error(FSDP_EINVAL, "NO_UNIT says that there is nothing to gather",
                          "prefetch_unshard: got unit %d, expected 0 to %d", u, f->n_units - 1);
    const bool begins = f->units[u].state == UNIT_SHARDED;
    if (!unit_is_used(f, u) || (ahead && !begins))
        return FSDP_OK;
    if (begins && is_limited(p, u)) {
        bool granted = false;
        fsdp_status status = limiter_acquire(&p->limiter, ahead, &granted);
        if (!prefetch_unwritten(p, status)) {
            TRY(status);
            if (!granted)
                return FSDP_OK;
            p->limiter.held[u] = true;
        }
    }
    p->given.n_begun[ahead] += begins;
    return unshard_begin(f, u);
}

fsdp_status prefetch_release(prefetch *p, int u, stream *s)
{
    if (!p->limiter.held[u] || p->r->f->units[u].state != UNIT_SHARDED)
        return FSDP_OK;
    p->limiter.held[u] = false;
    return limiter_release(&p->limiter, s);
}
