/* output_paths.c -- check before training, not hours later, that all outputs can be written. */
#include <errno.h>
#include <libgen.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "common/base/atomic_file.h"
#include "common/model/export.h"
#include "trainer/trainer.h"

static const char HINT[] = "pass a path in a directory that exists and can be written";

static fsdp_status output_refused(const char *option, const char *path, const char *at,
                                  const char *why)
{
    return fsdp_error(FSDP_EIO, HINT, "--%s %s: %s: %s", option, path, at, why);
}

/* Check that `dir` is a directory in which files can be created. */
static fsdp_status check_writable(const char *option, const char *path, const char *dir)
{
    char inside[PATH_MAX + 2];
    snprintf(inside, sizeof inside, "%s/.", dir); /* only a directory has "." */
    return access(inside, W_OK | X_OK) == 0 ? FSDP_OK
                                            : output_refused(option, path, dir, strerror(errno));
}

/* Check the directory of `path` (shorter than PATH_MAX), where temporary files are created. */
static fsdp_status check_parent(const char *option, const char *path)
{
    char copy[PATH_MAX];
    return check_writable(option, path, dirname(strcpy(copy, path)));
}

/* Check that a file, a device or a pipe can be written. */
static fsdp_status check_output_file(const char *option, const char *path)
{
    struct stat st;
    if (!path)
        return FSDP_OK;
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode)) {
        if (!S_ISDIR(st.st_mode) && access(path, W_OK) == 0)
            return FSDP_OK;
        return output_refused(option, path, path, strerror(S_ISDIR(st.st_mode) ? EISDIR : errno));
    }
    char target[PATH_MAX];
    atomic_file f;
    TRY(atomic_target(path, HINT, target));
    TRY(check_parent(option, target));
    TRY(atomic_file_open(&f, path, HINT)); /* its name may be too long */
    atomic_file_cancel(&f);
    return FSDP_OK;
}

static fsdp_status check_output_dir(const char *option, const char *path)
{
    struct stat st;
    if (!path)
        return FSDP_OK;
    char plain[PATH_MAX], target[PATH_MAX];
    if (strlen(path) + CKPT_NAME_ROOM >= PATH_MAX)
        return output_refused(option, "", "the path", strerror(ENAMETOOLONG));
    TRY(ckpt_plain_dir(path, plain));
    TRY(atomic_target(plain, HINT, target));
    if (stat(path, &st) == 0)
        return check_writable(option, path, path);
    if (errno == ENAMETOOLONG)
        return output_refused(option, path, path, strerror(errno));
    if (lstat(path, &st) == 0)
        return output_refused(option, path, path, "this link leads nowhere");
    return check_parent(option, path);
}

static fsdp_status check_export(const char *option, const char *path)
{
    static const char *const files[] = {EXPORT_WEIGHTS, EXPORT_CONFIG};
    char file[PATH_MAX];
    struct stat st;
    TRY(check_output_dir(option, path));
    for (int i = 0; i < 2 && path && stat(path, &st) == 0; i++) {
        snprintf(file, sizeof file, "%.*s/%s", PATH_MAX - CKPT_NAME_ROOM, path, files[i]);
        TRY(check_output_file(option, file));
    }
    return FSDP_OK;
}

fsdp_status trainer_check_outputs(const trainer *t)
{
    const trainer_config *c = &t->cfg;
    TRY(check_output_dir("save", c->save_dir));
    TRY(check_output_dir("profile", c->profile_dir));
    if (comm_rank(t->run.world) != 0)
        return FSDP_OK;
    TRY(check_output_file("loss-csv", c->train.loss_csv));
    TRY(check_export("export-init", c->export_init_dir));
    TRY(check_export("export", c->export_dir));
    TRY(check_output_file("export-optimizer", c->export_optimizer));
    TRY(check_output_file("digests", c->digests));
    TRY(check_output_file("snapshot", c->snapshot));
    return check_output_file("memory-report", c->memory_report);
}
