/* export_impl.h -- names and helpers that export.c (writing) and import.c (reading) share. */
#pragma once
#include "common/model/export.h"

#define EXPORT_WEIGHTS "model.safetensors"
#define EXPORT_CONFIG  "config.json"

/* path_join -- "dir/name", owned by the caller; NULL if there is no memory. */
char *path_join(const char *dir, const char *name);
