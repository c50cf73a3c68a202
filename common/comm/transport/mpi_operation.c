/* mpi_operation.c -- the engine's state, and operations handed to the progress thread.
 *
 *   mpi_operation_new -> mpi_operation_run (the caller's thread sleeps) ...
 *   -> mpi_operation_finish (progress thread) -> the caller has the result */
#include "common/comm/transport/mpi_impl.h"
#include "common/base/recycle.h"

static const double FOREVER_S = 1e8, LOOK_EVERY_S = 0.1;

mpi_engine mpi_shared = {.lock = PTHREAD_MUTEX_INITIALIZER,
                         .tell_lock = PTHREAD_MUTEX_INITIALIZER,
                         .wake = PTHREAD_COND_INITIALIZER};

mpi_operation *mpi_operation_new(mpi_operation_kind kind, mpi_group *g, int n_parts)
{
    mpi_operation *op = recycle_get(sizeof *op + (size_t)n_parts * sizeof op->parts[0]);
    if (op == NULL) {
        (void)fsdp_error(FSDP_ENOMEM, "", "mpi: no memory for an operation of %d parts", n_parts);
        return NULL;
    }
    *op = (mpi_operation){.kind = kind, .group = g};
    pthread_cond_init(&op->finished, NULL);
    return op;
}

void mpi_operation_free(mpi_operation *op)
{
    pthread_cond_destroy(&op->finished);
    recycle_put(op);
}

void mpi_inbox_add(mpi_operation *op)
{
    mpi_engine *e = &mpi_shared;
    *e->inbox_tail = op;
    e->inbox_tail = &op->next;
    pthread_cond_signal(&e->wake);
}

fsdp_status mpi_operation_run(mpi_operation *op, double patience_s)
{
    pthread_mutex_lock(&mpi_shared.lock);
    mpi_inbox_add(op);
    pthread_mutex_unlock(&mpi_shared.lock);
    return mpi_operation_await(op, patience_s);
}

fsdp_status mpi_operation_await(mpi_operation *op, double patience_s)
{
    mpi_engine *e = &mpi_shared;
    bool is_bounded = patience_s > 0;
    clock_wait waited = clock_wait_begin();
    pthread_mutex_lock(&e->lock);
    while (!op->done && (!is_bounded || clock_wait_s(&waited) < patience_s)) {
        struct timespec soon = clock_deadline(is_bounded ? LOOK_EVERY_S : FOREVER_S);
        pthread_cond_clockwait(&op->finished, &e->lock, CLOCK_MONOTONIC, &soon);
    }
    bool done = op->done;
    pthread_mutex_unlock(&e->lock);
    if (!done)
        return fsdp_error(FSDP_ETIMEOUT, "a rank may have died; see the other ranks' messages",
                          "mpi: no answer from the progress thread in %.0f s", patience_s);
    fsdp_status status = op->error.status;
    if (status != FSDP_OK)
        fsdp_error_set(&op->error);
    mpi_operation_free(op);
    return status;
}

void mpi_operation_finish(mpi_operation *op, const fsdp_error_info *info)
{
    pthread_mutex_lock(&mpi_shared.lock);
    if (info != NULL)
        op->error = *info;
    op->done = true;
    pthread_cond_signal(&op->finished);
    pthread_mutex_unlock(&mpi_shared.lock);
}
