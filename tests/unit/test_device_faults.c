/* test_device_faults.c -- wrong use of device.h must abort the program with a message, and
 * device_mem_available must know the limits on memory. Both need a child process. */
#include "common/device/dry.h"
#include "common/base/page.h"
#include "tests/unit/device_lib.h"
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- programmer errors, in a child that must abort ------------------------------------------ */
typedef void fault_body(device *d, stream *s);
typedef struct fault {
    const device_backend *backend;
    fault_body *body;
} fault;

static int run_fault(void *arg)
{
    const fault *f = arg;
    device *d = open_mode(&(device_mode){.backend = f->backend}, false);
    f->body(d, device_compute_stream(d));
    return 0;
}

static void expect_abort_on(const device_backend *b, fault_body *body, const char *words)
{
    const child_end *end = run_child(run_fault, &(fault){b, body});
    if (!ended_by(end, SIGABRT) || !strstr(end->text, words))
        fail_msg("expected an abort with \"%s\", got wait status %d and: %s", words, end->status,
                 end->text);
}

static void expect_abort(fault_body *body, const char *words)
{
    expect_abort_on(&device_cpu, body, words);
}

static void *must_alloc(stream *s, size_t bytes)
{
    void *ptr = NULL;
    OK(device_alloc(s, MEM_GRADS_FULL, bytes, "block x", &ptr));
    return ptr;
}

static void body_double_free(device *d, stream *s)
{
    void *ptr = must_alloc(s, 100);
    device_free(s, ptr);
    device_free(s, ptr);
}

static void body_double_free_queued(device *d, stream *s)
{
    sem_t gate;
    stream *worker = new_stream(d, "worker");
    void *ptr = must_alloc(s, 100);
    close_gate(worker, &gate);
    device_free(worker, ptr);
    device_free(worker, ptr);
}

static void body_foreign(device *d, stream *s)
{
    static _Alignas(64) char foreign[512];
    device_free(s, foreign + 256);
}

static void body_misaligned(device *d, stream *s)
{
    device_free(s, (char *)must_alloc(s, 100) + 4);
}

static void body_write_before(device *d, stream *s)
{
    volatile char *ptr = must_alloc(s, 100);
    ptr[-1] = 0;
    device_free(s, (void *)ptr);
}

static void body_write_behind(device *d, stream *s)
{
    volatile char *ptr = must_alloc(s, 100);
    ptr[100] = 0;
    device_free(s, (void *)ptr);
}

static void body_live_at_close(device *d, stream *s)
{
    device_free(s, must_alloc(s, 99));
    (void)must_alloc(s, 777);
    device_close(d);
}

static fsdp_status run_sync_own(void *args, int n_threads)
{
    return stream_sync(*(stream **)args);
}

static void body_sync_from_task(device *d, stream *s)
{
    s = new_stream(d, "worker");
    OK(stream_launch(s, run_sync_own, &s, sizeof s));
    (void)stream_sync(s);
}

static void body_free_compute(device *d, stream *s)
{
    stream_free(s);
}

TEST(test_programmer_errors)
{
    if (!UNDER_ASAN) { /* the sanitizer reports these three itself */
        expect_abort(body_double_free, "block 'block x' (100 bytes) is already free");
        expect_abort(body_write_behind, "after its end");
        expect_abort(body_foreign, "not from device_alloc");
    }
    expect_abort(body_double_free_queued, "block 'block x' (100 bytes) is already free");
    expect_abort(body_misaligned, "freed pointer is not from");
    expect_abort(body_write_before, "before its start");
    expect_abort(body_live_at_close, "block 'block x' (grads_full, 777 bytes) was never freed");
    expect_abort(body_sync_from_task, "own stream");
    expect_abort(body_free_compute, "belongs to its device");
    const device_backend *dry = device_dry(DRY_POOL);
    expect_abort_on(dry, body_live_at_close, "'block x' (grads_full, 777 bytes) was never freed");
    expect_abort_on(dry, body_double_free, "freed pointer is not from");
    expect_abort_on(dry, body_misaligned, "freed pointer is not from");
}

/* ---- memory that is left -------------------------------------------------------------------- */
static void write_file(const char *root, const char *path, const char *text)
{
    char full[512];
    snprintf(full, sizeof full, "%s/%s", root, path);
    for (char *slash = strchr(full + strlen(root) + 1, '/'); slash;
         slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        (void)mkdir(full, 0700);
        *slash = '/';
    }
    FILE *f = fopen(full, "w");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
}

