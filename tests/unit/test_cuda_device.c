/* test_cuda_device.c -- what is CUDA's own of a device: polls of the host's waits, tasks of the
 * host, stages, pinned memory, its bounds, and what is said of machines and programs that are
 * wrong.
 *
 *     FSDP_DEVICE=cuda-sim build/tests/unit/test_cuda_device
 *
 * On another device every test is a skip; on a real GPU so are those that need a wrong machine. */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>
#include "tests/unit/device_lib.h"
#include "tests/unit/target_lib.h"

typedef fsdp_status (*poll_fn)(void *self);
typedef fsdp_status (*set_poll_fn)(device *d, poll_fn poll, void *self);

/* A function of the plug-in that is not in its table. */
static void *plugin_symbol(const char *name)
{
    Dl_info info;
    assert_int_not_equal(dladdr(target_backend()->device, &info), 0);
    void *object = dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    assert_non_null(object);
    void *symbol = dlsym(object, name);
    assert_non_null(symbol);
    dlclose(object);
    return symbol;
}

static void need_cuda(void)
{
    if (strcmp(target_backend()->device->name, "cuda") != 0) {
        printf("SKIP FSDP_DEVICE is neither cuda nor cuda-sim\n");
        skip();
    }
}

static void need_sim(void)
{
    need_cuda();
    if (strcmp(getenv("FSDP_DEVICE"), "cuda-sim") != 0) {
        printf("SKIP only the stand-in can be told to be a wrong machine\n");
        skip();
    }
}

static device *open_cuda(const device_config *more)
{
    device_config config = *more;
    device *d = NULL;
    need_cuda();
    config.backend = target_backend()->device;
    config.n_threads = 1;
    OK(device_open(&config, &d));
    return d;
}

static stream *side_stream(device *d)
{
    stream *s;
    OK(stream_create(d, &(stream_config){.name = "side"}, &s));
    return s;
}

static void open_gate(sem_t *gate)
{
    sem_post(gate);
}

/* ---- polls ----------------------------------------------------------------------------------- */

typedef struct polled {
    int n_looks, fails_at;
} polled;

static fsdp_status count_look(void *self)
{
    polled *p = self;
    return ++p->n_looks == p->fails_at ? fsdp_error(FSDP_ECOMM, "restart it", "rank 3 died")
                                       : FSDP_OK;
}

/* Enough work that a look finds it under way. */
static void *keep_busy(device *d, size_t bytes)
{
    stream *s = device_compute_stream(d);
    void *block;
    OK(device_alloc(s, MEM_OTHER, bytes, "busy", &block));
    for (int i = 0; i < 4; i++)
        OK(device_zero(s, block, bytes));
    return block;
}

static void test_polls_are_called_in_waits(void **state)
{
    (void)state;
    device *d = open_cuda(&(device_config){0});
    set_poll_fn set_poll = (set_poll_fn)plugin_symbol("accel_device_set_poll");
    stream *s = device_compute_stream(d);
    event *e;
    polled first = {0}, second = {0};
    OK(event_create(d, &e));
    OK(set_poll(d, count_look, &first));
    OK(set_poll(d, count_look, &second));
    void *block = keep_busy(d, (size_t)64 << 20);
    OK(stream_sync(s));
    assert_true(first.n_looks > 0 && first.n_looks == second.n_looks);
    OK(set_poll(d, NULL, &first));
    const int first_looks = first.n_looks, second_looks = second.n_looks;
    device_free(s, block);
    block = keep_busy(d, (size_t)64 << 20);
    OK(event_record(e, s));
    OK(event_sync(e));
    assert_int_equal(first.n_looks, first_looks);
    assert_true(second.n_looks > second_looks);
    event_free(e);
    device_free(s, block);
    device_close(d);
}

