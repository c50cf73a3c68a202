/* nccl.c -- see nccl_sim.h: communicators, and the calls of the library.
 *
 * A call on a communicator that does not block is only noted: its second look
 * (ncclCommGetAsyncError) puts it on the stream. So who does not look has no call, and who goes on
 * too early is told. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "tests/sim/cuda/nccl_sim.h"

/* What ncclUniqueId holds. */
typedef struct sim_id {
    pid_t pid;
    int fd;
} sim_id;

static __thread char last_error[256];
static __thread int group_depth;
static __thread sim_plan *grouped; /* since ncclGroupStart, one for each communicator */

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

static sim_area *area_map(int fd)
{
    void *at = mmap(NULL, sizeof(sim_area), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return at != MAP_FAILED ? at : NULL;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    sim_id mine = {getpid(), memfd_create("NCCL stand-in", MFD_CLOEXEC)};
    if (mine.fd < 0 || ftruncate(mine.fd, sizeof(sim_area)) != 0)
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
    if (c->doing == SIM_NOTHING && !atomic_load(&c->aborted))
        return c->error;
    snprintf(text, sizeof text, "%s on a communicator %s", what,
             atomic_load(&c->aborted)
                 ? "that was aborted"
                 : "before ncclCommGetAsyncError has said that its last call is through");
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
    sim_id from;
    char path[64];
    ncclComm_t c = calloc(1, sizeof *c);
    memcpy(&from, id.internal, sizeof from);
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)from.pid, from.fd);
    int fd = from.pid == getpid() ? from.fd : open(path, O_RDWR | O_CLOEXEC);
    if (c != NULL && nranks <= SIM_RANKS && fd >= 0)
        c->area = area_map(fd);
    if (c == NULL || c->area == NULL || rank < 0 || rank >= nranks) {
        free(c);
        return refuse(ncclInvalidArgument, "ncclCommInitRankConfig: rank, ranks or id");
    }
    c->fd = from.pid == getpid() ? fd : -1;
    if (c->fd < 0)
        close(fd);
    c->n = nranks;
    c->rank = rank;
    for (int r = 0; r < nranks; r++)
        c->member[r] = r;
    c->name = 1;
    c->blocking = config->blocking != 0;
    atomic_init(&c->uses, 1);
    sim_process *me = &c->area->process[rank];
    if (cudaGetDevice(&me->device) != cudaSuccess || atomic_exchange(&me->joined, 1) != 0)
        return refuse(ncclInvalidUsage, "ncclCommInitRankConfig: two processes of one rank");
    atomic_store(&me->waits_for, -1);
    c->area->n = nranks;
    sim_wake(c->area);
    begin(c, SIM_INIT);
    *comm = c;
    return until_done(c);
}

void sim_comm_release(ncclComm_t c)
{
    if (atomic_fetch_sub(&c->uses, 1) > 1)
        return;
    if (c->root != NULL)
        sim_comm_release(c->root);
    else
        munmap(c->area, sizeof *c->area);
    free(c);
}

/* ---- what is under way ----------------------------------------------------------------------- */

static ncclResult_t init_look(ncclComm_t c)
{
    for (int r = 0; r < c->n; r++)
        if (atomic_load(&c->area->process[r].joined) == 0)
            return ncclInProgress;
    for (int r = 0; r < c->n; r++)
        for (int o = 0; o < r; o++)
            if (c->area->process[r].device == c->area->process[o].device)
                return refuse(ncclInvalidUsage, "Duplicate GPU detected");
    if (c->fd >= 0)
        close(c->fd);
    return ncclSuccess;
}

