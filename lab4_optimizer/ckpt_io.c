/* ckpt_io.c -- provided: ckpt_save and ckpt_load, which call ckpt_pack and ckpt_unpack of task 4.5.
 *
 * Values pass through host memory, one array of one unit at a time, so a rank needs little extra
 * memory. Loading reads such an array piece by piece. */
#include <stdlib.h>
#include <string.h>
#include "common/base/dtype.h"
#include "common/comm/comm.h"
#include "lab2_forward/fsdp_setup.h"
#include "lab4_optimizer/checkpoint.h"
#include "lab4_optimizer/optimizer_setup.h"

float *ckpt_unit_array(const fsdp_optimizer *o, int u, int k)
{
    if (k == 0)
        return o->r->f->units[u].shard;
    return o->units ? o->units[u].state[k - 1] : NULL;
}

/* Work space of a save, on the host. */
typedef struct ckpt_work {
    float *shard;       /* [the longest shard_elems] */
    float *values;      /* [the longest shard_elems] the values of packed pieces */
    ckpt_piece *packed; /* [slots of all units] the pieces of one unit, listed by ckpt_pack */
    ckpt_piece *pieces; /* [slots of all units] the pieces of this rank's slices, unit by unit */
    ckpt_piece
        *saved; /* [slots of all units] those of `pieces` that are saved, as the file has them */
    int *unit_begin; /* [n_units + 1] where each unit's pieces begin in `pieces` */
} ckpt_work;

static void work_free(ckpt_work *w)
{
    free(w->shard);
    free(w->values);
    free(w->packed);
    free(w->pieces);
    free(w->saved);
    free(w->unit_begin);
}

static fsdp_status work_alloc(const fsdp *f, ckpt_work *w)
{
    const size_t slots = (size_t)f->run.m->n_params; /* enough: each has at most one slot */
    *w = (ckpt_work){.shard = malloc(fsdp_most_shard_elems(f) * sizeof *w->shard),
                     .values = malloc(fsdp_most_shard_elems(f) * sizeof *w->values),
                     .packed = calloc(slots, sizeof *w->packed),
                     .pieces = calloc(slots, sizeof *w->pieces),
                     .saved = calloc(slots, sizeof *w->saved),
                     .unit_begin = calloc((size_t)f->n_units + 1, sizeof *w->unit_begin)};
    if (w->shard && w->values && w->packed && w->pieces && w->saved && w->unit_begin)
        return FSDP_OK;
    return ckpt_no_memory();
}

/* ---- saving ---------------------------------------------------------------------------------- */

/* The same piece, counted in the whole parameter; elems 0 if another rank saves it. */
static ckpt_piece in_whole(const fsdp *f, ckpt_piece piece)
{
    const param_cut *cut = &f->run.m->params[piece.param].cut;
    piece.begin += cut->begin;
    piece.elems = cut->elsewhere ? 0 : piece.elems;
    return piece;
}

/* List the pieces that this rank's file will hold: the pieces of its world slices. */
static fsdp_status list_pieces(const fsdp *f, ckpt_work *w)
{
    int n = 0;
    for (int u = 0; u < f->n_units; u++) {
        int n_mine;
        flat_piece *mine;
        const placement *p = &f->units[u].given.place;
        TRY(unit_slice_pieces(&f->units[u], p->rank, &mine, &n_mine));
        for (int i = 0; i < n_mine; i++)
            w->pieces[n++] = (ckpt_piece){.param = p->slices.slots[mine[i].slot].param,
                                          .begin = mine[i].param_begin,
                                          .elems = mine[i].elems,
                                          .unit = f->units[u].name};
        free(mine);
        w->unit_begin[u + 1] = n;
    }
    return FSDP_OK;
}

static fsdp_status check_packed(const ckpt_pieces *got, const ckpt_piece *want, int n_want)
{
    for (int i = 0; i < n_want && i < got->n_pieces; i++)
        if (got->pieces[i].param != want[i].param || got->pieces[i].begin != want[i].begin ||
            got->pieces[i].elems != want[i].elems)
            return fsdp_error(FSDP_ESTATE, "see ckpt_pack",
                              "ckpt_pack: piece %d: got parameter %d from %llu, %llu elements, "
                              "expected parameter %d from %llu, %llu elements",
                              i, got->pieces[i].param, (unsigned long long)got->pieces[i].begin,
                              (unsigned long long)got->pieces[i].elems, want[i].param,
                              (unsigned long long)want[i].begin, (unsigned long long)want[i].elems);
    return got->n_pieces == n_want
               ? FSDP_OK
               : fsdp_error(FSDP_ESTATE, "see ckpt_pack", "ckpt_pack: got %d pieces, expected %d",
                            got->n_pieces, n_want);
}

/* Append this rank's world slice of array k of unit u to its file. */
static fsdp_status write_slice(fsdp_optimizer *o, int u, int k, ckpt_work *w, ckpt_out *out)
{
    fsdp *f = o->r->f;
    const placement *p = &f->units[u].given.place;
    const flat_layout *l = &p->slices;
    const int slice = placement_slice(p, l->world_size, p->rank);
    const float *src = ckpt_unit_array(o, u, k);
    ckpt_pieces packed = {.pieces = w->packed, .values = w->values};
    if (!src)
        return FSDP_OK;
    src += (size_t)(p->rank / p->n_shards) * l->shard_elems; /* its slice of the shard it holds */
    TRY(device_download(f->compute, w->shard, src, l->shard_elems * sizeof *w->shard));
    TRY(stream_sync(f->compute));
    TRY(ckpt_pack(l, slice, w->shard, &packed));
    const ckpt_piece *mine = w->pieces + w->unit_begin[u];
    TRY(check_packed(&packed, mine, w->unit_begin[u + 1] - w->unit_begin[u]));
    const float *values = packed.values;
    for (int i = 0; i < packed.n_pieces; values += mine[i++].elems) {
        const ckpt_piece piece = in_whole(f, mine[i]);
        if (piece.elems > 0)
            TRY(ckpt_out_write(out, &piece, k, values));
    }
    return FSDP_OK;
}

