/* mpi_sweep.c -- remove the files in /dev/shm that a killed MPI job has left.
 *
 * While ranks start, MPICH and UCX have named files in /dev/shm, which they remove when all ranks
 * have opened them. The files of a job that is killed then stay, and take memory until the machine
 * is restarted. So the next job of the same user removes them.
 *
 * A file belongs to nobody if a write lease is granted: the kernel refuses the lease while any
 * process, also one of another container, has the file open or mapped. */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "common/comm/transport/mpi_impl.h"

static bool is_named_by_mpi(const char *name)
{
    static const char *const begins[] = {"mpich_shar_tmp", "ucx_shm_posix_"};
    for (size_t i = 0; i < sizeof begins / sizeof *begins; i++)
        if (strncmp(name, begins[i], strlen(begins[i])) == 0)
            return true;
    return false;
}

/* Another process that opens the file meanwhile breaks the lease, and this process gets a signal:
 * SIGURG, which is ignored unless somebody asks for it. */
static void remove_if_unused(int dir, const char *name)
{
    struct stat st;
    int fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return;
    bool is_mine = fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_uid == geteuid();
    if (is_mine && fcntl(fd, F_SETSIG, SIGURG) == 0 && fcntl(fd, F_SETLEASE, F_WRLCK) == 0)
        unlinkat(dir, name, 0);
    close(fd);
}

void mpi_sweep(void)
{
    DIR *all = opendir("/dev/shm");
    if (all == NULL)
        return;
    for (const struct dirent *e = readdir(all); e != NULL; e = readdir(all))
        if (is_named_by_mpi(e->d_name))
            remove_if_unused(dirfd(all), e->d_name);
    closedir(all);
}
