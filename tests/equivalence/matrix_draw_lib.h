/* matrix_draw_lib.h -- cells that cover all pairs of values of the table, and all triples of the
 * axes that ask for it.
 *
 *   matrix_open -> matrix_draw -> run the cells -> matrix_count -> matrix_close
 *
 * Every value that MATRIX_REFUSALS does not refuse at this place is in cells, together with each
 * value of every other axis. A caller can leave values out only with matrix_fix, which restricts an
 * axis. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include "common/base/status.h"
#include "tests/equivalence/matrix_table_lib.h"

enum { MATRIX_MOST_AXES = 32, MATRIX_MOST_IN_ALL = 128, MATRIX_MOST_CELLS = 2048 };

/* Values are numbered across all axes. */
typedef struct matrix_cell {
    short value[MATRIX_MOST_AXES]; /* of each axis */
    bool was_run;
} matrix_cell;

typedef struct matrix {
    const matrix_place *at;
    int n_axes, n_values, n_cells;
    int first[MATRIX_MOST_AXES + 1]; /* number of each axis's first value */
    int axis[MATRIX_MOST_IN_ALL];
    const char *words[MATRIX_MOST_IN_ALL];
    bool is_fixed_out[MATRIX_MOST_IN_ALL], is_refused[MATRIX_MOST_IN_ALL];
    bool excludes[MATRIX_MOST_IN_ALL][MATRIX_MOST_IN_ALL];
    unsigned char *covered; /* pairs and triples of the cells drawn so far */
    matrix_cell *cells;     /* [n_cells] */
    uint64_t rng;
} matrix;

/* matrix_open -- read the table for a place.
 *   errors  FSDP_EINVAL: a row of REFUSALS matches no value; FSDP_ENOMEM */
fsdp_status matrix_open(matrix *m, const matrix_place *at);
void matrix_close(matrix *m); /* a zeroed struct is accepted */

/* matrix_fix -- restrict an axis to the values that match a pattern. Call it before matrix_draw.
 *   fix     "AXIS=PATTERN"
 *   errors  FSDP_EINVAL: there is no such axis, or none of its values matches */
fsdp_status matrix_fix(matrix *m, const char *fix);

/* matrix_draw -- draw the cells, the same on every rank and machine.
 *   seed    selects the cells
 *   errors  FSDP_EINVAL: two values are allowed together, but fit in no cell; FSDP_ENOMEM */
fsdp_status matrix_draw(matrix *m, uint64_t seed, bool with_triples);

/* matrix_is_in -- whether value i is in cells; matrix_may_meet -- whether one may have i and j. */
bool matrix_is_in(const matrix *m, int i);
bool matrix_may_meet(const matrix *m, int i, int j);

/* matrix_means -- whether a pattern of REFUSALS matches value i. */
bool matrix_means(const matrix *m, const char *pattern, int i);

/* The number of pairs and triples, the number that no run cell has, and the first missing ones. */
typedef struct matrix_coverage {
    int pairs, triples, missing;
    char first[256];
} matrix_coverage;
/* matrix_count -- count them again, from the cells alone. */
matrix_coverage matrix_count(const matrix *m, bool with_triples);
