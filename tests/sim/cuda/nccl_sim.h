/* nccl_sim.h -- what the halves of NCCL's stand-in share.
 *
 * nccl.c       communicators and the calls of the library
 * nccl_move.c  a call on its stream: bytes between processes, and what a GPU would hang on
 *
 * The processes of a job share one area: for each pair of them a channel, which holds one piece of
 * one message. Every collective is messages between pairs. A process runs its calls one by one, in
 * the order in which they were issued, as NCCL does with NCCL_LAUNCH_ORDER_IMPLICIT=1. */
#pragma once
#include <nccl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include "tests/sim/cuda/sim.h"

enum { SIM_RANKS = 16, SIM_CHUNK_BYTES = 64 << 10, SIM_TEXT_CHARS = 160 };

typedef enum sim_kind { SIM_SEND = 1, SIM_ALL_GATHER, SIM_BROADCAST, SIM_REDUCE_SCATTER } sim_kind;

/* What a message belongs to; both ends must have the same. */
typedef struct sim_head {
    uint64_t comm;   /* name of the communicator */
    uint64_t number; /* of the collective on it; of the message between the pair */
    uint64_t count;
    int32_t kind, type, root, reserved;
} sim_head;

typedef struct sim_channel {
    atomic_uint full;
    size_t bytes; /* of this piece */
    sim_head head;
    char data[SIM_CHUNK_BYTES];
} sim_channel;

typedef struct sim_process {
    atomic_int joined; /* 1: has mapped the area */
    int device;
    /* the split that it takes part in: `ready` is written last, `done` when all have been seen */
    atomic_ullong ready, done;
    int color, key;
    /* the call that waits */
    atomic_int waits_for; /* a process, -1: for none */
    atomic_uint steps;    /* grows with everything that moves */
    char call[SIM_TEXT_CHARS];
} sim_process;

typedef struct sim_area {
    atomic_uint changed; /* a futex: something moved */
    int n;
    sim_process process[SIM_RANKS];
    sim_channel channel[SIM_RANKS][SIM_RANKS]; /* [from][to] */
} sim_area;

typedef enum sim_doing { SIM_NOTHING, SIM_INIT, SIM_SPLIT, SIM_ISSUED, SIM_ENDING } sim_doing;

struct ncclComm {
    sim_area *area;
    ncclComm_t root; /* which this one was split from, and has the area; NULL: it is one */
    int fd;          /* of the area in the process that made it, until all have it; else -1 */
    int n, rank, member[SIM_RANKS]; /* member: numbers of processes in the area */
    uint64_t name, n_collectives, n_splits, n_sent[SIM_RANKS], n_received[SIM_RANKS];
    bool blocking;
    ncclResult_t error;
    atomic_int uses; /* the caller's, and one of each plan */
    atomic_bool aborted;

    sim_doing doing;
    bool polled; /* since it began */
    struct sim_plan *issued;
    uint64_t split_tag;
    int color;
    ncclComm_t *child;
};

/* One message, or one rank's half of it. */
typedef struct sim_transfer {
    bool sends;
    int peer; /* rank in the communicator */
    sim_head head;
    char *ptr;
    size_t bytes, moved;
    bool begun; /* a message of 0 bytes is one empty piece */
} sim_transfer;

/* What one call, or one group of calls, does on a communicator. */
typedef struct sim_plan {
    struct sim_plan *next; /* in order of issue, of the process; or of the group */
    ncclComm_t comm;
    cudaStream_t stream;
    bool running;
    int n;
    sim_transfer transfer[2 * SIM_RANKS];
    char text[SIM_TEXT_CHARS];
    /* copied on this rank: own part, and what a reduce-scatter adds */
    char *own_to;
    const char *own_from;
    size_t own_bytes;
    char *parts; /* [n ranks][own_bytes], or NULL */
    ncclDataType_t type;
} sim_plan;

/* sim_type_bytes -- of one element; 0: no such type. */
size_t sim_type_bytes(ncclDataType_t type);
/* sim_plan_queue -- the plan is the latest of this process. sim_plan_launch -- put it on its
 * stream; it ends there, and is freed. */
void sim_plan_queue(sim_plan *p);
ncclResult_t sim_plan_launch(sim_plan *p);
/* sim_plans_left -- whether the process has plans of comm that are not over. */
bool sim_plans_left(ncclComm_t comm);
/* sim_plans_abort -- all calls on comm end, on this rank. sim_plan_drop -- p, which has not been
 * launched, is gone. */
void sim_plans_abort(ncclComm_t comm);
void sim_plan_drop(sim_plan *p);
/* sim_comm_release -- one use less. */
void sim_comm_release(ncclComm_t comm);
/* sim_wake -- all processes look again. */
void sim_wake(sim_area *area);
/* sim_report -- say what the real library would answer with a hang or wrong values, and end the
 * process; under FSDP_SIM_HANGS=1 return. */
__attribute__((format(printf, 1, 2))) void sim_report(const char *format, ...);
/* sim_unread_check -- report messages on comm that nobody has received. */
void sim_unread_check(ncclComm_t comm);
