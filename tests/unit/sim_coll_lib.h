/* sim_coll_lib.h -- what the tests of the stand-ins for NCCL and HCCL share: what a stand-in says
 * of programs that the library would hang on. Each rank is a process that calls the stand-in
 * itself. test_cuda_nccl.c and test_npu_hccl.c test the values. */
#pragma once
#include <stdatomic.h>
#include <stdint.h>
#include "tests/unit/sim_lib.h"

enum { SIM_ELEMS = 50000, SIM_BYTES = 8 << 20, SIM_MOST = 4, SIM_IDS = 4, SIM_ID_BYTES = 4108 };

/* The library under test. Calls return 0 if they succeed; types are the library's numbers. */
typedef struct sim_coll {
    const char *device;        /* FSDP_DEVICE */
    int f32, i64;              /* types */
    bool orders_one_comm;      /* calls of one communicator */
    const char *shared_device; /* the words when two ranks have one device */
    void (*begin)(int device); /* fills sim_me's streams and memory */
    int (*make_id)(void *id);  /* [SIM_ID_BYTES] */
    int (*join)(const void *id, int n, int rank, void **out); /* waits for all */
    int (*close)(void *comm);
    void (*await)(void *q); /* what is queued on q succeeds */
    /* On sim_me's communicator and stream, from a to b: parts of so many elements. */
    int (*gather)(void *comm, size_t elems, int type, void *q);
    int (*reduce_scatter)(size_t elems);                                /* of f32 */
    int (*exchange)(int to, size_t n_send, int from, size_t n_receive); /* bytes; 0: none */
} sim_coll;

/* This rank, in the process of a case. */
typedef struct sim_rank {
    int rank, n, next, last;
    void *comm, *q, *q2;
    char *a, *b; /* on the device, SIM_BYTES */
} sim_rank;
extern sim_rank sim_me;

/* What the ranks of a case tell each other. */
typedef struct sim_shared {
    atomic_int has_id[SIM_IDS], said;
    char id[SIM_IDS][SIM_ID_BYTES];
} sim_shared;
extern sim_shared *sim_shared_by_ranks;

/* sim_join -- joins a communicator of n ranks, with the id of this number. Rank 0 makes the id. */
int sim_join(int number, int n, int rank, void **out);
/* sim_second -- joins another communicator of all ranks, and connects both. */
void *sim_second(void);
/* sim_gather -- an all-gather, which must succeed. sim_finish -- all queued work must succeed. */
void sim_gather(void *comm, size_t elems, int type, void *q);
void sim_finish(void);

/* sim_coll_run -- runs the shared cases and the program's own. */
int sim_coll_run(const sim_coll *library);
