/* export.c -- writes safetensors with Hugging Face's names and the config.json that goes with it.
 *
 *   export_begin -> export_append ... -> export_end | export_cancel
 *
 * safetensors: 8 bytes of header length, little-endian; a JSON object from tensor name to dtype,
 * shape and byte range after the header, padded with spaces to 8 bytes; the tensors without gaps.
 * The two files get their names, weights first, after both are on disk. A crash between the two
 * renames leaves new weights beside the old config.json. https://huggingface.co/docs/safetensors */
#include "common/model/export_impl.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "floats are written as they stand");

struct export_writer {
    char *dir;
    char *weights_tmp, *config_tmp; /* the files exist while these are not NULL */
    FILE *weights;                  /* open at weights_tmp */
    size_t expected_elems, written_elems;
};

/* ---- small helpers -------------------------------------------------------------------------- */

char *path_join(const char *dir, const char *name)
{
    char *path;
    return asprintf(&path, "%s/%s", dir, name) < 0 ? NULL : path;
}

static fsdp_status no_memory(void)
{
    return fsdp_error(FSDP_ENOMEM, "", "export: no host memory");
}

static fsdp_status io_failed(const char *path, const char *what)
{
    return fsdp_error(FSDP_EIO, "check the path given to --export, and the space left there",
                      "export: %s: %s: %s", path, what, strerror(errno));
}

/* Like mkdir -p. */
static fsdp_status make_dirs(const char *dir)
{
    char *path = strdup(dir);
    if (path == NULL)
        return no_memory();
    fsdp_status status = FSDP_OK;
    for (char *at = path + 1; status == FSDP_OK && *path != '\0'; at++) {
        const char was = *at;
        if (was != '/' && was != '\0')
            continue;
        *at = '\0';
        if (mkdir(path, 0777) != 0 && errno != EEXIST)
            status = io_failed(path, "mkdir");
        *at = was;
        if (was == '\0')
            break;
    }
    free(path);
    return status;
}

static fsdp_status sync_dir(const char *dir)
{
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return io_failed(dir, "open");
    fsdp_status status = FSDP_OK;
    if (fsync(fd) != 0 && errno != EINVAL) /* EINVAL: a file system that cannot sync a directory */
        status = io_failed(dir, "fsync");
    close(fd);
    return status;
}

/* Closes f in any case. */
static fsdp_status sync_and_close(FILE *f, const char *path)
{
    fsdp_status status = FSDP_OK;
    if (fflush(f) != 0 || fsync(fileno(f)) != 0)
        status = io_failed(path, "write");
    if (fclose(f) != 0 && status == FSDP_OK)
        status = io_failed(path, "close");
    return status;
}

/* ---- the two JSON texts --------------------------------------------------------------------- */

static bool is_stored(const param_spec *p)
{
    return p->tied_to == NOT_TIED;
}

/* {"dtype":"F32","shape":[...],"data_offsets":[begin,end]} into header; false: no memory. */
static bool add_tensor(cJSON *header, const param_spec *p, size_t begin_bytes)
{
    const double offsets[2] = {(double)begin_bytes,
                               (double)(begin_bytes + p->elems * sizeof(float))};
    double dims[PARAM_MAX_DIMS];
    for (int d = 0; d < p->n_dims; d++)
        dims[d] = (double)p->dims[d];
    cJSON *tensor = cJSON_AddObjectToObject(header, p->name);
    return tensor != NULL && cJSON_AddStringToObject(tensor, "dtype", "F32") != NULL &&
           cJSON_AddItemToObject(tensor, "shape", cJSON_CreateDoubleArray(dims, p->n_dims)) &&
           cJSON_AddItemToObject(tensor, "data_offsets", cJSON_CreateDoubleArray(offsets, 2));
}

/* The header's text, owned by the caller; NULL: no memory. *data_elems: floats that follow. */
static char *header_text(const model *m, size_t *data_elems)
{
    cJSON *header = cJSON_CreateObject();
    cJSON *meta = cJSON_AddObjectToObject(header, "__metadata__");
    bool ok = meta != NULL && cJSON_AddStringToObject(meta, "format", "pt") != NULL;
    size_t elems = 0;
    for (int p = 0; p < m->n_params && ok; p++) {
        if (!is_stored(&m->params[p]))
            continue;
        ok = add_tensor(header, &m->params[p], elems * sizeof(float));
        elems += m->params[p].elems;
    }
    char *text = ok ? cJSON_PrintUnformatted(header) : NULL;
    cJSON_Delete(header);
    *data_elems = elems;
    return text;
}

static bool add_sizes(cJSON *config, const model_config *c)
{
    const struct {
        const char *key;
        double value;
    } rows[] = {
        {"n_layer", (double)c->n_blocks},
        {"n_head", (double)c->n_head},
        {"n_embd", (double)c->d_model},
        {"n_inner", (double)c->d_ff},
        {"n_positions", (double)c->max_seq_len},
        {"vocab_size", (double)c->vocab_size},
        /* GPT-2 ends a text with its last token; in the byte vocabulary that is byte 255 */
        {"bos_token_id", (double)(c->vocab_size - 1)},
        {"eos_token_id", (double)(c->vocab_size - 1)},
        {"attn_pdrop", 0.0},
        {"embd_pdrop", 0.0},
        {"resid_pdrop", 0.0},
        {"initializer_range", 0.02},
    };
    bool ok = true;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        ok = ok && cJSON_AddNumberToObject(config, rows[i].key, rows[i].value) != NULL;
    return ok;
}

