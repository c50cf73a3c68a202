/* test_separate.c -- device_separate: who may touch device memory, and how wrong accesses are
 * reported.
 *
 * Each planted access runs in a child, which must end with a message that names the block, the byte
 * and the place. test_device.c, test_device_watch.c and test_device_stress.c test the rest, on this
 * device too. */
#include "common/device/instruments/separate.h"
#include <errno.h>
#include <fcntl.h>
#include <omp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>
#include "common/device/cpu_tiles.h"
#include "common/device/guard.h"
#include "common/ops/backends.h"
#include "tests/unit/device_lib.h"

enum { VICTIM_BYTES = 10000, BYTE = 5000 };

static int n_planted; /* accesses that were caught */

/* ---- kernels --------------------------------------------------------------------------------- */
typedef struct touch_args {
    volatile unsigned char *ptr;
    unsigned char add;
    ptrdiff_t step; /* for touch_tile: distance between the bytes of two threads */
    sem_t *begun;   /* for run_touch_and_wait */
} touch_args;

/* *ptr += add. Messages name this function as the place if the host or an on_host launch calls
 * it. */
static fsdp_status run_touch(void *args, int n_threads)
{
    const touch_args *a = args;
    *a->ptr = (unsigned char)(*a->ptr + a->add);
    return FSDP_OK;
}

static stream_fn volatile touch = run_touch; /* neither inlined nor cloned */

static fsdp_status touch_tile(const void *args, size_t tile)
{
    touch_args a = *(const touch_args *)args;
    a.ptr += omp_get_thread_num() * a.step;
    return touch(&a, 1);
}

/* Each of two threads touches its own byte. The tiles wait for each other, so that two threads take
 * part. */
static fsdp_status touch_tile_together(const void *args, size_t tile)
{
    static atomic_int n_here;
    atomic_fetch_add(&n_here, 1);
    while (atomic_load(&n_here) % 2 != 0)
        usleep(10);
    return touch_tile(args, tile);
}

static fsdp_status run_tiles(void *args, int n_threads)
{
    return tiles_run(n_threads, 2, touch_tile_together, args);
}

static fsdp_status launch(stream *s, stream_fn fn, void *ptr, bool on_host)
{
    touch_args a = {.ptr = ptr, .add = 1, .step = 1};
    return stream_launch_work(
        s, &(launch_config){.fn = fn, .args = &a, .args_bytes = sizeof a, .on_host = on_host});
}

/* ---- planted accesses ------------------------------------------------------------------------ */

/* The arguments of a body: the device, its stream, and a block of VICTIM_BYTES zero bytes. */
typedef struct victim {
    device *d;
    stream *s;
    unsigned char *ptr;
} victim;

static victim new_victim(device *d)
{
    victim v = {.d = d, .s = device_compute_stream(d)};
    v.ptr = new_block(v.s, VICTIM_BYTES, "victim");
    OK(device_zero(v.s, v.ptr, VICTIM_BYTES));
    OK(stream_sync(v.s));
    return v;
}

/* Runs on a new device in a child; the child's exit status is the body's result. */
typedef int body_fn(victim *v);

static int on_new_device(void *arg)
{
    device *d = NULL;
    OK(device_open(
        &(device_config){.backend = &device_separate, .n_threads = 2, .rank = 1, .n_ranks = 3},
        &d));
    victim v = new_victim(d);
    return (*(body_fn **)arg)(&v);
}

static const child_end *run_body(body_fn *body)
{
    return run_child(on_new_device, &body);
}

#ifdef PKEY_DISABLE_ACCESS
static bool has_keys(void)
{
    int key = pkey_alloc(0, 0);
    return key >= 0 && pkey_free(key) == 0;
}

static void take_all_keys(void)
{
    while (pkey_alloc(0, 0) >= 0) {
    }
}
#else /* a C library without these functions */
static bool has_keys(void)
{
    return false;
}

static void take_all_keys(void)
{
}
#endif

