/* worker.c -- calls a learner's functions with what the judge sends, and sends back what they give.
 *
 *   GRADE_JUDGE=FOLDER fsdp_run -n W worker --task 1.1 ...     started by the judge (judge.c)
 *
 * A worker has no expected values and gives no verdict: what the task tests' frame prints is only
 * for the log. For each task the judge sends requests, then a message without bytes. An answer is
 * a status and its text, then what the call gave. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include "lab2_forward/fsdp_setup.h"
#include "lab2_forward/forward.h"
#include "lab4_optimizer/checkpoint.h"
#include "lab4_optimizer/optimizer_setup.h"
#include "tests/equivalence/run_lib.h"
#include "tests/grade/asks.h"
#include "tests/grade/small_lib.h"
#include "tests/grade/wire_lib.h"

enum { MOST_SLOTS = 16, MOST_FLAT = 512 };

static wire ask, tell; /* the request, and what of the answer is made */

/* ---- the frame ----------------------------------------------------------------------------- */

static fsdp_status open_judge(const grade *g, int *judge)
{
    if (*judge >= 0)
        return FSDP_OK;
    struct sockaddr_un at;
    const char *folder = getenv("GRADE_JUDGE");
    const int opened = folder == NULL ? -1 : wire_address(folder, &at);
    *judge = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (opened < 0 || connect(*judge, (struct sockaddr *)&at, sizeof at) != 0)
        return fsdp_error(FSDP_EIO, "the judge starts its workers; they do not run alone",
                          "GRADE_JUDGE: no judge in %s: %s", folder ? folder : "(not set)",
                          strerror(errno));
    close(opened);
    wire_begin(&tell);
    wire_put(&tell, g->rank);
    return wire_send(&tell, *judge);
}

/* Answer requests with `call` until the judge has no more. */
static fsdp_status serve(grade *g, fsdp_status (*call)(grade *g))
{
    static int judge = -1;
    TRY(open_judge(g, &judge));
    for (;;) {
        TRY(wire_receive(&ask, judge));
        if (ask.used == 0)
            return FSDP_OK;
        wire_begin(&tell);
        wire_put(&tell, FSDP_OK);
        const fsdp_status status = call(g);
        if (status != FSDP_OK) {
            wire_begin(&tell);
            wire_put(&tell, status);
            wire_put_text(&tell, fsdp_error_get()->what);
        }
        TRY(wire_send(&tell, judge));
    }
}

static int number(void)
{
    return (int)wire_get(&ask);
}

static size_t count(void)
{
    return (size_t)wire_get(&ask);
}

static float one_float(void)
{
    float x;
    wire_get_floats(&ask, &x, 1);
    return x;
}

/* What a request holds is trusted; what it has room for is not exceeded by the judge. */
static size_t rows(void *x, size_t most, size_t row_bytes)
{
    return wire_get_rows(&ask, x, most, row_bytes);
}

/* ---- lab 1 --------------------------------------------------------------------------------- */

static fsdp_status call_span(grade *g)
{
    const size_t total = count(), align = count();
    const int w = number(), rank = number();
    shard_span s = {0};
    TRY(shard_range(total, align, w, rank, &s));
    wire_put_bytes(&tell, &s, sizeof s);
    return FSDP_OK;
}

static fsdp_status call_layout(grade *g)
{
    int params[MOST_SLOTS];
    size_t elems[MOST_SLOTS];
    flat_align align;
    flat_layout l = {0};
    const size_t n = rows(params, MOST_SLOTS, sizeof *params);
    (void)rows(elems, MOST_SLOTS, sizeof *elems);
    wire_get_bytes(&ask, &align, sizeof align);
    TRY(flat_layout_build((int)n, params, elems, align, number(), &l));
    wire_put_bytes(&tell, &l, sizeof l);
    wire_put_rows(&tell, l.slots, (size_t)l.n_slots, sizeof *l.slots);
    flat_layout_free(&l);
    return FSDP_OK;
}

/* The layout of a request; its slots are valid until the next one. */
static flat_layout asked_layout(void)
{
    static flat_slot slots[MOST_SLOTS];
    flat_layout l;
    wire_get_bytes(&ask, &l, sizeof l);
    (void)rows(slots, MOST_SLOTS, sizeof *slots);
    l.slots = slots;
    return l;
}

