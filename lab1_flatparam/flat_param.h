/* flat_param.h -- lab 1: what lives where. From a unit's parameters to one padded array, cut in W.
 *
 *   wrap_assign       which unit every layer belongs to
 *   flat_layout_build where every parameter of a unit starts in the unit's flat array
 *   shard_range       which part of a flat array a rank owns
 *   flat_layout_cut   the same flat array, cut for another number of ranks
 *   flat_intersect    which pieces of which parameters lie in a rank's shard
 *   flat_init_shard   fill a shard with initial values; the full array never exists
 *
 * A flat parameter [FSDP §3.2.1] [ZeRO §5.3] is one 1-D array [padded_elems] holding all
 * parameters of a unit one behind the other, each at an aligned offset. Shard r is the r-th of W
 * equal parts of it: [r*shard_elems, (r+1)*shard_elems). shard_elems is aligned as well, so every
 * shard starts at an aligned element. Elements between parameters (alignment) and behind the last
 * (padding) are zero and stay zero.
 *
 * Worked example: parameters a, b, c of 5, 7 and 3 elements; slots and shards aligned to 2; W = 4:
 *     offsets 0, 6, 14; used_elems 18 (17, rounded up to the slot alignment)
 *     shard_elems ceil(18/4) = 5, rounded up to the shard alignment: 6; padded_elems 4*6 = 24
 *     index   0 1 2 3 4 5 | 6 7 8 9 10 11 | 12 13 14 15 16 17 | 18 19 20 21 22 23
 *     param   a a a a a . | b b b b b  b  | b  .  c  c  c  .  | .  .  .  .  .  .
 * b spans ranks 1 and 2. Rank 3 is all padding.                                                  */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/base/status.h"
#include "common/model/unit.h"

/* What training aligns slots and shards to. 32 elements are 64 bytes of bf16 and 128 of fp32, so
 * every parameter and every shard starts on 64 bytes on any number of ranks: a cache line, and what
 * vector loads and device kernels like. The examples and tests use 1, 2 and 4. */
enum { FLAT_ALIGN_ELEMS = 32 };

/* ---- 1.1 ------------------------------------------------------------------------------------- */
typedef struct shard_span {
    size_t shard_elems; /* ceil(total_elems / W), rounded up to the alignment; same on every rank */
    size_t begin;       /* first element this rank owns; total_elems when it owns none */
    size_t elems;       /* real elements it owns: 0 ... shard_elems */
    size_t pad_elems;   /* shard_elems - elems: zeros behind them */
} shard_span;

/* shard_range -- rank's part of total_elems elements, in shards of a multiple of align_elems.
 *   n=10, align 1, W=4 -> 3, 3, 3, 1+2 pad      n=5, align 1, W=4 -> 2, 2, 1+1 pad, 0+2 pad
 *   n=10, align 2, W=4 -> 4, 4, 2+2 pad, 0+4 pad
 *   n=1,  align 1, W=3 -> 1, 0+1 pad, 0+1 pad
 *   errors  FSDP_EINVAL: align_elems or world_size < 1, rank outside 0..world_size-1, shards that
 *           do not fit a size_t together
 * Helpers: size_align_up and size_mul of common/base/dtype.h, which check what they compute. */
fsdp_status shard_range(size_t total_elems, size_t align_elems, int world_size, int rank,
                        shard_span *out);

/* ---- 1.2 ------------------------------------------------------------------------------------- */
typedef struct flat_slot {
    int param;     /* caller's number of the parameter (the model's global index) */
    size_t offset; /* in the flat array, a multiple of the slot alignment */
    size_t elems;
} flat_slot;

typedef struct flat_layout {
    int world_size, n_slots;
    flat_slot *slots;    /* owned; flat_layout_free */
    size_t used_elems;   /* end of the last slot, rounded up to the slot alignment */
    size_t shard_elems;  /* ceil(used_elems / world_size), rounded up to the shard alignment */
    size_t padded_elems; /* world_size * shard_elems */
} flat_layout;

typedef struct flat_align {
    size_t slot_elems, shard_elems; /* slots, shards start at multiples of this; 1: packed */
} flat_align;

/* flat_layout_build -- place n_params parameters (params[i] with elems[i] elements) in order, each
 * at the next multiple of align.slot_elems; cut the array in shards of a multiple of
 * align.shard_elems.
 *   n_params  0 gives a layout without elements
 *   errors    FSDP_EINVAL: world_size or an alignment < 1, a size that overflows; FSDP_ENOMEM.
 *             flat_layout_free is due all the same */
