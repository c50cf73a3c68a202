/* matrix_draw_lib.c -- see matrix_draw_lib.h.
 *
 * The search is greedy: first for pairs, then for triples. A cell starts with a pair or triple that
 * no cell has yet. The other axes, in random order, take the value that adds the most new pairs and
 * triples. The best of TRIES such cells is kept. */
#include "tests/equivalence/matrix_draw_lib.h"
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tests/equivalence/suite_lib.h"

enum { TRIES = 24, FREE = -1 };

/* ---- the table ------------------------------------------------------------------------------- */

static bool is_triple_axis(const matrix *m, int i)
{
    return MATRIX_AXES[m->axis[i]].flags & MATRIX_TRIPLES;
}

static void read_axes(matrix *m)
{
    for (const matrix_axis *a = MATRIX_AXES; a->name; a++) {
        FSDP_ASSERT(m->n_axes < MATRIX_MOST_AXES);
        m->first[m->n_axes] = m->n_values;
        for (int v = 0; a->values[v]; v++, m->n_values++) {
            FSDP_ASSERT(m->n_values < MATRIX_MOST_IN_ALL);
            m->axis[m->n_values] = m->n_axes;
            m->words[m->n_values] = a->values[v];
        }
        m->first[++m->n_axes] = m->n_values;
    }
}

bool matrix_means(const matrix *m, const char *pattern, int i)
{
    return fnmatch(pattern, m->words[i], 0) == 0;
}

/* A pattern that matches no value is a mistake in the table. */
static fsdp_status check_pattern(const matrix *m, const char *pattern)
{
    bool found = strpbrk(pattern, "*?[") == NULL;
    for (int i = 0; i < m->n_values; i++)
        found = found || matrix_means(m, pattern, i);
    return found ? FSDP_OK
                 : fsdp_error(FSDP_EINVAL, "correct MATRIX_REFUSALS",
                              "the table of options: no value is like '%s'", pattern);
}

fsdp_status matrix_open(matrix *m, const matrix_place *at)
{
    *m = (matrix){.at = at};
    read_axes(m);
    for (const matrix_refusal *r = MATRIX_REFUSALS; r->a; r++) {
        TRY(check_pattern(m, r->a));
        if (r->b)
            TRY(check_pattern(m, r->b));
        if (!matrix_is_refused_at(r, at))
            continue;
        for (int i = 0; i < m->n_values; i++) {
            m->is_refused[i] |= !r->b && matrix_means(m, r->a, i);
            for (int j = 0; r->b && j < m->n_values; j++)
                if (matrix_means(m, r->a, i) && matrix_means(m, r->b, j))
                    m->excludes[i][j] = m->excludes[j][i] = true;
        }
    }
    const size_t n = (size_t)m->n_values;
    m->covered = calloc(n * n * n + n * n, 1);
    m->cells = calloc(MATRIX_MOST_CELLS, sizeof *m->cells);
    return m->covered && m->cells ? FSDP_OK : fsdp_error(FSDP_ENOMEM, "", "matrix: no memory");
}

void matrix_close(matrix *m)
{
    free(m->covered);
    free(m->cells);
    *m = (matrix){0};
}

fsdp_status matrix_fix(matrix *m, const char *fix)
{
    const char *pattern = strchr(fix, '=');
    const size_t chars = pattern ? (size_t)(pattern - fix) : 0;
    int left = 0;
    for (int i = 0; i < m->n_values && pattern; i++) {
        const char *name = MATRIX_AXES[m->axis[i]].name;
        if (strlen(name) != chars || strncmp(name, fix, chars) != 0)
            continue;
        m->is_fixed_out[i] = !matrix_means(m, pattern + 1, i);
        left += !m->is_fixed_out[i];
    }
    return left > 0 ? FSDP_OK
                    : fsdp_error(FSDP_EINVAL, "pass --fix AXIS=PATTERN of matrix_table_lib.c",
                                 "--fix: no value is like '%s'", fix);
}

/* ---- what may be together -------------------------------------------------------------------- */

bool matrix_is_in(const matrix *m, int i)
{
    return !m->is_fixed_out[i] && !m->is_refused[i];
}

bool matrix_may_meet(const matrix *m, int i, int j)
{
    return m->axis[i] != m->axis[j] && matrix_is_in(m, i) && matrix_is_in(m, j) &&
           !m->excludes[i][j];
}

