/* read_file.c -- see read_file.h. */
#include "common/base/read_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

const char *open_regular(const char *path, int *fd, size_t *file_bytes)
{
    struct stat st;
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (*fd >= 0 && fstat(*fd, &st) == 0 && S_ISREG(st.st_mode)) {
        *file_bytes = (size_t)st.st_size;
        return NULL;
    }
    const char *why = *fd >= 0 ? "not a regular file" : strerror(errno);
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
    return why;
}

size_t pread_all(int fd, void *out, size_t bytes, size_t at)
{
    size_t done = 0;
    while (done < bytes) {
        const ssize_t n = pread(fd, (char *)out + done, bytes - done, (off_t)(at + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n == 0)
            errno = 0;
        if (n <= 0)
            break;
        done += (size_t)n;
    }
    return done;
}

fsdp_status read_file_at(const char *path, const char *hint, int fd, void *out, size_t bytes,
                         size_t at)
{
    const size_t done = pread_all(fd, out, bytes, at);
    if (done == bytes)
        return FSDP_OK;
    return fsdp_error(FSDP_EIO, hint, "%s: reading at byte %zu: %s", path, at + done,
                      errno == 0 ? "the file ends" : strerror(errno));
}
