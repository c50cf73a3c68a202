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
#include "tests/grade/small_lib.h"
#include "tests/grade/wire_lib.h"

enum { MOST_SLOTS = 16, MOST_FLAT = 512, MOST_FILES = 8 };

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

static size_t count_up_to(size_t most)
{
    return wire_get_below(&ask, most + 1);
}

/* The next n numbers. An initializer may not read them itself: its order is not fixed. */
static const long long *row(int n)
{
    static long long x[8];
    FSDP_ASSERT(n <= 8);
    for (int i = 0; i < n; i++)
        x[i] = wire_get(&ask);
    return x;
}

static float one_float(void)
{
    float x;
    wire_get_floats(&ask, &x, 1);
    return x;
}

/* ---- lab 1 --------------------------------------------------------------------------------- */

static fsdp_status call_span(grade *g)
{
    const size_t total = count(), align = count();
    const int w = number(), rank = number();
    shard_span s = {0};
    TRY(shard_range(total, align, w, rank, &s));
    wire_put(&tell, (long long)s.shard_elems);
    wire_put(&tell, (long long)s.begin);
    wire_put(&tell, (long long)s.elems);
    wire_put(&tell, (long long)s.pad_elems);
    return FSDP_OK;
}

static fsdp_status call_layout(grade *g)
{
    int params[MOST_SLOTS];
    size_t elems[MOST_SLOTS];
    const size_t n = count_up_to(MOST_SLOTS);
    for (size_t i = 0; i < n; i++) {
        params[i] = number();
        elems[i] = count();
    }
    flat_align align;
    align.slot_elems = count();
    align.shard_elems = count();
    flat_layout l = {0};
    TRY(flat_layout_build((int)n, params, elems, align, number(), &l));
    wire_put(&tell, l.n_slots);
    for (int i = 0; i < l.n_slots; i++) {
        wire_put(&tell, l.slots[i].param);
        wire_put(&tell, (long long)l.slots[i].offset);
        wire_put(&tell, (long long)l.slots[i].elems);
    }
    wire_put(&tell, (long long)l.used_elems);
    wire_put(&tell, (long long)l.shard_elems);
    wire_put(&tell, (long long)l.padded_elems);
    wire_put(&tell, l.world_size);
    flat_layout_free(&l);
    return FSDP_OK;
}

/* The layout of a request; its slots are valid until the next one. */
static flat_layout asked_layout(void)
{
    static flat_slot slots[MOST_SLOTS];
    flat_layout l = {
        .world_size = number(), .n_slots = (int)count_up_to(MOST_SLOTS), .slots = slots};
    for (int i = 0; i < l.n_slots; i++)
        slots[i] = (flat_slot){.param = number(), .offset = count(), .elems = count()};
    l.used_elems = count();
    l.shard_elems = count_up_to(MOST_FLAT);
    l.padded_elems = l.shard_elems * (size_t)l.world_size;
    return l;
}

static fsdp_status call_pieces(grade *g)
{
    const flat_layout l = asked_layout();
    flat_piece pieces[MOST_SLOTS];
    int n = 0;
    TRY(flat_intersect(&l, number(), pieces, &n));
    wire_put(&tell, n);
    for (int i = 0; i < n && i < MOST_SLOTS; i++) {
        wire_put(&tell, pieces[i].slot);
        wire_put(&tell, (long long)pieces[i].param_begin);
        wire_put(&tell, (long long)pieces[i].shard_begin);
        wire_put(&tell, (long long)pieces[i].elems);
    }
    return FSDP_OK;
}

static fsdp_status call_wrap(grade *g)
{
    enum { MOST_NODES = 64 };
    module_node nodes[MOST_NODES];
    int unit[MOST_NODES], n_units = 0;
    const module_tree tree = {.n_nodes = (int)count_up_to(MOST_NODES), .nodes = nodes};
    for (int i = 0; i < tree.n_nodes; i++) {
        const long long *x = row(5);
        nodes[i] = (module_node){(module_kind)x[0], (int)x[1], (int)x[2], (size_t)x[3], x[4] != 0};
    }
    const wrap_policy policy = (wrap_policy)number();
    TRY(wrap_assign(&tree, policy, count(), unit, &n_units));
    wire_put(&tell, n_units);
    for (int i = 0; i < tree.n_nodes; i++)
        wire_put(&tell, unit[i]);
    return FSDP_OK;
}

