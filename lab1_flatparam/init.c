/* init.c -- task 1.5: a rank makes its own part of the initial weights; nobody ever holds them all.
 *
 * "Meta initialisation": the model is described (names, shapes, rules), not allocated. Because the
 * random numbers come from a counter (Philox), element i of parameter p is the same whoever
 * computes it. */
#include <stdlib.h>
#include <string.h>
#include "common/model/init.h"
#include "lab1_flatparam/flat_param.h"

fsdp_status flat_init_shard(const flat_layout *layout, const model *m, uint64_t seed, int rank,
                            float *shard)
{
    /* SOLUTION BEGIN 1.5 */
    flat_piece *pieces = calloc((size_t)layout->n_slots + 1, sizeof *pieces);
    if (!pieces)
        return fsdp_error(FSDP_ENOMEM, "", "flat_init_shard: no host memory");
    int n_pieces = 0;
    fsdp_status status = flat_intersect(layout, rank, pieces, &n_pieces);
    if (status == FSDP_OK) {
        memset(shard, 0, layout->shard_elems * sizeof *shard); /* gaps and padding too */
        for (int i = 0; i < n_pieces; i++) {
            int p = layout->slots[pieces[i].slot].param;
            param_init_range(&m->params[p], p, seed, pieces[i].param_begin, pieces[i].elems,
                             shard + pieces[i].shard_begin);
        }
    }
    free(pieces);
    return status;
    /* SOLUTION END 1.5 */
}
