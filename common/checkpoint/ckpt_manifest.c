/* ckpt_manifest.c -- see ckpt_manifest.h. */
#include "common/checkpoint/ckpt_manifest.h"
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>
#include "common/base/atomic_file.h"
#include "common/base/json.h"
#include "common/base/options.h"

enum { MAX_FILES = 99999 };

/* ---- facts ----------------------------------------------------------------------------------- */

void ckpt_about_add(ckpt_about *a, const char *name, bool fixed, const char *format, ...)
{
    FSDP_ASSERT(a->n < CKPT_MAX_FACTS);
    ckpt_fact *f = &a->facts[a->n++];
    f->fixed = fixed;
    snprintf(f->name, sizeof f->name, "%s", name);
    va_list args;
    va_start(args, format);
    vsnprintf(f->value, sizeof f->value, format, args);
    va_end(args);
}

const char *ckpt_about_value(const ckpt_about *a, const char *name)
{
    for (int i = 0; i < a->n; i++)
        if (strcmp(a->facts[i].name, name) == 0)
            return a->facts[i].value;
    return "nothing";
}

fsdp_status ckpt_about_check(const ckpt_about *saved, const ckpt_about *now, const char *change,
                             const char *dir)
{
    const ckpt_fact *first = NULL;
    char names[CKPT_MAX_FACTS * sizeof first->name] = "", hint[320];
    for (int i = 0; i < now->n; i++) {
        const ckpt_fact *f = &now->facts[i];
        if (strcmp(ckpt_about_value(saved, f->name), f->value) == 0 ||
            (!f->fixed && change != NULL && options_choice(change, f->name) >= 0))
            continue;
        first = first != NULL && (first->fixed || !f->fixed) ? first : f;
        size_t n = strlen(names);
        snprintf(names + n, sizeof names - n, "%s%s", n > 0 ? "," : "", f->name);
    }
    if (first == NULL)
        return FSDP_OK;
    if (first->fixed)
        snprintf(hint, sizeof hint, "resume with the %s options of the run that saved it",
                 first->name);
    else
        snprintf(hint, sizeof hint,
                 "pass what that run had, or --resume-change %.240s if it is meant", names);
    return fsdp_error(FSDP_EINVAL, hint, "--resume %s: %s: saved with %s, this run has %s", dir,
                      first->name, ckpt_about_value(saved, first->name), first->value);
}

/* Older checkpoints do not say when a file was changed; their sum is the same without it. */
static uint64_t sum_notes(const corpus_notes *notes, uint64_t sum)
{
    const size_t skipped = offsetof(corpus_print, name);
    _Static_assert(sizeof(corpus_print) == 256 + 4 * sizeof(uint64_t), "without padding");
    for (const corpus_print *f = notes->files; f < notes->files + notes->n_files; f++)
        sum =
            XXH3_64bits_withSeed((const char *)f + skipped, sizeof *f - skipped, sum + f->ctime_ns);
    return sum;
}

/* A hash of the fields that a resuming run compares with its own. The other fields of a manifest
 * are compared with the files instead. */
static uint64_t about_sum(const ckpt_manifest *m)
{
    uint64_t sum = m->id.shape + (uint64_t)m->id.n_arrays;
    const int64_t about_data[] = {m->n_samples, (int64_t)m->data.hash, (int64_t)m->mask.hash};
    if (m->n_samples >= 0)
        sum = XXH3_64bits_withSeed(about_data, sizeof about_data, sum);
    sum = sum_notes(&m->mask, sum_notes(&m->data, sum));
    for (int i = 0; i < m->about.n; i++) {
        const ckpt_fact *f = &m->about.facts[i];
        sum = XXH3_64bits_withSeed(f->name, strlen(f->name) + 1, sum);
        sum = XXH3_64bits_withSeed(f->value, strlen(f->value) + 1, sum);
    }
    return sum;
}

/* ---- writing --------------------------------------------------------------------------------- */

static bool add_hex(cJSON *j, const char *key, uint64_t x)
{
    char text[20];
    snprintf(text, sizeof text, "%016" PRIx64, x);
    return cJSON_AddStringToObject(j, key, text) != NULL;
}

