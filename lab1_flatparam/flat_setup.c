/* flat_setup.c -- provided, no task: layouts that are freed or cut anew; the tree of a model's
 * modules. */
#include <stdlib.h>
#include "lab1_flatparam/flat_param.h"

void flat_layout_free(flat_layout *l)
{
    free(l->slots);
    free(l->rows);
    *l = (flat_layout){0};
}

flat_layout flat_layout_cut(const flat_layout *l, int n_ranks)
{
    const size_t elems = l->shard_elems * (size_t)l->world_size; /* of all shards */
    FSDP_ASSERT(n_ranks >= 1);
    FSDP_ASSERT_EQ(elems % (size_t)n_ranks, 0);
    flat_layout cut = *l;
    cut.world_size = n_ranks;
    cut.shard_elems = elems / (size_t)n_ranks;
    return cut;
}

fsdp_status flat_pieces(const flat_layout *layout, int rank, flat_piece **out, int *n_pieces)
{
    *out = calloc((size_t)layout->n_slots + 1, sizeof **out);
    if (!*out)
        return fsdp_error(FSDP_ENOMEM, "", "no host memory for %d pieces", layout->n_slots);
    fsdp_status status = flat_intersect(layout, rank, *out, n_pieces);
    if (status != FSDP_OK)
        free(*out);
    return status;
}

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