/* Refuse each value that all values of another axis exclude. Returns whether any was refused. */
static bool refuse_excluded(matrix *m)
{
    bool changed = false;
    for (int i = 0; i < m->n_values; i++)
        for (int a = 0; a < m->n_axes && matrix_is_in(m, i); a++) {
            bool meets = a == m->axis[i];
            for (int j = m->first[a]; j < m->first[a + 1]; j++)
                meets = meets || matrix_may_meet(m, i, j);
            m->is_refused[i] = !meets;
            changed = changed || !meets;
        }
    return changed;
}

/* ---- cells ----------------------------------------------------------------------------------- */

/* Values in any order. */
static unsigned char *pair_of(const matrix *m, int i, int j)
{
    return &m->covered[i * m->n_values + j];
}

static unsigned char *triple_of(const matrix *m, int i, int j, int k)
{
    return &m->covered[(m->n_values + i * m->n_values + j) * m->n_values + k];
}

/* How many new pairs and triples value i adds to the cell; -1: the cell cannot have value i. */
static int gain_of(const matrix *m, const matrix_cell *c, int i, bool with_triples)
{
    int gain = 0;
    if (!matrix_is_in(m, i))
        return -1;
    for (int a = 0; a < m->n_axes; a++) {
        const int j = c->value[a];
        if (j == FREE || a == m->axis[i])
            continue;
        if (!matrix_may_meet(m, i, j))
            return -1;
        gain += !*pair_of(m, i, j);
        for (int b = 0; b < a && with_triples; b++) {
            const int k = c->value[b];
            if (k != FREE && b != m->axis[i] && is_triple_axis(m, i) && is_triple_axis(m, j) &&
                is_triple_axis(m, k))
                gain += !*triple_of(m, i, j, k);
        }
    }
    return gain;
}

/* Give a free axis its best value: a random one of equally good values, or, on a costly axis, the
 * first of them. */
static int fill_axis(matrix *m, matrix_cell *c, int a, bool with_triples)
{
    int best = -1, n_best = 0;
    for (int i = m->first[a]; i < m->first[a + 1]; i++) {
        const int gain = gain_of(m, c, i, with_triples);
        if (gain < 0 || gain < best)
            continue;
        n_best = gain > best ? 1 : n_best + 1;
        best = gain;
        const bool keeps_first = MATRIX_AXES[a].flags & MATRIX_COSTLY;
        if (n_best == 1 || (!keeps_first && suite_draw(&m->rng) % (uint64_t)n_best == 0))
            c->value[a] = (short)i;
    }
    return best;
}

/* Fill all free axes. Returns the gain, or -1 if an axis has no possible value. */
static int fill_cell(matrix *m, matrix_cell *c, bool with_triples)
{
    int order[MATRIX_MOST_AXES], gain = 0;
    for (int a = 0; a < m->n_axes; a++) {
        const int at = (int)(suite_draw(&m->rng) % (uint64_t)(a + 1));
        order[a] = order[at];
        order[at] = a;
    }
    for (int a = 0; a < m->n_axes; a++) {
        if (c->value[order[a]] != FREE)
            continue;
        const int more = fill_axis(m, c, order[a], with_triples);
        if (more < 0)
            return -1;
        gain += more;
    }
    return gain;
}

static void keep(matrix *m, const matrix_cell *c)
{
    FSDP_ASSERT(m->n_cells < MATRIX_MOST_CELLS);
    m->cells[m->n_cells++] = *c;
    for (int a = 0; a < m->n_axes; a++)
        for (int b = 0; b < m->n_axes; b++) {
            *pair_of(m, c->value[a], c->value[b]) = 1;
            for (int d = 0; d < m->n_axes; d++)
                *triple_of(m, c->value[a], c->value[b], c->value[d]) = 1;
        }
}

/* Cells of one recipe share a run on one device. Give *c the recipe of an earlier cell that fits
 * its values. If no cell fits, leave *c unchanged. */
static void borrow_recipe(matrix *m, matrix_cell *c)
{
    const int first = m->n_cells > 0 ? suite_draw_range(&m->rng, 0, m->n_cells - 1) : 0;
    for (int k = 0; k < m->n_cells; k++) {
        const matrix_cell *from = &m->cells[(first + k) % m->n_cells];
        matrix_cell with = *c;
        bool fits = true;
        for (int a = 0; a < m->n_axes && fits; a++)
            if (MATRIX_AXES[a].flags & (MATRIX_RECIPE | MATRIX_FAST_RECIPE)) {
                fits = c->value[a] == FREE || c->value[a] == from->value[a];
                with.value[a] = from->value[a];
                fits = fits && strcmp(m->words[with.value[a]], "%M") != 0 &&
                       gain_of(m, &with, with.value[a], false) >= 0;
            }
        if (fits) {
            *c = with;
            return;
        }
    }
}

