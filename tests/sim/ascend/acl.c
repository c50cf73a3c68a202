/* acl.c -- beginning and end, errors, devices and contexts of the stand-in. A process sees some
 * equal NPUs, of which it may use one. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tests/sim/ascend/acl_impl.h"

const sim_words sim_stands_for = {"Ascend", "NPU", "operations", "memory of the NPU"};

pthread_mutex_t acl_lock = PTHREAD_MUTEX_INITIALIZER;
atomic_int acl_n_streams, acl_n_events;

static atomic_bool initialised, finalised;
static int64_t deterministic; /* of the process */
static int used_device = -1;
/* The default context, while aclrtSetDevice was called more often than aclrtResetDevice; both are
 * guarded by acl_lock. */
static acl_context *of_device;
static int n_set, n_contexts;
static sim_queue memory_queue;
static __thread acl_context *current;
static __thread aclError last_error;
/* What was said last, and what is read of it: valid until the thread's next call. */
static __thread char said[640], read_text[640];

/* ---- errors ---------------------------------------------------------------------------------- */

aclError sim_acl_fail(aclError code, const char *format, ...)
{
    va_list args;
    int chars = snprintf(said, sizeof said, "E%d: ", code);
    va_start(args, format);
    vsnprintf(said + chars, sizeof said - (size_t)chars, format, args);
    va_end(args);
    return last_error = code;
}

aclError acl_status(fsdp_status status, const char *call)
{
    if (status == FSDP_OK)
        return ACL_SUCCESS;
    return sim_acl_fail(status == FSDP_ENOMEM ? ACL_ERROR_RT_MEMORY_ALLOCATION
                                              : ACL_ERROR_RT_INTERNAL_ERROR,
                        "%s: %s", call, fsdp_error_get()->what);
}

const char *aclGetRecentErrMsg(void)
{
    memcpy(read_text, said, sizeof said);
    said[0] = '\0';
    return read_text[0] != '\0' ? read_text : NULL;
}

aclError aclrtPeekAtLastError(aclrtLastErrLevel level)
{
    if (level != ACL_RT_THREAD_LEVEL)
        return sim_acl_fail(ACL_ERROR_RT_PARAM_INVALID, "aclrtPeekAtLastError: level %d", level);
    return last_error;
}

aclError aclrtGetLastError(aclrtLastErrLevel level)
{
    const aclError error = aclrtPeekAtLastError(level);
    last_error = ACL_SUCCESS;
    return error;
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
    aclError error = need_init(call);
    if (error != ACL_SUCCESS)
        return error;
    const char *is = sim_handle_is_not(current, ACL_CONTEXT);
    if (is != NULL)
        return sim_acl_fail(ACL_ERROR_RT_CONTEXT_NULL,
                            "%s: this thread's context is %s: call aclrtSetDevice or "
                            "aclrtSetCurrentContext in it first",
                            call, is);
    *out = current;
    return sim_is_broken(call) ? ACL_ERROR_INTERNAL_ERROR : ACL_SUCCESS;
}

aclError acl_check_context(acl_context *c, const char *call)
{
    if (!atomic_load(&c->stopped))
        return ACL_SUCCESS;
    return sim_acl_fail(c->error.code, "%s: the context has stopped: %s", call, c->error.text);
}

/* ---- beginning and end ----------------------------------------------------------------------- */

static int exit_status = -1; /* of a program that ends by exit() */

static void note_exit(int status, void *unused)
{
    (void)unused;
    exit_status = status;
}

/* The last destructor here, and so after the one by which the plug-in finalises. A device that is
 * still set is one that has failed, and is left to the system. */
static __attribute__((destructor(101))) void finalize_check(void)
{
    if (exit_status == 0 && atomic_load(&initialised) && used_device >= 0 && n_set == 0)
        sim_die("the program ends without aclFinalize");
}

