/* lab3.c -- the task tests of lab 3: gradients on shards.
 *
 * Tasks 3.1 to 3.6 use a literal model, PARAMS of handmade_lib.h. Every rank holds different
 * numbers. Tasks 3.3 to 3.6 are in step_lib.c. Task 3.7, in whole_lib.c, compares a whole GPT-2
 * with the unsharded twin. */
#include <math.h>
#include "tests/grade/handmade_lib.h"
#include "tests/grade/stars_lib.h"
#include "tests/grade/step_lib.h"
#include "tests/grade/whole_lib.h"

/* ---- 3.1 ------------------------------------------------------------------------------------ */
static void check_regathered(fixture *fx, int u)
{
    const fsdp_unit *un = &fx->f.units[u];
    note(fx,
         expect_state(WHAT("state of %s after pre_backward", un->name), un->state, UNIT_GATHERED));
    note(fx, fix_check_full(fx, "pre_backward", u, 0.0f, fx->compute));
    for (int p = 0; p < fx->spec->n_params; p++)
        if (PARAMS[p].unit == u)
            note(fx, expect_view(WHAT("views.params[%d], into the gathered %s", p, un->name),
                                 fx->f.views.params[p], un->full, PARAMS[p].offset, sizeof(float)));
}

static void check_grad_memory(fixture *fx, int u)
{
    const unit_grad *ug = &fx->r.grads[u];
    const float *got = fix_read(fx, ug->buffer.full_grad, ug->buffer.elems);
    float want[64];
    for (size_t i = 0; i < ug->buffer.elems; i++) {
        size_t elem = 0; /* layers overwrite the elements of a parameter: nobody zeroes them */
        int p = fix_param_at(fx, u, i, &elem);
        want[i] = p < 0 || PARAMS[p].frozen ? 0.0f : NAN;
    }
    if (got)
        note(fx, expect_f32(WHAT("fresh full_grad of unit %d (NaN: not written), element", u), got,
                            want, ug->buffer.elems));
    for (int p = 0; p < fx->spec->n_params; p++) {
        if (PARAMS[p].unit != u || !ug->buffer.full_grad)
            continue;
        const bool is_second = p == TIED_PARAM && ug->buffer.next;
        const float *array = is_second ? ug->buffer.next->full_grad : ug->buffer.full_grad;
        note(fx, expect_view(WHAT("views.grads[%d], into full_grad%s", p,
                                  is_second ? " of the second use" : ""),
                             fx->f.views.grads[p], PARAMS[p].frozen ? NULL : array,
                             is_second ? 0 : PARAMS[p].offset, sizeof(float)));
    }
}

static fsdp_status pre_backward_body(fixture *fx)
{
    TRY(fix_gather_by_hand(fx, ROOT)); /* forward left the root gathered */
    fix_trace_start(fx);
    TRY(backward_pre_hook(&fx->r, ROOT));
    fix_expect_trace(fx, "pre_backward of the root, still gathered", "");
    note(fx, EXPECT(fx->r.grads[ROOT].visited, "end_backward (3.6) looks at it",
                    "pre_backward of the root, still gathered: visited is false, expected true"));
    for (int u = N_UNITS - 1; u > 0; u--) {
        const char *name = fx->f.units[u].name;
        size_t full_before = fix_live(fx, MEM_PARAMS_FULL);
        size_t grads_before = fix_live(fx, MEM_GRADS_FULL);
        TRY(RUNS_AHEAD(fx, WHAT("pre_backward of %s", name), backward_pre_hook(&fx->r, u)));
        fix_expect_trace(fx, "pre_backward of a resharded unit", WHAT("all-gather %s;", name));
        size_t unit_bytes = fx->f.units[u].layout.padded_elems * sizeof(float);
        note(fx, expect_size("bytes gathered for backward",
                             fix_live(fx, MEM_PARAMS_FULL) - full_before, unit_bytes));
        note(fx, expect_size(u == FROZEN ? "gradient bytes of a frozen unit" : "gradient bytes",
                             fix_live(fx, MEM_GRADS_FULL) - grads_before,
                             u == FROZEN ? 0 : unit_bytes));
        note(fx, EXPECT(fx->r.grads[u].visited, "end_backward (3.6) looks at it, and lab 5",
                        "pre_backward of %s: grads[u].visited is false, expected true", name));
    }
    for (int u = 0; u < N_UNITS; u++) {
        check_regathered(fx, u);
        if (u != FROZEN)
            check_grad_memory(fx, u);
    }
    note(fx,
         expect_view("views.grads[5], of a frozen parameter", fx->f.views.grads[5], NULL, 0, 4));
    return FSDP_OK;
}

