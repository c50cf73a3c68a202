/* safetensors.h -- files of named tensors (written as fp32).
 *
 *   write: safetensors_add ... -> safetensors_head -> the caller writes head and tensors
 *   read:  safetensors_open -> safetensors_range, safetensors_read ... -> safetensors_close
 *
 * A file is the header's length, 8 bytes, little-endian; the header, a JSON object from tensor name
 * to dtype, shape and byte range, padded with spaces to 8 bytes; and the tensors, without gaps.
 * Files may come from elsewhere, so lengths and ranges are checked before use.
 * https://huggingface.co/docs/safetensors */
#pragma once
#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/base/status.h"

#define SAFETENSORS_METADATA "__metadata__" /* the only key of a header that names no tensor */

/* safetensors_add -- list an fp32 tensor that begins at *at_bytes, and advance *at_bytes past it.
 * Returns false if there is no memory. */
bool safetensors_add(cJSON *header, const char *name, const size_t *dims, int n_dims,
                     uint64_t *at_bytes);
/* safetensors_head -- the bytes before the tensors; the caller frees them. NULL: no memory. */
char *safetensors_head(const cJSON *header, size_t *n_bytes);

typedef struct safetensors {
    char *path;
    const char *hint; /* what to do about a bad file; borrowed */
    int fd;
    cJSON *header;
    size_t data_begin, data_bytes;
} safetensors;

/* safetensors_open -- open a regular file, read its header and check that the tensors' ranges
 * follow one another from the end of the header to the end of the file.
 *   errors  FSDP_EIO, FSDP_EINVAL, FSDP_ENOMEM; nothing is left behind */
fsdp_status safetensors_open(const char *path, const char *hint, safetensors *f);
/* safetensors_range -- whether a tensor's range in an open file is n_bytes long; *begin = its first
 * byte, counted from the end of the header. */
bool safetensors_range(const cJSON *tensor, size_t n_bytes, size_t *begin);
/* safetensors_read -- read from byte `begin` after the header. errors: FSDP_EIO. */
fsdp_status safetensors_read(const safetensors *f, void *out, size_t bytes, size_t begin);
/* floats_finite -- how many of n floats come before the first infinity or NaN. */
size_t floats_finite(const float *values, size_t n);
/* safetensors_close -- free f; a zeroed or closed struct is accepted. */
void safetensors_close(safetensors *f);
