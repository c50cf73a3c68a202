/* lab6.c -- the tests of lab 6's tasks, on an NPU or the stand-in's (npu_lib.h).
 *
 * Tasks 6.1 to 6.3, what an NPU itself has to be able to do, stand here; 6.4 to 6.6 in
 * npu_work_lib.c. */
#include <string.h>
#include <time.h>
#include "common/accel/accel.h"
#include "common/base/clock.h"
#include "lab6_npu/npu_impl.h"
#include "tests/grade/npu_lib.h"
#include "tests/grade/npu_work_lib.h"

/* ---- 6.1 ------------------------------------------------------------------------------------- */

/* What the three libraries call the same thing. Copies are numbered as in accel_api.h: within the
 * device, up, down. */
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
/* The codes of success, memory that there is not on the NPU and on the host, a thread without a
 * device, another's stream, an argument, a kernel that failed, time that is up, and CANN's own
 * mistake. */
static const struct {
    int code;
    fsdp_status status;
} CODES[] = {{0, FSDP_OK},           {207001, FSDP_ENOMEM},  {200000, FSDP_ENOMEM},
             {107002, FSDP_EDEVICE}, {107003, FSDP_EDEVICE}, {107000, FSDP_EDEVICE},
             {507015, FSDP_EDEVICE}, {507046, FSDP_EDEVICE}, {500000, FSDP_EDEVICE}};

typedef fsdp_status (*status_fn)(int, const char *);

/* The message names the call and the code, and goes on with a hint. */
static fsdp_status maps_code(status_fn status, int code, fsdp_status want)
{
    char what[48], digits[16];
    snprintf(what, sizeof what, "npu_status of %d", code);
    snprintf(digits, sizeof digits, "%d", code);
    fsdp_status got = status(code, "aclrtThis");
    TRY(expect_status(what, got, want));
    const fsdp_error_info *e = fsdp_error_get();
    if (want != FSDP_OK && (!strstr(e->what, "aclrtThis") || !strstr(e->what, digits) ||
                            strstr(e->what, "(null)") || e->hint[0] == '\0'))
        return fsdp_error(FSDP_EINVAL, "",
                          "%s: got \"%.200s\" and %s, expected the call, the code and a hint", what,
                          e->what, e->hint[0] ? "a hint" : "no hint");
    return FSDP_OK;
}

/* CANN's words for the thread's last error, which are gone when they have been read. */
static fsdp_status keeps_words(status_fn status)
{
    void (*function)(void);
    int (*alloc)(void **, size_t, int);
    const char *(*message)(void);
    TRY(npu_function("aclrtMalloc", &function));
    memcpy(&alloc, &function, sizeof function);
    TRY(npu_function("aclGetRecentErrMsg", &function));
    memcpy(&message, &function, sizeof function);
    char words[256] = "";
    const int code = alloc(NULL, 0, 0);
    const char *said = message();
    snprintf(words, sizeof words, "%.200s", said != NULL ? said : "");
    (void)alloc(NULL, 0, 0);
    (void)status(code, "aclrtMalloc");
    if (strstr(fsdp_error_get()->what, words) == NULL)
        return fsdp_error(FSDP_EINVAL, "aclGetRecentErrMsg has them, once",
                          "npu_status of %d: got \"%.200s\", expected ACL's words in it, \"%s\"",
                          code, fsdp_error_get()->what, words);
    return FSDP_OK;
}

static fsdp_status maps_codes(void)
{
    status_fn status;
    void (*function)(void);
    TRY(npu_function("npu_status", &function));
    memcpy(&status, &function, sizeof status);
    for (size_t i = 0; i < sizeof CODES / sizeof *CODES; i++)
        TRY(maps_code(status, CODES[i].code, CODES[i].status));
    return keeps_words(status);
}

/* Through a map that takes and gives an int, as an enum is one. */
static fsdp_status maps_number(const char *name, const number *n, int want)
{
    int (*map)(int);
    void (*function)(void);
    char what[80];
    TRY(npu_function(name, &function));
    memcpy(&map, &function, sizeof map);
    snprintf(what, sizeof what, "%s of %s", name, n->what);
    int got = map(n->from);
    return got == -1 && want == 0 ? fsdp_todo("6.1") : expect_int(what, got, want);
}