static fsdp_status task_3_1(grade *g)
{
    TRY(fixture_run(g, ONE_SPEC(.mode = GRAD_ACC_FAST), pre_backward_body));
    TRY(fixture_run(g, TIED_SPEC(.mode = GRAD_ACC_FAST), pre_backward_body));
    TRY(fixture_run(g, TIED_SPEC(.mode = GRAD_ACC_CANONICAL), pre_backward_body));
    return fixture_run(g, TIED_SPEC(.async_compute = true), pre_backward_body);
}

/* ---- 3.2a ----------------------------------------------------------------------------------- */
static float other_integer(int rank, int buffer, size_t i)
{
    return 3.0f * fix_integer(rank + 5, buffer, i);
}

static fsdp_status reduce_once(fixture *fx, int u, float (*value)(int, int, size_t))
{
    unit_grad *ug = &fx->r.grads[u];
    TRY(fix_grad_by_hand(fx, u, value));
    grad_views_bind(&fx->r, u);
    fix_trace_start(fx);
    TRY(RUNS_AHEAD(fx, WHAT("reduce_begin of %s", fx->f.units[u].name), reduce_begin(&fx->r, u)));
    fix_issued(fx, "reduce_begin", u, COMM_OP_REDUCE_SCATTER, (size_t)fix_n_buffers(fx, u));
    const char *once = WHAT("reduce-scatter %s;", fx->f.units[u].name);
    fix_expect_trace(fx, "reduce_begin: in f->reduce_group, all ranks",
                     ug->buffer.next ? WHAT("%s%s", once, once) : once);
    fix_expect_rise(fx, "reduce_begin", MEM_GRADS_FULL, 0);
    TRY(EXPECT(ug->reducing,
               "", /* if false, reduce_wait does nothing, and the gradient is freed too early */
               "reduce_begin of %s: grads[u].reducing is false, expected true until reduce_wait",
               fx->f.units[u].name));
    note(fx, expect_status("reduce_begin of a unit that is reducing", reduce_begin(&fx->r, u),
                           FSDP_ESTATE));
    TRY(RUNS_AHEAD(fx, WHAT("reduce_wait of %s", fx->f.units[u].name), reduce_wait(&fx->r, u)));
    note(fx, EXPECT(!ug->reducing, "",
                    "reduce_wait of %s: grads[u].reducing is still true, expected false",
                    fx->f.units[u].name));
    note(fx, EXPECT(!ug->buffer.full_grad, "full_grad_free frees it and unbinds the views",
                    "reduce_wait of %s: full_grad is still there, expected it freed and NULL",
                    fx->f.units[u].name));
    for (int p = 0; p < fx->spec->n_params; p++)
        if (PARAMS[p].unit == u)
            note(fx, EXPECT(!fx->f.views.grads[p], "full_grad_free unbinds the views too",
                            "gradient view of parameter %d after reduce_wait: got an address in "
                            "freed memory, expected NULL",
                            p));
    note(fx,
         expect_size("bytes of full gradients after reduce_wait", fix_live(fx, MEM_GRADS_FULL), 0));
    TRY(reduce_wait(&fx->r, u)); /* no-op */
    note(fx, expect_status("reduce_begin without gradient memory", reduce_begin(&fx->r, u),
                           FSDP_ESTATE));
    return FSDP_OK;
}

static int leaf_world; /* W of the fixture under test: leaf n is rank n % W of micro-step n / W */

