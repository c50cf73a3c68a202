/* dim0.h -- lab 1, task 1.6 (a star): the per-parameter layout, in which each rank holds whole rows
 * of every parameter [FSDP2 RFC].
 *
 * A parameter of shape [d0, ...] has d0 rows, along its dimension 0. Each of S ranks takes
 * ceil(d0/S) rows, in order; the last ranks may get fewer or none (d0 = 5, S = 4: 2, 2, 1, 0). A
 * rank's shard holds its rows of all parameters, one parameter after the other. In every shard, a
 * parameter has room for ceil(d0/S) rows, which begins at an aligned element. The end of the shard
 * is aligned like these beginnings. What is not rows is padding and is zero.
 *
 * The gathered array is the same as in the flat layout, with the same offsets. The two layouts
 * differ only in which rank holds which elements, so the model computes the same bits.
 *
 * Worked example: parameters a [5,2] and b [3], 10 and 3 elements; slots aligned to 4; S = 2:
 *     gathered   a0 a0 a1 a1  a2 a2 a3 a3  a4 a4  .  .  b0 b1 b2  .       used_elems 16
 *     shard 0    a0 a0 a1 a1  a2 a2  .  .  b0 b1  .  .                    shard_begin 0 and 8,
 *     shard 1    a3 a3 a4 a4   .  .  .  .  b2  .  .  .                    shard_elems 12
 *
 * With R replicas of each shard (a mesh of W = S*R ranks) a shard is cut into R slices of equal
 * length, which may cut rows: of the W slices, slice k is part k % R of shard k / R. In the example
 * with R = 2, where slices are not aligned, slice 1 is the last 6 elements of shard 0. */
#pragma once
#include "lab1_flatparam/flat_param.h"

/* The rows of a slot. */
typedef struct dim0_rows {
    size_t row_elems;   /* elements of one row */
    size_t room_elems;  /* the room in each shard: ceil(d0/S) rows */
    size_t shard_begin; /* where the room begins in every shard, a multiple of the slot alignment */
} dim0_rows;

/* dim0_layout -- turn *l, which flat_layout_build made for W ranks, into the per-parameter layout:
 * set rows, shard_elems (of a slice), padded_elems and row_ranks.
 *   params      the model's; a slot's parameter has dims[0] rows
 *   shard_size  S; it divides W. With S = 1 the only shard is the gathered array itself: only
 *               rows is set, and shard_elems has its value already
 *   align       as passed to flat_layout_build: rooms begin, and a shard ends, at multiples of
 *               slot_elems. A slice is ceil(shard/R) elements, rounded up to align.shard_elems
 *   errors      FSDP_ENOMEM, and errors of size_align_up. The caller frees l after errors too
 *   provided    size_align_up and min_size, in common/base/dtype.h */
fsdp_status dim0_layout(flat_layout *l, const param_spec *params, int shard_size, flat_align align);

/* dim0_intersect -- called by flat_intersect for a per-parameter layout. layout has world_size
 * slices: row_ranks shards, each whole or cut into several slices.
 *   rank    number of the slice
 *   pieces  as in flat_intersect. Shard 1 of the example has {slot 0, param_begin 6, shard_begin 0,
 *           elems 4} and {slot 1, param_begin 2, shard_begin 8, elems 1} */
fsdp_status dim0_intersect(const flat_layout *layout, int rank, flat_piece *pieces, int *n_pieces);
