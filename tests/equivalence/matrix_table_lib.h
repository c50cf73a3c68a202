/* matrix_table_lib.h -- the tables of options that the matrix combines, and of combinations that
 * the trainer refuses.
 *
 * A value is words of a command line: options, and environment variables as NAME=VALUE. Marks:
 *   %W  the number of ranks
 *   %G  the largest divisor of W from 2 to W/2, a size of shard groups; if there is none, 2
 *   %d  the smallest divisor of W from 2 to W-1; if there is none, 2
 *   %S  a number that differs from cell to cell
 *   %M  the shape of a model, drawn with the number of %S
 *   %T  a path for files of this cell
 *
 * A new option becomes a row of AXES or a value in one. Each option that it cannot be used with
 * becomes a row of REFUSALS: no cell has both values, and for each such pair the matrix checks
 * once, in canonical mode, that the trainer refuses it. */
#pragma once
#include <stdbool.h>

/* The place where cells run. */
typedef struct matrix_place {
    int world_size;
    const char *device; /* as in --device */
    bool has_portable;  /* the device has operations with the CPU's bits */
    bool no_mpi;        /* built without it, or fsdp_run started the ranks */
} matrix_place;

enum {
    MATRIX_RECIPE = 1,     /* affects what is computed: one device gets the same words */
    MATRIX_TRIPLES = 2,    /* cells have all triples of values of such axes, not only pairs */
    MATRIX_COSTLY = 4,     /* values after the first are slow: cells have them only if needed */
    MATRIX_FAST_RECIPE = 8 /* a recipe for fast operations alone: portable ones compute the same */
};
enum { MATRIX_MOST_VALUES = 9 };

typedef struct matrix_axis {
    const char *name;
    int flags;
    const char *values[MATRIX_MOST_VALUES + 1]; /* NULL ends them; "": no words, the default */
} matrix_axis;

/* Two values that exclude each other. `a` and `b` are shell patterns that match whole values of
 * AXES, or words that are not values. b NULL: `a` is refused with any other options. */
typedef struct matrix_refusal {
    const char *a, *b;
    const char *says; /* part of the error's HINT or of the error; NULL: it is not refused, but one
                         device with MATRIX_RECIPE's words alone computes something else */
    int where;        /* what a place has where it is refused; 0: all places */
} matrix_refusal;

extern const matrix_axis MATRIX_AXES[];        /* a NULL name ends it */
extern const matrix_refusal MATRIX_REFUSALS[]; /* a NULL `a` ends it */
extern const char MATRIX_BASE[];               /* words of every cell, and of one device */

bool matrix_is_refused_at(const matrix_refusal *r, const matrix_place *at);
/* matrix_group_size -- the number of %G. */
int matrix_group_size(int world_size);
/* matrix_write -- write `words` for one cell, with the marks above replaced.
 *   number  of %S; the same number gives the same words
 *   folder  of %T: "folder/number-"
 *   out     [chars], long enough (asserted) */
void matrix_write(const char *words, const matrix_place *at, int number, const char *folder,
                  char *out, int chars);