/* The shortest decimal that is this float: 1e-05, not 9.9999997e-06. */
static double tidy(float x)
{
    char text[32];
    for (int digits = 1; digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, (double)x);
        if (strtof(text, NULL) == x)
            break;
    }
    return strtod(text, NULL);
}

static char *config_text(const model_config *c)
{
    cJSON *config = cJSON_CreateObject();
    cJSON *classes = cJSON_AddArrayToObject(config, "architectures");
    bool ok =
        classes != NULL && cJSON_AddItemToArray(classes, cJSON_CreateString("GPT2LMHeadModel")) &&
        cJSON_AddStringToObject(config, "model_type", "gpt2") != NULL && add_sizes(config, c) &&
        cJSON_AddStringToObject(config, "activation_function", "gelu_new") != NULL &&
        cJSON_AddNumberToObject(config, "layer_norm_epsilon", tidy(c->norm_eps)) != NULL &&
        cJSON_AddBoolToObject(config, "tie_word_embeddings", true) != NULL &&
        cJSON_AddStringToObject(config, "torch_dtype", "float32") != NULL;
    char *text = ok ? cJSON_Print(config) : NULL;
    cJSON_Delete(config);
    return text;
}

/* ---- writing -------------------------------------------------------------------------------- */

static fsdp_status write_header(export_writer *w, const model *m)
{
    char *text = header_text(m, &w->expected_elems);
    if (text == NULL)
        return no_memory();
    /* padded with spaces so that the tensors begin at a multiple of 8: 61 characters -> 64 */
    const size_t text_bytes = strlen(text), pad = (8 - text_bytes % 8) % 8;
    const uint64_t header_bytes = text_bytes + pad;
    bool ok = fwrite(&header_bytes, sizeof header_bytes, 1, w->weights) == 1 &&
              fwrite(text, 1, text_bytes, w->weights) == text_bytes &&
              fwrite("        ", 1, pad, w->weights) == pad;
    fsdp_status status = ok ? FSDP_OK : io_failed(w->weights_tmp, "write");
    cJSON_free(text);
    return status;
}

static fsdp_status write_config(const char *path, const model_config *c)
{
    char *text = config_text(c);
    if (text == NULL)
        return no_memory();
    FILE *f = fopen(path, "we");
    fsdp_status status = f != NULL ? FSDP_OK : io_failed(path, "open");
    if (f != NULL) {
        bool ok = fprintf(f, "%s\n", text) > 0;
        fsdp_status write_status = ok ? FSDP_OK : io_failed(path, "write");
        status = sync_and_close(f, path);
        status = ok ? status : write_status;
    }
    cJSON_free(text);
    return status;
}

static fsdp_status open_files(const model *m, export_writer *w)
{
    char *weights = path_join(w->dir, EXPORT_WEIGHTS ".tmp");
    char *config = path_join(w->dir, EXPORT_CONFIG ".tmp");
    if (weights == NULL || config == NULL) {
        free(weights);
        free(config);
        return no_memory();
    }
    w->weights_tmp = weights;
    w->config_tmp = config;
    TRY(write_config(config, &m->config));
    w->weights = fopen(weights, "we");
    if (w->weights == NULL)
        return io_failed(weights, "open");
    return write_header(w, m);
}

fsdp_status export_begin(const model *m, const char *dir, export_writer **out)
{
    *out = NULL;
    FSDP_ASSERT(dir[0] != '\0');
    export_writer *w = calloc(1, sizeof *w);
    if (w == NULL)
        return no_memory();
    w->dir = strdup(dir);
    fsdp_status status = w->dir != NULL ? make_dirs(dir) : no_memory();
    if (status == FSDP_OK)
        status = open_files(m, w);
    if (status != FSDP_OK) {
        export_cancel(w);
        return status;
    }
    *out = w;
    return FSDP_OK;
}

fsdp_status export_append(export_writer *w, const float *values, size_t elems)
{
    FSDP_ASSERT(elems <= w->expected_elems - w->written_elems);
    if (fwrite(values, sizeof *values, elems, w->weights) != elems)
        return io_failed(w->weights_tmp, "write");
    w->written_elems += elems;
    return FSDP_OK;
}

static fsdp_status rename_into(const char *tmp, const char *dir, const char *name)
{
    char *path = path_join(dir, name);
    if (path == NULL)
        return no_memory();
    fsdp_status status = rename(tmp, path) == 0 ? FSDP_OK : io_failed(path, "rename");
    free(path);
    return status;
}

static fsdp_status publish(export_writer *w)
{
    if (w->written_elems != w->expected_elems)
        return fsdp_error(FSDP_ESTATE, "", "export: %s: got %zu floats, expected %zu", w->dir,
                          w->written_elems, w->expected_elems);
    FILE *f = w->weights;
    w->weights = NULL;
    TRY(sync_and_close(f, w->weights_tmp));
    TRY(rename_into(w->weights_tmp, w->dir, EXPORT_WEIGHTS));
    TRY(rename_into(w->config_tmp, w->dir, EXPORT_CONFIG));
    return sync_dir(w->dir);
}

fsdp_status export_end(export_writer *w)
{
    fsdp_status status = publish(w);
    export_cancel(w); /* after the renames no file has a temporary name */
    return status;
}

void export_cancel(export_writer *w)
{
    if (w == NULL)
        return;
    if (w->weights != NULL)
        fclose(w->weights);
    if (w->weights_tmp != NULL)
        unlink(w->weights_tmp);
    if (w->config_tmp != NULL)
        unlink(w->config_tmp);
    free(w->weights_tmp);
    free(w->config_tmp);
    free(w->dir);
    free(w);
}
