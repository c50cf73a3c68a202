/* lab6.c -- the task tests of lab 6, on an NPU or the stand-in (npu_lib.h).
 *
 * Tasks 6.1 to 6.3 test the NPU itself and are here; 6.4 to 6.6 are in npu_work_lib.c. */
#include <string.h>
#include <unistd.h>
#include "common/accel/accel.h"
#include "common/base/clock.h"
#include "lab6_npu/npu_impl.h"
#include "tests/grade/npu_lib.h"
#include "tests/grade/npu_work_lib.h"

/* ---- 6.1 ------------------------------------------------------------------------------------- */

/* One thing under its numbers in the three libraries. Copies are numbered as in accel_api.h: within
 * the device, up, down. */
typedef struct number {
    const char *what;
    int from, acl, hccl;
} number;

static const number TYPES[] = {{"f32", DTYPE_F32, 0, 4},
                               {"bf16", DTYPE_BF16, 27, 11},
                               {"i64", DTYPE_I64, 9, 5},
                               {"u8", DTYPE_U8, 4, 7},
                               {"a type that is none", 99, -1, -1}};
static const number COPIES[] = {{"a copy within the device", 0, 3, 0},
                                {"a copy up", 1, 1, 0},
                                {"a copy down", 2, 2, 0},
                                {"a copy that is none", 99, -1, 0}};
/* The codes of: success, out of memory on the NPU and on the host, a thread without a device,
 * another context's stream, a bad argument, a failed kernel, a timeout, an error in CANN. */
static const struct {
    int code;
    fsdp_status status;
} CODES[] = {{0, FSDP_OK},           {207001, FSDP_ENOMEM},  {200000, FSDP_ENOMEM},
             {107002, FSDP_EDEVICE}, {107003, FSDP_EDEVICE}, {107000, FSDP_EDEVICE},
             {507015, FSDP_EDEVICE}, {507046, FSDP_EDEVICE}, {500000, FSDP_EDEVICE}};

typedef fsdp_status (*status_fn)(int, const char *);

/* The message names the call and the code, and ends with a hint. */
static fsdp_status maps_code(status_fn status, int code, fsdp_status want)
{
    const char *what = WHAT("npu_status of %d", code);
    TRY(expect_status(what, status(code, "aclrtThis"), want));
    const fsdp_error_info *e = fsdp_error_get();
    const bool is_whole = strstr(e->what, "aclrtThis") && strstr(e->what, WHAT("%d", code)) &&
                          !strstr(e->what, "(null)") && e->hint[0] != '\0';
    return EXPECT(want == FSDP_OK || is_whole, "",
                  "%s: got \"%.200s\" and %s, expected the call, the code and a hint", what,
                  e->what, e->hint[0] ? "a hint" : "no hint");
}

/* CANN's words for the thread's last error. CANN forgets them once they are read. */
static fsdp_status keeps_words(status_fn status)
{
    int (*alloc)(void **, size_t, int);
    const char *(*message)(void), *said;
    TRY(npu_function("aclrtMalloc", &alloc));
    TRY(npu_function("aclGetRecentErrMsg", &message));
    const int code = alloc(NULL, 0, 0);
    const char *words = WHAT("%s", (said = message()) != NULL ? said : "");
    (void)alloc(NULL, 0, 0);
    (void)status(code, "aclrtMalloc");
    return EXPECT(strstr(fsdp_error_get()->what, words) != NULL,
                  "aclGetRecentErrMsg has them, once",
                  "npu_status of %d: got \"%.200s\", expected ACL's words in it, \"%s\"", code,
                  fsdp_error_get()->what, words);
}

static fsdp_status maps_codes(void)
{
    status_fn status;
    TRY(npu_function("npu_status", &status));
    for (size_t i = 0; i < sizeof CODES / sizeof *CODES; i++)
        TRY(maps_code(status, CODES[i].code, CODES[i].status));
    return keeps_words(status);
}

/* Call a map that takes and returns an int, because its types are enums. */
static fsdp_status maps_number(const char *name, const number *n, int want)
{
    int (*map)(int);
    TRY(npu_function(name, &map));
    const int got = map(n->from);
    return got == -1 && want == 0 ? fsdp_todo("6.1")
                                  : expect_int(WHAT("%s of %s", name, n->what), got, want);
}

