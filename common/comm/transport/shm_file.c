/* shm_file.c -- the shared memory of a job: sizes, files, mappings.
 *
 * A rank opens another rank's file through /proc/PID/fd/N. The kernel allows that between processes
 * of one user, but not between process namespaces, and not on hardened systems. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include "common/base/page.h"
#include "common/comm/transport/shm_impl.h"

size_t shm_turn_bytes(int n_ranks)
{
    size_t bytes = sizeof(shm_turn) + (size_t)n_ranks * sizeof(shm_part);
    return size_round_up(bytes, SHM_LINE_BYTES);
}

size_t shm_area_bytes(int n_ranks)
{
    size_t bytes = (size_t)n_ranks * SHM_RING * shm_turn_bytes(n_ranks);
    return size_round_up(bytes, PAGE_BYTES);
}

size_t shm_job_bytes(int n_members)
{
    size_t bytes = sizeof(shm_job) + (size_t)n_members * sizeof(shm_member);
    return size_round_up(bytes, PAGE_BYTES);
}

shm_file shm_file_of(int fd)
{
    struct stat st = {0};
    bool known = fd >= 0 && fstat(fd, &st) == 0;
    return (shm_file){.pid = (int32_t)getpid(),
                      .fd = known ? fd : -1,
                      .device = (uint64_t)st.st_dev,
                      .inode = (uint64_t)st.st_ino};
}

int shm_file_open(const shm_file *f)
{
    char path[64];
    struct stat st;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)f->pid, (int)f->fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0 || (fstat(fd, &st) == 0 && (uint64_t)st.st_dev == f->device &&
                   (uint64_t)st.st_ino == f->inode))
        return fd;
    close(fd);
    errno = ESTALE;
    return -1;
}

char *shm_area_map(int fd, size_t bytes)
{
    char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return at == MAP_FAILED ? NULL : at;
}

/* Check the size against `ulimit -f`: beyond it the system would end the process with SIGXFSZ. */
static bool file_may_have(size_t bytes)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
        bytes <= limit.rlim_cur)
        return true;
    errno = EFBIG;
    return false;
}

/* Make a zeroed memfd and map it. Close *fd after every member has opened it. */
static char *area_create(size_t bytes, int *fd)
{
    *fd = memfd_create("fsdp group", MFD_CLOEXEC);
    if (*fd < 0)
        return NULL;
    char *at = NULL;
    if (file_may_have(bytes) && ftruncate(*fd, (off_t)bytes) == 0)
        at = shm_area_map(*fd, bytes);
    if (at == NULL) {
        close(*fd);
        *fd = -1;
    }
    return at;
}

/* The maker's memfd_create or mapping failed, or a peer could not open the maker's file. */
static fsdp_status cannot_share(const shm_shared *x, int err, bool makes)
{
    const char *hint = makes ? page_hint(err, x->cannot.hint) : x->cannot.hint;
    return fsdp_error(x->cannot.status, hint, "%s: %s", x->cannot.what, strerror(err));
}

fsdp_status shm_area_share(transport_group *talk, const shm_shared *x, char **area)
{
    int fd = -1;
    bool makes = talk->team->rank == x->first && x->bytes > 0;
    *area = makes ? area_create(x->bytes, &fd) : NULL;
    int err = errno; /* if *area is NULL */
    shm_file mine = shm_file_of(fd);
    void *all;
    fsdp_status status = transport_gather(talk, x->label, &mine, sizeof mine, &all);
    if (status == FSDP_OK) { /* else the group has failed, and no peer calls transport_agree */
        if (!makes && x->bytes > 0) {
            int theirs = shm_file_open((const shm_file *)all + x->first);
            *area = theirs >= 0 ? shm_area_map(theirs, x->bytes) : NULL;
            err = errno;
            close(theirs);
        }
        if (x->bytes > 0 && *area == NULL)
            status = cannot_share(x, err, makes);
        status = transport_agree(talk, status); /* either all ranks have mapped it, or all give
                                                   up */
    }
    free(all);
    close(fd);
    if (status != FSDP_OK && *area != NULL)
        munmap(*area, x->bytes);
    return status;
}

shm_job *shm_launch_prepare(int n_ranks, int *job_fd, int *area_fd)
{
    shm_job *job = (shm_job *)(void *)area_create(shm_job_bytes(n_ranks), job_fd);
    char *area = area_create(shm_area_bytes(n_ranks), area_fd);
    if (area != NULL)
        munmap(area, shm_area_bytes(n_ranks));
    if (job == NULL || area == NULL || fcntl(*job_fd, F_SETFD, 0) != 0 ||
        fcntl(*area_fd, F_SETFD, 0) != 0)
        return NULL;
    job->n_members = n_ranks;
    job->launcher = getpid();
    return job;
}

void shm_launch_free(shm_job *job)
{
    if (job != NULL)
        munmap(job, shm_job_bytes(job->n_members));
}
