/* wrecks.c -- tasks that crash, exit and hang, for the test of the grader (grade_test.sh). Each
 * fails on rank 1 only, after a collective. */
#include <stdlib.h>
#include <unistd.h>
#include "tests/grade/grade_lib.h"

static volatile int zero;

static fsdp_status meet(grade *g, const char *label)
{
    TRY(comm_barrier(g->comm, g->compute, label));
    return stream_sync(g->compute);
}

static int recurse(int depth)
{
    char volatile local[4096];
    local[depth % 4096] = 1;
    return zero != 0 ? 0 : recurse(depth + 1) + local[0];
}

__attribute__((noinline)) static fsdp_status wreck_segv(void)
{
    *(volatile int *)(uintptr_t)zero = 1;
    return FSDP_OK;
}

__attribute__((noinline)) static fsdp_status wreck_loop(void)
{
    while (zero == 0)
        continue;
    return FSDP_OK;
}

static fsdp_status segv(grade *g)
{
    TRY(meet(g, "before"));
    return g->rank == 1 ? wreck_segv() : meet(g, "after");
}

static fsdp_status overflow(grade *g)
{
    return g->rank == 1 && recurse(0) ? FSDP_EINVAL : meet(g, "after");
}

static fsdp_status asserts(grade *g)
{
    FSDP_ASSERT_EQ(g->rank == 1, 0);
    return meet(g, "after");
}

static fsdp_status exits(grade *g)
{
    if (g->rank == 1)
        exit(0);
    return meet(g, "after");
}

static fsdp_status exits_at_once(grade *g)
{
    if (g->rank == 1)
        _exit(0);
    return meet(g, "after");
}

static fsdp_status loops(grade *g)
{
    return g->rank == 1 ? wreck_loop() : meet(g, "after");
}

static fsdp_status waits(grade *g)
{
    if (g->rank == 1)
        pause();
    return meet(g, "after");
}

static fsdp_status passes(grade *g)
{
    return meet(g, "all is well");
}

static void leak_found(void)
{
    static const char line[] = "stand-in: aclFinalize: 110 blocks are live\n";
    if (write(STDERR_FILENO, line, sizeof line - 1) > 0)
        _exit(3);
}

static fsdp_status ends_badly(grade *g)
{
    atexit(leak_found);
    return meet(g, "all is well");
}

int main(int argc, char **argv)
{
    static const grade_task tasks[] = {{"9.1", segv},  {"9.2", overflow},      {"9.3", asserts},
                                       {"9.4", exits}, {"9.5", exits_at_once}, {"9.6", loops},
                                       {"9.7", waits}, {"9.8", passes},        {"9.9", ends_badly}};
    return grade_main(argc, argv, tasks, (int)(sizeof tasks / sizeof *tasks));
}
