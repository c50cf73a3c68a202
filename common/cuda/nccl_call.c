/* nccl_call.c -- the calls of the nccl transport.
 *
 *   hosts compare the call (FSDP_CHECK=1) -> event, NCCL's call, event on the stream
 *   -> nccl_poll finds what is over, late or broken while the host waits for anything
 *
 * NCCL itself neither compares calls nor knows of time: a call that its peers do not join stays on
 * the GPU for ever. So each has an event on either side, by which the host sees where its streams
 * are, and a failure aborts all communicators, which takes their kernels off the GPU.
 *
 * [NCCL "User's Guide": ncclCommAbort, "Fault Tolerance", "Using multiple NCCL communicators
 * concurrently"] */
#include "common/cuda/nccl_impl.h"
#include <math.h>
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

/* The header of NCCL 2.18 names ncclBfloat16 to nvcc only; its number has not changed. */
#define NCCL_BFLOAT16 ((ncclDataType_t)9)

static const double LOOK_EVERY_S = 2e-4; /* at peers, and at what NCCL says */

/* ---- NCCL's answers -------------------------------------------------------------------------- */

fsdp_status nccl_status(ncclComm_t handle, ncclResult_t result, const char *what)
{
    if (result == ncclSuccess || result == ncclInProgress)
        return FSDP_OK;
    return fsdp_error(FSDP_ECOMM, "NCCL_DEBUG=WARN in the environment makes NCCL say more",
                      "NCCL: %s: %s (%s)", what, ncclGetErrorString(result),
                      ncclGetLastError(handle));
}

fsdp_status nccl_settle(nccl_job *j, ncclComm_t handle, ncclResult_t result, const comm_team *team,
                        const comm_desc *desc, const char *what)
{
    double until_s = clock_now_s() + team->timeout_s;
    TRY(nccl_status(handle, result, what));
    for (int looks = 0;; looks++) {
        ncclResult_t state = ncclInProgress;
        TRY(nccl_status(handle, ncclCommGetAsyncError(handle, &state), what));
        if (state != ncclInProgress)
            return nccl_status(handle, state, what);
        TRY(transport_failed(j->control));
        if (clock_now_s() > until_s && desc != NULL)
            return comm_desc_timeout(team, desc, "unknown to NCCL");
        if (clock_now_s() > until_s)
            return fsdp_error(FSDP_ETIMEOUT, "see the other ranks' last lines",
                              "NCCL: %s took longer than %.1f s", what, team->timeout_s);
        if (looks < 100)
            sched_yield();
        else
            usleep(100);
    }
}

/* ---- failure --------------------------------------------------------------------------------- */

static void flight_end(nccl_job *j, comm_state state, double at_s)
{
    nccl_flight *f = j->first;
    comm_recorder_mark_at(j->team->recorder, f->call.ticket, state, at_s);
    j->first = f->next;
    if (j->first == NULL)
        j->last = &j->first;
    f->next = j->spare;
    j->spare = f;
}

fsdp_status nccl_why(nccl_job *j)
{
    if (!atomic_load(&j->failed))
        return FSDP_OK;
    fsdp_error_set(&j->why);
    return j->why.status;
}

fsdp_status nccl_fail(nccl_job *j)
{
    if (!atomic_load(&j->failed)) {
        j->why = *fsdp_error_get();
        if (j->control->table->fail != NULL)
            j->control->table->fail();
        if (transport_failed(j->control) != FSDP_OK) /* it knows who was first */
            j->why = *fsdp_error_get();
        atomic_store(&j->failed, true);
        for (nccl_group *g = j->groups; g != NULL; g = g->next) {
            if (g->comm != NULL)
                (void)ncclCommAbort(g->comm);
            g->comm = NULL;
        }
        while (j->first != NULL)
            flight_end(j, COMM_FAILED, clock_now_s());
    }
    return nccl_why(j);
}

/* ---- what has become of calls ---------------------------------------------------------------- */

