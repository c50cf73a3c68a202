/* tree_sum.h -- a sum with one fixed shape: a balanced binary tree over numbered leaves.
 *
 * Definition (T(i,k) is the node over leaves i*2^k ... (i+1)*2^k - 1):
 *     T(i,0) = leaf i          T(i,k) = T(2i,k-1) + T(2i+1,k-1)
 *     a right child with no leaves at all is skipped: then T(i,k) = T(2i,k-1)
 * The sum of n leaves is the root over them. A binary counter computes it: slot[k] holds a finished
 * node of level k that waits for its right sibling.
 *
 *     push(level, x)   x is the next node of that level; two nodes of a level merge, like a carry
 *     finish(&sum)     merges the nodes that are left, from the right
 *
 * Worked example, 7 leaves:  slots after the pushes: [2]=0..3 [1]=4,5 [0]=6
 *     finish: (4,5)+6, then (0..3)+that.
 * The sum depends on which nodes are pushed, not on who pushes them: a single device pushes leaves,
 * and rank r pushes the finished node over its own block. So the bits do not depend on the number
 * of ranks.
 *
 * The counter does not manage memory: the caller's `space` decides how a pushed vector is kept and
 * where a sum is written. The space of grad_acc.c has device vectors, and copies the ones it keeps.
 * The space of sum_run_cpu.c has blocks of a few kB, and borrows them. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/base/status.h"

EXTERN_C_BEGIN

enum { TREE_SUM_LEVELS = 48 };

typedef struct tree_sum_space {
    void *ctx; /* passed to each function */
    /* keep -- *slot = a vector that holds vec: a copy, or vec itself if its owner does not change
     * it until the sum is done. */
    fsdp_status (*keep)(void *ctx, const float *vec, float **slot);
    /* add -- *left = *left + right, a node of `level`: in place, or in another vector that *left is
     * set to. */
    fsdp_status (*add)(void *ctx, int level, float **left, const float *right);
    void (*put)(void *ctx, float *vec); /* give back a vector that was in a slot */
} tree_sum_space;

typedef struct tree_sum {
    tree_sum_space space;
    bool in_turn; /* no tree: slot 0 is a plain sum in the order of the pushes, at any level; set it
                     before the first one */
    float *slot[TREE_SUM_LEVELS]; /* NULL when empty */
} tree_sum;

/* tree_sum_init -- an empty counter; space is copied, its ctx borrowed. */
void tree_sum_init(tree_sum *t, tree_sum_space space);

/* tree_sum_push -- add the next node of `level`. Its lower slots must be empty, or the numbering
 * would have a gap (asserted).
 *   vec     the space keeps it or adds it before the call returns (in a stream-ordered space, in
 *           stream order)
 *   errors  of the space; the sum is undefined then, until tree_sum_clear */
fsdp_status tree_sum_push(tree_sum *t, int level, const float *vec);

/* tree_sum_finish -- *sum = the root, or NULL if nothing was pushed, and empty the counter.
 *   *sum  owned by the caller, who gives it back with space.put */
fsdp_status tree_sum_finish(tree_sum *t, float **sum);

/* tree_sum_clear -- give all vectors back; a zeroed struct is accepted. */
void tree_sum_clear(tree_sum *t);

/* tree_sum_waiting -- how many nodes of `level` the slots hold: bit k is set if slot level + k is
 * occupied. The slots below must be empty (asserted). */
uint64_t tree_sum_waiting(const tree_sum *t, int level);

/* tree_sum_f32 -- the same sum of n floats by the recursive definition, in O(n) time and O(log n)
 * stack. The tests prove that the counter equals it. */
float tree_sum_f32(const float *leaves, size_t n);

EXTERN_C_END
