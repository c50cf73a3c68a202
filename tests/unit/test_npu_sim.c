/* test_npu_sim.c -- what the stand-in for Ascend's runtime says of mistakes: the documented code
 * with words of its own, or the end of the process. With FSDP_DEVICE=npu-sim only.
 *
 * Each test is a process of its own, which begins with a library that nobody has called yet. */
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include "tests/sim/ascend/include/acl/acl.h"
#include "tests/unit/target_lib.h"

/* The library is opened, not linked: its calls are members of `acl`, without "aclrt". */
typedef aclError (*sim_launch_fn)(aclrtStream, const char *, stream_fn, const void *, size_t);
#define CALLS(X)                                                                                   \
    X(SetDevice)                                                                                   \
    X(ResetDevice)                                                                                 \
    X(GetDevice)                                                                                   \
    X(GetDeviceCount)                                                                              \
    X(GetSocName)                                                                                  \
    X(SynchronizeDevice)                                                                           \
    X(CreateContext)                                                                               \
    X(DestroyContext)                                                                              \
    X(SetCurrentContext)                                                                           \
    X(GetCurrentContext)                                                                           \
    X(SetSysParamOpt)                                                                              \
    X(CtxSetSysParamOpt)                                                                           \
    X(GetLastError)                                                                                \
    X(PeekAtLastError)                                                                             \
    X(CreateStream)                                                                                \
    X(CreateStreamWithConfig)                                                                      \
    X(DestroyStream)                                                                               \
    X(SynchronizeStream)                                                                           \
    X(SynchronizeStreamWithTimeout)                                                                \
    X(StreamQuery)                                                                                 \
    X(SetStreamFailureMode)                                                                        \
    X(StreamWaitEvent)                                                                             \
    X(CreateEvent)                                                                                 \
    X(CreateEventWithFlag)                                                                         \
    X(CreateEventExWithFlag)                                                                       \
    X(DestroyEvent)                                                                                \
    X(RecordEvent)                                                                                 \
    X(ResetEvent)                                                                                  \
    X(SynchronizeEvent)                                                                            \
    X(QueryEventStatus)                                                                            \
    X(EventElapsedTime)                                                                            \
    X(Malloc)                                                                                      \
    X(MallocAlign32)                                                                               \
    X(Free)                                                                                        \
    X(MallocHost)                                                                                  \
    X(FreeHost)                                                                                    \
    X(Memcpy)                                                                                      \
    X(MemcpyAsync)                                                                                 \
    X(Memset)                                                                                      \
    X(MemsetAsync)                                                                                 \
    X(GetMemInfo)                                                                                  \
    X(LaunchCallback)                                                                              \
    X(SubscribeReport)                                                                             \
    X(UnSubscribeReport)                                                                           \
    X(ProcessReport)
#define MEMBER(call) __typeof__(aclrt##call) *call;
static struct {
    CALLS(MEMBER)
    __typeof__(aclInit) *Init;
    __typeof__(aclFinalize) *Finalize;
    __typeof__(aclGetRecentErrMsg) *GetRecentErrMsg;
    void *(*create_int_array)(const int64_t *, uint64_t);
    sim_launch_fn launch;
    bool (*is_device)(const void *, size_t);
    bool (*is_deterministic)(void);
    void (*make_fail)(const char *);
} acl;

/* ---- checks ---------------------------------------------------------------------------------- */