TEST(test_mem_available_sources)
{
    char root[] = "/tmp/test_device.XXXXXX", command[64];
    assert_non_null(mkdtemp(root));
    assert_true(host_mem_available(root) == SIZE_MAX); /* nothing readable: nothing known */
    write_file(root, "proc/meminfo", "MemTotal: 900 kB\nMemFree:  100 kB\nMemAvailable:  500 kB\n");
    assert_int_equal(host_mem_available(root), 512000);
    /* v2: the enclosing group has the tighter limit; inactive file pages count as free */
    write_file(root, "proc/self/cgroup", "0::/a/b\n");
    write_file(root, "sys/fs/cgroup/a/b/memory.max", "max\n");
    write_file(root, "sys/fs/cgroup/a/b/memory.current", "1000\n");
    assert_int_equal(host_mem_available(root), 512000);
    write_file(root, "sys/fs/cgroup/a/memory.max", "400000\n");
    write_file(root, "sys/fs/cgroup/a/memory.current", "300000\n");
    assert_int_equal(host_mem_available(root), 100000);
    write_file(root, "sys/fs/cgroup/a/memory.stat", "anon 5\ninactive_file 50000\nx 1\n");
    assert_int_equal(host_mem_available(root), 150000);
    write_file(root, "sys/fs/cgroup/a/b/memory.max", "90000\n");
    assert_int_equal(host_mem_available(root), 89000);
    write_file(root, "sys/fs/cgroup/a/b/memory.current", "95000\n"); /* over the limit: none left */
    assert_int_equal(host_mem_available(root), 0);
    /* a container: the path cannot be seen, and the root of the mount has the figures */
    write_file(root, "proc/self/cgroup", "0::/somewhere/outside\n");
    assert_int_equal(host_mem_available(root), 512000);
    write_file(root, "sys/fs/cgroup/memory.max", "70000\n");
    write_file(root, "sys/fs/cgroup/memory.current", "10000\n");
    assert_int_equal(host_mem_available(root), 60000);
    /* v1 */
    write_file(root, "proc/self/cgroup",
               "12:cpu,cpuacct:/j\n4:memory_not:/k\n5:not_memory:/k\n3:hugetlb,memory:/j\n");
    write_file(root, "sys/fs/cgroup/memory/j/memory.limit_in_bytes", "80000\n");
    write_file(root, "sys/fs/cgroup/memory/j/memory.usage_in_bytes", "50000\n");
    write_file(root, "sys/fs/cgroup/memory/k/memory.limit_in_bytes", "2\n"); /* not ours */
    write_file(root, "sys/fs/cgroup/memory/k/memory.usage_in_bytes", "1\n");
    assert_int_equal(host_mem_available(root), 30000);
    write_file(root, "sys/fs/cgroup/memory/j/memory.stat", "total_inactive_file 20000\n");
    assert_int_equal(host_mem_available(root), 50000);
    snprintf(command, sizeof command, "rm -rf %s", root);
    assert_int_equal(system(command), 0);
}

/* A body for a child process limits `resource` itself, and returns 0 for success. */
typedef struct limited {
    int (*body)(device *d, stream *s, int resource);
    int resource;
} limited;

static int run_limited(void *arg)
{
    const limited *l = arg;
    device *d = open_cpu(false, false);
    return l->body(d, device_compute_stream(d), l->resource);
}

static size_t process_bytes(int resource)
{
    const char *key = resource == RLIMIT_AS ? "VmSize:" : "VmData:";
    FILE *f = fopen("/proc/self/status", "r");
    char line[256];
    size_t kb = 0;
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, key, 7) == 0)
            kb = strtoul(line + 7, NULL, 10);
    if (f)
        fclose(f);
    return kb * 1024;
}

enum { MB = 1 << 20 };

static int limit_to(int resource, size_t slack_bytes)
{
    rlim_t limit = process_bytes(resource) + slack_bytes;
    return setrlimit((__rlimit_resource_t)resource, &(struct rlimit){limit, limit});
}

/* device_mem_available follows the limit. Margin: between the reading of the present use and the
 * call, stdio and malloc may map a little; 1 MB is far more than they take. */
