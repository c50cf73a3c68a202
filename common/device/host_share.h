/* host_share.h -- a growing file in memory that other processes of the host can map.
 *
 *   host_share_get ... host_share_put        host_share_fd: the file
 *
 * A memfd has no name, and only memory limits its size: it does not depend on the size of /dev/shm.
 * The kernel removes it when no process has it open or mapped, so a kill -9 leaves nothing over.
 * Each piece is at a higher offset than all earlier ones; a piece that is given back becomes a
 * hole, which takes no memory. The process has one such file for all its devices. It is created at
 * the first use and closed when the process ends. Thread-safe. */
#pragma once
#include <stddef.h>
#include <stdint.h>

/* host_share_fd -- the file; -1 if there is none. Then errno says why: memfd_create's, or EFBIG if
 * there is a limit on file sizes (ulimit -f), with which growing the file would end the process. */
int host_share_fd(void);

/* host_share_get -- `bytes` zeroed bytes (a multiple of PAGE_BYTES), mapped at any address; NULL
 * and errno if there is no file or no memory; *offset: their place in the file.
 * host_share_put -- give them back. */
void *host_share_get(size_t bytes, uint64_t *offset);
void host_share_put(void *ptr, size_t bytes, uint64_t offset);
