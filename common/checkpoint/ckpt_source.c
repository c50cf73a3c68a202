/* ckpt_source.c -- see ckpt_source.h. */
#include "common/checkpoint/ckpt_source.h"
#include "common/model/tensor_parallel.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "common/base/options.h"

/* ---- one checkpoint -------------------------------------------------------------------------- */

static fsdp_status check_sum(const ckpt_source *src, int file, uint64_t *diverged)
{
    const ckpt_path path = ckpt_file_path(src->dir, file);
    ckpt_sum got, want = src->manifest.files[file];
    TRY(ckpt_file_sum(path.text, &got, diverged));
    if (got.bytes == want.bytes && got.xxh3 == want.xxh3)
        return FSDP_OK;
    return fsdp_error(FSDP_EINVAL, CKPT_OTHER_HINT,
                      "checkpoint: %s is damaged: got %" PRIu64 " bytes with XXH3 %016" PRIx64
                      ", manifest.json says %" PRIu64 " with %016" PRIx64,
                      path.text, got.bytes, got.xxh3, want.bytes, want.xxh3);
}

/* Every rank checks its share of the files. *diverged = file and offset of the first value in them
 * that is not finite; offset 0: all are finite. */
static fsdp_status check_sums(const ckpt_source *src, comm *world, ckpt_entry *diverged)
{
    for (int i = comm_rank(world); i < src->manifest.id.n_files; i += comm_size(world)) {
        uint64_t at;
        TRY(check_sum(src, i, &at));
        if (diverged->at == 0)
            *diverged = (ckpt_entry){.file = i, .at = at};
    }
    return FSDP_OK;
}

static int by_place(const void *a, const void *b)
{
    const ckpt_entry *x = a, *y = b;
    if (x->array != y->array)
        return x->array < y->array ? -1 : 1;
    if (x->piece.param != y->piece.param)
        return x->piece.param < y->piece.param ? -1 : 1;
    return (x->piece.begin > y->piece.begin) - (x->piece.begin < y->piece.begin);
}

/* Check that each array has every element of every stored parameter exactly once. If `change` names
 * freeze, an optimizer state of a parameter may be missing altogether. */
static fsdp_status check_whole(const ckpt_source *src, const model *m, const char *change)
{
    const bool refreezes = change != NULL && options_choice(change, "freeze") >= 0;
    for (int k = 0; k < src->manifest.id.n_arrays; k++)
        for (int p = 0; p < m->n_params; p++) {
            size_t n, i = 0, next = 0;
            const ckpt_entry *e = ckpt_source_find(src, k, p, &n);
            for (; i < n && e[i].piece.begin == next; i++)
                next += e[i].piece.elems;
            bool stored = m->params[p].tied_to == NOT_TIED &&
                          (refreezes && k > 0 ? n > 0 : ckpt_has(m, p, k));
            if (i < n || next != (stored ? m->params[p].cut.elems : 0))
                return fsdp_error(FSDP_EINVAL, CKPT_OTHER_HINT,
                                  "checkpoint: %s: %s, array %d: elements are missing or come "
                                  "twice at %zu",
                                  src->dir, m->params[p].name, k, next);
        }
    return FSDP_OK;
}

static fsdp_status list_files(ckpt_source *src, const model *m, const char *change)
{
    for (int i = 0; i < src->manifest.id.n_files; i++) {
        ckpt_id id = src->manifest.id;
        id.file = i;
        TRY(ckpt_file_list(src->dir, &id, m, &src->entries));
    }
    if (src->entries.n > 0)
        qsort(src->entries.list, src->entries.n, sizeof *src->entries.list, by_place);
    return check_whole(src, m, change);
}

/* Refuse a value that is not finite: older versions of this program saved such checkpoints. */
static fsdp_status check_values(const ckpt_source *src, const model *m, const ckpt_entry *diverged)
{
    for (size_t i = 0; i < src->entries.n && diverged->at > 0; i++) {
        const ckpt_entry *e = &src->entries.list[i];
        const size_t element = (diverged->at - e->at) / sizeof(float);
        if (e->file == diverged->file && diverged->at >= e->at && element < e->piece.elems)
            return fsdp_error(FSDP_EINVAL,
                              "resume from an older checkpoint with a lower --lr or with "
                              "--clip-grad 1, and --resume-change schedule,clip-grad",
                              "checkpoint: %s is of training that diverged: %s, array %d: element "
                              "%zu is not finite",
                              src->dir, m->params[e->piece.param].name, e->array,
                              e->piece.begin + element);
    }
    return FSDP_OK;
}

static fsdp_status check_shape(const ckpt_source *src, const ckpt_store *now)
{
    const ckpt_id *id = &src->manifest.id;
    const int n_arrays = 1 + now->optimizer->n_states;
    if (id->shape == ckpt_shape(now->m) && id->n_arrays == n_arrays)
        return FSDP_OK;
    return fsdp_error(FSDP_EINVAL, "resume with the model and optimizer options of that run",
                      "--resume %s: parameters of other shapes, or %d arrays for each where this "
                      "run has %d",
                      src->dir, id->n_arrays, n_arrays);
}