static fsdp_status task_6_1(grade *g)
{
    TRY(maps_codes());
    for (size_t i = 0; i < sizeof TYPES / sizeof *TYPES; i++) {
        TRY(maps_number("npu_acl_type", &TYPES[i], TYPES[i].acl));
        TRY(maps_number("npu_hccl_type", &TYPES[i], TYPES[i].hccl));
    }
    for (size_t i = 0; i < sizeof COPIES / sizeof *COPIES; i++)
        TRY(maps_number("npu_copy_kind", &COPIES[i], COPIES[i].acl));
    return FSDP_OK;
}

/* ---- 6.2 ------------------------------------------------------------------------------------- */

/* ACL's own calls put work on the learner's streams, so that no other task is needed. */
static struct {
    int (*aclrtMalloc)(void **, size_t, int), (*aclrtFree)(void *);
    int (*aclrtMemsetAsync)(void *, size_t, int32_t, size_t, void *);
    int (*aclrtMemcpyAsync)(void *, size_t, const void *, size_t, int, void *);
    int (*aclrtMemcpy)(void *, size_t, const void *, size_t, int);
    int (*aclrtGetDevice)(int32_t *), (*aclrtCreateContext)(void **, int32_t);
    int (*aclrtGetCurrentContext)(void **), (*aclrtSetCurrentContext)(void *);
    int (*aclrtDestroyContext)(void *);
    void *(*accel_own)(const device *);
    void *from, *to; /* [BIG] device */
} acl;

enum { BIG = 8 << 20, FILLS = 40, DEVICE_TO_HOST = 2, DEVICE_TO_DEVICE = 3 };

/* On a busy machine this thread may get to look only after the work is done. */
enum { TRIES = 20 };

static fsdp_status expect_code(const char *what, int code, int want)
{
    return code == NPU_TODO_6_2 ? fsdp_todo("6.2") : expect_int(what, code, want);
}

static fsdp_status acl_said(int code, const char *what)
{
    return expect_code(what, code, 0);
}

/* FIND looks up a call of ACL; ACL calls it. API calls a function of the learner's table. */
#define FIND(call)            npu_function(#call, &acl.call)
#define ACL(call, ...)        acl_said(acl.call(__VA_ARGS__), #call)
#define API(n, function, ...) acl_said((n)->api->function(__VA_ARGS__), #function)

static fsdp_status acl_find(void)
{
    TRY(FIND(aclrtMalloc));
    TRY(FIND(aclrtFree));
    TRY(FIND(aclrtMemsetAsync));
    TRY(FIND(aclrtMemcpyAsync));
    TRY(FIND(aclrtMemcpy));
    TRY(FIND(aclrtGetDevice));
    TRY(FIND(aclrtGetCurrentContext));
    TRY(FIND(aclrtSetCurrentContext));
    TRY(FIND(aclrtDestroyContext));
    TRY(FIND(aclrtCreateContext));
    TRY(FIND(accel_own));
    TRY(ACL(aclrtMalloc, &acl.from, BIG, 0));
    return ACL(aclrtMalloc, &acl.to, BIG, 0);
}

/* Fill from [BIG] many times, which takes a while. The last fill writes FILLS. */
static fsdp_status long_work(npu *n)
{
    for (int k = 1; k <= FILLS; k++)
        TRY(ACL(aclrtMemsetAsync, acl.from, BIG, k, BIG, n->queue_of(n->compute)));
    return FSDP_OK;
}

static fsdp_status copy_across(npu *n, stream *s)
{
    return ACL(aclrtMemcpyAsync, acl.to, BIG, acl.from, BIG, DEVICE_TO_DEVICE, n->queue_of(s));
}

/* Call this only when no stream has work on `to`. */
static fsdp_status expect_last_fill(const char *what)
{
    unsigned char end = 0;
    TRY(ACL(aclrtMemcpy, &end, 1, (char *)acl.to + BIG - 1, 1, DEVICE_TO_HOST));
    return EXPECT(end == FILLS, "which call of ACL lets a stream, or the host, wait for another?",
                  "%s: got a byte %d, expected %d, of the last of %d fills before it", what, end,
                  FILLS, FILLS);
}

/* Launch work on a stream of the stand-in's ACL, so that no other task is needed. */
static fsdp_status sim_launch(void *queue, const char *name, stream_fn fn, const void *args,
                              size_t args_bytes)
{
    int (*launch)(void *, const char *, stream_fn, const void *, size_t);
    TRY(npu_function("sim_acl_launch", &launch));
    return acl_said(launch(queue, name, fn, args, args_bytes), "a launch");
}

