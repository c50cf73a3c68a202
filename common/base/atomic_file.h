/* atomic_file.h -- a file that appears whole or not at all.
 *
 *   atomic_file_open -> fprintf(f.out, ...) -> atomic_file_commit | atomic_file_cancel
 * What is written goes to PATH.tmp beside PATH; commit syncs it and renames it over PATH, so an
 * older file stays whole until then. A killed run leaves PATH.tmp, which the next run overwrites. A
 * device or a pipe (/dev/stdout) is written in place. */
#pragma once
#include <limits.h>
#include <stdio.h>
#include "common/base/status.h"

typedef struct atomic_file {
    FILE *out; /* NULL when closed */
    char path[PATH_MAX], tmp[PATH_MAX];
} atomic_file;

/* errors FSDP_EIO with the path and the reason; hint names the option that gave it. */
fsdp_status atomic_file_open(atomic_file *f, const char *path, const char *hint);
fsdp_status atomic_file_commit(atomic_file *f);
void atomic_file_cancel(atomic_file *f); /* a zeroed or committed struct is accepted */
