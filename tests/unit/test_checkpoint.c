/* test_checkpoint.c -- the files of checkpoints: their format, which checkpoints are kept, what is
 * refused, and what remains when the N-th system call or allocation of a save fails.
 *
 * Some functions of this program replace the C library's, so that they can fail. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "common/model/family.h"
#include "common/checkpoint/ckpt_source.h"
#include "tests/unit/unit_lib.h"

/* ---- calls that fail ------------------------------------------------------------------------- */

static atomic_long n_calls, failing_call; /* counted from 1; failing_call 0: none */
static const char *failing_kind;          /* NULL: any of these functions */
static char failing_name[16];

static bool fails(const char *name)
{
    if (failing_kind && strcmp(name, failing_kind) != 0)
        return false;
    if (++n_calls != failing_call)
        return false;
    snprintf(failing_name, sizeof failing_name, "%s", name);
    errno = EIO;
    return true;
}

static const char *synced_path; /* ends with a slash; n_synced counts its syncs */
static int n_synced;

int fsync(int fd)
{
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = synced_path ? readlink(link, path, sizeof path - 1) : -1;
    n_synced +=
        n > 0 && strncmp(path, synced_path, (size_t)n) == 0 && strcmp(synced_path + n, "/") == 0;
    return fails("fsync") ? -1 : (int)syscall(SYS_fsync, fd);
}

int rename(const char *from, const char *to)
{
    return fails("rename") ? -1 : renameat(AT_FDCWD, from, AT_FDCWD, to);
}

static atomic_int unlink_ms; /* how long a removal takes; read again every ms */

int unlinkat(int dir, const char *name, int flags)
{
    for (int ms = 0; ms < atomic_load(&unlink_ms); ms++)
        usleep(1000);
    return (int)syscall(SYS_unlinkat, dir, name, flags);
}

static const char *watched; /* a pattern for files_like */
static int n_watched;       /* number of its files at the last mkdir */

int mkdir(const char *path, mode_t mode)
{
    n_watched = watched ? files_like(watched) : 0;
    return fails("mkdir") ? -1 : mkdirat(AT_FDCWD, path, mode);
}

ssize_t write(int fd, const void *bytes, size_t n)
{
    return fails("write") ? -1 : syscall(SYS_write, fd, bytes, n);
}

int open(const char *path, int flags, ...)
{
    return fails("open") ? -1 : openat(AT_FDCWD, path, flags, 0666);
}

static void *failing_malloc(size_t bytes)
{
    return fails("malloc") ? NULL : malloc(bytes);
}

static void fail_call(long n)
{
    n_calls = 0;
    failing_call = n;
}

/* ---- a run that saves ------------------------------------------------------------------------ */

static const model_config SMALL = {.family = "gpt2",
                                   .n_blocks = 1,
                                   .n_head = 2,
                                   .d_model = 6,
                                   .d_ff = 14,
                                   .vocab_size = 11,
                                   .max_seq_len = 7};
static device *dev;
static comm *world;
static model m;

enum { N_ARRAYS = 3 }; /* of AdamW */

static float value_of(int array, int param, size_t elem, int64_t step)
{
    return (float)(100 * array + param) + (float)elem / 64.0f + (float)step * 1000.0f;
}

static int diverged_array = -1; /* the next saves put an infinity into this array */
static ckpt_async *async;       /* for the next runs; NULL: ckpt_save_end writes */

/* Saves every parameter in two pieces, as if it crossed a shard's edge. left_out: the number of
 * last pieces that are not written. OVERLAPS: the last piece is written a second time, without its
 * first element. */