/* A name for a pair of numbers (that is how splitmix64 ends). */
static uint64_t mixed(uint64_t a, uint64_t b)
{
    uint64_t x = a + b * 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* The members of the parent with this color, by (key, rank). */
static void child_fill(ncclComm_t c, ncclComm_t child)
{
    const sim_process *all = c->area->process;
    for (int r = 0; r < c->n; r++) {
        const sim_process *mine = &all[c->member[r]];
        if (mine->color != c->color)
            continue;
        int place = 0;
        for (int o = 0; o < c->n; o++) {
            const sim_process *other = &all[c->member[o]];
            if (other->color == mine->color &&
                (other->key < mine->key || (other->key == mine->key && o < r)))
                place++;
        }
        child->member[place] = c->member[r];
        child->rank = r == c->rank ? place : child->rank;
        child->n++;
    }
}

static ncclResult_t child_make(ncclComm_t c)
{
    ncclComm_t child = calloc(1, sizeof *child);
    if (child == NULL)
        return ncclSystemError;
    child->area = c->area;
    child->root = c->root != NULL ? c->root : c;
    atomic_fetch_add(&child->root->uses, 1);
    atomic_init(&child->uses, 1);
    child->name = mixed(c->split_tag, (uint64_t)c->color);
    child->blocking = c->blocking;
    child_fill(c, child);
    *c->child = child;
    return ncclSuccess;
}

/* Nobody leaves before all have seen all: a slot stays until its process leaves. */
static ncclResult_t split_look(ncclComm_t c)
{
    sim_process *all = c->area->process, *me = &all[c->member[c->rank]];
    if (atomic_load(&me->done) != c->split_tag) {
        for (int r = 0; r < c->n; r++)
            if (atomic_load(&all[c->member[r]].ready) != c->split_tag)
                return ncclInProgress;
        ncclResult_t result = c->color != NCCL_SPLIT_NOCOLOR ? child_make(c) : ncclSuccess;
        if (result != ncclSuccess)
            return result;
        atomic_store(&me->done, c->split_tag);
    }
    for (int r = 0; r < c->n; r++)
        if (atomic_load(&all[c->member[r]].ready) == c->split_tag &&
            atomic_load(&all[c->member[r]].done) != c->split_tag)
            return ncclInProgress;
    return ncclSuccess;
}

static ncclResult_t issued_look(ncclComm_t c)
{
    sim_plan *p = c->issued;
    c->issued = NULL;
    return sim_plan_launch(p);
}

static ncclResult_t end_look(ncclComm_t c)
{
    if (sim_plans_left(c))
        return ncclInProgress;
    sim_unread_check(c);
    return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t c, ncclResult_t *state)
{
    static ncclResult_t (*const look[])(ncclComm_t) = {[SIM_INIT] = init_look,
                                                       [SIM_SPLIT] = split_look,
                                                       [SIM_ISSUED] = issued_look,
                                                       [SIM_ENDING] = end_look};
    if (c == NULL || atomic_load(&c->aborted))
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
    sim_process *me = &c->area->process[c->member[c->rank]];
    c->split_tag = mixed(c->name, ++c->n_splits);
    c->color = me->color = color;
    me->key = key;
    c->child = newcomm;
    atomic_store(&me->ready, c->split_tag);
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
        sim_comm_release(c);
    return result;
}

ncclResult_t ncclCommAbort(ncclComm_t c)
{
    if (c == NULL)
        return refuse(ncclInvalidArgument, "ncclCommAbort: no communicator");
    sim_plans_abort(c);
    if (c->issued != NULL)
        sim_plan_drop(c->issued);
    sim_comm_release(c);
    return ncclSuccess;
}

/* ---- collectives ----------------------------------------------------------------------------- */

/* The plan that a call on c joins: a group's, or a new one. */
static ncclResult_t plan_get(ncclComm_t c, const char *what, cudaStream_t q, sim_plan **out)
{
    for (sim_plan *p = grouped; group_depth > 0 && p != NULL; p = p->next)
        if (p->comm == c) {
            *out = p;
            return p->stream == q && p->own_bytes == 0
                       ? ncclSuccess
                       : refuse(ncclInvalidUsage, "a group of several streams or collectives");
        }
    ncclResult_t result = ready(c, what);
    if (result != ncclSuccess)
        return result;
    sim_plan *p = calloc(1, sizeof *p);
    if (p == NULL)
        return ncclSystemError;
    p->comm = c;
    p->stream = q;
    p->next = grouped;
    grouped = p;
    *out = p;
    return ncclSuccess;
}

static ncclResult_t plan_issue(sim_plan *p)
{
    ncclComm_t c = p->comm;
    atomic_fetch_add(&c->uses, 1);
    sim_plan_queue(p);
    c->issued = p;
    begin(c, SIM_ISSUED);
    return until_done(c);
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
        sim_plan *p = grouped;
        grouped = p->next;
        ncclResult_t issued = plan_issue(p);
        result = result == ncclSuccess ? issued : result;
    }
    return result;
}

