/* hang.c -- files for a job that hangs: each rank's last calls, to compare ranks, and the thread
 * that writes them when a signal requests it.
 *
 *   comm_take_signals -> comm_hang_open -> (a failure: comm_hang_write) -> comm_hang_close
 *
 * A rank must answer while it waits in a collective, so the signals are blocked in all threads, and
 * a thread that does nothing else takes them. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "common/base/atomic_file.h"
#include "common/base/environment.h"
#include "common/comm/comm_impl.h"

static const double SETTLE_S = 5;
static const char HINT[] = "set FSDP_HANG_DIR to a directory that can be written";

static pthread_mutex_t file_lock = PTHREAD_MUTEX_INITIALIZER; /* held while a file is written */

struct comm_hang {
    comm_recorder *recorder;
    pthread_t thread;
    sigset_t signals;
    bool keeps_signals;
    atomic_bool came[NSIG]; /* signals kept until comm_signal_came asks */
    atomic_bool stop;
};

/* NULL: the user did not ask for files. */
static const char *hang_dir(void)
{
    return environment_text("FSDP_HANG_DIR");
}

/* ---- files ---------------------------------------------------------------------------------- */

static fsdp_status dir_check(const char *dir)
{
    if ((mkdir(dir, 0777) == 0 || errno == EEXIST) && access(dir, W_OK | X_OK) == 0)
        return FSDP_OK;
    return fsdp_error(FSDP_EIO, HINT,
                      "FSDP_HANG_DIR: cannot write into %.300s: %s; a hang will leave no files",
                      dir, strerror(errno));
}

static fsdp_status file_write(comm_recorder *r, const char *dir, const char *why)
{
    char *text = NULL, name[32];
    size_t bytes = 0;
    atomic_file f;
    FILE *memory = open_memstream(&text, &bytes); /* so that the recorder's lock is not held during
                                                     disk I/O */
    int rank = memory != NULL ? comm_recorder_write(r, memory, why) : 0;
    if (memory == NULL || fclose(memory) != 0) {
        free(text);
        return fsdp_error(FSDP_ENOMEM, "", "FSDP_HANG_DIR: no memory for the last calls");
    }
    snprintf(name, sizeof name, "rank-%05d.txt", rank);
    fsdp_status status = dir_check(dir);
    IF_OK(status, atomic_file_open_in(&f, dir, name, HINT));
    if (status == FSDP_OK) {
        fwrite(text, 1, bytes, f.out);
        status = atomic_file_commit(&f);
    }
    free(text);
    return status;
}

void comm_hang_write(comm_recorder *r, const char *why)
{
    const char *dir = hang_dir();
    fsdp_error_info before = *fsdp_error_get();
    if (dir == NULL)
        return;
    pthread_mutex_lock(&file_lock);
    if (file_write(r, dir, why) != FSDP_OK)
        fsdp_error_print(stderr, comm_launched_rank(), comm_launched_ranks());
    pthread_mutex_unlock(&file_lock);
    fsdp_error_set(&before);
}

void comm_hang_settle(void)
{
    struct timespec until = clock_deadline(SETTLE_S);
    if (pthread_mutex_clocklock(&file_lock, CLOCK_MONOTONIC, &until) == 0)
        pthread_mutex_unlock(&file_lock);
}

/* ---- signals -------------------------------------------------------------------------------- */

static void mask(int how, int signo)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, signo);
    pthread_sigmask(how, &set, NULL);
}

void comm_take_signals(bool keeps)
{
    mask(SIG_BLOCK, SIGUSR2);
    if (keeps || hang_dir() != NULL)
        mask(SIG_BLOCK, SIGTERM);
    if (keeps)
        mask(SIG_BLOCK, SIGUSR1);
}

bool comm_signal_came(comm *world, int signo)
{
    return world->hang != NULL && atomic_exchange(&world->hang->came[signo], false);
}

static void answer(comm_hang *h, int signo)
{
    if (h->keeps_signals && signo != SIGUSR2)
        atomic_store(&h->came[signo], true);
    if (signo != SIGUSR1 && hang_dir() != NULL)
        comm_hang_write(h->recorder, signo == SIGTERM ? "SIGTERM" : "SIGUSR2");
    else if (signo == SIGUSR2)
        comm_recorder_print(h->recorder);
    if (signo == SIGTERM && !h->keeps_signals) { /* let it have its usual effect */
        mask(SIG_UNBLOCK, SIGTERM);
        raise(SIGTERM);
        mask(SIG_BLOCK, SIGTERM); /* still here: the process ignores it */
    }
}

static void *hang_main(void *arg)
{
    comm_hang *h = arg;
    int signo;
    pthread_setname_np(pthread_self(), "hang");
    while (sigwait(&h->signals, &signo) == 0) {
        if (signo == SIGUSR2 && atomic_load(&h->stop))
            break;
        answer(h, signo);
    }
    return NULL;
}

comm_hang *comm_hang_open(comm_recorder *r, bool keeps_signals)
{
    sigset_t blocked;
    const char *dir = hang_dir();
    if (dir != NULL && dir_check(dir) != FSDP_OK)
        fsdp_error_print(stderr, comm_launched_rank(), comm_launched_ranks());
    pthread_sigmask(SIG_BLOCK, NULL, &blocked);
    if (!sigismember(&blocked, SIGUSR2))
        return NULL;
    comm_hang *h = calloc(1, sizeof *h);
    if (h != NULL) {
        *h = (comm_hang){.recorder = r, .keeps_signals = keeps_signals};
        sigemptyset(&h->signals);
        sigaddset(&h->signals, SIGUSR2);
        if ((keeps_signals || dir != NULL) && sigismember(&blocked, SIGTERM))
            sigaddset(&h->signals, SIGTERM);
        if (keeps_signals)
            sigaddset(&h->signals, SIGUSR1);
    }
    if (h != NULL && pthread_create(&h->thread, NULL, hang_main, h) == 0)
        return h;
    free(h);
    mask(SIG_UNBLOCK, SIGTERM); /* no thread will answer it: let it end the process */
    return NULL;
}

void comm_hang_close(comm_hang *h)
{
    int signo;
    if (h == NULL)
        return;
    atomic_store(&h->stop, true);
    pthread_kill(h->thread, SIGUSR2);
    pthread_join(h->thread, NULL);
    while ((signo = sigtimedwait(&h->signals, NULL, &(struct timespec){0})) > 0)
        answer(h, signo);
    if (!h->keeps_signals)
        mask(SIG_UNBLOCK, SIGTERM);
    free(h);
}