static fsdp_status task_6_1(grade *g)
{
    (void)g;
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
typedef struct acl {
    int (*alloc)(void **, size_t, int), (*free)(void *);
    int (*fill)(void *, size_t, int32_t, size_t, void *);
    int (*copy)(void *, size_t, const void *, size_t, int, void *);
    int (*copy_now)(void *, size_t, const void *, size_t, int);
    int (*device)(int32_t *), (*context)(void **), (*enter)(void *), (*leave)(void *);
    int (*context_new)(void **, int32_t);
    void *(*queue_of)(stream *), *(*own_of)(const device *);
    const accel_api *(*api_of)(const device *);
    unsigned char *from, *to; /* [BIG] device */
} acl;

enum { BIG = 8 << 20, FILLS = 40, DEVICE_TO_HOST = 2, DEVICE_TO_DEVICE = 3 };

/* A machine that is busy with others may keep this thread from looking until the work is done. */
enum { TRIES = 20 };

static fsdp_status expect_code(const char *what, int code, int want)
{
    return code == NPU_TODO_6_2 ? fsdp_todo("6.2") : expect_int(what, code, want);
}

static fsdp_status acl_said(int code, const char *what)
{
    return expect_code(what, code, 0);
}

static fsdp_status acl_find(acl *a)
{
    const struct {
        const char *name;
        void *at;
    } wanted[] = {{"aclrtMalloc", &a->alloc},        {"aclrtFree", &a->free},
                  {"aclrtMemsetAsync", &a->fill},    {"aclrtMemcpyAsync", &a->copy},
                  {"aclrtMemcpy", &a->copy_now},     {"accel_queue_of", &a->queue_of},
                  {"aclrtGetDevice", &a->device},    {"aclrtGetCurrentContext", &a->context},
                  {"accel_own", &a->own_of},         {"aclrtSetCurrentContext", &a->enter},
                  {"accel_api_of", &a->api_of},      {"aclrtCreateContext", &a->context_new},
                  {"aclrtDestroyContext", &a->leave}};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        void (*function)(void);
        TRY(npu_function(wanted[i].name, &function));
        memcpy(wanted[i].at, &function, sizeof function);
    }
    void *from, *to;
    TRY(acl_said(a->alloc(&from, BIG, 0), "aclrtMalloc"));
    TRY(acl_said(a->alloc(&to, BIG, 0), "aclrtMalloc"));
    a->from = from;
    a->to = to;
    return FSDP_OK;
}

/* from [BIG] = FILLS: the last of many fills, which take a while. */
static fsdp_status long_work(const acl *a, stream *s)
{
    for (int k = 1; k <= FILLS; k++)
        TRY(acl_said(a->fill(a->from, BIG, k, BIG, a->queue_of(s)), "aclrtMemsetAsync"));
    return FSDP_OK;
}

static fsdp_status copy_across(const acl *a, stream *s)
{
    return acl_said(a->copy(a->to, BIG, a->from, BIG, DEVICE_TO_DEVICE, a->queue_of(s)),
                    "aclrtMemcpyAsync");
}

/* No stream may have work on `to` now. */
static fsdp_status expect_last_fill(const acl *a, const char *what)
{
    unsigned char end = 0;
    TRY(acl_said(a->copy_now(&end, 1, a->to + BIG - 1, 1, DEVICE_TO_HOST), "aclrtMemcpy"));
    return EXPECT(end == FILLS, "which call of ACL lets a stream, or the host, wait for another?",
                  "%s: got a byte %d, expected %d, of the last of %d fills before it", what, end,
                  FILLS, FILLS);
}

/* Work on a stream that the stand-in's ACL runs: no other task is needed. */
static fsdp_status sim_launch(void *queue, const char *name, stream_fn fn, const void *args,
                              size_t args_bytes)
{
    int (*launch)(void *, const char *, stream_fn, const void *, size_t);
    void (*function)(void);
    TRY(npu_function("sim_acl_launch", &function));
    memcpy(&launch, &function, sizeof function);
    return acl_said(launch(queue, name, fn, args, args_bytes), "a launch");
}

