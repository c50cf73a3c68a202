/* acl.c -- start and end, errors, devices and contexts of the stand-in. A process sees several
 * equal NPUs and may use one of them. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tests/sim/ascend/acl_impl.h"

const sim_words sim_stands_for = {"Ascend", "NPU", "operations", "memory of the NPU"};

pthread_mutex_t acl_lock = PTHREAD_MUTEX_INITIALIZER;
atomic_int acl_n_streams, acl_n_events;

static atomic_bool initialised, finalised;
static int used_device = -1;
/* The default context. It exists while aclrtSetDevice was called more often than aclrtResetDevice.
 * acl_lock guards it and the count. */
static acl_context *of_device;
static int n_set, n_contexts;
static sim_queue memory_queue;
static __thread acl_context *current;
/* The thread's last error message, and the copy that aclGetRecentErrMsg returns. The copy is valid
 * until the thread's next call. */
static __thread char said[640], read_text[640];

/* ---- errors ---------------------------------------------------------------------------------- */

aclError sim_acl_fail(aclError code, const char *format, ...)
{
    va_list args;
    int chars = snprintf(said, sizeof said, "E%d: ", code);
    va_start(args, format);
    vsnprintf(said + chars, sizeof said - (size_t)chars, format, args);
    va_end(args);
    return code;
}

aclError acl_status(fsdp_status status, const char *call)
{
    if (status == FSDP_OK)
        return ACL_SUCCESS;
    return FAIL_IN(
        call, status == FSDP_ENOMEM ? ACL_ERROR_RT_MEMORY_ALLOCATION : ACL_ERROR_RT_INTERNAL_ERROR,
        "%s", fsdp_error_get()->what);
}

const char *aclGetRecentErrMsg(void)
{
    memcpy(read_text, said, sizeof said);
    said[0] = '\0';
    return read_text[0] != '\0' ? read_text : NULL;
}

static const char *_Atomic broken;

void sim_break(const char *call)
{
    atomic_store(&broken, call);
}

bool sim_is_broken(const char *call)
{
    const char *name = atomic_load(&broken);
    if (name == NULL || strcmp(name, call) != 0)
        return false;
    (void)sim_acl_fail(ACL_ERROR_INTERNAL_ERROR, "%s fails, as a test wants it", call);
    return true;
}

static aclError need_init(const char *call)
{
    if (atomic_load(&initialised))
        return ACL_SUCCESS;
    return sim_acl_fail(ACL_ERROR_UNINITIALIZE, "%s before aclInit or after aclFinalize", call);
}

aclError acl_enter(const char *call, acl_context **out)
{
    TRY_ACL(need_init(call));
    const char *is = sim_handle_is_not(current, ACL_CONTEXT);
    FAIL_IF(is != NULL, ACL_ERROR_RT_CONTEXT_NULL, call,
            "this thread's context is %s: call aclrtSetDevice or aclrtSetCurrentContext in it "
            "first",
            is);
    if (out != NULL)
        *out = current;
    return sim_is_broken(call) ? ACL_ERROR_INTERNAL_ERROR : ACL_SUCCESS;
}

aclError acl_check_context(acl_context *c, const char *call)
{
    FAIL_IF(atomic_load(&c->stopped), c->error.code, call, "the context has stopped: %s",
            c->error.text);
    return ACL_SUCCESS;
}

/* ---- start and end --------------------------------------------------------------------------- */

static int exit_status = -1; /* exit status of a program that ends with exit(); else -1 */

static void note_exit(int status, void *unused)
{
    (void)unused;
    exit_status = status;
}

/* Runs as the last destructor here, so after the one in which the plug-in finalises ACL. A device
 * that is still set has failed; leave it to the system. */
static __attribute__((destructor(101))) void finalize_check(void)
{
    if (exit_status == 0 && atomic_load(&initialised) && used_device >= 0 && n_set == 0)
        sim_die("the program ends without aclFinalize");
}

aclError aclInit(const char *config)
{
    (void)config;
    static atomic_bool noted;
    if (sim_is_broken(__func__))
        return ACL_ERROR_INTERNAL_ERROR;
    if (!atomic_exchange(&noted, true))
        (void)on_exit(note_exit, NULL);
    if (atomic_exchange(&initialised, true))
        return sim_acl_fail(ACL_ERROR_REPEAT_INITIALIZE, "aclInit was called before");
    atomic_store(&finalised, false);
    return ACL_SUCCESS;
}

