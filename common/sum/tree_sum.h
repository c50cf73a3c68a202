/* tree_sum.h -- a sum with one fixed shape: a balanced binary tree over numbered leaves.
 *
 * Definition (T(i,k) is the node over leaves i*2^k ... (i+1)*2^k - 1):
 *     T(i,0) = leaf i          T(i,k) = T(2i,k-1) + T(2i+1,k-1)
 *     a right child with no leaves at all is skipped: then T(i,k) = T(2i,k-1)
 * The sum of n leaves is the root over them. It is computed by a binary counter: slot[k] holds a
 * finished node of level k that still waits for its right sibling.
 *
 *     push(level, x)   x is the next node of that level; equal levels merge, as carries do
 *     finish(&sum)     merges what is left, from the right
 *
 * Worked example, 7 leaves:  slots after the pushes: [2]=0..3 [1]=4,5 [0]=6
 *     finish: (4,5)+6, then (0..3)+that.
 * Who pushes does not matter, only which nodes: a single device pushes leaves, rank r pushes the
 * finished node over its own block. That is why the bits do not depend on the number of ranks.
 *
 * The counter knows nothing of memory: the caller's `space` says how a pushed vector is kept and
 * where a sum is put. grad_acc.c has a space of device vectors, which copies what it keeps;
 * sum_run_cpu.c one of blocks of a few kB, which borrows it. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include "common/base/status.h"

enum { TREE_SUM_LEVELS = 48 };

typedef struct tree_sum_space {
    void *ctx; /* passed to each function */
    /* keep -- *slot = a vector that holds vec: a copy, or vec itself where the caller leaves it as
     * it is until the sum is done. */
    fsdp_status (*keep)(void *ctx, const float *vec, float **slot);
    /* add -- *left = *left + right, a node of `level`: in place, or in another vector that stands
     * for *left from then on. */
    fsdp_status (*add)(void *ctx, int level, float **left, const float *right);
    void (*put)(void *ctx, float *vec); /* give back a vector that stood in a slot */
} tree_sum_space;

typedef struct tree_sum {
    tree_sum_space space;
    float *slot[TREE_SUM_LEVELS]; /* NULL when empty */
} tree_sum;

void tree_sum_init(tree_sum *t, tree_sum_space space);

/* tree_sum_push -- add the next node of `level`. vec is kept by the space or added before return
 * (or, when the space is stream-ordered, in stream order). Pushing a level-k node while a lower
 * slot is occupied would leave a gap in the numbering: asserted.                                 */
fsdp_status tree_sum_push(tree_sum *t, int level, const float *vec);

/* tree_sum_push_in_turn -- no tree: slot 0 is a plain sum in the order of these calls. Not to be
 * mixed with tree_sum_push; finish returns it. */
fsdp_status tree_sum_push_in_turn(tree_sum *t, const float *vec);

/* tree_sum_finish -- *sum = the root (the caller owns it and gives it back with space.put), NULL if
 * nothing was pushed; the counter is empty afterwards.                                           */
fsdp_status tree_sum_finish(tree_sum *t, float **sum);

/* tree_sum_clear -- give back everything; a zeroed struct is accepted. */
void tree_sum_clear(tree_sum *t);

/* tree_sum_live -- vectors held now; after n pushes of one level at most floor(log2(n)) + 1. */
int tree_sum_live(const tree_sum *t);

/* tree_sum_waiting -- nodes of `level` that the slots stand for: bit k is set where slot level + k
 * is occupied. Slots below are empty, which is asserted. */
uint64_t tree_sum_waiting(const tree_sum *t, int level);

/* tree_sum_f32 -- the same sum of n floats, by the recursive definition. O(n) time, O(log n) stack.
 * The tests prove counter and definition equal.                                                  */
float tree_sum_f32(const float *leaves, size_t n);
