/* shm_watch.c -- this process in its job: the failure record, the thread that watches for dead
 * peers.
 *
 * A call that waits in shared memory looks at the job's failure between two sleeps, so whoever
 * fails need not wake anybody. What no call sees is seen here: a peer that is dead (its pidfd
 * becomes readable, also when it is a zombie, which kill(pid, 0) would take for alive), and a
 * failure while this rank is busy elsewhere; a rank told of a timeout reports its last calls. */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include "common/comm/transport/shm_impl.h"

shm_process shm_self = {.world_lock = PTHREAD_MUTEX_INITIALIZER};

enum { LOOK_EVERY_MS = 100, WRITING_WAITS = 10000 /* a second of 100 us */ };

/* ---- failure -------------------------------------------------------------------------------- */

/* This process has learnt of the failure, which this thread's record tells. Once: after a timeout
 * it reports its last calls, unless somebody else is to hear of it and does that. */
static void hear(fsdp_status why)
{
    shm_process *p = &shm_self;
    void (*tell)(void) = atomic_load(&p->tell);
    if (atomic_exchange(&p->heard, true))
        return;
    p->died_s = clock_now_s();
    pthread_mutex_lock(&p->world_lock);
    if (why == FSDP_ETIMEOUT && p->world != NULL && tell == NULL)
        comm_recorder_print(p->world->team->recorder, stderr, p->peer[p->me].world_rank);
    pthread_mutex_unlock(&p->world_lock);
    if (tell != NULL)
        tell();
}

/* The job's failure as this thread's record. */
static fsdp_status failure_tell(void)
{
    const shm_process *p = &shm_self;
    const fsdp_error_info *why = &p->job->why;
    if (atomic_load(&p->job->failed) == SHM_FAIL_WRITING)
        return fsdp_error(FSDP_ECOMM, "see the other ranks' last lines",
                          "shm: a rank failed and did not live to say why");
    if (p->job->failed_rank != p->peer[p->me].world_rank)
        return fsdp_error(why->status, why->hint, "rank %d reports: %.700s", p->job->failed_rank,
                          why->what);
    fsdp_error_set(why);
    return why->status;
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

fsdp_status shm_fail(void)
{
    shm_job *job = shm_self.job;
    unsigned none = SHM_FAIL_NONE;
    if (atomic_compare_exchange_strong(&job->failed, &none, SHM_FAIL_WRITING)) {
        job->why = *fsdp_error_get();
        job->failed_rank = shm_self.peer[shm_self.me].world_rank;
        atomic_store(&job->failed, SHM_FAIL_SET);
    }
    return shm_failed(NULL);
}

void shm_on_failure(void (*tell)(void))
{
    atomic_store(&shm_self.tell, tell);
}

void shm_linger(void)
{
    if (shm_failed(NULL) != FSDP_OK)
        transport_linger(shm_self.died_s);
}

/* ---- the thread ----------------------------------------------------------------------------- */

static void peer_ended(int member)
{
    const shm_member *m = &shm_self.job->member[member];
    if (atomic_load(&m->closed) != 0 || atomic_load(&shm_self.stop))
        return;
    (void)fsdp_error(FSDP_ECOMM,
                     "see that rank's last lines; a signal or a lack of memory leaves none",
                     "rank %d (process %d) ended without leaving the group",
                     shm_self.peer[member].world_rank, (int)m->share.pid);
    (void)shm_fail();
}

static void *watch_main(void *arg)
{
    shm_process *p = arg;
    struct pollfd *polled = calloc((size_t)p->size + 1, sizeof *polled);
    pthread_setname_np(pthread_self(), "shm watch");
    for (int r = 0; polled != NULL && r < p->size; r++)
        polled[r] =
            (struct pollfd){.fd = p->peer[r].pidfd, .events = POLLIN}; /* < 0: passed over */
    if (polled != NULL)
        polled[p->size] = (struct pollfd){.fd = p->stop_event, .events = POLLIN};
    while (polled != NULL && !atomic_load(&p->stop)) {
        int n_ended = poll(polled, (nfds_t)p->size + 1, LOOK_EVERY_MS);
        for (int r = 0; n_ended > 0 && r < p->size; r++) {
            if (polled[r].revents == 0)
                continue;
            peer_ended(r);
            polled[r].fd = -1;
        }
        (void)shm_failed(NULL);
    }
    free(polled);
    return NULL;
}

fsdp_status shm_watch_start(void)
{
    shm_process *p = &shm_self;
    for (int r = 0; r < p->size; r++)
        p->peer[r].pidfd =
            r == p->me ? -1 : (int)syscall(SYS_pidfd_open, (pid_t)p->job->member[r].share.pid, 0);
    p->stop_event = eventfd(0, EFD_CLOEXEC);
    int err = pthread_create(&p->watcher, NULL, watch_main, p);
    if (err != 0)
        return fsdp_error(FSDP_ECOMM, "", "comm_open: no watching thread: %s", strerror(err));
    p->watching = true;
    return FSDP_OK;
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
    for (int r = 0; r < p->size; r++)
        if (p->peer[r].pidfd >= 0)
            close(p->peer[r].pidfd);
}
