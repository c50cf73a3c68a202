/* config_fields.c -- reads fields of a config.json by a table; see family.h. */
#include <fnmatch.h>
#include <string.h>
#include "common/model/export.h"
#include "common/model/family.h"

static const char DIR_HINT[] =
    "pass a directory with the config.json and the model.safetensors of a model";

/* An object of a config.json that is being read. title: of the family, for hints. */
typedef struct reading {
    const char *path, *title;
    const cJSON *j;
    model_config *c;
} reading;

void *config_member(const model_config *c, const config_field *f)
{
    return (char *)c + f->at;
}

static fsdp_status read_size(const reading *r, const config_field *f, const cJSON *item)
{
    size_t got;
    if (f->kind != CONFIG_SIZE && (item == NULL || cJSON_IsNull(item)))
        return FSDP_OK;
    if (item == NULL)
        return fsdp_error(FSDP_EINVAL, DIR_HINT, "import: %s: \"%s\" is missing", r->path, f->key);
    if (!json_size(item, &got) || got == 0 || got > INT32_MAX)
        return fsdp_error(FSDP_EINVAL, DIR_HINT,
                          "import: %s: \"%s\": expected a whole number from 1 to %d", r->path,
                          f->key, INT32_MAX);
    if (f->kind == CONFIG_SAME && got != *(size_t *)config_member(r->c, f))
        return fsdp_error(FSDP_EINVAL, DIR_HINT, "import: %s: \"%s\": got %zu, expected %s, %zu",
                          r->path, f->key, got, f->value, *(size_t *)config_member(r->c, f));
    *(size_t *)config_member(r->c, f) = got;
    return FSDP_OK;
}

static fsdp_status read_number(const reading *r, const config_field *f, const cJSON *item)
{
    char got[48];
    float *at = config_member(r->c, f);
    *at = item == NULL ? f->otherwise : cJSON_IsNumber(item) ? (float)item->valuedouble : 0.0f;
    if (*at > 0.0f && *at < f->most)
        return FSDP_OK;
    return fsdp_error(FSDP_EINVAL, DIR_HINT,
                      "import: %s: \"%s\": got %s, expected a number above 0 and below %g", r->path,
                      f->key, json_print(item, got, sizeof got), (double)f->most);
}

static fsdp_status read_bool(const reading *r, const config_field *f, const cJSON *item)
{
    char got[48];
    if (item != NULL && !cJSON_IsBool(item) && !cJSON_IsNull(item))
        return fsdp_error(FSDP_EINVAL, DIR_HINT,
                          "import: %s: \"%s\": got %s, expected true or false", r->path, f->key,
                          json_print(item, got, sizeof got));
    *(bool *)config_member(r->c, f) = !cJSON_IsTrue(item);
    return FSDP_OK;
}

static fsdp_status check_fixed(const reading *r, const config_field *f, const cJSON *item)
{
    char got[80], hint[64];
    json_print(item, got, sizeof got);
    if (item == NULL || strcmp(got, f->value) == 0 ||
        (cJSON_IsNull(item) && strcmp(f->value, "false") == 0) ||
        (f->or_value && strcmp(got, f->or_value) == 0))
        return FSDP_OK;
    snprintf(hint, sizeof hint, "use a plain %s model", r->title);
    return fsdp_error(FSDP_EINVAL, hint, "import: %s: \"%s\": got %s, expected %s", r->path, f->key,
                      got, f->value);
}

static fsdp_status read_field(const reading *r, const config_field *f)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(r->j, f->key);
    switch (f->kind) {
    case CONFIG_SIZE:
    case CONFIG_SIZE_OR:
    case CONFIG_SAME:
        return read_size(r, f, item);
    case CONFIG_NUMBER:
        return read_number(r, f, item);
    case CONFIG_NOT:
        return read_bool(r, f, item);
    case CONFIG_FIXED:
    case CONFIG_ABSENT:
        return check_fixed(r, f, item);
    default:
        return FSDP_OK;
    }
}

fsdp_status config_read_fields(const char *path, const char *title, const cJSON *object,
                               const config_field *fields, model_config *c)
{
    for (const config_field *f = fields; f->key; f++)
        TRY(read_field(&(reading){.path = path, .title = title, .j = object, .c = c}, f));
    return FSDP_OK;
}

fsdp_status config_read_object(const char *path, const cJSON *object, const config_field *fields,
                               model_config *c)
{
    char where[IMPORT_PATH_ROOM + 32];
    snprintf(where, sizeof where, "%s: \"%s\"", path, object->string);
    return config_read_fields(where, "", object, fields, c);
}

bool config_is_neutral(const cJSON *item)
{
    if (cJSON_IsNumber(item))
        return item->valuedouble == (fnmatch("*_factor", item->string, 0) == 0) &&
               fnmatch("*@(scal|multiplier|theta|eps|base|window)*", item->string, FNM_EXTMATCH);
    return cJSON_IsNull(item) || cJSON_IsFalse(item) ||
           (cJSON_IsString(item) && *item->valuestring == '\0') ||
           (!cJSON_IsString(item) && !cJSON_IsBool(item) && item->child == NULL);
}
