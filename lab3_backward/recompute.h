/* recompute.h -- lab 3, a star: activation checkpointing. A layer that runs again before its
 * backward needs to keep nothing from its forward.
 *
 * The runner (common/model/runner.h) does the second forward segment by segment. A segment is a run
 * of layers of one block and of one unit. Since it lies inside one unit, its second forward comes
 * after the unit's pre_backward, which has gathered the parameters, and calls no hook: nothing is
 * gathered for it, and no order of units is recorded anew. */
#pragma once
#include "common/model/runner.h"

typedef enum recompute_part {
    RECOMPUTE_NOTHING,
    RECOMPUTE_BLOCK,
    RECOMPUTE_ATTENTION,
    RECOMPUTE_MLP
} recompute_part;

/* Of the blocks from `from` on, the every-th, counted from 1: from 0, every 2 of 6 is 1, 3, 5. */
typedef struct recompute_spec {
    recompute_part part; /* which layers of such a block */
    int from, every;     /* every >= 1 */
} recompute_spec;

/* ---- 3.10, a star: unscored ------------------------------------------------------------------ */
/* recompute_choose -- number the segments of m from 0, in order of its layers. The chosen layers of
 * a block are one segment, or several where units divide the block.
 *   layer_unit  [n_layers] the unit of each layer
 *   segment     [n_layers] out: NO_SEGMENT for a layer that is not chosen
 *   *n_cut      out: how many times a unit's border has cut a block's layers
 *   provided    recompute_wants says whether a layer is chosen */
fsdp_status recompute_choose(const recompute_spec *spec, const model *m, const int *layer_unit,
                             int *segment, int *n_cut);
bool recompute_wants(const recompute_spec *spec, const layer *l);
/* recompute_segment -- run layers first ... last once more, in order, by runner_layer_again. No
 * layer that runs again reads the output of the last one.
 *   source  [Chen et al. 2016] */
fsdp_status recompute_segment(runner *r, int first, int last);
