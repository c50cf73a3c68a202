/* atomic_file.c -- see atomic_file.h. */
#include "common/base/atomic_file.h"
#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

fsdp_status atomic_file_open(atomic_file *f, const char *path, const char *hint)
{
    f->out = NULL;
    if ((size_t)snprintf(f->path, sizeof f->path, "%s", path) >= sizeof f->path ||
        (size_t)snprintf(f->tmp, sizeof f->tmp, "%s.tmp", path) >= sizeof f->tmp)
        return fsdp_error(FSDP_EINVAL, hint, "output path of %zu bytes is too long", strlen(path));
    f->out = fopen(f->tmp, "we");
    if (!f->out)
        return fsdp_error(FSDP_EIO, hint, "cannot write %s: %s", f->tmp, strerror(errno));
    return FSDP_OK;
}

fsdp_status atomic_file_commit(atomic_file *f)
{
    bool written = fflush(f->out) == 0 && fsync(fileno(f->out)) == 0;
    int why = errno;
    written = fclose(f->out) == 0 && written;
    f->out = NULL;
    if (written && rename(f->tmp, f->path) == 0)
        return FSDP_OK;
    why = written ? errno : why;
    unlink(f->tmp);
    return fsdp_error(FSDP_EIO, "free some space or pass another path", "cannot write %s: %s",
                      f->path, strerror(why));
}

void atomic_file_cancel(atomic_file *f)
{
    if (!f->out)
        return;
    fclose(f->out);
    unlink(f->tmp);
    f->out = NULL;
}
