/* import.c -- reads a model's weights from our exports or from Hugging Face: one file, or
 * several files that an index names, in fp32, bf16 or fp16.
 *
 *   import_model_config -> model_create -> import_open -> import_read ... -> import_close
 *
 * The files come from elsewhere, so names, types, shapes and ranges are checked before use. */
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "common/base/dtype.h"
#include "common/base/json.h"
#include "common/model/tensor_parallel.h"
#include "common/weights/export.h"

enum { COMPARED_ELEMS = 1024, NO_FILE = -1 };

static const char SHARD_HINT[] = "model.safetensors.index.json names this file: copy it as well";
static const char SAME_HINT[] = "config.json and the weights must belong to the same model";

/* ---- files ----------------------------------------------------------------------------------- */

static fsdp_status no_memory(void)
{
    return fsdp_error(FSDP_ENOMEM, "", "import: no host memory");
}

/* Open DIR/NAME as the next file. *i = its index, or the index of an open file of the same name. */
static fsdp_status open_file(import *w, const char *dir, const char *name, const char *hint, int *i)
{
    char path[IMPORT_PATH_ROOM];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    for (*i = 0; *i < w->n_files; ++*i)
        if (strcmp(w->files[*i].path, path) == 0)
            return FSDP_OK;
    TRY(safetensors_open(path, hint, &w->files[w->n_files]));
    w->n_files++;
    return FSDP_OK;
}

/* Open the files that the index names. Each must hold the tensors that the index lists for it. */
static fsdp_status open_shards(import *w, const char *dir, const char *path, const cJSON *map)
{
    if (!cJSON_IsObject(map) || map->child == NULL)
        return fsdp_error(FSDP_EINVAL, IMPORT_HINT,
                          "import: %s: \"weight_map\": expected file names", path);
    for (const cJSON *t = map->child; t != NULL; t = t->next) {
        int i = 0;
        const char *name = cJSON_IsString(t) ? t->valuestring : "";
        if (*name == '\0' || strchr(name, '/') != NULL)
            return fsdp_error(FSDP_EINVAL, IMPORT_HINT,
                              "import: %s: %.80s: expected the name of a file beside the index",
                              path, t->string);
        TRY(open_file(w, dir, name, SHARD_HINT, &i));
        if (cJSON_GetObjectItemCaseSensitive(w->files[i].header, t->string) == NULL)
            return fsdp_error(FSDP_EINVAL, SAME_HINT,
                              "import: %s: got no tensor %.80s, which the index says it has",
                              w->files[i].path, t->string);
    }
    return FSDP_OK;
}

static fsdp_status open_files(import *w, const char *dir)
{
    char path[IMPORT_PATH_ROOM], single[IMPORT_PATH_ROOM];
    cJSON *index = NULL;
    int i;
    snprintf(path, sizeof path, "%s/%s", dir, EXPORT_INDEX);
    snprintf(single, sizeof single, "%s/%s", dir, EXPORT_WEIGHTS);
    const bool has_index = access(path, F_OK) == 0;
    if (has_index && access(single, F_OK) == 0)
        return fsdp_error(FSDP_EINVAL, "remove the one that is not meant",
                          "import: %s: got " EXPORT_WEIGHTS " and " EXPORT_INDEX ", expected one",
                          dir);
    if (has_index)
        TRY(json_read_file(path, IMPORT_HINT, &index));
    const cJSON *map = cJSON_GetObjectItemCaseSensitive(index, "weight_map");
    w->files = calloc((size_t)cJSON_GetArraySize(map) + 1, sizeof *w->files);
    fsdp_status status = w->files == NULL ? no_memory()
                         : has_index      ? open_shards(w, dir, path, map)
                                          : open_file(w, dir, EXPORT_WEIGHTS, IMPORT_HINT, &i);
    cJSON_Delete(index);
    return status;
}

/* ---- names, types and shapes ----------------------------------------------------------------- */

/* The name without the family's prefix, which some files omit. */
static const char *plain_name(const model *m, const char *name)
{
    const size_t n = strlen(m->family->prefix);
    return name + (strncmp(name, m->family->prefix, n) == 0 ? n : 0);
}

/* A parameter by its plain name. */
typedef struct import_name {
    const char *name;
    int p;
} import_name;

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const import_name *)a)->name, ((const import_name *)b)->name);
}

/* Fill w->names [n_params], sorted. */
static void sort_names(import *w)
{
    for (int p = 0; p < w->m->n_params; p++)
        w->names[p] = (import_name){plain_name(w->m, w->m->params[p].name), p};
    qsort(w->names, (size_t)w->m->n_params, sizeof *w->names, compare_names);
}

