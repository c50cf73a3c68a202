/* hccl.cc -- HCCL between processes of one host: its calls and rules. tests/sim/core/coll.h moves
 * bytes between the processes, and finds calls on which an NPU would hang.
 *
 *   HcclGetRootInfo on one rank -> HcclCommInitRootInfo on all
 *   -> calls on streams -> HcclCommDestroy
 *
 * HCCL checks little. Misuse that gives a fault, a hang or wrong values on an NPU ends the process
 * here. */
#include <hccl/hccl.h>
#include <atomic>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tests/sim/ascend/sim.h"
#include "tests/sim/core/coll.h"
#include "tests/sim/core/streams.h"

enum { COMMS = 256, MAGIC = 0x4cc1 };

/* Defaults of HCCL_CONNECT_TIMEOUT and HCCL_EXEC_TIMEOUT. */
static const double CONNECT_S = 120, EXEC_S = 1836;
/* After a rank has ended, the others notice this much later. */
static const double HEARTBEAT_S = 2;

/* The contents of HcclRootInfo. */
struct root_info {
    int magic;
    coll_id id;
};

struct comm {
    coll_comm *ranks;
    aclrtContext context;
    int n_sums;
};

/* Communicators that are not destroyed. Only the holder of the token changes the table. */
static std::atomic<comm *> comms[COMMS];
static std::atomic<const char *> under_way;

/* ---- at the start of every call -------------------------------------------------------------- */

/* Held during a call: a device's calls must be made one at a time. */
struct token {
    explicit token(const char *call)
    {
        const char *other = nullptr;
        if (!under_way.compare_exchange_strong(other, call))
            sim_die("%s while another thread is in %s: HCCL's calls are made one by one", call,
                    other);
    }
    ~token()
    {
        under_way = nullptr;
    }
};

/* Return the result of a call that does not succeed. */
#define TRY_HCCL(call)                                                                             \
    do {                                                                                           \
        const HcclResult result_ = (call);                                                         \
        if (result_ != HCCL_SUCCESS)                                                               \
            return result_;                                                                        \
    } while (0)

static HcclResult refuse(HcclResult result, const char *call, const char *what)
{
    fprintf(stderr, "HCCL stand-in: %s: %s\n", call, what);
    return result;
}

static bool may_overlap(bool one_comm)
{
    return !one_comm;
}
extern "C" const coll_library coll_stands_for = {"HCCL", may_overlap};

/* HCCL's seconds in real seconds. seconds_of -- from an environment variable. */
static double seconds(double n)
{
    return n * (double)sim_number("FSDP_SIM_SECOND_MS", 1000) / 1000;
}

static double seconds_of(const char *name, double without)
{
    const char *text = getenv(name);
    return seconds(text != nullptr ? atof(text) : without);
}

static HcclResult result_of(coll_comm *ranks)
{
    const coll_state state = coll_look(ranks);
    return state == COLL_PEER_LOST || state == COLL_TIMED_OUT ? HCCL_E_REMOTE : HCCL_SUCCESS;
}

static HcclResult comm_get(const char *call, HcclComm handle, comm **out)
{
    if (sim_is_broken(call))
        return HCCL_E_INTERNAL;
    if (handle == nullptr)
        return refuse(HCCL_E_PTR, call, "no communicator");
    for (comm *c : comms)
        if (c == handle) {
            *out = c;
            return HCCL_SUCCESS;
        }
    sim_die("%s of a communicator that is destroyed, or is none", call);
}

/* Find the communicator of a call on stream q. */
static HcclResult comm_on(const char *call, HcclComm handle, aclrtStream q, comm **out)
{
    stream *s;
    aclrtContext context;
    TRY_HCCL(comm_get(call, handle, out));
    if (q == nullptr)
        return refuse(HCCL_E_PTR, call, "no stream");
    const aclError error = sim_acl_stream(q, call, &s);
    if (error == ACL_ERROR_RT_STREAM_CONTEXT)
        return refuse(HCCL_E_PARA, call, "the stream is another context's");
    if (error != ACL_SUCCESS)
        return refuse(HCCL_E_RUNTIME, call, "the stream cannot take a call");
    if (aclrtGetCurrentContext(&context) != ACL_SUCCESS || context != (*out)->context)
        return refuse(HCCL_E_PARA, call, "the communicator is another context's");
    return result_of((*out)->ranks);
}

/* ---- types ----------------------------------------------------------------------------------- */

/* Indexed by HcclDataType; 0 if there is no such type. */
static size_t type_bytes(HcclDataType type)
{
    static const size_t BYTES[] = {1, 2, 4, 2, 4, 8, 8, 1, 2, 4, 8, 2};
    return (unsigned)type < sizeof BYTES / sizeof *BYTES ? BYTES[type] : 0;
}

