/* ckpt_file.c -- see ckpt_file.h. */
#include "common/checkpoint/ckpt_file.h"
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>
#include "common/base/json.h"
#include "common/base/read_file.h"

enum { READ_FLOATS = 1 << 14 };

static const char SPACE_HINT[] = "free some space, or pass another --save directory";

fsdp_status ckpt_no_memory(void)
{
    return fsdp_error(FSDP_ENOMEM, "", "checkpoint: no host memory");
}

/* The suffix in the names of array k's tensors. */
static const char *array_name(const optimizer_rule *optimizer, int k)
{
    return k == 0 ? "p" : optimizer->states[k - 1];
}

bool ckpt_has(const model *m, int p, int k)
{
    return k == 0 || !m->params[p].frozen;
}

uint64_t ckpt_shape(const model *m)
{
    uint64_t hash = 0;
    for (int p = 0; p < m->n_params; p++) {
        char text[PARAM_NAME_BYTES + 128];
        const param_spec *s = &m->params[p];
        int n = snprintf(text, sizeof text, "%s %zu %zu %d %d", s->name, s->cut.dims[0],
                         s->n_dims > 1 ? s->cut.dims[1] : 0, s->n_dims, s->tied_to);
        for (int d = 2; d < s->n_dims; d++)
            n += snprintf(text + n, sizeof text - (size_t)n, " %zu", s->cut.dims[d]);
        hash = XXH3_64bits_withSeed(text, (size_t)n, hash);
    }
    return hash;
}

fsdp_status ckpt_plain_dir(const char *dir, char out[PATH_MAX])
{
    size_t n = strlen(dir);
    while (n > 1 && dir[n - 1] == '/')
        n--;
    if (n + CKPT_NAME_ROOM >= PATH_MAX)
        return fsdp_error(FSDP_EINVAL, "pass a shorter path",
                          "checkpoint: path of %zu bytes is too long", n);
    snprintf(out, PATH_MAX, "%.*s", (int)n, dir);
    return FSDP_OK;
}

ckpt_path ckpt_path_of(const char *dir, const char *name)
{
    ckpt_path path;
    int n = snprintf(path.text, sizeof path.text, "%s/%s", dir, name);
    FSDP_ASSERT(n < PATH_MAX); /* ckpt_plain_dir has checked that names fit */
    return path;
}

ckpt_path ckpt_step_path(const char *dir, int64_t step)
{
    char name[32];
    snprintf(name, sizeof name, "step-%" PRId64, step);
    return ckpt_path_of(dir, name);
}

ckpt_path ckpt_file_path(const char *dir, int file)
{
    char name[32];
    snprintf(name, sizeof name, "rank-%05d.safetensors", file);
    return ckpt_path_of(dir, name);
}

/* ---- the header's __metadata__ --------------------------------------------------------------- */

/* id as an object of strings, which the caller deletes. NULL: out of memory. */
static cJSON *id_json(const ckpt_id *id)
{
    char text[320];
    snprintf(text, sizeof text,
             "{\"format\": \"" CKPT_FORMAT "\", \"run\": \"%s\", \"step\": \"%" PRId64
             "\", \"file\": \"%d\", \"n_files\": \"%d\", \"arrays\": \"%d\", "
             "\"shape\": \"%016" PRIx64 "\"}",
             id->run, id->step, id->file, id->n_files, id->n_arrays, id->shape);
    return cJSON_Parse(text);
}

static fsdp_status check_id(const safetensors *f, const ckpt_id *id)
{
    const cJSON *meta = cJSON_GetObjectItemCaseSensitive(f->header, SAFETENSORS_METADATA);
    cJSON *expected = id_json(id);
    fsdp_status status = expected != NULL ? FSDP_OK : ckpt_no_memory();
    for (const cJSON *e = expected ? expected->child : NULL; e && status == FSDP_OK; e = e->next) {
        const cJSON *item = cJSON_GetObjectItemCaseSensitive(meta, e->string);
        const char *got = cJSON_IsString(item) ? item->valuestring : "nothing";
        if (strcmp(got, e->valuestring) != 0)
            status = fsdp_error(FSDP_EINVAL, CKPT_OTHER_HINT,
                                "checkpoint: %s: %s: got %.40s, expected %s", f->path, e->string,
                                got, e->valuestring);
    }
    cJSON_Delete(expected);
    return status;
}

/* ---- values that have diverged --------------------------------------------------------------- */

fsdp_status ckpt_check_finite(const ckpt_origin *of, const ckpt_piece *piece, int k,
                              const float *values)
{
    const size_t i = floats_finite(values, (size_t)piece->elems);
    char hint[200] = "lower --lr, add --warmup-steps or set --clip-grad 1";
    if (i == piece->elems)
        return FSDP_OK;
    if (of->newest > 0)
        snprintf(hint, sizeof hint,
                 "resume from step %" PRId64 ", which is finite, with a lower --lr or with "
                 "--clip-grad 1, and --resume-change schedule,clip-grad",
                 of->newest);
    return fsdp_error(FSDP_EINVAL, hint,
                      "%s of step %" PRId64 ": training has diverged: unit %s, %s.%s: element "
                      "%" PRIu64 " is %g",
                      of->what, of->step, piece->unit, of->m->params[piece->param].name,
                      array_name(of->optimizer, k), piece->begin + i, (double)values[i]);
}

