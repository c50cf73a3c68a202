/* ckpt_store.c -- see ckpt_store.h. Rank 0 alone makes, renames and removes directories in DIR. */
#include "common/checkpoint/ckpt_store.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include "common/base/atomic_file.h"

enum { LOCK_TRIES = 100, LATEST_BYTES = 32 /* with a NUL */, TMP_NAME_BYTES = 96 };

static const char HINT[] = "pass a path in a directory that exists and can be written";
static const char OTHER_HINT[] = "pass another --save directory";

static fsdp_status failed(const char *what, const char *path)
{
    return fsdp_error(FSDP_EIO, HINT, "checkpoint: %s %s: %s", what, path, strerror(errno));
}

/* ---- what is in DIR -------------------------------------------------------------------------- */

/* The N of "step-N"; -1 for any other name, "step-07" included. */
static int64_t step_of(const char *name)
{
    const bool is_number = fnmatch("step-@(0|[1-9]*([0-9]))", name, FNM_EXTMATCH) == 0;
    return is_number && strlen(name) <= strlen("step-") + 18 ? strtoll(name + 5, NULL, 10) : -1;
}

static int is_step(const struct dirent *e)
{
    return step_of(e->d_name) >= 0;
}

fsdp_status ckpt_steps(const char *dir, int64_t **steps, int *n)
{
    struct dirent **list;
    *steps = NULL;
    *n = 0;
    int n_found = scandir(dir, &list, is_step, versionsort); /* oldest first */
    if (n_found < 0)
        return errno == ENOENT ? FSDP_OK : failed("list", dir);
    *steps = calloc((size_t)n_found + 1, sizeof **steps);
    for (int i = n_found - 1; i >= 0; i--) {
        if (*steps)
            (*steps)[(*n)++] = step_of(list[i]->d_name);
        free(list[i]);
    }
    free(list);
    return *steps ? FSDP_OK : ckpt_no_memory();
}

