/* export_impl.h -- helpers that export.c (writing) and import.c (reading) share. */
#pragma once
#include "common/model/export.h"

/* path_join -- "dir/name", owned by the caller; NULL if there is no memory. */
char *path_join(const char *dir, const char *name);