static void transfer_add(sim_plan *p, const sim_head *head, bool sends, int peer, const void *ptr,
                         size_t bytes)
{
    p->transfer[p->n++] = (sim_transfer){
        .sends = sends, .peer = peer, .head = *head, .ptr = (char *)(uintptr_t)ptr, .bytes = bytes};
}

static ncclResult_t message(ncclComm_t c, bool sends, const void *ptr, const sim_head *want,
                            int peer, cudaStream_t q)
{
    sim_plan *p;
    if (c != NULL && (peer < 0 || peer >= c->n || peer == c->rank))
        return refuse(ncclInvalidArgument, "ncclSend, ncclRecv: peer");
    if (sim_type_bytes((ncclDataType_t)want->type) == 0 || (want->count > 0 && ptr == NULL))
        return refuse(ncclInvalidArgument, "ncclSend, ncclRecv: type or buffer");
    ncclGroupStart();
    ncclResult_t result = plan_get(c, "ncclSend, ncclRecv", q, &p);
    if (result == ncclSuccess && p->n == 2 * SIM_RANKS)
        result = refuse(ncclInvalidUsage, "ncclSend, ncclRecv: more than the stand-in has room");
    if (result == ncclSuccess) {
        sim_head head = *want;
        head.comm = c->name;
        head.number = sends ? ++c->n_sent[peer] : ++c->n_received[peer];
        transfer_add(p, &head, sends, peer, ptr,
                     want->count * sim_type_bytes((ncclDataType_t)want->type));
        snprintf(p->text, sizeof p->text,
                 "messages, the last one %s rank %d, number %llu, of %llu elements, on "
                 "communicator %llx",
                 sends ? "to" : "from", peer, (unsigned long long)head.number,
                 (unsigned long long)head.count, (unsigned long long)c->name & 0xffff);
    }
    ncclResult_t ended = ncclGroupEnd();
    return result == ncclSuccess ? ended : result;
}

ncclResult_t ncclSend(const void *sendbuff, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t q)
{
    return message(comm, true, sendbuff,
                   &(sim_head){.kind = SIM_SEND, .type = (int32_t)type, .count = count}, peer, q);
}

ncclResult_t ncclRecv(void *recvbuff, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t q)
{
    return message(comm, false, recvbuff,
                   &(sim_head){.kind = SIM_SEND, .type = (int32_t)type, .count = count}, peer, q);
}

/* A plan of a collective without its messages; NULL in *out: there is nothing to move. */
static ncclResult_t collective(ncclComm_t c, sim_head *head, cudaStream_t q, sim_plan **out)
{
    static const char *const name[] = {[SIM_ALL_GATHER] = "ncclAllGather",
                                       [SIM_BROADCAST] = "ncclBroadcast",
                                       [SIM_REDUCE_SCATTER] = "ncclReduceScatter"};
    *out = NULL;
    size_t elem_bytes = sim_type_bytes((ncclDataType_t)head->type);
    if (c == NULL || elem_bytes == 0 || head->root < 0 || head->root >= c->n)
        return refuse(ncclInvalidArgument, "a collective's communicator, type or root");
    ncclResult_t result = ready(c, name[head->kind]);
    if (result != ncclSuccess || head->count == 0)
        return result;
    result = plan_get(c, name[head->kind], q, out);
    if (result != ncclSuccess)
        return result;
    if ((*out)->n > 0)
        return refuse(ncclInvalidUsage, "a collective in a group with others");
    head->comm = c->name;
    head->number = ++c->n_collectives;
    (*out)->own_bytes = head->count * elem_bytes;
    (*out)->type = (ncclDataType_t)head->type;
    snprintf((*out)->text, sizeof(*out)->text,
             "%s %llu of %llu elements of type %d, root %d, on communicator %llx", name[head->kind],
             (unsigned long long)head->number, (unsigned long long)head->count, head->type,
             head->root, (unsigned long long)c->name & 0xffff);
    return ncclSuccess;
}