static fsdp_status orders_event(npu *n, void **out)
{
    return API(n, event_create, (accel_device *)n->dev, ACCEL_ORDERS, out);
}

/* While queue is held up, event_record, queue_wait, event_look and queue_look must not wait. */
static fsdp_status goes_ahead(npu *n, void *queue, void *other, void *e)
{
    gate_arm(n->g);
    TRY(sim_launch(queue, "a kernel that is held up", gate_hold, &n->g, sizeof n->g));
    TRY(API(n, event_record, e, queue));
    TRY(gate_check(n->g, "event_record"));
    TRY(API(n, queue_wait, other, e));
    TRY(gate_check(n->g, "queue_wait"));
    int code = n->api->event_look(e);
    TRY(gate_check(n->g, "event_look"));
    TRY(expect_code("event_look of an event after a kernel that runs", code, ACCEL_NOT_READY));
    code = n->api->queue_look(queue);
    TRY(gate_check(n->g, "queue_look"));
    TRY(expect_code("queue_look of a stream whose kernel runs", code, ACCEL_NOT_READY));
    return expect_code("queue_look of a stream, after queue_wait for an event that is not reached",
                       n->api->queue_look(other), ACCEL_NOT_READY);
}

/* Stand-in only: no kernel of a real NPU waits for the host. */
static fsdp_status host_goes_ahead(npu *n)
{
    stream *other;
    void *e;
    TRY(npu_stream(n, "ahead", &other));
    TRY(orders_event(n, &e));
    fsdp_status status = goes_ahead(n, n->queue_of(n->compute), n->queue_of(other), e);
    const fsdp_error_info why = *fsdp_error_get();
    const fsdp_status opened = gate_open(n->g, "the calls on a stream that is held up");
    if (status == FSDP_OK)
        return opened == FSDP_OK ? API(n, event_destroy, e) : opened;
    if (status == FSDP_ETODO)
        (void)n->api->event_destroy(e);
    return fsdp_error_set(&why);
}

/* The priorities and flags that streams are created with. Stand-in only: CANN cannot report them.
 * In ACL level 0 runs first, 7 last. */
static fsdp_status streams_as_asked(npu *n)
{
    enum { FAST = 3 }; /* ACL_STREAM_FAST_LAUNCH | ACL_STREAM_FAST_SYNC */
    static const struct {
        int priority;
        uint32_t level;
    } wishes[] = {{0, 7}, {1, 6}, {4, 3}, {7, 0}, {100, 0}, {-1, 7}};
    void (*made)(void *, uint32_t *, uint32_t *), *queue;
    TRY(npu_function("sim_acl_stream_made", &made));
    for (size_t i = 0; i < sizeof wishes / sizeof *wishes; i++) {
        uint32_t level, flags;
        TRY(API(n, queue_create, (accel_device *)n->dev, wishes[i].priority, &queue));
        made(queue, &level, &flags);
        const int code = n->api->queue_look(queue);
        TRY(API(n, queue_destroy, queue));
        TRY(acl_said(code, "queue_look of a stream that has had no work"));
        TRY(EXPECT(level == wishes[i].level && flags == FAST,
                   "aclrtCreateStreamWithConfig(out, level, flags)",
                   "queue_create of priority %d: got a stream of ACL's priority %u, flags %#x, "
                   "expected %u, %#x",
                   wishes[i].priority, level, flags, wishes[i].level, FAST));
    }
    return FSDP_OK;
}

/* One stream fills; the other copies after an event. */
static fsdp_status events_order(npu *n)
{
    stream *other;
    event *filled, *copied;
    TRY(npu_stream(n, "other", &other));
    TRY(npu_event(n, false, &filled));
    TRY(npu_event(n, false, &copied));
    bool was_done = true;
    for (int i = 0; i < TRIES && was_done; i++) {
        TRY(long_work(n));
        TRY(event_record(filled, n->compute));
        was_done = event_done(filled);
    }
    TRY(EXPECT(
        !was_done, "event_look: ACCEL_NOT_READY unless ACL's status is COMPLETE",
        "event_look, after %d fills of %d MiB that the stream had just got: \"reached\" in %d "
        "of %d tries, expected ACCEL_NOT_READY",
        FILLS, BIG >> 20, TRIES, TRIES));
    TRY(stream_wait_event(other, filled));
    TRY(copy_across(n, other));
    TRY(event_record(copied, other));
    TRY(event_sync(copied));
    TRY(EXPECT(event_done(filled), "event_look: ACL_SUCCESS when ACL's status is COMPLETE",
               "event_look of an event whose stream is past it: got ACCEL_NOT_READY, expected 0"));
    return expect_last_fill("a copy that waited for an event, after event_sync");
}