static fsdp_status call_init(grade *g)
{
    param_spec params[MOST_SLOTS];
    const flat_layout l = asked_layout();
    const model m = {.n_params = (int)count_up_to(MOST_SLOTS), .params = params};
    float shard[MOST_FLAT];
    for (int p = 0; p < m.n_params; p++) {
        const long long *x = row(2);
        params[p] = (param_spec){.elems = (size_t)x[0],
                                 .init = (init_rule)x[1],
                                 .init_scale = 0.5f,
                                 .tied_to = NOT_TIED};
    }
    const uint64_t seed = (uint64_t)count();
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
    static fix_param params[FIX_PARAMS];
    fix_spec spec = {.params = params, .n_units = N_UNITS};
    spec.n_params = (int)count_up_to(FIX_PARAMS);
    for (int p = 0; p < spec.n_params; p++) {
        const long long *x = row(5);
        params[p] = (fix_param){.unit = (int)x[0],
                                .offset = (size_t)x[1],
                                .elems = (size_t)x[2],
                                .decay = x[3] != 0,
                                .frozen = x[4] != 0};
    }
    for (int u = 0; u < spec.n_units; u++)
        spec.used_elems[u] = count_up_to(MAX_ELEMS - 4);
    spec.sharding = (sharding_strategy)number();
    spec.shard_size = number();
    spec.mode = (grad_acc_mode)number();
    spec.async_compute = number();
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
        const int u = (int)wire_get_below(&ask, N_UNITS);
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
        if (fx->f.units[u].frozen)
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
        wire_get_floats(&ask, asked_grad, fx->f.units[u].slices.padded_elems);
        TRY(fix_push(fx, u, 1, n, grad_value));
    }
    return FSDP_OK;
}

static fsdp_status finish_body(fixture *fx)
{
    const float scale = one_float();
    for (int u = 0; u < N_UNITS; u++) {
        if (fx->f.units[u].frozen)
            continue;
        TRY(push_leaves(fx, u));
        TRY(grad_finish(&fx->r, u, scale));
        tell_array(fx, fx->r.grads[u].shard_grad, fx->f.units[u].slices.shard_elems);
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
        if (fx->f.units[u].frozen)
            continue;
        TRY(device_alloc_f32(fx->compute, MEM_GRADS_SHARD, elems, "gradient", grad));
        TRY(write_asked(fx, *grad, elems));
    }
    TRY(grad_norm(&o));
    TRY(grade_read(fx->compute, o.norm_sum, sizeof sum, &sum));
    for (size_t i = 0; i < sizeof sum.bin / sizeof *sum.bin; i++)
        wire_put(&tell, sum.bin[i]);
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
        if (!fx->f.units[u].frozen)
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
    float arrays[4][MOST_FLAT];
    adamw_args a = {.param = arrays[0], .m = arrays[1], .v = arrays[2], .grad = arrays[3]};
    float coef, x[5];
    wire_get_floats(&ask, &coef, 1);
    wire_get_floats(&ask, x, 5);
    a.grad_coef = &coef;
    adamw_scalars(&a, &(optim_config){.lr = (double)x[0],
                                      .weight_decay = (double)x[1],
                                      .beta1 = (double)x[2],
                                      .beta2 = (double)x[3],
                                      .eps = (double)x[4],
                                      .step = number()});
    a.elems = count_up_to(MOST_FLAT);
    for (int k = 0; k < 4; k++)
        wire_get_floats(&ask, arrays[k], a.elems);
    TRY(adamw_shard(&a));
    for (int k = 0; k < 3; k++)
        wire_put_floats(&tell, arrays[k], a.elems);
    return FSDP_OK;
}

static fsdp_status call_ranges(grade *g)
{
    param_spec params[MOST_SLOTS] = {0};
    decay_range ranges[MOST_SLOTS];
    const flat_layout l = asked_layout();
    int n = 0;
    for (int p = 0; p < MOST_SLOTS; p++)
        params[p].decay = number();
    TRY(decay_ranges(&l, params, number(), ranges, &n));
    wire_put(&tell, n);
    for (int i = 0; i < n && i < MOST_SLOTS; i++) {
        wire_put(&tell, (long long)ranges[i].begin);
        wire_put(&tell, (long long)ranges[i].elems);
        wire_put(&tell, ranges[i].decay);
    }
    return FSDP_OK;
}

