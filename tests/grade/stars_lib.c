/* stars_lib.c -- see stars_lib.h. */
#include "tests/grade/stars_lib.h"
#include <stdlib.h>
#include <string.h>
#include "common/model/family.h"
#include "lab3_backward/no_sync.h"
#include "lab3_backward/recompute.h"
#include "tests/equivalence/run_lib.h"
#include "tests/equivalence/twin_lib.h"
#include "tests/grade/handmade_lib.h"
#include "tests/unit/target_lib.h"

/* ---- 3.9 ------------------------------------------------------------------------------------- */

enum { MICROS = 4 };

static int micro; /* the micro-step whose gradient is being made */

/* The micro-steps of a rank are adjacent: micro-step a of rank r has number 4 r + a. */
static float neighbour(int rank, int buffer, size_t i)
{
    return fix_fraction(MICROS * rank + micro, buffer, i);
}

/* How many vectors wait in the binary counter after each micro-step. */
static const int WAITING[MICROS] = {1, 1, 2, 0};

static fsdp_status one_micro(fixture *fx, int u)
{
    char buf[64];
    const bool is_last = micro == MICROS - 1;
    size_t vector = 0;
    for (int k = 0; k < fix_n_buffers(fx, u); k++)
        vector += fix_buffer(fx, u, k)->elems * sizeof(float);
    TRY(fix_grad_by_hand(fx, u, neighbour));
    TRY(reducer_begin_micro(&fx->r, micro, MICROS, true));
    TRY(RUNS_AHEAD(fx, WHAT("reduce_begin in micro-step %d", micro), reduce_begin(&fx->r, u)));
    TRY(reduce_wait(&fx->r, u));
    note(fx, expect_size(WHAT("bytes of gradients after micro-step %d", micro),
                         fix_live(fx, MEM_GRADS_FULL), (vector * (size_t)WAITING[micro])));
    const char *what = WHAT("collectives of micro-step %d of %d", micro, MICROS);
    snprintf(buf, sizeof buf, "reduce-scatter %s;", fx->f.units[u].name);
    if (fix_n_buffers(fx, u) == 1)
        fix_expect_trace(fx, what, is_last ? buf : "");
    else
        note(fx, EXPECT((*fx->trace != 0) == is_last, "", "%s: got \"%s\", expected %s", what,
                        fx->trace, is_last ? "the reductions of both uses" : "none"));
    note(fx, expect_view("views.grads of what no_sync has kept",
                         fx->f.views.grads[u == ROOT ? 0
                                           : u == H0 ? 2
                                                     : 6],
                         NULL, 0, sizeof(float)));
    return FSDP_OK;
}

static fsdp_status no_sync_body(fixture *fx)
{
    static const int units[] = {H0, ROOT, H2};
    for (int j = 0; j < 3; j++) {
        fix_trace_start(fx);
        for (micro = 0; micro < MICROS; micro++)
            TRY(one_micro(fx, units[j]));
        TRY(fix_expect_acc(fx, units[j], MICROS * fx->world_size, fix_fraction));
    }
    return FSDP_OK;
}

#define NO_SYNC(...)                                                                               \
    FIX_SPEC(.n_params = 9, .mode = GRAD_ACC_CANONICAL, .no_sync = MICROS, __VA_ARGS__)

fsdp_status task_3_9(grade *g)
{
    TRY(fixture_run(g, NO_SYNC(.batch = 1), no_sync_body));
    TRY(fixture_run(g, NO_SYNC(.batch = 2), no_sync_body));
    return fixture_run(g, NO_SYNC(.async_compute = true), no_sync_body);
}

/* ---- 3.10 ------------------------------------------------------------------------------------ */

enum { LAYERS = 8 }; /* embed, three blocks of attention and MLP, head */