/* [HCCL HcclAllReduce, HcclReduceScatter: Atlas A2] HCCL adds other types too; the stand-in does
 * not. */
static bool is_summed(HcclDataType type, HcclReduceOp op, coll_elem *elem)
{
    *elem = type == HCCL_DATA_TYPE_FP32    ? COLL_F32
            : type == HCCL_DATA_TYPE_INT64 ? COLL_I64
                                           : COLL_BF16;
    return op == HCCL_REDUCE_SUM && (type == HCCL_DATA_TYPE_FP32 || type == HCCL_DATA_TYPE_INT64 ||
                                     type == HCCL_DATA_TYPE_BFP16);
}

/* ---- communicators --------------------------------------------------------------------------- */

HcclResult HcclGetRootInfo(HcclRootInfo *rootInfo)
{
    const token one("HcclGetRootInfo");
    int32_t npu;
    root_info mine = {MAGIC, {0, 0}};
    if (sim_is_broken("HcclGetRootInfo"))
        return HCCL_E_INTERNAL;
    if (rootInfo == nullptr)
        return refuse(HCCL_E_PTR, "HcclGetRootInfo", "no room for the root info");
    if (aclrtGetDevice(&npu) != ACL_SUCCESS)
        return refuse(HCCL_E_RUNTIME, "HcclGetRootInfo", "this thread has no device");
    if (!coll_id_make(&mine.id))
        return refuse(HCCL_E_SYSCALL, "HcclGetRootInfo", "no shared memory");
    memset(rootInfo, 0, sizeof *rootInfo);
    memcpy(rootInfo->internal, &mine, sizeof mine);
    return HCCL_SUCCESS;
}

/* Wait until all ranks have joined. */
static HcclResult ranks_await(coll_comm *ranks)
{
    static const char call[] = "HcclCommInitRootInfo";
    switch (coll_await(ranks, seconds_of("HCCL_CONNECT_TIMEOUT", CONNECT_S))) {
    case COLL_JOINING:
        return refuse(HCCL_E_TIMEOUT, call, "a rank has not come within HCCL_CONNECT_TIMEOUT");
    case COLL_DUPLICATE:
        return refuse(HCCL_E_PARA, call, "two ranks have one device");
    default:
        return HCCL_SUCCESS;
    }
}

/* A program that ends well must have destroyed its communicators, except those that have failed. */
static void leaks_check(int status, void *unused)
{
    const comm *left = nullptr;
    (void)unused;
    for (const comm *c : comms) {
        if (c != nullptr && (coll_plans_left(c->ranks) || result_of(c->ranks) != HCCL_SUCCESS))
            return;
        left = c != nullptr ? c : left;
    }
    if (left != nullptr && status == 0)
        sim_die("the program ends, and a communicator of %d ranks was never destroyed",
                coll_ranks(left->ranks));
}

HcclResult HcclCommInitRootInfo(uint32_t nRanks, const HcclRootInfo *rootInfo, uint32_t rank,
                                HcclComm *out)
{
    static const char call[] = "HcclCommInitRootInfo";
    const token one(call);
    root_info from;
    int32_t npu;
    int place = 0;
    comm c = {};
    if (sim_is_broken(call))
        return HCCL_E_INTERNAL;
    if (rootInfo == nullptr || out == nullptr)
        return refuse(HCCL_E_PTR, call, "no root info, or no room for the communicator");
    memcpy(&from, rootInfo->internal, sizeof from);
    if (from.magic != MAGIC || nRanks > COLL_RANKS || rank >= nRanks)
        return refuse(HCCL_E_PARA, call, "the ranks, the rank, or a root info that nobody made");
    if (aclrtGetDevice(&npu) != ACL_SUCCESS || aclrtGetCurrentContext(&c.context) != ACL_SUCCESS)
        return refuse(HCCL_E_RUNTIME, call, "this thread has no device");
    while (place < COMMS && comms[place] != nullptr)
        place++;
    if (place == COMMS)
        return refuse(HCCL_E_MEMORY, call, "too many communicators");
    const char *wrong = coll_join(&from.id, (int)nRanks, (int)rank, npu, &c.ranks);
    if (wrong != nullptr)
        return refuse(HCCL_E_PARA, call, wrong);
    const HcclResult result = ranks_await(c.ranks);
    if (result != HCCL_SUCCESS) {
        coll_release(c.ranks);
        return result;
    }
    coll_watch(c.ranks, seconds_of("HCCL_EXEC_TIMEOUT", EXEC_S), seconds(HEARTBEAT_S));
    static const int watched = on_exit(leaks_check, nullptr);
    (void)watched;
    comms[place] = new comm(c);
    *out = comms[place];
    return HCCL_SUCCESS;
}