static fsdp_status call_pieces(grade *g)
{
    const flat_layout l = asked_layout();
    flat_piece pieces[MOST_SLOTS];
    int n = 0;
    TRY(flat_intersect(&l, number(), pieces, &n));
    wire_put_rows(&tell, pieces, (size_t)n, sizeof *pieces);
    return FSDP_OK;
}

static fsdp_status call_wrap(grade *g)
{
    enum { MOST_NODES = 64 };
    module_node nodes[MOST_NODES];
    int unit[MOST_NODES], n_units = 0;
    const int n = (int)rows(nodes, MOST_NODES, sizeof *nodes);
    const wrap_policy policy = (wrap_policy)number();
    TRY(wrap_assign(&(module_tree){n, nodes}, policy, count(), unit, &n_units));
    wire_put(&tell, n_units);
    wire_put_rows(&tell, unit, (size_t)n, sizeof *unit);
    return FSDP_OK;
}

static fsdp_status call_init(grade *g)
{
    param_spec params[MOST_SLOTS];
    const flat_layout l = asked_layout();
    const model m = {.params = params, .n_params = (int)rows(params, MOST_SLOTS, sizeof *params)};
    const uint64_t seed = (uint64_t)count();
    float shard[MOST_FLAT];
    for (size_t i = 0; i < l.shard_elems; i++)
        shard[i] = NAN;
    TRY(flat_init_shard(&l, &m, seed, number(), shard));
    wire_put_floats(&tell, shard, l.shard_elems);
    return FSDP_OK;
}

/* ---- units made by hand -------------------------------------------------------------------- */

/* Run a body with the units that the request describes. */
static fsdp_status with_units(grade *g, fix_body body)
{
    fix_param params[FIX_PARAMS];
    ask_units asked;
    wire_get_bytes(&ask, &asked, sizeof asked);
    fix_spec spec = {.params = params,
                     .n_units = N_UNITS,
                     .sharding = asked.sharding,
                     .shard_size = asked.shard_size,
                     .mode = asked.mode,
                     .async_compute = true};
    for (int u = 0; u < N_UNITS; u++) {
        const ask_unit *unit = &asked.units[u];
        spec.used_elems[u] = unit->used;
        for (int p = 0; p < unit->n_params; p++)
            params[spec.n_params++] = (fix_param){.unit = u,
                                                  .offset = unit->offset[p],
                                                  .elems = unit->elems[p],
                                                  .decay = true,
                                                  .frozen = unit->frozen};
    }
    return fixture_run(g, &spec, body);
}

static const float *asked_floats(size_t n)
{
    static float values[MAX_ELEMS];
    FSDP_ASSERT(n <= MAX_ELEMS);
    wire_get_floats(&ask, values, n);
    return values;
}

static fsdp_status write_asked(fixture *fx, float *array, size_t elems)
{
    return grade_write(fx->compute, array, asked_floats(elems), elems * sizeof *array);
}

/* elems values, after a number that is 0 if there is no array. */
static void tell_array(fixture *fx, const float *array, size_t elems)
{
    const float *values = fix_read(fx, array, elems);
    wire_put(&tell, values != NULL);
    if (values != NULL)
        wire_put_floats(&tell, values, elems);
}

static fsdp_status write_shards(fixture *fx)
{
    for (int u = 0; u < N_UNITS; u++)
        TRY(write_asked(fx, fx->f.units[u].shard, fx->f.units[u].layout.shard_elems));
    return FSDP_OK;
}

static fsdp_status gather_body(fixture *fx)
{
    TRY(write_shards(fx));
    for (int i = 0; i < N_UNITS; i++) {
        const int u = number();
        fsdp_unit *unit = &fx->f.units[u];
        TRY(unshard_begin(&fx->f, u));
        TRY(stream_wait_event(fx->compute, unit->gathered));
        tell_array(fx, unit->full, unit->layout.padded_elems);
    }
    return FSDP_OK;
}

static fsdp_status call_gather(grade *g)
{
    return with_units(g, gather_body);
}

static float asked_grad[MAX_ELEMS];

