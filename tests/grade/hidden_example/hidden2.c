/* hidden2.c -- an example of a hidden test for lab 2, with the fixture of the lab's own tests. All
 * comparisons come after the last collective, so a failure on one rank skips no collective. */
#include "lab2_forward/fsdp_setup.h"
#include "tests/grade/handmade_lib.h"

enum { UNITS = 3, MOST = 128 };

static fsdp_status gathers_body(fixture *fx)
{
    fsdp *f = &fx->f;
    for (int u = 0; u < UNITS; u++)
        TRY(unshard_begin(f, u));
    for (int u = 0; u < UNITS; u++) {
        const size_t n = f->units[u].layout.padded_elems;
        float got[MOST], want[MOST];
        for (size_t j = 0; j < n; j++)
            want[j] = fix_master(fx, u, j);
        TRY(EXPECT(f->units[u].full != NULL, "",
                   "unshard_begin of %s: full is NULL, expected the gathered array",
                   f->units[u].name));
        TRY(grade_read(f->comm_stream, f->units[u].full, n * sizeof *got, got));
        TRY(expect_f32(f->units[u].name, got, want, n));
    }
    for (int u = 0; u < UNITS; u++)
        TRY(unshard_drop(f, u));
    return FSDP_OK;
}

static fsdp_status gathers(grade *g)
{
    static const fix_param params[] = {{.unit = 0, .offset = 0, .elems = 3},
                                       {.unit = 0, .offset = 4, .elems = 2},
                                       {.unit = 1, .offset = 0, .elems = 17},
                                       {.unit = 2, .offset = 0, .elems = 31},
                                       {.unit = 2, .offset = 32, .elems = 11}};
    static const fix_spec spec = {.n_units = UNITS,
                                  .n_params = 5,
                                  .params = params,
                                  .used_elems = {6, 17, 43},
                                  .async_compute = true};
    return fixture_run(g, &spec, gathers_body);
}

int main(int argc, char **argv)
{
    static const grade_task tasks[] = {{"2.91", gathers}};
    return grade_main(argc, argv, tasks, (int)(sizeof tasks / sizeof *tasks));
}
