/* atomic_file.h -- files and directories that appear whole or not at all.
 *
 *   atomic_file_open -> fprintf(f.out, ...) [-> atomic_file_sync]
 *   -> atomic_file_commit | atomic_file_cancel
 *
 * The text goes to a new file beside PATH, PATH.X.tmp with 16 random hex digits X, so that no other
 * run and nobody's own file is written over. Commit syncs it and renames it to PATH: an older file
 * stays whole until then. PATH.X.tmp is locked while its writer lives; what a killed run leaves is
 * removed when the same user opens PATH again. A link is followed: what it points to is replaced;
 * but in a sticky directory that anybody can write to, another user's link is refused. A device, a
 * pipe, and standard output whatever it is, are written in place.
 *
 * Directories that shall appear whole are made by the caller under the name that atomic_tmp_name
 * gives, and get their own by atomic_rename. */
#pragma once
#include <limits.h>
#include <stdio.h>
#include "common/base/status.h"

typedef struct atomic_file {
    FILE *out;        /* NULL when closed */
    const char *hint; /* borrowed */
    char path[PATH_MAX], tmp[PATH_MAX];
} atomic_file;

/* atomic_file_open -- open a new PATH.X.tmp for writing, at f->out.
 *   hint    what to do about a path that cannot be written: name the option that gave it; borrowed
 *           until commit or cancel
 *   errors  FSDP_EINVAL the path is too long; FSDP_EIO with the path and the reason */
fsdp_status atomic_file_open(atomic_file *f, const char *path, const char *hint);
/* atomic_file_open_in -- atomic_file_open of DIR/NAME. */
fsdp_status atomic_file_open_in(atomic_file *f, const char *dir, const char *name,
                                const char *hint);
/* atomic_file_sync -- write out what there is. Only commit and cancel may follow: for several files
 * that shall appear together.
 *   errors  FSDP_EIO: as after atomic_file_cancel */
fsdp_status atomic_file_sync(atomic_file *f);
/* atomic_file_commit -- make the file appear, and sync its directory, so that the name outlives a
 * crash. f is closed afterwards in any case.
 *   errors  FSDP_EIO: PATH is as it was and PATH.X.tmp is gone */
fsdp_status atomic_file_commit(atomic_file *f);
/* atomic_file_cancel -- remove PATH.X.tmp; a zeroed or committed struct is accepted. */
void atomic_file_cancel(atomic_file *f);

/* atomic_target -- out = the file that commit replaces, or makes: what PATH is a link to, else
 * PATH. errors  FSDP_EINVAL the path is too long; FSDP_EIO too many links, or one of another user
 * in a directory like /tmp */
fsdp_status atomic_target(const char *path, const char *hint, char out[PATH_MAX]);
/* atomic_tmp_name -- out = PATH.X.tmp, with an X that nobody has used.
 *   errors  FSDP_EINVAL the path is too long; FSDP_EIO no random numbers */
fsdp_status atomic_tmp_name(const char *path, char out[PATH_MAX]);
/* atomic_rename -- rename(from, to), and sync the directory that holds `to`, so that the name
 * survives a crash.
 *   errors  FSDP_EIO with both paths; `to` is as it was, unless only the sync failed */
fsdp_status atomic_rename(const char *from, const char *to, const char *hint);
/* atomic_make_dir -- make DIR if there is nothing of that name, and sync the directory that holds
 * it: whatever is written to DIR would be lost with its name. errors: FSDP_EIO. */
fsdp_status atomic_make_dir(const char *dir, const char *hint);
/* atomic_lock -- lock a whole open file until the process ends or closes it.
 * Returns 0; EAGAIN: somebody has it; another errno: there are no locks here. */
int atomic_lock(int fd);
