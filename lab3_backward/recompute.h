/* recompute.h -- lab 3, a star: activation checkpointing. A layer that runs forward again before
 * its backward saves nothing in its first forward.
 *
 * The runner (common/model/runner.h) repeats forward segment by segment. A segment is a run of
 * consecutive layers of one block and one unit. Its second forward comes after the unit's
 * pre_backward, which has gathered the parameters, and calls no hook. So nothing is gathered for
 * it, and the order of units is not recorded again. */
#pragma once
#include "common/model/runner.h"

typedef enum recompute_part {
    RECOMPUTE_NOTHING,
    RECOMPUTE_BLOCK,
    RECOMPUTE_ATTENTION,
    RECOMPUTE_MLP
} recompute_part;

/* Blocks b >= from with (b + 1) % every == 0. Of 6 blocks, from = 0, every = 2 selects 1, 3, 5. */
typedef struct recompute_spec {
    recompute_part part; /* which layers of these blocks */
    int from, every;     /* every >= 1 */
} recompute_spec;

/* ---- 3.10, a star: unscored ------------------------------------------------------------------ */
/* recompute_choose -- number the segments of m from 0, in order of its layers. The chosen layers of
 * a block are one segment, or several if units divide the block.
 *   layer_unit  [n_layers] the unit of each layer
 *   segment     [n_layers] out: NO_SEGMENT for a layer that is not chosen
 *   *n_cut      out: how often a border between units splits a block's chosen layers
 *   provided    recompute_wants says whether a layer is chosen */
fsdp_status recompute_choose(const recompute_spec *spec, const model *m, const int *layer_unit,
                             int *segment, int *n_cut);
bool recompute_wants(const recompute_spec *spec, const layer *l);
/* recompute_segment -- run layers first ... last again, in order, with runner_layer_again. No layer
 * of the segment reads the output of the last one, so its wants_out is false.
 *   source  [Chen et al. 2016] */
fsdp_status recompute_segment(runner *r, int first, int last);
