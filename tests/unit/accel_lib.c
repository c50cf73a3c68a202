/* accel_lib.c -- see accel_lib.h. */
#include "tests/unit/accel_lib.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void need_accel(const char *kind)
{
    const char *name = target_backend()->device->name;
    if (kind != NULL ? strcmp(name, kind) == 0
                     : strcmp(name, "cuda") == 0 || strcmp(name, "npu") == 0)
        return;
    printf("SKIP FSDP_DEVICE is no %s\n", kind != NULL ? kind : "accelerator");
    skip();
}

void need_sim(const char *kind)
{
    need_accel(kind);
    if (strstr(getenv("FSDP_DEVICE"), "-sim") != NULL)
        return;
    printf("SKIP only the stand-in can be told to be a wrong machine\n");
    skip();
}

device *open_accel(const device_config *more)
{
    device_config config = *more;
    device *d = NULL;
    need_accel(NULL);
    config.backend = target_backend()->device;
    config.n_threads = 1;
    OK(device_open(&config, &d));
    return d;
}

void *plugin_symbol(const char *name)
{
    void *symbol = target_symbol(name);
    assert_non_null(symbol);
    return symbol;
}

void open_gate(sem_t *gate)
{
    sem_post(gate);
}

fsdp_status run_open_gate(void *args, int n_threads)
{
    usleep(50000);
    sem_post(*(sem_t **)args);
    return FSDP_OK;
}

void expect_no_open(const char *name, const char *value, int index, fsdp_status status,
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

const char *output_of(const char *name, const char *variable)
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

void expect_output(const char *text, const char *words)
{
    if (strstr(text, words) == NULL)
        fail_msg("expected \"%s\" in: %s", words, text);
}
