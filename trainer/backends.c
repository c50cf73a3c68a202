/* backends.c -- see backends.h. */
#include "trainer/backends.h"
#include "common/device/separate.h"

static int one_for_all(void)
{
    return 1;
}

/* In the order of BACKEND_CHOICES. */
static const backend BACKENDS[] = {
    {.name = "cpu",
     .device = &device_cpu,
     .n_devices = one_for_all,
     .fast = ops_cpu_fast,
     .portable = ops_cpu_portable},
    {.name = "separate",
     .device = &device_separate,
     .n_devices = one_for_all,
     .fast = ops_cpu_fast,
     .portable = ops_cpu_portable},
    {.name = "cuda"},
    {.name = "npu"},
};

const backend *backend_of(int number)
{
    FSDP_ASSERT(number >= 0 && (size_t)number < sizeof BACKENDS / sizeof *BACKENDS);
    return &BACKENDS[number];
}

fsdp_status backend_check(int number)
{
    if (backend_of(number)->device)
        return FSDP_OK;
    return fsdp_error(FSDP_EINVAL, "run it with --device cpu", "--device %s: it is not there yet",
                      backend_of(number)->name);
}

int backend_device_index(int local_rank, int n_devices)
{
    return local_rank % n_devices;
}
