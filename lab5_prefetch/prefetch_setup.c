/* prefetch_setup.c -- provided, no task: streams and groups of lab 5, and the table of hooks. The
 * hooks call the functions of the tasks; if one is not written, they do what labs 2 and 3 do. */
#include <stdlib.h>
#include "common/comm/comm.h"
#include "lab2_forward/fsdp_setup.h"
#include "lab2_forward/unshard.h"
#include "lab3_backward/reducer_setup.h"
#include "lab5_prefetch/prefetch_impl.h"

/* ---- the table of hooks ---------------------------------------------------------------------- */

/* Print a note if the order of units has changed, at number `at`. */
static void say_changed(prefetch *p, const exec_order *o, const char *pass, int before, int at)
{
    const fsdp *f = p->r->f;
    if (o->changes == before || comm_rank(f->run.world) != 0)
        return;
    fprintf(stderr,
            "note: prefetch: the order of units has changed in %s, at number %d (%s); it is "
            "recorded anew\n",
            pass, at, o->n > at ? f->units[o->units[at]].name : "the end");
}

static fsdp_status begin_order(prefetch *p, exec_order *o, const char *pass)
{
    int before = o->changes;
    fsdp_status status = order_begin(o);
    say_changed(p, o, pass, before, o->n);
    return prefetch_unwritten(p, status) ? FSDP_OK : status;
}

static fsdp_status begin_micro(void *self, int a, int n_micro, bool training)
{
    prefetch *p = self;
    fsdp *f = p->r->f;
    TRY(reducer_begin_micro(p->r, a, n_micro, training));
    TRY(event_sync(p->given.ended[p->given.n_ended % 2])); /* the micro-step before the last one */
    for (int u = 0; u < f->n_units; u++) /* units that were resharded between steps */
        TRY(prefetch_release(p, u, f->compute));
    TRY(begin_order(p, &p->forward, "forward"));
    TRY(begin_order(p, &p->post_forward, "the ends of forward"));
    fsdp_status status = prefetch_begin_micro(p, a, n_micro, training);
    return prefetch_unwritten(p, status) ? FSDP_OK : status;
}

static fsdp_status pre_forward(void *self, int u)
{
    prefetch *p = self;
    int before = p->forward.changes;
    fsdp_status status = prefetch_pre_forward(p, u);
    say_changed(p, &p->forward, "forward", before, p->forward.next - 1);
    return prefetch_unwritten(p, status) ? forward_pre_hook(p->r->f, u) : status;
}

static fsdp_status post_forward(void *self, int u)
{
    prefetch *p = self;
    TRY(reducer_leave_forward(p->r, u));
    fsdp_status status = prefetch_post_forward(p, u);
    if (prefetch_unwritten(p, status))
        status = forward_post_hook(p->r->f, u);
    TRY(status);
    return prefetch_release(p, u, p->r->f->compute);
}

static fsdp_status pre_backward(void *self, int u)
{
    prefetch *p = self;
    p->r->f->given.in_backward = true;
    fsdp_status status = prefetch_pre_backward(p, u);
    if (!prefetch_unwritten(p, status))
        return status;
    return p->r->grads[u].visited ? FSDP_OK : backward_pre_hook(p->r, u);
}

static fsdp_status post_backward(void *self, int u)
{
    prefetch *p = self;
    fsdp_status status = prefetch_post_backward(p, u);
    if (prefetch_unwritten(p, status))
        status = backward_post_hook(p->r, u);
    TRY(status);
    return prefetch_release(p, u, p->r->f->compute);
}

static fsdp_status end_backward(void *self)
{
    prefetch *p = self;
    fsdp *f = p->r->f;
    for (int u = 0; u < f->n_units; u++)
        p->given.drops[u] = f->units[u].state == UNIT_GATHERING;
    fsdp_status status = prefetch_end_backward(p);
    if (prefetch_unwritten(p, status)) {
        for (int u = 0; u < f->n_units; u++)
            TRY(unshard_drop(f, u));
        status = backward_end_hook(p->r);
    }
    TRY(status);
    for (int u = 0; u < f->n_units; u++)
        TRY(prefetch_release(p, u, p->given.drops[u] ? f->gather_stream : f->compute));
    return event_record(p->given.ended[p->given.n_ended++ % 2], f->compute);
}

/* ---- life ------------------------------------------------------------------------------------ */

/* Every group is used on one stream only. */
struct group_twin {
    const stream *on;
    comm *lab2, *apart; /* borrowed: lab 2's group; owned: the same ranks, for stream `on` */
};

/* Put the twin of *group on stream `on` into its place. Units that share a group share its twin. */
static fsdp_status take_twin(prefetch *p, const stream *on, comm **group)
{
    struct group_twin *twins = p->given.twins;
    int i = 0;
    while (i < p->given.n_twins && (twins[i].on != on || twins[i].lab2 != *group))
        i++;
    if (*group && i == p->given.n_twins) {
        TRY(comm_range(*group, 0, 1, comm_size(*group), &twins[i].apart));
        twins[i].on = on;
        twins[i].lab2 = *group;
        p->given.n_twins++;
    }
    *group = *group ? twins[i].apart : NULL;
    return FSDP_OK;
}

