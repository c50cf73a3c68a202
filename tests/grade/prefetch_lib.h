/* prefetch_lib.h -- what the tests of lab 5 share: a `prefetch` over the sharded model of
 * handmade_lib.h, and checks of what its hooks issue.
 *
 *   fixture_run(g, AHEAD_SPEC(), body)      body: with_prefetch(fx, mode, limit, part), ...
 *
 * prefetch_create makes streams, groups and events. What the earlier tasks of lab 5 would have
 * recorded (the orders of units) is a literal of the test. Gathers run on p->given.gather_stream
 * and reductions on p->given.reduce_stream. The host runs ahead of both and of compute. */
#pragma once
#include "lab5_prefetch/prefetch_setup.h"
#include "tests/grade/handmade_lib.h"

/* ONE_SPEC of handmade_lib.h under FULL sharding. */
#define AHEAD_SPEC(...) ONE_SPEC(.async_compute = true, __VA_ARGS__)
enum { NO_LIMIT = 64 }; /* more than the model has units */

/* mode_name -- the word of --prefetch for a mode; a literal. */
const char *mode_name(prefetch_mode mode);

typedef fsdp_status (*prefetch_part)(fixture *fx, prefetch *p);

/* with_prefetch -- prefetch_create, part, put_back, prefetch_free. All ranks agree on the verdict,
 * so that no later part runs after a failure and waits in vain. */
fsdp_status with_prefetch(fixture *fx, prefetch_mode mode, int limit, prefetch_part part);

/* put_back -- make every unit SHARDED by hand, free its gradient memory and clear its claim on the
 * limiter. */
fsdp_status put_back(fixture *fx, prefetch *p);

/* know_order -- set o to a recorded order of n units and start a new pass. */
void know_order(exec_order *o, const int *units, int n);

/* expect_units -- note a difference between the order in o and the n units. */
void expect_units(fixture *fx, const char *what, const exec_order *o, const int *units, int n);

/* issued_start -- from now on fx->trace gets "all-gather h.0;reduce-scatter root;...", whatever the
 * group. Read it with fix_expect_trace. Recording ends with the fixture. */
void issued_start(fixture *fx);

/* expect_begun -- note a wrong number of gathers that prefetch_unshard began since the last look:
 * `needed`: for compute itself; `ahead`: gathers that the limiter may refuse. The limiter does not
 * count a gather that was begun in any other way. */
void expect_begun(fixture *fx, prefetch *p, const char *what, int needed, int ahead);

/* expect_gathered -- note a difference between u's gathered array and the values of fix_value.
 * Reads the array after compute has run everything issued so far. */
fsdp_status expect_gathered(fixture *fx, const char *what, int u);

/* expect_runs -- note if compute stands still while another stream is held up: "what: compute stood
 * still, expected it to go on".
 * expect_stands -- note if compute goes on. Neither waits if a check has failed before. */
void expect_runs(fixture *fx, const char *hint, const char *what);
void expect_stands(fixture *fx, const char *hint, const char *what);

enum { SOON_MS = 8000, NEVER_MS = 40 };
