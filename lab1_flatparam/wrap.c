/* wrap.c -- task 1.4: which unit every module belongs to. */
#include <stdlib.h>
#include "lab1_flatparam/flat_param.h"

fsdp_status module_tree_build(const model *m, module_tree *out)
{
    size_t most = (size_t)(1 + m->n_blocks + m->n_layers);
    *out = (module_tree){.n_nodes = 1, .nodes = calloc(most, sizeof(module_node))};
    if (!out->nodes)
        return fsdp_error(FSDP_ENOMEM, "", "module tree: no host memory");
    out->nodes[0] = (module_node){.kind = MODULE_MODEL, .parent = -1, .layer = -1};
    int block = -1, block_node = 0;
    for (int i = 0; i < m->n_layers; i++) {
        const layer *l = &m->layers[i];
        if (l->block >= 0 && l->block != block) { /* first layer of a block: add its node */
            block = l->block;
            block_node = out->n_nodes++;
            out->nodes[block_node] = (module_node){.kind = MODULE_BLOCK, .parent = 0, .layer = -1};
        }
        module_node *node = &out->nodes[out->n_nodes++];
        *node = (module_node){
            .kind = MODULE_LAYER, .parent = l->block >= 0 ? block_node : 0, .layer = i};
        for (int p = l->first_param; p < l->first_param + l->n_params; p++) {
            bool second_use = m->params[p].tied_to != NOT_TIED;
            node->own_elems += second_use ? 0 : m->params[p].elems;
            node->tied = node->tied || second_use || m->params[p].next_use > 0;
        }
    }
    return FSDP_OK;
}

void module_tree_free(module_tree *t)
{
    free(t->nodes);
    *t = (module_tree){0};
}

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
