/* test_comm_streams.c -- streams of collectives have priority over compute. The test records which
 * priorities a stand-in is asked for. On other devices it is skipped. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "lab5_prefetch/prefetch_setup.h"
#include "tests/unit/target_lib.h"
#include "tests/unit/unit_lib.h"

enum { MOST = 16 };

static int n_streams, level[MOST]; /* a smaller one goes first, in both libraries */

static void note(int at)
{
    if (n_streams < MOST)
        level[n_streams++] = at;
}

/* These two replace the library's functions, and call them. */
int cudaStreamCreateWithPriority(void **out, unsigned flags, int priority)
{
    int (*own)(void **, unsigned, int) = target_symbol(__func__);
    note(priority);
    return own(out, flags, priority);
}

int aclrtCreateStreamWithConfig(void **out, uint32_t priority, uint32_t flags)
{
    int (*own)(void **, uint32_t, uint32_t) = target_symbol(__func__);
    note((int)priority);
    return own(out, priority, flags);
}

/* Makes lab 5's streams `gather` and `reduce`, after all streams that the device makes itself. */
static void streams_make(device *d, comm *world)
{
    fsdp_unit unit = {0};
    fsdp f = {
        .run = {.dev = d, .world = world}, .reduce_group = world, .n_units = 1, .units = &unit};
    reducer r = {.f = &f};
    prefetch p;
    unit_hooks unused;
    OK(prefetch_create(&(prefetch_config){.mode = PREFETCH_BACKWARD, .limit = 2}, &r, &p, &unused));
    prefetch_free(&p);
}

TEST(test_collectives_go_first)
{
    const device_config dc = {
        .backend = target_backend()->device, .n_threads = 1, .index = target_index()};
    const comm_config cc = target_comm(0);
    device *d = NULL;
    comm *world = NULL;
    OK(device_open(&dc, &d));
    OK(comm_open(d, &cc, &world));
    const int n_own = n_streams;
    streams_make(d, world);
    comm_close(world);
    device_close(d);
    assert_true(n_own > 0);
    assert_int_equal(n_streams, n_own + 2);
    for (int i = 0; i < n_own; i++)
        for (int k = n_own; k < n_streams; k++)
            assert_true(level[k] < level[i]);
}

int main(void)
{
    const char *name = getenv("FSDP_DEVICE");
    if (name != NULL && strstr(name, "-sim") != NULL)
        return tests_run(NULL, NULL);
    printf("SKIP it is about cuda-sim and npu-sim: set FSDP_DEVICE\n");
    return 77;
}
