/* read_file.h -- read regular files at given offsets. */
#pragma once
#include <stddef.h>
#include "common/base/status.h"

/* open_regular -- open a regular file for reading; never wait for the writer of a FIFO.
 *   *fd          the caller closes it; -1 after a failure
 *   *file_bytes  the length of the file, set on success
 * Returns NULL, or the reason why the file cannot be read, which is valid until the next call. */
const char *open_regular(const char *path, int *fd, size_t *file_bytes);
/* pread_all -- read bytes [at, at + bytes) of a file. Returns how many were read: if they are
 * fewer, errno is the reason, or 0 because the file ends. */
size_t pread_all(int fd, void *out, size_t bytes, size_t at);
/* read_file_at -- read all of bytes [at, at + bytes) of an open file. path, hint: for the message.
 *   errors  FSDP_EIO */
fsdp_status read_file_at(const char *path, const char *hint, int fd, void *out, size_t bytes,
                         size_t at);