static float grad_value(int rank, int buffer, size_t i)
{
    return asked_grad[i];
}

static fsdp_status reduce_body(fixture *fx)
{
    const int n_micro = number();
    for (int u = 0; u < N_UNITS; u++) {
        grad_buffer *buffer = &fx->r.grads[u].buffer;
        float *sum;
        if (fx->f.units[u].given.frozen)
            continue;
        for (int a = 0; a < n_micro; a++) {
            wire_get_floats(&ask, asked_grad, buffer->elems);
            TRY(fix_grad_by_hand(fx, u, grad_value));
            grad_views_bind(&fx->r, u);
            TRY(reduce_begin(&fx->r, u));
            TRY(reduce_wait(&fx->r, u));
        }
        TRY(grad_acc_finish(&buffer->acc, fx->compute, &sum));
        tell_array(fx, sum, buffer->acc.elems);
        device_free(fx->compute, sum);
    }
    return FSDP_OK;
}

static fsdp_status call_reduce(grade *g)
{
    return with_units(g, reduce_body);
}

/* Put the request's leaves of unit u, each as long as the flat array, into its accumulator. */
static fsdp_status push_leaves(fixture *fx, int u)
{
    for (int n = 0; n < fx->world_size; n++) {
        wire_get_floats(&ask, asked_grad, fx->f.units[u].given.place.slices.padded_elems);
        TRY(fix_push(fx, u, 1, n, grad_value));
    }
    return FSDP_OK;
}

static fsdp_status finish_body(fixture *fx)
{
    const float scale = one_float();
    for (int u = 0; u < N_UNITS; u++) {
        if (fx->f.units[u].given.frozen)
            continue;
        TRY(push_leaves(fx, u));
        TRY(grad_finish(&fx->r, u, scale));
        tell_array(fx, fx->r.grads[u].shard_grad, fx->f.units[u].given.place.slices.shard_elems);
    }
    return FSDP_OK;
}

static fsdp_status call_finish(grade *g)
{
    return with_units(g, finish_body);
}

static fsdp_status norm_body(fixture *fx)
{
    fsdp_optimizer o;
    rsum sum;
    TRY(optimizer_create(&fx->r, &o));
    for (int u = 0; u < N_UNITS; u++) {
        const size_t elems = fx->f.units[u].layout.shard_elems;
        float **grad = &fx->r.grads[u].shard_grad;
        if (fx->f.units[u].given.frozen)
            continue;
        TRY(device_alloc_f32(fx->compute, MEM_GRADS_SHARD, elems, "gradient", grad));
        TRY(write_asked(fx, *grad, elems));
    }
    TRY(grad_norm(&o));
    TRY(grade_read(fx->compute, o.norm_sum, sizeof sum, &sum));
    wire_put_bytes(&tell, &sum, sizeof sum);
    optimizer_free(&o);
    return FSDP_OK;
}

static fsdp_status call_norm(grade *g)
{
    return with_units(g, norm_body);
}

static fsdp_status step_body(fixture *fx)
{
    fsdp_optimizer o;
    float *norm;
    const float lr = one_float(), scale = one_float(), clip_norm = one_float();
    fx->f.run.optimizer = OPTIMIZER_SGD;
    TRY(write_shards(fx));
    for (int u = 0; u < N_UNITS; u++)
        if (!fx->f.units[u].given.frozen)
            TRY(push_leaves(fx, u));
    TRY(optimizer_create(&fx->r, &o));
    TRY(device_alloc_f32(fx->compute, MEM_OTHER, 1, "norm", &norm));
    TRY(optimizer_step(
        &o,
        &(step_scalars){.optim = {.lr = (double)lr}, .clip_norm = clip_norm, .grad_scale = scale},
        norm));
    TRY(stream_sync(fx->f.comm_stream));
    tell_array(fx, norm, 1);
    tell_array(fx, o.coef, 1);
    for (int u = 0; u < N_UNITS; u++)
        tell_array(fx, fx->f.units[u].shard, fx->f.units[u].layout.shard_elems);
    optimizer_free(&o);
    device_free(fx->compute, norm);
    return FSDP_OK;
}