enum { OVERLAPS = -1 };
static fsdp_status save_parts(ckpt_store *s, int64_t step, int left_out)
{
    ckpt_piece pieces[64];
    ckpt_pieces list = {.pieces = pieces};
    ckpt_out out;
    for (int p = 0; p < m.n_params; p++) {
        size_t half = m.params[p].elems / 2, rest = m.params[p].elems - half;
        if (m.params[p].tied_to != NOT_TIED)
            continue;
        pieces[list.n_pieces++] = (ckpt_piece){p, 0, half, "h.0"};
        pieces[list.n_pieces++] = (ckpt_piece){p, half, rest, "h.0"};
    }
    if (left_out == OVERLAPS) {
        pieces[list.n_pieces] = pieces[list.n_pieces - 1];
        pieces[list.n_pieces].begin++;
        pieces[list.n_pieces].elems--;
    }
    list.n_pieces -= left_out;
    fsdp_status status = ckpt_save_begin(s, step, &list, &out);
    for (int k = 0; k < N_ARRAYS; k++)
        for (int i = 0; i < list.n_pieces && status == FSDP_OK; i++) {
            float values[512];
            for (size_t e = 0; e < pieces[i].elems; e++)
                values[e] = value_of(k, pieces[i].param, pieces[i].begin + e, step);
            if (k == diverged_array && i == 1)
                values[7] = -INFINITY;
            status = ckpt_out_write(&out, &pieces[i], k, values);
        }
    status = ckpt_save_end(s, step, &out, status);
    return ckpt_save_finish(s, status);
}

static ckpt_store run_of(int64_t keep)
{
    ckpt_store s = {.world = world,
                    .m = &m,
                    .optimizer = optimizer_of(OPTIMIZER_ADAMW),
                    .keep = keep,
                    .async = async};
    ckpt_about_add(&s.about, "model", true, "small");
    ckpt_about_add(&s.about, "seed", false, "1");
    return s;
}

/* Opens dir for a store. run: the run of the checkpoints in dir; NULL: there are none. */
static void claim(ckpt_store *s, const char *dir, const char *run)
{
    OK(ckpt_store_open(s, dir));
    OK(ckpt_store_claim(s, run));
}

static ckpt_store begin_run(const char *dir, int64_t keep)
{
    ckpt_store s = run_of(keep);
    claim(&s, dir, NULL);
    return s;
}

/* Asserts that a run finds the checkpoint of `step` in dir, and that nothing is missing in it. */
static void assert_step(const char *dir, bool automatic, int64_t step)
{
    ckpt_source src;
    const ckpt_store now = run_of(0);
    OK(ckpt_source_open(&now, dir, automatic, NULL, &src));
    assert_true(*src.dir);
    assert_int_equal(src.manifest.id.step, step);
    for (int k = 0; k < N_ARRAYS; k++)
        for (int p = 0; p < m.n_params; p++) {
            size_t n;
            const ckpt_entry *e = ckpt_source_find(&src, k, p, &n);
            assert_int_equal(n, m.params[p].tied_to == NOT_TIED ? 2 : 0);
            for (size_t i = 0; i < n; i++) {
                float got[512];
                OK(ckpt_source_read(&src, &e[i], e[i].piece.begin, (size_t)e[i].piece.elems, got));
                for (size_t j = 0; j < e[i].piece.elems; j++)
                    assert_true(got[j] == value_of(k, p, e[i].piece.begin + j, step));
            }
        }
    ckpt_source_close(&src);
}

/* Asserts that a run cannot resume from dir. change: the value of --resume-change. */
static void refuses(const ckpt_store *now, const char *dir, bool automatic, const char *change,
                    const char *part)
{
    ckpt_source src;
    REFUSED(FSDP_EINVAL, ckpt_source_open(now, dir, automatic, change, &src), part);
    ckpt_source_close(&src);
}

/* ---- tests ----------------------------------------------------------------------------------- */

