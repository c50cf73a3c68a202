/* flat_param.h -- lab 1: what lives where. A unit's parameters become one padded array in W shards.
 *
 *   wrap_assign        which unit every layer belongs to
 *   flat_layout_build  where every parameter of a unit starts in the unit's flat array
 *   shard_range        which part of a flat array a rank owns
 *   flat_layout_cut    the same flat array, cut for another number of ranks
 *   flat_intersect     which pieces of which parameters lie in a rank's shard
 *   flat_init_shard    fill a shard with initial values; the full array never exists
 *
 * Read flat_layout.h first: it defines the flat parameter. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "common/model/unit.h"
#include "lab1_flatparam/flat_layout.h"

/* The alignment of slots and shards in training. 32 elements are 64 bytes of bf16 or 128 bytes of
 * fp32, so every parameter and every shard starts on a cache line on any number of ranks. Vector
 * loads and device kernels prefer that. The examples and tests use 1, 2 and 4. */
enum { FLAT_ALIGN_ELEMS = 32 };

/* ---- 1.1 ------------------------------------------------------------------------------------- */
typedef struct shard_span {
    size_t shard_elems; /* ceil(total_elems / W), rounded up to the alignment; same on every rank */
    size_t begin;       /* the first element this rank owns; total_elems when it owns none */
    size_t elems;       /* the real elements it owns: 0 ... shard_elems */
    size_t pad_elems;   /* shard_elems - elems: the zeros after them */
} shard_span;

/* shard_range -- which of total_elems elements rank owns; shards are a multiple of align_elems.
 *   n=10, align 1, W=4 -> 3, 3, 3, 1+2 pad      n=5, align 1, W=4 -> 2, 2, 1+1 pad, 0+2 pad
 *   n=10, align 2, W=4 -> 4, 4, 2+2 pad, 0+4 pad
 *   n=1,  align 1, W=3 -> 1, 0+1 pad, 0+1 pad
 * total_elems may be 0: then all shards are empty.
 *   errors  FSDP_EINVAL: align_elems or world_size < 1, rank outside 0 ... world_size-1, or the W
 *           shards together do not fit a size_t
 * Helpers that check for overflow (common/base/dtype.h): size_align_up(elems, align, what, &out)
 * and size_mul(a, b, what, &out); what: a word for the message. */
fsdp_status shard_range(size_t total_elems, size_t align_elems, int world_size, int rank,
                        shard_span *out);

/* ---- 1.2 ------------------------------------------------------------------------------------- */
typedef struct flat_align {
    size_t slot_elems, shard_elems; /* slots and shards start at multiples of these; 1: no gaps */
} flat_align;

/* flat_layout_build -- place parameters in order, each at the next multiple of align.slot_elems,
 * and cut the array into shards of a multiple of align.shard_elems.
 *   n_params       0 gives a layout without elements
 *   params, elems  [n_params]: params[i] has elems[i] elements; read during the call
 *   out            free it with flat_layout_free, also after a failure
 *   errors         FSDP_EINVAL: n_params < 0, world_size or an alignment < 1, a size that
 *                  overflows; FSDP_ENOMEM */
fsdp_status flat_layout_build(int n_params, const int *params, const size_t *elems,
                              flat_align align, int world_size, flat_layout *out);
/* flat_layout_free -- free the slots; a zeroed struct is accepted. */
void flat_layout_free(flat_layout *l);

/* flat_layout_cut -- provided: the same flat array, cut into n_ranks equal parts. A mesh pads the
 * array for all ranks and shards it over a group of n_ranks.
 *   l        all its shards together have a multiple of n_ranks elements (asserted)
 *   returns  a copy of l that differs in world_size (n_ranks) and shard_elems. It borrows the
 *            slots: it is valid until l is freed, and must not be passed to flat_layout_free
 * The example in flat_layout.h, cut for 2 ranks, has shards of 12: rank 0 holds a and
 * 6 elements of b; rank 1 holds the last element of b, and c. */
flat_layout flat_layout_cut(const flat_layout *l, int n_ranks);

/* ---- 1.3: flat_intersect, in flat_layout.h --------------------------------------------------- */
/* flat_pieces -- provided: flat_intersect into a new array, which the caller frees. */
fsdp_status flat_pieces(const flat_layout *layout, int rank, flat_piece **out, int *n_pieces);

/* ---- 1.4 ------------------------------------------------------------------------------------- */
typedef enum module_kind { MODULE_MODEL, MODULE_BLOCK, MODULE_LAYER } module_kind;

/* The model as a tree of modules: node 0 is the model, its children are blocks and the layers
 * outside blocks, and a block's children are its layers. Parents come before their children. Only
 * layers own parameters. */
typedef struct module_node {
    module_kind kind;
    int parent;       /* -1 for node 0 */
    int layer;        /* index of the model's layer; -1 for the model and for blocks */
    size_t own_elems; /* elements of its own parameters; a tied one counts at its first use */
    bool tied;        /* holds a parameter whose storage another node shares */
} module_node;

typedef struct module_tree {
    int n_nodes;
    module_node *nodes;
} module_tree;

typedef enum wrap_policy { WRAP_BLOCK, WRAP_SUB_BLOCK, WRAP_SIZE, WRAP_MODEL } wrap_policy;

/* module_tree_build -- provided: the tree of m's blocks and layers; free it with module_tree_free.
 *   errors  FSDP_ENOMEM; nothing is left behind */
fsdp_status module_tree_build(const model *m, module_tree *out);
/* module_tree_free -- free the nodes; a zeroed struct is accepted. */
void module_tree_free(module_tree *t);

/* wrap_assign -- decide which unit every node belongs to. A node becomes a unit of its own when
 *     WRAP_BLOCK      it is a block
 *     WRAP_SUB_BLOCK  it is a layer
 *     WRAP_SIZE       it has >= min_elems elements, not counting units and tied nodes below it
 * No policy applies to two kinds of nodes. Node 0 is always a unit, the root unit. A tied node is
 * never one: storage that is used in two places must be gathered for both, so a tied node and its
 * elements belong to the root unit, even inside a block. Any other node that is not a unit belongs
 * to its parent's unit. Decide children before parents, because a parent counts only the elements
 * that its children left. The root is unit 0; the others are numbered by ascending node. A unit
 * without parameters is kept. It has no layer, so its hooks are never called.
 *   unit_of_node  [n_nodes]
 *   *n_units      >= 1
 *   errors        FSDP_ENOMEM
 *   source        [FSDP §4.2] */
fsdp_status wrap_assign(const module_tree *tree, wrap_policy policy, size_t min_elems,
                        int *unit_of_node, int *n_units);

/* ---- 1.5 ------------------------------------------------------------------------------------- */
/* flat_init_shard -- fill rank's shard with the initial values of its parameters.
 *   shard   [shard_elems], host; each piece comes from param_init_range, gaps and padding are zero
 *   memory  an array of n_slots pieces, and nothing else
 *   errors  FSDP_ENOMEM, and errors of flat_intersect */
fsdp_status flat_init_shard(const flat_layout *layout, const model *m, uint64_t seed, int rank,
                            float *shard);

/* ---- 1.0: a prediction, checked but unscored; see predict.c ---------------------------------- */
typedef struct predict_answer {
    const char *question;
    long answer;
} predict_answer;
/* predict_answers -- your answers, [*n_answers], in static memory. */
const predict_answer *predict_answers(int *n_answers);
