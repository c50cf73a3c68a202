/* ckpt_io.c -- provided: ckpt_save and ckpt_load, on top of task 4.5's pack and unpack.
 *
 * Values travel through host memory, one unit and one array at a time when saving and one file's
 * array at a time when loading. A rank needs no more memory than that. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "lab4_optimizer/ckpt_file.h"

enum { ARRAYS_ADAMW = 3, ARRAYS_SGD = 1 };

typedef struct save_target {
    const char *dir;
    int64_t next_step;
} save_target;

static int arrays_of(const fsdp_optimizer *o)
{
    return o->r->f->run.optimizer == OPTIMIZER_ADAMW ? ARRAYS_ADAMW : ARRAYS_SGD;
}

/* Array k (parameter, m, v) of unit u on this rank; NULL for the moments of a frozen unit. */
static float *unit_array(const fsdp_optimizer *o, int u, int k)
{
    return k == 0 ? o->r->f->units[u].shard : k == 1 ? o->units[u].m : o->units[u].v;
}

static size_t max_slots(const fsdp *f)
{
    size_t n = 0;
    for (int u = 0; u < f->n_units; u++)
        n += (size_t)f->units[u].layout.n_slots;
    return n;
}

static size_t max_shard_elems(const fsdp *f)
{
    size_t n = 1;
    for (int u = 0; u < f->n_units; u++)
        n = f->units[u].layout.shard_elems > n ? f->units[u].layout.shard_elems : n;
    return n;
}

static size_t values_of(const ckpt_pieces *list)
{
    size_t n = 0;
    for (int i = 0; i < list->n_pieces; i++)
        n += list->pieces[i].elems;
    return n;
}

/* Pack this rank's world slice of array k of unit u; out->values [slice_elems]. host [slice_elems]
 * is work space. */
static fsdp_status pack_array(fsdp_optimizer *o, int u, int k, float *host, ckpt_pieces *out)
{
    fsdp *f = o->r->f;
    const mesh_shape *shape = &f->mesh.shape;
    const flat_layout *l = &f->units[u].slices;
    const float *src = unit_array(o, u, k);
    if (src) {
        src += (size_t)shape->replica * l->shard_elems; /* its slice of the shard it holds */
        TRY(device_download(f->compute, host, src, l->shard_elems * sizeof *host));
        TRY(stream_sync(f->compute));
    } else {
        memset(host, 0, l->shard_elems * sizeof *host);
    }
    return ckpt_pack(l, mesh_slice(shape, shape->world_rank), host, out);
}

/* all: room for the pieces of every unit and the values of one. */
static fsdp_status write_file(fsdp_optimizer *o, const save_target *to, ckpt_pieces *all,
                              float *host, ckpt_file *file)
{
    fsdp *f = o->r->f;
    ckpt_header header = {.n_arrays = (uint64_t)arrays_of(o),
                          .file = (uint64_t)comm_rank(f->run.world),
                          .next_step = (uint64_t)to->next_step};
    for (int u = 0; u < f->n_units; u++) {
        ckpt_pieces unit = {.pieces = all->pieces + header.n_pieces, .values = all->values};
        TRY(pack_array(o, u, 0, host, &unit));
        header.n_values += values_of(&unit);
        header.n_pieces += (uint64_t)unit.n_pieces;
    }
    TRY(ckpt_file_write_begin(to->dir, comm_rank(f->run.world), &header, all->pieces, file));
    for (int k = 0; k < arrays_of(o); k++)
        for (int u = 0; u < f->n_units; u++) {
            TRY(pack_array(o, u, k, host, all));
            TRY(ckpt_file_write(file, all->values, values_of(all)));
        }
    return ckpt_file_write_end(file);
}

static fsdp_status save_shard(fsdp_optimizer *o, const save_target *to)
{
    fsdp *f = o->r->f;
    ckpt_pieces all = {.pieces = calloc(max_slots(f) + 1, sizeof *all.pieces),
                       .values = malloc(max_shard_elems(f) * sizeof *all.values)};
    float *host = malloc(max_shard_elems(f) * sizeof *host);
    ckpt_file file = {.fd = -1};
    fsdp_status status = all.pieces && all.values && host
                             ? write_file(o, to, &all, host, &file)
                             : fsdp_error(FSDP_ENOMEM, "", "checkpoint: no host memory");
    ckpt_file_close(&file);
    free(all.pieces);
    free(all.values);
    free(host);
    return status;
}

