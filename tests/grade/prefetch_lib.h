/* prefetch_lib.h -- what the tests of lab 5's tasks share: a `prefetch` over the sharded model of
 * handmade_lib.h, and what its hooks issue.
 *
 *   fixture_run(g, AHEAD_SPEC(), body)      body: with_prefetch(fx, mode, limit, part), ...
 *
 * Streams, groups and events are made by prefetch_create; what the earlier tasks of lab 5 would
 * have learnt (the orders of units) is a literal of the test. Gathers run on
 * p->own.gather_stream and reductions on p->own.reduce_stream, and the host runs ahead
 * of both and of compute. */
#pragma once
#include "lab5_prefetch/prefetch_setup.h"
#include "tests/grade/handmade_lib.h"

/* The model of handmade_lib.h without its tied parameter, under FULL. */
#define AHEAD_SPEC(...) FIX_SPEC(.n_params = 8, .async_compute = true, __VA_ARGS__)
enum { NO_LIMIT = 64 }; /* more than the model has units */

/* mode_name -- as --prefetch has it; a literal. */
const char *mode_name(prefetch_mode mode);

typedef fsdp_status (*prefetch_part)(fixture *fx, prefetch *p);

/* with_prefetch -- prefetch_create, part, put_back, prefetch_free. The verdict of all ranks: a part
 * that follows one which has failed would only wait for what is late already. */
fsdp_status with_prefetch(fixture *fx, prefetch_mode mode, int limit, prefetch_part part);

/* put_back -- make every unit SHARDED by hand, without gradient memory and without a claim on the
 * limiter. */
fsdp_status put_back(fixture *fx, prefetch *p);

/* know_order -- o = the n units of a whole pass, which starts anew. */
void know_order(exec_order *o, const int *units, int n);

/* expect_units -- notes a difference between what o knows and the n units. */
void expect_units(fixture *fx, const char *what, const exec_order *o, const int *units, int n);

/* issued_start -- from now on fx->trace gets "all-gather h.0;reduce-scatter root;...", whichever
 * group it is issued on. Read it with fix_expect_trace; it ends when the fixture ends. */
void issued_start(fixture *fx);

/* expect_begun -- notes that another number of gathers was begun by prefetch_unshard since the last
 * look: by `needed` of them compute's own, by `ahead` those that the limiter may refuse. A gather
 * that was begun otherwise is one that the limiter does not count. */
void expect_begun(fixture *fx, prefetch *p, const char *what, int needed, int ahead);

/* expect_gathered -- notes a difference between u's gathered array and its values, which are made
 * by fix_value; reads it when compute has run all that is issued. */
fsdp_status expect_gathered(fixture *fx, const char *what, int u);

/* expect_runs, expect_stands -- note that compute does not, or does, reach the end of what is
 * issued while another stream is held up: "what: compute stood still, expected it to go on".
 * Neither waits if a check has failed before. */
void expect_runs(fixture *fx, const char *hint, const char *what);
void expect_stands(fixture *fx, const char *hint, const char *what);

enum { SOON_MS = 8000, NEVER_MS = 40 };
