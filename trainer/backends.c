/* backends.c -- see backends.h. */
#include "trainer/backends.h"
#include <dlfcn.h>
#include <string.h>
#include "common/device/separate.h"

static int one_for_all(void)
{
    return 1;
}

typedef struct row {
    backend backend;
    const char *plugin, *how; /* a shared object beside the program, and how to get it; or NULL */
} row;

/* In the order of BACKEND_CHOICES. */
static const row ROWS[] = {
    {.backend = {.name = "cpu",
                 .device = &device_cpu,
                 .n_devices = one_for_all,
                 .fast = ops_cpu_fast,
                 .portable = ops_cpu_portable}},
    {.backend = {.name = "separate",
                 .device = &device_separate,
                 .n_devices = one_for_all,
                 .fast = ops_cpu_fast,
                 .portable = ops_cpu_portable}},
    {.backend = {.name = "cuda"},
     .plugin = "fsdp_cuda.so",
     .how = "make cuda builds it where the CUDA toolkit and NCCL are; make doctor looks for them"},
    {.backend = {.name = "cuda-sim"},
     .plugin = "fsdp_cuda_sim.so",
     .how = "make cuda-sim builds it, with g++"},
    {.backend = {.name = "npu"}},
};
enum { N_ROWS = sizeof ROWS / sizeof *ROWS };

static const backend *opened[N_ROWS]; /* what the rows' plug-ins brought */

int backend_named(const char *name)
{
    for (int i = 0; i < N_ROWS; i++)
        if (strcmp(ROWS[i].backend.name, name) == 0)
            return i;
    return -1;
}

static const row *row_of(int number)
{
    FSDP_ASSERT(number >= 0 && number < N_ROWS);
    return &ROWS[number];
}

const backend *backend_of(int number)
{
    const row *r = row_of(number);
    return opened[number] != NULL ? opened[number] : &r->backend;
}

/* A plug-in is never closed: its functions are in tables, and threads of its libraries go on. */
static fsdp_status plugin_open(const row *r, const backend **out)
{
    void *object = dlopen(r->plugin, RTLD_NOW | RTLD_LOCAL);
    if (object == NULL)
        return fsdp_error(FSDP_ESKIP, r->how, "--device %s: %s", r->backend.name, dlerror());
    const backend_plugin *plugin = dlsym(object, BACKEND_SYMBOL);
    if (plugin == NULL || plugin->abi != BACKEND_ABI)
        return fsdp_error(FSDP_EINVAL, r->how, "--device %s: %s was built from other sources",
                          r->backend.name, r->plugin);
    *out = &plugin->backend;
    return FSDP_OK;
}

fsdp_status backend_check(int number)
{
    const row *r = row_of(number);
    if (r->plugin != NULL && opened[number] == NULL)
        TRY(plugin_open(r, &opened[number]));
    if (backend_of(number)->device != NULL)
        return FSDP_OK;
    return fsdp_error(FSDP_EINVAL, "run it with --device cpu", "--device %s: it is not there yet",
                      r->backend.name);
}

int backend_device_index(int local_rank, int n_devices)
{
    return n_devices > 0 ? local_rank % n_devices : 0;
}