typedef struct leaks {
    size_t n_blocks, bytes, n_pinned, pinned_bytes;
} leaks;

static void count_range(void *self, const sim_range *r)
{
    leaks *l = self;
    l->n_blocks += r->kind == SIM_OF_DEVICE;
    l->bytes += r->kind == SIM_OF_DEVICE ? r->bytes : 0;
    l->n_pinned += r->kind == SIM_PINNED;
    l->pinned_bytes += r->kind == SIM_PINNED ? r->bytes : 0;
}

/* End the process if the caller left objects behind. at_end: check host memory and contexts too. */
static void leaks_check(const char *call, bool at_end)
{
    leaks l = {0};
    const int streams = atomic_load(&acl_n_streams), events = atomic_load(&acl_n_events);
    sim_range_each(count_range, &l);
    if (!at_end)
        l.n_pinned = 0;
    const int contexts = at_end ? n_contexts : 0;
    const long described = at_end ? sim_aclnn_live() : 0;
    if (streams + events + contexts == 0 && l.n_blocks + l.n_pinned == 0 && described == 0)
        return;
    sim_die("%s while there are still %d streams, %d events, %d contexts of aclrtCreateContext, "
            "%zu blocks of the NPU (%zu bytes) and %zu of the host (%zu bytes), %ld tensors, "
            "scalars, arrays and executors of aclnn",
            call, streams, events, contexts, l.n_blocks, l.bytes, l.n_pinned,
            at_end ? l.pinned_bytes : 0, described);
}

/* A destructor runs last, so an aclFinalize of the program itself comes before the plug-in's. */
aclError aclFinalize(void)
{
    if (exit_status == 0 && atomic_load(&finalised))
        sim_die(
            "aclFinalize at the end of the program, again: who has initialised ACL finalises it");
    if (!atomic_load(&initialised))
        return sim_acl_fail(atomic_load(&finalised) ? ACL_ERROR_REPEAT_FINALIZE
                                                    : ACL_ERROR_UNINITIALIZE,
                            "aclFinalize without aclInit");
    leaks_check(__func__, true);
    atomic_store(&finalised, true);
    atomic_store(&initialised, false);
    return ACL_SUCCESS;
}

/* ---- devices --------------------------------------------------------------------------------- */

aclError aclrtGetDeviceCount(uint32_t *count)
{
    TRY_ACL(need_init(__func__));
    FAIL_IF(count == NULL, ACL_ERROR_INVALID_PARAM, __func__, "count is NULL");
    *count = (uint32_t)sim_number("FSDP_SIM_NPUS", 16);
    return ACL_SUCCESS;
}

const char *aclrtGetSocName(void)
{
    const char *name = getenv("FSDP_SIM_SOC");
    return name != NULL ? name : "Ascend910B2";
}

sim_queue *acl_memory_queue(void)
{
    return &memory_queue;
}

/* Use NPU `index`. The first call opens the device. The caller holds acl_lock. */
static aclError device_use(int32_t index, const char *call)
{
    uint32_t count = 0;
    TRY_ACL(aclrtGetDeviceCount(&count));
    if (sim_is_broken(call))
        return ACL_ERROR_INTERNAL_ERROR;
    FAIL_IF(index < 0 || (uint32_t)index >= count, ACL_ERROR_RT_INVALID_DEVICEID, call,
            "device %d of %u", index, count);
    if (used_device >= 0 && used_device != index)
        sim_die("%s of device %d in a process that uses device %d: the stand-in has one NPU a "
                "process",
                call, index, used_device);
    used_device = index;
    if (memory_queue.s != NULL)
        return ACL_SUCCESS;
    fsdp_status status = sim_device_open();
    if (status == FSDP_OK)
        status = sim_queue_open(&memory_queue, 0);
    return acl_status(status, call);
}

static acl_context *context_new(bool is_default)
{
    acl_context *c = calloc(1, sizeof *c);
    if (c == NULL)
        return NULL;
    c->handle.what = ACL_CONTEXT;
    c->is_default = is_default;
    return c;
}

