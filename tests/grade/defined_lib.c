/* defined_lib.c -- see defined_lib.h. */
#include "tests/grade/defined_lib.h"

int defined_slot(const flat_layout *l, size_t flat)
{
    for (int i = 0; i < l->n_slots; i++)
        if (flat >= l->slots[i].offset && flat < l->slots[i].offset + l->slots[i].elems)
            return i;
    return -1;
}

int defined_pieces(const flat_layout *l, int rank, flat_piece *out)
{
    int n = 0;
    for (size_t j = 0; j < l->shard_elems; j++) {
        const size_t flat = (size_t)rank * l->shard_elems + j;
        const int i = defined_slot(l, flat);
        if (i < 0)
            continue;
        if (n == 0 || out[n - 1].slot != i)
            out[n++] = (flat_piece){i, flat - l->slots[i].offset, j, 0};
        out[n - 1].elems++;
    }
    out[n] = (flat_piece){0};
    return n;
}