/* Removes what a killed run left there. */
static fsdp_status make_dir(const char *dir)
{
    TRY(ckpt_remove_dir(dir));
    if (mkdir(dir, 0755) != 0 && errno != EEXIST)
        return fsdp_error(FSDP_EIO, "pass a --save directory whose parent exists and is writable",
                          "checkpoint: create %s: %s", dir, strerror(errno));
    return FSDP_OK;
}

fsdp_status ckpt_save(fsdp_optimizer *o, const char *dir, int64_t next_step)
{
    fsdp *f = o->r->f;
    comm *c = f->run.world;
    char tmp[PATH_MAX];
    TRY(ckpt_sibling(dir, ".tmp", tmp));
    TRY(comm_agree(c, comm_rank(c) == 0 ? make_dir(tmp) : FSDP_OK));
    fsdp_status status = comm_agree(c, save_shard(o, &(save_target){tmp, next_step}));
    if (comm_rank(c) != 0)
        return status != FSDP_OK ? status : comm_agree(c, FSDP_OK);
    if (status != FSDP_OK) {
        fsdp_error_info why = *fsdp_error_get();
        ckpt_remove_dir(tmp);
        fsdp_error_set(&why);
        return status;
    }
    ckpt_meta meta = {.next_step = next_step,
                      .param_elems = (int64_t)f->run.m->n_param_elems,
                      .n_files = comm_size(c),
                      .n_params = f->run.m->n_params,
                      .n_arrays = arrays_of(o)};
    status = ckpt_meta_write(tmp, &meta);
    if (status == FSDP_OK)
        status = ckpt_publish_dir(dir);
    if (status != FSDP_OK) {
        fsdp_error_info why = *fsdp_error_get();
        ckpt_remove_dir(tmp);
        fsdp_error_set(&why);
    }
    return comm_agree(c, status);
}

/* ---- loading --------------------------------------------------------------------------------- */

/* Put what a file holds of array k into this rank's shards; *n_elems counts the real elements. */
static fsdp_status unpack_array(fsdp_optimizer *o, int k, const ckpt_pieces *in, float *host,
                                size_t *n_elems)
{
    fsdp *f = o->r->f;
    for (int u = 0; u < f->n_units; u++) {
        float *dst = unit_array(o, u, k);
        const flat_layout *l = &f->units[u].layout;
        size_t bytes = l->shard_elems * sizeof *host;
        if (dst) {
            TRY(device_download(f->compute, host, dst, bytes));
            TRY(stream_sync(f->compute));
        }
        TRY(ckpt_unpack(l, f->mesh.shape.shard_rank, in, host, n_elems));
        if (dst) {
            TRY(device_upload(f->compute, dst, host, bytes));
            TRY(stream_sync(f->compute));
        }
    }
    return FSDP_OK;
}

static fsdp_status load_file(fsdp_optimizer *o, const char *dir, int file_number, int64_t next_step,
                             float *host, size_t n_elems[ARRAYS_ADAMW])
{
    ckpt_header header = {0};
    ckpt_pieces in = {0};
    ckpt_file file;
    fsdp_status status = ckpt_file_open(dir, file_number, &header, &in.pieces, &file);
    in.n_pieces = (int)header.n_pieces;
    if (status == FSDP_OK && (int)header.n_arrays != arrays_of(o))
        status = fsdp_error(FSDP_EINVAL, "resume with the --optimizer that saved it",
                            "checkpoint: %s holds %d arrays per parameter, expected %d", file.path,
                            (int)header.n_arrays, arrays_of(o));
    if (status == FSDP_OK && header.next_step != (uint64_t)next_step)
        status = fsdp_error(FSDP_EINVAL, "resume from another checkpoint",
                            "checkpoint: %s is of step %llu, meta.json of step %lld", file.path,
                            (unsigned long long)header.next_step, (long long)next_step);
    if (status == FSDP_OK && !(in.values = malloc(header.n_values * sizeof *in.values + 1)))
        status = fsdp_error(FSDP_ENOMEM, "", "checkpoint: no host memory for %s", file.path);
    for (int k = 0; k < arrays_of(o) && status == FSDP_OK; k++) {
        status = ckpt_file_read(&file, in.values, header.n_values);
        if (status == FSDP_OK)
            status = unpack_array(o, k, &in, host, &n_elems[k]);
    }
    if (status == FSDP_OK)
        status = ckpt_file_read_end(&file);
    ckpt_file_close(&file);
    free(in.pieces);
    free(in.values);
    return status;
}

