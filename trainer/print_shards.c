/* print_shards.c -- --print-shards: which rank holds which part of which parameter.
 *
 * The units are laid out again, for the job's number of ranks: nothing is allocated on a device. */
#include <stdlib.h>
#include "lab1_flatparam/dim0.h"
#include "lab4_optimizer/checkpoint.h"
#include "trainer/trainer.h"

enum { MOST_COLUMNS = 8 };

/* What the first ranks of a shard group have, and its last one. */
typedef size_t cells[MOST_COLUMNS];

static int rank_of_column(const flat_layout *l, int column)
{
    return column == MOST_COLUMNS - 1 ? l->world_size - 1 : column;
}

static void print_row(const flat_layout *l, const char *name, const char *shape, const cells row,
                      FILE *out)
{
    fprintf(out, "  %-34s %12s ", name, shape);
    for (int k = 0; k < l->world_size && k < MOST_COLUMNS; k++)
        fprintf(out, "%s %9zu", rank_of_column(l, k) > k ? " ..." : "", row[k]);
    fprintf(out, "\n");
}

/* Fill in rows [n_slots] with elements, row [n_slots] with padding, and the last one with ranks. */
static fsdp_status count_elems(const flat_layout *l, cells *rows)
{
    for (int k = 0; k < l->world_size && k < MOST_COLUMNS; k++) {
        const int rank = rank_of_column(l, k);
        flat_piece *pieces;
        int n;
        TRY(ckpt_shard_pieces(l, rank, &pieces, &n));
        rows[l->n_slots][k] = l->shard_elems;
        rows[l->n_slots + 1][k] = (size_t)rank;
        for (int i = 0; i < n; i++) {
            rows[pieces[i].slot][k] = pieces[i].elems;
            rows[l->n_slots][k] -= pieces[i].elems;
        }
        free(pieces);
    }
    return FSDP_OK;
}

static void print_slot(const fsdp *f, const flat_layout *l, int slot, cells row, FILE *out)
{
    const param_spec *p = &f->run.m->params[l->slots[slot].param];
    char shape[48];
    const int chars = snprintf(shape, sizeof shape, "%zu", p->dims[0]);
    if (p->n_dims > 1)
        snprintf(shape + chars, sizeof shape - (size_t)chars, "x%zu", p->dims[1]);
    for (int k = 0; l->rows && k < MOST_COLUMNS; k++)
        row[k] /= l->rows[slot].row_elems;
    print_row(l, p->name, shape, row, out);
}

static fsdp_status print_unit(const fsdp *f, int first, int last, FILE *out)
{
    const flat_layout *l = &f->units[first].layout;
    const int n = l->n_slots;
    cells *rows = calloc((size_t)n + 2, sizeof *rows);
    fsdp_status status =
        rows ? count_elems(l, rows) : fsdp_error(FSDP_ENOMEM, "", "--print-shards: no host memory");
    fprintf(out, "%s%s%s: %zu elements gathered, %zu in a shard\n", f->units[first].name,
            last > first ? " ... " : "", last > first ? f->units[last].name : "", l->padded_elems,
            l->shard_elems);
    if (status == FSDP_OK) {
        print_row(l, l->rows ? "rows of rank" : "elements of rank", "shape", rows[n + 1], out);
        for (int i = 0; i < n; i++)
            print_slot(f, l, i, rows[i], out);
        print_row(l, "padding, elements", "", rows[n], out);
    }
    free(rows);
    return status;
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

static fsdp_status print_units(const fsdp *f, FILE *out)
{
    for (int u = 0, last; u < f->n_units; u = last + 1) {
        for (last = u; last + 1 < f->n_units; last++)
            if (!alike(&f->units[u].layout, &f->units[last + 1].layout))
                break;
        TRY(print_unit(f, u, last, out));
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
    fprintf(out, "shards: layout %s, %d to a group, %d replica%s of each\n",
            config.per_param ? "per-param" : "flat", shape.shard_size, shape.replicate_size,
            shape.replicate_size == 1 ? "" : "s");
    fsdp_status status = print_units(&f, out);
    fsdp_free(&f);
    return status;
}
