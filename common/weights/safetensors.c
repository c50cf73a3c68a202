/* safetensors.c -- see safetensors.h. */
#include "common/weights/safetensors.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "common/base/json.h"
#include "common/base/read_file.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "floats are written as they stand");

enum { LENGTH_BYTES = 8, MAX_DIMS = 4 };

/* ---- writing --------------------------------------------------------------------------------- */

bool safetensors_add(cJSON *header, const char *name, const size_t *dims, int n_dims,
                     uint64_t *at_bytes)
{
    double shape[MAX_DIMS], range[2] = {(double)*at_bytes};
    uint64_t n_bytes = sizeof(float);
    FSDP_ASSERT(n_dims <= MAX_DIMS);
    for (int d = 0; d < n_dims; d++) {
        shape[d] = (double)dims[d];
        n_bytes *= dims[d];
    }
    *at_bytes += n_bytes;
    range[1] = (double)*at_bytes;
    cJSON *tensor = cJSON_AddObjectToObject(header, name);
    return tensor != NULL && cJSON_AddStringToObject(tensor, "dtype", "F32") != NULL &&
           cJSON_AddItemToObject(tensor, "shape", cJSON_CreateDoubleArray(shape, n_dims)) &&
           cJSON_AddItemToObject(tensor, "data_offsets", cJSON_CreateDoubleArray(range, 2));
}

char *safetensors_head(const cJSON *header, size_t *n_bytes)
{
    char *head = NULL, *text = cJSON_PrintUnformatted(header);
    if (text == NULL)
        return NULL;
    /* spaces make the tensors begin at a multiple of 8: 61 characters -> 64 */
    const uint64_t padded = (strlen(text) + 7) / 8 * 8;
    *n_bytes = LENGTH_BYTES + padded;
    if (asprintf(&head, "%*s%-*s", LENGTH_BYTES, "", (int)padded, text) < 0)
        head = NULL;
    else
        memcpy(head, &padded, LENGTH_BYTES);
    cJSON_free(text);
    return head;
}

/* ---- reading --------------------------------------------------------------------------------- */

static bool read_range(const cJSON *tensor, size_t range[2])
{
    const cJSON *offsets = cJSON_GetObjectItemCaseSensitive(tensor, "data_offsets");
    return cJSON_GetArraySize(offsets) == 2 &&
           json_size(cJSON_GetArrayItem(offsets, 0), &range[0]) &&
           json_size(cJSON_GetArrayItem(offsets, 1), &range[1]) && range[0] <= range[1];
}

static int by_range(const void *a, const void *b)
{
    const size_t *x = a, *y = b;
    const int i = x[0] == y[0]; /* empty tensors come before the one that begins where they do */
    return (x[i] > y[i]) - (x[i] < y[i]);
}

/* The ranges of all tensors, in ascending order, must be the whole of the data: no byte belongs to
 * two tensors or to none. */
static fsdp_status check_ranges(const safetensors *f)
{
    const cJSON *bad = NULL;
    size_t n = 0, next = 0, end = 0;
    size_t(*ranges)[2] = calloc((size_t)cJSON_GetArraySize(f->header) + 1, sizeof *ranges);
    if (ranges == NULL)
        return fsdp_error(FSDP_ENOMEM, "", "%s: no host memory", f->path);
    for (const cJSON *t = f->header->child; t != NULL && bad == NULL; t = t->next)
        if (strcmp(t->string, SAFETENSORS_METADATA) != 0 && !read_range(t, ranges[n++]))
            bad = t;
    qsort(ranges, n, sizeof *ranges, by_range);
    for (; next < n && ranges[next][0] == end; next++)
        end = ranges[next][1];
    free(ranges);
    if (bad != NULL)
        return fsdp_error(FSDP_EINVAL, f->hint, "%s: %.80s: data_offsets: expected two offsets",
                          f->path, bad->string);
    if (next < n || end != f->data_bytes)
        return fsdp_error(FSDP_EINVAL, f->hint,
                          "%s: data_offsets: got tensors that overlap, leave a gap or end "
                          "elsewhere than the file, at byte %zu of %zu of the data",
                          f->path, end, f->data_bytes);
    return FSDP_OK;
}

static fsdp_status read_header(safetensors *f)
{
    size_t file_bytes = 0;
    uint64_t header_bytes;
    const char *why = open_regular(f->path, &f->fd, &file_bytes);
    if (why != NULL)
        return fsdp_error(FSDP_EIO, f->hint, "%s: %s", f->path, why);
    if (file_bytes < LENGTH_BYTES)
        return fsdp_error(FSDP_EINVAL, f->hint, "%s: got %zu bytes, expected at least %d", f->path,
                          file_bytes, LENGTH_BYTES);
    TRY(read_file_at(f->path, f->hint, f->fd, &header_bytes, sizeof header_bytes, 0));
    const size_t most = file_bytes - LENGTH_BYTES;
    if (header_bytes > most || header_bytes > JSON_MAX_BYTES)
        return fsdp_error(FSDP_EINVAL, f->hint, "%s: header length: got %llu, expected at most %zu",
                          f->path, (unsigned long long)header_bytes,
                          most < JSON_MAX_BYTES ? most : (size_t)JSON_MAX_BYTES);
    f->data_begin = LENGTH_BYTES + (size_t)header_bytes;
    f->data_bytes = file_bytes - f->data_begin;
    TRY(json_read(f->path, f->hint, f->fd, LENGTH_BYTES, (size_t)header_bytes, &f->header));
    return check_ranges(f);
}

fsdp_status safetensors_open(const char *path, const char *hint, safetensors *f)
{
    *f = (safetensors){.path = strdup(path), .hint = hint, .fd = -1};
    fsdp_status status =
        f->path != NULL ? read_header(f) : fsdp_error(FSDP_ENOMEM, "", "%s: no host memory", path);
    if (status != FSDP_OK)
        safetensors_close(f);
    return status;
}

bool safetensors_range(const cJSON *tensor, size_t n_bytes, size_t *begin)
{
    size_t range[2];
    if (!read_range(tensor, range) || range[1] - range[0] != n_bytes)
        return false;
    *begin = range[0];
    return true;
}

fsdp_status safetensors_read(const safetensors *f, void *out, size_t bytes, size_t begin)
{
    return read_file_at(f->path, f->hint, f->fd, out, bytes, f->data_begin + begin);
}

size_t floats_finite(const float *values, size_t n)
{
    size_t i = 0;
    while (i < n && isfinite(values[i]))
        i++;
    return i;
}

void safetensors_close(safetensors *f)
{
    if (f->path != NULL && f->fd >= 0)
        close(f->fd);
    cJSON_Delete(f->header);
    free(f->path);
    *f = (safetensors){0};
}