/* How many real elements of one array this rank keeps. */
static size_t kept_elems(const fsdp *f)
{
    size_t n = 0;
    for (int u = 0; u < f->n_units; u++)
        for (int i = 0; i < f->units[u].layout.n_slots; i++) {
            const flat_slot *s = &f->units[u].layout.slots[i];
            size_t shard = f->units[u].layout.shard_elems;
            size_t lo = (size_t)f->mesh.shape.shard_rank * shard, hi = lo + shard;
            size_t begin = s->offset > lo ? s->offset : lo;
            size_t end = s->offset + s->elems < hi ? s->offset + s->elems : hi;
            n += end > begin ? end - begin : 0;
        }
    return n;
}

static fsdp_status load_shard(fsdp_optimizer *o, const char *dir, const ckpt_meta *meta)
{
    fsdp *f = o->r->f;
    const model *m = f->run.m;
    if (meta->n_params != m->n_params || meta->param_elems != (int64_t)m->n_param_elems)
        return fsdp_error(
            FSDP_EINVAL, "resume with the model options of the run that saved it",
            "checkpoint: %s is of a model with %d parameters of %lld elements, this one has "
            "%d of %zu",
            dir, meta->n_params, (long long)meta->param_elems, m->n_params, m->n_param_elems);
    float *host = malloc(max_shard_elems(f) * sizeof *host);
    if (!host)
        return fsdp_error(FSDP_ENOMEM, "", "checkpoint: no host memory");
    size_t n_elems[ARRAYS_ADAMW] = {0};
    fsdp_status status = FSDP_OK;
    for (int i = 0; i < meta->n_files && status == FSDP_OK; i++)
        status = load_file(o, dir, i, meta->next_step, host, n_elems);
    free(host);
    for (int k = 0; k < arrays_of(o) && status == FSDP_OK; k++)
        if (n_elems[k] != kept_elems(f))
            status = fsdp_error(FSDP_EINVAL, "resume from another checkpoint",
                                "checkpoint: %s gives %zu elements of array %d, expected %zu", dir,
                                n_elems[k], k, kept_elems(f));
    return status;
}

/* The meta data of dir or, if a save was cut short between its two renames, of dir.old. *used
 * [PATH_MAX] says which. */
static fsdp_status find_checkpoint(const char *dir, char *used, ckpt_meta *meta)
{
    TRY(ckpt_sibling(dir, "", used));
    fsdp_status status = ckpt_meta_read(used, meta);
    if (status == FSDP_OK)
        return FSDP_OK;
    fsdp_error_info why = *fsdp_error_get();
    TRY(ckpt_sibling(dir, ".old", used));
    if (ckpt_meta_read(used, meta) == FSDP_OK)
        return FSDP_OK;
    fsdp_error_set(&why);
    return status;
}

bool ckpt_exists(const char *dir)
{
    char used[PATH_MAX];
    ckpt_meta meta;
    return find_checkpoint(dir, used, &meta) == FSDP_OK;
}

fsdp_status ckpt_load(fsdp_optimizer *o, const char *dir, int64_t *next_step)
{
    comm *c = o->r->f->run.world;
    char used[PATH_MAX];
    ckpt_meta meta;
    fsdp_status status = find_checkpoint(dir, used, &meta);
    TRY(comm_agree(c, status));
    char found[64]; /* ranks that read different directories would mix two checkpoints */
    snprintf(found, sizeof found, "step %lld in %d files", (long long)meta.next_step, meta.n_files);
    TRY(comm_same(c, "the checkpoint", found));
    TRY(comm_agree(c, load_shard(o, used, &meta)));
    *next_step = meta.next_step;
    return FSDP_OK;
}
