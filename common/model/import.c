/* import.c -- reads config.json and safetensors back: our own exports, and GPT-2 checkpoints of
 * Hugging Face in fp32.
 *
 *   import_model_config -> gpt2_create -> import_open -> import_param ... -> safetensors_close
 *
 * The files come from elsewhere, so lengths, offsets and shapes are checked before use. */
#include "common/model/export.h"

#include <stdio.h>
#include <string.h>

enum { MAX_CONFIG_BYTES = 1 << 20, PATH_ROOM = PATH_MAX + 1 /* a cut path is still too long */ };

static const char DIR_HINT[] = "pass a directory that --export wrote (model.safetensors and "
                               "config.json)";

/* ---- config.json ---------------------------------------------------------------------------- */

static fsdp_status config_size(const cJSON *j, const char *path, const char *key, size_t *out)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(j, key);
    if (item == NULL)
        return fsdp_error(FSDP_EINVAL, DIR_HINT, "import: %s: \"%s\" is missing", path, key);
    if (!json_size(item, out) || *out == 0 || *out > INT32_MAX)
        return fsdp_error(FSDP_EINVAL, DIR_HINT,
                          "import: %s: \"%s\": expected a whole number from 1 to %d", path, key,
                          INT32_MAX);
    return FSDP_OK;
}

/* Checks a key that must be missing, null, or one of two words. */
static fsdp_status config_word(const cJSON *j, const char *path, const char *key, const char *word,
                               const char *or_word)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(j, key);
    if (item == NULL || cJSON_IsNull(item))
        return FSDP_OK;
    const char *got = cJSON_IsString(item) ? item->valuestring : "no string";
    if (strcmp(got, word) == 0 || strcmp(got, or_word) == 0)
        return FSDP_OK;
    return fsdp_error(FSDP_EINVAL, "use a GPT-2 checkpoint",
                      "import: %s: \"%s\": got %.64s, expected %s", path, key, got, word);
}

static fsdp_status config_flag(const cJSON *j, const char *path, const char *key, bool expected)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(j, key);
    if (item == NULL || (cJSON_IsBool(item) && cJSON_IsTrue(item) == expected))
        return FSDP_OK;
    return fsdp_error(FSDP_EINVAL, "use a plain GPT-2 checkpoint",
                      "import: %s: \"%s\": expected %s", path, key, expected ? "true" : "false");
}

static fsdp_status config_fields(const cJSON *j, const char *path, model_config *c)
{
    TRY(config_word(j, path, "model_type", "gpt2", "gpt2"));
    TRY(config_word(j, path, "activation_function", "gelu_new", "gelu_pytorch_tanh"));
    TRY(config_flag(j, path, "tie_word_embeddings", true));
    TRY(config_flag(j, path, "scale_attn_weights", true));
    TRY(config_flag(j, path, "scale_attn_by_inverse_layer_idx", false));
    TRY(config_size(j, path, "n_layer", &c->n_blocks));
    TRY(config_size(j, path, "n_head", &c->n_head));
    TRY(config_size(j, path, "n_embd", &c->d_model));
    TRY(config_size(j, path, "n_positions", &c->max_seq_len));
    TRY(config_size(j, path, "vocab_size", &c->vocab_size));
    const cJSON *inner = cJSON_GetObjectItemCaseSensitive(j, "n_inner");
    if (inner == NULL || cJSON_IsNull(inner))
        c->d_ff = 4 * c->d_model;
    else
        TRY(config_size(j, path, "n_inner", &c->d_ff));
    const cJSON *eps = cJSON_GetObjectItemCaseSensitive(j, "layer_norm_epsilon");
    c->norm_eps = cJSON_IsNumber(eps) ? (float)eps->valuedouble : 1e-5f;
    if (!(c->norm_eps > 0.0f && c->norm_eps < 1.0f))
        return fsdp_error(FSDP_EINVAL, DIR_HINT,
                          "import: %s: \"layer_norm_epsilon\": got %g, expected 0 < eps < 1", path,
                          (double)c->norm_eps);
    return FSDP_OK;
}