TEST(test_form)
{
    const char *dir = in_dir("form");
    ckpt_source src;
    const ckpt_store now = run_of(0);
    OK(ckpt_source_open(&now, dir, true, NULL, &src));
    assert_string_equal(src.dir, ""); /* no checkpoint yet */
    struct stat lock;
    assert_int_equal(mkdir(dir, 0777), 0);
    assert_int_equal(chmod(write_bytes(in_dir("form/lock"), "", 0), 0644), 0);
    ckpt_store s = begin_run(in_dir("form"), 2);
    assert_int_equal(stat(in_dir("form/lock"), &lock), 0);
    assert_int_equal(lock.st_mode & 0777, 0600); /* whoever can read the file can lock it */
    ckpt_store_close(&s);
    assert_int_equal(unlink(in_dir("form/lock")), 0);
    assert_int_equal(rmdir(dir), 0);
    synced_path = in_dir("");
    s = begin_run(in_dir("form//"), 2);
    assert_int_equal(stat(in_dir("form/lock"), &lock), 0);
    assert_int_equal(lock.st_mode & 0777, 0600);
    synced_path = NULL;
    assert_int_equal(n_synced, 1); /* the directory that holds DIR */
    OK(save_parts(&s, 7, 0));
    assert_int_equal(files_like("form/*"), 3);
    assert_int_equal(files_like("form/step-7/*"), 2);
    assert_int_equal(ckpt_latest(dir), 7);
    assert_step(dir, false, 7);
    assert_step(in_dir("form/step-7/"), false, 7);
    safetensors f; /* anybody can read it */
    OK(safetensors_open(in_dir("form/step-7/rank-00000.safetensors"), "", &f));
    assert_int_equal(f.data_begin % 8, 0);
    assert_non_null(cJSON_GetObjectItemCaseSensitive(f.header, "transformer.wte.weight@33.v"));
    safetensors_close(&f);
    ckpt_store_close(&s);
}

TEST(test_keep)
{
    const char *dir = in_dir("keep");
    ckpt_store s = begin_run(dir, 2);
    assert_int_equal(mkdir(in_dir("keep/step-2.mine"), 0777), 0);
    assert_int_equal(mkdir(in_dir("keep/step-02"), 0777), 0);
    OK(save_parts(&s, 900, 0)); /* somebody renames it */
    assert_int_equal(rename(in_dir("keep/step-900"), in_dir("keep/step-0")), 0);
    for (int64_t step = 1; step <= 4; step++)
        OK(save_parts(&s, step, 0));
    assert_int_equal(files_like("keep/step-[1-9]"), 2);
    assert_int_equal(files_like("keep/step-0"), 1);
    assert_int_equal(files_like("keep/step-2.mine"), 1);
    assert_int_equal(files_like("keep/step-02"), 1);
    write_bytes(in_dir("keep/step-3/notes"), "x", 1);
    s.keep = 1;
    OK(save_parts(&s, 5, 0));
    assert_int_equal(files_like("keep/step-[1-9]"), 1);
    assert_int_equal(files_like("keep/*/notes"),
                     1); /* files of others in the checkpoint's folder stay with it */
    s.keep = 0;
    for (int64_t step = 6; step <= 9; step++)
        OK(save_parts(&s, step, 0));
    assert_int_equal(files_like("keep/step-[1-9]"), 5);
    assert_step(dir, false, 9);
    ckpt_store_close(&s);
}

/* A run resumed from an older checkpoint saves steps that exist already. */
TEST(test_again)
{
    const char *dir = in_dir("again");
    ckpt_store s = begin_run(dir, 0);
    OK(save_parts(&s, 2, 0));
    OK(save_parts(&s, 4, 0));
    OK(save_parts(&s, 3, 0));
    assert_step(dir, true, 3); /* the step in `latest`, not the highest */
    OK(save_parts(&s, 4, 0));
    assert_int_equal(files_like("again/*"), 5);
    write_bytes(in_dir("again/step-4/manifest.json"), "{", 1); /* damaged, but of this run */
    OK(save_parts(&s, 4, 0));
    assert_int_equal(files_like("again/*"), 5);
    assert_int_equal(mkdir(in_dir("again/step-6"), 0777), 0);
    write_bytes(in_dir("again/step-6/rank-00000.safetensors"), "mine", 4);
    assert_int_equal(mkdir(in_dir("elsewhere"), 0777), 0);
    write_bytes(in_dir("elsewhere/rank-00000.safetensors"), "mine", 4);
    assert_int_equal(symlink("../elsewhere", in_dir("again/step-8")), 0);
    OK(save_parts(&s, 6, 0));
    OK(save_parts(&s, 8, 0));
    assert_step(dir, false, 8);
    assert_int_equal(files_like("again/step-6.*.tmp/rank-00000.safetensors"), 1);
    assert_int_equal(files_like("elsewhere/rank-00000.safetensors"), 1);
    ckpt_store_close(&s);
}

