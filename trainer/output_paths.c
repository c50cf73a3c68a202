/* output_paths.c -- check before training, not hours later, that all outputs can be written, and
 * that none of them is written over an input or another output.
 *
 *   trainer_compare_paths -> inputs are opened -> trainer_check_outputs */
#include <dirent.h>
#include <errno.h>
#include <fnmatch.h>
#include <glob.h>
#include <libgen.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "common/base/atomic_file.h"
#include "common/model/export.h"
#include "common/model/family.h"
#include "trainer/trainer.h"

static const char HINT[] = "pass a path in a directory that exists and can be written";

/* ---- the paths of a run ---------------------------------------------------------------------- */

#define MODEL_NAMES                                                                                \
    "model*.safetensors|model.safetensors.index.json|config.json|generation_config.json|"          \
    "tokenizer*|"                                                                                  \
    "vocab.*|merges.txt|special_tokens_map.json|added_tokens.json|chat_template*|*.model"
#define AT(member) offsetof(trainer_config, member)

/* How a run uses the path of an option. */
typedef struct path_use {
    const char *option;
    size_t at; /* of the path in trainer_config */
    enum { READ, WRITE_FILE, WRITE_DIR, WRITE_EXPORT } how;
    const char *names; /* globs, separated by |, of what is read or written in a folder; NULL: no
                          folder */
} path_use;

#define TOKENS "*.bin"
static const path_use USES[] = {
    {"data", AT(data), READ, TOKENS},
    {"val-data", AT(val_data), READ, TOKENS},
    {"data-mask", AT(data_mask), READ, "*"},
    {"val-mask", AT(val_mask), READ, "*"},
    {"init-from", AT(init_from), READ, MODEL_NAMES},
    {"resume", AT(resume), READ, "step-*|latest|manifest.json|rank-*.safetensors"},
    {"plan-prices", AT(plan_prices), READ, NULL},
    {"save", AT(save_dir), WRITE_DIR, "step-*|latest|lock"},
    {"profile", AT(profile_dir), WRITE_DIR,
     "profile.md|profile-rank-*.csv|trace-rank-*.json|timeline.txt|timeline.svg"},
    {"loss-csv", AT(train.loss_csv), WRITE_FILE, NULL},
    {"export-init", AT(export_init_dir), WRITE_EXPORT, MODEL_NAMES},
    {"export", AT(export_dir), WRITE_EXPORT, MODEL_NAMES},
    {"export-optimizer", AT(export_optimizer), WRITE_FILE, NULL},
    {"digests", AT(digests), WRITE_FILE, NULL},
    {"snapshot", AT(snapshot), WRITE_FILE, NULL},
    {"memory-report", AT(memory_report), WRITE_FILE, NULL},
};

/* Two options that may have one path. */
static const char *const LEGAL[][2] = {{"resume", "save"}};

/* The path that the option has; NULL: none. */
static const char *path_of(const trainer_config *c, const path_use *use)
{
    const char *path = *(const char *const *)((const char *)c + use->at);
    const bool is_word = path && ((use->at == AT(resume) && strcmp(path, "auto") == 0) ||
                                  (use->at == AT(val_data) && strcmp(path, "digits") == 0));
    return is_word ? NULL : path;
}

/* ---- outputs that are inputs, or other outputs ----------------------------------------------- */

/* A file or folder that the run uses. */
typedef struct place {
    const path_use *use;
    const char *names; /* of a folder; NULL: a file */
    char *real;        /* without links; owned */
    dev_t device;      /* 0 and 0: it does not exist yet */
    ino_t inode;
} place;

typedef struct places {
    place *list;
    size_t n;
} places;

/* The real path of something that exists, or that can be created; NULL: neither, or no memory. The
 * caller frees it. */
static char *real_path(const char *path)
{
    char plain[PATH_MAX], target[PATH_MAX], copy[PATH_MAX], *made = NULL;
    char *real = realpath(path, NULL);
    if (real || ckpt_plain_dir(path, plain) != FSDP_OK ||
        atomic_target(plain, HINT, target) != FSDP_OK)
        return real;
    char *dir = realpath(dirname(strcpy(copy, target)), NULL);
    if (dir && asprintf(&made, "%s/%s", dir, basename(target)) < 0)
        made = NULL;
    free(dir);
    return made;
}