/* Calls begin in the order of issue: only the first that is not over can be late. */
static fsdp_status flights_look(nccl_job *j, double now_s)
{
    const accel_api *api = accel_api_of(j->dev);
    while (j->first != NULL) {
        nccl_flight *f = j->first;
        const comm_team *team = f->group->group->team;
        if (f->begun_s == 0 && api->event_look(f->begin) == 0) {
            f->begun_s = accel_event_at_s(j->dev, f->begin);
            comm_recorder_mark_at(team->recorder, f->call.ticket, COMM_RUNNING, f->begun_s);
        }
        if (f->begun_s > 0 && api->event_look(f->end) == 0) {
            flight_end(j, COMM_DONE, fmax(f->begun_s, accel_event_at_s(j->dev, f->end)));
            continue;
        }
        if (f->begun_s > 0 && now_s - f->begun_s > team->timeout_s)
            return comm_desc_timeout(team, &f->call.desc, "unknown to NCCL");
        break;
    }
    return FSDP_OK;
}

/* What peers and NCCL itself say. */
static fsdp_status others_look(nccl_job *j)
{
    fsdp_status status = transport_failed(j->control);
    for (nccl_group *g = j->groups; g != NULL && status == FSDP_OK; g = g->next) {
        ncclResult_t state = ncclSuccess;
        if (g->comm != NULL)
            status = nccl_status(g->comm, ncclCommGetAsyncError(g->comm, &state), "communicator");
        if (status == FSDP_OK)
            status = nccl_status(g->comm, state, "communicator");
    }
    return status;
}

fsdp_status nccl_poll(void *self)
{
    nccl_job *j = self;
    double now_s = clock_now_s();
    fsdp_status status = nccl_why(j);
    if (status != FSDP_OK)
        return status;
    if (now_s - j->looked_s >= LOOK_EVERY_S) {
        status = others_look(j);
        j->looked_s = now_s;
    }
    if (status == FSDP_OK)
        status = flights_look(j, now_s);
    return status == FSDP_OK ? FSDP_OK : nccl_fail(j);
}

fsdp_status nccl_failed(transport_group *group)
{
    nccl_job *j = ((nccl_group *)group->state)->job;
    TRY(nccl_why(j));
    return transport_failed(j->control);
}

/* ---- issuing --------------------------------------------------------------------------------- */

/* One call, as NCCL gets it. */
typedef struct nccl_work {
    nccl_group *group;
    stream *s;
    const comm_call *call;
    ncclResult_t (*issue)(const struct nccl_work *w, ncclComm_t handle, cudaStream_t q);
    const void *from;
    void *to;
    size_t elems; /* of each rank */
    ncclDataType_t type;
    const comm_part *parts; /* [W] of an exchange */
} nccl_work;

/* A flight with events, at the end of the list. */
static fsdp_status flight_add(nccl_job *j, const nccl_work *w, nccl_flight **out)
{
    nccl_flight *f = j->spare;
    if (f != NULL) {
        j->spare = f->next;
    } else {
        f = calloc(1, sizeof *f);
        if (f == NULL)
            return fsdp_error(FSDP_ENOMEM, "", "nccl: no memory for a call");
        cudaError_t error = cudaEventCreateWithFlags(&f->begin, cudaEventDefault);
        if (error == cudaSuccess)
            error = cudaEventCreateWithFlags(&f->end, cudaEventDefault);
        if (error != cudaSuccess) {
            free(f);
            return cuda_status(error, "event of a call");
        }
    }
    f->next = NULL;
    f->group = w->group;
    f->call = *w->call;
    f->begun_s = 0;
    *j->last = f;
    j->last = &f->next;
    *out = f;
    return FSDP_OK;
}

static fsdp_status work_put(nccl_job *j, const nccl_work *w)
{
    cudaStream_t q = accel_queue_of(w->s);
    nccl_group *g = w->group;
    nccl_flight *f = NULL;
    TRY(flight_add(j, w, &f));
    if (j->chains && j->latest != NULL && j->latest != g)
        TRY(cuda_status(cudaStreamWaitEvent(q, j->behind_latest, 0), "order of calls"));
    TRY(cuda_status(cudaEventRecord(f->begin, q), "event before a call"));
    TRY(nccl_settle(j, g->comm, w->issue(w, g->comm, q), g->group->team, &w->call->desc,
                    comm_op_name((comm_op)w->call->desc.op)));
    TRY(cuda_status(cudaEventRecord(f->end, q), "event behind a call"));
    j->latest = g;
    return j->chains ? cuda_status(cudaEventRecord(j->behind_latest, q), "order of calls")
                     : FSDP_OK;
}

static fsdp_status work_issue(void *args, int n_threads)
{
    const nccl_work *w = args;
    nccl_job *j = w->group->job;
    (void)n_threads;
    TRY(nccl_poll(j));
    fsdp_status status = work_put(j, w);
    return status == FSDP_OK ? FSDP_OK : nccl_fail(j);
}