static float two_steps(int leaf, int buffer, size_t i)
{
    int r = leaf % leaf_world;
    return leaf / leaf_world ? other_integer(r, buffer, i) : fix_integer(r, buffer, i);
}

/* Two micro-steps of integers on every unit that learns: the second adds to the first. */
static fsdp_status reduce_body(fixture *fx)
{
    comm **shard = &fx->f.mesh.shard;
    leaf_world = fx->world_size;
    if (!*shard) /* of one rank; the fixture closes it */
        TRY(comm_range(fx->comm, fx->rank, 1, 1, shard));
    for (int j = 0; j < N_LEARNING; j++) {
        int u = LEARNING[j];
        comm_job_stats_reset(fx->comm);
        TRY(reduce_once(fx, u, fix_integer));
        note(fx, expect_size("bytes sent by one reduction",
                             comm_job_stats_read(fx->comm).bytes_sent[COMM_OP_REDUCE_SCATTER],
                             fix_reduced_elems(fx, u) * sizeof(float)));
        TRY(reduce_once(fx, u, other_integer));
        TRY(fix_expect_acc(fx, u, 2 * fx->world_size, two_steps));
    }
    return FSDP_OK;
}

static int first_leaf;

static float leaf_of_rank(int rank, int buffer, size_t i)
{
    return fix_fraction(first_leaf + rank, buffer, i);
}

/* Canonical mode: the contributions are nodes at the batch's level of one counter that lasts over
 * all micro-steps. */
static fsdp_status reduce_tree(fixture *fx, int u)
{
    for (int a = 0; a < 3; a++) {
        first_leaf = a * fx->world_size;
        TRY(fix_grad_by_hand(fx, u, leaf_of_rank));
        TRY(reduce_begin(&fx->r, u));
        TRY(reduce_wait(&fx->r, u));
    }
    for (int b = 0; b < fix_n_buffers(fx, u); b++) {
        const grad_acc *acc = &fix_buffer(fx, u, b)->acc;
        for (int k = 0; k < 6 && acc->elems > 0; k++) {
            bool want = k >= 1 && ((3 * fx->world_size) >> (k - 1) & 1);
            note(fx, expect_int(
                         WHAT("unit %d, buffer %d: a node waits at level %d of the tree", u, b, k),
                         acc->tree.slot[k] != NULL, want));
        }
    }
    return fix_expect_acc(fx, u, 3 * fx->world_size, fix_fraction);
}

static fsdp_status reduce_tree_body(fixture *fx)
{
    TRY(reduce_tree(fx, H0));
    return reduce_tree(fx, ROOT); /* its tied parameter has a second use */
}

/* Reductions run on their own stream, in their own group, and wait for no other. */
static fsdp_status own_stream_body(fixture *fx)
{
    comm *own;
    TRY(comm_range(fx->comm, 0, 1, fx->world_size, &own));
    fsdp_set_groups(&fx->f, fx->f.gather_group, own);
    TRY(fix_grad_by_hand(fx, H0, fix_integer));
    TRY(gate_close(fx->g, fx->f.comm_stream));
    fix_trace_start(fx);
    TRY(reduce_begin(&fx->r, H0));
    fix_expect_trace(fx, "reduce_begin: in f->reduce_group, not in the world", "");
    TRY(reduce_wait(&fx->r, H0));
    note(fx,
         EXPECT(reaches(fx->r.grads[H0].reduced, 8000),
                "f->reduce_stream, not f->comm_stream, is where reductions run",
                "reduce_begin of h.0: the reduction stood still with comm_stream, expected it on "
                "reduce_stream, which is another stream here"));
    note(fx, gate_open(fx->g, "reduce_wait"));
    TRY(stream_sync(fx->f.reduce_stream));
    TRY(fix_expect_acc(fx, H0, fx->world_size, fix_integer));
    TRY(stream_sync(fx->compute));
    fsdp_set_groups(&fx->f, fx->f.gather_group, fx->comm);
    comm_close(own);
    return FSDP_OK;
}