static fsdp_status sync_waits(npu *n)
{
    TRY(ACL(aclrtMemsetAsync, acl.to, BIG, 0, BIG, n->queue_of(n->compute)));
    TRY(long_work(n));
    TRY(copy_across(n, n->compute));
    TRY(stream_sync(n->compute));
    return expect_last_fill("a copy, after stream_sync");
}

/* A second record moves an event. A stream that waited before keeps the old place. */
static fsdp_status events_again(npu *n)
{
    stream *other;
    event *e;
    TRY(npu_stream(n, "waits", &other));
    TRY(npu_event(n, false, &e));
    bool was_done = true;
    for (int i = 0; i < TRIES && was_done; i++) {
        TRY(event_record(e, n->compute));
        TRY(stream_wait_event(other, e));
        TRY(long_work(n));
        TRY(event_record(e, n->compute));
        TRY(stream_sync(other));
        was_done = event_done(e);
    }
    TRY(EXPECT(
        !was_done, "queue_wait is a call of the stream; the host goes on",
        "queue_wait for an event that is recorded again later: the stream waited for the new "
        "place in %d of %d tries, expected the one at the call",
        TRIES, TRIES));
    return event_sync(e);
}

static fsdp_status events_time(npu *n)
{
    event *begin, *end;
    stream *other;
    double elapsed_s = 0, since_s = clock_now_s();
    TRY(npu_event(n, true, &begin));
    TRY(npu_event(n, true, &end));
    TRY(event_record(begin, n->compute));
    TRY(long_work(n));
    TRY(event_record(end, n->compute));
    TRY(npu_stream(n, "waits for a time", &other));
    TRY(stream_wait_event(other, end)); /* both kinds of event order streams */
    TRY(copy_across(n, other));
    TRY(event_sync(end));
    TRY(stream_sync(other));
    TRY(expect_last_fill("a copy that waited for a timed event"));
    TRY(event_elapsed_s(begin, end, &elapsed_s));
    double wall_s = clock_now_s() - since_s;
    return EXPECT(elapsed_s > 0 && elapsed_s <= wall_s + 1e-3, "",
                  "%d fills between two events: got %.6f s, expected 0 to %.6f", FILLS, elapsed_s,
                  wall_s);
}

/* Calls that cannot succeed return a status that tells the caller why. */
static fsdp_status refusals(npu *n)
{
    void *block;
    device *none;
    const device_config c = {
        .backend = n->backend->device, .index = n->backend->n_devices(), .n_threads = 1};
    TRY(expect_status("a block of 2^50 bytes",
                      device_alloc(n->compute, MEM_OTHER, (size_t)1 << 50, "too large", &block),
                      FSDP_ENOMEM));
    return expect_status("opening one more NPU than there are", device_open(&c, &none),
                         FSDP_EINVAL);
}

/* A new thread has no current device; it takes the context that device_enter kept. */
static fsdp_status context_is_kept(npu *n)
{
    void *now = NULL;
    TRY(ACL(aclrtGetCurrentContext, &now));
    return EXPECT(((npu_own *)acl.accel_own(n->dev))->context == now,
                  "aclrtGetCurrentContext(&own->context), after aclrtSetDevice",
                  "device_enter: own->context is %p, expected %p, the context of this thread",
                  ((npu_own *)acl.accel_own(n->dev))->context, now);
}

/* Otherwise the order of sums varies from run to run. CANN cannot report this. */
static fsdp_status order_is_fixed(npu *n)
{
    bool (*is_deterministic)(void);
    TRY(npu_function("sim_acl_is_deterministic", &is_deterministic));
    return expect_int("ACL_OPT_DETERMINISTIC of the device's context", is_deterministic(), 1);
}

