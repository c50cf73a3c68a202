/* atomic_file.h -- a file that appears whole or not at all.
 *
 *   atomic_file_open -> fprintf(f.out, ...) -> atomic_file_commit | atomic_file_cancel
 *
 * The text goes to PATH.tmp beside PATH. Commit syncs it and renames it to PATH, so an older file
 * stays whole until then. A killed run leaves PATH.tmp, and the next run overwrites it. A device or
 * a pipe (/dev/stdout) is written in place. */
#pragma once
#include <limits.h>
#include <stdio.h>
#include "common/base/status.h"

typedef struct atomic_file {
    FILE *out; /* NULL when closed */
    char path[PATH_MAX], tmp[PATH_MAX];
} atomic_file;

/* atomic_file_open -- open PATH.tmp for writing, at f->out.
 *   hint    what to do about a path that cannot be written: name the option that gave it
 *   errors  FSDP_EINVAL the path is too long; FSDP_EIO with the path and the reason */
fsdp_status atomic_file_open(atomic_file *f, const char *path, const char *hint);
/* atomic_file_commit -- make the file appear. f is closed afterwards in any case.
 *   errors  FSDP_EIO: PATH is as it was and PATH.tmp is gone */
fsdp_status atomic_file_commit(atomic_file *f);
/* atomic_file_cancel -- remove PATH.tmp; a zeroed or committed struct is accepted. */
void atomic_file_cancel(atomic_file *f);
