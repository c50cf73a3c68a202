/* wrap.c -- task 1.4: which unit every module belongs to. */
#include <stdlib.h>
#include "lab1_flatparam/flat_param.h"

/* SOLUTION BEGIN 1.4 */
/* STUB: */
/* Whether a node becomes a unit. left_elems: the elements of the node and its descendants,
 * without the elements of units and tied nodes below it. */
static bool becomes_unit(const module_node *node, wrap_policy policy, size_t min_elems,
                         size_t left_elems)
{
    if (node->parent < 0)
        return true;
    if (node->tied)
        return false;
    switch (policy) {
    case WRAP_BLOCK:
        return node->kind == MODULE_BLOCK;
    case WRAP_SUB_BLOCK:
        return node->kind == MODULE_LAYER;
    case WRAP_SIZE:
        return left_elems >= min_elems;
    case WRAP_MODEL:
        return false;
    }
    return false;
}
/* SOLUTION END 1.4 */

fsdp_status wrap_assign(const module_tree *tree, wrap_policy policy, size_t min_elems,
                        int *unit_of_node, int *n_units)
{
    /* SOLUTION BEGIN 1.4 */
    int n = tree->n_nodes;
    size_t *left = calloc((size_t)n, sizeof *left);
    bool *is_unit = calloc((size_t)n, sizeof *is_unit);
    if (!left || !is_unit) {
        free(left);
        free(is_unit);
        return fsdp_error(FSDP_ENOMEM, "", "wrap_assign: no host memory");
    }
    /* Children come after their parents, so a walk from the end meets every child first. A child
     * that is a unit adds nothing to its parent, so no element is counted in two units. The
     * elements of a tied node go to the root, not to its block. */
    for (int i = n - 1; i >= 0; i--) {
        const module_node *node = &tree->nodes[i];
        left[i] += node->own_elems;
        is_unit[i] = becomes_unit(node, policy, min_elems, left[i]);
        if (!is_unit[i])
            left[node->tied ? 0 : node->parent] += left[i];
    }
    *n_units = 0;
    for (int i = 0; i < n; i++) {
        const module_node *node = &tree->nodes[i];
        unit_of_node[i] = is_unit[i] ? (*n_units)++ : unit_of_node[node->tied ? 0 : node->parent];
    }
    free(left);
    free(is_unit);
    return FSDP_OK;
    /* SOLUTION END 1.4 */
}
