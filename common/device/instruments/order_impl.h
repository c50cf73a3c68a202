/* order_impl.h -- types and functions that the files of the order checker share; private to
 * common/device/instruments.
 *
 * order_memory.c  live blocks and the accesses to them
 * order_check.c   the rules and the reports, by the clocks of order_clock.h */
#pragma once
#include "common/device/instruments/order_check.h"
#include "common/device/order_clock.h"

/* ---- memory --------------------------------------------------------------------------------- */

/* The name of an operation, and what it was issued for: "matmul", " (h.0.attn forward)". */
typedef struct order_op {
    char what[40], where[112];
} order_op;

/* One operation's access to bytes begin ... end-1 of a block. */
typedef struct order_access {
    order_op op;
    const char *verb; /* "reads", a literal */
    int slot;
    bool writes;
    uint64_t number; /* of the operation, on its stream */
    size_t begin, end;
} order_access;

typedef struct order_block {
    const char *begin;
    size_t bytes;
    const char *label;
    order_access *log; /* [n_log], accesses that later ones can conflict with */
    size_t n_log, log_room;
} order_block;

/* The last blocks that were freed. */
enum { ORDER_FREED = 256 };
typedef struct order_freed {
    const char *begin, *label;
    size_t bytes;
    order_access by;
} order_freed;

typedef struct order_memory {
    order_block **live; /* [n_live], sorted by address */
    size_t n_live, live_room;
    order_freed freed[ORDER_FREED];
    size_t n_freed;
} order_memory;

/* order_block_find -- the live block that contains ptr; NULL: none. */
order_block *order_block_find(const order_memory *m, const void *ptr);
/* order_block_begin -- add a live block without accesses; NULL: no memory. */
order_block *order_block_begin(order_memory *m, const void *ptr, size_t bytes, const char *label);
/* order_block_end -- `by` frees block b: release it, and note it in m->freed. */
void order_block_end(order_memory *m, order_block *b, const order_access *by);
/* order_freed_find -- the block that contained ptr and was freed last; NULL: none is known. */
const order_freed *order_freed_find(const order_memory *m, const void *ptr);
/* order_log_add -- log an access to b; false: no memory. */
bool order_log_add(order_block *b, const order_access *a);
/* order_memory_free -- release all live blocks. */
void order_memory_free(order_memory *m);