static fsdp_status work_launch(const nccl_work *w, touched *t)
{
    return touched_launch(
        t, w->s, w->call,
        (launch_config){.fn = work_issue, .args = w, .args_bytes = sizeof *w, .issues = true});
}

/* ---- the check ------------------------------------------------------------------------------- */

/* What each peer sends, against what is expected of it; parts NULL: the calls tell all. */
static fsdp_status lengths_compare(const comm_team *team, const comm_call *call,
                                   const comm_part *parts, const uint64_t *sent)
{
    for (int r = 0; parts != NULL && r < team->size; r++) {
        char bytes[24];
        snprintf(bytes, sizeof bytes, "%llu", (unsigned long long)sent[r]);
        if (r != team->rank && sent[r] != parts[r].recv_bytes)
            return comm_desc_lengths(team, &call->desc, r, bytes, parts[r].recv_bytes);
    }
    return FSDP_OK;
}

/* A call of hosts that has the same descriptor: the transport below compares that. */
static fsdp_status compare(transport_group *talk, const comm_call *call, const comm_part *parts,
                           uint64_t *send, uint64_t *sent)
{
    comm_call as_host = *call;
    as_host.ticket = UINT64_MAX; /* none of the recorder's */
    as_host.more = false;
    comm_part *rows = transport_parts(talk);
    for (int r = 0; parts != NULL && r < talk->team->size; r++) {
        send[r] = parts[r].send_bytes;
        rows[r] = (comm_part){.send = &send[r],
                              .send_bytes = sizeof *send,
                              .recv = &sent[r],
                              .recv_bytes = sizeof *sent};
    }
    TRY(transport_pass(talk, NULL, &as_host, rows, NULL));
    return transport_agree(talk, lengths_compare(talk->team, call, parts, sent));
}

/* Before the first phase of a call is issued. */
static fsdp_status check(const transport_group *group, const comm_call *call,
                         const comm_part *parts)
{
    nccl_job *j = ((nccl_group *)group->state)->job;
    if (!j->checks || call->phase > 0)
        return FSDP_OK;
    size_t n = (size_t)group->team->size;
    uint64_t *send = calloc(2 * n, sizeof *send);
    if (send == NULL)
        return fsdp_error(FSDP_ENOMEM, "", "nccl: no memory to compare a call");
    device_host_call_begin(j->dev);
    fsdp_status status = compare(transport_control(group->below), call, parts, send, send + n);
    device_host_call_end(j->dev);
    free(send);
    return status == FSDP_OK ? FSDP_OK : nccl_fail(j);
}

/* ---- collectives ----------------------------------------------------------------------------- */

static ncclResult_t exchange_issue(const nccl_work *w, ncclComm_t handle, cudaStream_t q)
{
    const comm_team *team = w->group->group->team;
    ncclResult_t result = ncclGroupStart();
    for (int r = 0; r < team->size && result == ncclSuccess; r++) {
        const comm_part *part = &w->parts[r];
        if (r != team->rank && part->send_bytes > 0)
            result = ncclSend(part->send, part->send_bytes, ncclUint8, r, handle, q);
        if (r != team->rank && part->recv_bytes > 0 && result == ncclSuccess)
            result = ncclRecv(part->recv, part->recv_bytes, ncclUint8, r, handle, q);
    }
    ncclResult_t ended = ncclGroupEnd();
    return result == ncclSuccess ? ended : result;
}

fsdp_status nccl_exchange(transport_group *group, stream *s, const comm_call *call,
                          const comm_part *parts)
{
    const comm_team *team = group->team;
    const nccl_work w = {
        .group = group->state, .s = s, .call = call, .issue = exchange_issue, .parts = parts};
    TRY(check(group, call, parts));
    touched t = touched_begin(team, NULL);
    for (int writes = 0; writes < 2; writes++)
        for (int r = 0; r < team->size; r++) {
            const comm_part *part = &parts[r];
            if (r != team->rank)
                touched_add(&t, writes ? part->recv : part->send,
                            writes ? part->recv_bytes : part->send_bytes, writes);
        }
    return work_launch(&w, &t);
}

static ncclResult_t all_gather_issue(const nccl_work *w, ncclComm_t handle, cudaStream_t q)
{
    return ncclAllGather(w->from, w->to, w->elems, w->type, handle, q);
}