int64_t ckpt_latest(const char *dir)
{
    char name[LATEST_BYTES] = "";
    int fd = open(ckpt_path_of(dir, "latest").text, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    ssize_t n = fd >= 0 ? read(fd, name, sizeof name - 1) : -1;
    if (fd >= 0)
        close(fd);
    if (n <= 0)
        return -1;
    name[n] = '\0';
    name[strcspn(name, "\n")] = '\0';
    return step_of(name);
}

fsdp_status ckpt_refuse_old_form(const char *dir)
{
    if (access(ckpt_path_of(dir, "meta.json").text, F_OK) != 0 ||
        access(ckpt_path_of(dir, "rank-00000.ckpt").text, F_OK) != 0)
        return FSDP_OK;
    return fsdp_error(FSDP_EINVAL,
                      "finish that run with the program that saved it, or begin anew with another "
                      "--save directory",
                      "checkpoint: %s is of the old form (meta.json, rank-00000.ckpt), which this "
                      "program does not read",
                      dir);
}

enum { HOST_PIECE_BYTES = 2048 /* the most of comm_host_gather */ };

fsdp_status ckpt_share(comm *world, void *what, size_t bytes)
{
    void *all;
    for (size_t at = 0, n; at < bytes; at += n) {
        n = bytes - at < HOST_PIECE_BYTES ? bytes - at : HOST_PIECE_BYTES;
        TRY(comm_host_gather(world, "shared", (char *)what + at, n, &all));
        memcpy((char *)what + at, all, n);
        free(all);
    }
    return FSDP_OK;
}

/* ---- removing -------------------------------------------------------------------------------- */

#define HEX_4  "[0-9a-f][0-9a-f][0-9a-f][0-9a-f]"
#define HEX_16 HEX_4 HEX_4 HEX_4 HEX_4

static const char OURS[] = "@(.|..|manifest.json?(." HEX_16 ".tmp)|"
                           "rank-[0-9][0-9][0-9][0-9][0-9].safetensors)";

/* Removes a directory, if it holds only files of a checkpoint. A symbolic link is left alone. */
static void remove_dir(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
    const struct dirent *e;
    bool all_ours = d != NULL;
    while (d && (e = readdir(d)))
        all_ours = all_ours && fnmatch(OURS, e->d_name, FNM_EXTMATCH) == 0;
    if (all_ours)
        rewinddir(d);
    while (all_ours && (e = readdir(d)))
        unlinkat(dirfd(d), e->d_name, 0); /* fails for "." and ".." */
    if (d)
        closedir(d);
    else if (fd >= 0)
        close(fd);
    if (all_ours)
        rmdir(path);
}

/* Removes the leftovers of this run's killed saves, "step-20.RUN.X.tmp", and the checkpoints that
 * remove_older renamed. If s->run is "", removes the leftovers of every run. */
static void remove_left(const ckpt_store *s)
{
    DIR *d = opendir(s->dir);
    const struct dirent *e;
    char left[512];
    snprintf(left, sizeof left, "step-+([0-9]).%s." HEX_16 ".tmp", *s->run ? s->run : HEX_16);
    while (d && (e = readdir(d)))
        if (fnmatch(left, e->d_name, FNM_EXTMATCH) == 0)
            remove_dir(ckpt_path_of(s->dir, e->d_name).text);
    if (d)
        closedir(d);
}

static void *remove_main(void *arg)
{
    remove_left(arg);
    return NULL;
}

/* Runs remove_left, with s->async in a thread of its own, because unlinking large files takes long.
 * The thread reads only s->dir and s->run. */
static void begin_remove_left(ckpt_store *s)
{
    s->is_removing = s->async && pthread_create(&s->remover, NULL, remove_main, s) == 0;
    if (!s->is_removing)
        remove_left(s);
}

static void wait_remove_left(ckpt_store *s)
{
    if (s->is_removing)
        pthread_join(s->remover, NULL);
    s->is_removing = false;
}

/* Whether this run saved DIR/step-N as that step; its manifest may be damaged. */
static bool is_own(const ckpt_store *s, const char *path, int64_t step)
{
    ckpt_manifest m;
    bool own = ckpt_manifest_read(path, &m) == FSDP_OK
                   ? strcmp(m.id.run, s->run) == 0 && m.id.step == step
                   : ckpt_file_is_of(path, s->run, step);
    ckpt_manifest_free(&m);
    return own;
}

static fsdp_status tmp_name(const ckpt_store *s, int64_t step, char out[PATH_MAX])
{
    char name[64];
    snprintf(name, sizeof name, "step-%" PRId64 ".%s", step, s->run);
    return atomic_tmp_name(ckpt_path_of(s->dir, name).text, out);
}

/* Renames this run's checkpoints before `step`, except the newest keep - 1, so that remove_left
 * removes them; under its own name a half-removed checkpoint would look like a whole one. If the
 * run was resumed at s->newest, its checkpoints between s->newest and `step` are of the abandoned
 * steps: they are removed however large s->keep is. With s->keep 0 nothing is removed. */
static void remove_older(ckpt_store *s, int64_t step)
{
    int64_t *steps, kept = 1;
    int n;
    char tmp[PATH_MAX];
    if (s->keep == 0 || ckpt_steps(s->dir, &steps, &n) != FSDP_OK)
        return;
    for (int i = 0; i < n; i++) {
        const ckpt_path path = ckpt_step_path(s->dir, steps[i]);
        if (steps[i] >= step || !is_own(s, path.text, steps[i]) ||
            (steps[i] <= s->newest && kept++ < s->keep))
            continue;
        if (tmp_name(s, steps[i], tmp) == FSDP_OK)
            (void)rename(path.text, tmp);
    }
    free(steps);
}

/* ---- opening --------------------------------------------------------------------------------- */

/* Locks DIR/lock, after at most 10 s. The file's mode is 0600, because any user who can open the
 * file could lock it. If the file system has no locks, the run goes on with a note. */
static fsdp_status take_lock(ckpt_store *s)
{
    const ckpt_path path = ckpt_path_of(s->dir, "lock");
    char holder[160] = "";
    int fd = open(path.text, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return failed("lock", path.text);
    (void)!fchmod(fd, 0600); /* older versions created it 0666; fails if another user owns it */
    s->lock = fd;
    int refused = atomic_lock(fd);
    for (int i = 0; i < LOCK_TRIES && refused == EAGAIN; i++) {
        nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
        refused = atomic_lock(fd);
    }
    if (refused == EAGAIN) {
        ssize_t n = pread(fd, holder, sizeof holder - 1, 0);
        holder[n > 0 ? n : 0] = '\0';
        holder[strcspn(holder, "\n")] = '\0';
        return fsdp_error(FSDP_EIO, "wait until it has ended or end it, or pass another --save",
                          "--save %s: is in use by %s", s->dir, *holder ? holder : "another run");
    }
    if (refused != 0)
        fprintf(stderr, "note: %s cannot be locked (%s); keep other runs away from it\n",
                fsdp_printable(path.text).text, strerror(refused));
    char host[65] = "", text[128];
    gethostname(host, sizeof host - 1);
    int n = snprintf(text, sizeof text, "process %d on host %s\n", (int)getpid(), host);
    if (ftruncate(fd, 0) != 0 || pwrite(fd, text, (size_t)n, 0) != n)
        return failed("write", path.text);
    return FSDP_OK;
}

static fsdp_status open_here(ckpt_store *s)
{
    const ckpt_path latest = ckpt_path_of(s->dir, "latest");
    struct stat st;
    TRY(ckpt_refuse_old_form(s->dir));
    /* --resume DIR would always find DIR itself, and never what is saved below it. */
    if (lstat(ckpt_path_of(s->dir, "manifest.json").text, &st) == 0)
        return fsdp_error(FSDP_EINVAL, "pass the directory that it is in",
                          "--save %s: is itself a checkpoint", s->dir);
    TRY(atomic_make_dir(s->dir, HINT));
    if (lstat(latest.text, &st) == 0 && (!S_ISREG(st.st_mode) || st.st_size >= LATEST_BYTES))
        return fsdp_error(FSDP_EIO, OTHER_HINT, "--save %s: %s is not a file that --save wrote",
                          s->dir, latest.text);
    return take_lock(s);
}

fsdp_status ckpt_store_open(ckpt_store *s, const char *dir)
{
    fsdp_status status = ckpt_plain_dir(dir, s->dir);
    if (status == FSDP_OK && comm_rank(s->world) == 0)
        status = open_here(s);
    return comm_agree(s->world, status);
}

static fsdp_status check_runs(const ckpt_store *s, int *n)
{
    int64_t *steps;
    fsdp_status status = ckpt_steps(s->dir, &steps, n);
    for (int i = 0; i < *n && status == FSDP_OK; i++) {
        const ckpt_path path = ckpt_step_path(s->dir, steps[i]);
        ckpt_manifest m;
        if (ckpt_manifest_read(path.text, &m) == FSDP_OK && strcmp(m.id.run, s->run) != 0)
            status = fsdp_error(FSDP_EIO,
                                *s->run ? "move it away, or pass another --save directory"
                                        : "pass --resume auto to go on with that run, or another "
                                          "--save directory",
                                "--save %s: %s is a checkpoint of another run", s->dir, path.text);
        ckpt_manifest_free(&m);
    }
    free(steps);
    return status;
}

/* Set s->run, after checking that DIR has no checkpoint of another run. If DIR has no checkpoint at
 * all, the leftovers of killed saves belong to no run, and a new run removes them. */
static fsdp_status settle_run(ckpt_store *s, const char *run)
{
    int n;
    uint64_t x;
    snprintf(s->run, sizeof s->run, "%s", run ? run : "");
    TRY(check_runs(s, &n));
    if (n == 0)
        remove_left(s);
    if (!*s->run && getrandom(&x, sizeof x, 0) == (ssize_t)sizeof x)
        snprintf(s->run, sizeof s->run, "%016" PRIx64, x);
    return *s->run ? FSDP_OK : failed("draw an id for", s->dir);
}

/* DIR may have been removed and created again, or moved away, since it was locked. If so, lock the
 * directory that now has DIR's name. */
static fsdp_status keep_lock(ckpt_store *s)
{
    struct stat mine, there;
    if (fstat(s->lock, &mine) == 0 && stat(ckpt_path_of(s->dir, "lock").text, &there) == 0 &&
        mine.st_ino == there.st_ino && mine.st_dev == there.st_dev)
        return FSDP_OK;
    close(s->lock);
    s->lock = 0; /* take_lock fails if DIR is gone */
    return take_lock(s);
}

/* Rank 0 creates s->tmp, and all ranks learn its name. A remove_left in progress would remove
 * s->tmp too, so rank 0 first waits for it. */
static fsdp_status make_tmp(ckpt_store *s, int64_t step)
{
    char name[TMP_NAME_BYTES] = "";
    fsdp_status status = FSDP_OK;
    if (comm_rank(s->world) == 0) {
        wait_remove_left(s);
        status = keep_lock(s);
        IF_OK(status, tmp_name(s, step, s->tmp));
        if (status == FSDP_OK && mkdir(s->tmp, 0777) != 0)
            status = failed("create", s->tmp);
        snprintf(name, sizeof name, "%s", status == FSDP_OK ? strrchr(s->tmp, '/') + 1 : "");
    }
    TRY(comm_agree(s->world, status));
    TRY(ckpt_share(s->world, name, sizeof name));
    snprintf(s->tmp, sizeof s->tmp, "%s", ckpt_path_of(s->dir, name).text);
    return FSDP_OK;
}

/* Create this rank's file, as a save does, and remove it. This fails if DIR is another directory on
 * this rank's host. */
static fsdp_status try_file(const ckpt_store *s)
{
    const ckpt_path path = ckpt_file_path(s->tmp, comm_rank(s->world));
    int fd = open(path.text, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (fd < 0 && errno == ENOENT)
        return fsdp_error(
            FSDP_EIO, "pass a --save directory that all ranks share, by its whole path",
            "--save %s: this rank does not see %s, which rank 0 has made", s->dir, s->tmp);
    fsdp_status status = fd >= 0 && fsync(fd) == 0 ? FSDP_OK : failed("write", path.text);
    if (fd >= 0) {
        close(fd);
        unlink(path.text);
    }
    return status;
}

/* Rehearse a save: rank 0 creates a directory, all ranks write to it, and rank 0 renames it. */
static fsdp_status try_out(ckpt_store *s)
{
    char to[PATH_MAX];
    TRY(make_tmp(s, 0));
    fsdp_status status = comm_agree(s->world, try_file(s));
    if (comm_rank(s->world) == 0) {
        IF_OK(status, tmp_name(s, 0, to));
        IF_OK(status, atomic_rename(s->tmp, to, OTHER_HINT));
        rmdir(status == FSDP_OK ? to : s->tmp);
        remove_left(s);
    }
    return comm_agree(s->world, status);
}

fsdp_status ckpt_store_claim(ckpt_store *s, const char *run)
{
    s->run[0] = '\0';
    TRY(comm_agree(s->world, comm_rank(s->world) == 0 ? settle_run(s, run) : FSDP_OK));
    TRY(ckpt_share(s->world, s->run, sizeof s->run));
    return try_out(s);
}

fsdp_status ckpt_store_has(const ckpt_store *s, int64_t step, bool *has)
{
    *has = access(ckpt_step_path(s->dir, step).text, F_OK) == 0;
    return ckpt_share(s->world, has, sizeof *has);
}

void ckpt_store_close(ckpt_store *s)
{
    wait_remove_left(s); /* the next holder of the lock may resume this run */
    if (s->lock > 0) {
        if (atomic_lock(s->lock) == 0) /* else another run wrote the text */
            (void)!ftruncate(s->lock, 0);
        close(s->lock);
    }
    s->lock = 0;
}

/* ---- saving ---------------------------------------------------------------------------------- */

static ckpt_id id_of(const ckpt_store *s, int64_t next_step)
{
    ckpt_id id = {.step = next_step,
                  .file = comm_rank(s->world),
                  .n_files = comm_size(s->world),
                  .n_arrays = 1 + s->optimizer->n_states,
                  .optimizer = s->optimizer,
                  .shape = ckpt_shape(s->m)};
    memcpy(id.run, s->run, sizeof id.run);
    return id;
}

fsdp_status ckpt_save_begin(ckpt_store *s, int64_t next_step, const ckpt_pieces *list,
                            ckpt_out *out)
{
    *out = (ckpt_out){0};
    FSDP_ASSERT(s->run[0] != '\0'); /* set by ckpt_store_claim */
    ckpt_id id = id_of(s, next_step);
    TRY(make_tmp(s, next_step));
    fsdp_status status = s->async ? ckpt_async_begin(s->async, s->tmp, &id, list, out)
                                  : ckpt_out_open(s->tmp, &id, s->m, list, out);
    out->of = (ckpt_origin){"checkpoint", s->m, s->optimizer, next_step, s->newest};
    return status;
}

/* Check that rank 0 sees the files of all ranks in full before it publishes them. */
static fsdp_status check_files(const ckpt_store *s, const ckpt_sum *sums)
{
    for (int i = 0; i < comm_size(s->world); i++) {
        const ckpt_path path = ckpt_file_path(s->tmp, i);
        struct stat st;
        if (lstat(path.text, &st) != 0)
            return failed("find again", path.text);
        if ((uint64_t)st.st_size != sums[i].bytes)
            return fsdp_error(FSDP_EIO, OTHER_HINT, "checkpoint: %s: got %lld bytes, expected %llu",
                              path.text, (long long)st.st_size, (unsigned long long)sums[i].bytes);
    }
    return FSDP_OK;
}

/* Rename s->tmp to DIR/step-N, and replace `latest`. An older DIR/step-N is renamed first. If this
 * run saved it, before the run was resumed at an older step, it is removed later; anything else
 * stays under its new name. */
static fsdp_status publish(ckpt_store *s, int64_t step)
{
    const ckpt_path path = ckpt_step_path(s->dir, step);
    char old[PATH_MAX] = "";
    struct stat st;
    atomic_file f;
    bool own = false;
    if (lstat(path.text, &st) == 0) {
        own = is_own(s, path.text, step);
        TRY(own ? tmp_name(s, step, old) : atomic_tmp_name(path.text, old));
        TRY(atomic_rename(path.text, old, HINT));
    }
    fsdp_status status = atomic_rename(s->tmp, path.text, HINT);
    if (status != FSDP_OK && *old)
        (void)rename(old, path.text);
    TRY(status);
    TRY(atomic_file_open_in(&f, s->dir, "latest", HINT));
    fprintf(f.out, "step-%" PRId64 "\n", step);
    TRY(atomic_file_commit(&f));
    if (*old && !own)
        fprintf(stderr, "note: what stood at %s is now %s; remove it if nobody needs it\n",
                fsdp_printable(path.text).text, fsdp_printable(old).text);
    remove_older(s, step);
    return FSDP_OK;
}

static fsdp_status end_here(ckpt_store *s, int64_t step, ckpt_sum *sums)
{
    ckpt_manifest m = {.id = id_of(s, step),
                       .about = s->about,
                       .files = sums,
                       .n_samples = step * s->batch + s->sample_offset};
    if (s->data)
        m.data = s->data->notes;
    if (s->data && s->data->mask)
        m.mask = s->data->mask->notes;
    TRY(check_files(s, sums));
    TRY(ckpt_manifest_write(s->tmp, &m)); /* the last file: its commit syncs the directory */
    return publish(s, step);
}

/* Finish a save. sum, mine: this rank's file, and the status of writing it. */
static fsdp_status end_all(ckpt_store *s, int64_t next_step, ckpt_sum sum, fsdp_status mine)
{
    void *sums = NULL;
    bool is_first = comm_rank(s->world) == 0;
    fsdp_status status = comm_agree(s->world, mine);
    IF_OK(status, comm_host_gather(s->world, "checkpoint", &sum, sizeof sum, &sums));
    if (is_first && status == FSDP_OK)
        mine = end_here(s, next_step, sums);
    IF_OK(status, comm_agree(s->world, mine));
    s->newest = status == FSDP_OK ? next_step : s->newest;
    free(sums);
    if (is_first)
        begin_remove_left(s);
    return status;
}

fsdp_status ckpt_save_end(ckpt_store *s, int64_t next_step, ckpt_out *out, fsdp_status mine)
{
    ckpt_sum sum = {0};
    if (ckpt_async_in_flight(s->async)) {
        ckpt_async_start(s->async, out, mine);
        return FSDP_OK;
    }
    if (mine == FSDP_OK)
        mine = ckpt_out_finish(out, &sum);
    ckpt_out_close(out);
    return end_all(s, next_step, sum, mine);
}

fsdp_status ckpt_save_finish(ckpt_store *s, fsdp_status mine)
{
    ckpt_id id;
    ckpt_sum sum;
    if (!ckpt_async_in_flight(s->async))
        return mine;
    const fsdp_status written = ckpt_async_wait(s->async, &id, &sum);
    return end_all(s, id.step, sum, written == FSDP_OK ? mine : written);
}