/* While queue is held up: an event after that, a wait and looks do not keep the host. */
static fsdp_status goes_ahead(npu *n, const accel_api *api, void *queue, void *other, void *e)
{
    gate_arm(n->g);
    TRY(sim_launch(queue, "a kernel that is held up", gate_hold, &n->g, sizeof n->g));
    TRY(acl_said(api->event_record(e, queue), "event_record"));
    TRY(gate_check(n->g, "event_record"));
    TRY(acl_said(api->queue_wait(other, e), "queue_wait"));
    TRY(gate_check(n->g, "queue_wait"));
    int code = api->event_look(e);
    TRY(gate_check(n->g, "event_look"));
    TRY(expect_code("event_look of an event after a kernel that runs", code, ACCEL_NOT_READY));
    code = api->queue_look(queue);
    TRY(gate_check(n->g, "queue_look"));
    TRY(expect_code("queue_look of a stream whose kernel runs", code, ACCEL_NOT_READY));
    return expect_code("queue_look of a stream, after queue_wait for an event that is not reached",
                       api->queue_look(other), ACCEL_NOT_READY);
}

static fsdp_status host_goes_ahead(npu *n, const acl *a)
{
    const accel_api *api = a->api_of(n->dev);
    stream *other;
    void *e;
    if (!npu_break(NULL))
        return FSDP_OK; /* no kernel of a real NPU waits for the host */
    TRY(npu_stream(n, "ahead", &other));
    TRY(acl_said(api->event_create((accel_device *)n->dev, ACCEL_ORDERS, &e), "event_create"));
    fsdp_status status = goes_ahead(n, api, a->queue_of(n->compute), a->queue_of(other), e);
    const fsdp_error_info why = *fsdp_error_get();
    const fsdp_status opened = gate_open(n->g, "the calls on a stream that is held up");
    if (status == FSDP_OK)
        return opened == FSDP_OK ? acl_said(api->event_destroy(e), "event_destroy") : opened;
    if (status == FSDP_ETODO)
        (void)api->event_destroy(e);
    return fsdp_error_set(&why);
}

/* What streams are created with. In ACL 0 goes first, 7 last. */
static fsdp_status streams_as_asked(npu *n, const acl *a)
{
    enum { FAST = 3 }; /* ACL_STREAM_FAST_LAUNCH | ACL_STREAM_FAST_SYNC */
    static const struct {
        int priority;
        uint32_t level;
    } wishes[] = {{0, 7}, {1, 6}, {4, 3}, {7, 0}, {100, 0}, {-1, 7}};
    const accel_api *api = a->api_of(n->dev);
    void (*made)(void *, uint32_t *, uint32_t *), (*function)(void), *queue;
    if (!npu_break(NULL))
        return FSDP_OK; /* CANN cannot be asked */
    TRY(npu_function("sim_acl_stream_made", &function));
    memcpy(&made, &function, sizeof function);
    for (size_t i = 0; i < sizeof wishes / sizeof *wishes; i++) {
        uint32_t level, flags;
        TRY(acl_said(api->queue_create((accel_device *)n->dev, wishes[i].priority, &queue),
                     "queue_create"));
        made(queue, &level, &flags);
        const int code = api->queue_look(queue);
        TRY(acl_said(api->queue_destroy(queue), "queue_destroy"));
        TRY(acl_said(code, "queue_look of a stream that has had no work"));
        TRY(EXPECT(level == wishes[i].level && flags == FAST,
                   "aclrtCreateStreamWithConfig(out, level, flags)",
                   "queue_create of priority %d: got a stream of ACL's priority %u, flags %#x, "
                   "expected %u, %#x",
                   wishes[i].priority, level, flags, wishes[i].level, FAST));
    }
    return FSDP_OK;
}

/* One stream fills, the other copies behind an event. */
static fsdp_status events_order(npu *n, const acl *a)
{
    stream *other;
    event *filled, *copied;
    TRY(npu_stream(n, "other", &other));
    TRY(npu_event(n, false, &filled));
    TRY(npu_event(n, false, &copied));
    bool was_done = true;
    for (int i = 0; i < TRIES && was_done; i++) {
        TRY(long_work(a, n->compute));
        TRY(event_record(filled, n->compute));
        was_done = event_done(filled);
    }
    TRY(EXPECT(
        !was_done, "event_look: ACCEL_NOT_READY unless ACL's status is COMPLETE",
        "event_look, after %d fills of %d MiB that the stream had just got: \"reached\" in %d "
        "of %d tries, expected ACCEL_NOT_READY",
        FILLS, BIG >> 20, TRIES, TRIES));
    TRY(stream_wait_event(other, filled));
    TRY(copy_across(a, other));
    TRY(event_record(copied, other));
    TRY(event_sync(copied));
    TRY(EXPECT(event_done(filled), "event_look: ACL_SUCCESS when ACL's status is COMPLETE",
               "event_look of an event whose stream is past it: got ACCEL_NOT_READY, expected 0"));
    return expect_last_fill(a, "the copy behind an event, behind event_sync");
}

