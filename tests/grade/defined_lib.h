/* defined_lib.h -- which elements a shard holds, element by element from the definition. */
#pragma once
#include "lab1_flatparam/flat_layout.h"

/* defined_slot -- the slot that holds element `flat` of the array; -1 in a gap or in padding. */
int defined_slot(const flat_layout *l, size_t flat);
/* defined_pieces -- the pieces of rank's shard: a piece is a run of elements of one slot.
 *   out      [n_slots + 1]; the one after the last has no elements
 *   returns  how many */
int defined_pieces(const flat_layout *l, int rank, flat_piece *out);