fsdp_status import_model_config(const char *dir, model_config *config)
{
    char path[PATH_ROOM];
    cJSON *j = NULL;
    snprintf(path, sizeof path, "%s/%s", dir, EXPORT_CONFIG);
    *config = (model_config){.family = "gpt2"};
    fsdp_status status = json_read_file(path, DIR_HINT, MAX_CONFIG_BYTES, &j);
    if (status == FSDP_OK)
        status = config_fields(j, path, config);
    cJSON_Delete(j);
    return status;
}

/* ---- safetensors ---------------------------------------------------------------------------- */

fsdp_status import_open(const char *dir, safetensors *f)
{
    char path[PATH_ROOM];
    snprintf(path, sizeof path, "%s/%s", dir, EXPORT_WEIGHTS);
    return safetensors_open(path, DIR_HINT, f);
}

/* The published checkpoints leave "transformer." out. */
static const cJSON *find_tensor(const safetensors *f, const char *name)
{
    static const char PREFIX[] = "transformer.";
    const cJSON *t = cJSON_GetObjectItemCaseSensitive(f->header, name);
    if (t == NULL && strncmp(name, PREFIX, sizeof PREFIX - 1) == 0)
        t = cJSON_GetObjectItemCaseSensitive(f->header, name + sizeof PREFIX - 1);
    return t;
}

static bool shape_matches(const cJSON *shape, const param_spec *spec)
{
    if (!cJSON_IsArray(shape) || cJSON_GetArraySize(shape) != spec->n_dims)
        return false;
    for (int d = 0; d < spec->n_dims; d++) {
        size_t dim;
        if (!json_size(cJSON_GetArrayItem(shape, d), &dim) || dim != spec->dims[d])
            return false;
    }
    return true;
}

/* *begin = the tensor's first byte, counted from the end of the header. */
static fsdp_status check_tensor(const safetensors *f, const cJSON *t, const param_spec *spec,
                                size_t *begin)
{
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(t, "dtype");
    const char *got = cJSON_IsString(type) ? type->valuestring : "none";
    if (strcmp(got, "F32") != 0)
        return fsdp_error(FSDP_EINVAL, "convert the checkpoint to fp32",
                          "import: %s: %s: dtype: got %.32s, expected F32", f->path, spec->name,
                          got);
    const cJSON *shape = cJSON_GetObjectItemCaseSensitive(t, "shape");
    if (!shape_matches(shape, spec)) {
        char *text = cJSON_PrintUnformatted(shape);
        fsdp_status status =
            fsdp_error(FSDP_EINVAL, "config.json and model.safetensors must belong together",
                       "import: %s: %s: shape: got %.100s, expected [%zu%s%.0zu]", f->path,
                       spec->name, text ? text : "none", spec->dims[0], spec->n_dims > 1 ? "," : "",
                       spec->n_dims > 1 ? spec->dims[1] : 0);
        cJSON_free(text);
        return status;
    }
    if (!safetensors_range(f, t, spec->elems * sizeof(float), begin))
        return fsdp_error(FSDP_EINVAL, "the file was cut off or damaged: copy it again",
                          "import: %s: %s: data_offsets: expected %zu bytes within the %zu that "
                          "follow the header",
                          f->path, spec->name, spec->elems * sizeof(float), f->data_bytes);
    return FSDP_OK;
}

fsdp_status import_param(const safetensors *f, const param_spec *spec, float *out)
{
    const cJSON *t = find_tensor(f, spec->name);
    if (!cJSON_IsObject(t))
        return fsdp_error(FSDP_EINVAL, DIR_HINT, "import: %s: no tensor %s", f->path, spec->name);
    size_t begin = 0;
    TRY(check_tensor(f, t, spec, &begin));
    return safetensors_read(f, out, spec->elems * sizeof *out, begin);
}
