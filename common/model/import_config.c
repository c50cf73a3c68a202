/* import_config.c -- reads the config.json of a GPT-2 model. A field that changes what the model
 * computes must have the value that this project computes with; no field is skipped in silence. */
#include <stdio.h>
#include <string.h>
#include "common/base/options.h"
#include "common/model/export.h"

static const char DIR_HINT[] = "pass a directory with the config.json and the model.safetensors of "
                               "a GPT-2 model";

/* Fields that are read here, and fields that do not affect the model's weights or maths. */
static const char READ_FIELDS[] =
    "model_type|activation_function|tie_word_embeddings|scale_attn_weights|"
    "scale_attn_by_inverse_layer_idx|reorder_and_upcast_attn|add_cross_attention|n_layer|n_head|"
    "n_embd|n_positions|n_ctx|vocab_size|n_inner|layer_norm_epsilon";
static const char DROPOUT_FIELDS[] = "attn_pdrop|embd_pdrop|resid_pdrop";
static const char HARMLESS_FIELDS[] =
    "architectures|bos_token_id|eos_token_id|pad_token_id|initializer_range|torch_dtype|dtype|"
    "transformers_version|use_cache|task_specific_params|_name_or_path|gradient_checkpointing|"
    "summary_activation|summary_first_dropout|summary_proj_to_labels|summary_type|summary_use_proj|"
    "output_past|id2label|label2id|num_labels|_num_labels|problem_type|finetuning_task|"
    "attn_implementation|_attn_implementation_autoset";

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

/* The same of a key that may be missing or null, which means `otherwise`. */
static fsdp_status config_size_or(const cJSON *j, const char *path, const char *key,
                                  size_t otherwise, size_t *out)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(j, key);
    *out = otherwise;
    return item == NULL || cJSON_IsNull(item) ? FSDP_OK : config_size(j, path, key, out);
}

/* Checks a key that must be missing, null, or one of two values, written as in JSON. */
static fsdp_status config_fixed(const cJSON *j, const char *path, const char *key,
                                const char *value, const char *or_value)
{
    char got[80];
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(j, key);
    if (item == NULL || cJSON_IsNull(item))
        return FSDP_OK;
    json_print(item, got, sizeof got);
    if (strcmp(got, value) == 0 || strcmp(got, or_value) == 0)
        return FSDP_OK;
    return fsdp_error(FSDP_EINVAL, "use a plain GPT-2 model",
                      "import: %s: \"%s\": got %s, expected %s", path, key, got, value);
}

/* What an unknown field would change is unknown, so it is refused unless it is null. *note: the
 * file asks for dropout. */
static fsdp_status config_others(const cJSON *j, const char *path, const char **note)
{
    for (const cJSON *f = j->child; f != NULL; f = f->next)
        if (options_choice(DROPOUT_FIELDS, f->string) >= 0) {
            if (!cJSON_IsNumber(f) || f->valuedouble != 0.0)
                *note = "config.json: attn_pdrop, embd_pdrop, resid_pdrop: there is no dropout "
                        "here; the model trains without";
        } else if (!cJSON_IsNull(f) && options_choice(READ_FIELDS, f->string) < 0 &&
                   options_choice(HARMLESS_FIELDS, f->string) < 0) {
            return fsdp_error(FSDP_EINVAL, "remove the field if the weights do not depend on it",
                              "import: %s: \"%.64s\": got a field that GPT-2 here does not have",
                              path, f->string);
        }
    return FSDP_OK;
}

static fsdp_status config_eps(const cJSON *j, const char *path, float *eps)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(j, "layer_norm_epsilon");
    *eps = item == NULL ? 1e-5f : cJSON_IsNumber(item) ? (float)item->valuedouble : 0.0f;
    if (*eps > 0.0f && *eps < 1.0f)
        return FSDP_OK;
    char got[48];
    return fsdp_error(
        FSDP_EINVAL, DIR_HINT,
        "import: %s: \"layer_norm_epsilon\": got %s, expected a number above 0 and below 1", path,
        json_print(item, got, sizeof got));
}

static fsdp_status config_fields(const cJSON *j, const char *path, model_config *c,
                                 const char **note)
{
    size_t n_ctx;
    TRY(config_fixed(j, path, "model_type", "\"gpt2\"", "\"gpt2\""));
    TRY(config_fixed(j, path, "activation_function", "\"gelu_new\"", "\"gelu_pytorch_tanh\""));
    TRY(config_fixed(j, path, "tie_word_embeddings", "true", "true"));
    TRY(config_fixed(j, path, "scale_attn_weights", "true", "true"));
    TRY(config_fixed(j, path, "scale_attn_by_inverse_layer_idx", "false", "false"));
    TRY(config_fixed(j, path, "reorder_and_upcast_attn", "false", "false"));
    TRY(config_fixed(j, path, "add_cross_attention", "false", "false"));
    TRY(config_others(j, path, note));
    TRY(config_size(j, path, "n_layer", &c->n_blocks));
    TRY(config_size(j, path, "n_head", &c->n_head));
    TRY(config_size(j, path, "n_embd", &c->d_model));
    TRY(config_size(j, path, "n_positions", &c->max_seq_len));
    TRY(config_size(j, path, "vocab_size", &c->vocab_size));
    TRY(config_size_or(j, path, "n_inner", 4 * c->d_model, &c->d_ff));
    TRY(config_size_or(j, path, "n_ctx", c->max_seq_len, &n_ctx));
    if (n_ctx != c->max_seq_len)
        return fsdp_error(FSDP_EINVAL, DIR_HINT,
                          "import: %s: \"n_ctx\": got %zu, expected n_positions, %zu", path, n_ctx,
                          c->max_seq_len);
    return config_eps(j, path, &c->norm_eps);
}

fsdp_status import_model_config(const char *dir, model_config *config, const char **note)
{
    char path[IMPORT_PATH_ROOM];
    cJSON *j = NULL;
    snprintf(path, sizeof path, "%s/%s", dir, EXPORT_CONFIG);
    *config = (model_config){.family = "gpt2"};
    *note = "";
    TRY(json_read_file(path, DIR_HINT, &j));
    fsdp_status status = config_fields(j, path, config, note);
    cJSON_Delete(j);
    return status;
}