/* When an ACL call fails, the function of the table that made it returns its code. */
static fsdp_status codes_come_back(npu *n)
{
    accel_device *d = (accel_device *)n->dev;
    void *q = n->queue_of(n->compute), *e = NULL, *queue = NULL, *none = NULL;
    TRY(orders_event(n, &e));
    TRY(NPU_BROKEN(n, "aclrtStreamWaitEvent", queue_wait, q, e));
    TRY(NPU_BROKEN(n, "aclrtRecordEvent", event_record, e, q));
    TRY(NPU_BROKEN(n, "aclrtQueryEventStatus", event_look, e));
    TRY(NPU_BROKEN(n, "aclrtStreamQuery", queue_look, q));
    TRY(NPU_BROKEN(n, "aclrtCreateStreamWithConfig", queue_create, d, 0, &none));
    TRY(NPU_BROKEN(n, "aclrtSetStreamFailureMode", queue_create, d, 0, &queue));
    TRY(NPU_BROKEN(n, "aclrtCreateEventExWithFlag", event_create, d, ACCEL_ORDERS, &none));
    npu_break(NULL);
    if (queue != NULL)
        TRY(API(n, queue_destroy, queue));
    return API(n, event_destroy, e);
}

/* A timed event costs the stream time, so only ACCEL_TIMES has one. Stand-in only: CANN does not
 * document what a real NPU returns here. */
static fsdp_status orders_only(npu *n)
{
    enum { NO_TIME = 107006 };
    void *e;
    float ms;
    TRY(orders_event(n, &e));
    TRY(API(n, event_record, e, n->queue_of(n->compute)));
    TRY(stream_sync(n->compute));
    TRY(expect_int("aclrtEventElapsedTime of an event of ACCEL_ORDERS (no ACL_EVENT_TIME_LINE)",
                   n->api->elapsed_ms(&ms, e, e), NO_TIME));
    return API(n, event_destroy, e);
}

/* If device_open fails, it releases the device and returns the reason. */
static fsdp_status open_fails(npu *n)
{
    int32_t index = 0;
    device *none;
    TRY(ACL(aclrtGetDevice, &index));
    const device_config c = {.backend = n->backend->device, .index = index, .n_threads = 1};
    static const char *const calls[] = {"aclrtSetDevice", "aclrtCtxSetSysParamOpt",
                                        "aclrtGetCurrentContext"};
    for (int i = 0; i < 3; i++)
        TRY(NPU_FAILS(calls[i], FSDP_EDEVICE, device_open(&c, &none)));
    return FSDP_OK;
}

static fsdp_status fails_now(void *args, int n_threads)
{
    (void)args, (void)n_threads;
    return fsdp_error(FSDP_EDEVICE, "", "a kernel of the test");
}

/* With ACL_STOP_ON_FAILURE a stream stops at a kernel that fails, and a query says so. The queue
 * has its own context, because the failure stops the whole context. */
static fsdp_status queue_stops(npu *n, void *queue)
{
    enum { EXCEPTION = 507015, LOOKS = 5000 };
    int code = 0;
    TRY(sim_launch(queue, "a kernel that fails", fails_now, NULL, 0));
    (void)ACL(aclrtMemsetAsync, acl.to, BIG, FILLS + 1, BIG, queue); /* skipped or refused */
    for (int i = 0; i < LOOKS && (code = n->api->queue_look(queue)) == ACCEL_NOT_READY; i++)
        usleep(1000);
    return expect_int("queue_look after a kernel that failed (ACL_STOP_ON_FAILURE)", code,
                      EXCEPTION);
}

/* Stand-in only: no kernel of a real NPU fails on demand. */
static fsdp_status stops_on_failure(npu *n)
{
    void *queue, *device_context, *context;
    int32_t index = 0;
    TRY(sync_waits(n)); /* `to` holds FILLS */
    TRY(ACL(aclrtGetDevice, &index));
    TRY(ACL(aclrtGetCurrentContext, &device_context));
    TRY(ACL(aclrtCreateContext, &context, index));
    TRY(API(n, queue_create, (accel_device *)n->dev, 0, &queue));
    fsdp_status status = queue_stops(n, queue);
    TRY(API(n, queue_destroy, queue));
    TRY(ACL(aclrtSetCurrentContext, device_context));
    TRY(ACL(aclrtDestroyContext, context));
    TRY(status);
    return expect_last_fill("an array that a fill after a failed kernel must not change");
}

