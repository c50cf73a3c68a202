/* npu_lib.c -- see npu_lib.h. */
#include "tests/grade/npu_lib.h"
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include "common/base/options.h"
#include "common/comm/transport/transport.h"
#include "common/ops/backends.h"

static const double COMM_TIMEOUT_S = 30;

static char chosen[32]; /* set by npu_choose; not in the environment, which task 6.4 may change */

void npu_choose(void)
{
    const char *name = getenv("FSDP_DEVICE");
    snprintf(chosen, sizeof chosen, "%s",
             name != NULL && strncmp(name, "npu", 3) == 0 ? name : "npu-sim");
    setenv("FSDP_DEVICE", "cpu", 1);
}

static fsdp_status backend_open(const backend **out)
{
    static const option_spec DEVICE[] = {
        {.name = "device", .kind = OPT_ENUM, .choices = BACKEND_CHOICES, .help = ""}, {0}};
    char *words[] = {NULL, (char *)"--device", chosen};
    int number;
    TRY(options_parse(DEVICE, "", 3, words, &number));
    TRY(backend_check(number));
    *out = backend_of(number);
    return FSDP_OK;
}

fsdp_status npu_function(const char *name, void *out)
{
    const backend *b;
    TRY(backend_open(&b));
    Dl_info plugin;
    void *object = NULL, *at = NULL;
    if (dladdr(b, &plugin) != 0)
        object = dlopen(plugin.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    if (object != NULL)
        at = dlsym(object, name);
    if (at == NULL)
        return fsdp_error(FSDP_EINVAL, "", "the plug-in does not export %s", name);
    memcpy(out, &at, sizeof at);
    return FSDP_OK;
}

/* ---- ACL ------------------------------------------------------------------------------------- */

bool npu_break(const char *call)
{
    void (*sim_break)(const char *) = NULL;
    if (npu_function("sim_break", &sim_break) != FSDP_OK)
        return false;
    sim_break(call);
    return true;
}

/* The stand-in's message for a call that npu_break made fail. */
fsdp_status npu_said(const char *call, fsdp_status status, fsdp_status want)
{
    const char *words = WHAT("%s fails, as a test wants it", call);
    npu_break(NULL);
    TRY(expect_status(WHAT("status of what calls %s, when that fails", call), status, want));
    return EXPECT(strstr(fsdp_error_get()->what, words) != NULL,
                  "aclGetRecentErrMsg has them, once",
                  "%s fails: got \"%.200s\", expected CANN's words in it, \"%s\"", call,
                  fsdp_error_get()->what, words);
}

static bool is_others; /* this test called aclInit */

void npu_acl_by_others(void)
{
    int (*init)(const char *) = NULL;
    is_others = comm_launched_rank() % 2 != 0 && npu_function("aclInit", &init) == FSDP_OK &&
                init(NULL) == 0;
}

void npu_acl_end(void)
{
    int (*finalize)(void) = NULL;
    if (is_others && npu_function("aclFinalize", &finalize) == FSDP_OK && finalize() != 0)
        fprintf(stderr, "aclFinalize failed: who initialises ACL finalises it\n");
}

/* ---- what a body makes ----------------------------------------------------------------------- */

fsdp_status npu_block(npu *n, const void *values, size_t bytes, void **out)
{
    FSDP_ASSERT(n->n_blocks < NPU_MOST);
    TRY(device_alloc(n->compute, MEM_OTHER, bytes, "of the test", out));
    n->blocks[n->n_blocks++] = *out;
    return values != NULL ? grade_write(n->compute, *out, values, bytes) : FSDP_OK;
}

fsdp_status npu_host_block(npu *n, size_t bytes, void **out)
{
    FSDP_ASSERT(n->n_blocks < NPU_MOST);
    TRY(device_alloc_host(n->compute, MEM_OTHER, bytes, "of the test", out));
    n->blocks[n->n_blocks++] = *out;
    return FSDP_OK;
}

fsdp_status npu_stream(npu *n, const char *name, stream **out)
{
    FSDP_ASSERT(n->n_streams < NPU_MOST);
    TRY(stream_create(n->dev, &(stream_config){.name = name}, out));
    n->streams[n->n_streams++] = *out;
    return FSDP_OK;
}

fsdp_status npu_event(npu *n, bool timed, event **out)
{
    FSDP_ASSERT(n->n_events < NPU_MOST);
    TRY(timed ? event_create_timed(n->dev, out) : event_create(n->dev, out));
    n->events[n->n_events++] = *out;
    return FSDP_OK;
}

fsdp_status npu_order(npu *n, stream *before, stream *after)
{
    event *e;
    TRY(npu_event(n, false, &e));
    TRY(event_record(e, before));
    return stream_wait_event(after, e);
}

fsdp_status npu_comm(npu *n)
{
    const comm_config c = {.backend = n->g->world_size > 1 ? COMM_NATIVE : COMM_SELF,
                           .timeout_s = COMM_TIMEOUT_S,
                           .sums = n->backend->fast()->sums,
                           .native = n->backend->native};
    return comm_open(n->dev, &c, &n->comm);
}

/* ---- a body ---------------------------------------------------------------------------------- */

/* A skip says that the machine has no NPU. If the stand-in has devices, the skip is a mistake. */
static fsdp_status stand_in_opens(fsdp_status opened, int n_devices)
{
    if (opened == FSDP_ESKIP)
        return fsdp_error(FSDP_EINVAL, "npu_open asks runtime_start before it counts NPUs",
                          "device_open: got FSDP_ESKIP, expected an NPU of the stand-in: %s",
                          fsdp_error_get()->what);
    TRY(opened);
    return EXPECT(n_devices > 0,
                  "runtime_start: ACL_ERROR_REPEAT_INITIALIZE is no failure, in no call",
                  "npu_n_devices: got 0 in the first call and NPUs in the next, expected the "
                  "stand-in's in both");
}

static fsdp_status npu_open(npu *n)
{
    TRY(backend_open(&n->backend));
    const int n_devices = n->backend->n_devices();
    const int index = backend_device_index(comm_launched_local_rank(), n_devices);
    const device_config c = {.backend = n->backend->device,
                             .index = index,
                             .n_threads = 1,
                             .debug_fill = true,
                             .rank = n->g->rank,
                             .n_ranks = n->g->world_size};
    const struct accel_api *(*api_of)(const device *);
    n->is_sim = npu_break(NULL);
    const fsdp_status opened = device_open(&c, &n->dev);
    TRY(n->is_sim ? stand_in_opens(opened, n_devices) : opened);
    TRY(npu_function("accel_queue_of", &n->queue_of));
    TRY(npu_function("accel_api_of", &api_of));
    n->api = api_of(n->dev);
    const device_watch watch = order_check_watch(n->g->order);
    device_set_watch(n->dev, &watch);
    n->compute = device_compute_stream(n->dev);
    return FSDP_OK;
}

/* By now all work is done, or the streams have failed and skip it. */
static fsdp_status npu_close(npu *n)
{
    if (n->dev == NULL)
        return FSDP_OK;
    for (int i = 0; i < n->n_streams; i++)
        stream_free(n->streams[i]);
    for (int i = 0; i < n->n_events; i++)
        event_free(n->events[i]);
    for (int i = 0; i < n->n_blocks; i++)
        device_free(n->compute, n->blocks[i]);
    comm_close(n->comm);
    (void)stream_sync(n->compute);
    TRY(expect_size("bytes of device memory at the end of the task",
                    ledger_read(device_ledger(n->dev)).live_total_bytes, 0));
    device_close(n->dev);
    return FSDP_OK;
}

fsdp_status npu_run(grade *g, npu_body body)
{
    npu *n = calloc(1, sizeof *n);
    FSDP_ASSERT(n != NULL);
    n->g = g;
    fsdp_status status = npu_open(n);
    if (status == FSDP_OK)
        status = body(n);
    fsdp_error_info why = *fsdp_error_get();
    (void)gate_open(g, "");
    if (status != FSDP_OK && status != FSDP_ETODO && status != FSDP_ESKIP) {
        fsdp_error_set(&why); /* the program ends; leftovers may be in any state */
        return status;
    }
    fsdp_status closed = npu_close(n);
    free(n);
    if (status == FSDP_OK)
        return closed;
    fsdp_error_set(&why);
    return status;
}
