/* test_npu_sim.c -- how the stand-in for Ascend's runtime reports mistakes: with the documented
 * code and a message, or by ending the process. Only with FSDP_DEVICE=npu-sim.
 *
 * Each case is a process of its own, so that the library starts unused. */
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "common/device/device.h"
#include "tests/sim/ascend/include/acl/acl.h"
#include "tests/unit/sim_lib.h"

/* A function of the stand-in, and one whose header is C++ only. */
aclError sim_acl_launch(aclrtStream s, const char *name, stream_fn fn, const void *args, size_t n);
bool sim_acl_is_device(const void *ptr, size_t bytes);
bool sim_acl_is_deterministic(void);
void sim_break(const char *call);
void *aclCreateIntArray(const int64_t *value, uint64_t size);
#define ACL(call) SIM(aclrt##call)

/* ---- checks ---------------------------------------------------------------------------------- */

static void fail_at(int line, const char *what, long long got, long long expected)
{
    const char *said = SIM(aclGetRecentErrMsg)();
    fprintf(stderr, "test_npu_sim.c:%d: %s: got %lld, expected %lld; last message: %s\n", line,
            what, got, expected, said ? said : "none");
    _exit(1);
}

#define WANT(got, expected)                                                                        \
    do {                                                                                           \
        const long long got_ = (long long)(got), expected_ = (long long)(expected);                \
        if (got_ != expected_)                                                                     \
            fail_at(__LINE__, #got, got_, expected_);                                              \
    } while (0)
#define GOOD(call) WANT(call, ACL_SUCCESS)
/* The call must fail with ACL_ERROR_code and a message that contains `part`. */
#define BAD(call, code, part)                                                                      \
    do {                                                                                           \
        WANT(call, ACL_ERROR_##code);                                                              \
        const char *message_ = SIM(aclGetRecentErrMsg)();                                          \
        WANT(message_ != NULL && strstr(message_, part) != NULL, 1);                               \
    } while (0)

static aclrtStream new_stream(void)
{
    aclrtStream new;
    GOOD(ACL(CreateStreamWithConfig)(&new, 0, 0));
    return new;
}

/* The stream of a case. begin() runs before every case that is not about the start. */
static aclrtStream s;

static void begin(void)
{
    GOOD(SIM(aclInit)(NULL));
    GOOD(ACL(SetDevice)(0));
    s = new_stream();
}

/* ---- work for streams ------------------------------------------------------------------------ */

/* A task that waits at the gate until open_gate. */
static struct {
    atomic_bool entered, is_open, passed;
} gate;

static fsdp_status pass_gate(void *args, int n_threads)
{
    atomic_store(&gate.entered, true);
    while (!atomic_load(&gate.is_open))
        usleep(100);
    atomic_store(&gate.passed, true);
    return FSDP_OK;
}

/* Returns when the stream has finished its earlier work and waits at the gate. */
static void launch_gate(aclrtStream q)
{
    GOOD(SIM(sim_acl_launch)(q, "gate", pass_gate, NULL, 0));
    while (!atomic_load(&gate.entered))
        usleep(100);
}

static void open_gate(void)
{
    atomic_store(&gate.is_open, true);
}

static fsdp_status fail_now(void *args, int n_threads)
{
    return fsdp_error(FSDP_EINVAL, "", "token 7 of 5");
}

typedef struct store_args {
    int *at;
    int value;
} store_args;

static fsdp_status store(void *args, int n_threads)
{
    const store_args *a = args;
    *a->at = a->value;
    return FSDP_OK;
}

static aclError launch_store(aclrtStream q, int *at, int value)
{
    return SIM(sim_acl_launch)(q, "store", store, &(store_args){at, value}, sizeof(store_args));
}

/* A new int in device memory. */
static int *new_int(void)
{
    void *ptr;
    GOOD(ACL(Malloc)(&ptr, sizeof(int), ACL_MEM_MALLOC_HUGE_FIRST));
    return ptr;
}

static void zero_int(int *at)
{
    GOOD(ACL(MemsetAsync)(at, sizeof *at, 0, sizeof *at, s));
    GOOD(ACL(SynchronizeStream)(s));
}

static int read_int(const int *at)
{
    int value;
    GOOD(ACL(Memcpy)(&value, sizeof value, at, sizeof value, ACL_MEMCPY_DEVICE_TO_HOST));
    return value;
}

/* ---- start, devices, contexts ---------------------------------------------------------------- */

SIM_WELL(test_init)
{
    uint32_t count;
    BAD(ACL(SetDevice)(0), UNINITIALIZE, "before aclInit");
    BAD(SIM(aclFinalize)(), UNINITIALIZE, "without aclInit");
    WANT(SIM(aclGetRecentErrMsg)() == NULL, 1); /* the message can be read once */
    GOOD(SIM(aclInit)(NULL));
    BAD(SIM(aclInit)(NULL), REPEAT_INITIALIZE, "before");
    BAD(ACL(GetDeviceCount)(NULL), INVALID_PARAM, "NULL");
    setenv("FSDP_SIM_NPUS", "3", 1);
    GOOD(ACL(GetDeviceCount)(&count));
    WANT(count, 3);
    WANT(strcmp(ACL(GetSocName)(), "Ascend910B2"), 0);
    GOOD(SIM(aclFinalize)());
    BAD(SIM(aclFinalize)(), REPEAT_FINALIZE, "aclFinalize");
}

SIM_WELL(test_devices)
{
    int32_t index;
    void *ptr;
    GOOD(SIM(aclInit)(NULL));
    BAD(ACL(SetDevice)(16), RT_INVALID_DEVICEID, "device 16 of 16");
    BAD(ACL(SetDevice)(-1), RT_INVALID_DEVICEID, "device -1");
    BAD(ACL(GetDevice)(&index), RT_CONTEXT_NULL, "aclrtSetDevice");
    BAD(ACL(Malloc)(&ptr, 8, ACL_MEM_MALLOC_HUGE_FIRST), RT_CONTEXT_NULL, "aclrtMalloc");
    BAD(ACL(MallocHost)(&ptr, 8), RT_CONTEXT_NULL, "aclrtMallocHost");
    BAD(ACL(CreateStreamWithConfig)(&s, 0, 0), RT_CONTEXT_NULL, "aclrtCreateStream");
    GOOD(ACL(SetDevice)(3));
    GOOD(ACL(GetDevice)(&index));
    WANT(index, 3);
    GOOD(ACL(SetDevice)(3)); /* counted: the first reset does not end the use of the device */
    GOOD(ACL(ResetDevice)(3));
    s = new_stream();
    GOOD(ACL(DestroyStream)(s));
    GOOD(ACL(ResetDevice)(3));
    BAD(ACL(CreateStreamWithConfig)(&s, 0, 0), RT_CONTEXT_NULL, "destroyed");
    BAD(ACL(ResetDevice)(3), RT_INVALID_DEVICEID, "not in use");
    GOOD(ACL(SetDevice)(3));
    GOOD(ACL(DestroyStream)(new_stream()));
}

static void *in_a_new_thread(void *context)
{
    aclrtStream none;
    WANT(SIM(aclGetRecentErrMsg)() == NULL, 1);
    BAD(ACL(CreateStreamWithConfig)(&none, 0, 0), RT_CONTEXT_NULL, "this thread's context is NULL");
    GOOD(ACL(SetCurrentContext)(context));
    GOOD(ACL(DestroyStream)(new_stream()));
    return NULL;
}

SIM_WELL(test_contexts)
{
    aclrtContext first, second;
    pthread_t thread;
    aclrtEvent w;
    GOOD(ACL(GetCurrentContext)(&first));
    GOOD(ACL(CreateEventExWithFlag)(&w, ACL_EVENT_SYNC));
    BAD(ACL(SetDevice)(99), RT_INVALID_DEVICEID, "99");
    WANT(ACL(SetDevice)(99), ACL_ERROR_RT_INVALID_DEVICEID); /* its message is not read */
    WANT(pthread_create(&thread, NULL, in_a_new_thread, first), 0);
    pthread_join(thread, NULL);
    GOOD(ACL(CreateContext)(&second, 0));
    BAD(launch_store(s, NULL, 0), RT_STREAM_CONTEXT, "stream 0");
    BAD(ACL(RecordEvent)(w, s), RT_STREAM_CONTEXT, "aclrtRecordEvent");
    BAD(ACL(StreamWaitEvent)(s, w), RT_STREAM_CONTEXT, "aclrtStreamWaitEvent");
    BAD(ACL(SynchronizeStream)(s), RT_STREAM_CONTEXT, "aclrtSynchronizeStream");
    BAD(ACL(DestroyStream)(s), RT_STREAM_CONTEXT, "aclrtDestroyStream");
    GOOD(ACL(DestroyContext)(second));
    BAD(ACL(CreateStreamWithConfig)(&s, 0, 0), RT_CONTEXT_NULL, "destroyed");
    GOOD(ACL(SetCurrentContext)(first));
    BAD(ACL(DestroyContext)(first), RT_PARAM_INVALID, "aclrtResetDevice");
    BAD(ACL(SetCurrentContext)(NULL), INVALID_PARAM, "NULL");
}

SIM_WELL(test_options)
{
    WANT(SIM(sim_acl_is_deterministic)(), 0);
    GOOD(ACL(CtxSetSysParamOpt)(ACL_OPT_DETERMINISTIC, 1));
    WANT(SIM(sim_acl_is_deterministic)(), 1);
    BAD(ACL(CtxSetSysParamOpt)((aclSysParamOpt)9, 1), RT_PARAM_INVALID, "option 9");
}

/* ---- streams --------------------------------------------------------------------------------- */

SIM_WELL(test_streams)
{
    aclrtStream other;
    aclrtStreamStatus status;
    GOOD(ACL(DestroyStream)(s));
    BAD(ACL(CreateStreamWithConfig)(NULL, 0, 0), INVALID_PARAM, "NULL");
    BAD(ACL(CreateStreamWithConfig)(&s, 8, 0), RT_PARAM_INVALID, "priority 8");
    BAD(ACL(CreateStreamWithConfig)(&s, 0, 64), RT_PARAM_INVALID, "flag 0x40");
    GOOD(ACL(CreateStreamWithConfig)(&s, 7, ACL_STREAM_FAST_LAUNCH | ACL_STREAM_FAST_SYNC));
    launch_gate(s);
    GOOD(ACL(StreamQuery)(s, &status));
    WANT(status, ACL_STREAM_STATUS_NOT_READY);
    BAD(ACL(SynchronizeStreamWithTimeout)(s, -2), RT_PARAM_INVALID, "-2");
    BAD(ACL(SynchronizeStreamWithTimeout)(s, 20), RT_STREAM_SYNC_TIMEOUT, "20 ms");
    open_gate();
    GOOD(ACL(SynchronizeStreamWithTimeout)(s, 20000));
    WANT(gate.passed, 1);
    GOOD(ACL(StreamQuery)(s, &status));
    WANT(status, ACL_STREAM_STATUS_COMPLETE);
    setenv("FSDP_SIM_STREAMS", "1", 1);
    BAD(ACL(CreateStreamWithConfig)(&other, 0, 0), RT_NO_STREAM_RESOURCE, "1 streams");
    GOOD(ACL(DestroyStream)(s));
    GOOD(ACL(DestroyStream)(new_stream()));
}

/* A failure is reported once, and does not stop the stream. */
SIM_WELL(test_failure_goes_on)
{
    aclrtStream other = new_stream();
    int *at = new_int();
    GOOD(SIM(sim_acl_launch)(s, "embedding", fail_now, NULL, 0));
    GOOD(launch_store(s, at, 5));
    GOOD(ACL(SynchronizeStream)(other));
    BAD(ACL(SynchronizeStream)(s), RT_AICORE_EXCEPTION, "token 7 of 5");
    GOOD(ACL(SynchronizeStream)(s));
    WANT(read_int(at), 5);
}

/* If one stream has ACL_STOP_ON_FAILURE, a failure stops its whole context: queued work does not
 * run, and nothing can be issued. */
SIM_WELL(test_failure_stops)
{
    aclrtStreamStatus status;
    aclrtEventRecordedStatus reached;
    aclrtEvent w;
    aclrtStream other = new_stream();
    int *at = new_int();
    GOOD(ACL(CreateEventExWithFlag)(&w, ACL_EVENT_SYNC));
    BAD(ACL(SetStreamFailureMode)(s, 2), RT_PARAM_INVALID, "mode 2");
    GOOD(ACL(SetStreamFailureMode)(s, ACL_STOP_ON_FAILURE));
    BAD(ACL(SetStreamFailureMode)(s, ACL_STOP_ON_FAILURE), RT_PARAM_INVALID, "already");
    setenv("FSDP_SIM_FAULT", "store:3", 1);
    launch_gate(other);
    GOOD(ACL(RecordEvent)(w, other));
    GOOD(launch_store(other, at, 6));
    GOOD(launch_store(s, at, 4));
    GOOD(launch_store(s, at, 5)); /* it faults */
    BAD(ACL(SynchronizeStream)(s), RT_AICORE_EXCEPTION, "store on stream 0");
    open_gate();
    BAD(ACL(SynchronizeStream)(other), RT_AICORE_EXCEPTION, "stopped");
    WANT(gate.passed, 1);
    WANT(read_int(at), 4);
    BAD(launch_store(other, at, 7), RT_AICORE_EXCEPTION, "stopped");
    BAD(ACL(StreamQuery)(s, &status), RT_AICORE_EXCEPTION, "FSDP_SIM_FAULT");
    BAD(ACL(QueryEventStatus)(w, &reached), RT_AICORE_EXCEPTION, "stopped");
    GOOD(ACL(DestroyEvent)(w));
    GOOD(ACL(DestroyStream)(s));
    GOOD(ACL(DestroyStream)(other));
    GOOD(ACL(Free)(at));
    GOOD(SIM(aclFinalize)());
}

/* ---- events ---------------------------------------------------------------------------------- */

typedef aclError (*make_event_fn)(aclrtEvent *, uint32_t);

static aclrtEvent new_event(make_event_fn make, uint32_t flag)
{
    aclrtEvent w;
    GOOD(make(&w, flag));
    return w;
}

static int status_of(aclrtEvent w)
{
    aclrtEventRecordedStatus status;
    GOOD(ACL(QueryEventStatus)(w, &status));
    return (int)status;
}

SIM_WELL(test_event_flags)
{
    aclrtEvent w;
    BAD(ACL(CreateEventWithFlag)(&w, 0), RT_PARAM_INVALID, "flag 0");
    BAD(ACL(CreateEventExWithFlag)(&w, 0), RT_PARAM_INVALID, "flag 0");
    BAD(ACL(CreateEventExWithFlag)(&w, 0x100), RT_PARAM_INVALID, "0x100");
    BAD(ACL(CreateEventExWithFlag)(NULL, ACL_EVENT_SYNC), INVALID_PARAM, "NULL");
    setenv("FSDP_SIM_EVENTS", "1", 1);
    (void)new_event(ACL(CreateEventWithFlag), ACL_EVENT_SYNC);
    BAD(ACL(CreateEventWithFlag)(&w, ACL_EVENT_SYNC), RT_NO_EVENT_RESOURCE, "1 events");
    BAD(ACL(CreateEvent)(&w), RT_NO_EVENT_RESOURCE, "1 events");
    GOOD(ACL(CreateEventExWithFlag)(&w, ACL_EVENT_SYNC));
}

/* Events that behave like CUDA's. */
SIM_WELL(test_ex_events)
{
    aclrtStream waiter = new_stream();
    aclrtEvent w = new_event(ACL(CreateEventExWithFlag), ACL_EVENT_SYNC);
    aclrtEvent timed = new_event(ACL(CreateEventExWithFlag), ACL_EVENT_TIME_LINE);
    WANT(status_of(w), ACL_EVENT_RECORDED_STATUS_COMPLETE);
    GOOD(ACL(StreamWaitEvent)(waiter, w));
    GOOD(ACL(SynchronizeStream)(waiter));
    BAD(ACL(StreamWaitEvent)(waiter, timed), RT_FEATURE_NOT_SUPPORT, "ACL_EVENT_SYNC");
    BAD(ACL(ResetEvent)(w, s), RT_FEATURE_NOT_SUPPORT, "aclrtResetEvent");
    GOOD(ACL(RecordEvent)(w, s));
    GOOD(ACL(SynchronizeEvent)(w));
    GOOD(ACL(StreamWaitEvent)(waiter, w)); /* waits for the last record issued so far */
    launch_gate(s);
    GOOD(ACL(RecordEvent)(w, s));
    WANT(status_of(w), ACL_EVENT_RECORDED_STATUS_NOT_READY);
    GOOD(ACL(SynchronizeStreamWithTimeout)(waiter, 20000));
    GOOD(ACL(StreamWaitEvent)(waiter, w));
    BAD(ACL(SynchronizeStreamWithTimeout)(waiter, 20), RT_STREAM_SYNC_TIMEOUT, "20 ms");
    open_gate();
    GOOD(ACL(SynchronizeStreamWithTimeout)(waiter, 20000));
    WANT(gate.passed, 1);
}

SIM_WELL(test_flag_events)
{
    aclrtStream waiter = new_stream();
    aclrtEvent w = new_event(ACL(CreateEventWithFlag), ACL_EVENT_SYNC);
    aclrtEvent timed = new_event(ACL(CreateEventWithFlag), ACL_EVENT_TIME_LINE);
    WANT(status_of(w), ACL_EVENT_RECORDED_STATUS_NOT_READY);
    BAD(ACL(StreamWaitEvent)(waiter, timed), RT_FEATURE_NOT_SUPPORT, "ACL_EVENT_SYNC");
    BAD(ACL(ResetEvent)(timed, waiter), RT_FEATURE_NOT_SUPPORT, "aclrtResetEvent");
    GOOD(ACL(StreamWaitEvent)(waiter, w)); /* waits, although it is not recorded yet */
    BAD(ACL(SynchronizeStreamWithTimeout)(waiter, 20), RT_STREAM_SYNC_TIMEOUT, "20 ms");
    GOOD(ACL(RecordEvent)(w, s));
    GOOD(ACL(SynchronizeStreamWithTimeout)(waiter, 20000));
    GOOD(ACL(ResetEvent)(w, waiter));
    GOOD(ACL(SynchronizeStream)(waiter));
    WANT(status_of(w), ACL_EVENT_RECORDED_STATUS_NOT_READY);
    launch_gate(s);
    GOOD(ACL(RecordEvent)(w, s));
    GOOD(ACL(StreamWaitEvent)(waiter, w));
    BAD(ACL(SynchronizeStreamWithTimeout)(waiter, 20), RT_STREAM_SYNC_TIMEOUT, "20 ms");
    open_gate();
    GOOD(ACL(SynchronizeStreamWithTimeout)(waiter, 20000));
}

SIM_WELL(test_plain_events)
{
    aclrtEvent w;
    GOOD(ACL(CreateEvent)(&w));
    WANT(status_of(w), ACL_EVENT_RECORDED_STATUS_NOT_READY);
    BAD(ACL(StreamWaitEvent)(s, w), RT_PARAM_INVALID, "not recorded");
    GOOD(ACL(RecordEvent)(w, s));
    GOOD(ACL(StreamWaitEvent)(s, w));
    GOOD(ACL(SynchronizeEvent)(w));
}

SIM_WELL(test_elapsed_time)
{
    float ms = -1;
    aclrtEvent from = new_event(ACL(CreateEventExWithFlag), ACL_EVENT_TIME_LINE);
    aclrtEvent to = new_event(ACL(CreateEventExWithFlag), ACL_EVENT_TIME_LINE | ACL_EVENT_SYNC);
    aclrtEvent untimed = new_event(ACL(CreateEventExWithFlag), ACL_EVENT_SYNC);
    GOOD(ACL(RecordEvent)(from, s));
    GOOD(ACL(RecordEvent)(untimed, s));
    BAD(ACL(EventElapsedTime)(&ms, from, to), RT_INTERNAL_ERROR, "not recorded");
    launch_gate(s);
    GOOD(ACL(RecordEvent)(to, s));
    BAD(ACL(EventElapsedTime)(&ms, from, to), RT_EVENT_TIMESTAMP_INVALID, "not reached");
    BAD(ACL(EventElapsedTime)(NULL, from, to), INVALID_PARAM, "NULL");
    usleep(10000);
    open_gate();
    GOOD(ACL(SynchronizeEvent)(to));
    BAD(ACL(EventElapsedTime)(&ms, untimed, to), RT_EVENT_TIMESTAMP_INVALID, "TIME_LINE");
    GOOD(ACL(EventElapsedTime)(&ms, from, to));
    WANT(ms >= 9 && ms < 10000, 1);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static size_t available(void)
{
    size_t bytes, total;
    GOOD(ACL(GetMemInfo)(ACL_HBM_MEM, &bytes, &total));
    WANT(total, 1 << 20);
    return bytes;
}

SIM_WELL(test_blocks, .setting = "FSDP_SIM_MEMORY_MIB=1")
{
    void *ptr = NULL;
    float x[2];
    BAD(ACL(Malloc)(NULL, 8, ACL_MEM_MALLOC_HUGE_FIRST), INVALID_PARAM, "aclrtMalloc");
    BAD(ACL(Malloc)(&ptr, 0, ACL_MEM_MALLOC_HUGE_FIRST), INVALID_PARAM, "0 bytes");
    BAD(ACL(Malloc)(&ptr, 8, (aclrtMemMallocPolicy)8), INVALID_PARAM, "policy 8");
    BAD(ACL(Malloc)(&ptr, 1 << 20, ACL_MEM_MALLOC_HUGE_FIRST), RT_MEMORY_ALLOCATION,
        "0 of 1048576");
    WANT(available(), 1 << 20);
    GOOD(ACL(Malloc)(&ptr, 33, ACL_MEM_MALLOC_HUGE_FIRST)); /* takes 64 + 32 bytes */
    WANT(available(), (1 << 20) - 96);
    WANT((uintptr_t)ptr % 64, 0);
    WANT(SIM(sim_acl_is_device)(ptr, 33), 1);
    WANT(SIM(sim_acl_is_device)(ptr, 34), 0);
    WANT(SIM(sim_acl_is_device)(x, 4), 0);
    GOOD(ACL(Memcpy)(x, sizeof x, ptr, sizeof x, ACL_MEMCPY_DEVICE_TO_HOST));
    WANT(isnan(x[0]) && isnan(x[1]), 1);
    BAD(ACL(Free)(NULL), INVALID_PARAM, "NULL");
    BAD(ACL(Free)((char *)ptr + 1), RT_PARAM_INVALID, "no block");
    GOOD(ACL(Free)(ptr));
    BAD(ACL(Free)(ptr), RT_PARAM_INVALID, "no block");
    WANT(available(), 1 << 20);
    BAD(ACL(MallocHost)(&ptr, 0), INVALID_PARAM, "0 bytes");
    BAD(ACL(FreeHost)(NULL), INVALID_PARAM, "NULL");
    BAD(ACL(FreeHost)(x), RT_PARAM_INVALID, "aclrtMallocHost");
    BAD(ACL(GetMemInfo)(ACL_DDR_MEM, &(size_t){0}, &(size_t){0}), RT_PARAM_INVALID, "HBM");
}

SIM_WELL(test_copies_are_checked)
{
    int x[4] = {1, 2, 3, 4};
    void *ptr, *pinned;
    GOOD(ACL(Malloc)(&ptr, 256, ACL_MEM_MALLOC_HUGE_FIRST));
    GOOD(ACL(MallocHost)(&pinned, 16));
    BAD(ACL(Memcpy)(ptr, 256, NULL, 4, ACL_MEMCPY_HOST_TO_DEVICE), INVALID_PARAM, "src");
    BAD(ACL(Memcpy)(ptr, 8, x, 16, ACL_MEMCPY_HOST_TO_DEVICE), RT_PARAM_INVALID, "destMax 8");
    GOOD(ACL(Memcpy)(ptr, 8, x, 0, ACL_MEMCPY_HOST_TO_DEVICE));
    GOOD(ACL(MemcpyAsync)(NULL, 0, NULL, 0, ACL_MEMCPY_HOST_TO_DEVICE, s));
    BAD(ACL(Memcpy)(ptr, 256, x, 16, ACL_MEMCPY_DEVICE_TO_DEVICE), RT_PARAM_INVALID,
        "not of the NPU");
    BAD(ACL(Memcpy)(ptr, 256, x, 16, ACL_MEMCPY_HOST_TO_HOST), RT_PARAM_INVALID, "not of the host");
    BAD(ACL(Memcpy)((char *)ptr + 250, 16, x, 16, ACL_MEMCPY_HOST_TO_DEVICE), RT_PARAM_INVALID,
        "ends after its block of 256");
    BAD(ACL(MemcpyAsync)(x, 16, pinned, 16, ACL_MEMCPY_HOST_TO_HOST, s), RT_FEATURE_NOT_SUPPORT,
        "host to host");
    BAD(ACL(MemcpyAsync)((char *)ptr + 32, 16, ptr, 16, ACL_MEMCPY_DEVICE_TO_DEVICE, s),
        RT_ADDR_UNALIGNED, "multiples of 64");
    GOOD(ACL(MemcpyAsync)((char *)ptr + 64, 16, ptr, 16, ACL_MEMCPY_DEFAULT, s));
    BAD(ACL(MemsetAsync)(ptr, 8, 0, 16, s), RT_PARAM_INVALID, "maxCount 8");
    BAD(ACL(MemsetAsync)(ptr, 512, 0, 512, s), RT_PARAM_INVALID, "one block");
    BAD(ACL(MemsetAsync)(NULL, 8, 0, 8, s), INVALID_PARAM, "NULL");
    BAD(ACL(MemsetAsync)(ptr, 257, 0, 8, s), RT_PARAM_INVALID, "maxCount 257, but the block");
    BAD(ACL(Memcpy)((char *)ptr + 64, 193, x, 16, ACL_MEMCPY_HOST_TO_DEVICE), RT_PARAM_INVALID,
        "destMax 193, but the block of 256 has 192 bytes from");
    GOOD(ACL(Memcpy)((char *)ptr + 64, 192, x, 16, ACL_MEMCPY_HOST_TO_DEVICE));
    GOOD(ACL(MemsetAsync)(ptr, 256, 0, 256, s));
    GOOD(ACL(SynchronizeStream)(s));
    GOOD(ACL(Memcpy)(ptr, 256, x, 16, ACL_MEMCPY_HOST_TO_DEVICE));
    WANT(read_int((int *)ptr + 3), 4);
    WANT(read_int((int *)ptr + 4), 0);
}

/* Neither a copy without a stream nor aclrtFree waits for work on streams. */
SIM_WELL(test_nothing_waits)
{
    int *at = new_int(), *other = new_int();
    zero_int(at);
    launch_gate(s);
    GOOD(launch_store(s, at, 5));
    WANT(read_int(at), 0);
    GOOD(ACL(Free)(other));
    WANT(gate.passed, 0);
    open_gate();
    GOOD(ACL(SynchronizeStream)(s));
    WANT(read_int(at), 5);
}

static void *open_later(void *arg)
{
    usleep(30000);
    open_gate();
    return arg;
}

/* A copy of pinned memory runs after the call returns. A copy of pageable memory ends before the
 * call returns. */
SIM_WELL(test_pageable_copies_block)
{
    pthread_t opener;
    int x = 6;
    void *pinned;
    int *at = new_int();
    GOOD(ACL(MallocHost)(&pinned, sizeof x));
    launch_gate(s);
    memcpy(pinned, &x, sizeof x);
    GOOD(ACL(MemcpyAsync)(at, 4, pinned, 4, ACL_MEMCPY_HOST_TO_DEVICE, s));
    WANT(gate.passed, 0);
    WANT(pthread_create(&opener, NULL, open_later, NULL), 0);
    GOOD(ACL(MemcpyAsync)(at, 4, &x, 4, ACL_MEMCPY_HOST_TO_DEVICE, s));
    WANT(gate.passed, 1);
    pthread_join(opener, NULL);
    GOOD(ACL(SynchronizeStream)(s));
    GOOD(ACL(FreeHost)(pinned));
}

/* ---- callbacks ------------------------------------------------------------------------------- */

typedef struct reporter {
    pthread_t thread;
    aclrtContext context;
    atomic_bool stopping;
    aclError last; /* result of the last call of aclrtProcessReport */
} reporter;

static void *report_main(void *arg)
{
    reporter *r = arg;
    GOOD(ACL(SetCurrentContext)(r->context));
    while (!atomic_load(&r->stopping))
        r->last = ACL(ProcessReport)(5);
    return NULL;
}

static void reporter_start(reporter *r)
{
    GOOD(ACL(GetCurrentContext)(&r->context));
    WANT(pthread_create(&r->thread, NULL, report_main, r), 0);
}

typedef struct call_place {
    pthread_t thread;
    atomic_bool called;
} call_place;

static void note_call(void *arg)
{
    call_place *p = arg;
    p->thread = pthread_self();
    (void)pass_gate(NULL, 1);
    atomic_store(&p->called, true);
}

SIM_WELL(test_callbacks)
{
    reporter r = {0};
    call_place place = {0}, behind = {0};
    int *at = new_int();
    reporter_start(&r);
    const uint64_t thread = (uint64_t)r.thread;
    BAD(ACL(LaunchCallback)(note_call, &place, ACL_CALLBACK_BLOCK, s), RT_STREAM_NO_CB_REG,
        "subscribed");
    BAD(ACL(UnSubscribeReport)(thread, s), RT_STREAM_SUBSCRIBE, "none");
    GOOD(ACL(SubscribeReport)(thread, s));
    BAD(ACL(SubscribeReport)(thread, s), RT_STREAM_SUBSCRIBE, "already");
    BAD(ACL(UnSubscribeReport)(thread + 1, s), RT_THREAD_SUBSCRIBE, "another");
    BAD(ACL(LaunchCallback)(NULL, &place, ACL_CALLBACK_BLOCK, s), INVALID_PARAM, "no function");
    zero_int(at);
    GOOD(ACL(LaunchCallback)(note_call, &place, ACL_CALLBACK_BLOCK, s));
    GOOD(launch_store(s, at, 5));
    BAD(ACL(SynchronizeStreamWithTimeout)(s, 20), RT_STREAM_SYNC_TIMEOUT, "20 ms");
    WANT(read_int(at), 0);
    open_gate();
    GOOD(ACL(SynchronizeStreamWithTimeout)(s, 20000));
    WANT(atomic_load(&place.called) && pthread_equal(place.thread, r.thread), 1);
    WANT(read_int(at), 5);
    /* A callback that does not block: the stream goes on without it. */
    atomic_store(&gate.is_open, false);
    GOOD(ACL(LaunchCallback)(note_call, &behind, ACL_CALLBACK_NO_BLOCK, s));
    GOOD(ACL(SynchronizeStreamWithTimeout)(s, 20000));
    WANT(atomic_load(&behind.called), 0);
    open_gate();
    while (!atomic_load(&behind.called))
        usleep(100);
    usleep(20000);
    GOOD(ACL(UnSubscribeReport)(thread, s));
    atomic_store(&r.stopping, true);
    pthread_join(r.thread, NULL);
}

SIM_WELL(test_reports)
{
    BAD(ACL(ProcessReport)(5), RT_THREAD_SUBSCRIBE, "not subscribed");
    GOOD(ACL(SubscribeReport)((uint64_t)pthread_self(), s));
    BAD(ACL(ProcessReport)(0), INVALID_PARAM, "0 ms");
    BAD(ACL(ProcessReport)(-2), INVALID_PARAM, "-2 ms");
    BAD(ACL(ProcessReport)(5), RT_REPORT_TIMEOUT, "no callback");
}

/* ---- what ends the process ------------------------------------------------------------------- */

SIM_ENDS(die_default_stream, "the default stream",
         "aclrtSynchronizeStreamWithTimeout on the default stream")
{
    (void)ACL(SynchronizeStream)(NULL);
}

SIM_ENDS(die_dead_stream, "a destroyed stream",
         "of a stream that is destroyed; operations launched last: store")
{
    GOOD(launch_store(s, new_int(), 1));
    GOOD(ACL(DestroyStream)(s));
    (void)ACL(SynchronizeStream)(s);
}

SIM_ENDS(die_dead_event, "a destroyed event", "aclrtRecordEvent of an event that is destroyed")
{
    aclrtEvent w = new_event(ACL(CreateEventExWithFlag), ACL_EVENT_SYNC);
    GOOD(ACL(DestroyEvent)(w));
    (void)ACL(RecordEvent)(w, new_stream());
}

SIM_ENDS(die_two_devices, "two devices", "one NPU a process")
{
    (void)ACL(SetDevice)(1);
}

SIM_ENDS(die_leaks, "leaks",
         "1 streams, 1 events, 1 contexts of aclrtCreateContext, 1 blocks of the NPU (4 bytes) "
         "and 1 of the host (16 bytes), 1 tensors")
{
    void *pinned;
    aclrtContext c;
    (void)new_int();
    (void)new_event(ACL(CreateEventExWithFlag), ACL_EVENT_SYNC);
    GOOD(ACL(MallocHost)(&pinned, 16));
    (void)SIM(aclCreateIntArray)(&(int64_t){3}, 1);
    GOOD(ACL(CreateContext)(&c, 0));
    (void)SIM(aclFinalize)();
}

SIM_ENDS(die_reset_with_block, "a block when the device is reset",
         "aclrtResetDevice while there are still")
{
    GOOD(ACL(DestroyStream)(s));
    (void)new_int();
    (void)ACL(ResetDevice)(0);
}

SIM_ENDS(die_overrun, "a write after a block",
         "a block of 4 bytes was written 0 bytes after its end")
{
    int *at = new_int();
    GOOD(launch_store(s, at + 1, 5));
    GOOD(ACL(SynchronizeStream)(s));
    (void)ACL(Free)(at);
}

SIM_ENDS(die_recorded_again, "an event recorded again", "before aclrtResetEvent")
{
    aclrtEvent w = new_event(ACL(CreateEventWithFlag), ACL_EVENT_SYNC);
    GOOD(ACL(RecordEvent)(w, s));
    (void)ACL(RecordEvent)(w, s);
}

SIM_ENDS(die_plain_reset, "a reset that CANN does not define", "does not define")
{
    aclrtEvent w;
    GOOD(ACL(CreateEvent)(&w));
    (void)ACL(ResetEvent)(w, new_stream());
}

SIM_ENDS(die_never_recorded, "an event that nobody records",
         "stream 0 waits for an event that nobody records", .setting = "FSDP_SIM_PATIENCE_S=1")
{
    GOOD(ACL(StreamWaitEvent)(s, new_event(ACL(CreateEventWithFlag), ACL_EVENT_SYNC)));
    (void)ACL(SynchronizeStream)(s);
}

SIM_ENDS(die_nobody_reports, "a callback that nobody takes",
         "a callback of stream 0 waits for thread 0x4d", .setting = "FSDP_SIM_PATIENCE_S=1")
{
    call_place place = {0};
    GOOD(ACL(SubscribeReport)(77, s));
    GOOD(ACL(LaunchCallback)(note_call, &place, ACL_CALLBACK_BLOCK, s));
    (void)ACL(SynchronizeStream)(s);
}

SIM_ENDS(die_unsubscribed_early, "a thread that leaves callbacks", "while 1 callbacks of stream 0")
{
    call_place place = {0};
    GOOD(ACL(SubscribeReport)(77, s));
    GOOD(ACL(LaunchCallback)(note_call, &place, ACL_CALLBACK_NO_BLOCK, s));
    (void)ACL(UnSubscribeReport)(77, s);
}

SIM_ENDS(die_still_subscribed, "a stream that has its thread", "before aclrtUnSubscribeReport")
{
    GOOD(ACL(SubscribeReport)(77, s));
    (void)ACL(DestroyStream)(s);
}

/* A call that a test has broken does nothing and sets a message. Other calls work. */
SIM_WELL(test_calls_that_fail)
{
    aclrtStream none = NULL;
    SIM(sim_break)("aclrtCreateStreamWithConfig");
    BAD(ACL(CreateStreamWithConfig)(&none, 0, 0), INTERNAL_ERROR, "as a test wants it");
    WANT(none == NULL, 1);
    aclrtEvent w = new_event(ACL(CreateEventExWithFlag), ACL_EVENT_SYNC);
    SIM(sim_break)(NULL);
    GOOD(ACL(DestroyStream)(s));
    GOOD(ACL(DestroyEvent)(w));
}

/* The device was reset, but aclFinalize was not called. */
SIM_ENDS(die_not_finalised, "an end without aclFinalize", "ends without aclFinalize")
{
    GOOD(ACL(DestroyStream)(s));
    GOOD(ACL(ResetDevice)(0));
    exit(0);
}

/* ---- all ------------------------------------------------------------------------------------- */

static void process(const sim_case *c, int rank, int n)
{
    if (c->run != test_init && c->run != test_devices)
        begin();
    sim_run_alone(c, rank, n);
}

int main(void)
{
    sim_need("npu-sim");
    unsetenv("FSDP_SCHEDULE"); /* a schedule cannot handle the tests' own gates */
    return sim_cases_run(process, NULL);
}