TEST(test_runs)
{
    const char *dir = in_dir("runs");
    ckpt_store a = begin_run(dir, 2), b = run_of(2);
    OK(save_parts(&a, 2, 0));
    ckpt_store_close(&a);
    OK(ckpt_store_open(&b, dir));
    REFUSED(FSDP_EIO, ckpt_store_claim(&b, NULL), "step-2 is a checkpoint of another run");
    assert_int_equal(ckpt_store_claim(&b, "0123456789abcdef"), FSDP_EIO);
    OK(ckpt_store_claim(&b, a.run));
    assert_string_equal(a.run, b.run);
    ckpt_store_close(&b);
    /* a file of another run in the place of this run's file */
    ckpt_store c = begin_run(in_dir("runs-c"), 2);
    OK(save_parts(&c, 2, 0));
    ckpt_store_close(&c);
    assert_int_equal(rename(in_dir("runs-c/step-2/rank-00000.safetensors"),
                            in_dir("runs/step-2/rank-00000.safetensors")),
                     0);
    refuses(&b, dir, false, NULL, "rank-00000.safetensors is damaged");
    ckpt_entries list = {0};
    const ckpt_id other = {.run = "0123456789abcdef",
                           .step = 2,
                           .n_files = 1,
                           .n_arrays = N_ARRAYS,
                           .optimizer = optimizer_of(OPTIMIZER_ADAMW),
                           .shape = ckpt_shape(&m)};
    REFUSED(FSDP_EINVAL, ckpt_file_list(in_dir("runs/step-2"), &other, &m, &list), "run: got ");
}

static int files_in(const char *name, const char *pattern)
{
    char path[64];
    snprintf(path, sizeof path, "%s/%s", name, pattern);
    return files_like(path);
}

/* A run resumed from an older checkpoint. Newer checkpoints no longer belong to its history: they
 * stay until the run has passed their steps, and do not count as kept ones. */
TEST(test_went_back)
{
    const char *name = async ? "async-back" : "back", *dir = in_dir(name);
    ckpt_store s = begin_run(dir, 2), back = run_of(2);
    for (int64_t step = 4; step <= 8; step += 2)
        OK(save_parts(&s, step, 0));
    ckpt_store_close(&s);
    back.newest = 6;
    claim(&back, dir, s.run);
    OK(save_parts(&back, 7, 0));
    assert_int_equal(files_in(name, "step-[678]"), 3);
    OK(save_parts(&back, 10, 0));
    assert_int_equal(files_in(name, "step-*[0-9]"), 2); /* a thread may still remove the others */
    assert_int_equal(files_in(name, "step-7"), 1);
    OK(save_parts(&back, 12, 0));
    assert_int_equal(files_in(name, "step-7"), 0);
    assert_step(dir, false, 12);
    ckpt_store_close(&back);
    assert_int_equal(files_in(name, "step-*"), 2);
}

/* Somebody removes a file during the save: the save publishes nothing and removes nothing. A thread
 * that writes has written the file by then. */
TEST(test_file_gone)
{
    const char *dir = in_dir(async ? "async-gone" : "gone");
    ckpt_store s = begin_run(dir, 1);
    ckpt_out out;
    OK(save_parts(&s, 2, 0));
    OK(ckpt_save_begin(&s, 4, &(ckpt_pieces){.n_pieces = 0}, &out));
    if (async) {
        OK(ckpt_save_end(&s, 4, &out, FSDP_OK));
        while (ckpt_async_writes(async))
            usleep(1000);
    }
    assert_int_equal(unlink(ckpt_file_path(s.tmp, 0).text), 0);
    REFUSED(FSDP_EIO, async ? ckpt_save_finish(&s, FSDP_OK) : ckpt_save_end(&s, 4, &out, FSDP_OK),
            "rank-00000.safetensors: No such file");
    assert_step(dir, false, 2);
    ckpt_store_close(&s);
}

/* Elements that come twice make a checkpoint unusable, even if the last piece ends in the right
 * place. */
TEST(test_overlap)
{
    const char *dir = in_dir("twice");
    ckpt_store s = begin_run(dir, 0);
    OK(save_parts(&s, 2, 0));
    OK(save_parts(&s, 4, OVERLAPS));
    refuses(&s, dir, false, NULL, "array 0: elements are missing or come twice");
    assert_step(dir, true, 2);
    ckpt_store_close(&s);
}

/* A run was killed before its first checkpoint was published: the next run removes the
 * leftovers. */
