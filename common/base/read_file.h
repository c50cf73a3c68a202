/* read_file.h -- regular files that are read at given places. */
#pragma once
#include <stddef.h>

/* open_regular -- open a regular file for reading; a FIFO is refused instead of waited for.
 *   fd, file_bytes  the caller closes *fd, which is -1 after a failure
 * Returns NULL, or the reason why the file cannot be read; valid until the next call. */
const char *open_regular(const char *path, int *fd, size_t *file_bytes);
/* pread_all -- read bytes [at, at + bytes) of a file. Returns how many were read: if they are
 * fewer, errno is the reason, or 0 because the file ends. */
size_t pread_all(int fd, void *out, size_t bytes, size_t at);