/* Add a cell that has values i, j and, unless k is FREE, k. */
static fsdp_status draw_cell(matrix *m, int i, int j, int k, bool with_triples)
{
    matrix_cell best;
    int best_gain = -1;
    for (int try = 0; try < TRIES; try++) {
        matrix_cell c = {.was_run = false};
        for (int a = 0; a < m->n_axes; a++)
            c.value[a] = FREE;
        c.value[m->axis[i]] = (short)i;
        c.value[m->axis[j]] = (short)j;
        if (k != FREE)
            c.value[m->axis[k]] = (short)k;
        if (k != FREE)
            borrow_recipe(m, &c);
        const int gain = fill_cell(m, &c, with_triples);
        if (gain > best_gain) {
            best_gain = gain;
            best = c;
        }
    }
    if (best_gain >= 0) {
        keep(m, &best);
        return FSDP_OK;
    }
    return fsdp_error(FSDP_EINVAL, "add a row to MATRIX_REFUSALS",
                      "no cell can have '%s' and '%s'%s%s%s", m->words[i], m->words[j],
                      k == FREE ? "" : " and '", k == FREE ? "" : m->words[k],
                      k == FREE ? "" : "'");
}

/* ---- pairs and triples ----------------------------------------------------------------------- */

/* A triple of values i > j > k, or a pair i > j (k == FREE). */
typedef struct group {
    int i, j, k;
} group;

static bool must_cover(const matrix *m, const group *g, bool with_triples)
{
    if (!matrix_may_meet(m, g->i, g->j))
        return false;
    if (g->k == FREE)
        return true;
    return with_triples && matrix_may_meet(m, g->i, g->k) && matrix_may_meet(m, g->j, g->k) &&
           is_triple_axis(m, g->i) && is_triple_axis(m, g->j) && is_triple_axis(m, g->k);
}

/* Step to the next group that cells must have; false: no group is left. The triples of values i and
 * j come before the pair. */
static bool next_group(const matrix *m, group *g, bool with_triples)
{
    do {
        if (--g->k >= FREE)
            continue;
        if (--g->j < 0) {
            if (--g->i < 1)
                return false;
            g->j = g->i - 1;
        }
        g->k = g->j - 1;
    } while (!must_cover(m, g, with_triples));
    return true;
}

static group first_group(const matrix *m)
{
    return (group){.i = m->n_values - 1, .j = m->n_values - 1, .k = FREE};
}

fsdp_status matrix_draw(matrix *m, uint64_t seed, bool with_triples)
{
    m->rng = seed;
    while (refuse_excluded(m))
        ;
    for (int triples = 0; triples <= with_triples; triples++)
        for (group g = first_group(m); next_group(m, &g, triples);) {
            if ((g.k != FREE) != triples)
                continue;
            const bool had = triples ? *triple_of(m, g.i, g.j, g.k) : *pair_of(m, g.i, g.j);
            if (!had)
                TRY(draw_cell(m, g.i, g.j, g.k, with_triples));
        }
    return FSDP_OK;
}

static bool has(const matrix *m, const matrix_cell *c, const group *g)
{
    return c->was_run && c->value[m->axis[g->i]] == g->i && c->value[m->axis[g->j]] == g->j &&
           (g->k == FREE || c->value[m->axis[g->k]] == g->k);
}

matrix_coverage matrix_count(const matrix *m, bool with_triples)
{
    matrix_coverage n = {0};
    for (group g = first_group(m); next_group(m, &g, with_triples);) {
        bool found = false;
        for (int c = 0; c < m->n_cells && !found; c++)
            found = has(m, &m->cells[c], &g);
        *(g.k == FREE ? &n.pairs : &n.triples) += 1;
        n.missing += !found;
        if (!found && n.missing == 1)
            snprintf(n.first, sizeof n.first, "%s '%s' with %s '%s'%s%s",
                     MATRIX_AXES[m->axis[g.i]].name, m->words[g.i], MATRIX_AXES[m->axis[g.j]].name,
                     m->words[g.j], g.k == FREE ? "" : " and ", g.k == FREE ? "" : m->words[g.k]);
    }
    return n;
}
