/* test_atomic_file.c -- what is on disk before a file gets its name, and which files are never
 * touched.
 *
 * This program's fsync, rename and open replace the C library's. fsync and rename record their
 * calls. */
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "common/base/atomic_file.h"
#include "tests/unit/unit_lib.h"

static char calls[64]; /* f: a file synced, d: a directory, r: a rename */
static int failing;    /* the call that fails; 0: none */

static int note(char call)
{
    size_t n = strlen(calls);
    FSDP_ASSERT(n + 1 < sizeof calls);
    calls[n] = call;
    return call == failing;
}

int fsync(int fd)
{
    struct stat st;
    assert_int_equal(fstat(fd, &st), 0);
    return note(S_ISDIR(st.st_mode) ? 'd' : 'f') ? -1 : 0;
}

int rename(const char *from, const char *to)
{
    if (note('r'))
        return -1;
    return renameat(AT_FDCWD, from, AT_FDCWD, to);
}

/* What another run does to a file that has been made but not locked yet. Called once. */
static void (*strike)(const char *path);

int open(const char *path, int flags, ...)
{
    int fd = openat(AT_FDCWD, path, flags, 0666);
    void (*now)(const char *) = flags & O_EXCL ? strike : NULL;
    if (now) {
        strike = NULL;
        now(path);
    }
    return fd;
}

static void begin(char fails)
{
    memset(calls, 0, sizeof calls);
    failing = fails;
}

static int begin_test(void **state)
{
    begin(0);
    return 0;
}

static void assert_holds(const char *path, const char *text)
{
    char got[64] = {0};
    FILE *in = fopen(path, "rb");
    assert_non_null(in);
    size_t n = fread(got, 1, sizeof got - 1, in);
    fclose(in);
    assert_int_equal(n, strlen(text));
    assert_string_equal(got, text);
}

static fsdp_status write_text(const char *path, const char *text)
{
    atomic_file f;
    TRY(atomic_file_open(&f, path, "hint"));
    fprintf(f.out, "%s", text);
    return atomic_file_commit(&f);
}

TEST_AROUND(test_order, begin_test, NULL)
{
    OK(write_text(in_dir("a"), "one"));
    assert_string_equal(calls, "frd"); /* a power failure loses a name that is not on disk */
    assert_holds(in_dir("a"), "one");
    OK(write_text(in_dir("a"), "two"));
    assert_holds(in_dir("a"), "two");
    assert_int_equal(files_like("*.tmp"), 0);
}

TEST_AROUND(test_failures, begin_test, NULL)
{
    OK(write_text(in_dir("b"), "old"));
    for (const char *fails = "fr"; *fails; fails++) {
        begin(*fails);
        assert_int_equal(write_text(in_dir("b"), "new"), FSDP_EIO);
        assert_holds(in_dir("b"), "old");
        assert_int_equal(files_like("*.tmp"), 0);
    }
    begin('d');
    REFUSED(FSDP_EIO, write_text(in_dir("b"), "new"), "cannot sync the directory");
    begin(0);
    REFUSED(FSDP_EIO, write_text("/dev/full", "x"), "/dev/full: No space left");
    REFUSED(FSDP_EIO, write_text(in_dir("nowhere/c"), "x"), "nowhere/c");
}

TEST_AROUND(test_directory, begin_test, NULL)
{
    OK(atomic_make_dir(in_dir("made"), "hint"));
    assert_string_equal(calls, "d"); /* the directory that holds it */
    OK(atomic_make_dir(in_dir("made"), "hint"));
    assert_string_equal(calls, "d");
    REFUSED(FSDP_EIO, atomic_make_dir(in_dir("nowhere/made"), "hint"),
            "nowhere/made: No such file");
    begin('d');
    assert_int_equal(atomic_make_dir(in_dir("other"), "hint"), FSDP_EIO);
}

/* A file PATH.tmp belongs to the user and is not touched, even if it is a link. */
TEST_AROUND(test_own_names, begin_test, NULL)
{
    atomic_file f, g;
    write_bytes(in_dir("d.tmp"), "mine", 4);
    write_bytes(in_dir("target"), "kept", 4);
    assert_int_equal(symlink("target", in_dir("e.tmp")), 0);
    OK(write_text(in_dir("d"), "x"));
    OK(write_text(in_dir("e"), "x"));
    assert_holds(in_dir("d.tmp"), "mine");
    assert_holds(in_dir("target"), "kept");
    OK(atomic_file_open(&f, in_dir("g"), ""));
    OK(atomic_file_open(&g, in_dir("g"), "")); /* two runs at once */
    fprintf(f.out, "first");
    fprintf(g.out, "second");
    OK(atomic_file_commit(&f));
    assert_holds(in_dir("g"), "first");
    OK(atomic_file_commit(&g));
    assert_holds(in_dir("g"), "second");
}

