/* hidden2.c -- an example of a hidden test of lab 2, with the fixture that the lab's own tests use.
 * A failure on one rank skips no collective: what is compared comes after the last one. */
#include "tests/grade/literal_lib.h"

enum { N_UNITS = 3, MOST = 128 };

static fsdp_status gathers(grade *g)
{
    static const size_t elems[N_UNITS][2] = {{3, 2}, {17, 0}, {31, 11}};
    fsdp f = {0};
    TRY(literal_fsdp(g, N_UNITS, elems, &f));
    for (int u = 0; u < N_UNITS; u++)
        TRY(unshard_begin(&f, u));
    for (int u = 0; u < N_UNITS; u++) {
        const size_t n = f.units[u].layout.padded_elems;
        float got[MOST], want[MOST];
        for (size_t j = 0; j < n; j++)
            want[j] = literal_value(&f, u, j);
        TRY(EXPECT(f.units[u].full != NULL, "",
                   "unshard_begin of %s: full is NULL, expected the gathered array",
                   f.units[u].name));
        TRY(grade_read(f.comm_stream, f.units[u].full, n * sizeof *got, got));
        TRY(expect_f32(f.units[u].name, got, want, n));
    }
    for (int u = 0; u < N_UNITS; u++)
        TRY(unshard_drop(&f, u));
    literal_fsdp_free(&f);
    return FSDP_OK;
}

int main(int argc, char **argv)
{
    static const grade_task tasks[] = {{"2.91", gathers}};
    return grade_main(argc, argv, tasks, (int)(sizeof tasks / sizeof *tasks));
}
