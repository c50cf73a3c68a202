/* safetensors.h -- files of named fp32 tensors, and JSON files beside them.
 *
 *   write: safetensors_add ... -> safetensors_head -> the caller writes head and tensors
 *   read:  safetensors_open -> safetensors_range, safetensors_read ... -> safetensors_close
 *
 * Such a file is 8 bytes of header length, little-endian; a JSON object from tensor name to dtype,
 * shape and byte range after the header, padded with spaces to 8 bytes; the tensors without gaps.
 * What is read comes from elsewhere, so lengths and ranges are checked before use.
 * https://huggingface.co/docs/safetensors */
#pragma once
#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/base/status.h"

#define SAFETENSORS_METADATA "__metadata__" /* the only name in a header that is no tensor */
/* The most that a header or a JSON file may have: room for the names of 100,000 tensors. Parsed
 * text takes up to forty times its own size. */
enum { JSON_MAX_BYTES = 1 << 24 };

/* safetensors_add -- list an fp32 tensor that begins at *at_bytes, and put *at_bytes behind it.
 * Returns false if there is no memory. */
bool safetensors_add(cJSON *header, const char *name, const size_t *dims, int n_dims,
                     uint64_t *at_bytes);
/* safetensors_head -- all that stands before the tensors; the caller frees it. NULL: no memory. */
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
/* safetensors_range -- whether the range of a tensor of an open file has n_bytes; *begin = its
 * first byte, counted from the end of the header. */
bool safetensors_range(const cJSON *tensor, size_t n_bytes, size_t *begin);
/* safetensors_read -- bytes from `begin` on, counted as above. errors: FSDP_EIO. */
fsdp_status safetensors_read(const safetensors *f, void *out, size_t bytes, size_t begin);
/* safetensors_close -- free f; a zeroed or closed struct is accepted. */
void safetensors_close(safetensors *f);

/* json_size -- a whole number from 0 to 2^53, up to which doubles hold all of them; else false. */
bool json_size(const cJSON *item, size_t *out);
/* json_print -- text = item as JSON, or "none" or "a longer value"; returns text. */
const char *json_print(const cJSON *item, char *text, size_t text_bytes);
/* json_read_file -- the JSON object that a regular file of at most JSON_MAX_BYTES holds; the caller
 * deletes it. Text after the object and duplicate keys are refused.
 *   errors  FSDP_EIO, FSDP_EINVAL, FSDP_ENOMEM; *out is NULL then */
fsdp_status json_read_file(const char *path, const char *hint, cJSON **out);
/* json_write_number -- the shortest decimal that is this float, with a point or an exponent. */
void json_write_number(FILE *out, float value);