fsdp_status flat_layout_build(int n_params, const int *params, const size_t *elems,
                              flat_align align, int world_size, flat_layout *out);
void flat_layout_free(flat_layout *l); /* a zeroed struct is accepted */

/* flat_layout_cut -- the same flat array, cut in n_ranks equal parts: provided. A mesh of ranks
 * pads the array for all of them and shards the parameters over a group of n_ranks.
 *   l        padded_elems must be a multiple of n_ranks (asserted)
 *   returns  a copy that differs in world_size (n_ranks) and shard_elems. It borrows the slots: it
 *            is valid until l is freed, and never passed to flat_layout_free
 * The example of W = 4 cut for 2: shards of 12; rank 0 holds a and 6 elements of b, rank 1 the last
 * element of b, and c. */
flat_layout flat_layout_cut(const flat_layout *l, int n_ranks);

/* ---- 1.3 ------------------------------------------------------------------------------------- */
/* A run of elements of one parameter that lies in one shard. */
typedef struct flat_piece {
    int slot;           /* index into layout->slots */
    size_t param_begin; /* first element, counted inside the parameter */
    size_t shard_begin; /* where it stands in the shard */
    size_t elems;       /* >= 1 */
} flat_piece;

/* flat_intersect -- the pieces of rank's shard, in ascending shard_begin; never more than n_slots.
 *   pieces     [layout->n_slots], filled from the front
 *   *n_pieces  how many; 0 for an all-padding rank
 * In the example above rank 2 has two pieces: {slot 1, param_begin 6, shard_begin 0, elems 1} and
 * {slot 2, param_begin 0, shard_begin 2, elems 3}. Rank 3 has none. */
fsdp_status flat_intersect(const flat_layout *layout, int rank, flat_piece *pieces, int *n_pieces);

/* ---- 1.4 ------------------------------------------------------------------------------------- */
typedef enum module_kind { MODULE_MODEL, MODULE_BLOCK, MODULE_LAYER } module_kind;

/* The model as a tree of modules: the model, its blocks, their parts (layers). Parents stand before
 * their children; node 0 is the model. Only parts own parameters. */
typedef struct module_node {
    module_kind kind;
    int parent;       /* -1 for node 0 */
    int layer;        /* the model's layer, -1 when the node has none of its own */
    size_t own_elems; /* parameters of the node itself, tied ones not counted again */
    bool tied;        /* holds a parameter whose storage is shared with another node */
} module_node;

typedef struct module_tree {
    int n_nodes;
    module_node *nodes;
} module_tree;

typedef enum wrap_policy { WRAP_BLOCK, WRAP_SUB_BLOCK, WRAP_SIZE, WRAP_MODEL } wrap_policy;

fsdp_status module_tree_build(const model *m, module_tree *out); /* provided */
void module_tree_free(module_tree *t);

/* wrap_assign -- the unit of every node, decided inside-out [FSDP §4.2]: children before parents,
 * so that a parent only gets what its children left.
 *   A node becomes a unit of its own when
 *     WRAP_BLOCK      it is a block            WRAP_SUB_BLOCK  it is a part
 *     WRAP_SIZE       the elements below it (and its own) that no inner unit took are >= min_elems
 *     WRAP_MODEL      never
 *   and always when it is node 0 (the root unit); never otherwise when it is tied: storage that is
 *   used in two places must be gathered for both, so it stays with the root.
 *   Units are numbered from 0 = root, then by ascending node. A node that is no unit has the unit
 *   of its parent. A unit without parameters is kept: it has no layer, so no hook ever names it.
 *   unit_of_node [n_nodes], *n_units >= 1 */
fsdp_status wrap_assign(const module_tree *tree, wrap_policy policy, size_t min_elems,
                        int *unit_of_node, int *n_units);

/* ---- 1.5 ------------------------------------------------------------------------------------- */
/* flat_init_shard -- shard [shard_elems] (host) = rank's part of the flat array of initial values
 * (param_init_range per piece), zero in gaps and padding. No other memory than n_slots pieces. */
fsdp_status flat_init_shard(const flat_layout *layout, const model *m, uint64_t seed, int rank,
                            float *shard);

/* ---- 1.0: a prediction, checked but unscored; see predict.c ---------------------------------- */
typedef struct predict_answer {
    const char *question;
    long answer;
} predict_answer;
const predict_answer *predict_answers(int *n_answers);