/* Check that all ranks see the same checkpoint: on another host dir may be another directory. */
static fsdp_status same_everywhere(const ckpt_source *src, comm *world)
{
    char text[96];
    const ckpt_manifest *m = &src->manifest;
    snprintf(text, sizeof text, "step %" PRId64 " of run %s in %d files, the first %016" PRIx64,
             m->id.step, m->id.run, m->id.n_files, m->files[0].xxh3);
    return comm_same(world, "the checkpoint", text);
}

/* Open src->dir and check it. *not_whole: this checkpoint is unusable, but an older one may do. */
static fsdp_status open_one(const ckpt_store *now, const char *change, ckpt_source *src,
                            bool *not_whole)
{
    ckpt_entry diverged = {0};
    fsdp_status status = comm_agree(now->world, ckpt_manifest_read(src->dir, &src->manifest));
    *not_whole = status == FSDP_EIO || status == FSDP_EINVAL;
    TRY(status);
    TRY(same_everywhere(src, now->world));
    TRY(ckpt_about_check(&src->manifest.about, &now->about, change, src->dir));
    TRY(check_shape(src, now));
    src->manifest.id.optimizer = now->optimizer; /* same name: see ckpt_about_check */
    status = comm_agree(now->world, check_sums(src, now->world, &diverged));
    IF_OK(status, comm_agree(now->world, list_files(src, now->m, change)));
    IF_OK(status, comm_agree(now->world, check_values(src, now->m, &diverged)));
    *not_whole = status == FSDP_EIO || status == FSDP_EINVAL;
    return status;
}

/* ---- which checkpoint ------------------------------------------------------------------------ */

enum { NO_STEP = -1, DIR_ITSELF = -2 };

/* The step to try next, when step `after` is unusable; INT64_MAX: none was tried yet. First comes
 * dir itself if it is a checkpoint, or else the latest step; then older steps, newest first. */
static int64_t next_step(const char *dir, int64_t after)
{
    const bool first = after == INT64_MAX;
    int64_t *steps, found = first ? ckpt_latest(dir) : NO_STEP;
    int n;
    if (first && access(ckpt_path_of(dir, "manifest.json").text, F_OK) == 0)
        return DIR_ITSELF;
    if (found >= 0 || ckpt_steps(dir, &steps, &n) != FSDP_OK)
        return found;
    for (int i = 0; i < n && found < 0; i++)
        if (steps[i] < after)
            found = steps[i];
    free(steps);
    return found;
}

/* src->dir = the checkpoint that rank 0 finds to try next; "": none is left. */
static fsdp_status choose(comm *world, const char *dir, int64_t *step, ckpt_source *src)
{
    if (comm_rank(world) == 0)
        *step = next_step(dir, *step);
    TRY(ckpt_share(world, step, sizeof *step));
    src->dir[0] = '\0';
    if (*step == DIR_ITSELF)
        snprintf(src->dir, sizeof src->dir, "%s", dir);
    else if (*step >= 0)
        snprintf(src->dir, sizeof src->dir, "%s", ckpt_step_path(dir, *step).text);
    return FSDP_OK;
}

void ckpt_source_peek(const char *dir, ckpt_manifest *out)
{
    char plain[PATH_MAX];
    const int64_t step =
        ckpt_plain_dir(dir, plain) == FSDP_OK ? next_step(plain, INT64_MAX) : NO_STEP;
    *out = (ckpt_manifest){0};
    if (step != NO_STEP)
        (void)ckpt_manifest_read(step == DIR_ITSELF ? plain : ckpt_step_path(plain, step).text,
                                 out);
}

static fsdp_status nothing_there(const char *dir)
{
    return fsdp_error(
        FSDP_EIO, "pass a directory that --save wrote", "checkpoint: %s/latest: %s", dir,
        access(dir, F_OK) == 0 ? "there is no such file, and no step-N" : strerror(errno));
}

static fsdp_status open_newest(const ckpt_store *now, const char *dir, bool automatic,
                               const char *change, ckpt_source *src)
{
    fsdp_error_info first = {.status = FSDP_OK};
    int64_t step = INT64_MAX;
    for (;;) {
        bool not_whole = false;
        TRY(choose(now->world, dir, &step, src));
        if (!*src->dir && first.status != FSDP_OK)
            fsdp_error_set(&first);
        if (!*src->dir)
            return first.status != FSDP_OK || automatic ? first.status : nothing_there(dir);
        fsdp_status status = open_one(now, change, src, &not_whole);
        if (status == FSDP_OK || !not_whole || !automatic)
            return status;
        if (comm_rank(now->world) == 0)
            fprintf(stderr, "note: %s; looking for the checkpoint before it\n",
                    fsdp_error_get()->what);
        first = first.status == FSDP_OK ? *fsdp_error_get() : first;
        ckpt_source_close(src);
    }
}

