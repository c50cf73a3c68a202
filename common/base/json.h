/* json.h -- JSON files and values of cJSON. Files may come from elsewhere, so all is checked before
 * use. */
#pragma once
#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include "common/base/status.h"

/* Maximum size of a JSON text: enough for the names of 100,000 tensors. Parsed JSON takes up to
 * forty times the memory of its text. */
enum { JSON_MAX_BYTES = 1 << 24 };

/* json_read -- the JSON object in bytes [at, at + bytes) of an open file; the caller deletes it.
 * Text after the object and duplicate keys are refused.
 *   path, hint  for messages
 *   errors      FSDP_EIO, FSDP_EINVAL, FSDP_ENOMEM; *out is NULL then */
fsdp_status json_read(const char *path, const char *hint, int fd, size_t at, size_t bytes,
                      cJSON **out);
/* json_read_file -- the same for a whole regular file of at most JSON_MAX_BYTES. */
fsdp_status json_read_file(const char *path, const char *hint, cJSON **out);

/* json_size -- a whole number from 0 to 2^53, up to which doubles are exact; else false. */
bool json_size(const cJSON *item, size_t *out);
/* json_print -- text = item as JSON, or "none" or "a longer value"; returns text. */
const char *json_print(const cJSON *item, char *text, size_t text_bytes);
/* json_write_number -- the shortest decimal that is this float, with a point or an exponent. */
void json_write_number(FILE *out, float value);
