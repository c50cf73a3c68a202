/* flat_layout.h -- lab 1: the layout of a flat parameter, which every later lab uses: where each
 * parameter starts, and which pieces of parameters a rank holds.
 *
 * A flat parameter ([FSDP §3.2.1] [ZeRO §5.3]; HINTS.md has the papers) is one 1-D array
 * [padded_elems] that holds all parameters of a unit one after the other, each at an aligned
 * offset. The array is cut into W equal parts, and shard r is the r-th of them: [r*shard_elems,
 * (r+1)*shard_elems). shard_elems is aligned too, so every shard starts at an aligned element. The
 * elements between parameters (gaps) and after the last one (padding) are zero and stay zero.
 *
 * Worked example: parameters a, b, c of 5, 7 and 3 elements; slots and shards aligned to 2; W = 4:
 *     offsets 0, 6, 14; used_elems 18 (17, rounded up to the slot alignment)
 *     shard_elems ceil(18/4) = 5, rounded up to the shard alignment: 6; padded_elems 4*6 = 24
 *     index   0 1 2 3 4 5 | 6 7 8 9 10 11 | 12 13 14 15 16 17 | 18 19 20 21 22 23
 *     param   a a a a a . | b b b b b  b  | b  .  c  c  c  .  | .  .  .  .  .  .
 * b spans ranks 1 and 2. Rank 3 is all padding. */
#pragma once
#include <stddef.h>
#include "common/base/status.h"

typedef struct flat_slot {
    int param;     /* global index of the parameter in the model */
    size_t offset; /* in the flat array, a multiple of the slot alignment */
    size_t elems;
} flat_slot;

/* A run of elements of one parameter that lies in one shard. */
typedef struct flat_piece {
    int slot;           /* index into layout->slots */
    size_t param_begin; /* its first element, counted inside the parameter */
    size_t shard_begin; /* its first element, counted inside the shard */
    size_t elems;       /* >= 1 */
} flat_piece;

typedef struct flat_layout flat_layout;
typedef fsdp_status (*intersect_fn)(const flat_layout *, int rank, flat_piece *, int *n_pieces);

struct flat_layout {
    int world_size, n_slots;
    flat_slot *slots;    /* owned; flat_layout_free */
    size_t used_elems;   /* end of the last slot, rounded up to the slot alignment */
    size_t shard_elems;  /* flat_layout_build sets ceil(used_elems / world_size), aligned up */
    size_t padded_elems; /* to gather: world_size * shard_elems; per-parameter layout: used_elems */
    /* provided, set by dim0_layout (dim0.h) for the per-parameter layout; flat: 0 and NULL */
    int row_ranks;          /* ranks that share the rows */
    struct dim0_rows *rows; /* [n_slots], owned */
    intersect_fn intersect; /* takes the place of task 1.3 */
};

/* flat_intersect -- list the pieces of parameters in rank's shard, in ascending shard_begin.
 *   rank       0 ... world_size-1
 *   pieces     [n_slots], filled from the front; a slot has at most one piece in a shard
 *   *n_pieces  how many; 0 for a rank that is all padding
 * In the example above rank 2 has two pieces: {slot 1, param_begin 6, shard_begin 0, elems 1} and
 * {slot 2, param_begin 0, shard_begin 2, elems 3}. Rank 3 has none. */
fsdp_status flat_intersect(const flat_layout *layout, int rank, flat_piece *pieces, int *n_pieces);
