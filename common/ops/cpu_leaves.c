/* cpu_leaves.c -- sums over the leaves of a micro-batch, while they are in a cache. */
#include "common/ops/cpu_kernels.h"

/* Not inlined into itself, so that a level takes one array of stack. */
__attribute__((noinline)) fsdp_status leaves_sum(leaf_fn fn, const void *args, leaf_part p,
                                                 size_t n)
{
    if (n <= 1)
        return fn(args, &p);
    _Alignas(64) float half[LEAVES_ELEMS + LEAVES_SLACK];
    FSDP_ASSERT(p.rows * p.cols <= LEAVES_ELEMS && n % 2 == 0);
    const leaf_part left = {
        .out = half, .rows = p.rows, .cols = p.cols, .ld = p.cols, .leaf = p.leaf};
    const leaf_left sibling = {half, p.left};
    TRY(leaves_sum(fn, args, left, n / 2));
    p.leaf += n / 2;
    p.left = &sibling;
    return leaves_sum(fn, args, p, n / 2);
}

void leaf_add(const leaf_part *p)
{
    for (const leaf_left *left = p->left; left != NULL; left = left->next)
        for (size_t r = 0; r < p->rows; r++)
            for (size_t c = 0; c < p->cols; c++)
                p->out[r * p->ld + c] += left->x[r * p->cols + c];
}
