/* export.c -- writes safetensors files with Hugging Face's names, and their config.json.
 *
 *   export_begin | export_begin_states -> export_append ... -> export_end | export_cancel
 *
 * The files are renamed to their final names, weights first and config.json last, after all are on
 * disk. A crash between the renames leaves new weights beside the old config.json, files without an
 * index, or a single file beside the index of several. import_open refuses the last two, and the
 * first if the sizes differ. */
#include "common/weights/export.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "common/base/read_file.h"

static const char HINT[] = "check the path given to --export, --export-init or --export-optimizer, "
                           "and the space left there";

static fsdp_status no_memory(void)
{
    return fsdp_error(FSDP_ENOMEM, "", "export: no host memory");
}

static fsdp_status write_failed(const export_file *f)
{
    return fsdp_error(FSDP_EIO, HINT, "export: %s: write: %s", f->file.path, strerror(errno));
}

/* ---- headers --------------------------------------------------------------------------------- */

/* A header without tensors; the caller deletes it. more: of its metadata. NULL: no memory. */
static cJSON *new_header(const char *more)
{
    char text[160];
    snprintf(text, sizeof text, "{\"" SAFETENSORS_METADATA "\":{\"format\":\"pt\"%s}}", more);
    return cJSON_Parse(text);
}

/* ---- files ----------------------------------------------------------------------------------- */

/* Open the next file of w, in its directory if there is one. */
static fsdp_status open_next(export_writer *w, const char *name)
{
    atomic_file *file = &w->files[w->n_files++].file;
    return w->dir[0] != '\0' ? atomic_file_open_in(file, w->dir, name, HINT)
                             : atomic_file_open(file, name, HINT);
}

/* Open the next file, for `bytes` of tensors, and write its header, which is freed. ok: false:
 * there was no memory for all of the header. */
static fsdp_status open_tensors(export_writer *w, const char *name, cJSON *header, bool ok,
                                uint64_t bytes)
{
    size_t head_bytes = 0;
    char *head = ok ? safetensors_head(header, &head_bytes) : NULL;
    cJSON_Delete(header);
    if (head == NULL)
        return no_memory();
    export_file *f = &w->files[w->n_files];
    f->left_elems = (size_t)bytes / sizeof(float);
    fsdp_status status = open_next(w, name);
    if (status == FSDP_OK && fwrite(head, 1, head_bytes, f->file.out) != head_bytes)
        status = write_failed(f);
    free(head);
    return status;
}

/* The end of the parameters, from `first` on, that share a file: at most max_bytes of them, or a
 * single one. Tied ones take no room. */
static int file_end(const model *m, int first, uint64_t max_bytes)
{
    uint64_t bytes = 0;
    int p = first;
    for (; p < m->n_params; p++) {
        const bool is_stored = m->params[p].tied_to == NOT_TIED;
        const uint64_t more = is_stored ? m->params[p].cut.elems * sizeof(float) : 0;
        if (is_stored && bytes > 0 && bytes + more > max_bytes)
            break;
        bytes += more;
    }
    return p;
}

/* Open the file of parameters [first, end), and add these parameters to map. */
static fsdp_status open_weights(const model *m, int first, int end, cJSON *map, export_writer *w)
{
    char name[64] = EXPORT_WEIGHTS;
    uint64_t bytes = 0;
    cJSON *header = new_header("");
    bool ok = header != NULL;
    if (w->n_weights > 1)
        snprintf(name, sizeof name, "model-%05d-of-%05d.safetensors", w->n_files + 1, w->n_weights);
    for (const param_spec *p = m->params + first; p < m->params + end && ok; p++)
        if (p->tied_to == NOT_TIED)
            ok = safetensors_add(header, p->name, p->cut.dims, p->n_dims, &bytes) &&
                 cJSON_AddStringToObject(map, p->name, name) != NULL;
    return open_tensors(w, name, header, ok, bytes);
}

static fsdp_status write_index(const model *m, cJSON *map, export_writer *w)
{
    char *text = cJSON_Print(map);
    fsdp_status status = text != NULL ? open_next(w, EXPORT_INDEX) : no_memory();
    if (status == FSDP_OK) /* atomic_file_sync reports a failed fprintf */
        fprintf(w->files[w->n_files - 1].file.out,
                "{\"metadata\": {\"total_size\": %zu},\n\"weight_map\": %s}\n",
                m->n_param_elems * sizeof(float), text);
    cJSON_free(text);
    return status;
}

/* Begin the copy of a file of the source. */
static fsdp_status copy_file(const source_file *from, export_writer *w)
{
    char part[1 << 14];
    const atomic_file *to = &w->files[w->n_files].file;
    TRY(open_next(w, from->name));
    for (size_t at = 0, n; at < from->bytes; at += n) {
        n = min_size(from->bytes - at, sizeof part);
        if (pread_all(from->fd, part, n, at) != n || fwrite(part, 1, n, to->out) != n)
            return fsdp_error(FSDP_EIO, HINT, "export: copying to %s: %s", to->path,
                              errno == 0 ? "the file became shorter" : strerror(errno));
    }
    return FSDP_OK;
}

static fsdp_status open_files(const model *m, uint64_t max_bytes, cJSON *map,
                              const source_files *source, export_writer *w)
{
    if (w->files == NULL || map == NULL)
        return no_memory();
    for (int p = 0, end; p < m->n_params; p = end) {
        end = file_end(m, p, max_bytes);
        TRY(open_weights(m, p, end, map, w));
    }
    if (w->n_weights > 1)
        TRY(write_index(m, map, w));
    for (int i = 0; source != NULL && i < source->n_files; i++)
        TRY(copy_file(&source->files[i], w));
    TRY(open_next(w, EXPORT_CONFIG));
    model_write_config(&m->config, source ? source->config : NULL,
                       w->files[w->n_files - 1].file.out);
    return FSDP_OK;
}