static fsdp_status call_step(grade *g)
{
    return with_units(g, step_body);
}

/* ---- lab 4, without units ------------------------------------------------------------------ */

static fsdp_status call_adamw(grade *g)
{
    float arrays[4][MOST_FLAT], coef;
    optim_config config;
    adamw_args a = {
        .param = arrays[0], .m = arrays[1], .v = arrays[2], .grad = arrays[3], .grad_coef = &coef};
    wire_get_floats(&ask, &coef, 1);
    wire_get_bytes(&ask, &config, sizeof config);
    adamw_scalars(&a, &config);
    for (int k = 0; k < 4; k++)
        a.elems = rows(arrays[k], MOST_FLAT, sizeof(float));
    TRY(adamw_shard(&a));
    for (int k = 0; k < 3; k++)
        wire_put_floats(&tell, arrays[k], a.elems);
    return FSDP_OK;
}

static fsdp_status call_ranges(grade *g)
{
    param_spec params[MOST_SLOTS];
    decay_range ranges[MOST_SLOTS];
    const flat_layout l = asked_layout();
    int n = 0;
    (void)rows(params, MOST_SLOTS, sizeof *params);
    TRY(decay_ranges(&l, params, number(), ranges, &n));
    wire_put_rows(&tell, ranges, (size_t)n, sizeof *ranges);
    return FSDP_OK;
}

/* Pack a shard of one layout, or fill one of another from such pieces. */
static fsdp_status call_pack(grade *g)
{
    const flat_layout l = asked_layout();
    const int rank = number();
    ckpt_piece pieces[MOST_SLOTS];
    float shard[MOST_FLAT], values[MOST_FLAT];
    ckpt_pieces out = {.pieces = pieces, .values = values};
    wire_get_floats(&ask, shard, l.shard_elems);
    TRY(ckpt_pack(&l, rank, shard, &out));
    wire_put_rows(&tell, pieces, (size_t)out.n_pieces, sizeof *pieces);
    wire_put_floats(&tell, values, l.shard_elems);
    return FSDP_OK;
}

static fsdp_status call_unpack(grade *g)
{
    const flat_layout l = asked_layout();
    const int rank = number(), n_files = number();
    float shard[MOST_FLAT], values[MOST_FLAT];
    size_t placed = 0;
    for (size_t i = 0; i < l.shard_elems; i++)
        shard[i] = NAN;
    for (int f = 0; f < n_files; f++) {
        ckpt_piece pieces[MOST_SLOTS];
        const int n = (int)rows(pieces, MOST_SLOTS, sizeof *pieces);
        (void)rows(values, MOST_FLAT, sizeof *values);
        TRY(ckpt_unpack(&l, rank, &(ckpt_pieces){pieces, values, n}, shard, &placed));
    }
    wire_put(&tell, (long long)placed);
    wire_put_floats(&tell, shard, l.shard_elems);
    return FSDP_OK;
}

static fsdp_status call_pieces_of_files(grade *g)
{
    return number() ? call_pack(g) : call_unpack(g);
}

/* ---- whole models -------------------------------------------------------------------------- */

/* What this rank holds of the arrays: for each piece its parameter, place and values. */
static void tell_held(whole *w, float *const *held)
{
    for (int u = 0; u < w->f.n_units; u++) {
        const flat_layout *l = &w->f.units[u].layout;
        const size_t begin = (size_t)w->grid.shape.at[AXIS_SHARD] * l->shard_elems;
        const float *shard = fix_read(&w->notes, held[u], l->shard_elems);
        for (size_t i = 0; i < l->shard_elems && shard != NULL; i++)
            for (int k = 0; k < l->n_slots; k++) {
                const flat_slot *slot = &l->slots[k];
                if (begin + i < slot->offset || begin + i >= slot->offset + slot->elems)
                    continue;
                wire_put(&tell, slot->param);
                wire_put(&tell, (long long)(begin + i - slot->offset));
                wire_put_floats(&tell, &shard[i], 1);
            }
    }
    wire_put(&tell, -1);
}