fsdp_status ckpt_save(fsdp_optimizer *o, ckpt_store *to, int64_t next_step)
{
    fsdp *f = o->r->f;
    ckpt_work w;
    ckpt_out out;
    fsdp_status status = work_alloc(f, &w);
    if (status == FSDP_OK)
        status = list_pieces(f, &w);
    status = comm_agree(to->world, status);
    if (status == FSDP_OK) {
        ckpt_pieces list = {.pieces = w.saved};
        for (int i = 0; i < w.unit_begin[f->n_units]; i++) {
            w.saved[list.n_pieces] = in_whole(f, w.pieces[i]);
            list.n_pieces += w.saved[list.n_pieces].elems > 0;
        }
        status = ckpt_save_begin(to, next_step, &list, &out);
        for (int k = 0; k <= to->optimizer->n_states; k++)
            for (int u = 0; u < f->n_units && status == FSDP_OK; u++)
                status = write_slice(o, u, k, &w, &out);
        status = ckpt_save_end(to, next_step, &out, status);
    }
    work_free(&w);
    return status;
}

fsdp_status ckpt_saved_elems(const fsdp_optimizer *o, size_t *out)
{
    const flat_layout nothing = {.world_size = 1};
    *out = 0;
    for (int k = 0; k <= OPTIM_MAX_STATES; k++)
        for (int u = 0; u < o->r->f->n_units; u++)
            *out += ckpt_unit_array(o, u, k) ? o->r->f->units[u].given.place.slices.shard_elems : 0;
    return ckpt_pack(&nothing, 0, NULL, &(ckpt_pieces){0});
}

/* ---- loading --------------------------------------------------------------------------------- */

/* One array of one unit on its way to this rank's shard. */
typedef struct unit_load {
    const flat_layout *l;
    int rank, array;
    float *shard; /* [shard_elems] */
    size_t n_elems;
} unit_load;

/* Read and unpack a piece of the shard. */
static fsdp_status unpack_piece(const ckpt_source *from, const model *m, ckpt_piece piece,
                                unit_load *to)
{
    ckpt_pieces in = {.pieces = &piece, .n_pieces = 1};
    ckpt_piece whole = piece;
    whole.begin += m->params[piece.param].cut.begin;
    in.values = malloc((size_t)piece.elems * sizeof *in.values);
    if (!in.values)
        return ckpt_no_memory();
    fsdp_status status = ckpt_source_range(from, m, whole, to->array, in.values);
    if (status == FSDP_OK)
        status = ckpt_unpack(to->l, to->rank, &in, to->shard, &to->n_elems);
    free(in.values);
    return status;
}

/* Unpack every piece of this rank's shard that the checkpoint has. */
static fsdp_status unpack_unit(const ckpt_source *from, const model *m, const flat_piece *mine,
                               int n_mine, unit_load *to)
{
    size_t want = 0;
    for (int i = 0; i < n_mine; i++) {
        size_t n;
        const ckpt_piece piece = {.param = to->l->slots[mine[i].slot].param,
                                  .begin = mine[i].param_begin,
                                  .elems = mine[i].elems};
        ckpt_source_find(from, to->array, piece.param, &n);
        if (n == 0) /* it was frozen; its states stay zero */
            continue;
        TRY(unpack_piece(from, m, piece, to));
        want += mine[i].elems;
    }
    if (to->n_elems != want)
        return fsdp_error(FSDP_EINVAL, "see ckpt_unpack",
                          "ckpt_unpack: placed %zu elements of array %d, expected %zu", to->n_elems,
                          to->array, want);
    return FSDP_OK;
}

/* Load all arrays of unit u. host [shard_elems]: work space. The shard's padding becomes zero. */
static fsdp_status load_unit(fsdp_optimizer *o, const ckpt_source *from, int u, float *host)
{
    fsdp *f = o->r->f;
    const flat_layout *l = &f->units[u].layout;
    const placement *p = &f->units[u].given.place;
    int n_mine = 0;
    flat_piece *mine;
    TRY(unit_shard_pieces(&f->units[u], p->rank, &mine, &n_mine));
    fsdp_status status = FSDP_OK;
    for (int k = 0; k < from->manifest.id.n_arrays && status == FSDP_OK; k++) {
        float *dst = ckpt_unit_array(o, u, k);
        unit_load to = {.l = l, .rank = p->shard, .array = k, .shard = host};
        if (!dst)
            continue;
        memset(host, 0, l->shard_elems * sizeof *host);
        status = unpack_unit(from, f->run.m, mine, n_mine, &to);
        if (status == FSDP_OK)
            status = device_upload(f->compute, dst, host, l->shard_elems * sizeof *host);
        if (status == FSDP_OK)
            status = stream_sync(f->compute);
    }
    free(mine);
    return status;
}

fsdp_status ckpt_load(fsdp_optimizer *o, const ckpt_source *from)
{
    fsdp *f = o->r->f;
    float *host = malloc(fsdp_most_shard_elems(f) * sizeof *host);
    fsdp_status status = host ? FSDP_OK : ckpt_no_memory();
    for (int u = 0; u < f->n_units && status == FSDP_OK; u++)
        status = load_unit(o, from, u, host);
    free(host);
    return comm_agree(f->run.world, status);
}
