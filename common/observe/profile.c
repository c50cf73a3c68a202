/* profile.c -- the counters of a profile; see profile.h. profile_print.c prints them.
 *
 * One mutex guards all rows. A row is found by linear search: there are about thirty rows of
 * operations, which come first, and an operation takes longer than the search. */
#include "common/observe/profile.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include "common/base/clock.h"

struct profile {
    pthread_mutex_t lock;        /* guards all below */
    bool is_counting;            /* inside a step other than the first */
    bool is_warm;                /* a step has begun before */
    double step_began_s, last_s; /* valid while counting; last_s: time of the last profile_add */
    profile_totals totals;
    size_t n_rows;
    profile_row rows[PROFILE_MAX_ROWS]; /* [n_rows]; the first PROFILE_KINDS are named "other" */
};

profile *profile_create(profile_roof roof)
{
    profile *p = calloc(1, sizeof *p);
    if (!p)
        return NULL;
    pthread_mutex_init(&p->lock, NULL);
    p->totals.roof = roof;
    for (; p->n_rows < PROFILE_KINDS; p->n_rows++)
        p->rows[p->n_rows] = (profile_row){.kind = (profile_kind)p->n_rows, .key.name = "other"};
    return p;
}

void profile_free(profile *p)
{
    if (!p)
        return;
    pthread_mutex_destroy(&p->lock);
    free(p);
}

/* ---- steps ---------------------------------------------------------------------------------- */

/* Count the step, if one is open and is not the first. It ended with its last operation. */
static void count_step(profile *p)
{
    if (!p->is_counting)
        return;
    p->totals.steps++;
    p->totals.wall_s += p->last_s - p->step_began_s;
}

void profile_step_begin(profile *p)
{
    pthread_mutex_lock(&p->lock);
    count_step(p);
    p->is_counting = p->is_warm;
    p->is_warm = true;
    p->step_began_s = p->last_s = clock_now_s();
    pthread_mutex_unlock(&p->lock);
}

void profile_step_end(profile *p)
{
    pthread_mutex_lock(&p->lock);
    count_step(p);
    p->is_counting = false;
    pthread_mutex_unlock(&p->lock);
}

/* ---- rows ----------------------------------------------------------------------------------- */

static bool same_text(const char *a, const char *b)
{
    return a == b || (a && b && strcmp(a, b) == 0);
}

static bool same_key(const work_key *a, const work_key *b)
{
    return a->m == b->m && a->n == b->n && a->k == b->k && same_text(a->name, b->name) &&
           same_text(a->form, b->form);
}

/* The row of key, which may be new; the row "other" if there is no room. */
static profile_row *find_row(profile *p, profile_kind kind, const work_key *key)
{
    for (size_t i = PROFILE_KINDS; i < p->n_rows; i++)
        if (p->rows[i].kind == kind && same_key(&p->rows[i].key, key))
            return &p->rows[i];
    if (p->n_rows == PROFILE_MAX_ROWS)
        return &p->rows[kind];
    profile_row *row = &p->rows[p->n_rows++];
    *row = (profile_row){.kind = kind, .key = *key};
    if (kind >= PROFILE_EXPOSED) {
        snprintf(row->name, sizeof row->name, "%s", key->name);
        row->key.name = row->name;
    }
    return row;
}

static void work_cost_add(work_cost *sum, work_cost c)
{
    sum->flops += c.flops;
    sum->bytes += c.bytes;
    sum->bf16_flops += c.bf16_flops;
}

void profile_add(profile *p, profile_kind kind, const work_key *key, uint64_t n_calls,
                 double seconds, work_cost cost)
{
    FSDP_ASSERT((int)kind >= 0 && kind < PROFILE_KINDS);
    pthread_mutex_lock(&p->lock);
    if (p->is_counting) {
        if (kind < PROFILE_EXPOSED)
            p->last_s = clock_now_s();
        profile_row *row = find_row(p, kind, key);
        row->calls += n_calls;
        row->seconds += seconds;
        work_cost_add(&row->cost, cost);
        p->totals.seconds[kind] += seconds;
        work_cost_add(&p->totals.cost[kind], cost);
    }
    pthread_mutex_unlock(&p->lock);
}

/* ---- reading --------------------------------------------------------------------------------- */

double profile_unaccounted(const profile_totals *t)
{
    return t->wall_s - t->seconds[PROFILE_COMPUTE] - t->seconds[PROFILE_EXPOSED] -
           t->seconds[PROFILE_REST];
}

static int by_kind_and_seconds(const void *a, const void *b)
{
    const profile_row *x = a, *y = b;
    if (x->kind != y->kind)
        return x->kind < y->kind ? -1 : 1;
    return (x->seconds < y->seconds) - (x->seconds > y->seconds);
}

size_t profile_read(profile *p, profile_totals *t, profile_row *rows)
{
    size_t n = 0;
    pthread_mutex_lock(&p->lock);
    *t = p->totals;
    for (size_t i = 0; i < p->n_rows; i++)
        if (i >= PROFILE_KINDS || p->rows[i].calls > 0)
            rows[n++] = p->rows[i];
    pthread_mutex_unlock(&p->lock);
    qsort(rows, n, sizeof *rows, by_kind_and_seconds);
    return n;
}

const char *profile_row_name(const profile_row *row, char *text)
{
    const work_key *k = &row->key;
    if (k->form)
        snprintf(text, PROFILE_NAME_BYTES, "%s %zux%zux%zu %s", k->name, k->m, k->n, k->k, k->form);
    else
        snprintf(text, PROFILE_NAME_BYTES, "%s", k->name);
    return text;
}

/* The least time that the FLOPs of c take; negative if the bf16 peak is needed but not known. */
static double compute_s(const work_cost *c, profile_roof roof)
{
    double fp32_s = (c->flops - c->bf16_flops) / roof.flops_per_s;
    if (!(c->bf16_flops > 0))
        return fp32_s;
    return roof.bf16_flops_per_s > 0 ? fp32_s + c->bf16_flops / roof.bf16_flops_per_s : -1.0;
}

double profile_share(const profile_row *row, profile_roof roof, const char **binds)
{
    *binds = "-";
    if (row->kind >= PROFILE_COLLECTIVE || !(row->seconds > 0) || !(roof.flops_per_s > 0) ||
        !(roof.bytes_per_s > 0))
        return 0.0;
    double compute = compute_s(&row->cost, roof) / row->seconds;
    if (compute < 0)
        return 0.0;
    double memory = row->cost.bytes / row->seconds / roof.bytes_per_s;
    *binds = compute > memory ? "compute" : "memory";
    return compute > memory ? compute : memory;
}