TEST(test_killed_at_first)
{
    const char *tmp = "first/step-2.00112233445566aa.0123456789abcdef.tmp";
    char file[96];
    snprintf(file, sizeof file, "%s/rank-00000.safetensors", tmp);
    assert_int_equal(mkdir(in_dir("first"), 0777) | mkdir(in_dir(tmp), 0777), 0);
    write_bytes(in_dir(file), "half", 4);
    ckpt_store s = begin_run(in_dir("first"), 1);
    assert_int_equal(files_like("first/*"), 1);
    ckpt_store_close(&s);
}

TEST(test_no_tensor)
{
    const ckpt_id id = {.run = "0123456789abcdef",
                        .n_files = 1,
                        .n_arrays = N_ARRAYS,
                        .optimizer = optimizer_of(OPTIMIZER_ADAMW)};
    ckpt_out out;
    ckpt_sum sum;
    safetensors f;
    ckpt_entries list = {0};
    assert_int_equal(mkdir(in_dir("empty"), 0777), 0);
    OK(ckpt_out_open(in_dir("empty"), &id, &m, &(ckpt_pieces){.n_pieces = 0}, &out));
    OK(ckpt_out_finish(&out, &sum));
    ckpt_out_close(&out);
    OK(safetensors_open(in_dir("empty/rank-00000.safetensors"), "", &f));
    assert_int_equal(f.data_begin, sum.bytes);
    assert_int_equal(f.data_begin % 8, 0);
    safetensors_close(&f);
    OK(ckpt_file_list(in_dir("empty"), &id, &m, &list));
    assert_int_equal(list.n, 0);
}

TEST(test_refused)
{
    const char *dir = in_dir("refused");
    ckpt_store s = begin_run(dir, 2), now = run_of(0);
    ckpt_source src;
    OK(save_parts(&s, 2, 0));
    snprintf(now.about.facts[1].value, sizeof now.about.facts[1].value, "2");
    refuses(&now, dir, true, NULL, "seed: saved with 1, this run has 2");
    assert_non_null(strstr(fsdp_error_get()->hint, "--resume-change seed "));
    refuses(&now, dir, true, "data,see", "seed: saved with 1");
    OK(ckpt_source_open(&now, dir, true, "data,seed", &src));
    ckpt_source_close(&src);
    snprintf(now.about.facts[0].value, sizeof now.about.facts[0].value, "large");
    refuses(&now, dir, true, "seed,model", "model: saved with small, this run has large");
    now = run_of(0);
    now.optimizer = optimizer_of(OPTIMIZER_SGD);
    refuses(&now, dir, true, NULL, "3 arrays for each where this run has 1");
    OK(save_parts(&s, 3, 1)); /* a piece is missing */
    refuses(&s, dir, false, NULL, "elements are missing or come twice");
    assert_step(dir, true, 2);
    ckpt_store_close(&s);
}

/* ---- training that diverged ------------------------------------------------------------------ */

/* Step 4 has an infinity in an array: the save is refused, and nothing is published or removed. */
static void save_diverged(ckpt_store *s, const char *dir, int array)
{
    char part[128];
    snprintf(part, sizeof part,
             "checkpoint of step 4: training has diverged: unit h.0, transformer.wte.weight.%c: "
             "element 40 is -inf",
             "pmv"[array]);
    diverged_array = array;
    REFUSED(FSDP_EINVAL, save_parts(s, 4, 0), part);
    diverged_array = -1;
    assert_step(dir, false, 2);
}

TEST(test_diverged)
{
    const char *dir = in_dir("diverged");
    ckpt_store s = begin_run(dir, 1);
    OK(save_parts(&s, 2, 0));
    for (int k = 0; k < N_ARRAYS; k++) {
        save_diverged(&s, dir, k);
        assert_non_null(strstr(fsdp_error_get()->hint, "resume from step 2, which is finite"));
    }
    assert_int_equal(files_like("diverged/*"), 3);
    ckpt_store_close(&s);
}