/* AddressSanitizer without keys only poisons memory: an access ends the process with the
 * sanitizer's message, not a signal, and is not caught while a launch runs. */
static bool by_poison(void)
{
    return UNDER_ASAN && !has_keys();
}

static void skip_if(bool skipped, const char *why)
{
    if (!skipped)
        return;
    printf("SKIP %s\n", why);
    skip();
}

static void need_omp(void)
{
    if (UNDER_TSAN)
        skip(); /* ThreadSanitizer does not see how the threads of a region synchronise */
}

/* The access must end the child with a message that names its byte and place (NULL: in a
 * library). */
static void expect_caught(body_fn *body, const char *block, int byte, stream_fn place)
{
    const child_end *end = run_body(body);
    char words[128];
    unsigned long long at = 0;
    snprintf(words, sizeof words, "[rank 1/3] host access to device memory: '%s), byte %d, by ",
             block, byte);
    const char *line = strstr(end->text, words), *hint = strstr(end->text, "\nHINT: read it with ");
    bool ended = by_poison() ? end->status != 0 : ended_by(end, SIGSEGV);
    if (!ended || !line || !hint)
        fail_msg("expected \"%s\", got wait status %d and: %s", words, end->status, end->text);
    if (strstr(line + strlen(words), "host access"))
        fail_msg("expected one message, got: %s", end->text);
    const char *program = strstr(line, "test_separate(+0x"), *address;
    address = program ? strchr(program, '[') : NULL;
    if (!address || sscanf(address + 1, "%llx", &at) != 1)
        fail_msg("expected a place in this program, got: %s", end->text);
    if (place && (at < (uintptr_t)place || at >= (uintptr_t)place + 1024))
        fail_msg("expected a place from %p on, got: %s", (void *)(uintptr_t)place, end->text);
    n_planted++;
}

#define VICTIM "victim' (10000 bytes"

static int host_touches(victim *v)
{
    return (int)touch(&(touch_args){.ptr = v->ptr + BYTE}, 1);
}

static int host_touches_behind(victim *v)
{
    return (int)touch(&(touch_args){.ptr = v->ptr + VICTIM_BYTES}, 1);
}

static int host_touches_first(victim *v)
{
    return (int)touch(&(touch_args){.ptr = v->ptr}, 1);
}

static int host_copies(victim *v)
{
    static char host[VICTIM_BYTES];
    memcpy(host, v->ptr, sizeof host);
    return host[BYTE];
}

static int host_touches_freed(victim *v)
{
    device_free(v->s, v->ptr);
    OK(stream_sync(v->s));
    return host_touches(v);
}

static int host_touches_while_a_kernel_runs(victim *v)
{
    sem_t gate;
    close_gate(v->s, &gate);
    return host_touches(v);
}

static sem_t never;

static fsdp_status run_touch_and_wait(void *args, int n_threads)
{
    fsdp_status status = run_touch(args, n_threads);
    sem_post(((touch_args *)args)->begun);
    sem_wait(&never);
    return status;
}

/* Only protection keys catch this access, because the running kernel has opened the memory. */
static int host_touches_what_a_kernel_uses(victim *v)
{
    sem_t begun;
    sem_init(&begun, 0, 0);
    sem_init(&never, 0, 0);
    touch_args a = {.ptr = v->ptr, .add = 1, .begun = &begun};
    OK(stream_launch(v->s, run_touch_and_wait, &a, sizeof a));
    sem_wait(&begun);
    return host_touches(v);
}

static int upload_from_device(victim *v)
{
    void *other = new_block(v->s, 100, "other");
    OK(device_upload(v->s, other, v->ptr, 100));
    return (int)stream_sync(v->s);
}

static int on_host_launch_touches(victim *v)
{
    OK(launch(v->s, run_touch, v->ptr + BYTE, false));
    OK(launch(v->s, run_touch, v->ptr + BYTE, true));
    return (int)stream_sync(v->s);
}

/* The second region runs on the threads of the first. */
static int on_host_tiles_touch(victim *v)
{
    OK(launch(v->s, run_tiles, v->ptr, false));
    OK(launch(v->s, run_tiles, v->ptr, true));
    return (int)stream_sync(v->s);
}

