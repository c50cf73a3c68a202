/* output_paths.c -- check before training, not hours later, that all outputs can be written, and
 * that none of them is written over an input or another output.
 *
 *   trainer_compare_paths -> inputs are opened -> trainer_check_outputs */
#include <errno.h>
#include <fnmatch.h>
#include <libgen.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "common/base/atomic_file.h"
#include "common/base/glob_in.h"
#include "common/model/family.h"
#include "common/weights/export.h"
#include "trainer/trainer.h"

static const char HINT[] = "pass a path in a directory that exists and can be written";

/* ---- the paths of a run ---------------------------------------------------------------------- */

#define AT(member) offsetof(trainer_options, member)

/* How a run uses the path of an option. */
typedef struct path_use {
    const char *option;
    size_t at; /* of the path in trainer_options */
    enum { READ, WRITE_FILE, WRITE_DIR, WRITE_EXPORT } how;
    const char *names[12]; /* globs of what is read or written in a folder, then NULL */
} path_use;

/* clang-format off */
#define MODEL_NAMES {"model*.safetensors", "model.safetensors.index.json", "config.json", "generation_config.json", "tokenizer*", "vocab.*", \
                     "merges.txt", "special_tokens_map.json", "added_tokens.json", "chat_template*", "*.model"}

static const path_use USES[] = {
    {"data", AT(data), READ, {"*.bin"}},
    {"val-data", AT(val_data), READ, {"*.bin"}},
    {"data-mask", AT(data_mask), READ, {"*"}},
    {"val-mask", AT(val_mask), READ, {"*"}},
    {"init-from", AT(init_from), READ, {"*.safetensors*", "*.json"}},
    {"resume", AT(resume), READ, {"step-*", "step-*/*", "latest", "manifest.json", "rank-*.safetensors"}},
    {"plan-prices", AT(plan_prices), READ, {NULL}},
    {"save", AT(save_dir), WRITE_DIR, {"step-*", "latest", "lock"}},
    {"profile", AT(profile_dir), WRITE_DIR, {"profile.md", "profile-rank-*.csv", "trace-rank-*.json", "timeline.txt", "timeline.svg"}},
    {"loss-csv", AT(train.loss_csv), WRITE_FILE, {NULL}},
    {"export-init", AT(export_init_dir), WRITE_EXPORT, MODEL_NAMES},
    {"export", AT(export_dir), WRITE_EXPORT, MODEL_NAMES},
    {"export-optimizer", AT(export_optimizer), WRITE_FILE, {NULL}},
    {"digests", AT(digests), WRITE_FILE, {NULL}},
    {"snapshot", AT(snapshot), WRITE_FILE, {NULL}},
    {"memory-report", AT(memory_report), WRITE_FILE, {NULL}},
};
/* clang-format on */

/* Two options that may have one path. */
static const char *const LEGAL[][2] = {{"resume", "save"}};

/* The path that the option has; NULL: none. */
static const char *path_of(const trainer_options *o, const path_use *use)
{
    const char *path = *(const char *const *)((const char *)o + use->at);
    const bool is_word = path && ((use->at == AT(resume) && strcmp(path, "auto") == 0) ||
                                  (use->at == AT(val_data) && strcmp(path, "digits") == 0));
    return is_word ? NULL : path;
}

/* ---- outputs that are inputs, or other outputs ----------------------------------------------- */

/* A path that the run uses, or what is in a folder by names that the run uses. */
typedef struct place {
    const path_use *use;
    size_t path_bytes; /* of real, without the glob */
    dev_t device;      /* 0 and 0: names, or a path where nothing is yet */
    ino_t inode;
    char real[PATH_MAX]; /* the path without links; of a folder, then "/" and a glob */
} place;

typedef struct places {
    place *list;
    size_t n;
} places;

/* Get the real path of something that exists or that can be created; false: neither. */
static bool real_path(const char *path, char out[PATH_MAX])
{
    char plain[PATH_MAX], target[PATH_MAX], copy[PATH_MAX];
    if (realpath(path, out))
        return true;
    return ckpt_plain_dir(path, plain) == FSDP_OK &&
           atomic_target(plain, HINT, target) == FSDP_OK &&
           realpath(dirname(strcpy(copy, target)), plain) &&
           snprintf(out, PATH_MAX, "%s/%s", plain, basename(target)) < PATH_MAX;
}