/* The parameter that a tensor holds; -1: none. */
static int find_param(const import *w, const char *name)
{
    const import_name key = {.name = plain_name(w->m, name)}, *found;
    found = bsearch(&key, w->names, (size_t)w->m->n_params, sizeof key, compare_names);
    return found ? found->p : -1;
}

/* Whether the file says nothing about a parameter here. */
static bool is_ignored(const model *m, const char *name)
{
    return strcmp(name, SAFETENSORS_METADATA) == 0 ||
           fnmatch(m->family->ignored, plain_name(m, name), FNM_EXTMATCH) == 0;
}

static fsdp_status check_shape(const safetensors *f, const cJSON *t, const param_spec *spec)
{
    char got[128], expected[96];
    size_t at = 0;
    for (int d = 0; d < spec->n_dims; d++)
        at += (size_t)snprintf(expected + at, sizeof expected - at, "%c%zu", d ? ',' : '[',
                               spec->cut.dims[d]);
    snprintf(expected + at, sizeof expected - at, "]");
    json_print(cJSON_GetObjectItemCaseSensitive(t, "shape"), got, sizeof got);
    if (strcmp(got, expected) == 0)
        return FSDP_OK;
    return fsdp_error(FSDP_EINVAL, SAME_HINT, "import: %s: %s: shape: got %s, expected %s", f->path,
                      spec->name, got, expected);
}

/* Check the tensor of a parameter, and fill in all members of import_tensor except `file`. */
static fsdp_status check_tensor(const safetensors *f, const cJSON *t, const param_spec *spec,
                                import_tensor *out)
{
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(t, "dtype");
    const char *got = cJSON_IsString(type) ? type->valuestring : "none";
    out->name = t->string;
    out->is_f32 = strcmp(got, "F32") == 0;
    out->is_f16 = strcmp(got, "F16") == 0;
    if (!out->is_f32 && !out->is_f16 && strcmp(got, "BF16") != 0)
        return fsdp_error(FSDP_EINVAL, "convert the weights to one of these types",
                          "import: %s: %s: dtype: got %.32s, expected F32, BF16 or F16", f->path,
                          spec->name, got);
    TRY(check_shape(f, t, spec));
    const size_t bytes = spec->cut.elems * (out->is_f32 ? sizeof(float) : sizeof(uint16_t));
    if (!safetensors_range(t, bytes, &out->begin))
        return fsdp_error(FSDP_EINVAL, "the file is damaged: copy it again",
                          "import: %s: %s: data_offsets: expected a range of %zu bytes", f->path,
                          spec->name, bytes);
    return FSDP_OK;
}

/* Names for a message, as many as fit. */
typedef struct name_list {
    char text[240];
    int n;
} name_list;

static void add_name(name_list *l, const char *name)
{
    const size_t used = strlen(l->text), left = sizeof l->text - used;
    l->n++;
    if (strlen(name) + 8 < left)
        snprintf(l->text + used, left, "%s%s", used > 0 ? ", " : "", name);
    else if (left > 5 && strcmp(l->text + used - 3, "...") != 0)
        snprintf(l->text + used, left, " ...");
}

static fsdp_status list_file(import *w, int file, name_list *unknown)
{
    const safetensors *f = &w->files[file];
    for (const cJSON *t = f->header->child; t != NULL; t = t->next) {
        const int p = find_param(w, t->string);
        if (p >= 0 && w->tensors[p].file != NO_FILE)
            return fsdp_error(FSDP_EINVAL, SAME_HINT, "import: %s: %s: the tensor comes twice",
                              f->path, w->m->params[p].name);
        if (p >= 0) {
            TRY(check_tensor(f, t, &w->m->params[p], &w->tensors[p]));
            w->tensors[p].file = file;
        } else if (!is_ignored(w->m, t->string)) {
            add_name(unknown, t->string);
        }
    }
    return FSDP_OK;
}

/* Every parameter needs its tensor; of parameters that are tied, one needs it. No other tensor may
 * be there. */