aclError aclInit(const char *config)
{
    (void)config;
    static atomic_bool noted;
    if (sim_is_broken("aclInit"))
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

/* What nobody has given back ends the process. at_end: host memory and contexts too. */
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

/* Somebody else's end comes first, for a destructor is the last to run. */
aclError aclFinalize(void)
{
    if (exit_status == 0 && atomic_load(&finalised))
        sim_die(
            "aclFinalize at the end of the program, again: who has initialised ACL finalises it");
    if (!atomic_load(&initialised))
        return sim_acl_fail(atomic_load(&finalised) ? ACL_ERROR_REPEAT_FINALIZE
                                                    : ACL_ERROR_UNINITIALIZE,
                            "aclFinalize without aclInit");
    leaks_check("aclFinalize", true);
    atomic_store(&finalised, true);
    atomic_store(&initialised, false);
    return ACL_SUCCESS;
}

/* ---- devices --------------------------------------------------------------------------------- */

aclError aclrtGetDeviceCount(uint32_t *count)
{
    aclError error = need_init("aclrtGetDeviceCount");
    if (error != ACL_SUCCESS)
        return error;
    if (count == NULL)
        return sim_acl_fail(ACL_ERROR_INVALID_PARAM, "aclrtGetDeviceCount: count is NULL");
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

/* Opens it at the first call. With acl_lock. */
static aclError device_use(int32_t index, const char *call)
{
    uint32_t count = 0;
    aclError error = aclrtGetDeviceCount(&count);
    if (error == ACL_SUCCESS && sim_is_broken(call))
        error = ACL_ERROR_INTERNAL_ERROR;
    if (error != ACL_SUCCESS)
        return error;
    if (index < 0 || (uint32_t)index >= count)
        return sim_acl_fail(ACL_ERROR_RT_INVALID_DEVICEID, "%s: device %d of %u", call, index,
                            count);
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
    c->deterministic = -1;
    return c;
}

static aclError set_device(int32_t index)
{
    aclError error = device_use(index, "aclrtSetDevice");
    if (error != ACL_SUCCESS)
        return error;
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
    aclError error = need_init("aclrtResetDevice");
    if (error != ACL_SUCCESS)
        return error;
    pthread_mutex_lock(&acl_lock);
    if (index != used_device || n_set == 0) {
        error = sim_acl_fail(ACL_ERROR_RT_INVALID_DEVICEID,
                             "aclrtResetDevice: device %d is not in use", index);
    } else if (--n_set == 0) {
        leaks_check("aclrtResetDevice", false);
        sim_handle_destroy(of_device);
        of_device = NULL;
    }
    pthread_mutex_unlock(&acl_lock);
    return error;
}

aclError aclrtGetDevice(int32_t *index)
{
    acl_context *c;
    aclError error = acl_enter("aclrtGetDevice", &c);
    if (error != ACL_SUCCESS)
        return error;
    if (index == NULL)
        return sim_acl_fail(ACL_ERROR_INVALID_PARAM, "aclrtGetDevice: deviceId is NULL");
    *index = used_device;
    return ACL_SUCCESS;
}

/* ---- contexts -------------------------------------------------------------------------------- */

aclError aclrtCreateContext(aclrtContext *out, int32_t index)
{
    if (out == NULL)
        return sim_acl_fail(ACL_ERROR_INVALID_PARAM, "aclrtCreateContext: context is NULL");
    pthread_mutex_lock(&acl_lock);
    aclError error = device_use(index, "aclrtCreateContext");
    if (error == ACL_SUCCESS && (*out = context_new(false)) == NULL)
        error = sim_acl_fail(ACL_ERROR_BAD_ALLOC, "aclrtCreateContext: no memory");
    if (error == ACL_SUCCESS) {
        current = *out;
        n_contexts++;
    }
    pthread_mutex_unlock(&acl_lock);
    return error;
}

static acl_context *live_context(aclrtContext c, const char *call)
{
    const char *is = sim_handle_is_not(c, ACL_CONTEXT);
    if (is != NULL)
        sim_die("%s of a context that is %s", call, is);
    return c;
}

aclError aclrtDestroyContext(aclrtContext handle)
{
    aclError error = need_init("aclrtDestroyContext");
    if (error != ACL_SUCCESS)
        return error;
    if (handle == NULL)
        return sim_acl_fail(ACL_ERROR_INVALID_PARAM, "aclrtDestroyContext: context is NULL");
    acl_context *c = live_context(handle, "aclrtDestroyContext");
    if (c->is_default)
        return sim_acl_fail(ACL_ERROR_RT_PARAM_INVALID,
                            "aclrtDestroyContext of the default context: aclrtResetDevice ends it");
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
    aclError error = need_init("aclrtSetCurrentContext");
    if (error != ACL_SUCCESS)
        return error;
    if (handle == NULL)
        return sim_acl_fail(ACL_ERROR_INVALID_PARAM, "aclrtSetCurrentContext: context is NULL");
    current = live_context(handle, "aclrtSetCurrentContext");
    return ACL_SUCCESS;
}

aclError aclrtGetCurrentContext(aclrtContext *out)
{
    acl_context *c;
    if (out == NULL)
        return sim_acl_fail(ACL_ERROR_INVALID_PARAM, "aclrtGetCurrentContext: context is NULL");
    aclError error = acl_enter("aclrtGetCurrentContext", &c);
    if (error == ACL_SUCCESS)
        *out = c;
    return error;
}

/* ---- options --------------------------------------------------------------------------------- */

static aclError option_check(const char *call, aclSysParamOpt opt, int64_t value)
{
    if ((opt != ACL_OPT_DETERMINISTIC && opt != ACL_OPT_ENABLE_DEBUG_KERNEL) || value < 0 ||
        value > 1)
        return sim_acl_fail(ACL_ERROR_RT_PARAM_INVALID, "%s: option %d, value %lld", call, opt,
                            (long long)value);
    return ACL_SUCCESS;
}

aclError aclrtSetSysParamOpt(aclSysParamOpt opt, int64_t value)
{
    aclError error = need_init("aclrtSetSysParamOpt");
    if (error == ACL_SUCCESS)
        error = option_check("aclrtSetSysParamOpt", opt, value);
    if (error == ACL_SUCCESS && opt == ACL_OPT_DETERMINISTIC)
        deterministic = value;
    return error;
}

aclError aclrtCtxSetSysParamOpt(aclSysParamOpt opt, int64_t value)
{
    acl_context *c;
    aclError error = acl_enter("aclrtCtxSetSysParamOpt", &c);
    if (error == ACL_SUCCESS)
        error = option_check("aclrtCtxSetSysParamOpt", opt, value);
    if (error == ACL_SUCCESS && opt == ACL_OPT_DETERMINISTIC)
        c->deterministic = value;
    return error;
}

bool sim_acl_is_deterministic(void)
{
    const bool has_context = sim_handle_is_not(current, ACL_CONTEXT) == NULL;
    return (has_context && current->deterministic >= 0 ? current->deterministic : deterministic) ==
           1;
}