static fsdp_status train_whole(whole *w)
{
    enum { MOST_UNITS = 16 };
    float *held[MOST_UNITS], loss;
    FSDP_ASSERT(w->f.n_units <= MOST_UNITS);
    TRY(zero_grad(&w->r));
    for (int a = 0; a < w->config->accum; a++) {
        TRY(whole_forward(w, a, true, &loss));
        wire_put_floats(&tell, &loss, 1);
    }
    TRY(grads_finish(&w->r, whole_scale(w)));
    for (int u = 0; u < w->f.n_units; u++)
        held[u] = w->r.grads[u].shard_grad;
    tell_held(w, held);
    return zero_grad(&w->r);
}

static fsdp_status call_whole(grade *g)
{
    static whole w_[1]; /* static: threads of a failed run may still read it */
    whole *w = memset(w_, 0, sizeof w_);
    float loss;
    ask_run run;
    wire_get_bytes(&ask, &run, sizeof run);
    const whole_config config = {.model = &run.shape,
                                 .seed = run.seed,
                                 .batch = run.batch,
                                 .accum = run.accum,
                                 .wrap = run.wrap,
                                 .sharding = run.sharding,
                                 .fsdp_size = run.shard_size,
                                 .trains = run.trains};
    TRY(whole_open(g, &config, w));
    if (config.trains) {
        TRY(train_whole(w));
    } else {
        TRY(whole_forward(w, 0, false, &loss));
        wire_put_floats(&tell, &loss, 1);
        TRY(reshard_all(&w->f));
    }
    fix_copies_free(&w->notes);
    return whole_close(w);
}

static fsdp_status call_training(grade *g)
{
    ask_run run;
    run_result result = {0};
    wire_get_bytes(&ask, &run, sizeof run);
    const run_config c = {.fsdp = true,
                          .wrap = run.wrap,
                          .ops = g->ops,
                          .mode = GRAD_ACC_CANONICAL,
                          .corpus_tokens = 4096,
                          .model = run.shape,
                          .seq_len = run.shape.max_seq_len,
                          .seed = run.seed,
                          .batch = run.batch,
                          .grad_accum = run.accum,
                          .steps = run.steps,
                          .sharding = run.sharding,
                          .optimizer = run.optimizer,
                          .prefetch = run.prefetch,
                          .lr = (double)run.lr,
                          .clip_norm = run.clip_norm};
    TRY(run_training(g->dev, g->comm, &c, &result));
    wire_put_floats(&tell, result.loss, (size_t)c.steps);
    wire_put_floats(&tell, result.norm, (size_t)c.steps);
    if (g->rank == 0)
        wire_put_floats(&tell, result.params, result.param_elems);
    run_result_free(&result);
    return FSDP_OK;
}

/* ---- the table ----------------------------------------------------------------------------- */

#define WORKER(name, call)                                                                         \
    static fsdp_status name(grade *g)                                                              \
    {                                                                                              \
        return serve(g, call);                                                                     \
    }
WORKER(task_1_1, call_span)
WORKER(task_1_2, call_layout)
WORKER(task_1_3, call_pieces)
WORKER(task_1_4, call_wrap)
WORKER(task_1_5, call_init)
WORKER(task_2_1, call_gather)
WORKER(task_3_2a, call_reduce)
WORKER(task_3_3, call_finish)
WORKER(task_4_1, call_adamw)
WORKER(task_4_2, call_ranges)
WORKER(task_4_3, call_norm)
WORKER(task_4_4, call_step)
WORKER(task_4_5, call_pieces_of_files)
WORKER(whole_model, call_whole)
WORKER(training, call_training)

int main(int argc, char **argv)
{
    static const grade_task tasks[] = {{"1.1", task_1_1},    {"1.2", task_1_2},   {"1.3", task_1_3},
                                       {"1.4", task_1_4},    {"1.5", task_1_5},   {"2.1", task_2_1},
                                       {"2.5", whole_model}, {"3.2a", task_3_2a}, {"3.3", task_3_3},
                                       {"3.7", whole_model}, {"4.1", task_4_1},   {"4.2", task_4_2},
                                       {"4.3", task_4_3},    {"4.4", task_4_4},   {"4.5", task_4_5},
                                       {"4.6", training},    {"5.6", training}};
    return grade_main(argc, argv, tasks, (int)(sizeof tasks / sizeof *tasks));
}
