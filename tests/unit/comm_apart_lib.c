/* comm_apart_lib.c -- see comm_apart_lib.h. */
#include "tests/unit/comm_apart_lib.h"
#include "common/device/instruments/separate.h"
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static atomic_int fails_in; /* calls of device_alloc_host until one fails; 0: none fails */

void apart_fail_host(int n)
{
    atomic_store(&fails_in, n);
}

static fsdp_status apart_open(const device_config *config, device **out)
{
    device_config own = *config;
    own.async_compute = true;
    own.backend = &device_cpu;
    TRY(device_cpu.open(&own, out));
    (*out)->backend = config->backend;
    return FSDP_OK;
}

static fsdp_status apart_alloc(stream *s, const mem_request *want, void **out)
{
    if (want->on_host && atomic_load(&fails_in) > 0 && atomic_fetch_sub(&fails_in, 1) == 1)
        return fsdp_error(FSDP_ENOMEM, "", "no memory of the host, for the test");
    return device_cpu.alloc(s, want, out);
}

/* Does all memory of a launch come from alloc_host? */
static bool stays_on_host(const stream *s, const launch_config *l)
{
    device_share share;
    for (int i = 0; i < l->n_accesses; i++)
        if (l->accesses[i].bytes > 0 &&
            !device_cpu.share_find(s->device, l->accesses[i].ptr, l->accesses[i].bytes, &share))
            return false;
    return true;
}

static fsdp_status apart_launch(stream *s, const launch_config *l, const device_act *act)
{
    const char *name = l->name != NULL ? l->name : "a launch";
    if (!l->on_host && l->waits_for == WAITS_FOR_RANKS)
        return fsdp_error(FSDP_ESTATE, "", "apart: %s waits for ranks, but not on the host", name);
    if (l->on_host && !stays_on_host(s, l))
        return fsdp_error(FSDP_ESTATE, "", "apart: %s on the host touches device memory", name);
    return device_cpu.launch(s, l, act);
}

const device_backend *apart_backend(void)
{
    static device_backend apart;
    if (apart.name == NULL) {
        apart = device_cpu;
        apart.name = "apart";
        apart.memory_is_host = false;
        apart.open = apart_open;
        apart.alloc = apart_alloc;
        apart.launch = apart_launch;
    }
    return &apart;
}

const device_backend *comm_test_backend(void)
{
    const char *name = getenv("COMM_TEST_DEVICE");
    if (name != NULL && strcmp(name, "separate") == 0)
        return &device_separate;
    return name != NULL && strcmp(name, "apart") == 0 ? apart_backend() : &device_cpu;
}
