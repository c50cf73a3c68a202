/* safetensors.c -- see safetensors.h. */
#include "common/model/safetensors.h"
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "floats are written as they stand");

enum { LENGTH_BYTES = 8, MAX_DIMS = 4, MAX_HEADER_BYTES = 100000000 /* the format's own limit */ };

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
    char *text = cJSON_PrintUnformatted(header);
    if (text == NULL)
        return NULL;
    /* padded with spaces so that the tensors begin at a multiple of 8: 61 characters -> 64 */
    const size_t text_bytes = strlen(text), padded = (text_bytes + 7) / 8 * 8;
    char *head = malloc(LENGTH_BYTES + padded);
    if (head != NULL) {
        memcpy(head, &(uint64_t){padded}, LENGTH_BYTES);
        memset(head + LENGTH_BYTES, ' ', padded);
        memcpy(head + LENGTH_BYTES, text, text_bytes);
        *n_bytes = LENGTH_BYTES + padded;
    }
    cJSON_free(text);
    return head;
}

/* ---- reading --------------------------------------------------------------------------------- */

/* Opens a regular file for reading. The caller closes *fd. */
static fsdp_status open_regular(const char *path, const char *hint, int *fd, size_t *file_bytes)
{
    struct stat st;
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (*fd >= 0 && fstat(*fd, &st) == 0 && S_ISREG(st.st_mode)) {
        *file_bytes = (size_t)st.st_size;
        return FSDP_OK;
    }
    const char *why = *fd >= 0 ? "not a regular file" : strerror(errno);
    fsdp_status status = fsdp_error(FSDP_EIO, hint, "%s: %s", path, why);
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
    return status;
}

static fsdp_status read_at(const safetensors *f, void *out, size_t bytes, size_t offset)
{
    char *to = out;
    while (bytes > 0) {
        ssize_t n = pread(f->fd, to, bytes < (1u << 30) ? bytes : (1u << 30), (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return fsdp_error(FSDP_EIO, f->hint, "%s: reading at byte %zu: %s", f->path, offset,
                              n == 0 ? "the file ends" : strerror(errno));
        to += n;
        offset += (size_t)n;
        bytes -= (size_t)n;
    }
    return FSDP_OK;
}

/* f->header = the JSON object of `bytes` bytes at offset. */
static fsdp_status read_object(safetensors *f, size_t offset, size_t bytes)
{
    char *text = malloc(bytes + 1);
    if (text == NULL)
        return fsdp_error(FSDP_ENOMEM, "", "%s: no host memory for %zu bytes", f->path, bytes);
    fsdp_status status = read_at(f, text, bytes, offset);
    if (status == FSDP_OK) {
        text[bytes] = '\0';
        f->header = cJSON_ParseWithLength(text, bytes + 1);
        if (!cJSON_IsObject(f->header))
            status = fsdp_error(FSDP_EINVAL, f->hint, "%s: got no JSON object at byte %zu", f->path,
                                offset);
    }
    free(text);
    return status;
}

static fsdp_status read_header(safetensors *f)
{
    size_t file_bytes = 0;
    uint64_t header_bytes;
    TRY(open_regular(f->path, f->hint, &f->fd, &file_bytes));
    if (file_bytes < LENGTH_BYTES)
        return fsdp_error(FSDP_EINVAL, f->hint, "%s: got %zu bytes, expected at least %d", f->path,
                          file_bytes, LENGTH_BYTES);
    TRY(read_at(f, &header_bytes, sizeof header_bytes, 0));
    const size_t most = file_bytes - LENGTH_BYTES;
    if (header_bytes > most || header_bytes > MAX_HEADER_BYTES)
        return fsdp_error(FSDP_EINVAL, f->hint, "%s: header length: got %llu, expected at most %zu",
                          f->path, (unsigned long long)header_bytes,
                          most < MAX_HEADER_BYTES ? most : (size_t)MAX_HEADER_BYTES);
    f->data_begin = LENGTH_BYTES + (size_t)header_bytes;
    f->data_bytes = file_bytes - f->data_begin;
    return read_object(f, LENGTH_BYTES, (size_t)header_bytes);
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

bool safetensors_range(const safetensors *f, const cJSON *tensor, size_t n_bytes, size_t *begin)
{
    const cJSON *range = cJSON_GetObjectItemCaseSensitive(tensor, "data_offsets");
    size_t end;
    return cJSON_IsArray(range) && cJSON_GetArraySize(range) == 2 &&
           json_size(cJSON_GetArrayItem(range, 0), begin) &&
           json_size(cJSON_GetArrayItem(range, 1), &end) && *begin <= end && end <= f->data_bytes &&
           end - *begin == n_bytes;
}

fsdp_status safetensors_read(const safetensors *f, void *out, size_t bytes, size_t begin)
{
    return read_at(f, out, bytes, f->data_begin + begin);
}

void safetensors_close(safetensors *f)
{
    if (f->path != NULL && f->fd >= 0)
        close(f->fd);
    cJSON_Delete(f->header);
    free(f->path);
    *f = (safetensors){0};
}

/* ---- JSON ------------------------------------------------------------------------------------ */

bool json_size(const cJSON *item, size_t *out)
{
    if (!cJSON_IsNumber(item) || !(item->valuedouble >= 0.0) || item->valuedouble > 0x1p53 ||
        item->valuedouble != floor(item->valuedouble))
        return false;
    *out = (size_t)item->valuedouble;
    return true;
}

fsdp_status json_read_file(const char *path, const char *hint, size_t max_bytes, cJSON **out)
{
    size_t bytes = 0;
    safetensors f = {.path = (char *)path, .hint = hint};
    *out = NULL;
    TRY(open_regular(path, hint, &f.fd, &bytes));
    fsdp_status status = bytes <= max_bytes ? read_object(&f, 0, bytes)
                                            : fsdp_error(FSDP_EINVAL, hint,
                                                         "%s: got %zu bytes, expected at most %zu",
                                                         path, bytes, max_bytes);
    close(f.fd);
    if (status == FSDP_OK)
        *out = f.header;
    else
        cJSON_Delete(f.header);
    return status;
}
