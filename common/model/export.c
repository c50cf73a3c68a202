/* export.c -- writes safetensors with Hugging Face's names and the config.json that goes with it.
 *
 *   export_begin -> export_append ... -> export_end | export_cancel
 *
 * The two files get their names, weights first, after both are on disk. A crash between the two
 * renames leaves new weights beside the old config.json. */
#include "common/model/export_impl.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char HINT[] = "check the path given to --export, and the space left there";

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
    return fsdp_error(FSDP_EIO, HINT, "export: %s: %s: %s", path, what, strerror(errno));
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
        status = atomic_make_dir(path, HINT);
        *at = was;
        if (was == '\0')
            break;
    }
    free(path);
    return status;
}

/* ---- the two JSON texts --------------------------------------------------------------------- */

static bool is_stored(const param_spec *p)
{
    return p->tied_to == NOT_TIED;
}

/* What stands before the tensors, owned by the caller; NULL: no memory. *elems: all floats. */
static char *weights_head(const model *m, size_t *head_bytes, size_t *elems)
{
    cJSON *header = cJSON_CreateObject();
    cJSON *meta = cJSON_AddObjectToObject(header, "__metadata__");
    bool ok = meta != NULL && cJSON_AddStringToObject(meta, "format", "pt") != NULL;
    uint64_t at_bytes = 0;
    for (int p = 0; p < m->n_params && ok; p++)
        if (is_stored(&m->params[p]))
            ok = safetensors_add(header, m->params[p].name, m->params[p].dims, m->params[p].n_dims,
                                 &at_bytes);
    char *head = ok ? safetensors_head(header, head_bytes) : NULL;
    cJSON_Delete(header);
    *elems = (size_t)at_bytes / sizeof(float);
    return head;
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
    size_t head_bytes;
    char *head = weights_head(m, &head_bytes, &w->expected_elems);
    if (head == NULL)
        return no_memory();
    bool ok = fwrite(head, 1, head_bytes, w->weights.out) == head_bytes;
    fsdp_status status = ok ? FSDP_OK : io_failed(w->weights.path, "write");
    free(head);
    return status;
}

static fsdp_status write_config(export_writer *w, const model_config *c)
{
    char *text = config_text(c);
    if (text == NULL)
        return no_memory();
    bool ok = fprintf(w->config.out, "%s\n", text) > 0;
    cJSON_free(text);
    return ok ? FSDP_OK : io_failed(w->config.path, "write");
}

static fsdp_status open_in(atomic_file *f, const char *dir, const char *name)
{
    char *path = path_join(dir, name);
    if (path == NULL)
        return no_memory();
    fsdp_status status = atomic_file_open(f, path, HINT);
    free(path);
    return status;
}

static fsdp_status open_files(const model *m, const char *dir, export_writer *w)
{
    TRY(make_dirs(dir));
    TRY(open_in(&w->config, dir, EXPORT_CONFIG));
    TRY(write_config(w, &m->config));
    TRY(open_in(&w->weights, dir, EXPORT_WEIGHTS));
    return write_header(w, m);
}

fsdp_status export_begin(const model *m, const char *dir, export_writer *w)
{
    FSDP_ASSERT(dir[0] != '\0');
    *w = (export_writer){0};
    fsdp_status status = open_files(m, dir, w);
    if (status != FSDP_OK)
        export_cancel(w);
    return status;
}

fsdp_status export_append(export_writer *w, const float *values, size_t elems)
{
    FSDP_ASSERT(elems <= w->expected_elems - w->written_elems);
    if (fwrite(values, sizeof *values, elems, w->weights.out) != elems)
        return io_failed(w->weights.path, "write");
    w->written_elems += elems;
    return FSDP_OK;
}

static fsdp_status publish(export_writer *w)
{
    if (w->written_elems != w->expected_elems)
        return fsdp_error(FSDP_ESTATE, "", "export: %s: got %zu floats, expected %zu",
                          w->weights.path, w->written_elems, w->expected_elems);
    TRY(atomic_file_sync(&w->config));
    TRY(atomic_file_sync(&w->weights));
    TRY(atomic_file_commit(&w->weights));
    return atomic_file_commit(&w->config);
}

fsdp_status export_end(export_writer *w)
{
    fsdp_status status = publish(w);
    export_cancel(w);
    return status;
}

void export_cancel(export_writer *w)
{
    atomic_file_cancel(&w->weights);
    atomic_file_cancel(&w->config);
}