static fsdp_status expect_segments(const char *what, const recompute_spec *spec, const model *m,
                                   const int *layer_unit, const int *want, int want_cut)
{
    enum { GUARD = 0, BEFORE = 1 }; /* a guard entry before each array and after it */
    int entries[BEFORE + LAYERS + 1], units[BEFORE + LAYERS], *got = entries + BEFORE, n_cut = -1;
    layer layers[BEFORE + LAYERS + 1];
    memcpy(units + BEFORE, layer_unit, (size_t)m->n_layers * sizeof *units);
    memcpy(layers + BEFORE, m->layers, (size_t)m->n_layers * sizeof *layers);
    units[0] = units[BEFORE]; /* looks like the neighbour of the first */
    layers[0] = layers[BEFORE];
    layers[BEFORE + m->n_layers] = layers[m->n_layers];
    entries[0] = got[m->n_layers] = GUARD;
    model guarded = *m;
    guarded.layers = layers + BEFORE;
    TRY(recompute_choose(spec, &guarded, units + BEFORE, got, &n_cut));
    TRY(expect_int(WHAT("%s: segment[n_layers], after the last layer's", what), got[m->n_layers],
                   GUARD));
    for (int i = 0; i < m->n_layers; i++)
        TRY(expect_int(WHAT("%s: segment of layer %d", what, i), got[i], want[i]));
    return expect_int(WHAT("%s: segments that units have cut", what), n_cut, want_cut);
}

static fsdp_status choices(const model *m)
{
    enum { NO = NO_SEGMENT };
    static const int by_block[] = {0, 1, 1, 2, 2, 3, 3, 0}, by_layer[] = {0, 1, 2, 3, 4, 5, 6, 0};
    static const int merged[] = {0, 1, 1, 1, 1, 1, 1, 0}, halves[] = {0, 1, 2, 2, 2, 2, 2, 0};
    TRY(expect_segments("blocks in one unit", &(recompute_spec){RECOMPUTE_BLOCK, 0, 1}, m, merged,
                        (const int[]){NO, 0, 0, 1, 1, 2, 2, NO}, 0));
    TRY(expect_segments("blocks", &(recompute_spec){RECOMPUTE_BLOCK, 0, 1}, m, by_block,
                        (const int[]){NO, 0, 0, 1, 1, 2, 2, NO}, 0));
    TRY(expect_segments("blocks in units of a layer", &(recompute_spec){RECOMPUTE_BLOCK, 1, 1}, m,
                        by_layer, (const int[]){NO, NO, NO, 0, 1, 2, 3, NO}, 2));
    TRY(expect_segments("blocks, the first cut", &(recompute_spec){RECOMPUTE_BLOCK, 0, 1}, m,
                        halves, (const int[]){NO, 0, 1, 2, 2, 3, 3, NO}, 1));
    TRY(expect_segments("attention", &(recompute_spec){RECOMPUTE_ATTENTION, 0, 1}, m, by_block,
                        (const int[]){NO, 0, NO, 1, NO, 2, NO, NO}, 0));
    TRY(expect_segments("MLP of every 2nd block", &(recompute_spec){RECOMPUTE_MLP, 0, 2}, m,
                        by_block, (const int[]){NO, NO, NO, NO, 0, NO, NO, NO}, 0));
    model blocks = *m; /* a model that begins with a layer to run again */
    blocks.layers++;
    blocks.n_layers--;
    return expect_segments("blocks alone", &(recompute_spec){RECOMPUTE_BLOCK, 0, 1}, &blocks,
                           by_block + 1, (const int[]){0, 0, 1, 1, 2, 2, NO}, 0);
}

/* Number of launches, by phase; and the layers that run again, in order. */
typedef struct counted {
    int products[2], attentions[2]; /* of the first forward and of the second */
    const char *again[LAYERS];
    int n_again, products_of[LAYERS];
} counted;

static int in_segments(counted *c, const char *scope)
{
    const int last = c->n_again - 1;
    if (last >= 0 && (strcmp(c->again[last], scope) == 0 || c->n_again == LAYERS))
        return last;
    c->again[c->n_again] = scope;
    return c->n_again++;
}

static uint64_t count(void *self, const device_act *act)
{
    counted *c = self;
    const char *name = act->kind == ACT_LAUNCH && act->work.key.name ? act->work.key.name : "";
    if (act->phase && *act->phase != 'b') {
        const int again = *act->phase == 'r';
        c->products[again] += strcmp(name, "matmul") == 0;
        c->attentions[again] += strcmp(name, "attention") == 0;
        if (again)
            c->products_of[in_segments(c, act->scope)] += strcmp(name, "matmul") == 0;
    }
    return 0;
}

typedef struct one_run {
    counted c;
    size_t activation_bytes;
    float *grad; /* [leaf_elems], owned */
    size_t elems;
} one_run;