TEST_AROUND(test_link, begin_test, NULL)
{
    struct stat st;
    write_bytes(in_dir("real"), "old", 3);
    assert_int_equal(symlink("real", in_dir("link")), 0);
    OK(write_text(in_dir("link"), "new"));
    assert_holds(in_dir("real"), "new");
    assert_int_equal(lstat(in_dir("link"), &st), 0);
    assert_true(S_ISLNK(st.st_mode));
}

TEST_AROUND(test_link_to_nothing, begin_test, NULL)
{
    struct stat st;
    assert_int_equal(mkdir(in_dir("far"), 0700), 0);
    assert_int_equal(symlink("far/second", in_dir("first")), 0);
    assert_int_equal(symlink("third", in_dir("far/second")), 0);
    OK(write_text(in_dir("first"), "new"));
    assert_holds(in_dir("far/third"), "new");
    assert_int_equal(lstat(in_dir("first"), &st), 0);
    assert_true(S_ISLNK(st.st_mode));
    assert_int_equal(symlink("round", in_dir("round")), 0);
    REFUSED(FSDP_EIO, write_text(in_dir("round"), "x"), "Too many levels");
}

/* In a directory like /tmp, only links of this user or of the directory's owner are followed. */
TEST_AROUND(test_link_of_others, begin_test, NULL)
{
    static const struct {
        mode_t mode;
        uid_t dir, link;
        bool followed;
    } cases[] = {{01777, 0, 5432, false},
                 {01777, 5432, 5432, true},
                 {01777, 5432, 0, true},
                 {01755, 0, 5432, true},
                 {0777, 0, 5432, true}};
    if (geteuid() != 0) {
        print_message("SKIP test_link_of_others: not root\n");
        skip();
    }
    assert_int_equal(mkdir(in_dir("like-tmp"), 0700), 0);
    assert_int_equal(symlink("like-tmp/second", in_dir("to-second")), 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_bytes(in_dir("precious"), "old", 3);
        (void)unlink(in_dir("like-tmp/second"));
        assert_int_equal(symlink("../precious", in_dir("like-tmp/second")), 0);
        assert_int_equal(lchown(in_dir("like-tmp/second"), cases[i].link, 0), 0);
        assert_int_equal(chown(in_dir("like-tmp"), cases[i].dir, 0), 0);
        assert_int_equal(chmod(in_dir("like-tmp"), cases[i].mode), 0);
        fsdp_status status =
            write_text(in_dir("to-second"), "new"); /* through this user's own link */
        assert_int_equal(status, cases[i].followed ? FSDP_OK : FSDP_EIO);
        assert_holds(in_dir("precious"), cases[i].followed ? "new" : "old");
        if (!cases[i].followed)
            assert_says("like-tmp/second: somebody else's link");
    }
}

/* Opening a pipe without a reader would wait. */
TEST_AROUND(test_pipe, begin_test, NULL)
{
    char got[8] = {0};
    assert_int_equal(mkfifo(in_dir("pipe"), 0600), 0);
    assert_int_equal(write_text(in_dir("pipe"), "x"), FSDP_EIO);
    assert_string_equal(fsdp_error_get()->hint,
                        "start what reads from it first, or pass another path");
    int fd = open(in_dir("pipe"), O_RDONLY | O_NONBLOCK);
    OK(write_text(in_dir("pipe"), "text"));
    assert_int_equal(read(fd, got, sizeof got), 4);
    assert_string_equal(got, "text");
    close(fd);
    assert_string_equal(calls, "");
}

/* A log that receives standard output is not replaced. */
TEST_AROUND(test_stdout, begin_test, NULL)
{
    fflush(stdout);
    int kept = dup(STDOUT_FILENO), fd = open(in_dir("log"), O_WRONLY | O_CREAT);
    dup2(fd, STDOUT_FILENO);
    bool said = write(STDOUT_FILENO, "a ", 2) == 2;
    fsdp_status status = write_text("/dev/stdout", "b ");
    said = said && write(STDOUT_FILENO, "c", 1) == 1;
    dup2(kept, STDOUT_FILENO);
    close(kept);
    close(fd);
    assert_true(said);
    OK(status);
    assert_holds(in_dir("log"), "a b c");
}

