/* coll_impl.h -- shared by the parts of coll.h.
 *
 *   coll.c       ids, communicators, the processes of other ranks
 *   coll_plan.c  plans, their order in this process, sums
 *   coll_move.c  runs a plan on its stream: moves bytes, and finds what a device would hang on
 *
 * The processes of an id share one area. The area has a channel for each pair of processes, which
 * holds one piece of one message. Every collective consists of messages between pairs. Areas are
 * independent, so each process writes what it waits for on its own board, which all other processes
 * can read. */
#pragma once
#include <pthread.h>
#include <stdatomic.h>
#include "tests/sim/core/coll.h"

enum {
    COLL_CHUNK_BYTES = 64 << 10,
    COLL_TEXT_CHARS = 160,
    COLL_NAME_CHARS = 28,
    COLL_MEETINGS = 4096
};

/* Identifies a message; both ends must have the same head, which is compared as bytes. */
typedef struct coll_head {
    uint64_t comm;   /* name of the communicator */
    uint64_t number; /* of the collective on comm, or of the message between the pair */
    uint64_t count;
    int32_t type, is_message;
    char name[COLL_NAME_CHARS];
} coll_head;
_Static_assert(sizeof(coll_head) == 3 * sizeof(uint64_t) + 3 * sizeof(int32_t) + COLL_NAME_CHARS,
               "no padding, whose bytes are undefined");

typedef struct coll_channel {
    atomic_uint full;
    size_t bytes; /* of this piece */
    coll_head head;
    char data[COLL_CHUNK_BYTES];
} coll_channel;

typedef struct coll_process {
    atomic_int joined;
    int device;
    uint64_t board; /* the number of its board, see coll_board_of */
    /* the split it takes part in: `ready` is written last, `done` after all ranks were seen */
    atomic_ullong ready, done;
    int color, key;
    /* names of the peer and communicator that it is ready to be connected to: see coll_meet */
    atomic_int n_meetings;
    atomic_ullong meeting[COLL_MEETINGS];
} coll_process;

typedef struct coll_area {
    atomic_uint changed; /* a futex, woken when something moved */
    atomic_int n;        /* 0: nobody has joined */
    coll_process process[COLL_RANKS];
    coll_channel channel[COLL_RANKS][COLL_RANKS]; /* [from][to] */
} coll_area;

typedef struct coll_board {
    atomic_ullong waits_for; /* number of a board; 0 if it waits for nobody */
    atomic_uint steps;       /* counts every move */
    int rank;                /* in the first communicator */
    char call[COLL_TEXT_CHARS];
} coll_board;

struct coll_comm {
    coll_area *area;
    coll_comm *root; /* has the area, and was split into this one; NULL: this one has it */
    int fd; /* of the area, in the process that made it, until all ranks have it; else -1 */
    int n, rank, member[COLL_RANKS]; /* member: indices of processes in the area */
    uint64_t name, n_collectives, n_splits, n_sent[COLL_RANKS], n_received[COLL_RANKS];
    atomic_int uses, state;
    double limit_s, lost_s; /* 0: no limit */
    uint64_t split_tag;
    int color;
};

/* A message, seen from one of its two ranks. */
typedef struct coll_transfer {
    bool sends;
    int peer; /* rank in the communicator */
    coll_head head;
    char *ptr;
    size_t bytes, moved;
    bool begun; /* a message of 0 bytes moves as one empty piece */
} coll_transfer;

struct coll_plan {
    struct coll_plan *next; /* in the order of coll_plan_queue */
    coll_comm *comm;
    int n;
    coll_transfer transfer[2 * COLL_RANKS];
    char text[COLL_TEXT_CHARS];
    coll_call call;
    /* this rank's own part, which is copied locally */
    char *own_to;
    const char *own_from;
    size_t own_bytes;
    char *parts; /* [n ranks][own_bytes], summed into own_to; NULL if there is no sum */
};

/* coll_process_of -- the slot of a rank in the area. coll_wake -- make all processes look again. */
coll_process *coll_process_of(const coll_comm *c, int rank);
void coll_wake(coll_area *area);
/* coll_board_of -- the board with this number; NULL if its process is gone. coll_has_ended --
 * whether the process of a known board has ended. coll_own_board -- the number of this process's
 * board. */
coll_board *coll_board_of(uint64_t number);
bool coll_has_ended(uint64_t number);
uint64_t coll_own_board(int rank);

/* coll_turn_await -- wait until all plans before p are over. */
void coll_turn_await(coll_plan *p);
/* coll_parts_sum -- sum p's parts into own_to. */
void coll_parts_sum(const coll_plan *p);
