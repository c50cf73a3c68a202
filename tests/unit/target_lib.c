/* target_lib.c -- see target_lib.h. */
#include "tests/unit/target_lib.h"
#include <dlfcn.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include "common/base/options.h"
#include "common/comm/transport/transport.h"
#include "common/ops/backends.h"

/* cmocka calls this to handle SIGSEGV while a test runs. A stand-in's threads also work between
 * tests, and may need that signal (common/device/guard.h), so its handler stays. */
void (*signal(int number, void (*handler)(int)))(int)
{
    struct sigaction now = {.sa_handler = handler, .sa_flags = SA_RESTART}, before;
    if (number == SIGSEGV)
        return SIG_DFL;
    return sigaction(number, &now, &before) == 0 ? before.sa_handler : SIG_ERR;
}

const backend *target_backend(void)
{
    static const option_spec DEVICE[] = {
        {.name = "device", .kind = OPT_ENUM, .choices = BACKEND_CHOICES, .help = ""}, {0}};
    const char *name = getenv("FSDP_DEVICE");
    char *words[] = {NULL, (char *)"--device", (char *)(name ? name : "cpu")};
    int number;
    if (options_parse(DEVICE, "", 3, words, &number) != FSDP_OK) {
        fprintf(stderr,
                "FSDP_DEVICE: got '%s', expected one of %s\nHINT: unset it, or name one of these: "
                "make test DEVICE=cuda-sim\n",
                name, BACKEND_CHOICES);
        exit(2);
    }
    fsdp_status status = backend_check(number);
    if (status == FSDP_OK)
        return backend_of(number);
    fsdp_error_print(stderr, 0, 0);
    exit(status == FSDP_ESKIP ? 77 : 2);
}

void *target_symbol(const char *name)
{
    Dl_info plugin;
    if (dladdr(target_backend()->device, &plugin) == 0)
        return NULL;
    void *object = dlopen(plugin.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    void *symbol = object != NULL ? dlsym(object, name) : NULL;
    if (object != NULL)
        dlclose(object); /* the table of backends holds it open */
    return symbol;
}

bool target_is_portable(void)
{
    return target_backend()->portable != NULL;
}

const ops *target_ops(void)
{
    const backend *b = target_backend();
    return target_is_portable() ? b->portable() : b->fast();
}

int target_index(void)
{
    return backend_device_index(comm_launched_local_rank(), target_backend()->n_devices());
}

bool target_adds_itself(const comm *c)
{
    const comm_transport *native = target_backend()->native;
    return native != NULL && strcmp(comm_backend_name(c), native->name) == 0;
}

comm_config target_comm(double timeout_s)
{
    const backend *b = target_backend();
    return (comm_config){.timeout_s = timeout_s, .sums = target_ops()->sums, .native = b->native};
}