static void test_failed_poll_ends_waits(void **state)
{
    (void)state;
    device *d = open_cuda(&(device_config){0});
    set_poll_fn set_poll = (set_poll_fn)plugin_symbol("accel_device_set_poll");
    stream *s = device_compute_stream(d), *other;
    event *e;
    polled p = {.fails_at = 3};
    OK(stream_create(d, &(stream_config){.name = "other"}, &other));
    OK(event_create(d, &e));
    OK(set_poll(d, count_look, &p));
    void *block = keep_busy(d, (size_t)256 << 20);
    OK(event_record(e, s));
    assert_int_equal(stream_sync(s), FSDP_ECOMM);
    assert_says("rank 3 died");
    assert_int_equal(p.n_looks, 3);
    assert_int_equal(stream_sync(other), FSDP_ECOMM);
    assert_int_equal(event_sync(e), FSDP_ECOMM);
    assert_true(event_done(e)); /* who asks until it is comes to an end */
    assert_int_equal(device_zero(other, block, 1), FSDP_ECOMM);
    event_free(e);
    device_free(s, block);
    device_close(d);
}

/* ---- tasks of the host ----------------------------------------------------------------------- */

/* Each posts its own and waits for the other's. */
static fsdp_status run_meet(void *args, int n_threads)
{
    sem_t **both = args;
    (void)n_threads;
    sem_post(both[0]);
    return sem_wait(both[1]) == 0 ? FSDP_OK : FSDP_EIO;
}

/* Tasks of two streams may sleep for each other, whichever was issued first. */
static void test_tasks_of_two_streams_meet(void **state)
{
    (void)state;
    device *d = open_cuda(&(device_config){0});
    stream *s = device_compute_stream(d), *side = side_stream(d);
    sem_t a, b;
    sem_init(&a, 0, 0);
    sem_init(&b, 0, 0);
    for (int i = 0; i < 50; i++) {
        sem_t *of_s[] = {&a, &b}, *of_side[] = {&b, &a};
        OK(launch_c(i % 2 ? s : side, run_meet, i % 2 ? of_s : of_side, sizeof of_s));
        OK(launch_c(i % 2 ? side : s, run_meet, i % 2 ? of_side : of_s, sizeof of_s));
    }
    OK(stream_sync(s));
    OK(stream_sync(side));
    stream_free(side);
    device_close(d);
}

static fsdp_status run_fail(void *args, int n_threads)
{
    (void)args;
    (void)n_threads;
    return fsdp_error(FSDP_EIO, "try again", "the task broke");
}

/* From stream to stream by events; not to work that came before, and not backwards. */
static void test_errors_travel_on(void **state)
{
    (void)state;
    device *d = open_cuda(&(device_config){0});
    stream *first = side_stream(d), *second = side_stream(d), *third = side_stream(d);
    event *before, *from_first, *from_second;
    int list[2], elems = 0;
    sem_t gate;
    OK(event_create(d, &before));
    OK(event_create(d, &from_first));
    OK(event_create(d, &from_second));
    OK(event_record(before, first));
    close_gate(first, &gate);
    OK(launch_c(first, run_fail, NULL, 0));
    OK(event_record(from_first, first));
    OK(stream_wait_event(second, from_first));
    OK(event_record(from_second, second));
    OK(stream_wait_event(third, from_second));
    OK(launch_c(third, run_append, &(append_args){list, &elems, 1}, sizeof(append_args)));
    open_gate(&gate);
    assert_int_equal(stream_sync(third), FSDP_EIO);
    assert_says("the task broke");
    assert_int_equal(elems, 0); /* it was behind the failure */
    assert_int_equal(event_sync(from_second), FSDP_EIO);
    OK(event_sync(before));
    OK(stream_sync(device_compute_stream(d)));
    OK(stream_wait_event(device_compute_stream(d), before));
    OK(stream_sync(device_compute_stream(d)));
    event_free(before);
    event_free(from_first);
    event_free(from_second);
    device_close(d); /* frees the streams that are left */
}