static int body_figure(device *d, stream *s, int resource)
{
    void *ptr = NULL;
    if (limit_to(resource, 200 * (size_t)MB) != 0)
        return 1;
    size_t available = device_mem_available(d);
    if (available > 200 * (size_t)MB || available < 199 * (size_t)MB)
        return 2;
    if (device_alloc(s, MEM_OTHER, 150 * (size_t)MB, "most", &ptr) != FSDP_OK)
        return 3;
    if (device_mem_available(d) > 51 * (size_t)MB)
        return 4;
    void *more = NULL;
    if (device_alloc(s, MEM_OTHER, 100 * (size_t)MB, "too much", &more) != FSDP_ENOMEM)
        return 5;
    device_free(s, ptr); /* cached, but available: given back when needed */
    return device_mem_available(d) >= 199 * (size_t)MB ? 0 : 6;
}

/* 120 MB cached and 120 MB of another size do not fit into 200 MB: the cache must be released
 * without an error. */
static int body_cache_released(device *d, stream *s, int resource)
{
    void *ptr = NULL;
    if (limit_to(resource, 200 * (size_t)MB) != 0)
        return 1;
    for (int i = 0; i < 4; i++) {
        if (device_alloc(s, MEM_OTHER, (120 + (size_t)i) * MB, "in turn", &ptr) != FSDP_OK)
            return 2;
        device_free(s, ptr);
        if (cpu_pool_cached_bytes(pool_of(d)) < 120 * (size_t)MB)
            return 3;
    }
    device_close(d);
    return 0;
}

/* The same with 150 blocks of 1 MB, which malloc serves, after 120 MB have been cached. */
static int body_cache_released_small(device *d, stream *s, int resource)
{
    void *ptr = NULL, *small[150];
    if (limit_to(resource, 200 * (size_t)MB) != 0)
        return 1;
    if (device_alloc(s, MEM_OTHER, 120 * (size_t)MB, "cached", &ptr) != FSDP_OK)
        return 2;
    device_free(s, ptr);
    for (int i = 0; i < 150; i++)
        if (device_alloc(s, MEM_OTHER, MB, "small", &small[i]) != FSDP_OK)
            return 3;
    for (int i = 0; i < 150; i++)
        device_free(s, small[i]);
    device_close(d);
    return 0;
}

TEST(test_limits_of_the_process)
{
    if (UNDER_ASAN || UNDER_TSAN)
        skip(); /* their shadow memory is beyond any limit */
    limited runs[] = {{body_figure, RLIMIT_AS},
                      {body_figure, RLIMIT_DATA},
                      {body_cache_released, RLIMIT_AS},
                      {body_cache_released_small, RLIMIT_AS}};
    for (int i = 0; i < 4; i++)
        assert_int_equal(run_child(run_limited, &runs[i])->status, 0);
}

ON_THIS(test_mem_available_is_plausible, open_cpu(false, false))
{
    size_t available = device_mem_available(d);
    size_t physical = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
    assert_true(available > MB && available <= physical);
}

/* The ends of a mapping that lie outside the aligned range are unmapped. Margin: the test itself
 * maps nothing else, so one large mapping's worth is ample. */
TEST(test_host_map)
{
    if (UNDER_ASAN || UNDER_TSAN)
        skip(); /* their own mappings count too */
    enum { N = 24 };
    char *ptr[N];
    size_t bytes[N], sum_bytes = 0, before = process_bytes(RLIMIT_AS);
    for (int i = 0; i < N; i++) {
        bytes[i] = 2 * (size_t)MB + PAGE_BYTES * (size_t)(17 * i + 1);
        sum_bytes += bytes[i];
        ptr[i] = host_map(bytes[i], 8 * (size_t)MB); /* more than kernels align by themselves */
        assert_non_null(ptr[i]);
        assert_int_equal((uintptr_t)ptr[i] % (8 * (size_t)MB), 0);
        ptr[i][0] = ptr[i][bytes[i] - 1] = 1;
    }
    assert_uint_in_range(process_bytes(RLIMIT_AS) - before, sum_bytes, sum_bytes + 2 * (size_t)MB);
    for (int i = 0; i < N; i++)
        assert_int_equal(munmap(ptr[i], bytes[i]), 0);
    assert_true(process_bytes(RLIMIT_AS) <= before + 2 * (size_t)MB);
}

int main(void)
{
    alarm(600); /* a deadlock is a failure, not a hang */
    return tests_run(NULL, NULL);
}
