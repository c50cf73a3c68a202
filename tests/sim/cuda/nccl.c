/* nccl.c -- NCCL between processes of one host: its calls and rules. What moves bytes between the
 * processes, and finds what a GPU would hang on, is tests/sim/core/coll.h.
 *
 * A process runs its calls one by one, in the order in which they were issued, as NCCL does with
 * NCCL_LAUNCH_ORDER_IMPLICIT=1. A call on a communicator that does not block is only noted: its
 * second look (ncclCommGetAsyncError) puts it on the stream. So who does not look has no call, and
 * who goes on too early is told. */
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "tests/sim/core/coll.h"
#include "tests/sim/cuda/sim.h"

typedef enum sim_doing { SIM_NOTHING, SIM_INIT, SIM_SPLIT, SIM_ISSUED, SIM_ENDING } sim_doing;

/* What one call, or one group of calls, does on a communicator. */
typedef struct sim_call {
    struct sim_call *next; /* of the group */
    ncclComm_t comm;
    cudaStream_t q;
    coll_plan *plan;
    bool is_collective, is_empty;
} sim_call;

struct ncclComm {
    coll_comm *ranks;
    bool blocking;
    ncclResult_t error;
    sim_doing doing;
    bool polled; /* since it began */
    coll_plan *issued;
    cudaStream_t issued_on;
    ncclComm_t *child;
    int color;
};

static __thread char last_error[256];
static __thread int group_depth;
static __thread sim_call *grouped; /* since ncclGroupStart, one for each communicator */

static ncclResult_t refuse(ncclResult_t result, const char *what)
{
    snprintf(last_error, sizeof last_error, "%s", what);
    fprintf(stderr, "NCCL stand-in: %s\n", what);
    return result;
}

ncclResult_t ncclGetVersion(int *version)
{
    *version = (int)sim_number("FSDP_SIM_NCCL", NCCL_VERSION_CODE);
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result)
{
    static const char *const words[] = {"no error",
                                        "unhandled cuda error",
                                        "unhandled system error",
                                        "internal error",
                                        "invalid argument",
                                        "invalid usage",
                                        "remote process exited or there was a network error",
                                        "NCCL operation in progress"};
    return (unsigned)result < sizeof words / sizeof *words ? words[result] : "unknown result code";
}

const char *ncclGetLastError(ncclComm_t comm)
{
    (void)comm;
    return last_error;
}

/* ---- communicators --------------------------------------------------------------------------- */

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    coll_id mine;
    if (!coll_id_make(&mine))
        return refuse(ncclSystemError, "no shared memory");
    memset(id, 0, sizeof *id);
    memcpy(id->internal, &mine, sizeof mine);
    return ncclSuccess;
}

static void begin(ncclComm_t c, sim_doing what)
{
    c->doing = what;
    c->polled = false;
}

/* What this communicator may be asked for now. */
static ncclResult_t ready(ncclComm_t c, const char *what)
{
    char text[200];
    if (c == NULL)
        return refuse(ncclInvalidArgument, "no communicator");
    if (c->doing == SIM_NOTHING)
        return c->error;
    snprintf(text, sizeof text,
             "%s on a communicator before ncclCommGetAsyncError has said that its last call is "
             "through",
             what);
    return refuse(ncclInvalidArgument, text);
}

static ncclResult_t until_done(ncclComm_t c)
{
    ncclResult_t state = ncclInProgress;
    if (!c->blocking)
        return ncclInProgress;
    while (state == ncclInProgress) {
        ncclResult_t result = ncclCommGetAsyncError(c, &state);
        if (result != ncclSuccess)
            return result;
        usleep(100);
    }
    return state;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank,
                                    ncclConfig_t *config)
{
    coll_id from;
    int gpu;
    memcpy(&from, id.internal, sizeof from);
    ncclComm_t c = calloc(1, sizeof *c);
    if (c == NULL || cudaGetDevice(&gpu) != cudaSuccess)
        return ncclSystemError;
    const char *wrong = coll_join(&from, nranks, rank, gpu, &c->ranks);
    if (wrong != NULL) {
        free(c);
        return refuse(ncclInvalidArgument, wrong);
    }
    c->blocking = config->blocking != 0;
    begin(c, SIM_INIT);
    *comm = c;
    return until_done(c);
}

static void comm_free(ncclComm_t c)
{
    coll_release(c->ranks);
    free(c);
}

/* ---- what is under way ----------------------------------------------------------------------- */

static ncclResult_t init_look(ncclComm_t c)
{
    const coll_state state = coll_look(c->ranks);
    if (state == COLL_DUPLICATE)
        return refuse(ncclInvalidUsage, "Duplicate GPU detected");
    return state == COLL_JOINING ? ncclInProgress : ncclSuccess;
}

static ncclResult_t split_look(ncclComm_t c)
{
    coll_comm *ranks = *c->child != NULL ? (*c->child)->ranks : NULL;
    const bool is_through = coll_split_look(c->ranks, &ranks);
    if (ranks != NULL && *c->child == NULL) {
        if ((*c->child = calloc(1, sizeof **c->child)) == NULL)
            return ncclSystemError;
        **c->child = (struct ncclComm){.ranks = ranks, .blocking = c->blocking};
    }
    if (is_through && ranks == NULL && c->color >= 0)
        return ncclSystemError;
    return is_through ? ncclSuccess : ncclInProgress;
}

