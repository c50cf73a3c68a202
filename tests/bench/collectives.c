/* collectives.c -- the collectives of comm.h, timed and checked in the form of nccl-tests.
 *
 *   build/fsdp_run -n W build/tests/bench/collectives [--backend auto|mpi|shm] [--max-bytes N] ...
 *
 * Buffers come from comm_alloc, so a transport that can read them in place does so. Calls are
 * issued back to back on their own stream, as in the trainer. Exit status 77: the backend is not
 * built or not available here. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "common/comm/comm.h"
#include "common/ops/ops.h"
#include "tests/bench/coll_lib.h"

typedef struct ours {
    coll_transport base; /* must be first: the loop knows only this part */
    device *dev;
    comm *comm;
    stream *s;
} ours;

static fsdp_status collective(ours *t, coll_op op, size_t elems)
{
    float *buf = t->base.buf, *out = t->base.out;
    size_t total = elems * (size_t)t->base.world;
    switch (op) {
    case COLL_ALL_GATHER:
        return comm_all_gather(t->comm, t->s, "bench", DTYPE_F32,
                               buf + elems * (size_t)t->base.rank, buf, elems);
    case COLL_ALL_REDUCE:
        return comm_all_reduce(t->comm, t->s, "bench", DTYPE_F32, buf, total);
    case COLL_ALL_TO_ALL:
        return comm_all_to_all(t->comm, t->s, "bench", DTYPE_F32, buf, out, elems);
    default:
        return comm_barrier(t->comm, t->s, "bench");
    }
}

/* A sum over n calls, as over the micro-steps of a training step. */
static fsdp_status reduce_scatter(ours *t, size_t elems, size_t n)
{
    grad_acc acc;
    float *sum = NULL;
    grad_acc_init(&acc, GRAD_ACC_FAST, ops_cpu_fast()->sums, elems, MEM_GRADS_SHARD, "bench");
    fsdp_status status = FSDP_OK;
    for (size_t i = 0; i < n && status == FSDP_OK; i++)
        status = comm_reduce_scatter(t->comm, t->s, "bench", t->base.buf, elems, &acc, 0);
    if (status == FSDP_OK)
        status = grad_acc_finish(&acc, t->s, &sum);
    if (status == FSDP_OK && n == 1) /* the checked run */
        status = device_copy(t->s, t->base.out, sum, elems * sizeof(float));
    device_free(t->s, sum);
    grad_acc_free(&acc, t->s);
    return status;
}

static fsdp_status ours_run(coll_transport *base, coll_op op, size_t slice_elems, size_t n)
{
    ours *t = (ours *)base;
    if (op == COLL_REDUCE_SCATTER)
        TRY(reduce_scatter(t, slice_elems, n));
    else
        for (size_t i = 0; i < n; i++)
            TRY(collective(t, op, slice_elems));
    return stream_sync(t->s);
}

static fsdp_status ours_agree(coll_transport *base, double value, double *greatest, double *sum)
{
    ours *t = (ours *)base;
    size_t world = (size_t)base->world;
    double *all = NULL;
    void *new_all = NULL;
    TRY(device_alloc(t->s, MEM_OTHER, (world + 1) * sizeof *all, "agree", &new_all));
    all = new_all;
    all[world] = value;
    fsdp_status status =
        comm_all_gather(t->comm, t->s, "agree", DTYPE_U8, all + world, all, sizeof *all);
    if (status == FSDP_OK)
        status = stream_sync(t->s);
    *greatest = *sum = 0;
    for (size_t r = 0; r < world && status == FSDP_OK; r++) {
        *greatest = r == 0 || all[r] > *greatest ? all[r] : *greatest;
        *sum += all[r];
    }
    device_free(t->s, all);
    return status;
}

static fsdp_status ours_open(ours *t, const coll_options *o)
{
    int share = (int)sysconf(_SC_NPROCESSORS_ONLN) / comm_launched_ranks();
    device_config config = {.backend = &device_cpu, .n_threads = share > 0 ? share : 1};
    static const comm_backend BACKENDS[] = {COMM_AUTO, COMM_MPI, COMM_SHM};
    comm_config transport = {.backend = BACKENDS[o->backend]};
    TRY(device_open(&config, &t->dev));
    TRY(comm_open(t->dev, &transport, &t->comm));
    TRY(stream_create(t->dev, &(stream_config){.name = "comm"}, &t->s));
    t->base.name = comm_backend_name(t->comm);
    t->base.rank = comm_rank(t->comm);
    t->base.world = comm_size(t->comm);
    size_t elems = coll_max_elems(o);
    TRY(comm_alloc_f32(t->comm, t->s, MEM_OTHER, elems, "bench", &t->base.buf));
    TRY(comm_alloc_f32(t->comm, t->s, MEM_OTHER, elems, "bench", &t->base.out));
    memset(t->base.buf, 0, elems * sizeof(float));
    memset(t->base.out, 0, elems * sizeof(float));
    return FSDP_OK;
}

int main(int argc, char **argv)
{
    coll_options o;
    fsdp_status status = coll_parse("collectives", argc, argv, &o);
    if (status != FSDP_OK)
        return coll_leave(status, "collectives");
    ours t = {.base = {.run = ours_run, .agree = ours_agree}};
    status = ours_open(&t, &o);
    if (status == FSDP_OK)
        status = coll_run(&t.base, &o);
    if (status != FSDP_OK) {
        fsdp_error_print(stderr, t.base.rank, t.base.world);
        comm_abort(t.comm, status == FSDP_ESKIP ? 77 : 1);
    }
    device_free(t.s, t.base.buf);
    device_free(t.s, t.base.out);
    stream_sync(t.s);
    comm_close(t.comm);
    stream_free(t.s);
    device_close(t.dev);
    return 0;
}
