/* outputs.c -- finds out what cannot be written before hours of training, not after. */
#include <dirent.h>
#include <errno.h>
#include <libgen.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "trainer/trainer.h"

enum { CHECKPOINT_NAME_BYTES = 32 }; /* what a checkpoint adds to its directory's path */

static fsdp_status output_refused(const char *option, const char *path, const char *at,
                                  const char *why)
{
    return fsdp_error(FSDP_EIO, "pass a path in a directory that exists and can be written",
                      "--%s %s: %s: %s", option, path, at, why);
}

/* New files appear beside `path` and are then renamed, so its directory must be writable. */
static fsdp_status check_parent(const char *option, const char *path)
{
    char copy[PATH_MAX];
    struct stat st;
    if ((size_t)snprintf(copy, sizeof copy, "%s", path) >= sizeof copy - CHECKPOINT_NAME_BYTES)
        return output_refused(option, "", "the path", strerror(ENAMETOOLONG));
    const char *parent = dirname(copy);
    if (stat(parent, &st) != 0)
        return output_refused(option, path, parent, strerror(errno));
    if (!S_ISDIR(st.st_mode))
        return output_refused(option, path, parent, strerror(ENOTDIR));
    if (access(parent, W_OK | X_OK) != 0)
        return output_refused(option, path, parent, strerror(errno));
    return FSDP_OK;
}

/* Checks a file, a device or a pipe. */
static fsdp_status check_output_file(const char *option, const char *path)
{
    struct stat st;
    if (!path)
        return FSDP_OK;
    bool exists = stat(path, &st) == 0;
    if (exists && S_ISDIR(st.st_mode))
        return output_refused(option, path, path, strerror(EISDIR));
    if (exists && !S_ISREG(st.st_mode))
        return access(path, W_OK) == 0 ? FSDP_OK
                                       : output_refused(option, path, path, strerror(errno));
    /* A link stays: what it points to is replaced. */
    char *real = exists ? realpath(path, NULL) : NULL;
    fsdp_status status = check_parent(option, real ? real : path);
    free(real);
    return status;
}

static fsdp_status check_output_dir(const char *option, const char *path)
{
    struct stat st;
    if (!path)
        return FSDP_OK;
    bool exists = stat(path, &st) == 0;
    if (exists && !S_ISDIR(st.st_mode))
        return output_refused(option, path, path, strerror(ENOTDIR));
    if (exists && access(path, W_OK | X_OK) != 0)
        return output_refused(option, path, path, strerror(errno));
    return exists ? FSDP_OK : check_parent(option, path);
}

static bool is_empty_dir(const char *path)
{
    int n = 0;
    DIR *d = opendir(path);
    while (d && n < 3 && readdir(d)) /* "." and ".." */
        n++;
    if (d)
        closedir(d);
    return d && n < 3;
}

/* A checkpoint replaces DIR as a whole, so DIR must be a checkpoint, empty or missing. */
static fsdp_status check_save_dir(const char *path)
{
    struct stat st;
    if (!path)
        return FSDP_OK;
    TRY(check_output_dir("save", path));
    TRY(check_parent("save", path));
    if (stat(path, &st) == 0 && !ckpt_exists(path) && !is_empty_dir(path))
        return fsdp_error(
            FSDP_EIO, "pass a new directory, or one that --save wrote",
            "--save %s: got a directory that holds other files, expected a checkpoint or none",
            path);
    return FSDP_OK;
}

fsdp_status trainer_check_outputs(const trainer *t)
{
    const trainer_config *c = &t->cfg;
    TRY(check_save_dir(c->train.save_dir));
    TRY(check_output_dir("profile", c->profile_dir));
    if (comm_rank(t->run.world) != 0)
        return FSDP_OK;
    TRY(check_output_file("loss-csv", c->train.loss_csv));
    TRY(check_output_dir("export-init", c->export_init_dir));
    TRY(check_output_dir("export", c->export_dir));
    return check_output_file("memory-report", c->memory_report);
}