static aclError set_device(int32_t index)
{
    TRY_ACL(device_use(index, "aclrtSetDevice"));
    if (of_device == NULL && (of_device = context_new(true)) == NULL)
        return sim_acl_fail(ACL_ERROR_BAD_ALLOC, "aclrtSetDevice: no memory");
    n_set++;
    current = of_device;
    return ACL_SUCCESS;
}

aclError aclrtSetDevice(int32_t index)
{
    pthread_mutex_lock(&acl_lock);
    const aclError error = set_device(index);
    pthread_mutex_unlock(&acl_lock);
    return error;
}

aclError aclrtResetDevice(int32_t index)
{
    aclError error = ACL_SUCCESS;
    TRY_ACL(need_init(__func__));
    pthread_mutex_lock(&acl_lock);
    if (index != used_device || n_set == 0) {
        error = FAIL_IN(__func__, ACL_ERROR_RT_INVALID_DEVICEID, "device %d is not in use", index);
    } else if (--n_set == 0) {
        leaks_check(__func__, false);
        sim_handle_destroy(of_device);
        of_device = NULL;
    }
    pthread_mutex_unlock(&acl_lock);
    return error;
}

aclError aclrtGetDevice(int32_t *index)
{
    TRY_ACL(acl_enter(__func__, NULL));
    FAIL_IF(index == NULL, ACL_ERROR_INVALID_PARAM, __func__, "deviceId is NULL");
    *index = used_device;
    return ACL_SUCCESS;
}

/* ---- contexts -------------------------------------------------------------------------------- */

aclError aclrtCreateContext(aclrtContext *out, int32_t index)
{
    FAIL_IF(out == NULL, ACL_ERROR_INVALID_PARAM, __func__, "context is NULL");
    pthread_mutex_lock(&acl_lock);
    aclError error = device_use(index, __func__);
    if (error == ACL_SUCCESS && (*out = context_new(false)) == NULL)
        error = sim_acl_fail(ACL_ERROR_BAD_ALLOC, "aclrtCreateContext: no memory");
    if (error == ACL_SUCCESS) {
        current = *out;
        n_contexts++;
    }
    pthread_mutex_unlock(&acl_lock);
    return error;
}

aclError aclrtDestroyContext(aclrtContext handle)
{
    TRY_ACL(need_init(__func__));
    FAIL_IF(handle == NULL, ACL_ERROR_INVALID_PARAM, __func__, "context is NULL");
    acl_context *c = sim_live(handle, ACL_CONTEXT, __func__, "a context");
    FAIL_IF(c->is_default, ACL_ERROR_RT_PARAM_INVALID, __func__,
            "aclrtResetDevice ends the default context");
    if (c->n_streams > 0)
        sim_die("aclrtDestroyContext while %d streams of it are left", c->n_streams);
    pthread_mutex_lock(&acl_lock);
    n_contexts--;
    pthread_mutex_unlock(&acl_lock);
    sim_handle_destroy(c);
    return ACL_SUCCESS;
}

aclError aclrtSetCurrentContext(aclrtContext handle)
{
    TRY_ACL(need_init(__func__));
    FAIL_IF(handle == NULL, ACL_ERROR_INVALID_PARAM, __func__, "context is NULL");
    current = sim_live(handle, ACL_CONTEXT, __func__, "a context");
    return ACL_SUCCESS;
}

aclError aclrtGetCurrentContext(aclrtContext *out)
{
    acl_context *c;
    FAIL_IF(out == NULL, ACL_ERROR_INVALID_PARAM, __func__, "context is NULL");
    TRY_ACL(acl_enter(__func__, &c));
    *out = c;
    return ACL_SUCCESS;
}

/* ---- options --------------------------------------------------------------------------------- */

aclError aclrtCtxSetSysParamOpt(aclSysParamOpt opt, int64_t value)
{
    acl_context *c;
    TRY_ACL(acl_enter(__func__, &c));
    FAIL_IF(opt != ACL_OPT_DETERMINISTIC || value < 0 || value > 1, ACL_ERROR_RT_PARAM_INVALID,
            __func__, "option %d, value %lld", opt, (long long)value);
    c->deterministic = value == 1;
    return ACL_SUCCESS;
}

bool sim_acl_is_deterministic(void)
{
    return sim_handle_is_not(current, ACL_CONTEXT) == NULL && current->deterministic;
}