/* Add what is known of the files of a corpus; nothing if it has none. */
static bool add_notes(cJSON *j, const char *key, const corpus_notes *notes)
{
    if (notes->n_files == 0)
        return true;
    cJSON *of = cJSON_AddObjectToObject(j, key);
    bool ok = of != NULL && add_hex(of, "xxh3", notes->hash);
    cJSON *files = cJSON_AddArrayToObject(of, "files");
    for (size_t i = 0; i < notes->n_files && ok; i++) {
        const corpus_print *f = &notes->files[i];
        cJSON *file = cJSON_CreateObject();
        ok = cJSON_AddItemToArray(files, file) &&
             cJSON_AddStringToObject(file, "name", f->name) != NULL &&
             cJSON_AddNumberToObject(file, "bytes", (double)f->bytes) != NULL &&
             add_hex(file, "mtime_ns", f->mtime_ns) && add_hex(file, "ctime_ns", f->ctime_ns) &&
             add_hex(file, "xxh3", f->hash);
    }
    return ok;
}

static bool add_rest(cJSON *j, const ckpt_manifest *m)
{
    cJSON *about = cJSON_AddObjectToObject(j, "run_was");
    bool ok = about != NULL && add_hex(j, "run_was_xxh3", about_sum(m)) &&
              add_notes(j, "data", &m->data) && add_notes(j, "mask", &m->mask);
    if (m->n_samples >= 0)
        ok = ok && cJSON_AddNumberToObject(j, "samples", (double)m->n_samples) != NULL;
    cJSON *files = cJSON_AddArrayToObject(j, "files");
    ok = ok && files != NULL;
    for (int i = 0; i < m->about.n && ok; i++)
        ok =
            cJSON_AddStringToObject(about, m->about.facts[i].name, m->about.facts[i].value) != NULL;
    for (int i = 0; i < m->id.n_files && ok; i++) {
        cJSON *file = cJSON_CreateObject();
        ok = cJSON_AddItemToArray(files, file) &&
             cJSON_AddNumberToObject(file, "bytes", (double)m->files[i].bytes) != NULL &&
             add_hex(file, "xxh3", m->files[i].xxh3);
    }
    return ok;
}

/* The manifest as JSON, which the caller deletes. NULL: out of memory. */
static cJSON *manifest_json(const ckpt_manifest *m)
{
    cJSON *j = cJSON_CreateObject();
    if (cJSON_AddStringToObject(j, "format", CKPT_FORMAT) != NULL &&
        cJSON_AddStringToObject(j, "run", m->id.run) != NULL &&
        cJSON_AddNumberToObject(j, "step", (double)m->id.step) != NULL &&
        cJSON_AddNumberToObject(j, "arrays", m->id.n_arrays) != NULL &&
        add_hex(j, "shape", m->id.shape) && add_rest(j, m))
        return j;
    cJSON_Delete(j);
    return NULL;
}

static fsdp_status write_text(const char *path, const char *text)
{
    atomic_file f;
    TRY(atomic_file_open(&f, path, "pass a --save directory that can be written"));
    fprintf(f.out, "%s\n", text);
    return atomic_file_commit(&f); /* fails if fprintf failed */
}

fsdp_status ckpt_manifest_write(const char *dir, const ckpt_manifest *m)
{
    const ckpt_path path = ckpt_path_of(dir, "manifest.json");
    cJSON *j = manifest_json(m), *back = NULL;
    char *text = cJSON_Print(j);
    fsdp_status status = text != NULL ? write_text(path.text, text) : ckpt_no_memory();
    IF_OK(status, json_read_file(path.text, CKPT_OTHER_HINT, &back));
    if (status == FSDP_OK && !cJSON_Compare(j, back, true))
        status = fsdp_error(FSDP_EIO, "check the disk",
                            "checkpoint: %s: read back something else than was written", path.text);
    cJSON_free(text);
    cJSON_Delete(j);
    cJSON_Delete(back);
    return status;
}

/* ---- reading --------------------------------------------------------------------------------- */

static bool read_text(const cJSON *j, const char *key, char *out, size_t out_bytes)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(j, key);
    if (!cJSON_IsString(item) || strlen(item->valuestring) >= out_bytes)
        return false;
    snprintf(out, out_bytes, "%s", item->valuestring);
    return true;
}

static bool read_hex(const cJSON *j, const char *key, uint64_t *out)
{
    char text[20], *end;
    if (!read_text(j, key, text, sizeof text) || strlen(text) != 16)
        return false;
    *out = strtoull(text, &end, 16);
    return *end == '\0' && text[0] != '-' && text[0] != '+' && text[0] != ' ';
}

static bool read_id(const cJSON *j, ckpt_id *id)
{
    uint64_t unused;
    size_t arrays;
    if (!read_text(j, "run", id->run, sizeof id->run) || !read_hex(j, "run", &unused) ||
        !json_size(cJSON_GetObjectItemCaseSensitive(j, "step"), (size_t *)&id->step) ||
        !json_size(cJSON_GetObjectItemCaseSensitive(j, "arrays"), &arrays) || arrays < 1 ||
        arrays > 1 + OPTIM_MAX_STATES)
        return false;
    id->n_arrays = (int)arrays;
    return read_hex(j, "shape", &id->shape);
}

