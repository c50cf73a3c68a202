/* backends.c -- see backends.h. */
#include "common/ops/backends.h"
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "common/device/instruments/separate.h"

static int one_for_all(void)
{
    return 1;
}

typedef struct row {
    backend backend;
    const char *plugin, *how; /* the name of its file, and how to get it; NULL: linked in */
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
    {.backend = {.name = "npu"},
     .plugin = "fsdp_npu.so",
     .how = "make npu builds it where Ascend's CANN is; make doctor looks for it"},
    {.backend = {.name = "npu-sim"},
     .plugin = "fsdp_npu_sim.so",
     .how = "make npu-sim builds it, with g++"},
};
enum { N_ROWS = sizeof ROWS / sizeof *ROWS };

static const backend *opened[N_ROWS]; /* by row: the backend of its loaded plug-in, or NULL */

const backend *backend_of(int number)
{
    FSDP_ASSERT(number >= 0 && number < N_ROWS);
    return opened[number] != NULL ? opened[number] : &ROWS[number].backend;
}

/* Where a plug-in is, from the folder of the program: beside it, as built, or as make install puts
 * it. If it is in neither, messages name the last. */
static const char *const FOLDERS[] = {"", "../lib/fsdp-labs/", ""};

/* The absolute path of the plug-in. Given a bare name, dlopen would search other folders, in which
 * anybody may have put a file of that name. */
static fsdp_status plugin_path(const row *r, char path[PATH_MAX])
{
    ssize_t chars = readlink("/proc/self/exe", path, PATH_MAX - 1);
    path[chars > 0 ? chars : 0] = '\0';
    char *name = strrchr(path, '/');
    size_t room = name != NULL ? (size_t)(path + PATH_MAX - ++name) : 0;
    for (size_t i = 0; i < sizeof FOLDERS / sizeof *FOLDERS; i++) {
        if (strlen(FOLDERS[i]) + strlen(r->plugin) >= room)
            return fsdp_error(
                FSDP_EINVAL, "mount /proc, and move the build folder to a shorter path",
                "--device %s: cannot tell the folder of this program", r->backend.name);
        snprintf(name, room, "%s%s", FOLDERS[i], r->plugin);
        if (access(path, F_OK) == 0)
            break;
    }
    return FSDP_OK;
}

/* why: the text of dlerror, "FILE: cannot open ..." if FILE is missing. FILE is the plug-in at
 * `path` or a library that the plug-in needs. Only a missing plug-in is a skip: skipping one that
 * exists but does not load would hide a device that is never tested. */
static fsdp_status not_loaded(const row *r, const char *path, const char *why)
{
    const int file_bytes = (int)strcspn(why, ":");
    const bool missing = strstr(why, "cannot open shared object file: No such file") != NULL;
    if (missing && strncmp(why, path, strlen(path)) == 0)
        return fsdp_error(FSDP_ESKIP, r->how, "--device %s: %s", r->backend.name, why);
    if (missing)
        return fsdp_error(FSDP_EINVAL,
                          "install that library or add its folder to LD_LIBRARY_PATH; or build the "
                          "plug-in again, which notes where its libraries are",
                          "--device %s: %s needs %.*s, which is not found", r->backend.name,
                          r->plugin, file_bytes, why);
    return fsdp_error(FSDP_EINVAL, r->how, "--device %s: %s does not load: %s", r->backend.name,
                      r->plugin, why);
}

/* A plug-in is never closed: tables point to its functions, and its libraries keep threads. */
static fsdp_status plugin_open(const row *r, const backend **out)
{
    char path[PATH_MAX];
    TRY(plugin_path(r, path));
    void *object = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (object == NULL)
        return not_loaded(r, path, dlerror());
    const backend_plugin *plugin = dlsym(object, BACKEND_SYMBOL);
    if (plugin == NULL || plugin->abi != BACKEND_ABI)
        return fsdp_error(FSDP_EINVAL, r->how, "--device %s: %s was built from other sources",
                          r->backend.name, r->plugin);
    *out = &plugin->backend;
    return FSDP_OK;
}

fsdp_status backend_check(int number)
{
    if (ROWS[number].plugin == NULL || opened[number] != NULL)
        return FSDP_OK;
    return plugin_open(&ROWS[number], &opened[number]);
}

fsdp_status backend_ops(int number, bool portable, const ops **out)
{
    const backend *b = backend_of(number);
    if (portable && b->portable == NULL)
        return fsdp_error(FSDP_EINVAL,
                          "run it with --ops fast; --reduction canonical still gives the same bits "
                          "on any number of its devices",
                          "--ops portable: --device %s has no operations with the CPU's bits",
                          ROWS[number].backend.name);
    *out = portable ? b->portable() : b->fast();
    return FSDP_OK;
}

int backend_device_index(int local_rank, int n_devices)
{
    return n_devices > 0 ? local_rank % n_devices : 0;
}