/* Append a path, or with a glob what is in this folder, unless it is a device or a pipe, or cannot
 * exist. */
static fsdp_status add_place(places *p, const path_use *use, const char *path, const char *names)
{
    struct stat st = {0};
    const bool exists = stat(path, &st) == 0;
    place *list = realloc(p->list, (p->n + 1) * sizeof *list);
    if (!list)
        return fsdp_error(FSDP_ENOMEM, "", "paths: no host memory");
    p->list = list;
    place *at = &list[p->n];
    if ((exists && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode)) || !real_path(path, at->real))
        return FSDP_OK;
    at->use = use;
    at->path_bytes = strlen(at->real);
    at->device = names ? 0 : st.st_dev;
    at->inode = names ? 0 : st.st_ino;
    if (names)
        snprintf(at->real + at->path_bytes, PATH_MAX - at->path_bytes, "/%s", names);
    p->n++;
    return FSDP_OK;
}

/* Append the files that match a glob, with `from` those in this folder; with `to` as files of these
 * names in the folder `to`. */
static fsdp_status add_found(places *p, const path_use *use, const char *from, const char *names,
                             const char *to)
{
    char file[PATH_MAX];
    glob_t g;
    fsdp_status status = FSDP_OK;
    if ((from ? glob_in(from, names, 0, &g) : glob(names, 0, NULL, &g)) != 0)
        return FSDP_OK;
    for (size_t i = 0; i < g.gl_pathc && status == FSDP_OK; i++) {
        snprintf(file, sizeof file, "%s", g.gl_pathv[i]);
        if (to)
            snprintf(file, sizeof file, "%s%s", to, strrchr(g.gl_pathv[i], '/'));
        status = add_place(p, use, file, NULL);
    }
    globfree(&g);
    return status;
}

static fsdp_status add_use(const trainer *t, const path_use *use, const char *path, places *p)
{
    static const char *const ANY[] = {"*", NULL};
    static const char *const IMAGES[] = {"*ubyte*", "*/*ubyte*", "*/*/*ubyte*", NULL};
    const trainer_options *o = t->opt;
    const bool is_data = use->at == AT(data) || use->at == AT(val_data);
    const bool exports = o->export_dir || o->export_init_dir;
    const char *const *names = use->names;
    char hint[80];
    struct stat st;
    const bool exists = stat(path, &st) == 0;
    if (is_data && t->m.family->is_images)
        names = IMAGES;
    else if (is_data && o->data_format != CORPUS_AUTO && o->data_format != CORPUS_LLMC)
        names = ANY;
    if (!exists && use->how == READ) {
        const size_t n = p->n;
        TRY(add_found(p, use, NULL, path, NULL));
        /* A run fails when it opens what is not there, with more to say. A plan opens nothing. */
        snprintf(hint, sizeof hint, "check the path given to --%s", use->option);
        return n < p->n || !o->plan || !*names
                   ? FSDP_OK
                   : fsdp_error(FSDP_EIO, hint, "--%s %s: %s", use->option, path, strerror(ENOENT));
    }
    if (!*names || (exists && !S_ISDIR(st.st_mode)))
        return add_place(p, use, path, NULL);
    for (; *names; names++) {
        TRY(add_place(p, use, path, *names));
        TRY(add_found(p, use, path, *names, NULL)); /* they may be links */
    }
    if (o->init_from && (use->how == WRITE_EXPORT || (use->at == AT(init_from) && exports)))
        return add_found(p, use, o->init_from, "*", path); /* files that an export takes over */
    return FSDP_OK;
}

/* Whether b is a, or is among the names in a; if a is written, also below them. */
static bool covers(const place *a, const place *b)
{
    const int flags = FNM_PATHNAME | FNM_PERIOD | (a->use->how == READ ? 0 : FNM_LEADING_DIR);
    return strncmp(a->real, b->real, a->path_bytes) == 0 &&
           fnmatch(a->real + a->path_bytes, b->real + a->path_bytes, flags) == 0;
}

