/* host_share.h -- one growing file in memory that other processes of the host can map.
 *
 *   host_share_get ... host_share_put        host_share_fd: the file
 *
 * A memfd has no name and no limit but memory: it does not depend on the size of /dev/shm, and the
 * kernel drops it with the last process that has it open or mapped, so nothing is left behind by a
 * kill -9. Pieces are given out at ever higher offsets; what is given back becomes a hole, which
 * takes no memory. The process has one such file, for all its devices, as it has one heap: made
 * when first asked for, closed by its end. Thread-safe. */
#pragma once
#include <stddef.h>
#include <stdint.h>

/* host_share_fd -- -1 when there is none: memfd_create is refused, or a limit on file sizes (ulimit
 * -f) is set, under which growing the file would end the process. */
int host_share_fd(void);

/* host_share_get -- `bytes` zeroed bytes (a multiple of 4096), mapped at any address; NULL when
 * there is no file or no memory. host_share_put gives them back.
 *   offset  where they stand in the file */
void *host_share_get(size_t bytes, uint64_t *offset);
void host_share_put(void *ptr, size_t bytes, uint64_t offset);