static void *thread_main(void *v)
{
    (void)host_touches(v);
    return NULL;
}

static int foreign_thread_touches(victim *v)
{
    pthread_t thread;
    pthread_create(&thread, NULL, thread_main, v);
    return pthread_join(thread, NULL);
}

static uint64_t tell(void *self, const device_act *act)
{
    return act->kind == ACT_LAUNCH;
}

static void touch_when_told(void *self, const device_act *act)
{
    (void)host_touches(self);
}

/* The watch is called in the stream's thread after the task. */
static int watch_touches(victim *v)
{
    device_set_watch(v->d, &(device_watch){v, tell, touch_when_told});
    OK(launch(v->s, run_touch, v->ptr, false));
    return (int)stream_sync(v->s);
}

TEST(test_planted_accesses)
{
    expect_caught(host_touches, VICTIM, BYTE, run_touch);
    expect_caught(host_touches_first, VICTIM, 0, run_touch);
    expect_caught(host_touches_behind, VICTIM, VICTIM_BYTES, run_touch);
    expect_caught(foreign_thread_touches, VICTIM, BYTE, run_touch);
    expect_caught(on_host_launch_touches, VICTIM, BYTE, run_touch);
    expect_caught(watch_touches, VICTIM, BYTE, run_touch);
    if (!UNDER_ASAN) /* ASan reads the block itself, or frees it at once */
        expect_caught(host_touches_freed, VICTIM ", freed", BYTE, run_touch);
    if (!UNDER_ASAN && !UNDER_TSAN) {
        expect_caught(host_copies, VICTIM, 0, NULL);
        expect_caught(upload_from_device, VICTIM, 0, NULL);
    }
}

TEST(test_planted_while_a_kernel_runs)
{
    skip_if(by_poison(), "poisoned memory is open to all while a kernel runs");
    expect_caught(host_touches_while_a_kernel_runs, VICTIM, BYTE, run_touch);
}

TEST(test_planted_in_what_a_kernel_uses)
{
    skip_if(!has_keys(), "without protection keys, a block that a kernel uses is open to all");
    expect_caught(host_touches_what_a_kernel_uses, VICTIM, BYTE, run_touch);
}

/* Either thread may come first. */
TEST(test_planted_access_of_tiles)
{
    need_omp();
    const child_end *end = run_body(on_host_tiles_touch);
    assert_int_not_equal(end->status, 0);
    assert_non_null(strstr(end->text, "'" VICTIM "), byte "));
    n_planted++;
}

/* ---- an access while another thread opens the memory ----------------------------------------- */

static sem_t seen, opened;
static char *shared_pages;

static void *open_when_seen(void *unused)
{
    guard_right_set(true);
    sem_wait(&seen);
    *(volatile char *)(shared_pages + PAGE_BYTES) = 1;
    sem_post(&opened);
    pause();
    return NULL;
}

static void let_it_be_opened(const void *addr, const void *context)
{
    sem_post(&seen);
    sem_wait(&opened);
}

/* Runs in a child. Without keys the worker opens the memory while the fault is being reported. */
static int host_touches_before_work(victim *v)
{
    pthread_t worker;
    sem_init(&seen, 0, 0);
    sem_init(&opened, 0, 0);
    guard_open(let_it_be_opened);
    shared_pages = guard_map((size_t)2 * PAGE_BYTES);
    pthread_create(&worker, NULL, open_when_seen, NULL);
    return *(volatile char *)(shared_pages + PAGE_BYTES) == 2;
}

TEST(test_forbidden_access_ends)
{
    skip_if(by_poison(), "AddressSanitizer tells faults itself");
    assert_true(ended_by(run_body(host_touches_before_work), SIGSEGV));
}