/* ---- writing --------------------------------------------------------------------------------- */

fsdp_status export_begin(const model *m, const char *dir, uint64_t max_bytes,
                         const source_files *source, export_writer *w)
{
    FSDP_ASSERT(dir[0] != '\0');
    *w = (export_writer){0};
    snprintf(w->dir, sizeof w->dir, "%s", dir); /* atomic_make_dir refuses what is cut here */
    cJSON *map = cJSON_CreateObject();
    for (int p = 0; p < m->n_params; p = file_end(m, p, max_bytes))
        w->n_weights++;
    const int n_more = 2 + (source ? source->n_files : 0);
    w->files = calloc((size_t)(w->n_weights + n_more), sizeof *w->files);
    fsdp_status status = atomic_make_dir(dir, HINT);
    IF_OK(status, open_files(m, max_bytes, map, source, w));
    cJSON_Delete(map);
    if (status != FSDP_OK)
        export_cancel(w);
    return status;
}

fsdp_status export_begin_states(const model *m, const optimizer_rule *rule, int64_t step,
                                const char *path, export_writer *w)
{
    char more[96];
    uint64_t bytes = 0;
    snprintf(more, sizeof more, ",\"optimizer\":\"%s\",\"step\":\"%lld\"", rule->name,
             (long long)step);
    cJSON *header = new_header(more);
    *w = (export_writer){.files = calloc(1, sizeof *w->files), .n_weights = 1};
    bool ok = header != NULL && w->files != NULL;
    for (int i = 0; i < rule->n_states * m->n_params && ok; i++) {
        char name[PARAM_NAME_BYTES + 32];
        const param_spec *p = &m->params[i % m->n_params];
        snprintf(name, sizeof name, "%s.%s", p->name, rule->pytorch[i / m->n_params]);
        if (p->tied_to == NOT_TIED && !p->frozen)
            ok = safetensors_add(header, name, p->cut.dims, p->n_dims, &bytes);
    }
    fsdp_status status = open_tensors(w, path, header, ok, bytes);
    if (status != FSDP_OK)
        export_cancel(w);
    return status;
}

fsdp_status export_append(void *writer, const float *values, size_t elems)
{
    export_writer *w = writer;
    for (size_t n; elems > 0; values += n, elems -= n) {
        export_file *f = &w->files[w->at];
        n = elems < f->left_elems ? elems : f->left_elems;
        if (fwrite(values, sizeof *values, n, f->file.out) != n)
            return write_failed(f);
        f->left_elems -= n;
        w->at += f->left_elems == 0;
        FSDP_ASSERT(w->at < w->n_weights || n == elems);
    }
    return FSDP_OK;
}

/* Whether `name` is a file of an earlier export that the new export must remove. */
static bool is_stale(const export_writer *w, const char *name)
{
    int part, n = 0, end = 0;
    if (strcmp(name, w->n_weights > 1 ? EXPORT_WEIGHTS : EXPORT_INDEX) == 0)
        return true;
    sscanf(name, "model-%5d-of-%5d.safetensors%n", &part, &n, &end);
    return end > 0 && name[end] == '\0' && (w->n_weights == 1 || n != w->n_weights);
}

static fsdp_status remove_stale(const export_writer *w)
{
    DIR *d = opendir(w->dir);
    int failed = d == NULL ? errno : 0;
    for (const struct dirent *e; d != NULL && (e = readdir(d)) != NULL;)
        if (is_stale(w, e->d_name) && unlinkat(dirfd(d), e->d_name, 0) != 0)
            failed = errno;
    if (d != NULL)
        closedir(d);
    return failed == 0
               ? FSDP_OK
               : fsdp_error(FSDP_EIO, HINT,
                            "export: cannot remove weights of an earlier export from %s: %s",
                            w->dir, strerror(failed));
}

/* Remove the index of an earlier export, before files that it lists are replaced. */
static fsdp_status retire_index(const export_writer *w)
{
    char index[PATH_MAX + sizeof EXPORT_INDEX], old[PATH_MAX];
    snprintf(index, sizeof index, "%s/%s", w->dir, EXPORT_INDEX);
    if (w->n_weights == 1 || access(index, F_OK) != 0)
        return FSDP_OK;
    TRY(atomic_tmp_name(index, old));
    TRY(atomic_rename(index, old, HINT));
    unlink(old);
    return FSDP_OK;
}

static fsdp_status publish(export_writer *w)
{
    if (w->at < w->n_weights)
        return fsdp_error(FSDP_ESTATE, "", "export: %s: %zu floats are missing",
                          w->files[w->at].file.path, w->files[w->at].left_elems);
    for (int i = 0; i < w->n_files; i++)
        TRY(atomic_file_sync(&w->files[i].file));
    TRY(retire_index(w));
    for (int i = 0; i < w->n_files; i++) {
        if (i == w->n_weights + (w->n_weights > 1)) /* weights and index have their names */
            TRY(remove_stale(w));
        TRY(atomic_file_commit(&w->files[i].file));
    }
    return FSDP_OK;
}

fsdp_status export_end(export_writer *w)
{
    fsdp_status status = publish(w);
    export_cancel(w);
    return status;
}

void export_cancel(export_writer *w)
{
    for (int i = 0; i < w->n_files && w->files != NULL; i++)
        atomic_file_cancel(&w->files[i].file);
    free(w->files);
    *w = (export_writer){0};
}
