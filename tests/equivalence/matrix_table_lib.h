/* matrix_table_lib.h -- the one table of what the matrix of options combines, and of what is
 * refused.
 *
 * A value is the words that a command line gets: options, and NAME=VALUE of the environment. In it
 *   %W  the number of ranks
 *   %G  the most ranks of a shard group that has a replica; 2 where W has no such divisor
 *   %d  the fewest, at least 2, that divide W; 2 where W has no such divisor
 *   %S  a number that differs from cell to cell
 *   %M  the shape of a model, drawn by that number
 *   %T  a path for files of this cell
 *
 * A new option is a row of AXES, or a value in one. What it cannot be used with is a row of
 * REFUSALS: no cell has the two values, and the trainer is asked once for each such pair, in
 * canonical mode. */
#pragma once
#include <stdbool.h>

/* Where cells run. */
typedef struct matrix_place {
    int world_size;
    const char *device; /* as --device has it */
    bool has_portable;  /* operations with the CPU's bits */
    bool no_mpi;        /* built without it, or fsdp_run started the ranks */
} matrix_place;

enum {
    MATRIX_RECIPE = 1,  /* decides what is computed: the single device gets the same words */
    MATRIX_TRIPLES = 2, /* all triples of values of such axes, not just all pairs */
    MATRIX_COSTLY = 4   /* values after the first are slow: cells have them only where needed */
};
enum { MATRIX_MOST_VALUES = 9 };

typedef struct matrix_axis {
    const char *name;
    int flags;
    const char *values[MATRIX_MOST_VALUES + 1]; /* up to NULL; "": nothing, what is the default */
} matrix_axis;

/* Two values that exclude each other. `a` and `b` are shell patterns that values of AXES match as a
 * whole, or words that are no such value; b NULL: `a` is refused whatever it stands beside. */
typedef struct matrix_refusal {
    const char *a, *b;
    const char *says;                   /* part of the error's HINT or of the error */
    bool (*only)(const matrix_place *); /* where it is refused; NULL: everywhere */
} matrix_refusal;

extern const matrix_axis MATRIX_AXES[];        /* up to a name NULL */
extern const matrix_refusal MATRIX_REFUSALS[]; /* up to an `a` NULL */
extern const char MATRIX_BASE[];               /* words of every cell, and of the single device */

/* matrix_group_size -- %G. */
int matrix_group_size(int world_size);
/* matrix_write -- `words` for one cell, with the marks above replaced.
 *   number  %S; the same gives the same words
 *   folder  of %T: "folder/number-"
 *   out     [chars], long enough or the program ends */
void matrix_write(const char *words, const matrix_place *at, int number, const char *folder,
                  char *out, int chars);