/* Puts a NaN into the checkpoint at `dir`, as if saved by a program that did not check. */
static void make_diverged(const char *dir, int array)
{
    ckpt_manifest saved;
    ckpt_entries list = {0};
    uint64_t at;
    OK(ckpt_manifest_read(dir, &saved));
    saved.id.optimizer = optimizer_of(OPTIMIZER_ADAMW);
    OK(ckpt_file_list(dir, &saved.id, &m, &list));
    const ckpt_entry *e = list.list;
    while (e->array != array || e->piece.begin == 0)
        e++;
    const ckpt_path path = ckpt_file_path(dir, 0);
    int fd = open(path.text, O_WRONLY);
    assert_int_equal(pwrite(fd, &(float){NAN}, 4, (off_t)e->at + 4), 4);
    close(fd);
    OK(ckpt_file_sum(path.text, &saved.files[0], &at));
    assert_int_equal(at, e->at + 4);
    OK(ckpt_manifest_write(dir, &saved));
    ckpt_manifest_free(&saved);
    free(list.list);
}

/* Checkpoints of programs that did not check. A run finds the newest finite one, and keeps it until
 * the run has passed the others. */
TEST(test_diverged_before)
{
    const char *dir = in_dir("before");
    ckpt_store s = begin_run(dir, 3), now = run_of(1);
    for (int64_t step = 2; step <= 6; step += 2)
        OK(save_parts(&s, step, 0));
    ckpt_store_close(&s);
    make_diverged(in_dir("before/step-6"), 2);
    make_diverged(in_dir("before/step-4"), 0);
    refuses(&now, dir, false, NULL,
            "step-6 is of training that diverged: transformer.wte.weight, array 2: element 34 is "
            "not finite");
    assert_step(dir, true, 2);
    now.newest = 2;
    claim(&now, dir, s.run);
    diverged_array = 1;
    assert_int_equal(save_parts(&now, 3, 0), FSDP_EINVAL);
    diverged_array = -1;
    assert_step(dir, true, 2);
    OK(save_parts(&now, 6, 0));
    assert_step(dir, false, 6);
    ckpt_store_close(&now);
}

/* ---- failures -------------------------------------------------------------------------------- */

/* Saves step `before`, then step 4 (which may be the same step), where the N-th call fails. Either
 * the save reports an error, or the checkpoint is complete. Returns false if there is no N-th
 * call. */
static bool fail_save(const char *name, int64_t before, long n)
{
    const char *dir = in_dir(name);
    ckpt_store s = begin_run(dir, 1), again = run_of(1);
    OK(save_parts(&s, before, 0));
    fail_call(n);
    fsdp_status status = save_parts(&s, 4, 0);
    ckpt_store_close(&s); /* a thread may still remove files until then */
    bool failed = n_calls >= n;
    fail_call(0);
    if (status == FSDP_OK)
        assert_step(dir, false, 4);
    else
        assert_true(ckpt_latest(dir) == before || ckpt_latest(dir) == 4);
    assert_step(dir, true, ckpt_latest(dir));
    /* the run resumes from there, and the leftovers are gone */
    claim(&again, dir, s.run);
    OK(save_parts(&again, 6, 0));
    ckpt_store_close(&again);
    assert_int_equal(files_in(name, "*"), 3);
    assert_step(dir, false, 6);
    return failed;
}

/* Each call of a save fails once. Returns the number of calls. */
static long fail_saves(const char *name, int64_t before)
{
    char folder[32];
    for (long n = 1;; n++) {
        snprintf(folder, sizeof folder, "%s-%ld", name, n);
        if (!fail_save(folder, before, n))
            return n - 1;
    }
}

TEST(test_system_calls)
{
    const long n_failed = fail_saves(async ? "async" : "calls", 2);
    assert_true(n_failed > 12);
    print_message("%ld system calls of a save failed, one after the other\n", n_failed);
}

static void begin_async(void)
{
    OK(ckpt_async_open(device_compute_stream(dev), N_ARRAYS * m.n_param_elems, &async));
}

static void end_async(void)
{
    ckpt_async_close(async);
    async = NULL;
}

/* Calls of the thread that writes fail too, and the thread finds values that are not finite. */
TEST(test_async)
{
    begin_async();
    test_system_calls(state);
    test_went_back(state);
    test_file_gone(state);
    ckpt_store s = begin_run(in_dir("async"), 1);
    OK(save_parts(&s, 2, 0));
    save_diverged(&s, in_dir("async"), 2);
    ckpt_store_close(&s);
    end_async();
}