static fsdp_status run_plan(void *args, int n_threads)
{
    fsdp_status status = coll_plan_run(args, n_threads);
    coll_plan_drop(*(coll_plan **)args);
    return status;
}

static ncclResult_t issued_look(ncclComm_t c)
{
    coll_plan *p = c->issued;
    c->issued = NULL;
    fsdp_status status = stream_launch_work(
        sim_stream(c->issued_on),
        &(launch_config){
            .fn = run_plan, .args = &p, .args_bytes = sizeof p, .waits_for = WAITS_FOR_RANKS});
    return status == FSDP_OK ? ncclSuccess : ncclUnhandledCudaError;
}

static ncclResult_t end_look(ncclComm_t c)
{
    if (coll_plans_left(c->ranks))
        return ncclInProgress;
    coll_unread_check(c->ranks);
    return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t c, ncclResult_t *state)
{
    static ncclResult_t (*const look[])(ncclComm_t) = {[SIM_INIT] = init_look,
                                                       [SIM_SPLIT] = split_look,
                                                       [SIM_ISSUED] = issued_look,
                                                       [SIM_ENDING] = end_look};
    if (c == NULL)
        return refuse(ncclInvalidArgument, "ncclCommGetAsyncError: no communicator");
    *state = c->error;
    if (c->doing == SIM_NOTHING || c->error != ncclSuccess)
        return ncclSuccess;
    *state = ncclInProgress;
    if (c->polled)
        *state = look[c->doing](c);
    c->polled = true;
    if (*state == ncclInProgress)
        return ncclSuccess;
    c->error = *state;
    c->doing = SIM_NOTHING;
    return ncclSuccess;
}

ncclResult_t ncclCommSplit(ncclComm_t c, int color, int key, ncclComm_t *newcomm,
                           ncclConfig_t *config)
{
    ncclResult_t result = ready(c, "ncclCommSplit");
    (void)config;
    *newcomm = NULL;
    if (result != ncclSuccess)
        return result;
    c->child = newcomm;
    c->color = color;
    coll_split(c->ranks, color, key);
    begin(c, SIM_SPLIT);
    return until_done(c);
}

ncclResult_t ncclCommFinalize(ncclComm_t c)
{
    ncclResult_t result = ready(c, "ncclCommFinalize");
    if (result != ncclSuccess)
        return result;
    begin(c, SIM_ENDING);
    return until_done(c);
}

ncclResult_t ncclCommDestroy(ncclComm_t c)
{
    ncclResult_t result = ready(c, "ncclCommDestroy");
    if (result == ncclSuccess)
        comm_free(c);
    return result;
}

ncclResult_t ncclCommAbort(ncclComm_t c)
{
    if (c == NULL)
        return refuse(ncclInvalidArgument, "ncclCommAbort: no communicator");
    coll_abort(c->ranks);
    if (c->issued != NULL)
        coll_plan_drop(c->issued);
    comm_free(c);
    return ncclSuccess;
}

/* ---- collectives ----------------------------------------------------------------------------- */

static size_t type_bytes(ncclDataType_t type)
{
    return type == ncclUint8 ? 1 : type == ncclBfloat16 ? 2 : type == ncclFloat32 ? 4 : 0;
}

/* NCCL orders the calls of one communicator; those of several where it is told to. */
static bool may_overlap(bool one_comm)
{
    const char *ordered = getenv("NCCL_LAUNCH_ORDER_IMPLICIT");
    int version;
    (void)ncclGetVersion(&version);
    return one_comm ||
           (version >= NCCL_VERSION(2, 26, 0) && ordered != NULL && strcmp(ordered, "1") == 0);
}

const coll_library coll_stands_for = {"NCCL", may_overlap};

/* What a call on c joins: a call of the group, or a new one. */
static ncclResult_t call_get(ncclComm_t c, const char *what, cudaStream_t q, sim_call **out)
{
    for (sim_call *k = grouped; k != NULL; k = k->next)
        if (k->comm == c) {
            *out = k;
            return k->q == q && !k->is_collective
                       ? ncclSuccess
                       : refuse(ncclInvalidUsage, "a group of several streams or collectives");
        }
    ncclResult_t result = ready(c, what);
    if (result != ncclSuccess)
        return result;
    sim_call *k = calloc(1, sizeof *k);
    coll_plan *p = coll_plan_new(c->ranks);
    if (k == NULL || p == NULL)
        return ncclSystemError;
    *k = (sim_call){.next = grouped, .comm = c, .q = q, .plan = p, .is_empty = true};
    *out = grouped = k;
    return ncclSuccess;
}