/* Pack every shard of one layout, or fill one shard of another from such pieces. */
static fsdp_status call_pack(grade *g)
{
    const flat_layout l = asked_layout();
    const int rank = number();
    ckpt_piece pieces[MOST_SLOTS];
    float shard[MOST_FLAT], values[MOST_FLAT];
    ckpt_pieces out = {.pieces = pieces, .values = values};
    wire_get_floats(&ask, shard, l.shard_elems);
    TRY(ckpt_pack(&l, rank, shard, &out));
    size_t elems = 0;
    wire_put(&tell, out.n_pieces);
    for (int i = 0; i < out.n_pieces && i < MOST_SLOTS; i++) {
        wire_put(&tell, pieces[i].param);
        wire_put(&tell, (long long)pieces[i].begin);
        wire_put(&tell, (long long)pieces[i].elems);
        elems += pieces[i].elems;
    }
    wire_put_floats(&tell, values, elems < MOST_FLAT ? elems : MOST_FLAT);
    return FSDP_OK;
}

static fsdp_status call_unpack(grade *g)
{
    const flat_layout l = asked_layout();
    const int rank = number(), n_files = (int)count_up_to(MOST_FILES);
    float shard[MOST_FLAT], values[MOST_FLAT];
    size_t placed = 0;
    for (size_t i = 0; i < l.shard_elems; i++)
        shard[i] = NAN;
    for (int f = 0; f < n_files; f++) {
        ckpt_piece pieces[MOST_SLOTS];
        const ckpt_pieces in = {pieces, values, (int)count_up_to(MOST_SLOTS)};
        size_t elems = 0;
        for (int i = 0; i < in.n_pieces; i++) {
            const long long *x = row(3);
            pieces[i] = (ckpt_piece){(int32_t)x[0], (uint64_t)x[1], (uint64_t)x[2], "a unit"};
            elems += pieces[i].elems;
        }
        FSDP_ASSERT(elems <= MOST_FLAT);
        wire_get_floats(&ask, values, elems);
        TRY(ckpt_unpack(&l, rank, &in, shard, &placed));
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

static model_config asked_model(void)
{
    model_config c = GPT2_CONFIG(0, 0, 0, 0, 0);
    c.n_blocks = count();
    c.n_head = count();
    c.d_model = count();
    c.d_ff = 4 * c.d_model;
    c.vocab_size = count();
    c.max_seq_len = count();
    return c;
}

/* What this rank holds of the arrays: for each piece its parameter, place and values. */
static void tell_held(whole *w, float *const *held)
{
    for (int u = 0; u < w->f.n_units; u++) {
        const flat_layout *l = &w->f.units[u].layout;
        const size_t begin = (size_t)w->grid.shape.shard_rank * l->shard_elems;
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
    const model_config shape = asked_model();
    const long long *x = row(7);
    const whole_config config = {.model = &shape,
                                 .seed = (uint64_t)x[0],
                                 .batch = (size_t)x[1],
                                 .accum = (int)x[2],
                                 .wrap = (wrap_policy)x[3],
                                 .sharding = (sharding_strategy)x[4],
                                 .fsdp_size = (int)x[5],
                                 .trains = x[6] != 0};
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
    run_config c = {.fsdp = true,
                    .wrap = WRAP_BLOCK,
                    .ops = g->ops,
                    .mode = GRAD_ACC_CANONICAL,
                    .corpus_tokens = 4096,
                    .model = asked_model()};
    run_result result = {0};
    c.seq_len = c.model.max_seq_len;
    const long long *x = row(8);
    c.seed = (uint64_t)x[0];
    c.batch = (size_t)x[1];
    c.grad_accum = (int)x[2];
    c.steps = (int)x[3];
    c.sharding = (sharding_strategy)x[4];
    c.optimizer = (optimizer_kind)x[5];
    c.prefetch.mode = (prefetch_mode)x[6];
    c.prefetch.limit = (int)x[7];
    c.lr = (double)one_float();
    c.clip_norm = one_float();
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