/* A rank fails while a thread writes the checkpoint: it is not published, and nothing is left. */
TEST(test_failed_in_flight)
{
    begin_async();
    const char *dir = in_dir("failed");
    ckpt_store s = begin_run(dir, 1);
    ckpt_out out;
    OK(save_parts(&s, 2, 0));
    OK(ckpt_save_begin(&s, 4, &(ckpt_pieces){.n_pieces = 0}, &out));
    OK(ckpt_save_end(&s, 4, &out, FSDP_OK));
    REFUSED(FSDP_EIO, ckpt_save_finish(&s, fsdp_error(FSDP_EIO, "-", "the loss file")),
            "the loss file");
    assert_step(dir, false, 2);
    ckpt_store_close(&s);
    assert_int_equal(files_like("failed/*.tmp"), 0);
    end_async();
}

/* A save ends before the files of old checkpoints are removed. The next save waits for the removal,
 * and so does closing. */
TEST(test_removal)
{
    begin_async();
    ckpt_store s = begin_run(in_dir("removal"), 1);
    OK(save_parts(&s, 2, 0));
    atomic_store(&unlink_ms, 20000);
    OK(save_parts(&s, 4, 0));
    assert_int_equal(files_like("removal/step-2"), 0);
    assert_int_equal(files_like("removal/step-2.*.tmp"), 1);
    atomic_store(&unlink_ms, 50);
    watched = "removal/step-2.*.tmp";
    n_watched = -1;
    OK(save_parts(&s, 6, 0));
    assert_int_equal(n_watched, 0);
    watched = NULL;
    ckpt_store_close(&s);
    assert_int_equal(files_like("removal/*"), 3);
    assert_step(in_dir("removal"), false, 6);
    atomic_store(&unlink_ms, 0);
    end_async();
}

/* The old checkpoint of the same step is moved away, and comes back after a failure. */
TEST(test_renames)
{
    failing_kind = "rename";
    assert_int_equal(fail_saves("renames", 4), 4); /* the manifest, the old, the new, latest */
    failing_kind = NULL;
}

/* A manifest is made of cJSON's allocations, each of which fails once. */
TEST(test_manifest_memory)
{
    ckpt_sum sums[2] = {{100, 7}, {200, 8}};
    ckpt_manifest manifest = {.id = {.run = "0123456789abcdef",
                                     .step = 4,
                                     .n_files = 2,
                                     .n_arrays = N_ARRAYS,
                                     .optimizer = optimizer_of(OPTIMIZER_ADAMW),
                                     .shape = 9},
                              .files = sums};
    ckpt_about_add(&manifest.about, "model", true, "small");
    const char *dir = in_dir("memory");
    assert_int_equal(mkdir(dir, 0777), 0);
    cJSON_InitHooks(&(cJSON_Hooks){.malloc_fn = failing_malloc, .free_fn = free});
    fsdp_status status = FSDP_ENOMEM;
    long n = 0;
    while (status != FSDP_OK) {
        fail_call(++n);
        status = ckpt_manifest_write(dir, &manifest);
        bool failed = n_calls >= n;
        fail_call(0);
        ckpt_manifest got;
        assert_true(failed || status == FSDP_OK);
        if (status != FSDP_OK)
            continue;
        OK(ckpt_manifest_read(dir, &got));
        assert_int_equal(got.id.step, 4);
        assert_int_equal(got.files[1].xxh3, 8);
        ckpt_manifest_free(&got);
    }
    cJSON_InitHooks(NULL);
    assert_true(n > 60);
    assert_int_equal(files_like("memory/*"), 1);
    print_message("%ld allocations and system calls of a manifest failed\n", n - 1);
}

static int open_all(void **state)
{
    OK(device_open(&(device_config){.backend = &device_cpu, .n_threads = 1}, &dev));
    OK(comm_open(dev, &(comm_config){.backend = COMM_SELF}, &world));
    OK(model_create(&SMALL, &m));
    return temp_dir_make(state);
}

static int close_all(void **state)
{
    model_free(&m);
    comm_close(world);
    device_close(dev);
    return temp_dir_remove(state);
}

int main(void)
{
    return tests_run(open_all, close_all);
}