/* ---- what killed runs leave ------------------------------------------------------------------ */

TEST_AROUND(test_left, begin_test, NULL)
{
    static const char *const others[] = {
        "k.0123456789abcdeg.tmp",  "k.0123456789ABCDEF.tmp",  "k.0123456789abcde.tmp",
        "k.0123456789abcdef0.tmp", "k.0123456789abcdef.tmp~", "k.0123456789abcdef",
        "kk.0123456789abcdef.tmp", ".0123456789abcdef.tmp",   "k.x.0123456789abcdef.tmp"};
    atomic_file f;
    write_bytes(in_dir("k.0123456789abcdef.tmp"), "half", 4);
    write_bytes(in_dir("k.fedcba9876543210.tmp"), "half", 4);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        write_bytes(in_dir(others[i]), "mine", 4);
    assert_int_equal(symlink("k.x.0123456789abcdef.tmp", in_dir("k.0000000000000001.tmp")), 0);
    assert_int_equal(mkdir(in_dir("k.0000000000000002.tmp"), 0700), 0);
    assert_int_equal(mkfifo(in_dir("k.0000000000000003.tmp"), 0600), 0);
    write_bytes(in_dir("k.0000000000000004.tmp"), "theirs", 6);
    bool theirs = chown(in_dir("k.0000000000000004.tmp"), 12345, (gid_t)-1) == 0; /* as root */
    OK(atomic_file_open(&f, in_dir("k"), ""));
    assert_int_equal(files_like("k.0123456789abcdef.tmp") + files_like("k.fed*.tmp"), 0);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        assert_holds(in_dir(others[i]), "mine");
    assert_int_equal(files_like("k.000000000000000?.tmp"), theirs ? 4 : 3);
    atomic_file_cancel(&f);
}

/* Another run's file stays, from its creation until it gets its name. */
TEST_AROUND(test_in_use, begin_test, NULL)
{
    atomic_file f, g;
    OK(atomic_file_open(&f, in_dir("m"), ""));
    fprintf(f.out, "first");
    OK(atomic_file_open(&g, in_dir("m"), ""));
    atomic_file_cancel(&g);
    OK(atomic_file_sync(&f));
    OK(atomic_file_open(&g, in_dir("m"), ""));
    OK(atomic_file_commit(&f));
    assert_holds(in_dir("m"), "first");
    fprintf(g.out, "second");
    OK(atomic_file_commit(&g));
    assert_holds(in_dir("m"), "second");
}

static int struck;

static void remove_it(const char *path)
{
    assert_int_equal(unlink(path), 0);
    struck++;
}

/* Another run has locked the file, and is about to remove it. */
static void lock_it(const char *path)
{
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    int fd = openat(AT_FDCWD, path, O_WRONLY);
    assert_int_equal(fcntl(fd, F_OFD_SETLK, &whole), 0);
    struck = fd;
}

TEST_AROUND(test_not_locked_yet, begin_test, NULL)
{
    struck = 0;
    strike = remove_it;
    OK(write_text(in_dir("n"), "one"));
    assert_int_equal(struck, 1);
    assert_holds(in_dir("n"), "one");
    strike = lock_it;
    OK(write_text(in_dir("n"), "two"));
    assert_int_equal(files_like("n.*.tmp"), 1); /* the run with the lock removes it */
    assert_holds(in_dir("n"), "two");
    close(struck);
}

TEST_AROUND(test_cancel, begin_test, NULL)
{
    atomic_file f = {0};
    atomic_file_cancel(&f);
    OK(atomic_file_open(&f, in_dir("h"), ""));
    assert_int_equal(files_like("h.????????????????.tmp"), 1);
    OK(atomic_file_sync(&f));
    assert_int_equal(files_like("h.*.tmp"), 1);
    atomic_file_cancel(&f);
    assert_int_equal(files_like("h*"), 0);
    char path[PATH_MAX + 8];
    memset(path, 'x', sizeof path - 1);
    path[sizeof path - 1] = '\0';
    REFUSED(FSDP_EINVAL, atomic_file_open(&f, path, "shorter"), "too long");
}

int main(void)
{
    return tests_run(temp_dir_make, temp_dir_remove);
}