/* ---- writing --------------------------------------------------------------------------------- */

static fsdp_status write_failed(const ckpt_out *f, const char *what)
{
    return fsdp_error(FSDP_EIO, SPACE_HINT, "checkpoint: %s %s: %s", what, f->path.text,
                      strerror(errno));
}

static fsdp_status write_all(ckpt_out *f, const void *data, size_t bytes)
{
    XXH3_64bits_update(f->hash, data, bytes);
    f->bytes += bytes;
    return fwrite(data, 1, bytes, f->out) == bytes ? FSDP_OK : write_failed(f, "write to");
}

static bool add_tensors(cJSON *header, const ckpt_id *id, const model *m, const ckpt_pieces *list,
                        uint64_t *data_bytes)
{
    bool ok = cJSON_AddItemToObject(header, SAFETENSORS_METADATA, id_json(id));
    for (int k = 0; k < id->n_arrays; k++)
        for (int i = 0; i < list->n_pieces && ok; i++) {
            char name[PARAM_NAME_BYTES + 48];
            const ckpt_piece *piece = &list->pieces[i];
            size_t elems = (size_t)piece->elems;
            if (!ckpt_has(m, piece->param, k))
                continue;
            snprintf(name, sizeof name, "%s@%" PRIu64 ".%s", m->params[piece->param].name,
                     piece->begin, array_name(id->optimizer, k));
            ok = safetensors_add(header, name, &elems, 1, data_bytes);
        }
    return ok;
}

fsdp_status ckpt_out_open(const char *dir, const ckpt_id *id, const model *m,
                          const ckpt_pieces *list, ckpt_out *f)
{
    size_t head_bytes = 0;
    uint64_t data_bytes = 0;
    *f = (ckpt_out){.of = {"checkpoint", m, id->optimizer, id->step, 0},
                    .path = ckpt_file_path(dir, id->file),
                    .hash = XXH3_createState()};
    if (XXH3_64bits_reset(f->hash) != XXH_OK) /* no memory: hash is NULL */
        return ckpt_no_memory();
    cJSON *header = cJSON_CreateObject();
    bool ok = add_tensors(header, id, m, list, &data_bytes);
    char *head = ok ? safetensors_head(header, &head_bytes) : NULL;
    cJSON_Delete(header);
    if (head == NULL)
        return ckpt_no_memory();
    f->expected_bytes = head_bytes + data_bytes;
    f->out = fopen(f->path.text, "wxe");
    fsdp_status status =
        f->out != NULL ? write_all(f, head, head_bytes) : write_failed(f, "create");
    free(head);
    return status;
}

fsdp_status ckpt_out_write(ckpt_out *f, const ckpt_piece *piece, int k, const float *values)
{
    if (!ckpt_has(f->of.m, piece->param, k))
        return FSDP_OK;
    const size_t bytes = (size_t)piece->elems * sizeof *values;
    if (f->copy != NULL) {
        FSDP_ASSERT(bytes <= f->expected_bytes - f->bytes);
        memcpy(f->copy + f->bytes / sizeof *values, values, bytes);
        f->bytes += bytes;
        return FSDP_OK;
    }
    TRY(ckpt_check_finite(&f->of, piece, k, values));
    return write_all(f, values, bytes);
}

fsdp_status ckpt_out_finish(ckpt_out *f, ckpt_sum *sum)
{
    if (f->bytes != f->expected_bytes)
        return fsdp_error(FSDP_ESTATE, "",
                          "checkpoint: %s: got %" PRIu64 " bytes, expected %" PRIu64, f->path.text,
                          f->bytes, f->expected_bytes);
    if (fflush(f->out) != 0 || fsync(fileno(f->out)) != 0)
        return write_failed(f, "fsync");
    *sum = (ckpt_sum){.bytes = f->bytes, .xxh3 = XXH3_64bits_digest(f->hash)};
    return FSDP_OK;
}

void ckpt_out_close(ckpt_out *f)
{
    if (f->out != NULL)
        fclose(f->out);
    XXH3_freeState(f->hash);
    *f = (ckpt_out){0};
}

/* ---- reading --------------------------------------------------------------------------------- */