ncclResult_t ncclAllGather(const void *sendbuff, void *recvbuff, size_t sendcount,
                           ncclDataType_t type, ncclComm_t comm, cudaStream_t q)
{
    sim_head head = {.kind = SIM_ALL_GATHER, .type = (int32_t)type, .count = sendcount};
    sim_plan *p;
    ncclGroupStart();
    ncclResult_t result = collective(comm, &head, q, &p);
    if (result == ncclSuccess && p != NULL) {
        char *to = recvbuff;
        p->own_from = sendbuff;
        p->own_to = to + (size_t)comm->rank * p->own_bytes;
        for (int r = 0; r < comm->n; r++)
            if (r != comm->rank) {
                transfer_add(p, &head, true, r, sendbuff, p->own_bytes);
                transfer_add(p, &head, false, r, to + (size_t)r * p->own_bytes, p->own_bytes);
            }
    }
    ncclResult_t ended = ncclGroupEnd();
    return result == ncclSuccess ? ended : result;
}

ncclResult_t ncclBroadcast(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t type,
                           int root, ncclComm_t comm, cudaStream_t q)
{
    sim_head head = {.kind = SIM_BROADCAST, .type = (int32_t)type, .count = count, .root = root};
    sim_plan *p;
    ncclGroupStart();
    ncclResult_t result = collective(comm, &head, q, &p);
    if (result == ncclSuccess && p != NULL) {
        p->own_to = recvbuff;
        p->own_from = comm->rank == root ? sendbuff : recvbuff;
        for (int r = 0; r < comm->n && comm->rank == root; r++)
            if (r != root)
                transfer_add(p, &head, true, r, sendbuff, p->own_bytes);
        if (comm->rank != root)
            transfer_add(p, &head, false, root, recvbuff, p->own_bytes);
    }
    ncclResult_t ended = ncclGroupEnd();
    return result == ncclSuccess ? ended : result;
}

ncclResult_t ncclReduceScatter(const void *sendbuff, void *recvbuff, size_t recvcount,
                               ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm, cudaStream_t q)
{
    sim_head head = {.kind = SIM_REDUCE_SCATTER,
                     .type = (int32_t)type,
                     .count = recvcount,
                     .reserved = (int32_t)op};
    sim_plan *p;
    if (type == ncclUint8)
        return refuse(ncclInvalidArgument, "ncclReduceScatter: the stand-in adds floats");
    ncclGroupStart();
    ncclResult_t result = collective(comm, &head, q, &p);
    if (result == ncclSuccess && p != NULL) {
        const char *from = sendbuff;
        p->own_to = recvbuff;
        p->own_from = from + (size_t)comm->rank * p->own_bytes;
        p->parts = calloc((size_t)comm->n, p->own_bytes);
        if (p->parts == NULL)
            result = ncclSystemError;
        for (int r = 0; r < comm->n && p->parts != NULL; r++)
            if (r != comm->rank) {
                transfer_add(p, &head, true, r, from + (size_t)r * p->own_bytes, p->own_bytes);
                transfer_add(p, &head, false, r, p->parts + (size_t)r * p->own_bytes, p->own_bytes);
            }
    }
    ncclResult_t ended = ncclGroupEnd();
    return result == ncclSuccess ? ended : result;
}