static fsdp_status use_streams(npu *n)
{
    static const struct {
        fsdp_status (*check)(npu *n);
        bool on_sim; /* only there */
    } checks[] = {{context_is_kept, false}, {order_is_fixed, true},  {streams_as_asked, true},
                  {host_goes_ahead, true},  {events_order, false},   {sync_waits, false},
                  {events_again, false},    {events_time, false},    {orders_only, true},
                  {refusals, false},        {codes_come_back, true}, {open_fails, true},
                  {stops_on_failure, true}};
    for (size_t i = 0; i < sizeof checks / sizeof *checks; i++)
        if (n->is_sim || !checks[i].on_sim)
            TRY(checks[i].check(n));
    return FSDP_OK;
}

static fsdp_status streams_and_events(npu *n)
{
    TRY(acl_find());
    const fsdp_status status = use_streams(n);
    if (status != FSDP_OK && status != FSDP_ETODO)
        return status;
    const fsdp_error_info why = *fsdp_error_get();
    (void)stream_sync(n->compute);
    TRY(ACL(aclrtFree, acl.from));
    TRY(ACL(aclrtFree, acl.to));
    return status == FSDP_OK ? FSDP_OK : fsdp_error_set(&why);
}

/* npu_close resets the device own->entered times; then no device is current. */
static fsdp_status device_is_left(void)
{
    enum { NO_CONTEXT = 107002 };
    int (*device_now)(int32_t *);
    int32_t index;
    TRY(npu_function("aclrtGetDevice", &device_now));
    return expect_int("aclrtGetDevice when every device is closed (own->entered: reset it then)",
                      device_now(&index), NO_CONTEXT);
}

/* The plug-in's first call of aclInit fails, unless an earlier task has called it. */
static fsdp_status start_fails(void)
{
    int (*n_devices)(void);
    const char *(*message)(void), *said;
    if (!npu_break(NULL))
        return FSDP_OK;
    TRY(npu_function("npu_n_devices", &n_devices));
    TRY(npu_function("aclGetRecentErrMsg", &message));
    (void)message();
    npu_break("aclInit");
    const int found = n_devices();
    npu_break(NULL);
    said = message();
    return EXPECT(found > 0 || said == NULL || strstr(said, "aclInit fails") != NULL,
                  "what aclInit returns is the result, but for ACL_ERROR_REPEAT_INITIALIZE",
                  "runtime_start, when aclInit fails: expected its code, got ACL_SUCCESS; the next "
                  "call says \"%.200s\"",
                  said);
}

static fsdp_status task_6_2(grade *g)
{
    TRY(start_fails());
    TRY(npu_run(g, streams_and_events));
    return device_is_left();
}

/* ---- 6.3 ------------------------------------------------------------------------------------- */

enum { LONG = 40960 }; /* exactly one block of memory: kept.c does not pad it */
enum { PARTS_BYTES = 1200 };

static void numbers(float *x, size_t elems, float from)
{
    for (size_t i = 0; i < elems; i++)
        x[i] = from + (float)i;
}

/* The stream must stand still until work of the host, here the gate, is done. */
static fsdp_status task_holds_stream(npu *n)
{
    event *e;
    TRY(npu_event(n, false, &e));
    TRY(gate_close(n->g, n->compute));
    TRY(event_record(e, n->compute));
    usleep(30 * 1000); /* a stream that goes on reaches the event by then */
    const bool went_on = event_done(e);
    TRY(gate_open(n->g, "work of the host is issued"));
    return EXPECT(
        !went_on, "ACL_CALLBACK_BLOCK",
        "task_launch: the stream went on while its work of the host ran, expected it to stand "
        "until that has returned");
}

/* Copy up, across and down while the stream stands still. The host returns before anything has
 * moved, and may overwrite its source. */
static fsdp_status host_goes_on(npu *n)
{
    static float host[LONG], want[LONG], got[LONG];
    void *a, *b;
    TRY(npu_block(n, NULL, sizeof host, &a));
    TRY(npu_block(n, NULL, sizeof host, &b));
    numbers(host, LONG, 1);
    memcpy(want, host, sizeof host);
    TRY(gate_close(n->g, n->compute));
    TRY(grade_write(n->compute, a, host, sizeof host));
    memset(host, 0, sizeof host);
    TRY(device_zero(n->compute, (float *)a + 7, 3 * sizeof *host)); /* after the upload */
    memset(want + 7, 0, 3 * sizeof *want);
    TRY(device_copy(n->compute, b, a, sizeof host));
    TRY(grade_fetch(n->compute, b, sizeof got, got));
    TRY(gate_open(n->g, "copies up, across and down are issued"));
    TRY(stream_sync(n->compute));
    return expect_f32("up, across and down: element", got, want, LONG);
}

