/* test_cuda_device.c -- what is CUDA's own of a device: polls of the host's waits.
 *
 *     FSDP_DEVICE=cuda-sim build/tests/unit/test_cuda_device
 *
 * On another device every test is a skip. */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "common/device/device_impl.h"
#include "tests/unit/target_lib.h"
#include "tests/unit/unit_lib.h"

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

static device *open_cuda(const device_config *more)
{
    device_config config = *more;
    device *d = NULL;
    config.backend = target_backend()->device;
    config.n_threads = 1;
    if (strcmp(config.backend->name, "cuda") != 0) {
        printf("SKIP FSDP_DEVICE is neither cuda nor cuda-sim\n");
        skip();
    }
    OK(device_open(&config, &d));
    return d;
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
    set_poll_fn set_poll = (set_poll_fn)plugin_symbol("cuda_device_set_poll");
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
    set_poll_fn set_poll = (set_poll_fn)plugin_symbol("cuda_device_set_poll");
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

int main(void)
{
    alarm(100); /* a deadlock is a failure, not a hang */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_polls_are_called_in_waits),
        cmocka_unit_test(test_failed_poll_ends_waits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