static fsdp_status sync_waits(npu *n, const acl *a)
{
    TRY(acl_said(a->fill(a->to, BIG, 0, BIG, a->queue_of(n->compute)), "aclrtMemsetAsync"));
    TRY(long_work(a, n->compute));
    TRY(copy_across(a, n->compute));
    TRY(stream_sync(n->compute));
    return expect_last_fill(a, "a copy, behind stream_sync");
}

/* An event that is recorded again stands for the new place; who waited before keeps the old one. */
static fsdp_status events_again(npu *n, const acl *a)
{
    stream *other;
    event *e;
    TRY(npu_stream(n, "waits", &other));
    TRY(npu_event(n, false, &e));
    bool was_done = true;
    for (int i = 0; i < TRIES && was_done; i++) {
        TRY(event_record(e, n->compute));
        TRY(stream_wait_event(other, e));
        TRY(long_work(a, n->compute));
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

static fsdp_status events_time(npu *n, const acl *a)
{
    event *begin, *end;
    stream *other;
    double elapsed_s = 0, since_s = clock_now_s();
    TRY(npu_event(n, true, &begin));
    TRY(npu_event(n, true, &end));
    TRY(event_record(begin, n->compute));
    TRY(long_work(a, n->compute));
    TRY(event_record(end, n->compute));
    TRY(npu_stream(n, "waits for a time", &other));
    TRY(stream_wait_event(other, end)); /* both kinds order */
    TRY(copy_across(a, other));
    TRY(event_sync(end));
    TRY(stream_sync(other));
    TRY(expect_last_fill(a, "the copy behind a timed event"));
    TRY(event_elapsed_s(begin, end, &elapsed_s));
    double wall_s = clock_now_s() - since_s;
    if (elapsed_s > 0 && elapsed_s <= wall_s + 1e-3)
        return FSDP_OK;
    return fsdp_error(FSDP_EINVAL, "",
                      "%d fills between two events: got %.6f s, expected 0 to %.6f", FILLS,
                      elapsed_s, wall_s);
}

/* What does not work says so, with a status that the caller can go by. */
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

/* A thread that starts has no device: it finds it here. */
static fsdp_status context_is_kept(npu *n, const acl *a)
{
    void *now = NULL;
    TRY(acl_said(a->context(&now), "aclrtGetCurrentContext"));
    return EXPECT(((npu_own *)a->own_of(n->dev))->context == now,
                  "aclrtGetCurrentContext(&own->context), after aclrtSetDevice",
                  "device_enter: own->context is %p, expected %p, the context of this thread",
                  ((npu_own *)a->own_of(n->dev))->context, now);
}

/* Else operators add in another order each time. */
static fsdp_status order_is_fixed(void)
{
    bool (*is_deterministic)(void);
    void (*function)(void);
    if (!npu_break(NULL))
        return FSDP_OK; /* CANN cannot be asked */
    TRY(npu_function("sim_acl_is_deterministic", &function));
    memcpy(&is_deterministic, &function, sizeof function);
    return expect_int("ACL_OPT_DETERMINISTIC of the device's context", is_deterministic(), 1);
}

/* What the functions of the table return when the call of ACL that they make fails: its code. */
static fsdp_status codes_come_back(npu *n, const acl *a)
{
    enum { CODE = 500000 };
    accel_device *d = (accel_device *)n->dev;
    const accel_api *api = a->api_of(n->dev);
    void *q = a->queue_of(n->compute), *e = NULL, *queue = NULL, *none = NULL;
    TRY(acl_said(api->event_create(d, ACCEL_ORDERS, &e), "event_create"));
    if (!npu_break("aclrtStreamWaitEvent"))
        return acl_said(api->event_destroy(e), "event_destroy");
    TRY(expect_int("queue_wait, when aclrtStreamWaitEvent fails", api->queue_wait(q, e), CODE));
    npu_break("aclrtRecordEvent");
    TRY(expect_int("event_record, when aclrtRecordEvent fails", api->event_record(e, q), CODE));
    npu_break("aclrtQueryEventStatus");
    TRY(expect_int("event_look, when aclrtQueryEventStatus fails", api->event_look(e), CODE));
    npu_break("aclrtStreamQuery");
    TRY(expect_int("queue_look, when aclrtStreamQuery fails", api->queue_look(q), CODE));
    npu_break("aclrtCreateStreamWithConfig");
    TRY(expect_int("queue_create, when aclrtCreateStreamWithConfig fails",
                   api->queue_create(d, 0, &none), CODE));
    npu_break("aclrtSetStreamFailureMode");
    TRY(expect_int("queue_create, when aclrtSetStreamFailureMode fails",
                   api->queue_create(d, 0, &queue), CODE));
    npu_break("aclrtCreateEventExWithFlag");
    TRY(expect_int("event_create, when aclrtCreateEventExWithFlag fails",
                   api->event_create(d, ACCEL_ORDERS, &none), CODE));
    npu_break(NULL);
    if (queue != NULL)
        TRY(acl_said(api->queue_destroy(queue), "queue_destroy"));
    return acl_said(api->event_destroy(e), "event_destroy");
}

/* A time costs the stream something: only ACCEL_TIMES has one. */
static fsdp_status orders_only(npu *n, const acl *a)
{
    enum { NO_TIME = 107006 };
    const accel_api *api = a->api_of(n->dev);
    void *e;
    float ms;
    if (!npu_break(NULL))
        return FSDP_OK; /* what else CANN may say of it is not written anywhere */
    TRY(acl_said(api->event_create((accel_device *)n->dev, ACCEL_ORDERS, &e), "event_create"));
    TRY(acl_said(api->event_record(e, a->queue_of(n->compute)), "event_record"));
    TRY(stream_sync(n->compute));
    TRY(expect_int("aclrtEventElapsedTime of an event of ACCEL_ORDERS (no ACL_EVENT_TIME_LINE)",
                   api->elapsed_ms(&ms, e, e), NO_TIME));
    return acl_said(api->event_destroy(e), "event_destroy");
}

/* A device that cannot be opened is given back, and says why. */
static fsdp_status open_fails(npu *n, const acl *a)
{
    int32_t index = 0;
    device *none;
    TRY(acl_said(a->device(&index), "aclrtGetDevice"));
    const device_config c = {.backend = n->backend->device, .index = index, .n_threads = 1};
    static const char *const calls[] = {"aclrtSetDevice", "aclrtCtxSetSysParamOpt",
                                        "aclrtGetCurrentContext"};
    for (int i = 0; i < 3 && npu_break(calls[i]); i++) {
        const fsdp_status status = device_open(&c, &none);
        npu_break(NULL);
        TRY(npu_said(calls[i], status, FSDP_EDEVICE));
    }
    return FSDP_OK;
}

static fsdp_status fails_now(void *args, int n_threads)
{
    (void)args, (void)n_threads;
    return fsdp_error(FSDP_EDEVICE, "", "a kernel of the test");
}

/* With ACL_STOP_ON_FAILURE a kernel that fails is the last one: a query says so, at once. In a
 * context of its own, which it stops. */
static fsdp_status queue_stops(npu *n, const acl *a, void *queue)
{
    enum { EXCEPTION = 507015, LOOKS = 5000 };
    const struct timespec nap = {.tv_nsec = 1000 * 1000};
    const accel_api *api = a->api_of(n->dev);
    int code = 0;
    TRY(sim_launch(queue, "a kernel that fails", fails_now, NULL, 0));
    (void)a->fill(a->to, BIG, FILLS + 1, BIG, queue); /* skipped, or refused already */
    for (int i = 0; i < LOOKS && (code = api->queue_look(queue)) == ACCEL_NOT_READY; i++)
        nanosleep(&nap, NULL);
    return expect_int("queue_look behind a kernel that failed (ACL_STOP_ON_FAILURE)", code,
                      EXCEPTION);
}

static fsdp_status stops_on_failure(npu *n, const acl *a)
{
    const accel_api *api = a->api_of(n->dev);
    void *queue, *device_context, *context;
    int32_t index = 0;
    if (!npu_break(NULL))
        return FSDP_OK;    /* no kernel of a real NPU fails on demand */
    TRY(sync_waits(n, a)); /* `to` holds FILLS */
    TRY(acl_said(a->device(&index), "aclrtGetDevice"));
    TRY(acl_said(a->context(&device_context), "aclrtGetCurrentContext"));
    TRY(acl_said(a->context_new(&context, index), "aclrtCreateContext"));
    TRY(acl_said(api->queue_create((accel_device *)n->dev, 0, &queue), "queue_create"));
    fsdp_status status = queue_stops(n, a, queue);
    TRY(acl_said(api->queue_destroy(queue), "queue_destroy"));
    TRY(acl_said(a->enter(device_context), "aclrtSetCurrentContext"));
    TRY(acl_said(a->leave(context), "aclrtDestroyContext"));
    TRY(status);
    return expect_last_fill(a, "what a fill behind a kernel that failed has left alone");
}

static fsdp_status use_streams(npu *n, const acl *a)
{
    TRY(context_is_kept(n, a));
    TRY(order_is_fixed());
    TRY(streams_as_asked(n, a));
    TRY(host_goes_ahead(n, a));
    TRY(events_order(n, a));
    TRY(sync_waits(n, a));
    TRY(events_again(n, a));
    TRY(events_time(n, a));
    TRY(orders_only(n, a));
    TRY(refusals(n));
    TRY(codes_come_back(n, a));
    TRY(open_fails(n, a));
    return stops_on_failure(n, a);
}

static fsdp_status streams_and_events(npu *n)
{
    acl a = {0};
    TRY(acl_find(&a));
    const fsdp_status status = use_streams(n, &a);
    if (status != FSDP_OK && status != FSDP_ETODO)
        return status;
    const fsdp_error_info why = *fsdp_error_get();
    (void)stream_sync(n->compute);
    TRY(acl_said(a.free(a.from), "aclrtFree"));
    TRY(acl_said(a.free(a.to), "aclrtFree"));
    return status == FSDP_OK ? FSDP_OK : fsdp_error_set(&why);
}

/* npu_close resets it once for each time that own->entered says so; then nothing is current. */
static fsdp_status device_is_left(void)
{
    enum { NO_CONTEXT = 107002 };
    int (*device_now)(int32_t *);
    void (*function)(void);
    int32_t index;
    TRY(npu_function("aclrtGetDevice", &function));
    memcpy(&device_now, &function, sizeof function);
    return expect_int("aclrtGetDevice when every device is closed (own->entered: reset it then)",
                      device_now(&index), NO_CONTEXT);
}

/* The plug-in's first call of aclInit fails, unless an earlier task has made it. */
static fsdp_status start_fails(void)
{
    int (*n_devices)(void);
    const char *(*message)(void), *said;
    void (*function)(void);
    if (!npu_break(NULL))
        return FSDP_OK;
    TRY(npu_function("npu_n_devices", &function));
    memcpy(&n_devices, &function, sizeof function);
    TRY(npu_function("aclGetRecentErrMsg", &function));
    memcpy(&message, &function, sizeof function);
    (void)message();
    npu_break("aclInit");
    const int found = n_devices();
    npu_break(NULL);
    said = message();
    if (found > 0 || said == NULL)
        return FSDP_OK;
    return EXPECT(strstr(said, "aclInit fails") != NULL,
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

enum { LONG = 40960 }; /* one block of memory, whole: kept.c adds nothing to it */

static void numbers(float *x, size_t elems, float from)
{
    for (size_t i = 0; i < elems; i++)
        x[i] = from + (float)i;
}

/* The stream stands until work of the host, here the gate, is done. */
static fsdp_status task_holds_stream(npu *n)
{
    const struct timespec nap = {.tv_nsec =
                                     30 * 1000 * 1000}; /* one that goes on is there by then */
    event *e;
    TRY(npu_event(n, false, &e));
    TRY(gate_close(n->g, n->compute));
    TRY(event_record(e, n->compute));
    nanosleep(&nap, NULL);
    const bool went_on = event_done(e);
    TRY(gate_open(n->g, "work of the host is issued"));
    return EXPECT(
        !went_on, "ACL_CALLBACK_BLOCK",
        "task_launch: the stream went on while its work of the host ran, expected it to stand "
        "until that has returned");
}

/* Up, across and down while the stream stands still: the host is through before anything has moved,
 * and may write over what it gave. */
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
    TRY(device_zero(n->compute, (float *)a + 7, 3 * sizeof *host)); /* after that, in its turn */
    memset(want + 7, 0, 3 * sizeof *want);
    TRY(device_copy(n->compute, b, a, sizeof host));
    TRY(grade_fetch(n->compute, b, sizeof got, got));
    TRY(gate_open(n->g, "copies up, across and down are issued"));
    TRY(stream_sync(n->compute));
    return expect_f32("up, across and down: element", got, want, LONG);
}

/* The same between memory of the host that copies reach as it is. */
static fsdp_status pinned_goes_on(npu *n)
{
    static const size_t bytes = LONG * sizeof(float);
    static float want[LONG];
    void *from, *to, *a;
    TRY(npu_block(n, NULL, bytes, &a));
    TRY(npu_host_block(n, bytes, &from));
    TRY(npu_host_block(n, bytes, &to));
    TRY(stream_sync(n->compute)); /* the host writes into it */
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

/* Parts of an array: what stands beside them stays. */
static fsdp_status parts(npu *n)
{
    static const size_t begin = 3, elems = 101, all = 300;
    float host[300], want[300], got[300];
    void *a, *b;
    memset(want, 0xff, sizeof want);
    TRY(npu_block(n, NULL, sizeof host, &a));
    TRY(grade_read(n->compute, a, sizeof got, got));
    TRY(expect_f32("fresh memory, filled with NaN: element", got, want, all));
    numbers(host, all, 1);
    numbers(want, all, 1);
    TRY(npu_block(n, host, sizeof host, &a));
    TRY(npu_block(n, host, sizeof host, &b));
    TRY(device_zero(n->compute, (float *)a + begin, elems * sizeof *host));
    memset(want + begin, 0, elems * sizeof *host);
    TRY(grade_read(n->compute, a, sizeof got, got));
    TRY(expect_f32("zeros in a part: element", got, want, all));
    TRY(device_copy(n->compute, (float *)b + 150, a, 120 * sizeof *host));
    memcpy(host + 150, want, 120 * sizeof *host);
    TRY(grade_read(n->compute, b, sizeof got, got));
    return expect_f32("a copy into a part: element", got, host, all);
}

/* Bytes, of which no type of more than one has a whole number. */
static fsdp_status odd_bytes(npu *n)
{
    enum { ALL = 32, COPIED = 13, ZEROS = 7 };
    unsigned char host[ALL], got[ALL];
    void *a, *b;
    memset(host, 1, sizeof host);
    TRY(npu_block(n, host, ALL, &a));
    memset(host, 2, sizeof host);
    TRY(npu_block(n, host, ALL, &b));
    TRY(device_copy(n->compute, b, a, COPIED));
    TRY(device_zero(n->compute, b, ZEROS));
    TRY(grade_read(n->compute, b, ALL, got));
    for (int i = 0; i < ALL; i++) {
        char what[64];
        snprintf(what, sizeof what, "byte %d after a copy of %d bytes and %d zeros", i, COPIED,
                 ZEROS);
        TRY(expect_int(what, got[i], i < ZEROS ? 0 : i < COPIED ? 1 : 2));
    }
    return FSDP_OK;
}

typedef struct add_one {
    float *x;
    size_t elems;
} add_one;

static fsdp_status add_one_run(void *args, int n_threads)
{
    const add_one *a = args;
    (void)n_threads;
    for (size_t i = 0; i < a->elems; i++)
        a->x[i] += 1;
    return FSDP_OK;
}

/* Down, work of the host, and up again, all issued ahead. */
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

typedef struct meeting {
    atomic_int *come; /* two must */
} meeting;

static fsdp_status meet(void *args, int n_threads)
{
    atomic_int *come = ((meeting *)args)->come;
    const struct timespec nap = {.tv_nsec = 1000 * 1000};
    (void)n_threads;
    atomic_fetch_add(come, 1);
    for (int ms = 0; ms < 8000 && atomic_load(come) < 2; ms++)
        nanosleep(&nap, NULL);
    return EXPECT(atomic_load(come) >= 2, "each stream has a reporter: wait for no other stream's",
                  "work of the host on one stream waited 8 s for work on another stream, expected "
                  "both at once");
}

/* The functions of the table that copy and fill, when the call of ACL that they make fails. */
static fsdp_status copy_codes_come_back(npu *n)
{
    enum { CODE = 500000, BYTES = 256 };
    const accel_api *(*api_of)(const device *);
    void *(*queue_of)(stream *), *a, *b;
    void (*function)(void);
    TRY(npu_function("accel_api_of", &function));
    memcpy(&api_of, &function, sizeof function);
    TRY(npu_function("accel_queue_of", &function));
    memcpy(&queue_of, &function, sizeof function);
    TRY(npu_block(n, NULL, BYTES, &a));
    TRY(npu_block(n, NULL, BYTES, &b));
    const accel_api *api = api_of(n->dev);
    void *q = queue_of(n->compute);
    if (!npu_break("aclrtMemcpyAsync"))
        return FSDP_OK;
    TRY(expect_int("copy, when aclrtMemcpyAsync fails", api->copy(a, b, BYTES, ACCEL_WITHIN, q),
                   CODE));
    npu_break("aclrtMemsetAsync");
    TRY(expect_int("fill, when aclrtMemsetAsync fails", api->fill(a, 0, BYTES, q), CODE));
    npu_break(NULL);
    return FSDP_OK;
}

/* A stream may have no work for the host for any time: its reporter comes back and back. */
static fsdp_status reporter_stays(npu *n)
{
    enum { IDLE = 3000, WAIT_MS = 8000 }; /* a minute of waits, which the stand-in leaves out */
    const struct timespec nap = {.tv_nsec = 1000 * 1000};
    long (*idle)(bool), seen = 0;
    void (*function)(void);
    if (!npu_break(NULL))
        return FSDP_OK;
    TRY(stream_sync(n->compute));
    TRY(npu_function("sim_report_idle", &function));
    memcpy(&idle, &function, sizeof function);
    const long before = idle(true);
    for (int ms = 0; ms < WAIT_MS && seen < IDLE; ms++) {
        nanosleep(&nap, NULL);
        seen = idle(true) - before;
    }
    (void)idle(false);
    return EXPECT(seen >= IDLE, "a time-out of aclrtProcessReport is no end: stop at r->stopping",
                  "reporter_main, while its stream has no work: left after %ld time-outs of "
                  "aclrtProcessReport, expected it to come back until it is stopped",
                  seen);
}

/* On a stream of its own, which has failed then. */
static fsdp_status callback_status(npu *n)
{
    float one = 1;
    const add_one work = {&one, 1};
    stream *s;
    TRY(npu_stream(n, "fails", &s));
    TRY(grade_launch_idle(s, add_one_run, &work, sizeof work, "add one"));
    TRY(stream_sync(s));
    if (!npu_break("aclrtLaunchCallback"))
        return FSDP_OK;
    const fsdp_status status = grade_launch_idle(s, add_one_run, &work, sizeof work, "add one");
    npu_break(NULL);
    return npu_said("aclrtLaunchCallback", status, FSDP_EDEVICE);
}

/* Work of the host after the stream had none for longer than one aclrtProcessReport waits. */
static fsdp_status host_work_later(npu *n)
{
    const struct timespec nap = {.tv_nsec = 60 * 1000 * 1000};
    TRY(host_work(n));
    nanosleep(&nap, NULL);
    return host_work(n);
}

/* As collectives over shared memory do. */
static fsdp_status host_works_meet(npu *n)
{
    static atomic_int come;
    const meeting m = {&come};
    stream *other;
    atomic_store(&come, 0);
    TRY(npu_stream(n, "other", &other));
    TRY(grade_launch_idle(n->compute, meet, &m, sizeof m, "meet"));
    TRY(grade_launch_idle(other, meet, &m, sizeof m, "meet"));
    TRY(stream_sync(n->compute));
    return stream_sync(other);
}

static fsdp_status copies(npu *n)
{
    TRY(task_holds_stream(n));
    TRY(host_goes_on(n));
    TRY(pinned_goes_on(n));
    TRY(parts(n));
    TRY(odd_bytes(n));
    TRY(copy_codes_come_back(n));
    TRY(host_work(n));
    TRY(reporter_stays(n));
    TRY(host_work_later(n));
    TRY(callback_status(n));
    return host_works_meet(n);
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
