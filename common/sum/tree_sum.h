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
 * The counter knows nothing of devices: the caller's `space` allocates, copies and adds vectors. */
#pragma once
#include <stddef.h>
#include "common/base/status.h"

enum { TREE_SUM_LEVELS = 48 };

typedef struct tree_sum_space {
    void *ctx;                                                      /* passed to each function */
    fsdp_status (*get)(void *ctx, float **vec);                     /* a new vector, owner: tree */
    void (*put)(void *ctx, float *vec);                             /* give it back */
    fsdp_status (*copy)(void *ctx, float *dst, const float *src);   /* dst = src */
    fsdp_status (*add)(void *ctx, float *left, const float *right); /* left = left + right */
} tree_sum_space;

typedef struct tree_sum {
    tree_sum_space space;
    float *slot[TREE_SUM_LEVELS]; /* NULL when empty */
} tree_sum;

void tree_sum_init(tree_sum *t, tree_sum_space space);

/* tree_sum_push -- add the next node of `level`. vec is borrowed: copied or added before return
 * (or, when the space is stream-ordered, in stream order). Pushing a level-k node while a lower
 * slot is occupied would leave a gap in the numbering: asserted.                                 */
fsdp_status tree_sum_push(tree_sum *t, int level, const float *vec);

/* tree_sum_finish -- *sum = the root (the caller owns it and gives it back with space.put), NULL if
 * nothing was pushed; the counter is empty afterwards.                                           */
fsdp_status tree_sum_finish(tree_sum *t, float **sum);

/* tree_sum_clear -- give back everything; a zeroed struct is accepted. */
void tree_sum_clear(tree_sum *t);

/* tree_sum_live -- vectors held now; after n pushes of one level at most floor(log2(n)) + 1. */
int tree_sum_live(const tree_sum *t);

/* tree_sum_f32 -- the same sum of n floats, by the recursive definition. O(n) time, O(log n) stack.
 * The tests prove counter and definition equal.                                                  */
float tree_sum_f32(const float *leaves, size_t n);
