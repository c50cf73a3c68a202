/* coll.h -- collectives between processes of one host, for the stand-ins of NCCL and of HCCL.
 *
 *   coll_id_make                             one process makes the id, the program tells the others
 *   coll_join, coll_look until COLL_READY    every process becomes a rank of a communicator
 *   coll_plan_new, then coll_all_gather ... or several coll_message    what a call has to move
 *   coll_plan_queue, then on a stream coll_plan_run and coll_plan_drop    it is moved
 *   coll_release
 *
 * A process runs its plans one by one, in the order of coll_plan_queue. Ranks that do not fit each
 * other, or wait in a circle, are named: a device would hang. What is NCCL's own or HCCL's stands
 * with their calls. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/base/status.h"

EXTERN_C_BEGIN

enum { COLL_RANKS = 16 };

typedef struct coll_comm coll_comm;
typedef struct coll_plan coll_plan;

/* The library that the plug-in stands on; its stand-in defines this. */
typedef struct coll_library {
    const char *name; /* "NCCL" */
    /* May two calls, of one communicator or of two, be on streams that no event orders? */
    bool (*may_overlap)(bool one_comm);
} coll_library;
extern const coll_library coll_stands_for;

typedef struct coll_id {
    int pid, fd;
} coll_id;

typedef enum coll_state {
    COLL_READY,
    COLL_JOINING,   /* not all ranks are here */
    COLL_DUPLICATE, /* two ranks have one device */
    COLL_ABORTED,
    COLL_TIMED_OUT, /* a plan; see coll_watch */
    COLL_PEER_LOST
} coll_state;

/* coll_id_make -- for one coll_join of each rank. */
bool coll_id_make(coll_id *id);
/* coll_join -- be `rank` of n, on that device. NULL, or what is wrong. */
const char *coll_join(const coll_id *id, int n, int rank, int device, coll_comm **out);
/* coll_look -- the state of c. coll_await: when all ranks have joined, or after limit_s. */
coll_state coll_look(coll_comm *c);
coll_state coll_await(coll_comm *c, double limit_s);
/* coll_watch -- plans of c end after limit_s on their stream, and lost_s after the process of a
 * rank has ended. Without it they wait for ever. */
void coll_watch(coll_comm *c, double limit_s, double lost_s);
/* coll_abort -- all plans of c end, on this rank. coll_release -- one use less; plans have some. */
void coll_abort(coll_comm *c);
void coll_release(coll_comm *c);
int coll_rank(const coll_comm *c);
int coll_ranks(const coll_comm *c);

/* coll_split -- begin to make one communicator of all ranks with this color, by (key, rank); a
 * color below 0 is in none. coll_split_look -- whether it is through, with *child then, or NULL. */
void coll_split(coll_comm *c, int color, int key);
bool coll_split_look(coll_comm *c, coll_comm **child);

/* coll_meet -- this rank is ready to be connected to the peer, COLL_ALL: to all ranks of c. Whether
 * they are too: ask until they are. */
enum { COLL_ALL = -1 };
bool coll_meet(coll_comm *c, int peer);

/* What is summed. */
typedef enum coll_elem { COLL_I64, COLL_F32, COLL_BF16 } coll_elem;

/* A call. All ranks must have the same name, type, root and count. */
typedef struct coll_call {
    const char *name;
    int type; /* the library's number */
    int root;
    size_t elem_bytes;
    uint64_t count; /* elements of one rank's part */
    const void *from;
    void *to;
    coll_elem elem; /* of what is summed */
    int first;      /* the rank that sums begin with */
} coll_call;

/* coll_plan_new -- of c, empty; NULL: no memory. coll_plan_drop: it has run, or never will. */
coll_plan *coll_plan_new(coll_comm *c);
void coll_plan_drop(coll_plan *p);
/* coll_all_gather, coll_broadcast, coll_reduce_scatter, coll_all_reduce -- p becomes this call,
 * with the shapes that NCCL and HCCL share. false: no memory. */
bool coll_all_gather(coll_plan *p, const coll_call *call);
bool coll_broadcast(coll_plan *p, const coll_call *call);
bool coll_reduce_scatter(coll_plan *p, const coll_call *call);
bool coll_all_reduce(coll_plan *p, const coll_call *call);
/* coll_message -- p sends or receives this too: call->count elements. false: p is full. */
bool coll_message(coll_plan *p, bool sends, int peer, const coll_call *call);

/* coll_plan_queue -- p is the latest call of this process. */
void coll_plan_queue(coll_plan *p);
/* coll_plan_run -- a stream_fn; args: a coll_plan *. Waits for ranks.
 *   errors  FSDP_ETIMEOUT, FSDP_ECOMM of coll_watch; c keeps that state */
fsdp_status coll_plan_run(void *args, int n_threads);
/* coll_plans_left -- whether plans of c are not over. */
bool coll_plans_left(const coll_comm *c);
/* coll_unread_check -- report messages of c that this rank has not received. */
void coll_unread_check(const coll_comm *c);

/* coll_report -- say what the library would answer with a hang or wrong values, and end the
 * process; with FSDP_SIM_HANGS=1 in the environment return. */
__attribute__((format(printf, 1, 2))) void coll_report(const char *format, ...);

EXTERN_C_END