static fsdp_status task_3_2a(grade *g)
{
    for (int size = 1; size <= g->world_size; size++)
        if (g->world_size % size == 0)
            TRY(fixture_run(
                g, TIED_SPEC(.mode = GRAD_ACC_CANONICAL, .shard_size = size, .async_compute = true),
                reduce_body));
    TRY(fixture_run(g, TIED_SPEC(.mode = GRAD_ACC_FAST), reduce_body));
    TRY(fixture_run(g, ONE_SPEC(.sharding = SHARDING_NONE), reduce_body));
    TRY(fixture_run(g, TIED_SPEC(.mode = GRAD_ACC_FAST, .async_compute = true), reduce_body));
    TRY(fixture_run(g, TIED_SPEC(.mode = GRAD_ACC_CANONICAL, .batch = 2), reduce_tree_body));
    return fixture_run(g, TIED_SPEC(.async_compute = true), own_stream_body);
}

/* ---- 3.2b ----------------------------------------------------------------------------------- */
static int posted; /* the unit whose hook is called */

static void check_resharded_at_issue(fixture *fx, comm_op op, const char *label)
{
    if (op != COMM_OP_REDUCE_SCATTER)
        return;
    const fsdp_unit *un = &fx->f.units[posted];
    bool keeps = fx->spec->sharding == SHARDING_NONE;
    note(fx, expect_state(WHAT("state of %s%s when its reduction is issued (reshard first)", label,
                               un->stays_after_forward ? ", which stays after forward," : ""),
                          un->state, keeps ? UNIT_GATHERED : UNIT_SHARDED));
    if (!keeps && !fx->runs_ahead)
        note(fx, expect_size("gathered bytes when the reduction is issued (reshard first)",
                             ledger_read(device_ledger(fx->dev)).live_bytes[MEM_PARAMS_FULL], 0));
}

/* The hook of one unit that forward or backward has left gathered. */
static fsdp_status post_backward_of(fixture *fx, int u)
{
    const fsdp_unit *un = &fx->f.units[u];
    const bool keeps = fx->spec->sharding == SHARDING_NONE;
    const char *what =
        WHAT("post_backward of %s%s", un->name, un->given.frozen ? ", a frozen unit" : "");
    if (!keeps)
        TRY(fix_gather_by_hand(fx, u));
    if (!un->given.frozen)
        TRY(fix_grad_by_hand(fx, u, fix_integer));
    posted = u;
    TRY(RUNS_AHEAD(fx, what, backward_post_hook(&fx->r, u)));
    fix_expect_trace(fx, what, un->given.frozen ? "" : WHAT("reduce-scatter %s;", un->name));
    note(fx, expect_state(WHAT("state after %s%s", what,
                               un->stays_after_forward ? ", which stays after forward only" : ""),
                          un->state, keeps ? UNIT_GATHERED : UNIT_SHARDED));
    return un->given.frozen ? FSDP_OK : fix_expect_acc(fx, u, fx->world_size, fix_integer);
}

static fsdp_status post_backward_body(fixture *fx)
{
    fx->on_issue = check_resharded_at_issue;
    fix_trace_start(fx);
    for (int u = N_UNITS - 1; u >= 0; u--)
        TRY(post_backward_of(fx, u));
    return FSDP_OK;
}

static fsdp_status task_3_2b(grade *g)
{
    for (int how = SHARDING_FULL; how <= SHARDING_NONE; how++)
        TRY(fixture_run(g, TIED_SPEC(.sharding = (sharding_strategy)how), post_backward_body));
    return fixture_run(g, ONE_SPEC(.sharding = SHARDING_FULL), post_backward_body);
}

int main(int argc, char **argv)
{
    static const grade_task tasks[] = {
        {"3.1", task_3_1}, {"3.2a", task_3_2a}, {"3.2b", task_3_2b}, {"3.3", task_3_3},
        {"3.4", task_3_4}, {"3.5a", task_3_5a}, {"3.5b", task_3_5b}, {"3.6", task_3_6},
        {"3.7", task_3_7}, {"3.8", task_3_8},   {"3.9", task_3_9},   {"3.10", task_3_10}};
    return grade_main(argc, argv, tasks, (int)(sizeof tasks / sizeof *tasks));
}