static void give_back(const prefetch *p, comm **group)
{
    for (int i = 0; i < p->given.n_twins; i++)
        if (p->given.twins[i].apart == *group)
            *group = p->given.twins[i].lab2;
}

static fsdp_status communicate_apart(prefetch *p)
{
    fsdp *f = p->r->f;
    f->gather_stream = p->given.gather_stream;
    f->reduce_stream = p->given.reduce_stream;
    for (int u = 0; u < f->n_units; u++)
        TRY(take_twin(p, f->gather_stream, &f->units[u].given.place.gather_group));
    for (int u = 0; u < f->n_units; u++)
        TRY(take_twin(p, f->reduce_stream, &f->units[u].given.place.reduce_group));
    unit_use_groups(f, UNIT_ROOT);
    return FSDP_OK;
}

static fsdp_status check_config(const prefetch_config *config)
{
    if (config->limit < 1 || config->limit > PREFETCH_MAX_LIMIT)
        return fsdp_error(FSDP_EINVAL, "pass --limit-all-gathers 2",
                          "prefetch_create: a limit of %d gathers, expected 1 to %d", config->limit,
                          PREFETCH_MAX_LIMIT);
    if (config->mode == PREFETCH_AUTO || config->mode == PREFETCH_NONE)
        return fsdp_error(FSDP_EINVAL, "choose a mode first; without overlap use lab 3's hooks",
                          "prefetch_create: mode %d overlaps nothing", (int)config->mode);
    return FSDP_OK;
}

static fsdp_status create(prefetch *p, int limit)
{
    device *d = p->r->f->run.dev;
    const size_t n_units = (size_t)p->r->f->n_units;
    limiter *l = &p->limiter;
    *l = (limiter){.limit = limit, .capacity = limit + 1 + (int)n_units};
    p->forward.units = calloc(n_units, sizeof *p->forward.units);
    p->post_forward.units = calloc(n_units, sizeof *p->post_forward.units);
    p->given.drops = calloc(n_units, sizeof *p->given.drops);
    p->given.twins = calloc(2 * n_units, sizeof *p->given.twins);
    l->held = calloc(n_units, sizeof *l->held);
    l->freed = calloc((size_t)l->capacity, sizeof *l->freed);
    if (!p->forward.units || !p->post_forward.units || !p->given.drops || !p->given.twins ||
        !l->held || !l->freed)
        return fsdp_error(FSDP_ENOMEM, "", "prefetch_create: no host memory");
    TRY(comm_stream_create(d, "gather", &p->given.gather_stream));
    TRY(comm_stream_create(d, "reduce", &p->given.reduce_stream));
    TRY(event_create(d, &p->updated));
    TRY(event_create(d, &p->given.ended[0]));
    TRY(event_create(d, &p->given.ended[1]));
    for (int i = 0; i < l->capacity; i++)
        TRY(event_create(d, &l->freed[i]));
    return FSDP_OK;
}

fsdp_status prefetch_create(const prefetch_config *config, reducer *r, prefetch *p, unit_hooks *out)
{
    *p = (prefetch){.config = *config, .r = r, .reducing = NO_UNIT};
    fsdp_status status = check_config(config);
    if (status == FSDP_OK)
        status = create(p, config->limit);
    status = comm_agree(r->f->run.world, status);
    if (status == FSDP_OK)
        status = communicate_apart(p);
    if (status != FSDP_OK) {
        fsdp_error_info why = *fsdp_error_get();
        prefetch_free(p);
        fsdp_error_set(&why);
        return status;
    }
    *out = (unit_hooks){.self = p,
                        .begin_micro = begin_micro,
                        .pre_forward = pre_forward,
                        .post_forward = post_forward,
                        .pre_backward = pre_backward,
                        .post_backward = post_backward,
                        .end_backward = end_backward};
    return FSDP_OK;
}

void prefetch_free(prefetch *p)
{
    if (!p->r)
        return;
    fsdp *f = p->r->f;
    stream_free(p->given.gather_stream); /* waits for work in flight */
    stream_free(p->given.reduce_stream);
    f->gather_stream = f->reduce_stream = f->comm_stream;
    for (int u = 0; u < f->n_units; u++) {
        give_back(p, &f->units[u].given.place.gather_group);
        give_back(p, &f->units[u].given.place.reduce_group);
    }
    unit_use_groups(f, UNIT_ROOT);
    f->gather_after = NULL;
    for (int i = 0; i < p->given.n_twins; i++)
        comm_close(p->given.twins[i].apart);
    free(p->given.twins);
    event_free(p->updated);
    event_free(p->given.ended[0]);
    event_free(p->given.ended[1]);
    for (int i = 0; p->limiter.freed && i < p->limiter.capacity; i++)
        event_free(p->limiter.freed[i]);
    free(p->limiter.freed);
    free(p->limiter.held);
    free(p->given.drops);
    free(p->forward.units);
    free(p->post_forward.units);
    *p = (prefetch){0};
}
