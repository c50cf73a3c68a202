/* config_fields.c -- reads fields of a config.json by a table; see family.h. */
#include <fnmatch.h>
#include <string.h>
#include "common/base/json.h"
#include "common/model/family.h"

enum { TEXT_BYTES = 80 };

void *config_member(const model_config *c, const config_field *f)
{
    return (char *)c + f->at;
}

/* Read a size. Returns whether it may be read; expected: what may. */
static bool read_size(const config_field *f, const cJSON *item, size_t *at, char *expected)
{
    size_t got;
    if (f->kind != CONFIG_SIZE && (item == NULL || cJSON_IsNull(item)))
        return true;
    const bool is_size = json_size(item, &got) && got > 0 && got <= INT32_MAX;
    snprintf(expected, TEXT_BYTES, "a whole number from 1 to %d", INT32_MAX);
    if (is_size && f->kind == CONFIG_SAME)
        snprintf(expected, TEXT_BYTES, "%s, %zu", f->value, *at);
    else if (is_size)
        *at = got;
    return is_size && got == *at;
}

/* Read any field; the same. */
static bool read_field(const config_field *f, const cJSON *item, void *at, char *expected)
{
    char got[TEXT_BYTES];
    float *number = at;
    switch (f->kind) {
    case CONFIG_SIZE:
    case CONFIG_SIZE_OR:
    case CONFIG_SAME:
        return read_size(f, item, at, expected);
    case CONFIG_NUMBER:
        snprintf(expected, TEXT_BYTES, "a number above 0 and below %g", (double)f->most);
        *number = item == NULL           ? f->otherwise
                  : cJSON_IsNumber(item) ? (float)item->valuedouble
                                         : 0.0f;
        return *number > 0.0f && *number < f->most;
    case CONFIG_NOT:
        snprintf(expected, TEXT_BYTES, "true or false");
        *(bool *)at = !cJSON_IsTrue(item);
        return item == NULL || cJSON_IsBool(item) || cJSON_IsNull(item);
    case CONFIG_FIXED:
    case CONFIG_ABSENT:
        snprintf(expected, TEXT_BYTES, "%s", f->value);
        json_print(item, got, sizeof got);
        return item == NULL || strcmp(got, f->value) == 0 ||
               (cJSON_IsNull(item) && strcmp(f->value, "false") == 0) ||
               (f->or_value && strcmp(got, f->or_value) == 0);
    default:
        return true;
    }
}

fsdp_status config_read_fields(const char *path, const char *title, const cJSON *object,
                               const config_field *fields, model_config *c)
{
    char got[TEXT_BYTES], expected[TEXT_BYTES], hint[64];
    for (const config_field *f = fields; f->key; f++) {
        const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, f->key);
        if (read_field(f, item, config_member(c, f), expected))
            continue;
        if (f->kind <= CONFIG_SIZE_OR)
            return fsdp_error(FSDP_EINVAL, IMPORT_HINT, "import: %s: \"%s\"%s%s", path, f->key,
                              item ? ": expected " : " is missing", item ? expected : "");
        snprintf(hint, sizeof hint, "use a plain %s model", title);
        return fsdp_error(FSDP_EINVAL,
                          f->kind == CONFIG_FIXED || f->kind == CONFIG_ABSENT ? hint : IMPORT_HINT,
                          "import: %s: \"%s\": got %s, expected %s", path, f->key,
                          json_print(item, got, sizeof got), expected);
    }
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
