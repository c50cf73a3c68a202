/* model_config.c -- reads and writes config.json by the table of the model's family. A field that
 * changes what the model computes must have the value that this project implements. Dropout
 * is ignored with a note, fields without effect silently; unknown fields are refused, unless they
 * are neutral: they ask for nothing. */
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>
#include "common/base/json.h"
#include "common/model/family.h"

/* Fields of every configuration of transformers that change no logits, whatever they say: what a
 * model returns besides, labels of classes, how text is generated, types, and notes. */
static const char HARMLESS[] =
    "@(model_type|return_dict|output_@(hidden_states|attentions|past)|torchscript|use_cache|"
    "gradient_checkpointing|chunk_size_feed_forward|is_decoder|?(torch_)dtype|use_bfloat16|"
    "tf_legacy_loss|initializer_range|*attn_implementation*|"
    "finetuning_task|problem_type|task_specific_params|id2label|label2id|?(_)num_labels|"
    "tokenizer_class|prefix|*_token_id|?(_)name_or_path|_commit_hash|transformers_version|"
    "@(max|min)_length|do_sample|early_stopping|num_beams|num_beam_groups|num_return_sequences|"
    "*_version|transformers.js_config|is_llama_config|*flash_attn*|"
    "temperature|top_[kp]|typical_p|*_penalty|?(encoder_)no_repeat_ngram_size|bad_words_ids|"
    "?(begin_)suppress_tokens|output_scores|return_dict_in_generate|remove_invalid_values)";

/* The row of the family's table for a field, or the row without a key that ends the table. */
static const config_field *find_field(const model_family *family, const char *key)
{
    const config_field *f = family->fields;
    while (f->key && strcmp(f->key, key) != 0)
        f++;
    return f;
}

/* Whether a field has no effect, or one that its row of the family's table takes care of. */
static bool is_settled(const model_family *family, const cJSON *item)
{
    const config_field *f = find_field(family, item->string);
    return (f->key != NULL && f->kind != CONFIG_OTHERWISE) || config_is_neutral(item) ||
           fnmatch(HARMLESS, item->string, FNM_EXTMATCH) == 0 ||
           fnmatch(family->harmless, item->string, FNM_EXTMATCH) == 0;
}

/* The effect of an unknown field is unknown, so it is refused unless it is neutral. */
static fsdp_status check_unknown(const char *path, const cJSON *j, const model_family *family,
                                 const char **note)
{
    for (const cJSON *item = j->child; item != NULL; item = item->next) {
        if (is_settled(family, item))
            continue;
        if (fnmatch("*@(dropout|pdrop)*", item->string, FNM_EXTMATCH) == 0)
            *note = "config.json asks for dropout: there is no dropout in this model here; it "
                    "trains without";
        else
            return fsdp_error(FSDP_EINVAL, "remove the field if the weights do not depend on it",
                              "import: %s: \"%.64s\": got a field that %s here does not have", path,
                              item->string, family->title);
    }
    return FSDP_OK;
}

/* Find the family that model_type names; without model_type, GPT-2. */
static fsdp_status find_family(const char *path, const cJSON *j, const model_family **family)
{
    char got[80];
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(j, "model_type");
    *family = type == NULL || cJSON_IsNull(type)
                  ? &GPT2_FAMILY
                  : model_family_find(cJSON_IsString(type) ? type->valuestring : "");
    return *family
               ? FSDP_OK
               : fsdp_error(FSDP_EINVAL, "use a model of one of these families: " MODEL_FAMILIES,
                            "import: %s: \"model_type\": got %s, expected one of " MODEL_FAMILIES,
                            path, json_print(type, got, sizeof got));
}

