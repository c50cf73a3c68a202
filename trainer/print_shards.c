/* print_shards.c -- --print-shards: which rank holds which part of which parameter.
 *
 * The units are laid out again, for the job's number of ranks: nothing is allocated on a device. */
#include <stdlib.h>
#include <string.h>
#include "lab1_flatparam/dim0.h"
#include "trainer/trainer.h"

enum { MOST_COLUMNS = 8 };

/* One unit. */
typedef struct drawing {
    const fsdp *f;
    const flat_layout *l;
    int n_columns;      /* the first ranks of a shard group, and its last one */
    flat_piece *pieces; /* [parameters] scratch */
} drawing;

static int rank_of_column(const drawing *d, int column)
{
    return column == d->n_columns - 1 ? d->l->world_size - 1 : column;
}

/* *elems of a slot that the column's rank holds. */
static fsdp_status held(const drawing *d, int column, int slot, size_t *elems)
{
    int n = 0;
    *elems = 0;
    TRY(flat_intersect(d->l, rank_of_column(d, column), d->pieces, &n));
    for (int i = 0; i < n; i++)
        *elems += d->pieces[i].slot == slot ? d->pieces[i].elems : 0;
    return FSDP_OK;
}

static void print_row(const drawing *d, const char *name, const char *shape, const size_t *cells,
                      FILE *out)
{
    fprintf(out, "  %-34s %12s ", name, shape);
    for (int k = 0; k < d->n_columns; k++)
        fprintf(out, "%s %9zu",
                d->l->world_size > d->n_columns && k == d->n_columns - 1 ? " ..." : "", cells[k]);
    fprintf(out, "\n");
}

static fsdp_status print_slot(const drawing *d, int slot, size_t *padding, FILE *out)
{
    const param_spec *p = &d->f->run.m->params[d->l->slots[slot].param];
    size_t cells[MOST_COLUMNS];
    char shape[64] = "";
    for (int i = 0; i < p->n_dims; i++)
        snprintf(shape + strlen(shape), sizeof shape - strlen(shape), "%s%zu", i > 0 ? "x" : "",
                 p->dims[i]);
    for (int k = 0; k < d->n_columns; k++) {
        TRY(held(d, k, slot, &cells[k]));
        padding[k] -= cells[k];
        cells[k] /= d->l->rows ? d->l->rows[slot].row_elems : 1;
    }
    print_row(d, p->name, shape, cells, out);
    return FSDP_OK;
}

static fsdp_status print_unit(const drawing *d, int first, int last, FILE *out)
{
    size_t ranks[MOST_COLUMNS], padding[MOST_COLUMNS];
    const fsdp_unit *units = d->f->units;
    fprintf(out, "%s%s%s: %zu elements gathered, %zu in a shard\n", units[first].name,
            last > first ? " ... " : "", last > first ? units[last].name : "", d->l->padded_elems,
            d->l->shard_elems);
    for (int k = 0; k < d->n_columns; k++) {
        ranks[k] = (size_t)rank_of_column(d, k);
        padding[k] = d->l->shard_elems;
    }
    print_row(d, d->l->rows ? "rows of rank" : "elements of rank", "shape", ranks, out);
    for (int i = 0; i < d->l->n_slots; i++)
        TRY(print_slot(d, i, padding, out));
    print_row(d, "padding, elements", "", padding, out);
    return FSDP_OK;
}

/* Whether two units look alike: their parameters have the same rows and elements. */
static bool alike(const flat_layout *a, const flat_layout *b)
{
    bool same = a->n_slots == b->n_slots;
    for (int i = 0; same && i < a->n_slots; i++)
        same = a->slots[i].elems == b->slots[i].elems &&
               (!a->rows || a->rows[i].row_elems == b->rows[i].row_elems);
    return same;
}

static fsdp_status print_units(drawing *d, FILE *out)
{
    const fsdp *f = d->f;
    for (int u = 0, last; u < f->n_units; u = last + 1) {
        d->l = &f->units[u].layout;
        d->n_columns = d->l->world_size < MOST_COLUMNS ? d->l->world_size : MOST_COLUMNS;
        for (last = u; last + 1 < f->n_units && alike(d->l, &f->units[last + 1].layout);)
            last++;
        TRY(print_unit(d, u, last, out));
    }
    return FSDP_OK;
}

fsdp_status print_shards(const trainer *t, FILE *out)
{
    const fsdp_config config = trainer_fsdp_config(t);
    mesh_shape shape;
    fsdp f;
    TRY(mesh_shape_make(t->cfg.n_ranks, trainer_config_shard_size(&t->cfg, t->cfg.n_ranks), 0,
                        &shape));
    TRY(fsdp_lay_out(&config, &shape, &f));
    drawing d = {.f = &f, .pieces = calloc((size_t)t->m.n_params + 1, sizeof *d.pieces)};
    fprintf(out, "shards: layout %s, %d to a group, %d replica%s of each\n",
            config.per_param ? "per-param" : "flat", shape.shard_size, shape.replicate_size,
            shape.replicate_size == 1 ? "" : "s");
    fsdp_status status = d.pieces ? print_units(&d, out)
                                  : fsdp_error(FSDP_ENOMEM, "", "--print-shards: no host memory");
    free(d.pieces);
    fsdp_free(&f);
    return status;
}