static fsdp_status list_tensors(import *w, const char *dir)
{
    name_list missing = {.n = 0}, unknown = {.n = 0};
    w->tensors = calloc((size_t)w->m->n_params, sizeof *w->tensors);
    w->names = calloc((size_t)w->m->n_params, sizeof *w->names);
    if (w->tensors == NULL || w->names == NULL)
        return no_memory();
    sort_names(w);
    for (int p = 0; p < w->m->n_params; p++)
        w->tensors[p].file = NO_FILE;
    for (int i = 0; i < w->n_files; i++)
        TRY(list_file(w, i, &unknown));
    for (int q = 0; q < w->m->n_params; q++) {
        const int p = w->m->params[q].tied_to;
        if (p != NOT_TIED && w->tensors[p].file == NO_FILE) { /* stored under the other name */
            w->tensors[p] = w->tensors[q];
            w->tensors[q].file = NO_FILE;
        }
    }
    for (int p = 0; p < w->m->n_params; p++)
        if (w->tensors[p].file == NO_FILE && w->m->params[p].tied_to == NOT_TIED)
            add_name(&missing, w->m->params[p].name);
    if (missing.n + unknown.n == 0)
        return FSDP_OK;
    return fsdp_error(FSDP_EINVAL, SAME_HINT,
                      "import: %.200s: %d parameters without a tensor%s%s; %d tensors of no "
                      "parameter%s%s",
                      dir, missing.n, missing.n ? ": " : "", missing.text, unknown.n,
                      unknown.n ? ": " : "", unknown.text);
}

fsdp_status import_open(const char *dir, const model *m, import *w)
{
    *w = (import){.m = m};
    fsdp_status status = open_files(w, dir);
    IF_OK(status, list_tensors(w, dir));
    if (status != FSDP_OK)
        import_close(w);
    return status;
}

void import_close(import *w)
{
    for (int i = 0; i < w->n_files; i++)
        safetensors_close(&w->files[i]);
    free(w->files);
    free(w->tensors);
    free(w->names);
    *w = (import){0};
}

/* ---- values ---------------------------------------------------------------------------------- */

/* Read elements of a tensor, which must be finite. Values of two bytes are read into the second
 * half of `out` and widened from the front: value i of n overwrites values 2i-n and 2i-n+1, which
 * are no longer needed. */
static fsdp_status read_values(const import *w, const import_tensor *t, size_t begin, size_t elems,
                               float *out)
{
    const safetensors *f = &w->files[t->file];
    const size_t bytes = t->is_f32 ? sizeof *out : sizeof(uint16_t);
    const char *raw = (char *)out + elems * (sizeof *out - bytes);
    TRY(safetensors_read(f, (char *)raw, elems * bytes, t->begin + begin * bytes));
    for (size_t i = 0; i < elems && !t->is_f32; i++) {
        uint16_t h;
        memcpy(&h, raw + i * sizeof h, sizeof h);
        out[i] = t->is_f16 ? f32_from_f16(h) : f32_from_bf16(h);
    }
    const size_t i = floats_finite(out, elems);
    return i == elems ? FSDP_OK
                      : fsdp_error(FSDP_EINVAL, "pass weights whose values are all finite numbers",
                                   "import: %s: %s[%zu]: got %g, expected a finite number", f->path,
                                   t->name, begin + i, (double)out[i]);
}

/* Parameter p shares its storage with `of`, but has a tensor: both must hold the same values. */
static fsdp_status check_tied(const import *w, int p, int of, size_t begin, size_t elems,
                              const float *values)
{
    float got[COMPARED_ELEMS];
    for (size_t i = 0; i < elems; i++) {
        const size_t k = i % COMPARED_ELEMS;
        if (k == 0)
            TRY(read_values(w, &w->tensors[p], begin + i, min_size(elems - i, COMPARED_ELEMS),
                            got));
        if (memcmp(&got[k], &values[i], sizeof *got) != 0)
            return fsdp_error(FSDP_EINVAL, "use a model with tied embeddings",
                              "import: %s: %s[%zu]: got %.9g, expected %.9g as in %s: the two are "
                              "tied",
                              w->files[w->tensors[p].file].path, w->m->params[p].name, begin + i,
                              (double)got[k], (double)values[i], w->m->params[of].name);
    }
    return FSDP_OK;
}

static fsdp_status read_run(const import *w, int p, size_t begin, size_t elems, float *out)
{
    TRY(read_values(w, &w->tensors[p], begin, elems, out));
    for (int q = w->m->params[p].next_use; q > 0; q = w->m->params[q].next_use)
        if (w->tensors[q].file != NO_FILE)
            TRY(check_tied(w, q, p, begin, elems, out));
    return FSDP_OK;
}

fsdp_status import_read(const import *w, int p, size_t begin, size_t elems, float *out)
{
    for (size_t done = 0, n; done < elems; done += n) {
        const size_t at = param_in_file(&w->m->params[p], begin + done, &n);
        n = min_size(n, elems - done);
        TRY(read_run(w, p, at, n, out + done));
    }
    return FSDP_OK;
}
