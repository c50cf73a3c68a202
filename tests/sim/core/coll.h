/* coll.h -- collectives between processes of one host, for the stand-ins of NCCL and HCCL.
 *
 *   coll_id_make                             one process makes the id; the program sends it to the
 *                                            others
 *   coll_join, coll_look until COLL_READY    every process becomes a rank of a communicator
 *   coll_plan_new, then coll_all_gather ... or several coll_message    build what a call moves
 *   coll_plan_queue, then on a stream coll_plan_run and coll_plan_drop    move it
 *   coll_release
 *
 * A process runs its plans one by one, in the order of coll_plan_queue. A device would hang if
 * ranks disagree or wait in a circle; here a message names these ranks. Rules that only NCCL or
 * only HCCL has are in nccl.c and hccl.cc. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/base/status.h"

EXTERN_C_BEGIN

enum { COLL_RANKS = 16 };

typedef struct coll_comm coll_comm;
typedef struct coll_plan coll_plan;

/* The library that the plug-in uses; its stand-in defines coll_stands_for. */
typedef struct coll_library {
    const char *name; /* "NCCL" */
    /* May two calls be on streams that no event orders? one_comm: both calls are on one
     * communicator. */
    bool (*may_overlap)(bool one_comm);
} coll_library;
extern const coll_library coll_stands_for;

typedef struct coll_id {
    int pid, fd;
} coll_id;

typedef enum coll_state {
    COLL_READY,
    COLL_JOINING,   /* some ranks have not joined */
    COLL_DUPLICATE, /* two ranks have one device */
    COLL_ABORTED,
    COLL_TIMED_OUT, /* a plan exceeded limit_s; see coll_watch */
    COLL_PEER_LOST
} coll_state;

/* coll_id_make -- make an id, with which each rank calls coll_join once. */
bool coll_id_make(coll_id *id);
/* coll_join -- become `rank` of n, on that device. Returns NULL, or a text that says what is
 * wrong. */
const char *coll_join(const coll_id *id, int n, int rank, int device, coll_comm **out);
/* coll_look -- the state of c. coll_await -- wait until all ranks have joined, at most limit_s, and
 * return the state. */
coll_state coll_look(coll_comm *c);
coll_state coll_await(coll_comm *c, double limit_s);
/* coll_watch -- end plans of c after limit_s on their stream, and lost_s after the process of a
 * rank has ended. Without this call they wait for ever. */
void coll_watch(coll_comm *c, double limit_s, double lost_s);
/* coll_abort -- end all plans of c on this rank. coll_release -- drop one use of c; plans hold uses
 * too. */
void coll_abort(coll_comm *c);
void coll_release(coll_comm *c);
int coll_rank(const coll_comm *c);
int coll_ranks(const coll_comm *c);

/* coll_split -- begin to make one communicator of all ranks with this color, ordered by (key,
 * rank). A rank with a color below 0 gets none. coll_split_look -- whether the split is complete;
 * *child is then the communicator, or NULL. */
void coll_split(coll_comm *c, int color, int key);
bool coll_split_look(coll_comm *c, coll_comm **child);

/* coll_meet -- say that this rank is ready to be connected to the peer (COLL_ALL: to all ranks of
 * c). Returns whether the other side is ready too; call again until it is. */
enum { COLL_ALL = -1 };
bool coll_meet(coll_comm *c, int peer);

/* Type of the elements of a sum. */
typedef enum coll_elem { COLL_I64, COLL_F32, COLL_BF16 } coll_elem;

/* A call. All ranks must pass the same name, type and count. */
typedef struct coll_call {
    const char *name;
    int type; /* the library's number of the type */
    size_t elem_bytes;
    uint64_t count; /* elements per rank */
    const void *from;
    void *to;
    coll_elem elem; /* for sums */
    int first;      /* rank that sums begin with */
} coll_call;

/* coll_plan_new -- an empty plan of c; NULL if there is no memory. coll_plan_drop -- free a plan
 * that has run or never will. */
coll_plan *coll_plan_new(coll_comm *c);
void coll_plan_drop(coll_plan *p);
/* coll_all_gather, coll_reduce_scatter, coll_all_reduce -- fill p with this call;
 * buffer shapes are those of NCCL and HCCL. false: no memory. */
bool coll_all_gather(coll_plan *p, const coll_call *call);
bool coll_reduce_scatter(coll_plan *p, const coll_call *call);
bool coll_all_reduce(coll_plan *p, const coll_call *call);
/* coll_message -- add a send or receive of call->count elements to p. false: p is full. */
bool coll_message(coll_plan *p, bool sends, int peer, const coll_call *call);

/* coll_plan_queue -- append p to the calls of this process. */
void coll_plan_queue(coll_plan *p);
/* coll_plan_run -- a stream_fn; args: a coll_plan *. Waits for other ranks.
 *   errors  FSDP_ETIMEOUT, FSDP_ECOMM as set by coll_watch; c keeps that state */
fsdp_status coll_plan_run(void *args, int n_threads);
/* coll_plans_left -- whether some plans of c are not over. */
bool coll_plans_left(const coll_comm *c);
/* coll_unread_check -- report messages of c that this rank has not received. */
void coll_unread_check(const coll_comm *c);

/* coll_report -- print what would make the library hang or deliver wrong values, and end the
 * process. Returns if the environment has FSDP_SIM_HANGS=1. */
__attribute__((format(printf, 1, 2))) void coll_report(const char *format, ...);

EXTERN_C_END
