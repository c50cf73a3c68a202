/* tree_sum.c -- the binary counter of partial sums, and the recursive definition it equals.
 *
 *   init -> push ... push -> finish -> push ... (the next sum) -> clear
 *
 * The tree owns the vectors in its slots; the caller owns a vector that finish returned. After a
 * failed call every vector is still in a slot, and the sum is undefined until clear gives them all
 * back. */
#include "common/sum/tree_sum.h"

#include <string.h>

void tree_sum_init(tree_sum *t, tree_sum_space space)
{
    memset(t, 0, sizeof *t);
    t->space = space;
}

/* A new node of level k is the next one only if every lower level is complete. If a lower slot were
 * occupied, the node's leaves would come after a gap in the numbering. */
static void assert_no_gap(const tree_sum *t, int level)
{
    FSDP_ASSERT(level >= 0 && level < TREE_SUM_LEVELS - 1);
    for (int k = 0; k < level; k++)
        if (t->slot[k] != NULL)
            FSDP_ASSERT_EQ(k, level); /* fails, and prints both levels */
}

fsdp_status tree_sum_push(tree_sum *t, int level, const float *vec)
{
    const tree_sum_space *space = &t->space;
    float **slot = t->slot;
    if (t->in_turn)
        level = 0;
    assert_no_gap(t, level);
    if (slot[level] == NULL)
        return space->keep(space->ctx, vec, &slot[level]);
    if (t->in_turn)
        return space->add(space->ctx, 0, &slot[0], vec);
    TRY(space->add(space->ctx, level + 1, &slot[level], vec)); /* now a node of level + 1 */
    for (; slot[level + 1] != NULL; level++) { /* 0111 + 1: carry until a slot is free */
        TRY(space->add(space->ctx, level + 2, &slot[level + 1], slot[level]));
        space->put(space->ctx, slot[level]);
        slot[level] = NULL;
        FSDP_ASSERT(level + 2 < TREE_SUM_LEVELS);
    }
    slot[level + 1] = slot[level];
    slot[level] = NULL;
    return FSDP_OK;
}

fsdp_status tree_sum_finish(tree_sum *t, float **sum)
{
    const tree_sum_space *space = &t->space;
    float **right = NULL; /* the slot that holds the sum of everything right of level k */
    *sum = NULL;
    for (int k = 0; k < TREE_SUM_LEVELS; k++) {
        if (t->slot[k] == NULL)
            continue;
        if (right != NULL) {
            TRY(space->add(space->ctx, k + 1, &t->slot[k], *right));
            space->put(space->ctx, *right);
            *right = NULL;
        }
        right = &t->slot[k];
    }
    if (right != NULL) {
        *sum = *right;
        *right = NULL;
    }
    return FSDP_OK;
}

void tree_sum_clear(tree_sum *t)
{
    for (int k = 0; k < TREE_SUM_LEVELS; k++) {
        if (t->slot[k] != NULL)
            t->space.put(t->space.ctx, t->slot[k]);
        t->slot[k] = NULL;
    }
}

uint64_t tree_sum_waiting(const tree_sum *t, int level)
{
    uint64_t nodes = 0;
    assert_no_gap(t, level);
    for (int k = level; k < TREE_SUM_LEVELS; k++)
        nodes |= (uint64_t)(t->slot[k] != NULL) << (k - level);
    return nodes;
}

/* Split n leaves at the largest power of two below n: 7 -> 4+3 -> (2+2) + (2+1). */
float tree_sum_f32(const float *leaves, size_t n)
{
    if (n == 0)
        return 0.0f;
    if (n == 1)
        return leaves[0];
    size_t left = 1;
    while (left * 2 < n)
        left *= 2;
    return tree_sum_f32(leaves, left) + tree_sum_f32(leaves + left, n - left);
}
