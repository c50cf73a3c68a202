/* gadget.c -- for submission_test.sh, which puts this into a handed-in file: tries to get out of
 * the grader by system calls that no check of sources or objects sees, and prints what works.
 *
 * A constant of 64 bits holds the instructions of a system call; the code is called beside its
 * beginning. SECRET and OUTSIDE are paths that the test writes here. */
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
CALL(raw_open, 2)
CALL(raw_socket, 41)
CALL(raw_fork, 57)
CALL(raw_kill, 62)
CALL(raw_getppid, 110)
CALL(raw_ptrace, 101)
CALL(raw_unshare, 272)
CALL(raw_exit, 231)

static void says(const char *what, long got)
{
    printf("%s %s\n", got >= 0 ? "REACHED" : "denied", what);
}

static __attribute__((unused)) void try_all(void)
{
    static int n;
    char path[64];
    if (n++ > 0)
        return;
    says("a hidden test", raw_open("SECRET/hidden1.c", 0, 0));
    says("a solution", raw_open("SOLUTIONS/lab1_flatparam/wrap.c", 0, 0));
    says("a file outside", raw_open("OUTSIDE", 0101, 0644)); /* O_WRONLY | O_CREAT */
    says("the graded tree", raw_open("build/flags", 01, 0));
    says("the system", raw_open("/usr/bin/env", 01, 0));
    says("a network", raw_socket((const void *)2, 1, 0));
    says("a user namespace", raw_unshare((const void *)0x10000000, 0, 0));
    says("ptrace", raw_ptrace((const void *)16, raw_getppid(0, 0, 0), 0));
    snprintf(path, sizeof path, "/proc/%d/mem", JUDGE);
    says("the grader's memory", raw_open(path, 2, 0));
    const long child = raw_fork(0, 0, 0);
    if (child == 0)
        raw_exit(0, 0, 0);
    says("a process of its own", child);
}

static __attribute__((unused)) void stop_parent(void)
{
    raw_kill((const void *)raw_getppid(0, 0, 0), 19, 0); /* SIGSTOP */
}