/* The same copies between pinned host memory, which need no staging. */
static fsdp_status pinned_goes_on(npu *n)
{
    static const size_t bytes = LONG * sizeof(float);
    static float want[LONG];
    void *from, *to, *a;
    TRY(npu_block(n, NULL, bytes, &a));
    TRY(npu_host_block(n, bytes, &from));
    TRY(npu_host_block(n, bytes, &to));
    TRY(stream_sync(n->compute)); /* before the host writes to it */
    numbers(from, LONG, 3);
    numbers(want, LONG, 3);
    memset(to, 0, bytes);
    TRY(gate_close(n->g, n->compute));
    TRY(device_copy(n->compute, a, from, bytes));
    TRY(device_copy(n->compute, to, a, bytes));
    TRY(expect_f32("before the stream has come to a copy: element", to, (const float[]){0}, 1));
    TRY(gate_open(n->g, "copies of pinned memory are issued"));
    TRY(stream_sync(n->compute));
    return expect_f32("pinned, up and down: element", to, want, LONG);
}

/* Check all bytes of a block. */
static fsdp_status expect_bytes(npu *n, const char *what, const void *block,
                                const unsigned char *want, size_t bytes)
{
    unsigned char got[PARTS_BYTES];
    TRY(grade_read(n->compute, block, bytes, got));
    for (size_t i = 0; i < bytes; i++)
        TRY(expect_int(WHAT("%s: byte %zu of %zu", what, i, bytes), got[i], want[i]));
    return FSDP_OK;
}

/* Operations on parts of an array leave the rest unchanged. The numbers of bytes are no multiples
 * of any wider type. */
static fsdp_status parts(npu *n)
{
    enum { ALL = PARTS_BYTES, BEGIN = 13, ZEROS = 405, TO = 601, COPIED = 477 };
    unsigned char want[ALL];
    void *a, *b;
    memset(want, 0xff, ALL);
    TRY(npu_block(n, NULL, ALL, &a));
    TRY(expect_bytes(n, "fresh memory, filled with NaN", a, want, ALL));
    for (int i = 0; i < ALL; i++)
        want[i] = (unsigned char)(i % 251);
    TRY(npu_block(n, want, ALL, &a));
    TRY(npu_block(n, want, ALL, &b));
    TRY(device_zero(n->compute, (char *)a + BEGIN, ZEROS));
    memset(want + BEGIN, 0, ZEROS);
    TRY(expect_bytes(n, WHAT("%d zeros from byte %d on", ZEROS, BEGIN), a, want, ALL));
    TRY(device_copy(n->compute, (char *)b + TO, a, COPIED));
    memcpy(want + TO, want, COPIED);
    for (int i = BEGIN; i < BEGIN + ZEROS; i++) /* as b still has them */
        want[i] = (unsigned char)(i % 251);
    return expect_bytes(n, WHAT("%d bytes copied to byte %d", COPIED, TO), b, want, ALL);
}

typedef struct add_one {
    float *x;
    size_t elems;
} add_one;

static fsdp_status add_one_run(void *args, int n_threads)
{
    const add_one *a = args;
    for (size_t i = 0; i < a->elems; i++)
        a->x[i] += 1;
    return FSDP_OK;
}

/* Copy down, add on the host, copy up again; everything is issued ahead. */
static fsdp_status host_work(npu *n)
{
    enum { ELEMS = 1000 };
    float host[ELEMS], want[ELEMS];
    void *a, *b, *pinned;
    numbers(host, ELEMS, 1);
    numbers(want, ELEMS, 2);
    TRY(npu_block(n, host, sizeof host, &a));
    TRY(npu_block(n, NULL, sizeof host, &b));
    TRY(npu_host_block(n, sizeof host, &pinned));
    TRY(device_copy(n->compute, pinned, a, sizeof host));
    const add_one work = {pinned, ELEMS};
    TRY(grade_launch_idle(n->compute, add_one_run, &work, sizeof work, "add one"));
    TRY(device_copy(n->compute, b, pinned, sizeof host));
    TRY(grade_read(n->compute, b, sizeof host, host));
    return expect_f32("down, + 1 on the host, up: element", host, want, ELEMS);
}