fsdp_status ckpt_file_sum(const char *path, ckpt_sum *sum, uint64_t *diverged)
{
    float block[READ_FLOATS];
    size_t bytes = sizeof block, unused;
    int fd;
    XXH3_state_t *hash = XXH3_createState();
    if (XXH3_64bits_reset(hash) != XXH_OK) /* no memory: hash is NULL */
        return ckpt_no_memory();
    *sum = (ckpt_sum){0};
    *diverged = 0;
    const char *why = open_regular(path, &fd, &unused);
    while (why == NULL && bytes == sizeof block) {
        bytes = pread_all(fd, block, sizeof block, sum->bytes);
        if (bytes < sizeof block && errno != 0)
            why = strerror(errno);
        const size_t floats = bytes / sizeof *block, i = floats_finite(block, floats);
        if (i < floats && *diverged == 0)
            *diverged = sum->bytes + i * sizeof *block;
        XXH3_64bits_update(hash, block, bytes);
        sum->bytes += bytes;
    }
    sum->xxh3 = XXH3_64bits_digest(hash);
    XXH3_freeState(hash);
    if (fd >= 0)
        close(fd);
    return why == NULL
               ? FSDP_OK
               : fsdp_error(FSDP_EIO, CKPT_OTHER_HINT, "checkpoint: read %s: %s", path, why);
}

/* The parameter named name[0..n), or -1. Tensors come in order, so the search begins at `from`. */
static int find_param(const model *m, const char *name, size_t n, int from)
{
    for (int i = 0; i < m->n_params; i++) {
        int p = (from + i) % m->n_params;
        if (strlen(m->params[p].name) == n && memcmp(m->params[p].name, name, n) == 0 &&
            m->params[p].tied_to == NOT_TIED)
            return p;
    }
    return -1;
}

/* Parse "name@32.m", the name of a tensor of this model, and the tensor's range in the file. The
 * search for the parameter begins at e->piece.param. */
static bool parse_tensor(const safetensors *f, const ckpt_id *id, const cJSON *t, const model *m,
                         ckpt_entry *e)
{
    const char *at = strrchr(t->string, '@');
    const cJSON *shape = cJSON_GetObjectItemCaseSensitive(t, "shape");
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(t, "dtype");
    size_t elems;
    char *end;
    if (at == NULL || at[1] < '0' || at[1] > '9' || !cJSON_IsString(type) ||
        strcmp(type->valuestring, "F32") != 0 || cJSON_GetArraySize(shape) != 1 ||
        !json_size(cJSON_GetArrayItem(shape, 0), &elems))
        return false;
    errno = 0;
    unsigned long long begin = strtoull(at + 1, &end, 10);
    int p = find_param(m, t->string, (size_t)(at - t->string), e->piece.param);
    if (errno != 0 || *end != '.' || p < 0 || elems == 0 || elems > m->params[p].cut.elems ||
        begin > m->params[p].cut.elems - elems)
        return false;
    e->piece = (ckpt_piece){.param = p, .begin = begin, .elems = elems};
    for (e->array = 0; strcmp(end + 1, array_name(id->optimizer, e->array)) != 0;)
        if (++e->array == id->n_arrays)
            return false;
    bool ok = safetensors_range(t, elems * sizeof(float), &e->at);
    e->at += f->data_begin;
    return ok;
}

static fsdp_status append(ckpt_entries *out, const ckpt_entry *e)
{
    if (out->n == out->room) {
        size_t room = 2 * out->room + 64;
        ckpt_entry *list = realloc(out->list, room * sizeof *list);
        if (list == NULL)
            return ckpt_no_memory();
        *out = (ckpt_entries){.list = list, .n = out->n, .room = room};
    }
    out->list[out->n++] = *e;
    return FSDP_OK;
}

static fsdp_status list_tensors(const safetensors *f, const ckpt_id *id, const model *m,
                                ckpt_entries *out)
{
    ckpt_entry e = {.file = id->file};
    TRY(check_id(f, id));
    for (const cJSON *t = f->header->child; t != NULL; t = t->next) {
        if (strcmp(t->string, SAFETENSORS_METADATA) == 0)
            continue;
        if (!parse_tensor(f, id, t, m, &e))
            return fsdp_error(FSDP_EINVAL, CKPT_OTHER_HINT,
                              "checkpoint: %s: tensor %.80s is no part of this model", f->path,
                              t->string);
        TRY(append(out, &e));
    }
    return FSDP_OK;
}

fsdp_status ckpt_file_list(const char *dir, const ckpt_id *id, const model *m, ckpt_entries *out)
{
    safetensors f;
    TRY(safetensors_open(ckpt_file_path(dir, id->file).text, CKPT_OTHER_HINT, &f));
    fsdp_status status = list_tensors(&f, id, m, out);
    safetensors_close(&f);
    return status;
}

bool ckpt_file_is_of(const char *dir, const char *run, int64_t step)
{
    safetensors f;
    char text[24];
    if (safetensors_open(ckpt_file_path(dir, 0).text, CKPT_OTHER_HINT, &f) != FSDP_OK)
        return false;
    snprintf(text, sizeof text, "%" PRId64, step);
    const cJSON *says = cJSON_GetObjectItemCaseSensitive(f.header, "__metadata__");
    const char *r = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(says, "run"));
    const char *n = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(says, "step"));
    const bool is = r && n && strcmp(r, run) == 0 && strcmp(n, text) == 0;
    safetensors_close(&f);
    return is;
}