/* Run one leaf on one device, with or without segments. */
static fsdp_status run_leaf(grade *g, const model *m, const corpus *data, const int *segment,
                            one_run *out)
{
    twin t;
    float loss;
    *out = (one_run){0};
    TRY(twin_create(&(twin_config){.m = m,
                                   .ops = target_is_portable() ? ops_cpu_portable() : g->ops,
                                   .data = data,
                                   .batch = 1,
                                   .seq_len = m->config.max_seq_len,
                                   .mode = GRAD_ACC_CANONICAL,
                                   .seed = 3,
                                   .segment = segment,
                                   .run_again = recompute_segment},
                    &t));
    const device_watch watch = {.self = &out->c, .issued = count};
    device_set_watch(t.dev, &watch);
    fsdp_status status = twin_leaf(&t, 0, &loss);
    device_set_watch(t.dev, NULL);
    out->activation_bytes = ledger_read(device_ledger(t.dev)).peak_bytes[MEM_ACTIVATIONS];
    out->elems = t.leaf_elems;
    out->grad = malloc(t.leaf_elems * sizeof *out->grad);
    memcpy(out->grad, t.leaf, t.leaf_elems * sizeof *out->grad);
    twin_free(&t);
    return status;
}

/* Backward needs the last block first. A block's attention and its MLP have two products each; the
 * MLP's second is left out, because nobody reads the output of a segment. */
static fsdp_status expect_again(const model *m, const counted *c)
{
    static const int order[] = {5, 6, 3, 4, 1, 2};
    enum { AGAIN = sizeof order / sizeof *order };
    for (int i = 0; i < AGAIN; i++) {
        const char *want = m->layers[order[i]].name, *got = i < c->n_again ? c->again[i] : "none";
        TRY(EXPECT(strcmp(got, want) == 0, "layers first ... last, each once, from the first on",
                   "layer %d of those that run again: got %s, expected %s", i, got, want));
        const bool is_last = i % 2 == 1;
        TRY(EXPECT(
            c->products_of[i] == (is_last ? 1 : 2),
            is_last ? "wants_out is false for the last layer: no layer reads its output"
                    : "wants_out is true for all layers but the last: the next one reads it",
            "products of %s when it runs again as the %s of its segment: got %d, expected %d", want,
            is_last ? "last" : "first", c->products_of[i], is_last ? 1 : 2));
    }
    return expect_int("layers that run again", c->n_again, AGAIN);
}

/* A run with blocks as segments must give the same gradients with less memory. */
static fsdp_status compare_runs(const model *m, const one_run *plain, const one_run *again,
                                size_t saved_bytes)
{
    TRY(expect_again(m, &again->c));
    TRY(expect_f32("gradient of a leaf", again->grad, plain->grad, plain->elems));
    TRY(expect_int("products of the first forward", again->c.products[0], plain->c.products[0]));
    TRY(expect_int("attentions that run again", again->c.attentions[1], 3));
    TRY(expect_int("products that run again without segments", plain->c.products[1], 0));
    return EXPECT(
        again->activation_bytes + 2 * saved_bytes <= plain->activation_bytes,
        "of three segments one at a time has its activations",
        "peak of activations with segments: got %zu bytes, expected at most %zu (%zu without, "
        "two blocks of %zu fewer)",
        again->activation_bytes, plain->activation_bytes - 2 * saved_bytes, plain->activation_bytes,
        saved_bytes);
}

static fsdp_status run_both(grade *g, const model *m, const corpus *data, one_run *plain,
                            one_run *again)
{
    static const int one_unit[LAYERS];
    int segment[LAYERS], n_cut;
    size_t saved = 0;
    for (int i = 1; i <= 2; i++)
        saved += m->layers[i].bytes(&m->layers[i], m->config.max_seq_len, DTYPE_F32).saved;
    TRY(recompute_choose(&(recompute_spec){RECOMPUTE_BLOCK, 0, 1}, m, one_unit, segment, &n_cut));
    TRY(run_leaf(g, m, data, NULL, plain));
    TRY(run_leaf(g, m, data, segment, again));
    return compare_runs(m, plain, again, saved);
}

fsdp_status task_3_10(grade *g)
{
    static const model_config config = GPT2_CONFIG(3, 2, 16, 31, 8);
    model m;
    corpus data;
    one_run plain = {0}, again = {0};
    TRY(model_create(&config, &m));
    TRY(run_corpus(config.vocab_size, &data));
    fsdp_status status = choices(&m);
    if (status == FSDP_OK)
        status = run_both(g, &m, &data, &plain, &again);
    free(plain.grad);
    free(again.grad);
    corpus_close(&data);
    model_free(&m);
    return status;
}