/* System calls on device memory must fail. */
static int system_calls_refuse(victim *v)
{
    int null = open("/dev/null", O_WRONLY), zero = open("/dev/zero", O_RDONLY), fds[2];
    if (pipe(fds) != 0 || write(null, "x", 1) != 1)
        return 1;
    if (write(fds[1], v->ptr, 10) >= 0 || errno != EFAULT)
        return 2;
    if (read(zero, v->ptr, 10) >= 0 || errno != EFAULT)
        return 3;
    return 0;
}

TEST(test_system_calls_refuse)
{
    skip_if(by_poison(), "poisoned memory is open to system calls");
    assert_int_equal(run_body(system_calls_refuse)->status, 0);
    n_planted += 2;
}

/* The host may write to the page before the payload; the write is found when the block is freed. */
static int host_writes_before(victim *v)
{
    v->ptr[-1] = 0;
    device_free(v->s, v->ptr);
    return 0;
}

/* A kernel may write to the rest of the last page; the write is found when the block is freed. */
static int kernel_writes_behind(victim *v)
{
    OK(launch(v->s, run_touch, v->ptr + VICTIM_BYTES, false));
    device_free(v->s, v->ptr);
    return (int)stream_sync(v->s);
}

static int host_touches_nothing(victim *v)
{
    v->ptr = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return (int)touch(&(touch_args){.ptr = v->ptr}, 1);
}

TEST(test_other_faults_stay)
{
    if (UNDER_ASAN) /* ASan has its own reports */
        skip();
    const child_end *end = run_body(host_writes_before);
    assert_true(ended_by(end, SIGABRT));
    assert_non_null(strstr(end->text, "before its start"));
    end = run_body(kernel_writes_behind);
    assert_true(ended_by(end, SIGABRT));
    assert_non_null(strstr(end->text, "'victim' has 10000 bytes"));
    end = run_body(host_touches_nothing);
    assert_null(strstr(end->text, "host access"));
    if (!UNDER_TSAN) /* TSan ends the process itself */
        assert_true(ended_by(end, SIGSEGV));
}

/* ---- work that may touch device memory ------------------------------------------------------- */

/* The region's other thread was started by work that has no right to device memory. Each thread has
 * its own block: without protection keys, the first access to a block opens it to both threads. */
TEST(test_tiles_get_the_right)
{
    static unsigned char host[2], back[2][2];
    need_omp();
    device *d = open_mode(&SEPARATE, false);
    victim v = new_victim(d), other = new_victim(d);
    touch_args a = {.ptr = v.ptr, .add = 1, .step = other.ptr - v.ptr};
    OK(launch(v.s, run_tiles, host, true));
    OK(stream_launch(v.s, run_tiles, &a, sizeof a));
    OK(device_download(v.s, back[0], v.ptr, 2));
    OK(device_download(v.s, back[1], other.ptr, 2));
    OK(stream_sync(v.s));
    assert_true(host[0] == 1 && host[1] == 1);
    for (int i = 0; i < 2; i++)
        assert_true(back[i][0] == 1 && back[i][1] == 0);
    assert_false(guard_right());
    device_free(v.s, v.ptr);
    device_free(v.s, other.ptr);
    device_close(d);
}

/* A kernel runs touch on this stack. The test then looks how far touch, or a fault in it, has
 * written down from the stack's end. */
static unsigned char own_stack[1 << 16];
static touch_args touch_from_there;

static void touch_on_own_stack(void)
{
    (void)touch(&touch_from_there, 1);
}

static fsdp_status run_on_own_stack(void *args, int n_threads)
{
    ucontext_t here, there;
    touch_from_there = *(const touch_args *)args;
    memset(own_stack, 0x5a, sizeof own_stack);
    getcontext(&there);
    there.uc_stack = (stack_t){.ss_sp = own_stack, .ss_size = sizeof own_stack};
    there.uc_link = &here;
    makecontext(&there, touch_on_own_stack, 0);
    return swapcontext(&here, &there) == 0 ? FSDP_OK : FSDP_EIO;
}

/* A fault that opens memory to a kernel must write nothing below the kernel's stack pointer,
 * because generated code of a library may keep data there. A signal frame takes more than a
 * kilobyte. */