/* Append a place, unless it is a device or a pipe, or cannot exist. */
static fsdp_status add_place(places *p, const path_use *use, const char *path, const char *names)
{
    struct stat st = {0};
    const bool exists = stat(path, &st) == 0;
    if (exists && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode))
        return FSDP_OK;
    char *real = real_path(path);
    if (!real)
        return FSDP_OK;
    place *list = realloc(p->list, (p->n + 1) * sizeof *list);
    if (!list) {
        free(real);
        return fsdp_error(FSDP_ENOMEM, "", "paths: no host memory");
    }
    list[p->n++] = (place){use, names, real, st.st_dev, st.st_ino};
    p->list = list;
    return FSDP_OK;
}

/* Whether one of the globs matches the text. */
static bool matches(const char *globs, const char *text)
{
    char copy[512], *rest = copy;
    snprintf(copy, sizeof copy, "%s", globs);
    for (const char *one; (one = strsep(&rest, "|")) != NULL;)
        if (fnmatch(one, text, 0) == 0)
            return true;
    return false;
}

/* Append a folder, and what is in it now by the names `there`. */
static fsdp_status add_folder(places *p, const path_use *use, const char *path, const char *names,
                              const char *there)
{
    char file[PATH_MAX];
    DIR *d = opendir(path);
    fsdp_status status = add_place(p, use, path, names);
    for (const struct dirent *e; d && status == FSDP_OK && (e = readdir(d)) != NULL;)
        if (e->d_name[0] != '.' && matches(there, e->d_name) &&
            snprintf(file, sizeof file, "%s/%s", path, e->d_name) < PATH_MAX)
            status = add_place(p, use, file, NULL);
    if (d)
        closedir(d);
    return status;
}

/* Append the files that an export takes over from the folder of --init-from, under the names that
 * they get in the folder `path`. */
static fsdp_status add_taken(places *p, const path_use *use, const char *from, const char *path)
{
    char file[PATH_MAX];
    DIR *d = opendir(from);
    fsdp_status status = FSDP_OK;
    for (const struct dirent *e; d && status == FSDP_OK && (e = readdir(d)) != NULL;)
        if (e->d_name[0] != '.' && snprintf(file, sizeof file, "%s/%s", path, e->d_name) < PATH_MAX)
            status = add_place(p, use, file, NULL);
    if (d)
        closedir(d);
    return status;
}

/* Append the folders in which images are looked for. */
static fsdp_status add_image_folders(places *p, const path_use *use, const char *path)
{
    static const char *const FOLDERS[] = {"", "/raw", "/MNIST/raw"};
    char dir[PATH_MAX];
    for (int i = 0; i < 3; i++)
        if (snprintf(dir, sizeof dir, "%s%s", path, FOLDERS[i]) < PATH_MAX)
            TRY(add_folder(p, use, dir, "*ubyte*", "*ubyte*"));
    return FSDP_OK;
}

static fsdp_status add_glob(places *p, const path_use *use, const char *pattern)
{
    glob_t g;
    fsdp_status status = FSDP_OK;
    if (glob(pattern, 0, NULL, &g) != 0)
        return FSDP_OK;
    for (size_t i = 0; i < g.gl_pathc && status == FSDP_OK; i++)
        status = add_place(p, use, g.gl_pathv[i], NULL);
    globfree(&g);
    return status;
}

static fsdp_status add_use(const trainer *t, const path_use *use, const char *path, places *p)
{
    const trainer_config *c = &t->cfg;
    const bool is_data = use->names && strcmp(use->names, TOKENS) == 0;
    const bool exports = c->export_dir || c->export_init_dir;
    struct stat st;
    const bool exists = stat(path, &st) == 0;
    const bool is_dir = use->names && (exists ? S_ISDIR(st.st_mode) : use->how != READ);
    if (!is_dir && !exists && use->how == READ)
        return add_glob(p, use, path);
    if (!is_dir)
        return add_place(p, use, path, NULL);
    if (is_data && t->m.family->is_images)
        return add_image_folders(p, use, path);
    const bool is_any = is_data && c->data_format != CORPUS_AUTO && c->data_format != CORPUS_LLMC;
    const char *names = is_any ? "*" : use->names;
    if (use->how == WRITE_EXPORT && c->init_from)
        TRY(add_taken(p, use, c->init_from, path));
    return add_folder(p, use, path, names,
                      use->at == AT(init_from) ? (exports ? "*" : "*.safetensors*|*.json") : names);
}