/* A number of a stream is used again, and what became of its first tasks does not matter then. */
static void test_many_streams(void **state)
{
    (void)state;
    device *d = open_cuda(&(device_config){0});
    stream *s[64];
    int n = 0, list[100], elems = 0;
    for (int i = 0; i < 100; i++) {
        s[0] = side_stream(d);
        OK(launch_c(s[0], run_append, &(append_args){list, &elems, i}, sizeof(append_args)));
        OK(stream_sync(s[0]));
        stream_free(s[0]);
    }
    assert_int_equal(elems, 100);
    while (n < 64 && stream_create(d, &(stream_config){.name = "one more"}, &s[n]) == FSDP_OK)
        n++;
    assert_int_equal(n, 31); /* beside the compute stream */
    assert_int_equal(fsdp_error_get()->status, FSDP_ENOMEM);
    while (n > 0)
        stream_free(s[--n]);
    device_close(d);
}

/* ---- copies ---------------------------------------------------------------------------------- */

/* The host issues all of it while the stream stands still. */
static void test_host_runs_ahead_of_copies(void **state)
{
    (void)state;
    device *d = open_cuda(&(device_config){0});
    stream *s = device_compute_stream(d);
    enum { BYTES = 3 << 20 };
    static unsigned char host[BYTES], back[BYTES];
    void *on_gpu, *pinned, *other;
    event *behind;
    sem_t gate;
    OK(event_create(d, &behind));
    OK(device_alloc(s, MEM_OTHER, BYTES, "on the GPU", &on_gpu));
    OK(device_alloc_host(s, MEM_OTHER, BYTES, "pinned", &pinned));
    OK(device_alloc_host(s, MEM_OTHER, BYTES, "pinned too", &other));
    memset(host, 1, BYTES);
    memset(pinned, 2, BYTES);
    memset(other, 3, BYTES);
    close_gate(s, &gate);
    OK(device_upload(s, on_gpu, host, BYTES));
    memset(host, 4, BYTES);
    OK(device_copy(s, pinned, on_gpu, BYTES));
    OK(device_copy(s, other, pinned, BYTES - 1));
    OK(device_zero(s, pinned, BYTES));
    OK(device_copy(s, on_gpu, other, BYTES));
    OK(device_download(s, back, on_gpu, BYTES));
    OK(event_record(behind, s));
    assert_true(all_bytes(pinned, BYTES, 2));
    assert_true(all_bytes(other, BYTES, 3));
    assert_false(event_done(behind));
    open_gate(&gate);
    OK(event_sync(behind));
    assert_true(all_bytes(back, BYTES - 1, 1));
    assert_int_equal(back[BYTES - 1], 3);
    assert_true(all_bytes(pinned, BYTES, 0));
    device_free(s, on_gpu);
    device_free(s, pinned);
    device_free(s, other);
    event_free(behind);
    device_close(d);
}

/* More than all stages hold, in pieces, the last of which is short. */
static void test_large_transfers(void **state)
{
    (void)state;
    device *d = open_cuda(&(device_config){0});
    stream *s = device_compute_stream(d);
    const size_t bytes = ((size_t)100 << 20) + 12345;
    unsigned char *host = malloc(bytes), *back = calloc(bytes, 1);
    void *on_gpu;
    assert_true(host != NULL && back != NULL);
    for (size_t i = 0; i < bytes; i++)
        host[i] = (unsigned char)(i * 7 + i / 4096);
    OK(device_alloc(s, MEM_OTHER, bytes, "large", &on_gpu));
    OK(device_upload(s, on_gpu, host, bytes));
    OK(device_download(s, back, on_gpu, bytes));
    OK(stream_sync(s));
    assert_memory_equal(host, back, bytes);
    device_free(s, on_gpu);
    free(host);
    free(back);
    device_close(d);
}

static fsdp_status run_open_gate(void *args, int n_threads)
{
    (void)n_threads;
    usleep(20000);
    sem_post(*(sem_t **)args);
    return FSDP_OK;
}