HcclResult HcclCommDestroy(HcclComm handle)
{
    const token one("HcclCommDestroy");
    comm *c;
    TRY_HCCL(comm_get("HcclCommDestroy", handle, &c));
    if (coll_plans_left(c->ranks) && result_of(c->ranks) == HCCL_SUCCESS)
        sim_die("HcclCommDestroy of a communicator with work in flight");
    if (result_of(c->ranks) == HCCL_SUCCESS)
        coll_unread_check(c->ranks);
    for (std::atomic<comm *> &place : comms)
        if (place == c)
            place = nullptr;
    coll_release(c->ranks);
    delete c;
    return HCCL_SUCCESS;
}

/* HCCL_E_REMOTE is CANN's only asynchronous error. [HCCL HcclGetCommAsyncError] */
HcclResult HcclGetCommAsyncError(HcclComm handle, HcclResult *asyncError)
{
    comm *c;
    if (asyncError == nullptr)
        return refuse(HCCL_E_PTR, "HcclGetCommAsyncError", "no room for the error");
    TRY_HCCL(comm_get("HcclGetCommAsyncError", handle, &c));
    *asyncError = result_of(c->ranks);
    return HCCL_SUCCESS;
}

const char *HcclGetErrorString(HcclResult code)
{
    static const struct {
        HcclResult code;
        const char *words;
    } KNOWN[] = {{HCCL_SUCCESS, "no error"},
                 {HCCL_E_PARA, "a parameter is wrong"},
                 {HCCL_E_PTR, "a pointer is null"},
                 {HCCL_E_MEMORY, "out of memory"},
                 {HCCL_E_INTERNAL, "internal error"},
                 {HCCL_E_NOT_SUPPORT, "not supported"},
                 {HCCL_E_SYSCALL, "a system call failed"},
                 {HCCL_E_TIMEOUT, "timed out"},
                 {HCCL_E_RUNTIME, "a call of the runtime failed"},
                 {HCCL_E_NETWORK, "a network call failed"},
                 {HCCL_E_REMOTE, "a remote rank failed"}};
    for (const auto &known : KNOWN)
        if (known.code == code)
            return known.words;
    return "unknown error code";
}

/* ---- calls on a stream ----------------------------------------------------------------------- */

static coll_call call_of(const char *name, HcclDataType type, uint64_t count, const void *from,
                         const void *to)
{
    coll_call call = {};
    call.name = name;
    call.type = type;
    call.elem_bytes = type_bytes(type);
    call.count = count;
    call.from = from;
    call.to = (void *)(uintptr_t)to;
    return call;
}

/* Check that the buffer lies in one block. On an NPU a wrong buffer would fault. */
static void room_check(const char *call, const char *buffer, const void *ptr, size_t bytes)
{
    if (bytes > 0 && !sim_acl_is_device(ptr, bytes))
        sim_die("%s: %s %p is not %zu bytes of one block of device memory", call, buffer, ptr,
                bytes);
}

static fsdp_status run_drop(void *args, int n_threads)
{
    (void)n_threads;
    coll_plan_drop(*(coll_plan **)args);
    return FSDP_OK;
}

/* Queue and launch p, if is_made. An error of the NPU may skip the run task, but never the drop
 * task. */
static HcclResult launch(coll_plan *p, bool is_made, const char *name, aclrtStream q)
{
    stream *s;
    launch_config run = {}, drop = {};
    if (!is_made || sim_acl_stream(q, name, &s) != ACL_SUCCESS) {
        if (p != nullptr)
            coll_plan_drop(p);
        return is_made ? HCCL_E_RUNTIME : refuse(HCCL_E_MEMORY, name, "no memory");
    }
    coll_plan_queue(p);
    run.fn = coll_plan_run;
    run.waits_for = WAITS_FOR_RANKS;
    drop.fn = run_drop;
    run.args = drop.args = &p;
    run.args_bytes = drop.args_bytes = sizeof p;
    const aclError error = sim_acl_launch_work(q, name, &run);
    if (stream_launch_work(s, &drop) != FSDP_OK || error != ACL_SUCCESS)
        return HCCL_E_RUNTIME;
    return HCCL_SUCCESS;
}

typedef bool (*add_fn)(coll_plan *, const coll_call *);

/* Issue a collective. The buffers hold send_parts and recv_parts times call->count elements. */
static HcclResult collective(comm *c, const coll_call *call, int send_parts, int recv_parts,
                             add_fn add, aclrtStream q)
{
    const size_t bytes = call->count * call->elem_bytes;
    if (call->from == nullptr || call->to == nullptr)
        return refuse(HCCL_E_PTR, call->name, "no buffer");
    if (call->elem_bytes == 0)
        return refuse(HCCL_E_NOT_SUPPORT, call->name, "the data type");
    if (call->count == 0)
        return HCCL_SUCCESS;
    room_check(call->name, "sendBuf", call->from, bytes * (size_t)send_parts);
    room_check(call->name, "recvBuf", call->to, bytes * (size_t)recv_parts);
    coll_plan *p = coll_plan_new(c->ranks);
    return launch(p, p != nullptr && add(p, call), call->name, q);
}

