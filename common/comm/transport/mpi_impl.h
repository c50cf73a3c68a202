/* mpi_impl.h -- what the parts of the mpi transport share; internal.
 *
 * mpi_operation.c  the engine's state; operations handed over, waiting for them
 * mpi_exchange.c   one exchange: messages, descriptors
 * mpi_progress.c   the one thread that talks to MPI: its loop, its pauses, how it fails
 * mpi.c            the transport as callers see it: groups
 *
 * An operation is made by a caller's thread, belongs to the progress thread while it is queued or
 * active, and is freed by the caller once `done`.
 *
 * A failure on any group ends the transport of the whole process, and by a notice that of every
 * rank: all groups are dead and return the same error. After that no MPI call is made but
 * MPI_Abort, so no message can move from or to a buffer that a caller got back. */
#pragma once
#include "common/comm/transport_help.h"
#include "common/comm/transport/hier_parts.h"
#include <mpi.h>
#include <pthread.h>
#include <stdatomic.h>

/* What a failing rank tells its peers, so that nobody waits for it. */
typedef struct mpi_notice {
    int32_t from; /* world rank */
    fsdp_error_info why;
} mpi_notice;

typedef struct mpi_group {
    const comm_team *team; /* valid until close */
    double later_s;        /* see mpi_speak_last */
    MPI_Comm comm;         /* progress thread only */
} mpi_group;

typedef enum mpi_operation_kind {
    OP_EXCHANGE,
    OP_SPLIT,
    OP_CLOSE,
    OP_FAIL, /* die with `error`; nobody waits for it */
    OP_ABORT,
    OP_STOP
} mpi_operation_kind;

typedef struct mpi_message {
    int peer, bytes;
} mpi_message;

typedef struct mpi_operation {
    mpi_operation_kind kind;
    struct mpi_operation *next;
    mpi_group *group; /* NULL for OP_STOP, OP_FAIL, OP_ABORT, and a split of all ranks */
    int color;        /* OP_SPLIT: as MPI_Comm_split takes it */
    mpi_group *child; /* OP_SPLIT: its comm is filled */
    int exit_code;    /* OP_ABORT */

    /* result, under the engine's lock */
    bool done;
    fsdp_error_info error; /* its status is the result's */
    pthread_cond_t finished;

    /* OP_EXCHANGE; progress thread only from posting on */
    comm_call call;
    comm_desc desc_in;     /* of the previous rank */
    bool desc_expected;    /* not compared yet */
    MPI_Request *requests; /* [n_requests] descriptor out, descriptor in, receives, sends */
    mpi_message *message;  /* [n_requests] of each request */
    int *done_index;       /* [n_requests] the requests that MPI_Testsome has found done */
    MPI_Status *done_status;
    int n_requests, n_receives;
    clock_wait waited;
    double held_since_s;  /* 0: no error held back */
    fsdp_error_info held; /* data of a wrong length: wait a little for a better explanation */
    comm_part parts[];    /* [size] */
} mpi_operation;

/* One per process because MPI is one per process. */
typedef struct mpi_engine {
    pthread_mutex_t lock;
    pthread_cond_t wake;                /* the inbox has something */
    mpi_operation *inbox, **inbox_tail; /* under the lock */
    pthread_t thread;
    int n_groups;              /* open groups, under the lock */
    bool running, was_started; /* under the lock */
    atomic_bool finalizing;    /* every rank is ending: MPI_Finalize is next */
    atomic_bool dead;          /* written by the progress thread, under the lock */
    fsdp_error_info why;       /* valid when dead, then constant */
    _Atomic double died_s;     /* 0: not yet */
    pthread_mutex_t tell_lock; /* guards tell, and is held during its call */
    void (*tell)(void);        /* see mpi_on_failure */
    size_t chunk_bytes;        /* a message is cut into pieces of at most this */

    /* set by the thread before it reports that it has begun */
    int world_rank, world_size, local_rank, local_size;

    /* progress thread only */
    mpi_operation *active;
    mpi_operation *split; /* whose ranks are not all here yet; NULL */
    MPI_Request split_met;
    bool stopping;
    comm_recorder *recorder; /* of the first group, NULL when it is closed */
    MPI_Comm notice_comm;    /* of all ranks */
    mpi_notice notice_in, notice_out;
    MPI_Request notice_recv;
    MPI_Request *notice_sends; /* [world_size] */
    int n_notices;             /* heard */
} mpi_engine;

extern mpi_engine mpi_shared;

/* ---- mpi_operation.c ------------------------------------------------------------------------ */

/* mpi_operation_new -- NULL with this thread's record set. */
mpi_operation *mpi_operation_new(mpi_operation_kind kind, mpi_group *g, int n_parts);
void mpi_operation_free(mpi_operation *op);
/* mpi_inbox_add -- under the engine's lock. */
void mpi_inbox_add(mpi_operation *op);
/* mpi_operation_run -- hand the operation to the progress thread and sleep until it is done; frees
 * it. patience_s > 0 bounds the wait for operations that MPI runs as one blocking call; an
 * operation given up stays with the thread (leaked). Exchanges are bounded by the progress thread
 * itself. */
fsdp_status mpi_operation_run(mpi_operation *op, double patience_s);
/* mpi_operation_await -- the same for one that the thread has got already. */
fsdp_status mpi_operation_await(mpi_operation *op, double patience_s);
/* mpi_operation_finish -- hand the operation back to its caller; info NULL: success. */
void mpi_operation_finish(mpi_operation *op, const fsdp_error_info *info);

/* ---- mpi_progress.c ------------------------------------------------------------------------- */

/* mpi_progress_main -- the thread; arg is the operation that reports MPI's start. */
void *mpi_progress_main(void *arg);

/* ---- mpi_exchange.c: progress thread only --------------------------------------------------- */

enum { MPI_TAG_NOTICE = 32767 }; /* on notice_comm */

/* mpi_explain -- FSDP_ECOMM with MPI's words for its error code. */
fsdp_status mpi_explain(int code, const char *what);
/* mpi_exchange_post -- post all its messages. After a failure some may be on their way. */
fsdp_status mpi_exchange_post(mpi_operation *op);
/* mpi_exchange_test -- test it once. *moved is set when something completed, *all_done when
 * everything has.
 *   errors  FSDP_EMISMATCH, FSDP_ECOMM */
fsdp_status mpi_exchange_test(mpi_operation *op, bool *moved, bool *all_done);
/* mpi_exchange_missing -- world ranks whose data or descriptor has not come: "1 3". */
void mpi_exchange_missing(const mpi_operation *op, char *text, size_t text_bytes);
