/* atomic_file.h -- write files and directories that appear whole or not at all.
 *
 *   atomic_file_open -> fprintf(f.out, ...) [-> atomic_file_sync]
 *   -> atomic_file_commit | atomic_file_cancel
 *
 * The text goes to a new file beside PATH, PATH.X.tmp with 16 random hex digits X, so that it
 * overwrites no file of another run or of the user. Commit syncs this file and renames it to PATH;
 * until then an older PATH stays whole. PATH.X.tmp is locked while its writer lives; if a run is
 * killed, the next open of PATH by the same user removes its leftover. A symbolic link is followed,
 * and its target is replaced; but in a sticky directory that anybody can write to, another user's
 * link is refused. Devices, pipes, and standard output of any kind are written in place.
 *
 * For a directory, the caller creates it under a name from atomic_tmp_name, fills it, and gives it
 * its final name with atomic_rename. */
#pragma once
#include <limits.h>
#include <stdio.h>
#include "common/base/status.h"

typedef struct atomic_file {
    FILE *out;        /* NULL when closed */
    const char *hint; /* borrowed */
    char path[PATH_MAX], tmp[PATH_MAX];
} atomic_file;

/* atomic_file_open -- open a new PATH.X.tmp for writing as f->out.
 *   hint    what the user can do if the path cannot be written; it should name the option.
 *           Borrowed until commit or cancel
 *   errors  FSDP_EINVAL: the path is too long; FSDP_EIO, with path and reason; FSDP_ENOMEM */
fsdp_status atomic_file_open(atomic_file *f, const char *path, const char *hint);
/* atomic_file_open_in -- atomic_file_open for DIR/NAME. */
fsdp_status atomic_file_open_in(atomic_file *f, const char *dir, const char *name,
                                const char *hint);
/* atomic_file_sync -- flush the text to disk. Only commit or cancel may follow. To make several
 * files appear together, sync all of them before the first commit.
 *   errors  FSDP_EIO; f is then cancelled */
fsdp_status atomic_file_sync(atomic_file *f);
/* atomic_file_commit -- rename the file to PATH, and sync its directory, so that the name survives
 * a crash. f is closed in any case.
 *   errors  FSDP_EIO: PATH is unchanged, unless only that sync failed; PATH.X.tmp is removed */
fsdp_status atomic_file_commit(atomic_file *f);
/* atomic_file_cancel -- close f and remove PATH.X.tmp; a zeroed or committed struct is accepted. */
void atomic_file_cancel(atomic_file *f);

/* atomic_target -- out = the file that commit creates or replaces: the target of PATH if PATH is a
 * symbolic link, else PATH.
 *   errors  FSDP_EINVAL: the path is too long; FSDP_EIO: too many links, or another user's link in
 *           a directory like /tmp */
fsdp_status atomic_target(const char *path, const char *hint, char out[PATH_MAX]);
/* atomic_tmp_name -- out = PATH.X.tmp with a new random X.
 *   errors  FSDP_EINVAL: the path is too long; FSDP_EIO: no random numbers */
fsdp_status atomic_tmp_name(const char *path, char out[PATH_MAX]);
/* atomic_rename -- rename(from, to), and sync the directory that holds `to`, so that the name
 * survives a crash.
 *   errors  FSDP_EIO with both paths; `to` is unchanged, unless only the sync failed */
fsdp_status atomic_rename(const char *from, const char *to, const char *hint);
/* atomic_make_dir -- create DIR unless something of that name exists, and sync its parent: if a
 * crash lost DIR's name, it would lose everything in DIR. errors: FSDP_EIO. */
fsdp_status atomic_make_dir(const char *dir, const char *hint);
/* atomic_lock -- lock a whole open file until the process ends or closes it. Returns 0; EAGAIN if
 * somebody else holds the lock; another errno if the file system has no locks. */
int atomic_lock(int fd);
