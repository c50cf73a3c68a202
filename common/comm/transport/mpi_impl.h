/* mpi_impl.h -- declarations that the files of the mpi transport share; internal.
 *
 * mpi_operation.c  the engine's state; handing over operations, waiting for them
 * mpi_exchange.c   one exchange: messages, descriptors
 * mpi_progress.c   the one thread that calls MPI: its loop, its pauses, how it fails
 * mpi.c            the transport as callers see it: groups
 *
 * A caller's thread makes an operation. The progress thread owns it while it is queued or active.
 * The caller frees it when it is `done`.
 *
 * A failure on any group ends the transport of the whole process and, through a notice, of every
 * rank: all groups are dead and return the same error. After the notices MPI_Abort is the only MPI
 * call made, so no message can read or write a buffer that was given back to a caller. */
#pragma once
#include "common/comm/transport/transport_help.h"
#include "common/comm/transport/hier_parts.h"
#include <mpi.h>
#include <pthread.h>
#include <stdatomic.h>

/* What a failing rank sends to its peers, so that none of them waits for it. */
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
    OP_FAIL, /* fail with `error`; nobody waits for it */
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
    int color;        /* OP_SPLIT: for MPI_Comm_split */
    mpi_group *child; /* OP_SPLIT: its comm is filled in */
    int exit_code;    /* OP_ABORT */

    /* the result, under the engine's lock */
    bool done;
    fsdp_error_info error; /* the result, FSDP_OK included */
    pthread_cond_t finished;

    /* OP_EXCHANGE; used by the progress thread only, once posted */
    comm_call call;
    comm_desc desc_in;     /* the previous rank's descriptor */
    bool desc_expected;    /* desc_in has not been compared yet */
    MPI_Request *requests; /* [n_requests] descriptor out, descriptor in, receives, sends */
    mpi_message *message;  /* [n_requests] the message of each request */
    int *done_index;       /* [n_requests] requests that MPI_Testsome completed */
    MPI_Status *done_status;
    int n_requests, n_receives;
    clock_wait waited;
    double held_since_s;  /* 0: no error held back */
    fsdp_error_info held; /* data of a wrong length: wait a moment for a better explanation */
    comm_part parts[];    /* [size] */
} mpi_operation;

/* One per process because MPI is one per process. */
typedef struct mpi_engine {
    pthread_mutex_t lock;
    pthread_cond_t wake;                /* signalled when the inbox is not empty */
    mpi_operation *inbox, **inbox_tail; /* under the lock */
    pthread_t thread;
    int n_groups;              /* open groups, under the lock */
    bool running, was_started; /* under the lock */
    atomic_bool finalizing;    /* every rank is ending; MPI_Finalize comes next */
    atomic_bool dead;          /* set by the progress thread, under the lock */
    fsdp_error_info why;       /* valid once dead; never changes again */
    _Atomic double died_s;     /* time of the failure; 0: none */
    pthread_mutex_t tell_lock; /* guards tell; held while tell runs */
    void (*tell)(void);        /* see mpi_on_failure */
    size_t chunk_bytes;        /* largest message; longer data is sent in pieces */

    /* set by the progress thread before it reports that it has started */
    int world_rank, world_size, local_rank, local_size;

    /* progress thread only */
    mpi_operation *active;
    mpi_operation *split; /* a split that not all ranks have reached yet; or NULL */
    MPI_Request split_met;
    bool stopping;
    comm_recorder *recorder; /* the first group's; NULL after that is closed */
    MPI_Comm notice_comm;    /* a communicator of all ranks */
    mpi_notice notice_in, notice_out;
    MPI_Request notice_recv;
    MPI_Request *notice_sends; /* [world_size] */
    int n_notices;             /* notices received */
} mpi_engine;

extern mpi_engine mpi_shared;

/* ---- mpi_operation.c ------------------------------------------------------------------------ */

/* mpi_operation_new -- returns NULL and sets this thread's record if there is no memory. */
mpi_operation *mpi_operation_new(mpi_operation_kind kind, mpi_group *g, int n_parts);
void mpi_operation_free(mpi_operation *op);
/* mpi_inbox_add -- queue an operation; the caller holds the engine's lock. */
void mpi_inbox_add(mpi_operation *op);
/* mpi_operation_run -- hand the operation to the progress thread, sleep until it is done, free it.
 * patience_s > 0 bounds the wait, for operations that MPI runs as one blocking call. If the wait
 * ends first, the operation stays with the thread (leaked). The progress thread itself bounds
 * exchanges. */
fsdp_status mpi_operation_run(mpi_operation *op, double patience_s);
/* mpi_operation_await -- the same for an operation that the thread already has. */
fsdp_status mpi_operation_await(mpi_operation *op, double patience_s);
/* mpi_operation_finish -- give the operation back to its caller; info NULL: success. */
void mpi_operation_finish(mpi_operation *op, const fsdp_error_info *info);

/* mpi_sweep -- remove the files of this user's killed MPI jobs from /dev/shm; files in use stay.
 * Call it before MPI_Init. (mpi_sweep.c) */
void mpi_sweep(void);

/* ---- mpi_progress.c ------------------------------------------------------------------------- */

/* mpi_progress_main -- the main function of the progress thread; arg: the operation to finish when
 * MPI has started. */
void *mpi_progress_main(void *arg);

/* ---- mpi_exchange.c: progress thread only --------------------------------------------------- */

enum { MPI_TAG_NOTICE = 32767 }; /* on notice_comm */

/* mpi_explain -- FSDP_ECOMM with MPI's text for its error code. */
fsdp_status mpi_explain(int code, const char *what);
/* mpi_exchange_post -- post all messages of the operation. After a failure some may be in
 * flight. */
fsdp_status mpi_exchange_post(mpi_operation *op);
/* mpi_exchange_test -- test the operation once. *moved is set if a message completed, *all_done if
 * all have.
 *   errors  FSDP_EMISMATCH, FSDP_ECOMM */
fsdp_status mpi_exchange_test(mpi_operation *op, bool *moved, bool *all_done);
/* mpi_exchange_missing -- world ranks whose data or descriptor has not arrived: "1 3". */
void mpi_exchange_missing(const mpi_operation *op, char *text, size_t text_bytes);
