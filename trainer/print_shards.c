/* print_shards.c -- --print-shards: print which rank holds which part of each parameter.
 *
 * The units are laid out again for the job's number of ranks, without allocating device memory. */
#include <stdlib.h>
#include "common/model/tensor_parallel.h"
#include "lab1_flatparam/dim0.h"
#include "trainer/trainer.h"

/* Columns for the first ranks of a shard group, and for its last rank. */
enum { MOST_COLUMNS = 8 };
/* Values of `slot` for rows that are not about a slot. */
enum { RANKS = -2, PADDING = -1 };

/* *elems = the number of elements of a slot, or of padding, that a rank has. */
static fsdp_status count_elems(const fsdp_unit *u, int rank, int slot, size_t *elems)
{
    flat_piece *pieces;
    int n;
    TRY(unit_shard_pieces(u, rank, &pieces, &n));
    *elems = slot == PADDING ? u->layout.shard_elems : 0;
    for (int i = 0; i < n; i++)
        if (slot == PADDING)
            *elems -= pieces[i].elems;
        else if (pieces[i].slot == slot)
            *elems = pieces[i].elems;
    free(pieces);
    return FSDP_OK;
}

static fsdp_status print_row(const fsdp_unit *u, int slot, const char *name, const char *shape,
                             FILE *out)
{
    const flat_layout *l = &u->layout;
    const size_t row_elems = l->row_ranks > 0 && slot >= 0 ? l->rows[slot].row_elems : 1;
    fprintf(out, "  %-34s %12s ", name, shape);
    for (int k = 0; k < l->world_size && k < MOST_COLUMNS; k++) {
        const int rank = k == MOST_COLUMNS - 1 ? l->world_size - 1 : k;
        size_t cell = (size_t)rank;
        if (slot != RANKS)
            TRY(count_elems(u, rank, slot, &cell));
        fprintf(out, "%s %9zu", rank > k ? " ..." : "", cell / row_elems);
    }
    fprintf(out, "\n");
    return FSDP_OK;
}

static fsdp_status print_unit(const fsdp *f, int first, int last, FILE *out)
{
    const fsdp_unit *u = &f->units[first];
    const flat_layout *l = &u->layout;
    fprintf(out, "%s%s%s: %zu elements gathered, %zu in a shard\n", u->name,
            last > first ? " ... " : "", last > first ? f->units[last].name : "", l->padded_elems,
            l->shard_elems);
    TRY(print_row(u, RANKS, l->row_ranks > 0 ? "rows of rank" : "elements of rank", "shape", out));
    for (int i = 0; i < l->n_slots; i++) {
        const param_spec *p = &f->run.m->params[l->slots[i].param];
        char shape[96];
        int chars = snprintf(shape, sizeof shape, "%zu", p->dims[0]);
        for (int d = 1; d < p->n_dims; d++)
            chars += snprintf(shape + chars, sizeof shape - (size_t)chars, "x%zu", p->dims[d]);
        TRY(print_row(u, i, p->name, shape, out));
    }
    return print_row(u, PADDING, "padding, elements", "", out);
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
    fsdp_config config = trainer_fsdp_config(t);
    mesh_shape shape;
    fsdp f;
    model m;
    int size[N_AXES];
    trainer_config_mesh(&t->cfg, size);
    TRY(mesh_shape_make(t->cfg.n_ranks, size, 0, &shape));
    TRY(model_copy(t->run.m, &m));
    config.run.m = &m;
    fsdp_status status = model_share(&m, shape.at[AXIS_TP], shape.size[AXIS_TP], false);
    IF_OK(status, fsdp_lay_out(&config, &shape, &f));
    if (status != FSDP_OK) {
        model_free(&m);
        return status;
    }
    fprintf(out, "shards: layout %s, %d to a group, %d replica%s of each\n",
            config.per_param ? "per-param" : "flat", mesh_row_size(&shape),
            shape.size[AXIS_REPLICATE], shape.size[AXIS_REPLICATE] == 1 ? "" : "s");
    status = print_units(&f, out);
    fsdp_free(&f);
    model_free(&m);
    return status;
}