static fsdp_status read_fields(const char *path, const cJSON *j, model_config *c, const char **note)
{
    const model_family *family;
    TRY(find_family(path, j, &family));
    snprintf(c->family, sizeof c->family, "%s", family->name);
    TRY(config_read_fields(path, family->title, j, family->fields, c));
    TRY(check_unknown(path, j, family, note));
    if (family->read_more)
        TRY(family->read_more(path, j, c));
    const fsdp_status status = family->complete(c);
    if (status != FSDP_EINVAL) /* its hints name options, which an import does not take */
        return status;
    return fsdp_error(status, IMPORT_HINT, "import: %s: %s", path, fsdp_error_get()->what);
}

fsdp_status import_model_config(const char *dir, model_config *config, const char **note)
{
    char path[IMPORT_PATH_ROOM];
    cJSON *j = NULL;
    snprintf(path, sizeof path, "%s/%s", dir, EXPORT_CONFIG);
    *config = (model_config){0};
    *note = "";
    TRY(json_read_file(path, IMPORT_HINT, &j));
    fsdp_status status = read_fields(path, j, config, note);
    cJSON_Delete(j);
    return status;
}

/* ---- writing --------------------------------------------------------------------------------- */

static void write_field(FILE *out, const model_config *c, const config_field *f)
{
    switch (f->kind) {
    case CONFIG_SIZE:
    case CONFIG_SIZE_OR:
        fprintf(out, "%zu", *(size_t *)config_member(c, f));
        break;
    case CONFIG_NOT:
        fputs(*(bool *)config_member(c, f) ? "false" : "true", out);
        break;
    case CONFIG_NUMBER:
        json_write_number(out, *(float *)config_member(c, f));
        break;
    case CONFIG_LAST_TOKEN:
        fprintf(out, "%zu", c->vocab_size - 1);
        break;
    default:
        fputs(f->value, out);
    }
}

/* Write the members of an object, each after the indent, but not its end. source: NULL, or the
 * object that the weights came with. */
static void write_fields(FILE *out, const model_config *c, const config_field *fields,
                         const cJSON *source, const char *indent)
{
    const char *before = "{";
    for (const config_field *f = fields; f->key; f++) {
        if (f->kind >= CONFIG_SAME ||
            (f->kind > CONFIG_OBJECT && cJSON_GetObjectItemCaseSensitive(source, f->key) != NULL))
            continue;
        fprintf(out, "%s\n%s\"%s\":\t", before, indent, f->key);
        before = ",";
        if (f->kind == CONFIG_OBJECT && *(float *)config_member(c, f) != 0.0f) {
            write_fields(out, c, f->fields, NULL, "\t\t");
            fputs("\n\t}", out);
        } else {
            write_field(out, c, f);
        }
    }
}

/* Whether an export has a value of its own for a field that is in its source's config.json. */
static bool is_own(const model_family *family, const char *key)
{
    const config_field *f = find_field(family, key);
    return strcmp(key, "dtype") == 0 || /* the newer name of torch_dtype */
           (f->key && f->kind <= CONFIG_OBJECT);
}

/* Write the members of an object that are not the export's own, as they stand. text: parsed before,
 * without an error. */
static void write_taken(const model_family *family, const char *text, FILE *out)
{
    const char *at = strchr(text, '{'), *end;
    while (at != NULL && *at != '}') {
        const char *member = at + 1 + strspn(at + 1, " \t\r\n");
        cJSON *key = cJSON_ParseWithOpts(member, &end, false);
        cJSON *value = key ? cJSON_ParseWithOpts(strchr(end, ':') + 1, &end, false) : NULL;
        if (value != NULL && !is_own(family, key->valuestring))
            fprintf(out, ",\n\t%.*s", (int)(end - member), member);
        at = value ? strpbrk(end, ",}") : NULL;
        cJSON_Delete(key);
        cJSON_Delete(value);
    }
}

void model_write_config(const model_config *c, const char *source, FILE *out)
{
    const model_family *family = model_family_find(c->family);
    cJSON *j = source ? cJSON_Parse(source) : NULL;
    write_fields(out, c, family->fields, j, "\t");
    if (j != NULL)
        write_taken(family, source, out);
    cJSON_Delete(j);
    fputs("\n}\n", out);
}