/* A stage that is still in use is waited for: here the first, by the 17th upload. */
static void test_stages_are_awaited(void **state)
{
    (void)state;
    device *d = open_cuda(&(device_config){0});
    stream *s = device_compute_stream(d), *opener = side_stream(d);
    enum { UPLOADS = 40, BYTES = 1000 };
    static unsigned char host[BYTES], back[UPLOADS][BYTES];
    unsigned char *on_gpu;
    sem_t gate, *to = &gate;
    OK(device_alloc(s, MEM_OTHER, sizeof back, "parts", (void **)&on_gpu));
    close_gate(s, &gate);
    OK(launch_c(opener, run_open_gate, &to, sizeof to));
    for (int i = 0; i < UPLOADS; i++) {
        memset(host, i, BYTES);
        OK(device_upload(s, on_gpu + i * BYTES, host, BYTES));
    }
    OK(device_download(s, back, on_gpu, sizeof back));
    OK(stream_sync(s));
    for (int i = 0; i < UPLOADS; i++)
        assert_true(all_bytes(back[i], BYTES, (unsigned char)i));
    device_free(s, on_gpu);
    device_close(d);
}

/* Uploads to and downloads from pinned memory, which the host does itself. */
static void test_host_to_host(void **state)
{
    (void)state;
    device *d = open_cuda(&(device_config){0});
    stream *s = device_compute_stream(d);
    unsigned char host[1000], back[1000];
    void *pinned;
    memset(host, 5, sizeof host);
    OK(device_alloc_host(s, MEM_OTHER, sizeof host, "pinned", &pinned));
    OK(device_upload(s, pinned, host, sizeof host));
    memset(host, 6, sizeof host);
    OK(device_download(s, back, pinned, sizeof back));
    OK(stream_sync(s));
    assert_true(all_bytes(back, sizeof back, 5));
    device_free(s, pinned);
    device_close(d);
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* The stream that freed a block may have it at once, another only when that stream is done. */
static void test_pinned_memory_is_reused(void **state)
{
    (void)state;
    device *d = open_cuda(&(device_config){0});
    stream *s = device_compute_stream(d), *side = side_stream(d);
    enum { BYTES = 1 << 20 };
    void *first, *again, *others;
    sem_t gate;
    OK(device_alloc_host(s, MEM_OTHER, BYTES, "first", &first));
    close_gate(s, &gate);
    OK(device_zero(s, first, BYTES));
    device_free(s, first);
    OK(device_alloc_host(side, MEM_OTHER, BYTES, "other's", &others));
    assert_ptr_not_equal(others, first);
    OK(device_alloc_host(s, MEM_OTHER, BYTES - 100, "again", &again));
    assert_ptr_equal(again, first);
    device_free(s, again);
    device_free(side, others);
    open_gate(&gate);
    OK(stream_sync(s));
    OK(stream_sync(side));
    OK(device_alloc_host(side, MEM_OTHER, BYTES, "either", &others));
    OK(device_alloc_host(side, MEM_OTHER, BYTES, "either", &again));
    assert_true(again == first || others == first);
    assert_int_equal(ledger_read(device_host_ledger(d)).live_total_bytes, 2 * BYTES);
    assert_int_equal(live_bytes(d), 0);
    device_free(side, again);
    device_free(side, others);
    device_close(d);
}

/* Another mapping of the file shows what is written to the block. */
static void test_pinned_memory_is_shared(void **state)
{
    (void)state;
    device *d = open_cuda(&(device_config){0});
    stream *s = device_compute_stream(d);
    char *pinned, *on_gpu;
    device_share at;
    OK(device_alloc_host(s, MEM_OTHER, 10000, "shared", (void **)&pinned));
    OK(device_alloc(s, MEM_OTHER, 10000, "not shared", (void **)&on_gpu));
    assert_false(device_share_find(d, on_gpu, 1, &at));
    assert_false(device_share_find(d, pinned + 100, (size_t)1 << 20, &at));
    assert_true(device_share_find(d, pinned + 100, 9900, &at));
    assert_int_equal(at.inner, 100);
    assert_int_equal(at.bytes % 4096, 0);
    char *mapped =
        mmap(NULL, at.bytes, PROT_READ, MAP_SHARED, device_share_fd(d), (off_t)at.offset);
    assert_ptr_not_equal(mapped, MAP_FAILED);
    strcpy(pinned + 100, "seen by a peer");
    assert_string_equal(mapped + at.inner, "seen by a peer");
    munmap(mapped, at.bytes);
    device_free(s, pinned);
    assert_true(device_share_find(d, pinned, 1, &at)); /* the stream may not have come to it */
    device_free(s, on_gpu);
    device_close(d);
}

static void test_memory_limit(void **state)
{
    (void)state;
    device *d = open_cuda(&(device_config){.memory_limit_bytes = 1000});
    stream *s = device_compute_stream(d);
    void *first, *second;
    assert_int_equal(device_mem_available(d), 1000);
    OK(device_alloc(s, MEM_OTHER, 600, "first", &first));
    assert_int_equal(device_mem_available(d), 400);
    assert_int_equal(device_alloc(s, MEM_ACTIVATIONS, 401, "logits", &second), FSDP_ENOMEM);
    assert_says("401 bytes (401 B) of 'logits' (activations); the device holds 600 bytes");
    OK(stream_sync(s)); /* it is the caller's error */
    OK(device_alloc(s, MEM_OTHER, 400, "second", &second));
    device_free(s, first);
    OK(device_alloc(s, MEM_OTHER, 600, "third", &first));
    device_free(s, first);
    device_free(s, second);
    device_close(d);
}

/* What another stream has freed, but not come to yet, is waited for. */
static void test_out_of_memory(void **state)
{
    (void)state;
    need_sim();
    setenv("FSDP_SIM_MEMORY_MIB", "64", 1);
    device *d = open_cuda(&(device_config){0});
    stream *s = device_compute_stream(d), *side = side_stream(d), *opener = side_stream(d);
    void *first, *second;
    sem_t gate, *to = &gate;
    assert_int_equal(device_mem_available(d), 64 << 20);
    OK(device_alloc(s, MEM_OTHER, 40 << 20, "first", &first));
    assert_int_equal(device_mem_available(d), 24 << 20);
    close_gate(s, &gate);
    device_free(s, first);
    OK(launch_c(opener, run_open_gate, &to, sizeof to));
    OK(device_alloc(side, MEM_OTHER, 40 << 20, "second", &second));
    assert_int_equal(device_alloc(s, MEM_OTHER, 40 << 20, "third", &first), FSDP_ENOMEM);
    assert_says("of 'third' (other); the device holds 41943040 bytes");
    OK(stream_sync(s));
    device_free(side, second);
    OK(stream_sync(side));
    assert_int_equal(device_mem_available(d), 64 << 20); /* the pool's is ours */
    device_close(d);
    unsetenv("FSDP_SIM_MEMORY_MIB");
}

/* ---- machines that are wrong ----------------------------------------------------------------- */

static void expect_no_open(const char *name, const char *value, int index, fsdp_status status,
                           const char *words)
{
    device *d;
    device_config config = {.backend = target_backend()->device, .n_threads = 1, .index = index};
    if (name != NULL)
        setenv(name, value, 1);
    assert_int_equal(device_open(&config, &d), status);
    assert_says(words);
    assert_null(d);
    if (name != NULL)
        unsetenv(name);
}

static void test_wrong_machines(void **state)
{
    (void)state;
    need_sim();
    expect_no_open("FSDP_SIM_GPUS", "0", 0, FSDP_ESKIP,
                   "no GPU that CUDA can use (no CUDA-capable");
    expect_no_open("FSDP_SIM_DRIVER", "12040", 0, FSDP_ESKIP,
                   "the driver is for CUDA 12.4, and the plug-in was built with CUDA 13.0");
    expect_no_open("FSDP_SIM_DRIVER", "0", 0, FSDP_ESKIP, "no GPU that CUDA can use");
    expect_no_open("FSDP_SIM_GPUS", "2", 2, FSDP_EINVAL, "GPU 2, expected one from 0 to 1");
    expect_no_open(NULL, NULL, -1, FSDP_EINVAL, "GPU -1, expected");
    fsdp_status (*status)(int error, const char *what) = plugin_symbol("cuda_status");
    assert_int_equal(status(209, "gelu"), FSDP_EDEVICE); /* a GPU that it was not built for */
    assert_says("gelu: no kernel image is available for execution on the device");
    assert_non_null(strstr(fsdp_error_get()->hint, "CUDA_ARCHS"));
    setenv("FSDP_SIM_GPUS", "0", 1);
    assert_int_equal(target_backend()->n_devices(), 0);
    unsetenv("FSDP_SIM_GPUS");
    assert_true(target_backend()->n_devices() > 0);
}

/* ---- programs that are wrong: each in a process of its own ----------------------------------- */

enum { ELEMS = 1000 };

typedef struct wrong {
    device *d;
    stream *s, *side;
    float *in, *out;
} wrong;

static fsdp_status gelu(stream *s, float *out, const float *in, size_t elems)
{
    return target_backend()->portable()->gelu(
        s, &(gelu_args){.out = out, .in = in, .elems = elems, .type = DTYPE_F32});
}

static void wrong_open(wrong *w)
{
    static float ones[ELEMS];
    w->d = open_cuda(&(device_config){.debug_fill = true});
    w->s = device_compute_stream(w->d);
    w->side = side_stream(w->d);
    for (int i = 0; i < ELEMS; i++)
        ones[i] = 1;
    OK(device_alloc_f32(w->s, MEM_OTHER, ELEMS, "victim", &w->in));
    OK(device_alloc_f32(w->s, MEM_OTHER, ELEMS, "result", &w->out));
    OK(device_upload(w->s, w->in, ones, sizeof ones));
    OK(stream_sync(w->s));
}

static void wrong_fault(wrong *w)
{
    void *more = (void *)1;
    float back;
    OK(gelu(w->s, w->out, w->in, ELEMS));
    OK(device_zero(w->s, w->in, 4));
    (void)gelu(w->s, w->out, w->in, ELEMS);
    (void)device_download(w->s, &back, w->out, sizeof back);
    printf("sync: %s\n", fsdp_status_name(stream_sync(w->s)));
    printf("words: %s\n", fsdp_error_get()->what);
    printf("launch: %s\n", fsdp_status_name(gelu(w->s, w->out, w->in, ELEMS)));
    printf("other stream: %s\n", fsdp_status_name(stream_sync(w->side)));
    printf("alloc: %s\n", fsdp_status_name(device_alloc(w->s, MEM_OTHER, 8, "more", &more)));
    device_free(w->s, w->in);
    device_free(w->s, w->out);
    device_close(w->d);
    printf("closed\n");
}

static void wrong_host_read(wrong *w)
{
    printf("read %g\n", (double)*(volatile float *)w->in);
}

static void wrong_one_behind(wrong *w)
{
    OK(gelu(w->s, w->out, w->in, ELEMS + 1));
    device_free(w->s, w->out);
    (void)stream_sync(w->s);
}

/* The result of a kernel that did not wait for its input, or whose input came by another stream. */
static void print_result(wrong *w)
{
    float back = 0;
    OK(device_download(w->s, &back, w->out, sizeof back));
    OK(stream_sync(w->s));
    printf("result %s\n", back == back ? "a number" : "nan");
}

static void wrong_no_event(wrong *w)
{
    sem_t gate;
    float *late, one = 1;
    OK(device_alloc_f32(w->side, MEM_OTHER, 1, "late", &late));
    OK(stream_sync(w->side));
    close_gate(w->side, &gate);
    OK(device_upload(w->side, late, &one, sizeof one));
    OK(gelu(w->s, w->out, late, 1));
    OK(stream_sync(w->s));
    open_gate(&gate);
    print_result(w);
}

static void wrong_stream_of_copy(wrong *w)
{
    sem_t gate;
    OK(device_zero(w->s, w->in, 4));
    OK(stream_sync(w->s));
    close_gate(w->s, &gate);
    OK(gelu(w->s, w->out, w->in, 1));
    OK(device_copy(w->side, w->in, w->out, 4)); /* belongs on w->s */
    OK(stream_sync(w->side));
    open_gate(&gate);
    print_result(w);
}

static void wrong_handle(wrong *w)
{
    void *e;
    int (*make)(void **, unsigned) = plugin_symbol("cudaEventCreateWithFlags");
    int (*put)(void *) = plugin_symbol("cudaEventDestroy");
    int (*query)(void *) = plugin_symbol("cudaEventQuery");
    (void)w;
    (void)make(&e, 0);
    (void)put(e);
    (void)query(e);
}

static const struct wrong_program {
    const char *name;
    void (*run)(wrong *w);
} WRONG[] = {{"fault", wrong_fault},
             {"host-read", wrong_host_read},
             {"one-behind", wrong_one_behind},
             {"no-event", wrong_no_event},
             {"copy-elsewhere", wrong_stream_of_copy},
             {"destroyed", wrong_handle}};

static int run_wrong(const char *name)
{
    wrong w;
    setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
    setvbuf(stdout, NULL, _IONBF, 0);
    wrong_open(&w);
    for (size_t i = 0; i < sizeof WRONG / sizeof *WRONG; i++)
        if (strcmp(WRONG[i].name, name) == 0)
            WRONG[i].run(&w);
    fflush(stdout);
    _exit(0);
}

/* What this program prints as `name`, with the variable set. */
static const char *output_of(const char *name, const char *variable)
{
    static char text[1 << 16];
    char self[4096], command[8192];
    ssize_t chars = readlink("/proc/self/exe", self, sizeof self - 1);
    assert_true(chars > 0);
    self[chars] = '\0';
    snprintf(command, sizeof command, "env %s '%s' %s 2>&1", variable, self, name);
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    text[fread(text, 1, sizeof text - 1, pipe)] = '\0';
    pclose(pipe);
    return text;
}

static void expect_output(const char *text, const char *words)
{
    if (strstr(text, words) == NULL)
        fail_msg("expected \"%s\" in: %s", words, text);
}

static void test_fault_of_a_kernel(void **state)
{
    (void)state;
    need_sim();
    const char *text = output_of("fault", "FSDP_SIM_FAULT=gelu_kernel:2");
    expect_output(text, "sync: FSDP_EDEVICE\nwords: GPU 0 failed: an illegal memory access was "
                        "encountered (cudaErrorIllegalAddress); issued last on stream 'compute': ");
    expect_output(text, "upload, gelu, fill, gelu");
    expect_output(text, "launch: FSDP_EDEVICE\nother stream: FSDP_EDEVICE\nalloc: FSDP_EDEVICE\n");
    expect_output(text, "closed\n");
}

/* The stand-in shows them. */
static void test_planted_mistakes(void **state)
{
    (void)state;
    need_sim();
    expect_output(output_of("one-behind", "A=B"),
                  "a block of 4000 bytes was written 0 bytes behind its end; kernels launched "
                  "last: gelu_kernel");
    expect_output(output_of("destroyed", "A=B"),
                  "CUDA stand-in: cudaEventQuery of an event that is destroyed");
    expect_output(output_of("no-event", "A=B"), "result nan");
    expect_output(output_of("copy-elsewhere", "A=B"), "result nan");
    device *d;
    if (device_open(&(device_config){.backend = SEPARATE.backend, .n_threads = 1}, &d) != FSDP_OK) {
        printf("SKIP %s\n", fsdp_error_get()->what);
        return;
    }
    device_close(d);
    expect_output(output_of("host-read", "A=B"),
                  "host access to device memory: 'memory of the GPU' (4064 bytes), byte 0");
}

/* Calls of CUDA's that are wrong, by the error codes that it has for them. */
static void test_stand_in_refuses(void **state)
{
    (void)state;
    enum { INVALID_VALUE = 1, INVALID_HANDLE = 400, REGISTERED = 712, NOT_REGISTERED = 713 };
    enum { HOST_TO_DEVICE = 1, ANY_KIND = 4, UNTIMED = 2, NON_BLOCKING = 1 };
    static char host[8192], *const page = host;
    wrong w;
    void *s, *e;
    need_sim();
    wrong_open(&w);
    int (*create)(void **, unsigned, int) = plugin_symbol("cudaStreamCreateWithPriority");
    int (*destroy)(void *) = plugin_symbol("cudaStreamDestroy");
    int (*event_make)(void **, unsigned) = plugin_symbol("cudaEventCreateWithFlags");
    int (*event_put)(void *) = plugin_symbol("cudaEventDestroy");
    int (*elapsed)(float *, void *, void *) = plugin_symbol("cudaEventElapsedTime");
    int (*copy)(void *, const void *, size_t, int, void *) = plugin_symbol("cudaMemcpyAsync");
    int (*fill)(void *, int, size_t, void *) = plugin_symbol("cudaMemsetAsync");
    int (*gpu_free)(void *, void *) = plugin_symbol("cudaFreeAsync");
    int (*pin)(void *, size_t, unsigned) = plugin_symbol("cudaHostRegister");
    int (*unpin)(void *) = plugin_symbol("cudaHostUnregister");
    int (*host_free)(void *) = plugin_symbol("cudaFreeHost");
    float ms;
    assert_int_equal(create(&s, NON_BLOCKING, 0), 0);
    assert_int_equal(event_make(&e, UNTIMED), 0);
    assert_int_equal(elapsed(&ms, e, e), INVALID_HANDLE);
    assert_int_equal(copy(w.in, w.out, 4, HOST_TO_DEVICE, s), INVALID_VALUE);
    assert_int_equal(copy(w.in, host, ELEMS * 4 + 1, ANY_KIND, s), INVALID_VALUE);
    assert_int_equal(fill(host, 0, 8, s), INVALID_VALUE);
    assert_int_equal(fill(w.in, 0, ELEMS * 4 + 1, s), INVALID_VALUE);
    assert_int_equal(gpu_free(host, s), INVALID_VALUE);
    assert_int_equal(gpu_free(w.in + 1, s), INVALID_VALUE);
    assert_int_equal(host_free(host), INVALID_VALUE);
    assert_int_equal(unpin(page), NOT_REGISTERED);
    assert_int_equal(pin(page, sizeof host, 0), 0);
    assert_int_equal(pin(page + 4096, 4096, 0), REGISTERED);
    assert_int_equal(unpin(page), 0);
    host[0] = 1;
    assert_int_equal(copy(host, w.in, 4, ANY_KIND, s), 0); /* pageable: it is over now */
    assert_memory_equal(host, &(float){1}, 4);
    assert_int_equal(event_put(e), 0);
    assert_int_equal(destroy(s), 0);
    device_free(w.s, w.in);
    device_free(w.s, w.out);
    device_close(w.d);
}

/* A look that came too early is no error of the launch behind it. */
static void test_early_look_is_no_error(void **state)
{
    (void)state;
    wrong w;
    event *e;
    sem_t gate;
    wrong_open(&w);
    OK(event_create(w.d, &e));
    close_gate(w.side, &gate);
    OK(event_record(e, w.side));
    assert_false(event_done(e));
    OK(gelu(w.s, w.out, w.in, ELEMS));
    OK(stream_sync(w.s));
    open_gate(&gate);
    event_free(e);
    device_free(w.s, w.in);
    device_free(w.s, w.out);
    device_close(w.d);
}

int main(int argc, char **argv)
{
    alarm(100); /* a deadlock is a failure, not a hang */
    if (argc > 1)
        return run_wrong(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_out_of_memory), /* while the pool is empty */
        cmocka_unit_test(test_polls_are_called_in_waits),
        cmocka_unit_test(test_failed_poll_ends_waits),
        cmocka_unit_test(test_tasks_of_two_streams_meet),
        cmocka_unit_test(test_errors_travel_on),
        cmocka_unit_test(test_many_streams),
        cmocka_unit_test(test_host_runs_ahead_of_copies),
        cmocka_unit_test(test_large_transfers),
        cmocka_unit_test(test_stages_are_awaited),
        cmocka_unit_test(test_host_to_host),
        cmocka_unit_test(test_pinned_memory_is_reused),
        cmocka_unit_test(test_pinned_memory_is_shared),
        cmocka_unit_test(test_memory_limit),
        cmocka_unit_test(test_wrong_machines),
        cmocka_unit_test(test_fault_of_a_kernel),
        cmocka_unit_test(test_planted_mistakes),
        cmocka_unit_test(test_stand_in_refuses),
        cmocka_unit_test(test_early_look_is_no_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