static bool collide(const place *a, const place *b)
{
    if (a->use == b->use)
        return false;
    for (size_t i = 0; i < sizeof LEGAL / sizeof *LEGAL; i++)
        if (strcmp(a->use->option, LEGAL[i][0]) == 0 && strcmp(b->use->option, LEGAL[i][1]) == 0)
            return false;
    const bool is_same = a->inode != 0 && a->inode == b->inode && a->device == b->device;
    return is_same || covers(a, b) || covers(b, a);
}

static fsdp_status compare(const trainer *t, const places *p)
{
    size_t first = 0; /* that is written: in USES these come last */
    while (first < p->n && p->list[first].use->how == READ)
        first++;
    for (size_t i = 0; i < p->n; i++)
        for (size_t k = i < first ? first : i + 1; k < p->n; k++) {
            const path_use *a = p->list[i].use, *b = p->list[k].use;
            char hint[80];
            if (!collide(&p->list[i], &p->list[k]))
                continue;
            snprintf(hint, sizeof hint, "pass another path to --%s", b->option);
            return fsdp_error(FSDP_EINVAL, hint, "--%s %s: got what --%s %s: %s", b->option,
                              path_of(t->opt, b), a->option, a->how == READ ? "reads" : "writes",
                              p->list[i].real);
        }
    return FSDP_OK;
}

fsdp_status trainer_compare_paths(const trainer *t)
{
    places p = {0};
    fsdp_status status = FSDP_OK;
    for (size_t i = 0; i < sizeof USES / sizeof *USES && status == FSDP_OK; i++)
        if (path_of(t->opt, &USES[i]))
            status = add_use(t, &USES[i], path_of(t->opt, &USES[i]), &p);
    IF_OK(status, compare(t, &p));
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

/* Check that a file, a device or a pipe can be written. */
static fsdp_status check_output_file(const char *option, const char *path)
{
    struct stat st;
    char target[PATH_MAX], copy[PATH_MAX];
    atomic_file f;
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode)) {
        if (!S_ISDIR(st.st_mode) && access(path, W_OK) == 0)
            return FSDP_OK;
        return output_refused(option, path, path, strerror(S_ISDIR(st.st_mode) ? EISDIR : errno));
    }
    TRY(atomic_target(path, HINT, target));
    TRY(check_writable(option, target, dirname(strcpy(copy, target))));
    TRY(atomic_file_open(&f, path, HINT)); /* its name may be too long */
    atomic_file_cancel(&f);
    return FSDP_OK;
}

static fsdp_status check_output_dir(const char *option, const char *path, bool is_export)
{
    static const char *const FILES[] = {EXPORT_WEIGHTS, EXPORT_CONFIG};
    struct stat st;
    char plain[PATH_MAX], target[PATH_MAX];
    if (strlen(path) + CKPT_NAME_ROOM >= PATH_MAX)
        return output_refused(option, "", "the path", strerror(ENAMETOOLONG));
    TRY(ckpt_plain_dir(path, plain));
    TRY(atomic_target(plain, HINT, target));
    if (lstat(path, &st) != 0 && errno != ENAMETOOLONG)
        return check_writable(option, path, dirname(strcpy(plain, path)));
    if (stat(path, &st) != 0)
        return output_refused(option, path, path,
                              errno == ENOENT ? "this link leads nowhere" : strerror(errno));
    TRY(check_writable(option, path, path));
    for (int i = 0; i < 2 && is_export; i++) {
        snprintf(target, sizeof target, "%.*s/%s", PATH_MAX - CKPT_NAME_ROOM, path, FILES[i]);
        TRY(check_output_file(option, target));
    }
    return FSDP_OK;
}

fsdp_status trainer_check_outputs(const trainer *t)
{
    const bool is_first = comm_rank(t->run.world) == 0;
    for (const path_use *use = USES; use < USES + sizeof USES / sizeof *USES; use++) {
        const char *path = path_of(t->opt, use);
        if (!path || use->how == READ || (use->how != WRITE_DIR && !is_first))
            continue; /* every rank writes to a WRITE_DIR */
        TRY(use->how == WRITE_FILE ? check_output_file(use->option, path)
                                   : check_output_dir(use->option, path, use->how == WRITE_EXPORT));
    }
    return FSDP_OK;
}
