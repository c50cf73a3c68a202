/* json.c -- see json.h. */
#include "common/base/json.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "common/base/read_file.h"

/* ---- files ----------------------------------------------------------------------------------- */

static int by_name(const void *a, const void *b)
{
    return strcmp((*(cJSON *const *)a)->string, (*(cJSON *const *)b)->string);
}

/* *twice = a duplicate key of an object in j; NULL: there is none. cJSON would find the first of
 * the two and ignore the second. Returns false if there is no memory. */
static bool find_twice(const cJSON *j, const char **twice)
{
    size_t n = 0;
    *twice = NULL;
    for (const cJSON *c = j->child; c != NULL && *twice == NULL; c = c->next, n++)
        if (!find_twice(c, twice))
            return false;
    if (*twice != NULL || n == 0 || !cJSON_IsObject(j))
        return true;
    const cJSON **list = malloc(n * sizeof *list), *next = j->child;
    if (list == NULL)
        return false;
    for (size_t i = 0; i < n; i++, next = next->next)
        list[i] = next;
    qsort(list, n, sizeof *list, by_name);
    for (size_t i = 1; i < n && *twice == NULL; i++)
        *twice = strcmp(list[i - 1]->string, list[i]->string) == 0 ? list[i]->string : NULL;
    free(list);
    return true;
}

/* Parse the text [bytes], which a NUL follows. Only white space may follow the object. at: of the
 * text in the file. */
static fsdp_status parse(const char *path, const char *hint, const char *text, size_t bytes,
                         size_t at, cJSON **out)
{
    const char *end = NULL, *twice;
    *out = cJSON_ParseWithLengthOpts(text, bytes + 1, &end, true);
    if (!cJSON_IsObject(*out) || end != text + bytes)
        return fsdp_error(FSDP_EINVAL, hint,
                          "%s: got no JSON object at byte %zu, or text after the object", path, at);
    if (!find_twice(*out, &twice))
        return fsdp_error(FSDP_ENOMEM, "", "%s: no host memory", path);
    if (twice != NULL)
        return fsdp_error(FSDP_EINVAL, hint, "%s: got the key \"%.80s\" twice", path, twice);
    return FSDP_OK;
}

fsdp_status json_read(const char *path, const char *hint, int fd, size_t at, size_t bytes,
                      cJSON **out)
{
    char *text = malloc(bytes + 1);
    *out = NULL;
    if (text == NULL)
        return fsdp_error(FSDP_ENOMEM, "", "%s: no host memory for %zu bytes", path, bytes);
    fsdp_status status = read_file_at(path, hint, fd, text, bytes, at);
    text[bytes] = '\0';
    IF_OK(status, parse(path, hint, text, bytes, at, out));
    free(text);
    if (status != FSDP_OK) {
        cJSON_Delete(*out);
        *out = NULL;
    }
    return status;
}

fsdp_status json_read_file(const char *path, const char *hint, cJSON **out)
{
    size_t bytes = 0;
    int fd;
    const char *why = open_regular(path, &fd, &bytes);
    *out = NULL;
    if (why != NULL)
        return fsdp_error(FSDP_EIO, hint, "%s: %s", path, why);
    fsdp_status status =
        bytes <= JSON_MAX_BYTES
            ? json_read(path, hint, fd, 0, bytes, out)
            : fsdp_error(FSDP_EINVAL, hint, "%s: got %zu bytes, expected at most %d", path, bytes,
                         JSON_MAX_BYTES);
    close(fd);
    return status;
}

/* ---- values ---------------------------------------------------------------------------------- */

bool json_size(const cJSON *item, size_t *out)
{
    if (!cJSON_IsNumber(item) || !(item->valuedouble >= 0.0) || item->valuedouble > 0x1p53 ||
        item->valuedouble != floor(item->valuedouble))
        return false;
    *out = (size_t)item->valuedouble;
    return true;
}

const char *json_print(const cJSON *item, char *text, size_t text_bytes)
{
    if (!cJSON_PrintPreallocated((cJSON *)item, text, (int)text_bytes, false))
        snprintf(text, text_bytes, "%s", item != NULL ? "a longer value" : "none");
    return text;
}

void json_write_number(FILE *out, float value)
{
    char text[32];
    for (int digits = 1; digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, (double)value);
        if (strtof(text, NULL) == value)
            break;
    }
    fputs(text, out);
    fputs(strpbrk(text, ".e") ? "" : ".0", out); /* some readers distinguish 8 from 8.0 */
}
