/* atomic_file.c -- see atomic_file.h. */
#include "common/base/atomic_file.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TMP_BYTES = 21 /* length of ".X.tmp" */, MAX_LINKS = 40 /* as many as Linux follows */ };

static fsdp_status too_long(const char *path, const char *hint)
{
    return fsdp_error(FSDP_EINVAL, hint, "output path of %zu bytes is too long", strlen(path));
}

static fsdp_status cannot_write(const char *path, const char *hint, int why)
{
    if (why == ENOSPC || why == EDQUOT || why == EFBIG)
        hint = "free some space or pass another path";
    if (why == ENXIO)
        hint = "start what reads from it first, or pass another path";
    return fsdp_error(FSDP_EIO, hint, "cannot write %s: %s", path, strerror(why));
}

fsdp_status atomic_tmp_name(const char *path, char out[PATH_MAX])
{
    uint64_t x;
    if (getrandom(&x, sizeof x, 0) != (ssize_t)sizeof x)
        return fsdp_error(FSDP_EIO, "let this process call getrandom",
                          "cannot draw a name for %s: %s", path, strerror(errno));
    if (snprintf(out, PATH_MAX, "%s.%016llx.tmp", path, (unsigned long long)x) >= PATH_MAX)
        return too_long(path, "pass a shorter path");
    return FSDP_OK;
}

/* Syncs the directory that holds path. */
static fsdp_status sync_parent(const char *path, const char *hint)
{
    char copy[PATH_MAX];
    if ((size_t)snprintf(copy, sizeof copy, "%s", path) >= sizeof copy)
        return too_long(path, hint);
    const char *dir = dirname(copy);
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    /* EINVAL: a file system that cannot sync a directory */
    bool ok = fd >= 0 && (fsync(fd) == 0 || errno == EINVAL);
    int why = errno;
    if (fd >= 0)
        close(fd);
    return ok ? FSDP_OK
              : fsdp_error(FSDP_EIO, hint, "cannot sync the directory %s: %s", dir, strerror(why));
}

fsdp_status atomic_rename(const char *from, const char *to, const char *hint)
{
    if (rename(from, to) != 0)
        return fsdp_error(FSDP_EIO, hint, "cannot rename %s to %s: %s", from, to, strerror(errno));
    return sync_parent(to, hint);
}

fsdp_status atomic_make_dir(const char *dir, const char *hint)
{
    if (mkdir(dir, 0777) == 0)
        return sync_parent(dir, hint);
    return errno == EEXIST ? FSDP_OK
                           : fsdp_error(FSDP_EIO, hint, "cannot make the directory %s: %s", dir,
                                        strerror(errno));
}

int atomic_lock(int fd)
{
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    if (fcntl(fd, F_OFD_SETLK, &whole) == 0)
        return 0;
    return errno == EACCES ? EAGAIN : errno;
}

/* ---- temporary files ------------------------------------------------------------------------- */