/* Whether the run reads or writes `inner` in the folder `outer`. */
static bool is_inside(const place *outer, const place *inner)
{
    char first[NAME_MAX + 1];
    const size_t n = strlen(outer->real);
    if (!outer->names || strncmp(outer->real, inner->real, n) != 0 || inner->real[n] != '/')
        return false;
    const char *rest = inner->real + n + 1;
    const bool is_deep = strchr(rest, '/') != NULL, is_flat = strcmp(outer->names, "*") == 0;
    if (is_flat && (is_deep || *rest == '.'))
        return false; /* neither folders nor hidden files are read */
    snprintf(first, sizeof first, "%.*s", (int)strcspn(rest, "/"), rest);
    return matches(outer->names, first);
}

/* Whether a folder that two options name has something that both use: a name of one is a name of
 * the other, also as a glob. */
static bool share_names(const place *a, const place *b)
{
    char copy[512], *rest = copy;
    snprintf(copy, sizeof copy, "%s", b->names);
    for (const char *one; (one = strsep(&rest, "|")) != NULL;)
        if (matches(a->names, one))
            return true;
    return false;
}

static bool collide(const place *a, const place *b)
{
    if (a->use == b->use || (a->use->how == READ && b->use->how == READ))
        return false;
    for (size_t i = 0; i < sizeof LEGAL / sizeof *LEGAL; i++)
        if (strcmp(a->use->option, LEGAL[i][0]) == 0 && strcmp(b->use->option, LEGAL[i][1]) == 0)
            return false;
    const bool is_same = strcmp(a->real, b->real) == 0 ||
                         (a->inode != 0 && a->inode == b->inode && a->device == b->device);
    if (is_same && a->names && b->names)
        return share_names(a, b) || share_names(b, a);
    return is_same || is_inside(a, b) || is_inside(b, a);
}

static fsdp_status compare(const trainer *t, const places *p)
{
    for (size_t i = 0; i < p->n; i++)
        for (size_t k = i + 1; k < p->n; k++) {
            const path_use *a = p->list[i].use, *b = p->list[k].use; /* the second one writes */
            char hint[80];
            if (!collide(&p->list[i], &p->list[k]))
                continue;
            snprintf(hint, sizeof hint, "pass another path to --%s", b->option);
            return fsdp_error(FSDP_EINVAL, hint, "--%s %s: got what --%s %s: %s", b->option,
                              path_of(&t->cfg, b), a->option, a->how == READ ? "reads" : "writes",
                              p->list[i].real);
        }
    return FSDP_OK;
}

fsdp_status trainer_compare_paths(const trainer *t)
{
    places p = {0};
    fsdp_status status = FSDP_OK;
    for (size_t i = 0; i < sizeof USES / sizeof *USES && status == FSDP_OK; i++)
        if (path_of(&t->cfg, &USES[i]))
            status = add_use(t, &USES[i], path_of(&t->cfg, &USES[i]), &p);
    if (status == FSDP_OK)
        status = compare(t, &p);
    for (size_t i = 0; i < p.n; i++)
        free(p.list[i].real);
    free(p.list);
    return status;
}

/* ---- outputs that can be written ------------------------------------------------------------- */

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
    for (size_t i = 0; i < sizeof USES / sizeof *USES; i++) {
        const path_use *use = &USES[i];
        const char *path = path_of(&t->cfg, use);
        if (use->how == WRITE_DIR) /* every rank writes there */
            TRY(check_output_dir(use->option, path));
        if (comm_rank(t->run.world) != 0)
            continue;
        if (use->how == WRITE_EXPORT)
            TRY(check_export(use->option, path));
        if (use->how == WRITE_FILE)
            TRY(check_output_file(use->option, path));
    }
    return FSDP_OK;
}