TEST(test_faults_have_a_stack)
{
    if (UNDER_ASAN || UNDER_TSAN) /* sanitizers write there themselves */
        skip();
    device *d = open_mode(&SEPARATE, false);
    victim v = new_victim(d);
    size_t first = 0;
    OK(launch(v.s, run_on_own_stack, v.ptr, false));
    OK(stream_sync(v.s));
    while (own_stack[first] == 0x5a)
        first++;
    assert_uint_in_range(sizeof own_stack - first, 1, 1024);
    device_free(v.s, v.ptr);
    device_close(d);
}

/* ---- host memory, ledgers --------------------------------------------------------- */
static size_t host_live(device *d)
{
    return ledger_read(device_host_ledger(d)).live_total_bytes;
}

ON_THIS(test_host_memory, open_mode(&SEPARATE, false))
{
    victim v = new_victim(d);
    device_share share;
    unsigned char *host = new_host_block(v.s, 6000, "host");
    assert_int_equal(live_bytes(d), VICTIM_BYTES);
    assert_int_equal(host_live(d), 6000);
    assert_int_equal(device_share_find(d, host + 100, 5000, &share), device_share_fd(d) >= 0);
    assert_false(device_share_find(d, v.ptr, 1, &share));
    memset(host, 3, 6000); /* host access ... */
    OK(launch(v.s, run_touch, host, true));
    OK(launch(v.s, run_touch, host, false)); /* ... and device access */
    OK(device_copy(v.s, v.ptr, host, 6000));
    OK(device_zero(v.s, host, 6000));
    OK(device_copy(v.s, host + 1, v.ptr, 10));
    OK(stream_sync(v.s));
    assert_true(host[0] == 0 && host[1] == 5 && host[2] == 3 && host[11] == 0);
    device_free(v.s, host);
    OK(stream_sync(v.s));
    assert_int_equal(host_live(d), 0);
    assert_int_equal(live_bytes(d), VICTIM_BYTES);
    device_free(v.s, v.ptr);
    OK(stream_sync(v.s));
    assert_int_equal(live_bytes(d), 0);
    assert_int_equal(ledger_read(device_host_ledger(d)).peak_bytes[MEM_OTHER], 6000);
}

/* ---- the table of devices ------------------------------------------------------------------- */
TEST(test_backends)
{
    char names[64] = "";
    for (int i = 0; i < 6; i++) {
        const backend *b = backend_of(i);
        snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s", i ? "|" : "",
                 b->name);
        if (i < 2)
            assert_int_equal(backend_check(i), FSDP_OK);
        if (i < 2)
            assert_string_equal(b->device->name, b->name);
    }
    const ops *o;
    assert_int_equal(backend_ops(0, true, &o), FSDP_OK);
    assert_ptr_equal(o, ops_cpu_portable());
    assert_int_equal(backend_ops(0, false, &o), FSDP_OK);
    assert_ptr_equal(o, ops_cpu_fast());
    assert_int_equal(backend_ops(4, true, &o), FSDP_EINVAL); /* no plug-in is loaded yet */
    assert_says("--device npu has no operations with the CPU's bits");
    assert_string_equal(names, BACKEND_CHOICES);
    assert_int_equal(backend_device_index(5, backend_of(1)->n_devices()), 0);
    assert_int_equal(backend_device_index(5, 4), 1);
    assert_int_equal(backend_device_index(3, 8), 3);
}

static int run_all(void)
{
    alarm(600); /* a deadlock is a failure, not a hang */
    int failed = tests_run(NULL, NULL);
    printf("%d planted host accesses were caught\n", n_planted);
    return failed;
}

/* On a machine with protection keys everything runs twice; a child runs without keys. */
int main(void)
{
    int status = 0;
    if (has_keys()) {
        pid_t child = fork();
        if (child == 0) {
            take_all_keys();
            exit(run_all());
        }
        waitpid(child, &status, 0);
    }
    return run_all() != 0 || status != 0;
}