static bool read_print(const cJSON *j, corpus_print *out)
{
    const bool has_ctime = cJSON_HasObjectItem(j, "ctime_ns");
    return read_text(j, "name", out->name, sizeof out->name) &&
           json_size(cJSON_GetObjectItemCaseSensitive(j, "bytes"), &out->bytes) &&
           (!has_ctime || read_hex(j, "ctime_ns", &out->ctime_ns)) &&
           read_hex(j, "mtime_ns", &out->mtime_ns) && read_hex(j, "xxh3", &out->hash);
}

/* Older checkpoints have no notes. */
static bool read_notes(const cJSON *j, const char *key, corpus_notes *out)
{
    const cJSON *of = cJSON_GetObjectItemCaseSensitive(j, key);
    const cJSON *files = cJSON_GetObjectItemCaseSensitive(of, "files");
    if (of == NULL)
        return true;
    if (!cJSON_IsArray(files) || !read_hex(of, "xxh3", &out->hash))
        return false;
    out->files = calloc((size_t)cJSON_GetArraySize(files) + 1, sizeof *out->files);
    for (const cJSON *f = files->child; f != NULL && out->files != NULL; f = f->next)
        if (!read_print(f, &out->files[out->n_files++]))
            return false;
    return out->files != NULL;
}

static bool read_about(const cJSON *j, ckpt_manifest *m)
{
    const cJSON *samples = cJSON_GetObjectItemCaseSensitive(j, "samples");
    const cJSON *facts = cJSON_GetObjectItemCaseSensitive(j, "run_was");
    uint64_t sum;
    m->n_samples = -1;
    if ((samples != NULL && !json_size(samples, (size_t *)&m->n_samples)) ||
        !read_notes(j, "data", &m->data) || !read_notes(j, "mask", &m->mask) ||
        !cJSON_IsObject(facts) || cJSON_GetArraySize(facts) > CKPT_MAX_FACTS)
        return false;
    for (const cJSON *f = facts->child; f != NULL; f = f->next) {
        if (!cJSON_IsString(f))
            return false;
        ckpt_about_add(&m->about, f->string, false, "%s", f->valuestring);
    }
    return read_hex(j, "run_was_xxh3", &sum) && sum == about_sum(m);
}

static bool read_files(const cJSON *j, ckpt_manifest *m)
{
    const cJSON *files = cJSON_GetObjectItemCaseSensitive(j, "files");
    const int n = cJSON_GetArraySize(files);
    if (!cJSON_IsArray(files) || n < 1 || n > MAX_FILES)
        return false;
    m->id.n_files = n;
    m->files = calloc((size_t)n, sizeof *m->files);
    ckpt_sum *sum = m->files;
    for (const cJSON *file = files->child; file != NULL && sum != NULL; file = file->next, sum++) {
        if (!json_size(cJSON_GetObjectItemCaseSensitive(file, "bytes"), &sum->bytes) ||
            !read_hex(file, "xxh3", &sum->xxh3))
            return false;
    }
    return sum != NULL;
}

fsdp_status ckpt_manifest_read(const char *dir, ckpt_manifest *m)
{
    const ckpt_path path = ckpt_path_of(dir, "manifest.json");
    char format[64] = "none";
    cJSON *j;
    *m = (ckpt_manifest){0};
    TRY(json_read_file(path.text, CKPT_OTHER_HINT, &j));
    errno = 0;
    bool known = read_text(j, "format", format, sizeof format) && strcmp(format, CKPT_FORMAT) == 0;
    bool ok = known && read_id(j, &m->id) && read_about(j, m) && read_files(j, m);
    const bool no_memory = errno == ENOMEM;
    cJSON_Delete(j);
    if (ok)
        return FSDP_OK;
    ckpt_manifest_free(m);
    if (no_memory)
        return ckpt_no_memory();
    if (known)
        return fsdp_error(FSDP_EINVAL, CKPT_OTHER_HINT, "checkpoint: %s is damaged", path.text);
    return fsdp_error(FSDP_EINVAL, CKPT_OTHER_HINT, "checkpoint: %s: format: got %s, expected %s",
                      path.text, format, CKPT_FORMAT);
}

void ckpt_manifest_free(ckpt_manifest *m)
{
    free(m->files);
    corpus_notes_free(&m->data);
    corpus_notes_free(&m->mask);
    *m = (ckpt_manifest){0};
}
