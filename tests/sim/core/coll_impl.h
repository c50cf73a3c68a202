/* coll_impl.h -- what the parts of coll.h share.
 *
 * coll.c       ids, communicators, the processes of other ranks
 * coll_plan.c  plans, their order in this process, sums
 * coll_move.c  a plan on its stream: bytes between processes, and what a device would hang on
 *
 * The processes of an id share one area: for each pair of them a channel, which holds one piece of
 * one message. Every collective is messages between pairs. Areas know nothing of each other, so
 * what a process waits for stands on a board of its own, which all others can read. */
#pragma once
#include <pthread.h>
#include <stdatomic.h>
#include "tests/sim/core/coll.h"

enum {
    COLL_CHUNK_BYTES = 64 << 10,
    COLL_TEXT_CHARS = 160,
    COLL_NAME_CHARS = 24,
    COLL_MEETINGS = 4096
};

/* What a message belongs to; both ends must have the same. */
typedef struct coll_head {
    uint64_t comm;   /* name of the communicator */
    uint64_t number; /* of the collective on it; of the message between the pair */
    uint64_t count;
    int32_t type, root, is_message;
    char name[COLL_NAME_CHARS];
} coll_head;

typedef struct coll_channel {
    atomic_uint full;
    size_t bytes; /* of this piece */
    coll_head head;
    char data[COLL_CHUNK_BYTES];
} coll_channel;

typedef struct coll_process {
    atomic_int joined;
    int device;
    uint64_t board; /* its number, see coll_board_of */
    /* the split that it takes part in: `ready` is written last, `done` when all have been seen */
    atomic_ullong ready, done;
    int color, key;
    /* whom it is ready to be connected to, and in which communicator: see coll_meet */
    atomic_int n_meetings;
    atomic_ullong meeting[COLL_MEETINGS];
} coll_process;

typedef struct coll_area {
    atomic_uint changed; /* a futex: something moved */
    atomic_int n;        /* 0: nobody has joined */
    coll_process process[COLL_RANKS];
    coll_channel channel[COLL_RANKS][COLL_RANKS]; /* [from][to] */
} coll_area;

typedef struct coll_board {
    atomic_ullong waits_for; /* a board; 0: for none */
    atomic_uint steps;       /* grows with everything that moves */
    int rank;                /* in the first communicator */
    char call[COLL_TEXT_CHARS];
} coll_board;

struct coll_comm {
    coll_area *area;
    coll_comm *root; /* which this one was split from, and has the area; NULL: it is one */
    int fd;          /* of the area in the process that made it, until all have it; else -1 */
    int n, rank, member[COLL_RANKS]; /* member: numbers of processes in the area */
    uint64_t name, n_collectives, n_splits, n_sent[COLL_RANKS], n_received[COLL_RANKS];
    atomic_int uses, state;
    double limit_s, lost_s; /* 0: none */
    uint64_t split_tag;
    int color;
};

/* One message, or one rank's half of it. */
typedef struct coll_transfer {
    bool sends;
    int peer; /* rank in the communicator */
    coll_head head;
    char *ptr;
    size_t bytes, moved;
    bool begun; /* a message of 0 bytes is one empty piece */
} coll_transfer;

struct coll_plan {
    struct coll_plan *next; /* in order of issue */
    coll_comm *comm;
    int n;
    coll_transfer transfer[2 * COLL_RANKS];
    char text[COLL_TEXT_CHARS];
    coll_call call;
    /* copied on this rank: its own part */
    char *own_to;
    const char *own_from;
    size_t own_bytes;
    char *parts; /* [n ranks][own_bytes] that are summed into own_to; NULL */
};

/* coll_process_of -- of a rank in the area. coll_wake -- all processes look again. */
coll_process *coll_process_of(const coll_comm *c, int rank);
void coll_wake(coll_area *area);
/* coll_board_of -- that the number names; NULL: its process is gone. coll_has_ended: the same of a
 * process that was seen once. coll_own_board -- of this process: its number. */
coll_board *coll_board_of(uint64_t number);
bool coll_has_ended(uint64_t number);
uint64_t coll_own_board(int rank);

/* coll_turn_await -- until all plans before p are over. */
void coll_turn_await(coll_plan *p);
/* coll_parts_sum -- into own_to. */
void coll_parts_sum(const coll_plan *p);