fsdp_status nccl_all_gather(transport_group *group, stream *s, const comm_call *call, void *recv,
                            size_t slice_bytes)
{
    const comm_team *team = group->team;
    const nccl_work w = {.group = group->state,
                         .s = s,
                         .call = call,
                         .issue = all_gather_issue,
                         .from = (const char *)recv + (size_t)team->rank * slice_bytes,
                         .to = recv,
                         .elems = slice_bytes,
                         .type = ncclUint8};
    TRY(check(group, call, NULL));
    touched t = touched_begin(team, NULL);
    touched_add(&t, recv, slice_bytes * (size_t)team->size, true);
    return work_launch(&w, &t);
}

static ncclResult_t broadcast_issue(const nccl_work *w, ncclComm_t handle, cudaStream_t q)
{
    return ncclBroadcast(w->from, w->to, w->elems, w->type, w->call->desc.root, handle, q);
}

fsdp_status nccl_broadcast(transport_group *group, stream *s, const comm_call *call, void *buf,
                           size_t bytes)
{
    const nccl_work w = {.group = group->state,
                         .s = s,
                         .call = call,
                         .issue = broadcast_issue,
                         .from = buf,
                         .to = buf,
                         .elems = bytes,
                         .type = ncclUint8};
    TRY(check(group, call, NULL));
    touched t = touched_begin(group->team, NULL);
    touched_add(&t, buf, bytes, group->team->rank != call->desc.root);
    return work_launch(&w, &t);
}

/* ---- NCCL's own sums ------------------------------------------------------------------------- */

/* Whether the slices are equal and lie in order of ranks. */
static bool side_by_side(const comm_team *team, const comm_slice *slices)
{
    for (int r = 0; r < team->size; r++)
        if (slices[r].elems != slices[0].elems ||
            slices[r].begin != slices[0].begin + (size_t)r * slices[0].elems)
            return false;
    return true;
}

static ncclResult_t scatter_issue(const nccl_work *w, ncclComm_t handle, cudaStream_t q)
{
    return ncclReduceScatter(w->from, w->to, w->elems, w->type, ncclSum, handle, q);
}

/* The sum of all ranks, which NCCL makes, into sum [elems] of acc->sum_dtype. */
static fsdp_status scatter_sum(transport_group *group, stream *s, const comm_call *call,
                               const comm_scatter *x, void *sum)
{
    size_t elem_bytes = dtype_bytes(x->acc->sum_dtype), elems = x->acc->elems;
    const char *send = (const char *)x->send + x->slices[0].begin * elem_bytes;
    const nccl_work w = {.group = group->state,
                         .s = s,
                         .call = call,
                         .issue = scatter_issue,
                         .from = send,
                         .to = sum,
                         .elems = elems,
                         .type = x->acc->sum_dtype == DTYPE_BF16 ? NCCL_BFLOAT16 : ncclFloat32};
    touched t = touched_begin(group->team, NULL);
    touched_add(&t, send, elems * elem_bytes * (size_t)group->team->size, false);
    touched_add(&t, sum, elems * elem_bytes, true);
    return work_launch(&w, &t);
}

/* The sum is pushed as one node. In canonical mode it would have the wrong bits. */
fsdp_status nccl_reduce_scatter(transport_group *group, stream *s, const comm_call *call,
                                const comm_scatter *x)
{
    grad_acc *acc = x->acc;
    if (acc->mode != GRAD_ACC_FAST || !side_by_side(group->team, x->slices))
        return transport_scatter(group, s, call, x);
    sum_run run;
    void *sum = NULL;
    TRY(check(group, call, NULL));
    TRY(sum_run_begin(acc, s, x->level, 1, &run));
    acc->n_pushed += group->team->size - 1; /* it counts contributions */
    fsdp_status status = device_alloc(s, MEM_COMM, acc->elems * dtype_bytes(acc->sum_dtype),
                                      "sum of all ranks", &sum);
    if (status == FSDP_OK)
        status = scatter_sum(group, s, call, x, sum);
    if (status == FSDP_OK)
        status = sum_run_launch(acc->kernels, s, &run, (const void *const[]){sum},
                                comm_op_name((comm_op)call->desc.op), call->desc.label);
    sum_run_end(&run, s);
    device_free(s, sum);
    return status;
}