/* A call that was refused has nothing to move. */
static ncclResult_t call_issue(sim_call *k)
{
    ncclComm_t c = k->comm;
    const bool is_empty = k->is_empty;
    if (is_empty) {
        coll_plan_drop(k->plan);
    } else {
        c->issued = k->plan;
        c->issued_on = k->q;
        coll_plan_queue(k->plan);
        begin(c, SIM_ISSUED);
    }
    free(k);
    return is_empty ? ncclSuccess : until_done(c);
}

ncclResult_t ncclGroupStart(void)
{
    group_depth++;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void)
{
    ncclResult_t result = ncclSuccess;
    if (group_depth == 0)
        return refuse(ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart");
    if (--group_depth > 0)
        return ncclSuccess;
    while (grouped != NULL) {
        sim_call *k = grouped;
        grouped = k->next;
        ncclResult_t issued = call_issue(k);
        result = result == ncclSuccess ? issued : result;
    }
    return result;
}

/* Put a call that `add` makes into the group, or into one of its own. */
static ncclResult_t issue(ncclComm_t c, coll_call *call, cudaStream_t q,
                          bool (*add)(coll_plan *, const coll_call *))
{
    sim_call *k;
    call->elem_bytes = type_bytes((ncclDataType_t)call->type);
    if (c == NULL || call->elem_bytes == 0 || call->root < 0 || call->root >= coll_ranks(c->ranks))
        return refuse(ncclInvalidArgument, "a collective's communicator, type or root");
    ncclResult_t result = ready(c, call->name);
    if (result != ncclSuccess || call->count == 0)
        return result;
    ncclGroupStart();
    result = call_get(c, call->name, q, &k);
    if (result == ncclSuccess && !k->is_empty)
        result = refuse(ncclInvalidUsage, "a collective in a group with others");
    if (result == ncclSuccess) {
        k->is_collective = true;
        k->is_empty = !add(k->plan, call);
        result = k->is_empty ? ncclSystemError : ncclSuccess;
    }
    ncclResult_t ended = ncclGroupEnd();
    return result == ncclSuccess ? ended : result;
}

static ncclResult_t message(ncclComm_t c, bool sends, const coll_call *want, int peer,
                            cudaStream_t q)
{
    sim_call *k;
    coll_call call = *want;
    call.elem_bytes = type_bytes((ncclDataType_t)call.type);
    if (c != NULL && (peer < 0 || peer >= coll_ranks(c->ranks) || peer == coll_rank(c->ranks)))
        return refuse(ncclInvalidArgument, "ncclSend, ncclRecv: peer");
    if (call.elem_bytes == 0 || (call.count > 0 && (sends ? call.from : call.to) == NULL))
        return refuse(ncclInvalidArgument, "ncclSend, ncclRecv: type or buffer");
    ncclGroupStart();
    ncclResult_t result = call_get(c, "ncclSend, ncclRecv", q, &k);
    if (result == ncclSuccess && !coll_message(k->plan, sends, peer, &call))
        result = refuse(ncclInvalidUsage, "ncclSend, ncclRecv: more than the stand-in has room");
    if (result == ncclSuccess)
        k->is_empty = false;
    ncclResult_t ended = ncclGroupEnd();
    return result == ncclSuccess ? ended : result;
}

ncclResult_t ncclSend(const void *sendbuff, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t q)
{
    return message(
        comm, true,
        &(coll_call){.name = "send", .type = (int)type, .count = count, .from = sendbuff}, peer, q);
}

ncclResult_t ncclRecv(void *recvbuff, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t q)
{
    return message(comm, false,
                   &(coll_call){.name = "send", .type = (int)type, .count = count, .to = recvbuff},
                   peer, q);
}

ncclResult_t ncclAllGather(const void *sendbuff, void *recvbuff, size_t sendcount,
                           ncclDataType_t type, ncclComm_t comm, cudaStream_t q)
{
    coll_call call = {.name = "ncclAllGather",
                      .type = (int)type,
                      .count = sendcount,
                      .from = sendbuff,
                      .to = recvbuff};
    return issue(comm, &call, q, coll_all_gather);
}

ncclResult_t ncclBroadcast(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t type,
                           int root, ncclComm_t comm, cudaStream_t q)
{
    coll_call call = {.name = "ncclBroadcast",
                      .type = (int)type,
                      .root = root,
                      .count = count,
                      .from = sendbuff,
                      .to = recvbuff};
    return issue(comm, &call, q, coll_broadcast);
}

/* A sum begins with the rank behind this one and ends with this one, as in a ring. */
ncclResult_t ncclReduceScatter(const void *sendbuff, void *recvbuff, size_t recvcount,
                               ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm, cudaStream_t q)
{
    coll_call call = {.name = "ncclReduceScatter",
                      .type = (int)type,
                      .op = (coll_op)op,
                      .count = recvcount,
                      .from = sendbuff,
                      .to = recvbuff,
                      .elem = type == ncclBfloat16 ? COLL_BF16 : COLL_F32,
                      .first = comm != NULL ? coll_rank(comm->ranks) + 1 : 0};
    if (type == ncclUint8)
        return refuse(ncclInvalidArgument, "ncclReduceScatter: the stand-in adds floats");
    return issue(comm, &call, q, coll_reduce_scatter);
}
