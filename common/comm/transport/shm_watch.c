/* shm_watch.c -- this process in its job: the failure record, and the thread that watches for dead
 * peers.
 *
 * A call that waits in shared memory checks the job's failure between two sleeps, so a rank that
 * fails need not wake the others. The thread finds what no call sees: a peer that died, and a
 * failure while this rank is busy elsewhere. It watches pidfds, which become readable even for a
 * zombie; kill(pid, 0) would take a zombie for alive. A rank that is told of a timeout reports its
 * last calls. */
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "common/comm/transport/shm_impl.h"

shm_process shm_self = {.world_lock = PTHREAD_MUTEX_INITIALIZER};

enum { LOOK_EVERY_MS = 100, WRITING_WAITS = 10000 /* of 100 us: a second */ };

/* ---- failure -------------------------------------------------------------------------------- */

/* Handle, once, that this process has learned of the failure in this thread's record. Write the
 * last calls and, after a timeout, report them. If shm_on_failure has set a function, call that
 * instead: it does both. */
static void hear(fsdp_status why)
{
    shm_process *p = &shm_self;
    void (*tell)(void) = atomic_load(&p->tell);
    double never = 0;
    if (!atomic_compare_exchange_strong(&p->died_s, &never, clock_now_s()))
        return;
    pthread_mutex_lock(&p->world_lock);
    if (why == FSDP_ETIMEOUT && p->world != NULL && tell == NULL)
        comm_recorder_print(p->world->team->recorder);
    if (p->world != NULL && tell == NULL)
        comm_hang_write(p->world->team->recorder, fsdp_error_get()->what);
    pthread_mutex_unlock(&p->world_lock);
    if (tell != NULL)
        tell();
}

/* Set this thread's record to the job's failure. */
static fsdp_status failure_tell(void)
{
    const shm_process *p = &shm_self;
    const fsdp_error_info *why = &p->job->why;
    if (atomic_load(&p->job->failed) == SHM_FAIL_WRITING)
        return fsdp_error(FSDP_ECOMM, "see the other ranks' last lines",
                          "shm: a rank failed and ended before it could say why");
    if (p->job->failed_rank >= 0 && p->job->failed_rank != comm_world_rank(&p->team, p->team.rank))
        return fsdp_error(why->status, why->hint, "rank %d reports: %.700s", p->job->failed_rank,
                          why->what);
    return fsdp_error_set(why);
}

fsdp_status shm_failed(transport_group *group)
{
    (void)group; /* all groups fail together */
    shm_process *p = &shm_self;
    if (atomic_load(&p->job->failed) == SHM_FAIL_NONE)
        return FSDP_OK;
    for (int i = 0; atomic_load(&p->job->failed) == SHM_FAIL_WRITING && i < WRITING_WAITS; i++)
        usleep(100);
    fsdp_status why = failure_tell();
    hear(why);
    return why;
}

/* Make this thread's record the job's failure, unless there is one already. */
static void job_fail(shm_job *job, int by)
{
    unsigned none = SHM_FAIL_NONE;
    if (!atomic_compare_exchange_strong(&job->failed, &none, SHM_FAIL_WRITING))
        return;
    job->why = *fsdp_error_get();
    job->failed_rank = by;
    atomic_store(&job->failed, SHM_FAIL_SET);
}

fsdp_status shm_fail(void)
{
    job_fail(shm_self.job, comm_world_rank(&shm_self.team, shm_self.team.rank));
    return shm_failed(NULL);
}

void shm_tell(void)
{
    (void)shm_fail();
}

void shm_on_failure(void (*tell)(void))
{
    atomic_store(&shm_self.tell, tell);
}

/* ---- the thread ----------------------------------------------------------------------------- */

void shm_member_ended(shm_job *job, int member, int world_rank, pid_t pid)
{
    static const char HINT[] =
        "see that rank's last lines; a signal or a lack of memory leaves none";
    shm_member *m = &job->member[member];
    if (atomic_load(&m->closed) != 0)
        return;
    if (atomic_load(&m->ready.value) == 0)
        (void)fsdp_error(FSDP_ECOMM, HINT, "comm_open: rank %d (process %d) ended before it joined",
                         world_rank, (int)pid);
    else
        (void)fsdp_error(FSDP_ECOMM, HINT, "rank %d (process %d) ended without leaving the group",
                         world_rank, (int)m->share.pid);
    job_fail(job, -1);
}

/* End this process if its launcher has ended. The kernel does that only for children of the
 * launcher. */
void shm_launcher_check(void)
{
    struct pollfd launcher = {.fd = shm_self.launcher_fd, .events = POLLIN};
    if (poll(&launcher, 1, 0) > 0)
        raise(SIGKILL);
}

static void *watch_main(void *arg)
{
    shm_process *p = arg;
    struct pollfd *polled = calloc((size_t)p->team.size + 1, sizeof *polled);
    pthread_setname_np(pthread_self(), "shm watch");
    for (int r = 0; polled != NULL && r < p->team.size; r++)
        polled[r] = (struct pollfd){.fd = p->peer[r].pidfd, .events = POLLIN};
    if (polled != NULL)
        polled[p->team.size] = (struct pollfd){.fd = p->stop_event, .events = POLLIN};
    while (polled != NULL && !atomic_load(&p->stop)) {
        int n_ended = poll(polled, (nfds_t)p->team.size + 1, LOOK_EVERY_MS);
        for (int r = 0; n_ended > 0 && r < p->team.size; r++) {
            if (polled[r].revents == 0)
                continue;
            if (!atomic_load(&p->stop))
                shm_member_ended(p->job, r, comm_world_rank(&p->team, r), 0);
            polled[r].fd = -1;
        }
        shm_launcher_check();
        (void)shm_failed(NULL);
    }
    free(polled);
    return NULL;
}

/* If the kernel or a limit on files refuses a pidfd, the launcher still reports ranks that end. */
static int watch_open(pid_t pid)
{
    return pid != 0 ? (int)syscall(SYS_pidfd_open, pid, 0) : -1;
}

void shm_watch_launcher(void)
{
    shm_self.launcher_fd = watch_open(shm_self.job->launcher);
}

fsdp_status shm_watch_start(void)
{
    shm_process *p = &shm_self;
    for (int r = 0; r < p->team.size; r++)
        if (r != p->team.rank)
            p->peer[r].pidfd = watch_open(p->job->member[r].share.pid);
    p->stop_event = eventfd(0, EFD_CLOEXEC);
    int err = pthread_create(&p->watcher, NULL, watch_main, p);
    if (err != 0)
        return fsdp_error(FSDP_ECOMM, "raise the limit on threads (ulimit -u) or run fewer ranks",
                          "comm_open: cannot start the thread that watches the ranks: %s",
                          strerror(err));
    p->watching = true;
    return FSDP_OK;
}

static void watch_close(int *pidfd)
{
    if (*pidfd >= 0)
        close(*pidfd);
    *pidfd = -1; /* shm_leave may run twice in a failed job */
}

void shm_watch_stop(void)
{
    shm_process *p = &shm_self;
    atomic_store(&p->stop, true);
    if (p->watching) {
        (void)!write(p->stop_event, &(uint64_t){1}, sizeof(uint64_t));
        pthread_join(p->watcher, NULL);
        close(p->stop_event);
    }
    p->watching = false;
    for (int r = 0; r < p->team.size; r++)
        watch_close(&p->peer[r].pidfd);
    watch_close(&p->launcher_fd);
}
