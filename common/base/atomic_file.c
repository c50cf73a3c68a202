/* atomic_file.c -- see atomic_file.h. */
#include "common/base/atomic_file.h"
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A link is followed, so that its target is replaced and not the link. A device or a pipe cannot be
 * replaced: it is written in place, and tmp is "". */
static bool choose_names(atomic_file *f, const char *path)
{
    struct stat st;
    bool is_there = stat(path, &st) == 0;
    char *real = is_there ? realpath(path, NULL) : NULL;
    const char *target = real ? real : path;
    bool fits = (size_t)snprintf(f->path, sizeof f->path, "%s", target) < sizeof f->path;
    f->tmp[0] = '\0';
    if (!is_there || S_ISREG(st.st_mode))
        fits = (size_t)snprintf(f->tmp, sizeof f->tmp, "%s.tmp", target) < sizeof f->tmp && fits;
    free(real);
    return fits;
}

fsdp_status atomic_file_open(atomic_file *f, const char *path, const char *hint)
{
    f->out = NULL;
    if (!choose_names(f, path))
        return fsdp_error(FSDP_EINVAL, hint, "output path of %zu bytes is too long", strlen(path));
    const char *written = *f->tmp ? f->tmp : f->path;
    f->out = fopen(written, "we");
    if (!f->out)
        return fsdp_error(FSDP_EIO, hint, "cannot write %s: %s", written, strerror(errno));
    return FSDP_OK;
}

fsdp_status atomic_file_commit(atomic_file *f)
{
    bool in_place = !*f->tmp, written = !ferror(f->out);
    errno = EIO; /* for an earlier write that failed, whose own errno is gone */
    written = fflush(f->out) == 0 && (in_place || fsync(fileno(f->out)) == 0) && written;
    int why = errno;
    written = fclose(f->out) == 0 && written;
    f->out = NULL;
    if (written && (in_place || rename(f->tmp, f->path) == 0))
        return FSDP_OK;
    why = written ? errno : why;
    if (!in_place)
        unlink(f->tmp);
    return fsdp_error(FSDP_EIO, "free some space or pass another path", "cannot write %s: %s",
                      f->path, strerror(why));
}

void atomic_file_cancel(atomic_file *f)
{
    if (!f->out)
        return;
    fclose(f->out);
    if (*f->tmp)
        unlink(f->tmp);
    f->out = NULL;
}
