/* device_lib.c -- see device_lib.h. */
#include "tests/unit/device_lib.h"
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include "common/device/instruments/separate.h"
#include "tests/unit/target_lib.h"

device_mode INLINE = {.async = false, .backend = &device_cpu};
device_mode ASYNC = {.async = true, .backend = &device_cpu};
device_mode SEPARATE = {.async = true, .backend = &device_separate};
device_mode TARGET = {.async = true};

int device_tests_run(void)
{
    TARGET.backend = target_backend()->device;
    if (TARGET.backend == &device_cpu)
        tests_leave_out(&TARGET);
    return tests_run(NULL, NULL);
}

device *open_mode(const void *mode, bool debug_fill)
{
    const device_mode *m = mode;
    device *d = NULL;
    fsdp_status status = device_open(&(device_config){.backend = m->backend,
                                                      .n_threads = 2,
                                                      .async_compute = m->async,
                                                      .schedule_seed = m->seed,
                                                      .memory_limit_bytes = m->limit_bytes,
                                                      .debug_fill = debug_fill},
                                     &d);
    if (status == FSDP_ESKIP) {
        printf("SKIP %s\n", fsdp_error_get()->what);
        skip();
    }
    OK(status);
    return d;
}

device *open_cpu(bool async, bool debug_fill)
{
    return open_mode(async ? &ASYNC : &INLINE, debug_fill);
}

device *open_scheduled(uint64_t seed)
{
    device *d = NULL;
    OK(device_open(
        &(device_config){
            .backend = &device_cpu, .n_threads = 1, .debug_fill = true, .schedule_seed = seed},
        &d));
    return d;
}

cpu_pool *pool_of(device *d)
{
    return &((cpu_device *)d)->pool;
}

size_t live_bytes(device *d)
{
    return ledger_read(device_ledger(d)).live_total_bytes;
}

stream *new_stream(device *d, const char *name)
{
    stream *s = NULL;
    OK(stream_create(d, &(stream_config){.name = name}, &s));
    return s;
}

event *new_event(device *d)
{
    event *e = NULL;
    OK(event_create(d, &e));
    return e;
}

void *new_block(stream *s, size_t bytes, const char *label)
{
    void *ptr = NULL;
    OK(device_alloc(s, MEM_OTHER, bytes, label, &ptr));
    return ptr;
}

void *new_host_block(stream *s, size_t bytes, const char *label)
{
    void *ptr = NULL;
    OK(device_alloc_host(s, MEM_OTHER, bytes, label, &ptr));
    return ptr;
}

static fsdp_status run_gate(void *args, int n_threads)
{
    sem_wait(*(sem_t **)args);
    return FSDP_OK;
}

fsdp_status launch_c(stream *s, stream_fn fn, const void *args, size_t args_bytes)
{
    return stream_launch_work(
        s, &(launch_config){.fn = fn, .args = args, .args_bytes = args_bytes, .on_host = true});
}

void close_gate(stream *s, sem_t *gate)
{
    sem_init(gate, 0, 0);
    OK(stream_launch_work(s, &(launch_config){.fn = run_gate,
                                              .args = &gate,
                                              .args_bytes = sizeof gate,
                                              .on_host = true,
                                              .waits_for = WAITS_FOR_HOST}));
}

fsdp_status run_append(void *args, int n_threads)
{
    append_args *a = args;
    a->x->list[a->x->elems++] = a->value;
    a->value = -1; /* its own copy: the caller's struct must not change */
    return FSDP_OK;
}

fsdp_status order_add(order *x, stream *s, int value)
{
    return launch_c(s, run_append, &(append_args){x, value}, sizeof(append_args));
}

void expect_order(const order *x, int n)
{
    assert_int_equal(x->elems, n);
    for (int i = 0; i < n; i++)
        assert_int_equal(x->list[i], i);
}

const child_end *run_child(child_body *body, void *arg)
{
    static child_end end;
    int fds[2];
    size_t chars = 0;
    ssize_t n;
    assert_int_equal(pipe(fds), 0);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        alarm(600);
        dup2(fds[1], STDERR_FILENO);
        signal(SIGABRT, SIG_DFL);
        signal(SIGSEGV, SIG_DFL);
        setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
        _exit(body(arg));
    }
    close(fds[1]);
    while ((n = read(fds[0], end.text + chars, sizeof end.text - 1 - chars)) > 0)
        chars += (size_t)n;
    end.text[chars] = '\0';
    close(fds[0]);
    assert_int_equal(waitpid(child, &end.status, 0), child);
    return &end;
}

bool ended_by(const child_end *end, int number)
{
    return WIFSIGNALED(end->status) && WTERMSIG(end->status) == number;
}

bool all_bytes(const void *ptr, size_t bytes, unsigned char byte)
{
    for (size_t i = 0; i < bytes; i++)
        if (((const volatile unsigned char *)ptr)[i] != byte)
            return false;
    return true;
}
