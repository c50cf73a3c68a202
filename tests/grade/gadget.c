/* gadget.c -- for submission_test.sh, which puts this into a handed-in file: tries to get out of
 * the grader by system calls that no check of sources or objects sees, and prints what works.
 *
 * A constant of 64 bits holds the instructions of a system call; the code is called beside its
 * beginning. SECRET, OUTSIDE, JUDGE and FORGED are what
 * the test writes here. */
#include <stdio.h>
#include <string.h>

#define CALL(name, number)                                                                         \
    static __attribute__((noinline)) unsigned long name##_constant(void)                           \
    {                                                                                              \
        return 0xc3050f00000000b8UL | (number##UL << 8); /* mov number, %eax; syscall; ret */      \
    }                                                                                              \
    static long name(const void *a, long b, long c)                                                \
    {                                                                                              \
        const unsigned long code = name##_constant();                                              \
        const char *at = (const char *)name##_constant;                                            \
        for (int i = 0; i < 32 && memcmp(at, &code, sizeof code) != 0; i++)                        \
            at++;                                                                                  \
        return ((long (*)(const void *, long, long))at)(a, b, c);                                  \
    }
CALL(raw_read, 0)
CALL(raw_write, 1)
CALL(raw_open, 2)
CALL(raw_close, 3)
CALL(raw_lseek, 8)
CALL(raw_shmget, 29)
CALL(raw_truncate, 76)
CALL(raw_chmod, 90)
CALL(raw_utime, 132)
CALL(raw_setxattr, 188)
CALL(raw_pause, 34)
CALL(raw_alarm, 37)
CALL(raw_getpid, 39)
CALL(raw_socket, 41)
CALL(raw_clone, 56)
CALL(raw_fork, 57)
CALL(raw_kill, 62)
CALL(raw_fcntl, 72)
CALL(raw_getppid, 110)
CALL(raw_setpriority, 141)
CALL(raw_setaffinity, 203)
CALL(raw_ptrace, 101)
CALL(raw_unshare, 272)
CALL(raw_unlink, 87)
CALL(raw_symlink, 88)
CALL(raw_readlink, 89)
CALL(raw_setsid, 112)
CALL(raw_mknod, 133)
CALL(raw_exit, 231)

static void says(const char *what, long got)
{
    printf("%s %s\n", got >= 0 ? "REACHED" : "denied", what);
}

/* The memory of the judge, if one of the processes above this one is it. */
static long open_judge(void)
{
    char path[64], said[128];
    long pid = raw_getppid(0, 0, 0);
    for (int i = 0; i < 8 && pid > 0; i++) {
        snprintf(path, sizeof path, "/proc/%ld/stat", pid); /* pid (name) state parent ... */
        const long fd = raw_open(path, 0, 0);
        const long n = fd < 0 ? -1 : raw_read((const void *)fd, (long)said, sizeof said - 1);
        if (n <= 0)
            return -1;
        said[n] = '\0';
        snprintf(path, sizeof path, "/proc/%ld/mem", pid);
        if (strstr(said, "(judge)"))
            return raw_open(path, 2, 0);
        sscanf(strrchr(said, ')'), ") %*c %ld", &pid);
    }
    return -1;
}

/* The descriptor of the results, whose name goes to name [256]; -1: none. */
static long results(char *name)
{
    char path[64];
    for (long fd = 3; fd < 64; fd++) {
        snprintf(path, sizeof path, "/proc/self/fd/%ld", fd);
        const long n = raw_readlink(path, (long)name, 255);
        name[n > 0 ? n : 0] = '\0';
        if (strstr(name, "/fsdp-grade."))
            return fd;
    }
    return -1;
}

/* Calls that change a file by its path: of the one file that this process may write. */
static void try_paths(void)
{
    char name[256];
    results(name);
    says("the length of a file by its path", raw_truncate(name, 1, 0));
    says("the rights of a file by its path", raw_chmod(name, 0666, 0));
    says("the time of a file by its path", raw_utime(name, 0, 0));
    says("an attribute of a file by its path", raw_setxattr(name, (long)"user.x", 0));
}

static __attribute__((unused)) void try_all(void)
{
    static int n;
    char path[64];
    if (n++ > 0)
        return;
    try_paths();
    says("its turn when memory runs out", raw_open("/proc/self/oom_score_adj", 01, 0));
    says("a hidden test", raw_open("SECRET/hidden1.c", 0, 0));
    says("a solution", raw_open("SOLUTIONS/lab1_flatparam/wrap.c", 0, 0));
    says("a file outside", raw_open("OUTSIDE", 0101, 0644)); /* O_WRONLY | O_CREAT */
    says("the graded tree", raw_open("build/flags", 01, 0));
    says("the system", raw_open("/usr/bin/env", 01, 0));
    says("a setting of the kernel", raw_open("/proc/sys/kernel/core_pattern", 01, 0));
    says("a network", raw_socket((const void *)2, 1, 0));
    says("a user namespace", raw_unshare((const void *)0x10000000, 0, 0));
    says("ptrace", raw_ptrace((const void *)16, raw_getppid(0, 0, 0), 0));
    snprintf(path, sizeof path, "/proc/%d/mem", JUDGE);
    says("the grader's memory", raw_open(path, 2, 0));
    says("the judge's memory", open_judge());
    snprintf(path, sizeof path, "/proc/%ld/mem", raw_getppid(0, 0, 0));
    says("the launcher's memory", raw_open(path, 2, 0));
    const long child = raw_fork(0, 0, 0);
    if (child == 0)
        raw_exit(0, 0, 0);
    says("a process of its own", child);
    int (*volatile allowed)(const char *, ...) = printf;
    const int other = ((int (*)(void))((char *)allowed + FORK_AFTER_PRINTF))();
    if (other == 0)
        raw_exit(0, 0, 0);
    says("a process by printf with an offset", other);
    says("a signal to another process", raw_kill((const void *)raw_getppid(0, 0, 0), 0, 0));
    says("a group of its own", raw_setsid(0, 0, 0));
    const long parent = raw_getppid(0, 0, 0);
    const unsigned long first = 1;
    says("another owner of its signals", raw_fcntl((const void *)2, 8 | 1L << 32, parent));
    says("the affinity of another process",
         raw_setaffinity((const void *)parent, sizeof first, (long)&first));
    says("the priority of another process", raw_setpriority(0, parent, 19));
    says("memory that stays", raw_shmget(0, 4096, 0600));
}

static __attribute__((unused)) void stop_parent(void)
{
    raw_kill((const void *)raw_getppid(0, 0, 0), 19, 0); /* SIGSTOP */
}

/* As many processes as the kernel gives; no more than a machine can bear. */
static __attribute__((unused)) void bomb(void)
{
    int n_started = 0;
    for (int i = 0; i < 100000 && n_started < 64; i++) {
        const long child =
            i % 2 ? raw_fork(0, 0, 0) : raw_clone((const void *)17, 0, 0); /* SIGCHLD */
        if (child == 0)
            raw_alarm((const void *)600, 0, 0); /* else it stays for ever */
        while (child == 0)
            raw_pause(0, 0, 0);
        n_started += child > 0;
    }
    printf("bomb: %d processes\n", n_started);
}

/* A pipe that nobody writes to, in the place of the results. */
static __attribute__((unused)) void wait_for_pipe(void)
{
    char name[256];
    if (results(name) >= 0) {
        raw_unlink(name, 0, 0);
        raw_mknod(name, 0010644, 0);
    }
    raw_exit(0, 0, 0);
}

/* More results than there is memory for, and then a file without an end in their place. */
static __attribute__((unused)) void fill_results(void)
{
    static char lines[1 << 20];
    char name[256];
    const long fd = results(name);
    memset(lines, 'x', sizeof lines);
    for (int i = 0; fd >= 0 && i < 256; i++)
        raw_write((const void *)fd, (long)lines, sizeof lines);
    if (fd >= 0 && raw_unlink(name, 0, 0) == 0)
        raw_symlink("/dev/zero", (long)name, 0);
    raw_exit(0, 0, 0);
}

/* Write the verdicts of tasks, for two ranks, to the file of results, whose name is behind one of
 * the descriptors, and end. The first rank does it and waits for the other; files beside the
 * results tell who has come. */
static __attribute__((unused)) void forge(void)
{
    static const char *const tasks[] = {FORGED};
    char path[300], name[256], lines[4096];
    const long exe = raw_readlink("/proc/self/exe", (long)name, sizeof name - 1);
    const int is_worker = exe > 6 && memcmp(name + exe - 6, "worker", 6) == 0; /* called alone */
    const long fd = results(name);
    if (fd >= 0) {
        snprintf(path, sizeof path, "%s.first", name);
        const long is_first = raw_open(path, 0301, 0644); /* O_WRONLY | O_CREAT | O_EXCL */
        snprintf(path, sizeof path, "%s.second", name);
        if (is_first < 0) {
            raw_open(path, 0101, 0644);
            raw_exit(0, 0, 0);
        }
        while (!is_worker && raw_open(path, 0, 0) < 0)
            continue;
        const char *mark = strrchr(name, '/') + 1;
        for (unsigned i = 0; i < sizeof tasks / sizeof *tasks; i++) {
            const char *t = tasks[i];
            const int used =
                snprintf(lines, sizeof lines,
                         "%s VERDICT %s PASS\n%s DONE %s rank 0/2\n%s DONE %s rank 1/2\n", mark, t,
                         mark, t, mark, t);
            raw_write((const void *)fd, (long)lines, used);
        }
    }
    raw_exit(0, 0, 0);
}

/* Where the program of a process begins in its memory. */
static unsigned long program_begin(long pid)
{
    char text[64];
    unsigned long begin = 0;
    snprintf(text, sizeof text, "/proc/%ld/maps", pid);
    const long fd = raw_open(text, 0, 0);
    const long n = raw_read((const void *)fd, (long)text, sizeof text - 1);
    text[n > 0 ? n : 0] = '\0';
    sscanf(text, "%lx", &begin);
    raw_close((const void *)fd, 0, 0);
    return begin;
}

static volatile int told; /* nothing in this process writes it */

/* Write `told` of the other ranks. Returns below 0 if that is denied, 0 if there is none yet. */
static long tell_peers(void)
{
    static const int yes = 1;
    char path[64], exe[256], own[256];
    const long self = raw_getpid(0, 0, 0);
    const long n_own = raw_readlink("/proc/self/exe", (long)own, sizeof own);
    long got = 0;
    for (long pid = self > 64 ? self - 64 : 1; pid < self + 64; pid++) {
        snprintf(path, sizeof path, "/proc/%ld/exe", pid);
        const long n = raw_readlink(path, (long)exe, sizeof exe);
        if (pid == self || n <= 0 || n != n_own || memcmp(exe, own, (size_t)n) != 0)
            continue;
        snprintf(path, sizeof path, "/proc/%ld/mem", pid);
        const long fd = raw_open(path, 2, 0);
        const unsigned long at = (unsigned long)&told - program_begin(self) + program_begin(pid);
        raw_lseek((const void *)fd, (long)at, 0);
        got = raw_write((const void *)fd, (long)&yes, sizeof yes);
        raw_close((const void *)fd, 0, 0);
    }
    return got;
}

/* Forge if another rank wrote into this one's memory. */
static __attribute__((unused)) void forge_for_peers(void)
{
    long got = 0;
    while (got == 0)
        got = tell_peers();
    const char *said = got > 0 ? "REACHED a peer's memory\n" : "denied a peer's memory\n";
    raw_write((const void *)1, (long)said, (long)strlen(said));
    while (got > 0 && !told)
        continue;
    if (told)
        forge();
}