fsdp_status ckpt_source_open(const ckpt_store *now, const char *dir, bool automatic,
                             const char *change, ckpt_source *src)
{
    char plain[PATH_MAX];
    *src = (ckpt_source){0};
    fsdp_status status = ckpt_plain_dir(dir, plain);
    IF_OK(status, ckpt_refuse_old_form(plain));
    TRY(comm_agree(now->world, status));
    status = open_newest(now, plain, automatic, change, src);
    src->tp_blocks = strtoul(ckpt_about_value(&src->manifest.about, "tp-blocks"), NULL, 10);
    src->tp_blocks = src->tp_blocks ? src->tp_blocks : 1; /* "nothing" */
    if (status != FSDP_OK)
        ckpt_source_close(src);
    return status;
}

/* ---- its values ------------------------------------------------------------------------------ */

const ckpt_entry *ckpt_source_find(const ckpt_source *src, int array, int param, size_t *n)
{
    const ckpt_entry *list = src->entries.list, *end = list + src->entries.n;
    const ckpt_entry key = {.array = array, .piece = {.param = param}}; /* param's first piece */
    const ckpt_entry *e = NULL;
    if (list != end)
        e = bsearch(&key, list, src->entries.n, sizeof *list, by_place);
    while (e != NULL && e > list && by_place(e - 1, e) == 0)
        e--; /* a damaged checkpoint may have this piece several times */
    for (*n = 0; e != NULL && e + *n < end; ++*n)
        if (e[*n].array != array || e[*n].piece.param != param)
            break;
    return e;
}

fsdp_status ckpt_source_read(const ckpt_source *src, const ckpt_entry *e, uint64_t begin,
                             size_t elems, float *values)
{
    if (src->weights.files != NULL)
        return import_read(&src->weights, e->piece.param, begin, elems, values);
    ckpt_path path = ckpt_file_path(src->dir, e->file);
    safetensors f = {
        .path = path.text, .hint = CKPT_OTHER_HINT, .fd = open(path.text, O_RDONLY | O_CLOEXEC)};
    if (f.fd < 0)
        return fsdp_error(FSDP_EIO, CKPT_OTHER_HINT, "checkpoint: open %s: %s", f.path,
                          strerror(errno));
    const size_t skipped = (size_t)(begin - e->piece.begin);
    fsdp_status status =
        safetensors_read(&f, values, elems * sizeof *values, e->at + skipped * sizeof *values);
    close(f.fd);
    return status;
}

/* Read x, counted in the order of the saved run, from all pieces that have some of it. */
static fsdp_status read_pieces(const ckpt_source *src, int array, ckpt_piece x, float *values)
{
    size_t n;
    const ckpt_entry *e = ckpt_source_find(src, array, x.param, &n);
    for (size_t k = 0; k < n; k++) {
        const uint64_t first = e[k].piece.begin, last = first + e[k].piece.elems;
        const uint64_t begin = first > x.begin ? first : x.begin;
        const uint64_t end = last < x.begin + x.elems ? last : x.begin + x.elems;
        if (begin < end)
            TRY(ckpt_source_read(src, &e[k], begin, (size_t)(end - begin),
                                 values + (begin - x.begin)));
    }
    return FSDP_OK;
}

fsdp_status ckpt_source_range(const ckpt_source *src, const model *m, ckpt_piece piece, int array,
                              float *values)
{
    const param_spec *p = &m->params[piece.param];
    const size_t blocks = src->tp_blocks ? src->tp_blocks : p->cut.blocks;
    ckpt_piece part = piece;
    for (uint64_t done = 0; done < piece.elems; done += part.elems) {
        size_t here = SIZE_MAX, there = SIZE_MAX;
        part.begin = piece.begin + done;
        if (blocks != p->cut.blocks && p->cut.blocks > 0)
            part.begin =
                param_from_file(p, blocks, param_in_file(p, (size_t)part.begin, &here), &there);
        part.elems = min_size((size_t)(piece.elems - done), min_size(here, there));
        TRY(read_pieces(src, array, part, values + done));
    }
    return FSDP_OK;
}

fsdp_status ckpt_source_weights(const char *dir, const model *m, ckpt_source *src)
{
    *src = (ckpt_source){.manifest.id.n_arrays = 1};
    src->entries.list = calloc((size_t)m->n_params, sizeof *src->entries.list);
    if (src->entries.list == NULL)
        return ckpt_no_memory();
    for (int p = 0; p < m->n_params; p++)
        if (m->params[p].tied_to == NOT_TIED)
            src->entries.list[src->entries.n++].piece =
                (ckpt_piece){.param = p, .elems = m->params[p].cut.elems};
    return import_open(dir, m, &src->weights);
}

void ckpt_source_close(ckpt_source *src)
{
    ckpt_manifest_free(&src->manifest);
    import_close(&src->weights);
    free(src->entries.list);
    *src = (ckpt_source){0};
}
