/* freeze.h -- lab 3, provided: the hooks of companions (lab 2's freeze.h), for the tables of labs 3
 * and 5 alike. */
#pragma once
#include "lab3_backward/reducer.h"

typedef struct freeze {
    reducer *r;
    unit_hooks inner;
} freeze;

/* freeze_hooks -- let companions stay gathered as long as their units do, and no forward_only unit
 * longer than forward. *hooks becomes a table that calls the old one for a unit and, if the unit
 * has a companion, the hooks of labs 2 and 3 for that.
 *   r      of *hooks; the stays_* of its units are settled
 *   out    must outlive *hooks, and must not move
 *   order  a companion is gathered after its unit, and freed before it: an event that
 *          lab 5's limiter records after the unit's free covers both frees */
void freeze_hooks(reducer *r, freeze *out, unit_hooks *hooks);
