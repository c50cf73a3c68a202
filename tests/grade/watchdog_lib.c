/* watchdog_lib.c -- see watchdog_lib.h. */
#include "tests/grade/watchdog_lib.h"
#include <ctype.h>
#include <dirent.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <link.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include "common/base/clock.h"
#include "common/base/under_asan.h"

enum { HANG_SIGNAL = SIGXCPU, MAX_FRAMES = 48, MAX_SHOWN = 12, ALT_STACK_BYTES = 1 << 16 };
static const int FATAL[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
static const double TICK_S = 0.25;
static const double BUSY_TIMES = 3; /* how much longer a wait may take on a busy machine */

static struct {
    comm *comm;
    void (*say)(const char *line);
    int rank;
    double scale; /* of the limits */
    _Atomic(const char *) task;
    atomic_bool told; /* one report is enough */
    atomic_bool stop;
    sem_t wake, reported;
    bool quiet; /* a hang: print nothing more, wait */
    char hang[96];
    pthread_t thread;
} w;

/* ---- what is told ---------------------------------------------------------------------------- */

static bool is_library(const Dl_info *info)
{
    return strncmp(info->dli_fname, "/usr/", 5) == 0 || strncmp(info->dli_fname, "/lib", 4) == 0;
}

/* The program's or the plug-in's frames below the first frames of a library or of _exit; frames
 * above belong to the signal handler. Offsets point at the call, not at the return address; but an
 * interrupted frame has the address of its instruction itself. */
static void say_stack(const char *id)
{
    char line[1400];
    void *frames[MAX_FRAMES];
    const struct link_map *object = NULL;
    size_t used = 0;
    bool is_below = false;
    bool is_interrupted = false; /* the frame before is libc's return from a signal */
    int n = backtrace(frames, MAX_FRAMES);
    for (int i = 0, shown = 0; i < n && shown < MAX_SHOWN && used + 100 < sizeof line; i++) {
        Dl_info info;
        void *extra = NULL;
        char *pc = (char *)frames[i] - (is_interrupted ? 0 : 1);
        const bool in_library =
            dladdr1(pc, &info, &extra, RTLD_DL_LINKMAP) == 0 || is_library(&info);
        is_interrupted = in_library && !is_below;
        if (in_library || (info.dli_sname != NULL && strcmp(info.dli_sname, "_exit") == 0)) {
            is_below = true;
            continue;
        }
        const struct link_map *map = extra;
        if (!is_below || (object != NULL && map != object))
            continue;
        if (object == NULL)
            used = (size_t)snprintf(line, sizeof line - 100, "RANKSTACK %s %d %.600s", id, w.rank,
                                    info.dli_fname);
        object = map;
        used += (size_t)snprintf(line + used, 100, " %#zx=%.60s", (size_t)(pc - map->l_addr),
                                 info.dli_sname != NULL ? info.dli_sname : "");
        shown++;
    }
    if (used > 0)
        w.say(line);
}

/* Report once per process. how: one word that read_log.awk knows. */
static void tell(const char *how, const char *what)
{
    char line[160];
    const char *id = atomic_load(&w.task);
    if (id == NULL || atomic_exchange(&w.told, true))
        return;
    snprintf(line, sizeof line, "RANKFAIL %s %d %s %s", id, w.rank, how, what);
    w.say(line);
    say_stack(id);
}

static void take(int signo, void (*handler)(int))
{
    struct sigaction act = {.sa_handler = handler, .sa_flags = SA_ONSTACK | SA_RESTART};
    sigaction(signo, &act, NULL);
}

/* Ask the watchdog's thread for the last calls, and give it time to print them. */
static void let_last_calls(void)
{
    sem_post(&w.wake);
    nanosleep(&(struct timespec){.tv_nsec = 400 * 1000 * 1000}, NULL);
}

static void crashed(int signo)
{
    char name[24], what[48];
    snprintf(name, sizeof name, "SIG%s", sigabbrev_np(signo));
    snprintf(what, sizeof what, "died of %s", name);
    tell(name, what);
    let_last_calls();
    take(signo, SIG_DFL);
    raise(signo);
}

static void hangs(int signo)
{
    tell(w.quiet ? "WAIT" : "LOOP", w.hang);
    sem_post(&w.reported);
}

static void exits(void)
{
    if (atomic_load(&w.task) == NULL)
        return;
    tell("EXIT", "called exit");
    let_last_calls();
}

/* Replaces libc's _exit in the task, because not every launcher notices a lost rank. */
void _exit(int status)
{
    tell("EXIT", "called _exit");
    for (;;)
        syscall(SYS_exit_group, status);
}

/* ---- other threads --------------------------------------------------------------------------- */

/* for_threads -- call visit with the id, name and state (proc(5)) of each thread of this process,
 * until visit returns true. */
static void for_threads(bool (*visit)(pid_t tid, const char *name, char state, void *ctx),
                        void *ctx)
{
    DIR *dir = opendir("/proc/self/task");
    const struct dirent *entry;
    bool done = dir == NULL;
    while (!done && (entry = readdir(dir)) != NULL) {
        char path[64], stat[256] = "";
        snprintf(path, sizeof path, "/proc/self/task/%.16s/stat", entry->d_name);
        FILE *file = isdigit((unsigned char)*entry->d_name) ? fopen(path, "r") : NULL;
        if (file == NULL)
            continue;
        size_t bytes = fread(stat, 1, sizeof stat - 1, file);
        fclose(file);
        stat[bytes] = '\0';
        char *name = strchr(stat, '('), *end = strrchr(stat, ')');
        if (name == NULL || end == NULL)
            continue;
        *end = '\0';
        done = visit((pid_t)atoi(entry->d_name), name + 1, end[2], ctx);
    }
    if (dir != NULL)
        closedir(dir);
}

/* The comm layer's threads named "hang" print the last calls on SIGUSR2 (comm.h). */
static bool ask_last_calls(pid_t tid, const char *name, char state, void *ctx)
{
    (void)state, (void)ctx;
    if (strcmp(name, "hang") == 0)
        tgkill(getpid(), tid, SIGUSR2);
    return false;
}

static bool find_running(pid_t tid, const char *name, char state, void *found)
{
    if (state != 'R' || tid == gettid())
        return false;
    *(pid_t *)found = tid;
    return true;
}

/* The running thread reports where it is; if none runs, the thread of the task does. Rank 0 ends
 * the job after the other ranks have reported what they wait for, as in grade_main. */
static _Noreturn void end_hang(double seconds)
{
    pid_t tid = getpid();
    snprintf(w.hang, sizeof w.hang,
             w.quiet ? "hangs: it waits for %.0f s" : "hangs: it runs for %.0f s of CPU time",
             seconds);
    for_threads(find_running, &tid);
    tgkill(getpid(), tid, HANG_SIGNAL);
    struct timespec soon = clock_deadline(1);
    sem_clockwait(&w.reported, CLOCK_MONOTONIC, &soon);
    for_threads(ask_last_calls, NULL);
    sleep(w.rank == 0 ? 2 : 4);
    watchdog_task(NULL); /* this exit is not the task's */
    comm_abort(w.comm, 1);
}

/* ---- is it a hang? --------------------------------------------------------------------------- */

typedef struct look {
    const char *task;
    double at_s, cpu_s, idle_s;       /* idle_s: of all CPUs of the machine */
    double used_s, quiet_s, spared_s; /* spared_s: busy time that does not count */
} look;

static double process_cpu_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double machine_idle_s(void)
{
    double user, nice, system, idle = 0;
    FILE *file = fopen("/proc/stat", "r");
    if (file == NULL)
        return clock_now_s(); /* taken to be idle */
    if (fscanf(file, "cpu %lf %lf %lf %lf", &user, &nice, &system, &idle) != 4)
        idle = 0;
    fclose(file);
    return idle / (double)sysconf(_SC_CLK_TCK);
}

/* Charge the time since the last look to the task. */
static void look_again(look *l)
{
    const char *task = atomic_load(&w.task);
    const look now = {task, clock_now_s(), process_cpu_s(), machine_idle_s(), 0, 0, 0};
    double passed_s = now.at_s - l->at_s, used_s = now.cpu_s - l->cpu_s;
    const bool is_busy = now.idle_s - l->idle_s < 0.1 * passed_s;
    if (task == NULL || task != l->task) {
        *l = now;
        return;
    }
    l->used_s += used_s;
    l->spared_s += is_busy ? passed_s - passed_s / BUSY_TIMES : 0;
    l->quiet_s += used_s < 0.5 * passed_s ? passed_s / (is_busy ? BUSY_TIMES : 1) : 0;
    l->at_s = now.at_s;
    l->cpu_s = now.cpu_s;
    l->idle_s = now.idle_s;
    comm_set_patience(w.comm, 1 + l->spared_s / WATCHDOG_COMM_S);
}

static void *watch(void *arg)
{
    look l = {0};
    pthread_setname_np(pthread_self(), "watchdog");
    while (!atomic_load(&w.stop)) {
        struct timespec until = clock_deadline(TICK_S);
        if (sem_clockwait(&w.wake, CLOCK_MONOTONIC, &until) == 0) {
            for_threads(ask_last_calls, NULL);
            continue;
        }
        look_again(&l);
        w.quiet = l.quiet_s > WATCHDOG_QUIET_S * w.scale;
        if (w.quiet || l.used_s > WATCHDOG_CPU_S * w.scale)
            end_hang(w.quiet ? l.quiet_s : l.used_s);
    }
    return NULL;
}

/* ---- life ------------------------------------------------------------------------------------ */

void watchdog_task(const char *id)
{
    atomic_store(&w.task, id);
}

void watchdog_signals(void)
{
    static char stack[ALT_STACK_BYTES]; /* endless recursion has used up the normal stack */
    void *frame;
    sigaltstack(&(stack_t){.ss_sp = stack, .ss_size = sizeof stack}, NULL);
    (void)backtrace(&frame, 1); /* the first call allocates */
    comm_take_signals(false);
    take(HANG_SIGNAL, hangs);
    for (size_t i = 0; !UNDER_ASAN && i < sizeof FATAL / sizeof *FATAL; i++)
        take(FATAL[i], crashed);
    atexit(exits);
}

static double limits_scale(void)
{
    const char *limit = getenv("FSDP_TIMEOUT_S"), *target = getenv("FSDP_DEVICE");
    const bool is_slow = UNDER_ASAN || (target != NULL && strstr(target, "-sim") != NULL);
    double scale = limit != NULL ? atof(limit) / WATCHDOG_COMM_S : 1;
    if (is_slow && scale < 10)
        return 10;
    return scale > 1 ? scale : 1;
}

void watchdog_open(comm *c, void (*say)(const char *line))
{
    w.comm = c;
    w.say = say;
    w.rank = comm_rank(c);
    w.scale = limits_scale();
    FSDP_ASSERT_EQ(sem_init(&w.wake, 0, 0) | sem_init(&w.reported, 0, 0), 0);
    FSDP_ASSERT_EQ(pthread_create(&w.thread, NULL, watch, NULL), 0);
}

void watchdog_close(void)
{
    atomic_store(&w.stop, true);
    sem_post(&w.wake);
    pthread_join(w.thread, NULL);
}