/* Removes files PATH.X.tmp of this user that nobody has locked: their writers have ended. */
static void remove_left(const char *path)
{
    char dir[PATH_MAX];
    struct stat st;
    const struct dirent *e;
    const char *base = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
    const size_t n = strlen(base);
    memcpy(dir, path, strlen(path) + 1);
    DIR *d = n > 0 ? opendir(dirname(dir)) : NULL;
    while (d && (e = readdir(d))) {
        int end = 0;
        if (strncmp(e->d_name, base, n) == 0)
            (void)!sscanf(e->d_name + n, ".%*16[0-9a-f].tmp%n", &end);
        if (end != TMP_BYTES || e->d_name[n + TMP_BYTES])
            continue;
        int fd = openat(dirfd(d), e->d_name, O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
        if (fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_uid == geteuid() &&
            atomic_lock(fd) == 0)
            unlinkat(dirfd(d), e->d_name, 0);
        if (fd >= 0)
            close(fd);
    }
    if (d)
        closedir(d);
}

/* Creates and locks f->tmp. Another run's remove_left may see the file before it is locked, and
 * remove it; then this function tries another name. */
static fsdp_status create_tmp(atomic_file *f, int *fd)
{
    struct stat st;
    for (;;) {
        TRY(atomic_tmp_name(f->path, f->tmp));
        *fd = open(f->tmp, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
        if (*fd < 0)
            return cannot_write(f->tmp, f->hint, errno);
        if (atomic_lock(*fd) != EAGAIN && fstat(*fd, &st) == 0 && st.st_nlink > 0)
            return FSDP_OK;
        close(*fd);
    }
}

/* ---- files ----------------------------------------------------------------------------------- */

/* Whether this process may follow a link. In a directory where anybody can create links, such as
 * /tmp, the link must belong to this user or to the directory's owner. The kernel has the same rule
 * [proc(5): protected_symlinks], but does not apply it here, because readlink follows no link. */
static bool may_follow(int link_fd, const char *path)
{
    char dir[PATH_MAX];
    struct stat link, in;
    memcpy(dir, path, strlen(path) + 1);
    if (fstat(link_fd, &link) != 0 || stat(dirname(dir), &in) != 0)
        return false;
    const mode_t shared = S_ISVTX | S_IWOTH;
    return (in.st_mode & shared) != shared || link.st_uid == geteuid() || link.st_uid == in.st_uid;
}

/* link = the target of path, *bytes long. FSDP_OK with *bytes < 0: path is not a link. */
static fsdp_status read_link(const char *path, const char *hint, char link[PATH_MAX],
                             ssize_t *bytes)
{
    int fd = open(path, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 && errno != ENOENT && errno != ENOTDIR)
        return cannot_write(path, hint, errno);
    *bytes = fd >= 0 ? readlinkat(fd, "", link, PATH_MAX - 1) : -1;
    const bool may = *bytes < 0 || may_follow(fd, path);
    if (fd >= 0)
        close(fd);
    if (*bytes >= 0)
        link[*bytes] = '\0';
    return may ? FSDP_OK
               : fsdp_error(FSDP_EIO, hint,
                            "cannot write %s: somebody else's link, in a directory where anybody "
                            "can make links",
                            path);
}

fsdp_status atomic_target(const char *path, const char *hint, char out[PATH_MAX])
{
    char link[PATH_MAX], next[2 * PATH_MAX];
    int n = snprintf(out, PATH_MAX, "%s", path);
    for (int i = 0; i < MAX_LINKS && n < PATH_MAX; i++) {
        ssize_t bytes;
        TRY(read_link(out, hint, link, &bytes));
        if (bytes < 0)
            return FSDP_OK;
        n = *link == '/' ? snprintf(next, sizeof next, "%s", link)
                         : snprintf(next, sizeof next, "%s/%s", dirname(out), link);
        if (n < PATH_MAX)
            memcpy(out, next, (size_t)n + 1);
    }
    return n < PATH_MAX ? cannot_write(path, hint, ELOOP) : too_long(path, hint);
}

/* Devices and pipes cannot be replaced, and standard output carries other text too, so they are
 * written in place. With O_NONBLOCK, a pipe without a reader is an error instead of a wait. */
static fsdp_status open_in_place(const char *path, bool is_stdout, const char *hint, int *fd)
{
    *fd = is_stdout ? fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3)
                    : open(path, O_WRONLY | O_CLOEXEC | O_NONBLOCK);
    bool ok = *fd >= 0 && (is_stdout || fcntl(*fd, F_SETFL, 0) == 0);
    return ok ? FSDP_OK : cannot_write(path, hint, errno);
}

static fsdp_status open_written(atomic_file *f, const char *path, int *fd)
{
    struct stat st, out;
    bool is_there = stat(path, &st) == 0;
    bool is_stdout = is_there && fstat(STDOUT_FILENO, &out) == 0 && out.st_ino == st.st_ino &&
                     out.st_dev == st.st_dev;
    TRY(atomic_target(path, f->hint, f->path));
    if (is_stdout || (is_there && !S_ISREG(st.st_mode)))
        return open_in_place(path, is_stdout, f->hint, fd);
    struct statx at;
    if (statx(AT_FDCWD, f->path, 0, STATX_TYPE, &at) == 0 &&
        at.stx_attributes & STATX_ATTR_MOUNT_ROOT)
        return fsdp_error(FSDP_EIO, "mount its directory instead, or pass another path",
                          "cannot write %s: a file that is a mount point cannot be replaced",
                          f->path);
    remove_left(f->path);
    return create_tmp(f, fd);
}

fsdp_status atomic_file_open(atomic_file *f, const char *path, const char *hint)
{
    int fd = -1;
    f->out = NULL;
    f->hint = hint;
    f->tmp[0] = '\0';
    TRY(open_written(f, path, &fd));
    f->out = fdopen(fd, "w");
    if (f->out)
        return FSDP_OK;
    close(fd);
    atomic_file_cancel(f);
    return fsdp_error(FSDP_ENOMEM, "", "no host memory to write %s", f->path);
}

fsdp_status atomic_file_open_in(atomic_file *f, const char *dir, const char *name, const char *hint)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", dir, name); /* atomic_file_open refuses a truncated path */
    return atomic_file_open(f, path, hint);
}

fsdp_status atomic_file_sync(atomic_file *f)
{
    bool in_place = !*f->tmp, written = !ferror(f->out);
    errno = EIO; /* the errno of an earlier failed write is lost */
    if (fflush(f->out) == 0 && (in_place || fsync(fileno(f->out)) == 0) && written)
        return FSDP_OK;
    int why = errno;
    atomic_file_cancel(f);
    return cannot_write(f->path, f->hint, why);
}

fsdp_status atomic_file_commit(atomic_file *f)
{
    TRY(atomic_file_sync(f));
    fsdp_status status = *f->tmp ? atomic_rename(f->tmp, f->path, f->hint) : FSDP_OK;
    if (status == FSDP_OK)
        f->tmp[0] = '\0';
    atomic_file_cancel(f);
    return status;
}

void atomic_file_cancel(atomic_file *f)
{
    if (f->out)
        fclose(f->out);
    f->out = NULL;
    if (*f->tmp)
        unlink(f->tmp);
    *f->tmp = '\0';
}