static atomic_int n_come; /* two must */

static fsdp_status meet(void *args, int n_threads)
{
    (void)args, (void)n_threads;
    atomic_fetch_add(&n_come, 1);
    for (int ms = 0; ms < 8000 && atomic_load(&n_come) < 2; ms++)
        usleep(1000);
    return EXPECT(atomic_load(&n_come) >= 2,
                  "each stream has a reporter: wait for no other stream's",
                  "work of the host on one stream waited 8 s for work on another stream, expected "
                  "both at once");
}

/* When an ACL call fails, the functions of the table that copy and fill return its code. */
static fsdp_status copy_codes_come_back(npu *n)
{
    enum { BYTES = 256 };
    void *a, *b, *q = n->queue_of(n->compute);
    TRY(npu_block(n, NULL, BYTES, &a));
    TRY(npu_block(n, NULL, BYTES, &b));
    TRY(NPU_BROKEN(n, "aclrtMemcpyAsync", copy, a, b, BYTES, ACCEL_WITHIN, q));
    TRY(NPU_BROKEN(n, "aclrtMemsetAsync", fill, a, 0, BYTES, q));
    npu_break(NULL);
    return FSDP_OK;
}

/* A stream may have no work for the host for a long time. Its reporter must keep waiting. */
static fsdp_status reporter_stays(npu *n)
{
    enum { IDLE = 3000, WAIT_MS = 8000 }; /* waits of a minute; the stand-in does not sleep */
    long (*idle)(bool), seen = 0;
    if (!n->is_sim)
        return FSDP_OK;
    TRY(stream_sync(n->compute));
    TRY(npu_function("sim_report_idle", &idle));
    const long before = idle(true);
    for (int ms = 0; ms < WAIT_MS && seen < IDLE; ms++) {
        usleep(1000);
        seen = idle(true) - before;
    }
    (void)idle(false);
    return EXPECT(seen >= IDLE, "a time-out of aclrtProcessReport is no end: stop at r->stopping",
                  "reporter_main, while its stream has no work: left after %ld time-outs of "
                  "aclrtProcessReport, expected it to come back until it is stopped",
                  seen);
}

/* The last check of a device, which has failed afterwards. */
static fsdp_status callback_status(npu *n)
{
    float one = 1;
    const add_one work = {&one, 1};
    stream *s;
    TRY(npu_stream(n, "fails", &s));
    TRY(grade_launch_idle(s, add_one_run, &work, sizeof work, "add one"));
    TRY(stream_sync(s));
    return NPU_FAILS("aclrtLaunchCallback", FSDP_EDEVICE,
                     grade_launch_idle(s, add_one_run, &work, sizeof work, "add one"));
}

/* Work of the host after the stream had none for longer than one wait of aclrtProcessReport. */
static fsdp_status host_work_later(npu *n)
{
    TRY(host_work(n));
    usleep(60 * 1000);
    return host_work(n);
}

/* Host work of two streams meets, as in collectives over shared memory. */
static fsdp_status host_works_meet(npu *n)
{
    stream *other;
    atomic_store(&n_come, 0);
    TRY(npu_stream(n, "other", &other));
    TRY(grade_launch_idle(n->compute, meet, NULL, 0, "meet"));
    TRY(grade_launch_idle(other, meet, NULL, 0, "meet"));
    TRY(stream_sync(n->compute));
    return stream_sync(other);
}

static fsdp_status copies(npu *n)
{
    TRY(task_holds_stream(n));
    TRY(host_goes_on(n));
    TRY(pinned_goes_on(n));
    TRY(parts(n));
    TRY(copy_codes_come_back(n));
    TRY(host_work(n));
    TRY(reporter_stays(n));
    TRY(host_work_later(n));
    TRY(host_works_meet(n));
    return callback_status(n);
}

static fsdp_status task_6_3(grade *g)
{
    return npu_run(g, copies);
}

int main(int argc, char **argv)
{
    static const grade_task tasks[] = {{"6.1", task_6_1}, {"6.2", task_6_2}, {"6.3", task_6_3},
                                       {"6.4", task_6_4}, {"6.5", task_6_5}, {"6.6", task_6_6}};
    npu_choose();
    npu_acl_by_others();
    const int status = grade_main(argc, argv, tasks, (int)(sizeof tasks / sizeof *tasks));
    npu_acl_end();
    return status;
}
