/* target_lib.c -- see target_lib.h. */
#include "tests/unit/target_lib.h"
#include <stdlib.h>
#include <string.h>
#include "common/device/separate.h"

const device_backend *target_backend(void)
{
    static const struct {
        const char *name;
        const device_backend *backend;
    } targets[] = {{"cpu", &device_cpu}, {"separate", &device_separate}};
    const char *name = getenv("FSDP_DEVICE");
    for (size_t i = 0; i < sizeof targets / sizeof *targets; i++)
        if (strcmp(name ? name : "cpu", targets[i].name) == 0)
            return targets[i].backend;
    fprintf(stderr,
            "FSDP_DEVICE: got '%s', expected cpu or separate\nHINT: unset it, or: make test "
            "DEVICE=separate\n",
            name);
    exit(2);
}
