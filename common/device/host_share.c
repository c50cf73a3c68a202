/* host_share.c -- see host_share.h. */
#include "common/device/host_share.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

static pthread_once_t opened = PTHREAD_ONCE_INIT;
static int share_fd; /* negative: there is none, for this number of errno */
static pthread_mutex_t end_lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t end_bytes; /* of the file; under end_lock */

static void share_open(void)
{
    struct rlimit limit;
    errno = EFBIG;
    share_fd = -1;
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur == RLIM_INFINITY)
        share_fd = memfd_create("fsdp shared memory", MFD_CLOEXEC);
    if (share_fd < 0)
        share_fd = -errno;
}

int host_share_fd(void)
{
    pthread_once(&opened, share_open);
    if (share_fd >= 0)
        return share_fd;
    errno = -share_fd;
    return -1;
}

void *host_share_get(size_t bytes, uint64_t *offset)
{
    int fd = host_share_fd();
    if (fd < 0)
        return NULL;
    pthread_mutex_lock(&end_lock);
    uint64_t begin = end_bytes;
    int err = ftruncate(fd, (off_t)(begin + bytes));
    void *ptr = MAP_FAILED;
    if (err == 0) {
        end_bytes += bytes;
        ptr = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)begin);
    }
    pthread_mutex_unlock(&end_lock);
    if (ptr == MAP_FAILED)
        return NULL;
    madvise(ptr, bytes, MADV_HUGEPAGE); /* no effect without huge pages for shared memory */
    *offset = begin;
    return ptr;
}

void host_share_put(void *ptr, size_t bytes, uint64_t offset)
{
    pthread_mutex_lock(
        &end_lock); /* a later mmap may return this address: race checkers see the order */
    munmap(ptr, bytes);
    pthread_mutex_unlock(&end_lock);
    (void)fallocate(share_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset,
                    (off_t)bytes);
}