static void fail_at(int line, const char *what, long long got, long long expected)
{
    const char *said = acl.GetRecentErrMsg();
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
/* The call fails with this code, and with a message that has this part. */
#define BAD(call, code, part)                                                                      \
    do {                                                                                           \
        WANT(call, code);                                                                          \
        const char *message_ = acl.GetRecentErrMsg();                                              \
        WANT(message_ != NULL && strstr(message_, part) != NULL, 1);                               \
    } while (0)

static void begin(void)
{
    GOOD(acl.Init(NULL));
    GOOD(acl.SetDevice(0));
}

static aclrtStream new_stream(void)
{
    aclrtStream s;
    GOOD(acl.CreateStream(&s));
    return s;
}

/* ---- work for streams ------------------------------------------------------------------------ */

/* Waits until somebody opens it. */
typedef struct gate {
    atomic_bool entered, is_open, passed;
} gate;

static fsdp_status pass_gate(void *args, int n_threads)
{
    gate *g = *(gate **)args;
    (void)n_threads;
    atomic_store(&g->entered, true);
    while (!atomic_load(&g->is_open))
        usleep(100);
    atomic_store(&g->passed, true);
    return FSDP_OK;
}

/* s stands at the gate when it returns; the work before it is over. */
static void launch_gate(aclrtStream s, gate *g)
{
    GOOD(acl.launch(s, "gate", pass_gate, &g, sizeof g));
    while (!atomic_load(&g->entered))
        usleep(100);
}

static fsdp_status fail_now(void *args, int n_threads)
{
    (void)args;
    (void)n_threads;
    return fsdp_error(FSDP_EINVAL, "", "token 7 of 5");
}

typedef struct store_args {
    int *at;
    int value;
} store_args;

static fsdp_status store(void *args, int n_threads)
{
    const store_args *a = args;
    (void)n_threads;
    *a->at = a->value;
    return FSDP_OK;
}

static aclError launch_store(aclrtStream s, int *at, int value)
{
    return acl.launch(s, "store", store, &(store_args){at, value}, sizeof(store_args));
}

/* An int of the device. */
static int *new_int(void)
{
    void *ptr;
    GOOD(acl.Malloc(&ptr, sizeof(int), ACL_MEM_MALLOC_HUGE_FIRST));
    return ptr;
}

static int read_int(const int *at)
{
    int value;
    GOOD(acl.Memcpy(&value, sizeof value, at, sizeof value, ACL_MEMCPY_DEVICE_TO_HOST));
    return value;
}

/* ---- beginning, devices, contexts ------------------------------------------------------------ */

static void test_init(void)
{
    uint32_t count;
    BAD(acl.SetDevice(0), ACL_ERROR_UNINITIALIZE, "before aclInit");
    BAD(acl.Finalize(), ACL_ERROR_UNINITIALIZE, "without aclInit");
    GOOD(acl.Init(NULL));
    BAD(acl.Init(NULL), ACL_ERROR_REPEAT_INITIALIZE, "before");
    BAD(acl.GetDeviceCount(NULL), ACL_ERROR_INVALID_PARAM, "NULL");
    setenv("FSDP_SIM_NPUS", "3", 1);
    GOOD(acl.GetDeviceCount(&count));
    WANT(count, 3);
    WANT(strcmp(acl.GetSocName(), "Ascend910B2"), 0);
    GOOD(acl.Finalize());
    BAD(acl.Finalize(), ACL_ERROR_REPEAT_FINALIZE, "aclFinalize");
}

static void test_devices(void)
{
    int32_t index;
    void *ptr;
    aclrtStream s;
    GOOD(acl.Init(NULL));
    BAD(acl.SetDevice(16), ACL_ERROR_RT_INVALID_DEVICEID, "device 16 of 16");
    BAD(acl.SetDevice(-1), ACL_ERROR_RT_INVALID_DEVICEID, "device -1");
    BAD(acl.GetDevice(&index), ACL_ERROR_RT_CONTEXT_NULL, "aclrtSetDevice");
    BAD(acl.Malloc(&ptr, 8, ACL_MEM_MALLOC_HUGE_FIRST), ACL_ERROR_RT_CONTEXT_NULL, "aclrtMalloc");
    BAD(acl.MallocHost(&ptr, 8), ACL_ERROR_RT_CONTEXT_NULL, "aclrtMallocHost");
    BAD(acl.CreateStream(&s), ACL_ERROR_RT_CONTEXT_NULL, "aclrtCreateStream");
    GOOD(acl.SetDevice(3));
    GOOD(acl.GetDevice(&index));
    WANT(index, 3);
    GOOD(acl.SetDevice(3)); /* counted: the first reset ends nothing */
    GOOD(acl.ResetDevice(3));
    s = new_stream();
    GOOD(acl.DestroyStream(s));
    GOOD(acl.ResetDevice(3));
    BAD(acl.CreateStream(&s), ACL_ERROR_RT_CONTEXT_NULL, "destroyed");
    BAD(acl.ResetDevice(3), ACL_ERROR_RT_INVALID_DEVICEID, "not in use");
    GOOD(acl.SetDevice(3));
    GOOD(acl.DestroyStream(new_stream()));
}

static void test_messages(void)
{
    BAD(acl.Finalize(), ACL_ERROR_UNINITIALIZE, "aclFinalize");
    WANT(acl.GetRecentErrMsg() == NULL, 1);
    WANT(acl.PeekAtLastError(ACL_RT_THREAD_LEVEL), ACL_ERROR_UNINITIALIZE);
    WANT(acl.GetLastError(ACL_RT_THREAD_LEVEL), ACL_ERROR_UNINITIALIZE);
    GOOD(acl.PeekAtLastError(ACL_RT_THREAD_LEVEL));
}

static void *in_a_new_thread(void *context)
{
    aclrtStream s;
    WANT(acl.GetRecentErrMsg() == NULL, 1);
    BAD(acl.CreateStream(&s), ACL_ERROR_RT_CONTEXT_NULL, "this thread's context is NULL");
    GOOD(acl.SetCurrentContext(context));
    GOOD(acl.DestroyStream(new_stream()));
    return NULL;
}

static void test_contexts(void)
{
    aclrtContext first, second;
    pthread_t thread;
    aclrtEvent w;
    begin();
    GOOD(acl.GetCurrentContext(&first));
    aclrtStream s = new_stream();
    GOOD(acl.CreateEventExWithFlag(&w, ACL_EVENT_SYNC));
    BAD(acl.SetDevice(99), ACL_ERROR_RT_INVALID_DEVICEID, "99");
    WANT(acl.SetDevice(99), ACL_ERROR_RT_INVALID_DEVICEID); /* a message that stays unread here */
    WANT(pthread_create(&thread, NULL, in_a_new_thread, first), 0);
    pthread_join(thread, NULL);
    GOOD(acl.CreateContext(&second, 0));
    BAD(launch_store(s, NULL, 0), ACL_ERROR_RT_STREAM_CONTEXT, "stream 0");
    BAD(acl.RecordEvent(w, s), ACL_ERROR_RT_STREAM_CONTEXT, "aclrtRecordEvent");
    BAD(acl.StreamWaitEvent(s, w), ACL_ERROR_RT_STREAM_CONTEXT, "aclrtStreamWaitEvent");
    BAD(acl.SynchronizeStream(s), ACL_ERROR_RT_STREAM_CONTEXT, "aclrtSynchronizeStream");
    BAD(acl.DestroyStream(s), ACL_ERROR_RT_STREAM_CONTEXT, "aclrtDestroyStream");
    GOOD(acl.DestroyContext(second));
    BAD(acl.CreateStream(&s), ACL_ERROR_RT_CONTEXT_NULL, "destroyed");
    GOOD(acl.SetCurrentContext(first));
    BAD(acl.DestroyContext(first), ACL_ERROR_RT_PARAM_INVALID, "aclrtResetDevice");
    BAD(acl.SetCurrentContext(NULL), ACL_ERROR_INVALID_PARAM, "NULL");
}

static void test_options(void)
{
    begin();
    WANT(acl.is_deterministic(), 0);
    GOOD(acl.SetSysParamOpt(ACL_OPT_DETERMINISTIC, 1));
    WANT(acl.is_deterministic(), 1);
    GOOD(acl.CtxSetSysParamOpt(ACL_OPT_DETERMINISTIC, 0));
    WANT(acl.is_deterministic(), 0);
    BAD(acl.CtxSetSysParamOpt((aclSysParamOpt)9, 1), ACL_ERROR_RT_PARAM_INVALID, "option 9");
}

/* ---- streams --------------------------------------------------------------------------------- */

static void test_streams(void)
{
    aclrtStream s, other;
    aclrtStreamStatus status;
    gate g = {false};
    begin();
    BAD(acl.CreateStream(NULL), ACL_ERROR_INVALID_PARAM, "NULL");
    BAD(acl.CreateStreamWithConfig(&s, 8, 0), ACL_ERROR_RT_PARAM_INVALID, "priority 8");
    BAD(acl.CreateStreamWithConfig(&s, 0, 64), ACL_ERROR_RT_PARAM_INVALID, "flag 0x40");
    GOOD(acl.CreateStreamWithConfig(&s, 7, ACL_STREAM_FAST_LAUNCH | ACL_STREAM_FAST_SYNC));
    launch_gate(s, &g);
    GOOD(acl.StreamQuery(s, &status));
    WANT(status, ACL_STREAM_STATUS_NOT_READY);
    BAD(acl.SynchronizeStreamWithTimeout(s, -2), ACL_ERROR_RT_PARAM_INVALID, "-2");
    BAD(acl.SynchronizeStreamWithTimeout(s, 20), ACL_ERROR_RT_STREAM_SYNC_TIMEOUT, "20 ms");
    atomic_store(&g.is_open, true);
    GOOD(acl.SynchronizeStreamWithTimeout(s, 20000));
    WANT(atomic_load(&g.passed), 1);
    GOOD(acl.StreamQuery(s, &status));
    WANT(status, ACL_STREAM_STATUS_COMPLETE);
    setenv("FSDP_SIM_STREAMS", "1", 1);
    BAD(acl.CreateStream(&other), ACL_ERROR_RT_NO_STREAM_RESOURCE, "1 streams");
    GOOD(acl.DestroyStream(s));
    GOOD(acl.DestroyStream(new_stream()));
}

/* What fails is reported once, and stops nothing. */
static void test_failure_goes_on(void)
{
    begin();
    aclrtStream s = new_stream(), other = new_stream();
    int *at = new_int();
    GOOD(acl.launch(s, "embedding", fail_now, NULL, 0));
    GOOD(launch_store(s, at, 5));
    GOOD(acl.SynchronizeStream(other));
    BAD(acl.SynchronizeStream(s), ACL_ERROR_RT_AICORE_EXCEPTION, "token 7 of 5");
    GOOD(acl.SynchronizeStream(s));
    WANT(read_int(at), 5);
}

/* ACL_STOP_ON_FAILURE of one stream stops all of its context: what is queued does not run, and
 * nothing can be issued. */
static void test_failure_stops(void)
{
    aclrtStreamStatus status;
    aclrtEventRecordedStatus reached;
    aclrtEvent w;
    gate g = {false};
    begin();
    aclrtStream s = new_stream(), other = new_stream();
    int *at = new_int();
    GOOD(acl.CreateEventExWithFlag(&w, ACL_EVENT_SYNC));
    BAD(acl.SetStreamFailureMode(s, 2), ACL_ERROR_RT_PARAM_INVALID, "mode 2");
    GOOD(acl.SetStreamFailureMode(s, ACL_STOP_ON_FAILURE));
    BAD(acl.SetStreamFailureMode(s, ACL_STOP_ON_FAILURE), ACL_ERROR_RT_PARAM_INVALID, "already");
    setenv("FSDP_SIM_FAULT", "store:3", 1);
    launch_gate(other, &g);
    GOOD(acl.RecordEvent(w, other));
    GOOD(launch_store(other, at, 6));
    GOOD(launch_store(s, at, 4));
    GOOD(launch_store(s, at, 5)); /* it faults */
    BAD(acl.SynchronizeStream(s), ACL_ERROR_RT_AICORE_EXCEPTION, "store on stream 0");
    atomic_store(&g.is_open, true);
    BAD(acl.SynchronizeStream(other), ACL_ERROR_RT_AICORE_EXCEPTION, "stopped");
    WANT(atomic_load(&g.passed), 1);
    WANT(read_int(at), 4);
    BAD(launch_store(other, at, 7), ACL_ERROR_RT_AICORE_EXCEPTION, "stopped");
    BAD(acl.StreamQuery(s, &status), ACL_ERROR_RT_AICORE_EXCEPTION, "FSDP_SIM_FAULT");
    BAD(acl.QueryEventStatus(w, &reached), ACL_ERROR_RT_AICORE_EXCEPTION, "stopped");
    BAD(acl.SynchronizeDevice(), ACL_ERROR_RT_AICORE_EXCEPTION, "stopped");
    GOOD(acl.DestroyEvent(w));
    GOOD(acl.DestroyStream(s));
    GOOD(acl.DestroyStream(other));
    GOOD(acl.Free(at));
    GOOD(acl.Finalize());
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
    GOOD(acl.QueryEventStatus(w, &status));
    return (int)status;
}

static void test_event_flags(void)
{
    aclrtEvent w;
    begin();
    BAD(acl.CreateEventWithFlag(&w, 0), ACL_ERROR_RT_PARAM_INVALID, "flag 0");
    BAD(acl.CreateEventExWithFlag(&w, 0), ACL_ERROR_RT_PARAM_INVALID, "flag 0");
    BAD(acl.CreateEventExWithFlag(&w, 0x100), ACL_ERROR_RT_PARAM_INVALID, "0x100");
    BAD(acl.CreateEventExWithFlag(NULL, ACL_EVENT_SYNC), ACL_ERROR_INVALID_PARAM, "NULL");
    setenv("FSDP_SIM_EVENTS", "1", 1);
    (void)new_event(acl.CreateEventWithFlag, ACL_EVENT_SYNC);
    BAD(acl.CreateEventWithFlag(&w, ACL_EVENT_SYNC), ACL_ERROR_RT_NO_EVENT_RESOURCE, "1 events");
    BAD(acl.CreateEvent(&w), ACL_ERROR_RT_NO_EVENT_RESOURCE, "1 events");
    GOOD(acl.CreateEventExWithFlag(&w, ACL_EVENT_SYNC));
}

/* Those that CUDA's are like. */
static void test_ex_events(void)
{
    gate g = {false};
    begin();
    aclrtStream s = new_stream(), waiter = new_stream();
    aclrtEvent w = new_event(acl.CreateEventExWithFlag, ACL_EVENT_SYNC);
    aclrtEvent timed = new_event(acl.CreateEventExWithFlag, ACL_EVENT_TIME_LINE);
    WANT(status_of(w), ACL_EVENT_RECORDED_STATUS_COMPLETE);
    GOOD(acl.StreamWaitEvent(waiter, w));
    GOOD(acl.SynchronizeStream(waiter));
    BAD(acl.StreamWaitEvent(waiter, timed), ACL_ERROR_RT_FEATURE_NOT_SUPPORT, "ACL_EVENT_SYNC");
    BAD(acl.ResetEvent(w, s), ACL_ERROR_RT_FEATURE_NOT_SUPPORT, "aclrtResetEvent");
    GOOD(acl.RecordEvent(w, s));
    GOOD(acl.SynchronizeEvent(w));
    GOOD(acl.StreamWaitEvent(waiter, w)); /* for what was recorded by now */
    launch_gate(s, &g);
    GOOD(acl.RecordEvent(w, s));
    WANT(status_of(w), ACL_EVENT_RECORDED_STATUS_NOT_READY);
    GOOD(acl.SynchronizeStreamWithTimeout(waiter, 20000));
    GOOD(acl.StreamWaitEvent(waiter, w));
    BAD(acl.SynchronizeStreamWithTimeout(waiter, 20), ACL_ERROR_RT_STREAM_SYNC_TIMEOUT, "20 ms");
    atomic_store(&g.is_open, true);
    GOOD(acl.SynchronizeStreamWithTimeout(waiter, 20000));
    WANT(atomic_load(&g.passed), 1);
}

static void test_flag_events(void)
{
    gate g = {false};
    begin();
    aclrtStream s = new_stream(), waiter = new_stream();
    aclrtEvent w = new_event(acl.CreateEventWithFlag, ACL_EVENT_SYNC);
    aclrtEvent timed = new_event(acl.CreateEventWithFlag, ACL_EVENT_TIME_LINE);
    WANT(status_of(w), ACL_EVENT_RECORDED_STATUS_NOT_READY);
    BAD(acl.StreamWaitEvent(waiter, timed), ACL_ERROR_RT_FEATURE_NOT_SUPPORT, "ACL_EVENT_SYNC");
    BAD(acl.ResetEvent(timed, waiter), ACL_ERROR_RT_FEATURE_NOT_SUPPORT, "aclrtResetEvent");
    GOOD(acl.StreamWaitEvent(waiter, w)); /* before it is recorded: it waits */
    BAD(acl.SynchronizeStreamWithTimeout(waiter, 20), ACL_ERROR_RT_STREAM_SYNC_TIMEOUT, "20 ms");
    GOOD(acl.RecordEvent(w, s));
    GOOD(acl.SynchronizeStreamWithTimeout(waiter, 20000));
    GOOD(acl.ResetEvent(w, waiter));
    GOOD(acl.SynchronizeStream(waiter));
    WANT(status_of(w), ACL_EVENT_RECORDED_STATUS_NOT_READY);
    launch_gate(s, &g);
    GOOD(acl.RecordEvent(w, s));
    GOOD(acl.StreamWaitEvent(waiter, w));
    BAD(acl.SynchronizeStreamWithTimeout(waiter, 20), ACL_ERROR_RT_STREAM_SYNC_TIMEOUT, "20 ms");
    atomic_store(&g.is_open, true);
    GOOD(acl.SynchronizeStreamWithTimeout(waiter, 20000));
}

static void test_plain_events(void)
{
    aclrtEvent w;
    begin();
    aclrtStream s = new_stream();
    GOOD(acl.CreateEvent(&w));
    WANT(status_of(w), ACL_EVENT_RECORDED_STATUS_NOT_READY);
    BAD(acl.StreamWaitEvent(s, w), ACL_ERROR_RT_PARAM_INVALID, "not recorded");
    GOOD(acl.RecordEvent(w, s));
    GOOD(acl.StreamWaitEvent(s, w));
    GOOD(acl.SynchronizeEvent(w));
}

static void test_elapsed_time(void)
{
    float ms = -1;
    gate g = {false};
    begin();
    aclrtStream s = new_stream();
    aclrtEvent from = new_event(acl.CreateEventExWithFlag, ACL_EVENT_TIME_LINE);
    aclrtEvent to = new_event(acl.CreateEventExWithFlag, ACL_EVENT_TIME_LINE | ACL_EVENT_SYNC);
    aclrtEvent untimed = new_event(acl.CreateEventExWithFlag, ACL_EVENT_SYNC);
    GOOD(acl.RecordEvent(from, s));
    GOOD(acl.RecordEvent(untimed, s));
    BAD(acl.EventElapsedTime(&ms, from, to), ACL_ERROR_RT_INTERNAL_ERROR, "not recorded");
    launch_gate(s, &g);
    GOOD(acl.RecordEvent(to, s));
    BAD(acl.EventElapsedTime(&ms, from, to), ACL_ERROR_RT_EVENT_TIMESTAMP_INVALID, "not reached");
    BAD(acl.EventElapsedTime(NULL, from, to), ACL_ERROR_INVALID_PARAM, "NULL");
    usleep(10000);
    atomic_store(&g.is_open, true);
    GOOD(acl.SynchronizeEvent(to));
    BAD(acl.EventElapsedTime(&ms, untimed, to), ACL_ERROR_RT_EVENT_TIMESTAMP_INVALID, "TIME_LINE");
    GOOD(acl.EventElapsedTime(&ms, from, to));
    WANT(ms >= 9 && ms < 10000, 1);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static size_t available(void)
{
    size_t bytes, total;
    GOOD(acl.GetMemInfo(ACL_HBM_MEM, &bytes, &total));
    WANT(total, 1 << 20);
    return bytes;
}

static void test_blocks(void)
{
    void *ptr = NULL, *other;
    float x[2];
    setenv("FSDP_SIM_MEMORY_MIB", "1", 1);
    begin();
    BAD(acl.Malloc(NULL, 8, ACL_MEM_MALLOC_HUGE_FIRST), ACL_ERROR_INVALID_PARAM, "aclrtMalloc");
    BAD(acl.Malloc(&ptr, 0, ACL_MEM_MALLOC_HUGE_FIRST), ACL_ERROR_INVALID_PARAM, "0 bytes");
    BAD(acl.Malloc(&ptr, 8, (aclrtMemMallocPolicy)8), ACL_ERROR_INVALID_PARAM, "policy 8");
    BAD(acl.Malloc(&ptr, 1 << 20, ACL_MEM_MALLOC_HUGE_FIRST), ACL_ERROR_RT_MEMORY_ALLOCATION,
        "0 of 1048576");
    WANT(available(), 1 << 20);
    GOOD(acl.Malloc(&ptr, 33, ACL_MEM_MALLOC_HUGE_FIRST)); /* 64 and 32 */
    WANT(available(), (1 << 20) - 96);
    GOOD(acl.MallocAlign32(&other, 33, ACL_MEM_MALLOC_NORMAL_ONLY));
    WANT(available(), (1 << 20) - 160);
    WANT((uintptr_t)ptr % 64, 0);
    WANT(acl.is_device(ptr, 33), 1);
    WANT(acl.is_device(ptr, 34), 0);
    WANT(acl.is_device(x, 4), 0);
    GOOD(acl.Memcpy(x, sizeof x, ptr, sizeof x, ACL_MEMCPY_DEVICE_TO_HOST));
    WANT(isnan(x[0]) && isnan(x[1]), 1);
    BAD(acl.Free(NULL), ACL_ERROR_INVALID_PARAM, "NULL");
    BAD(acl.Free((char *)ptr + 1), ACL_ERROR_RT_PARAM_INVALID, "no block");
    GOOD(acl.Free(ptr));
    GOOD(acl.Free(other));
    BAD(acl.Free(ptr), ACL_ERROR_RT_PARAM_INVALID, "no block");
    WANT(available(), 1 << 20);
    BAD(acl.MallocHost(&ptr, 0), ACL_ERROR_INVALID_PARAM, "0 bytes");
    BAD(acl.FreeHost(NULL), ACL_ERROR_INVALID_PARAM, "NULL");
    BAD(acl.FreeHost(x), ACL_ERROR_RT_PARAM_INVALID, "aclrtMallocHost");
    BAD(acl.GetMemInfo(ACL_DDR_MEM, &(size_t){0}, &(size_t){0}), ACL_ERROR_RT_PARAM_INVALID, "HBM");
}

static void test_copies_are_checked(void)
{
    int x[4] = {1, 2, 3, 4};
    void *ptr, *pinned;
    begin();
    aclrtStream s = new_stream();
    GOOD(acl.Malloc(&ptr, 256, ACL_MEM_MALLOC_HUGE_FIRST));
    GOOD(acl.MallocHost(&pinned, 16));
    BAD(acl.Memcpy(ptr, 256, NULL, 4, ACL_MEMCPY_HOST_TO_DEVICE), ACL_ERROR_INVALID_PARAM, "src");
    BAD(acl.Memcpy(ptr, 8, x, 16, ACL_MEMCPY_HOST_TO_DEVICE), ACL_ERROR_RT_PARAM_INVALID,
        "destMax 8");
    GOOD(acl.Memcpy(ptr, 8, x, 0, ACL_MEMCPY_HOST_TO_DEVICE));
    GOOD(acl.MemcpyAsync(NULL, 0, NULL, 0, ACL_MEMCPY_HOST_TO_DEVICE, s));
    BAD(acl.Memcpy(ptr, 256, x, 16, ACL_MEMCPY_DEVICE_TO_DEVICE), ACL_ERROR_RT_PARAM_INVALID,
        "not of the NPU");
    BAD(acl.Memcpy(ptr, 256, x, 16, ACL_MEMCPY_HOST_TO_HOST), ACL_ERROR_RT_PARAM_INVALID,
        "not of the host");
    BAD(acl.Memcpy((char *)ptr + 250, 16, x, 16, ACL_MEMCPY_HOST_TO_DEVICE),
        ACL_ERROR_RT_PARAM_INVALID, "ends behind its block of 256");
    BAD(acl.MemcpyAsync(x, 16, pinned, 16, ACL_MEMCPY_HOST_TO_HOST, s),
        ACL_ERROR_RT_FEATURE_NOT_SUPPORT, "host to host");
    BAD(acl.MemcpyAsync((char *)ptr + 32, 16, ptr, 16, ACL_MEMCPY_DEVICE_TO_DEVICE, s),
        ACL_ERROR_RT_ADDR_UNALIGNED, "multiples of 64");
    GOOD(acl.MemcpyAsync((char *)ptr + 64, 16, ptr, 16, ACL_MEMCPY_DEFAULT, s));
    BAD(acl.Memset(ptr, 8, 0, 16), ACL_ERROR_RT_PARAM_INVALID, "maxCount 8");
    BAD(acl.MemsetAsync(ptr, 512, 0, 512, s), ACL_ERROR_RT_PARAM_INVALID, "one block");
    BAD(acl.Memset(NULL, 8, 0, 8), ACL_ERROR_INVALID_PARAM, "NULL");
    BAD(acl.Memset(ptr, 257, 0, 8), ACL_ERROR_RT_PARAM_INVALID, "maxCount 257, but the block");
    BAD(acl.Memcpy((char *)ptr + 64, 193, x, 16, ACL_MEMCPY_HOST_TO_DEVICE),
        ACL_ERROR_RT_PARAM_INVALID, "destMax 193, but the block of 256 has 192 bytes from");
    GOOD(acl.Memcpy((char *)ptr + 64, 192, x, 16, ACL_MEMCPY_HOST_TO_DEVICE));
    GOOD(acl.Memset(ptr, 256, 0, 256));
    GOOD(acl.Memcpy(ptr, 256, x, 16, ACL_MEMCPY_HOST_TO_DEVICE));
    WANT(read_int((int *)ptr + 3), 4);
    WANT(read_int((int *)ptr + 4), 0);
}

/* Neither a copy without a stream nor aclrtFree waits for what streams do. */
static void test_nothing_waits(void)
{
    gate g = {false};
    begin();
    aclrtStream s = new_stream();
    int *at = new_int(), *other = new_int();
    GOOD(acl.Memset(at, sizeof *at, 0, sizeof *at));
    launch_gate(s, &g);
    GOOD(launch_store(s, at, 5));
    WANT(read_int(at), 0);
    GOOD(acl.Free(other));
    WANT(atomic_load(&g.passed), 0);
    atomic_store(&g.is_open, true);
    GOOD(acl.SynchronizeStream(s));
    WANT(read_int(at), 5);
}

static void *open_later(void *arg)
{
    gate *g = arg;
    usleep(30000);
    atomic_store(&g->is_open, true);
    return NULL;
}

/* A copy of pinned memory goes on behind the call; one of pageable memory is over. */
static void test_pageable_copies_block(void)
{
    gate g = {false};
    pthread_t opener;
    int x = 6;
    void *pinned;
    begin();
    aclrtStream s = new_stream();
    int *at = new_int();
    GOOD(acl.MallocHost(&pinned, sizeof x));
    launch_gate(s, &g);
    memcpy(pinned, &x, sizeof x);
    GOOD(acl.MemcpyAsync(at, 4, pinned, 4, ACL_MEMCPY_HOST_TO_DEVICE, s));
    WANT(atomic_load(&g.passed), 0);
    WANT(pthread_create(&opener, NULL, open_later, &g), 0);
    GOOD(acl.MemcpyAsync(at, 4, &x, 4, ACL_MEMCPY_HOST_TO_DEVICE, s));
    WANT(atomic_load(&g.passed), 1);
    pthread_join(opener, NULL);
    GOOD(acl.SynchronizeStream(s));
    GOOD(acl.FreeHost(pinned));
}

/* ---- callbacks ------------------------------------------------------------------------------- */

typedef struct reporter {
    pthread_t thread;
    aclrtContext context;
    atomic_bool stopping;
    aclError last; /* before it ended */
} reporter;

static void *report_main(void *arg)
{
    reporter *r = arg;
    GOOD(acl.SetCurrentContext(r->context));
    while (!atomic_load(&r->stopping))
        r->last = acl.ProcessReport(5);
    return NULL;
}

static void reporter_start(reporter *r)
{
    GOOD(acl.GetCurrentContext(&r->context));
    WANT(pthread_create(&r->thread, NULL, report_main, r), 0);
}

typedef struct call_place {
    pthread_t thread;
    gate *gate; /* NULL: none */
    atomic_bool called;
} call_place;

static void note_call(void *arg)
{
    call_place *p = arg;
    p->thread = pthread_self();
    if (p->gate != NULL)
        (void)pass_gate(&p->gate, 1);
    atomic_store(&p->called, true);
}

static void test_callbacks(void)
{
    reporter r = {0};
    gate g = {false};
    call_place place = {.gate = &g}, behind = {0};
    begin();
    aclrtStream s = new_stream();
    int *at = new_int();
    reporter_start(&r);
    const uint64_t thread = (uint64_t)r.thread;
    BAD(acl.LaunchCallback(note_call, &place, ACL_CALLBACK_BLOCK, s), ACL_ERROR_RT_STREAM_NO_CB_REG,
        "subscribed");
    BAD(acl.UnSubscribeReport(thread, s), ACL_ERROR_RT_STREAM_SUBSCRIBE, "none");
    GOOD(acl.SubscribeReport(thread, s));
    BAD(acl.SubscribeReport(thread, s), ACL_ERROR_RT_STREAM_SUBSCRIBE, "already");
    BAD(acl.UnSubscribeReport(thread + 1, s), ACL_ERROR_RT_THREAD_SUBSCRIBE, "another");
    BAD(acl.LaunchCallback(NULL, &place, ACL_CALLBACK_BLOCK, s), ACL_ERROR_INVALID_PARAM,
        "no function");
    GOOD(acl.Memset(at, sizeof *at, 0, sizeof *at));
    GOOD(acl.LaunchCallback(note_call, &place, ACL_CALLBACK_BLOCK, s));
    GOOD(launch_store(s, at, 5));
    BAD(acl.SynchronizeStreamWithTimeout(s, 20), ACL_ERROR_RT_STREAM_SYNC_TIMEOUT, "20 ms");
    WANT(read_int(at), 0);
    atomic_store(&g.is_open, true);
    GOOD(acl.SynchronizeStreamWithTimeout(s, 20000));
    WANT(atomic_load(&place.called) && pthread_equal(place.thread, r.thread), 1);
    WANT(read_int(at), 5);
    /* One that does not block: the stream goes on behind it. */
    atomic_store(&g.is_open, false);
    behind.gate = &g;
    GOOD(acl.LaunchCallback(note_call, &behind, ACL_CALLBACK_NO_BLOCK, s));
    GOOD(acl.SynchronizeStreamWithTimeout(s, 20000));
    WANT(atomic_load(&behind.called), 0);
    atomic_store(&g.is_open, true);
    while (!atomic_load(&behind.called))
        usleep(100);
    usleep(20000);
    GOOD(acl.UnSubscribeReport(thread, s));
    atomic_store(&r.stopping, true);
    pthread_join(r.thread, NULL);
}

static void test_reports(void)
{
    begin();
    aclrtStream s = new_stream();
    BAD(acl.ProcessReport(5), ACL_ERROR_RT_THREAD_SUBSCRIBE, "not subscribed");
    GOOD(acl.SubscribeReport((uint64_t)pthread_self(), s));
    BAD(acl.ProcessReport(0), ACL_ERROR_INVALID_PARAM, "0 ms");
    BAD(acl.ProcessReport(-2), ACL_ERROR_INVALID_PARAM, "-2 ms");
    BAD(acl.ProcessReport(5), ACL_ERROR_RT_REPORT_TIMEOUT, "no callback");
}

/* ---- what ends the process ------------------------------------------------------------------- */

static void die_default_stream(void)
{
    begin();
    (void)acl.SynchronizeStream(NULL);
}

static void die_dead_stream(void)
{
    begin();
    aclrtStream s = new_stream();
    GOOD(launch_store(s, new_int(), 1));
    GOOD(acl.DestroyStream(s));
    (void)acl.SynchronizeStream(s);
}

static void die_dead_event(void)
{
    begin();
    aclrtEvent w = new_event(acl.CreateEventExWithFlag, ACL_EVENT_SYNC);
    GOOD(acl.DestroyEvent(w));
    (void)acl.RecordEvent(w, new_stream());
}

static void die_two_devices(void)
{
    begin();
    (void)acl.SetDevice(1);
}

static void die_leaks(void)
{
    void *pinned;
    aclrtContext c;
    begin();
    (void)new_int();
    (void)new_stream();
    (void)new_event(acl.CreateEventExWithFlag, ACL_EVENT_SYNC);
    GOOD(acl.MallocHost(&pinned, 16));
    (void)acl.create_int_array(&(int64_t){3}, 1);
    GOOD(acl.CreateContext(&c, 0));
    (void)acl.Finalize();
}

static void die_reset_with_block(void)
{
    begin();
    (void)new_int();
    (void)acl.ResetDevice(0);
}

static void die_overrun(void)
{
    begin();
    aclrtStream s = new_stream();
    int *at = new_int();
    GOOD(launch_store(s, at + 1, 5));
    GOOD(acl.SynchronizeStream(s));
    (void)acl.Free(at);
}

static void die_recorded_again(void)
{
    begin();
    aclrtStream s = new_stream();
    aclrtEvent w = new_event(acl.CreateEventWithFlag, ACL_EVENT_SYNC);
    GOOD(acl.RecordEvent(w, s));
    (void)acl.RecordEvent(w, s);
}

static void die_plain_reset(void)
{
    aclrtEvent w;
    begin();
    GOOD(acl.CreateEvent(&w));
    (void)acl.ResetEvent(w, new_stream());
}

static void die_never_recorded(void)
{
    setenv("FSDP_SIM_PATIENCE_S", "1", 1);
    begin();
    aclrtStream s = new_stream();
    GOOD(acl.StreamWaitEvent(s, new_event(acl.CreateEventWithFlag, ACL_EVENT_SYNC)));
    (void)acl.SynchronizeStream(s);
}

static void die_nobody_reports(void)
{
    call_place place = {0};
    setenv("FSDP_SIM_PATIENCE_S", "1", 1);
    begin();
    aclrtStream s = new_stream();
    GOOD(acl.SubscribeReport(77, s));
    GOOD(acl.LaunchCallback(note_call, &place, ACL_CALLBACK_BLOCK, s));
    (void)acl.SynchronizeStream(s);
}

static void die_unsubscribed_early(void)
{
    call_place place = {0};
    begin();
    aclrtStream s = new_stream();
    GOOD(acl.SubscribeReport(77, s));
    GOOD(acl.LaunchCallback(note_call, &place, ACL_CALLBACK_NO_BLOCK, s));
    (void)acl.UnSubscribeReport(77, s);
}

static void die_still_subscribed(void)
{
    begin();
    aclrtStream s = new_stream();
    GOOD(acl.SubscribeReport(77, s));
    (void)acl.DestroyStream(s);
}

/* A call that a test wants to fail does nothing, and has words; the others work. */
static void test_calls_that_fail(void)
{
    aclrtStream none = NULL;
    begin();
    acl.make_fail("aclrtCreateStreamWithConfig");
    BAD(acl.CreateStreamWithConfig(&none, 0, 0), ACL_ERROR_INTERNAL_ERROR, "as a test wants it");
    WANT(none == NULL, 1);
    aclrtEvent w = new_event(acl.CreateEventExWithFlag, ACL_EVENT_SYNC);
    acl.make_fail(NULL);
    aclrtStream s = new_stream();
    GOOD(acl.DestroyStream(s));
    GOOD(acl.DestroyEvent(w));
}

/* A device that was reset, and nobody who calls aclFinalize. */
static void die_not_finalised(void)
{
    begin();
    GOOD(acl.ResetDevice(0));
    exit(0);
}

/* ---- running them ---------------------------------------------------------------------------- */

typedef struct test {
    const char *name;
    void (*run)(void);
    const char *says; /* as the process ends; NULL: it does not */
} test;

#define LIVES(name)                                                                                \
    {                                                                                              \
#name, name, NULL                                                                          \
    }
static const test TESTS[] = {
    LIVES(test_calls_that_fail),
    LIVES(test_init),
    LIVES(test_devices),
    LIVES(test_messages),
    LIVES(test_contexts),
    LIVES(test_options),
    LIVES(test_streams),
    LIVES(test_failure_goes_on),
    LIVES(test_failure_stops),
    LIVES(test_event_flags),
    LIVES(test_ex_events),
    LIVES(test_flag_events),
    LIVES(test_plain_events),
    LIVES(test_elapsed_time),
    LIVES(test_blocks),
    LIVES(test_copies_are_checked),
    LIVES(test_nothing_waits),
    LIVES(test_pageable_copies_block),
    LIVES(test_callbacks),
    LIVES(test_reports),
    {"the default stream", die_default_stream, "aclrtSynchronizeStream on the default stream"},
    {"a destroyed stream", die_dead_stream,
     "on a stream that is destroyed; operations launched last: store"},
    {"a destroyed event", die_dead_event, "aclrtRecordEvent of an event that is destroyed"},
    {"two devices", die_two_devices, "one NPU a process"},
    {"leaks", die_leaks,
     "1 streams, 1 events, 1 contexts of aclrtCreateContext, 1 blocks of the NPU (4 bytes) "
     "and 1 of the host (16 bytes), 1 tensors"},
    {"a block when the device is reset", die_reset_with_block,
     "aclrtResetDevice while there are still"},
    {"a write behind a block", die_overrun,
     "a block of 4 bytes was written 0 bytes behind its end"},
    {"an event recorded again", die_recorded_again, "before aclrtResetEvent"},
    {"a reset that CANN does not define", die_plain_reset, "does not define"},
    {"an event that nobody records", die_never_recorded,
     "stream 0 waits for an event that nobody records"},
    {"a callback that nobody takes", die_nobody_reports,
     "a callback of stream 0 waits for thread 0x4d"},
    {"a thread that leaves callbacks", die_unsubscribed_early, "while 1 callbacks of stream 0"},
    {"an end without aclFinalize", die_not_finalised, "ends without aclFinalize"},
    {"a stream that has its thread", die_still_subscribed, "before aclrtUnSubscribeReport"},
};

/* What the child wrote to standard error; its wait status. */
static int run_in_child(const test *t, char text[4096])
{
    int fds[2], status = -1;
    size_t chars = 0;
    ssize_t n;
    fflush(stdout);
    if (pipe(fds) != 0)
        return -1;
    const pid_t child = fork();
    if (child == 0) {
        alarm(120);
        dup2(fds[1], STDERR_FILENO);
        setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
        t->run();
        _exit(0);
    }
    close(fds[1]);
    while ((n = read(fds[0], text + chars, 4095 - chars)) > 0)
        chars += (size_t)n;
    text[chars] = '\0';
    close(fds[0]);
    waitpid(child, &status, 0);
    return status;
}

static void *fetch(const char *name)
{
    void *symbol = target_symbol(name);
    if (symbol == NULL) {
        fprintf(stderr, "the stand-in has no %s\n", name);
        exit(2);
    }
    return symbol;
}

#define FETCH(call) acl.call = fetch("aclrt" #call);

static void find_calls(void)
{
    CALLS(FETCH)
    acl.Init = fetch("aclInit");
    acl.Finalize = fetch("aclFinalize");
    acl.GetRecentErrMsg = fetch("aclGetRecentErrMsg");
    acl.create_int_array = fetch("aclCreateIntArray");
    acl.launch = fetch("sim_acl_launch");
    acl.is_device = fetch("sim_acl_is_device");
    acl.is_deterministic = fetch("sim_acl_is_deterministic");
    acl.make_fail = fetch("sim_break");
}

int main(void)
{
    static char text[4096];
    int n_failed = 0;
    const char *name = getenv("FSDP_DEVICE");
    if (name == NULL || strcmp(name, "npu-sim") != 0) {
        printf("SKIP FSDP_DEVICE is not npu-sim\n");
        return 77;
    }
    unsetenv("FSDP_SCHEDULE"); /* gates of a second thread are no part of its orders */
    find_calls();
    for (size_t i = 0; i < sizeof TESTS / sizeof *TESTS; i++) {
        const test *t = &TESTS[i];
        const int status = run_in_child(t, text);
        const bool passed = t->says == NULL ? WIFEXITED(status) && WEXITSTATUS(status) == 0
                                            : WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT &&
                                                  strstr(text, t->says) != NULL;
        printf("%s %s\n", passed ? "PASS" : "FAIL", t->name);
        if (!passed)
            printf("    wait status %#x, and it wrote:\n%s\n", (unsigned)status, text);
        n_failed += !passed;
    }
    return n_failed > 0;
}