/* Without HCCL_DETERMINISTIC every sum begins with another rank. */
static HcclResult reduce(comm *c, coll_call *call, HcclReduceOp op, int send_parts, add_fn add,
                         aclrtStream q)
{
    const char *fixed = getenv("HCCL_DETERMINISTIC");
    if (!is_summed((HcclDataType)call->type, op, &call->elem))
        return refuse(HCCL_E_NOT_SUPPORT, call->name, "the data type, or its operation");
    if (fixed == nullptr || (strcmp(fixed, "true") != 0 && strcmp(fixed, "strict") != 0))
        call->first = ++c->n_sums % coll_ranks(c->ranks);
    return collective(c, call, send_parts, 1, add, q);
}

HcclResult HcclAllReduce(void *sendBuf, void *recvBuf, uint64_t count, HcclDataType dataType,
                         HcclReduceOp op, HcclComm handle, aclrtStream q)
{
    const token one("HcclAllReduce");
    coll_call call = call_of("HcclAllReduce", dataType, count, sendBuf, recvBuf);
    comm *c;
    TRY_HCCL(comm_on(call.name, handle, q, &c));
    return reduce(c, &call, op, 1, coll_all_reduce, q);
}

HcclResult HcclReduceScatter(void *sendBuf, void *recvBuf, uint64_t recvCount,
                             HcclDataType dataType, HcclReduceOp op, HcclComm handle, aclrtStream q)
{
    const token one("HcclReduceScatter");
    coll_call call = call_of("HcclReduceScatter", dataType, recvCount, sendBuf, recvBuf);
    comm *c;
    TRY_HCCL(comm_on(call.name, handle, q, &c));
    return reduce(c, &call, op, coll_ranks(c->ranks), coll_reduce_scatter, q);
}

HcclResult HcclAllGather(void *sendBuf, void *recvBuf, uint64_t sendCount, HcclDataType dataType,
                         HcclComm handle, aclrtStream q)
{
    const token one("HcclAllGather");
    const coll_call call = call_of("HcclAllGather", dataType, sendCount, sendBuf, recvBuf);
    comm *c;
    TRY_HCCL(comm_on(call.name, handle, q, &c));
    return collective(c, &call, 1, coll_ranks(c->ranks), coll_all_gather, q);
}

/* [HCCL HcclBatchSendRecv] allows only one send to each rank, and one receive from each rank. */
static HcclResult item_check(const comm *c, const HcclSendRecvItem *t, bool is_there[2][COLL_RANKS])
{
    static const char call[] = "HcclBatchSendRecv";
    if (t->buf == nullptr)
        return refuse(HCCL_E_PTR, call, "no buffer");
    if (type_bytes(t->dataType) == 0)
        return refuse(HCCL_E_NOT_SUPPORT, call, "the data type");
    if ((t->sendRecvType != HCCL_SEND && t->sendRecvType != HCCL_RECV) ||
        t->remoteRank >= (uint32_t)coll_ranks(c->ranks) ||
        t->remoteRank == (uint32_t)coll_rank(c->ranks) || is_there[t->sendRecvType][t->remoteRank])
        return refuse(HCCL_E_PARA, call, "the other rank is none, this one, or named twice");
    is_there[t->sendRecvType][t->remoteRank] = true;
    room_check(call, "the buffer", t->buf, t->count * type_bytes(t->dataType));
    return HCCL_SUCCESS;
}

HcclResult HcclBatchSendRecv(HcclSendRecvItem *items, uint32_t n, HcclComm handle, aclrtStream q)
{
    static const char call[] = "HcclBatchSendRecv";
    const token one(call);
    bool is_there[2][COLL_RANKS] = {};
    comm *c;
    TRY_HCCL(comm_on(call, handle, q, &c));
    if (items == nullptr)
        return refuse(HCCL_E_PTR, call, "no tasks");
    for (uint32_t i = 0; i < n; i++)
        TRY_HCCL(item_check(c, &items[i], is_there));
    coll_plan *p = coll_plan_new(c->ranks);
    for (uint32_t i = 0; i < n && p != nullptr; i++) {
        const HcclSendRecvItem *t = &items[i];
        const coll_call message = call_of("message", t->dataType, t->count, t->buf, t->buf);
        if (t->count > 0)
            (void)coll_message(p, t->sendRecvType == HCCL_SEND, (int)t->remoteRank, &message);
    }
    return launch(p, p != nullptr, call, q);
}
