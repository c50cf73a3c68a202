/* judge_plain_lib.c -- see judge_plain_lib.h. A check holds an answer against the contract in the
 * header, not against a second solution: only one answer fits. */
#include "tests/grade/judge_plain_lib.h"
#include <math.h>
#include <string.h>
#include "common/model/init.h"
#include "lab1_flatparam/flat_param.h"
#include "tests/grade/defined_lib.h"
#include "tests/grade/exact_lib.h"
#include "tests/grade/jury_lib.h"

enum { CASES = 60, MOST_SLOTS = 6, MOST_PARAMS = 16, MOST_FLAT = 512, MOST_RANKS = 6 };

/* Cases are dealt to the ranks in turn. */
static int rank_of(int number)
{
    return number % jury_ranks();
}

/* ---- 1.1 ----------------------------------------------------------------------------------- */

static fsdp_status check_span(int r, size_t total, size_t align, int w, int rank)
{
    wire *q = jury_ask(r), *a;
    const char *what = WHAT("shard_range(%zu, %zu, %d, %d)", total, align, w, rank);
    wire_put(q, (long long)total);
    wire_put(q, (long long)align);
    wire_put(q, w);
    wire_put(q, rank);
    TRY(jury_call(r, &a));
    const size_t shard = (size_t)wire_get(a), begin = (size_t)wire_get(a);
    const size_t elems = (size_t)wire_get(a), pad = (size_t)wire_get(a), n = (size_t)w;
    TRY(wire_ended(a));
    /* shard < 2^40, so no product here overflows */
    TRY(EXPECT(shard >> 40 == 0 && shard % align == 0 && shard * n >= total &&
                   (shard == 0 || (shard - align) * n < total),
               "", "%s.shard_elems: got %zu, expected the least aligned one that holds all", what,
               shard));
    const size_t first = (size_t)rank * shard;
    TRY(expect_size(WHAT("%s.begin", what), begin, first < total ? first : total));
    TRY(expect_size(WHAT("%s.elems + pad_elems", what), elems + pad, shard));
    return EXPECT(elems <= total - begin && (elems == shard || begin + elems == total), "",
                  "%s.elems: got %zu, expected all of its shard that is there", what, elems);
}

static fsdp_status check_refused_span(int r)
{
    const long long cases[][4] = {{9, 3, 0, 0}, {9, 3, 4, -1}, {9, 3, 4, 4},
                                  {9, 0, 4, 1}, {-2, 8, 1, 0}, {-1, 1, 4, 0}};
    const size_t i = jury_below(6);
    wire *q = jury_ask(r), *a;
    for (int k = 0; k < 4; k++)
        wire_put(q, cases[i][k]);
    return expect_status(WHAT("shard_range(%zu, %lld, %lld, %lld)", (size_t)cases[i][0],
                              cases[i][1], cases[i][2], cases[i][3]),
                         jury_call(r, &a), FSDP_EINVAL);
}

fsdp_status judge_1_1(void)
{
    for (int i = 0; i < CASES; i++) {
        const int w = jury_between(1, 9);
        const size_t total = jury_below(i % 8 ? 200 : (size_t)1 << 36);
        TRY(check_span(rank_of(i), total, 1 + jury_below(12), w, jury_between(0, w - 1)));
        TRY(check_refused_span(rank_of(i)));
    }
    return FSDP_OK;
}

/* ---- 1.2 ----------------------------------------------------------------------------------- */

static fsdp_status check_slot(wire *a, const char *what, int param, size_t elems, size_t align,
                              size_t *end)
{
    TRY(expect_int(WHAT("%s.param", what), wire_get(a), param));
    const size_t offset = (size_t)wire_get(a);
    TRY(EXPECT(offset % align == 0 && offset >= *end && offset - *end < align, "",
               "%s.offset: got %zu, expected the next multiple of %zu from %zu on", what, offset,
               align, *end));
    *end = offset + elems;
    return expect_size(WHAT("%s.elems", what), (size_t)wire_get(a), elems);
}

static fsdp_status check_layout(int r)
{
    const int n = jury_between(0, MOST_SLOTS), w = jury_between(1, 9);
    const size_t slot_align = 1 + jury_below(9), shard_align = 1 + jury_below(9);
    int params[MOST_SLOTS];
    size_t elems[MOST_SLOTS], end = 0;
    wire *q = jury_ask(r), *a;
    wire_put(q, n);
    for (int i = 0; i < n; i++) {
        wire_put(q, params[i] = jury_between(0, 99));
        wire_put(q, (long long)(elems[i] = jury_below(jury_below(9) ? 40 : (size_t)1 << 34)));
    }
    wire_put(q, (long long)slot_align);
    wire_put(q, (long long)shard_align);
    wire_put(q, w);
    TRY(jury_call(r, &a));
    TRY(expect_int("layout.n_slots", wire_get(a), n));
    for (int i = 0; i < n; i++)
        TRY(check_slot(a, WHAT("layout.slots[%d]", i), params[i], elems[i], slot_align, &end));
    const size_t used = (size_t)wire_get(a), shard = (size_t)wire_get(a);
    TRY(EXPECT(used % slot_align == 0 && used >= end && used - end < slot_align, "",
               "layout.used_elems: got %zu, expected the end %zu, rounded up to %zu", used, end,
               slot_align));
    TRY(EXPECT(shard >> 40 == 0 && shard % shard_align == 0 && shard * (size_t)w >= used &&
                   (shard == 0 || (shard - shard_align) * (size_t)w < used),
               "", "layout.shard_elems: got %zu for %zu elements, W = %d, alignment %zu", shard,
               used, w, shard_align));
    TRY(expect_size("layout.padded_elems", (size_t)wire_get(a), shard * (size_t)w));
    TRY(expect_int("layout.world_size", wire_get(a), w));
    return wire_ended(a);
}

fsdp_status judge_1_2(void)
{
    for (int i = 0; i < CASES; i++)
        TRY(check_layout(rank_of(i)));
    return FSDP_OK;
}

/* ---- layouts ------------------------------------------------------------------------------- */

/* A layout over w ranks whose slots are at drawn places; parameters have drawn numbers. */
static flat_layout drawn_layout(int w, flat_slot *slots)
{
    flat_layout l = {.world_size = w, .n_slots = jury_between(1, MOST_SLOTS), .slots = slots};
    int first = jury_between(0, MOST_PARAMS - 1);
    for (int i = 0; i < l.n_slots; i++) {
        slots[i].param = (first + 5 * i) % MOST_PARAMS; /* 5 and 16 have no common factor */
        slots[i].offset = l.used_elems + jury_below(3);
        slots[i].elems = 1 + jury_below(14);
        l.used_elems = slots[i].offset + slots[i].elems;
    }
    l.used_elems += jury_below(3);
    l.shard_elems = (l.used_elems + (size_t)w - 1) / (size_t)w + jury_below(3);
    l.padded_elems = l.shard_elems * (size_t)w;
    return l;
}

/* The same slots over another number of ranks. */
static flat_layout over(const flat_layout *l, int w)
{
    flat_layout other = *l;
    other.world_size = w;
    other.shard_elems = (l->used_elems + (size_t)w - 1) / (size_t)w;
    other.padded_elems = other.shard_elems * (size_t)w;
    return other;
}

static void put_layout(wire *q, const flat_layout *l)
{
    wire_put(q, l->world_size);
    wire_put(q, l->n_slots);
    for (int i = 0; i < l->n_slots; i++) {
        wire_put(q, l->slots[i].param);
        wire_put(q, (long long)l->slots[i].offset);
        wire_put(q, (long long)l->slots[i].elems);
    }
    wire_put(q, (long long)l->used_elems);
    wire_put(q, (long long)l->shard_elems);
}

/* ---- 1.3 ----------------------------------------------------------------------------------- */

static fsdp_status check_pieces(int r, const flat_layout *l, int rank)
{
    flat_piece want[MOST_SLOTS + 1];
    const int n = defined_pieces(l, rank, want);
    wire *q = jury_ask(r), *a;
    put_layout(q, l);
    wire_put(q, rank);
    TRY(jury_call(r, &a));
    TRY(expect_int(WHAT("pieces of rank %d of %d", rank, l->world_size), wire_get(a), n));
    for (int i = 0; i < n; i++) {
        const char *what = WHAT("rank %d of %d, pieces[%d]", rank, l->world_size, i);
        TRY(expect_int(WHAT("%s.slot", what), wire_get(a), want[i].slot));
        TRY(expect_size(WHAT("%s.param_begin", what), (size_t)wire_get(a), want[i].param_begin));
        TRY(expect_size(WHAT("%s.shard_begin", what), (size_t)wire_get(a), want[i].shard_begin));
        TRY(expect_size(WHAT("%s.elems", what), (size_t)wire_get(a), want[i].elems));
    }
    return wire_ended(a);
}

fsdp_status judge_1_3(void)
{
    for (int i = 0; i < CASES; i++) {
        flat_slot slots[MOST_SLOTS];
        const flat_layout l = drawn_layout(jury_between(1, MOST_RANKS), slots);
        for (int rank = 0; rank < l.world_size; rank++)
            TRY(check_pieces(rank_of(i), &l, rank));
    }
    return FSDP_OK;
}

/* ---- 1.4 ----------------------------------------------------------------------------------- */

enum { MOST_NODES = 40 };

static void add_node(module_tree *t, module_kind kind, int parent, int number)
{
    const bool owns = kind == MODULE_LAYER;
    t->nodes[t->n_nodes++] = (module_node){.kind = kind,
                                           .parent = parent,
                                           .layer = owns ? number : -1,
                                           .own_elems = owns ? jury_below(50) : 0,
                                           .tied = owns && jury_below(5) == 0};
}

static module_tree drawn_tree(module_node *nodes)
{
    module_tree t = {.nodes = nodes};
    int n_layers = 0;
    add_node(&t, MODULE_MODEL, -1, -1);
    for (int i = jury_between(1, 6); i > 0; i--) {
        const int block = t.n_nodes;
        if (jury_below(3) == 0) {
            add_node(&t, MODULE_LAYER, 0, n_layers++);
            continue;
        }
        add_node(&t, MODULE_BLOCK, 0, -1);
        for (int k = jury_between(1, 4); k > 0; k--)
            add_node(&t, MODULE_LAYER, block, n_layers++);
    }
    return t;
}

/* Whether a node must be a unit, given the answer for the nodes below it. */
static bool must_be_unit(const module_tree *t, const bool *is_unit, int node, wrap_policy policy,
                         size_t min_elems)
{
    const module_node *nodes = t->nodes;
    size_t left = 0;
    for (int i = 0; i < t->n_nodes; i++) {
        int at = i;
        while (at > node && !is_unit[at] && !nodes[at].tied)
            at = nodes[at].parent;
        left += at == node ? nodes[i].own_elems : 0;
    }
    if (node == 0 || nodes[node].tied)
        return node == 0;
    return policy == WRAP_BLOCK       ? nodes[node].kind == MODULE_BLOCK
           : policy == WRAP_SUB_BLOCK ? nodes[node].kind == MODULE_LAYER
                                      : policy == WRAP_SIZE && left >= min_elems;
}

static fsdp_status check_wrap(int r, const module_tree *t, wrap_policy policy, size_t min_elems)
{
    wire *q = jury_ask(r), *a;
    bool is_unit[MOST_NODES];
    int unit[MOST_NODES], n_units = 0;
    wire_put(q, t->n_nodes);
    for (int i = 0; i < t->n_nodes; i++) {
        wire_put(q, t->nodes[i].kind);
        wire_put(q, t->nodes[i].parent);
        wire_put(q, t->nodes[i].layer);
        wire_put(q, (long long)t->nodes[i].own_elems);
        wire_put(q, t->nodes[i].tied);
    }
    wire_put(q, policy);
    wire_put(q, (long long)min_elems);
    TRY(jury_call(r, &a));
    const long long said = wire_get(a);
    for (int i = 0; i < t->n_nodes; i++) { /* the units are numbered in the order of nodes */
        unit[i] = (int)wire_get(a);
        is_unit[i] = unit[i] == n_units;
        n_units += is_unit[i];
    }
    TRY(wire_ended(a));
    for (int i = t->n_nodes - 1; i >= 0; i--) {
        const bool must = must_be_unit(t, is_unit, i, policy, min_elems);
        const int above = i == 0 || t->nodes[i].tied ? 0 : unit[t->nodes[i].parent];
        TRY(EXPECT(must == is_unit[i], "", "policy %d, node %d of %d: got unit %d, expected %s",
                   (int)policy, i, t->n_nodes, unit[i],
                   must ? "a unit of its own" : "no unit of its own"));
        TRY(expect_int(WHAT("policy %d, unit of node %d", (int)policy, i), unit[i],
                       must ? unit[i] : above));
    }
    return expect_int(WHAT("policy %d, n_units", (int)policy), said, n_units);
}

fsdp_status judge_1_4(void)
{
    for (int i = 0; i < CASES; i++) {
        module_node nodes[MOST_NODES];
        const module_tree t = drawn_tree(nodes);
        for (int policy = WRAP_BLOCK; policy <= WRAP_MODEL; policy++)
            TRY(check_wrap(rank_of(i), &t, (wrap_policy)policy, 1 + jury_below(120)));
    }
    return FSDP_OK;
}

/* ---- 1.5 ----------------------------------------------------------------------------------- */

static fsdp_status check_init(int r)
{
    flat_slot slots[MOST_SLOTS];
    param_spec params[MOST_PARAMS];
    const flat_layout l = drawn_layout(jury_between(1, MOST_RANKS), slots);
    const uint64_t seed = jury_below((size_t)1 << 40);
    const int rank = jury_between(0, l.world_size - 1);
    float got[MOST_FLAT], want[MOST_FLAT] = {0};
    wire *q = jury_ask(r), *a;
    put_layout(q, &l);
    wire_put(q, MOST_PARAMS);
    for (int p = 0; p < MOST_PARAMS; p++) {
        params[p] = (param_spec){.elems = 20,
                                 .init = jury_below(2) ? INIT_NORMAL : INIT_UNIFORM,
                                 .init_scale = 0.5f,
                                 .tied_to = NOT_TIED};
        for (int i = 0; i < l.n_slots; i++)
            params[p].elems = slots[i].param == p ? slots[i].elems : params[p].elems;
        wire_put(q, (long long)params[p].elems);
        wire_put(q, params[p].init);
    }
    wire_put(q, (long long)seed);
    wire_put(q, rank);
    for (size_t i = 0; i < l.shard_elems; i++) {
        const size_t flat = (size_t)rank * l.shard_elems + i;
        const int k = defined_slot(&l, flat);
        if (k >= 0)
            param_init_range(&params[slots[k].param], slots[k].param, seed, flat - slots[k].offset,
                             1, &want[i]);
    }
    TRY(jury_call(r, &a));
    wire_get_floats(a, got, l.shard_elems);
    TRY(wire_ended(a));
    return expect_f32(WHAT("shard of rank %d of %d", rank, l.world_size), got, want, l.shard_elems);
}

fsdp_status judge_1_5(void)
{
    for (int i = 0; i < CASES; i++)
        TRY(check_init(rank_of(i)));
    return FSDP_OK;
}

/* ---- 4.1 ----------------------------------------------------------------------------------- */

static fsdp_status check_adamw(int r)
{
    float in[4][MOST_FLAT], out[3][MOST_FLAT];
    const size_t n = jury_below(MOST_FLAT);
    const int step = jury_between(0, 30);
    const float x[6] = {jury_float() + 1.0f,
                        0.01f,
                        jury_below(2) ? 0.25f : 0.0f,
                        0.75f + 0.25f * jury_float(),
                        0.875f + 0.125f * jury_float(),
                        1e-8f}; /* coef; lr, decay, betas, eps */
    wire *q = jury_ask(r), *a;
    adamw_args args = {.param = in[0], .m = in[1], .v = in[2], .grad = in[3]};
    for (int k = 0; k < 4; k++)
        jury_floats(in[k], n);
    for (size_t i = 0; i < n; i++) {
        in[1][i] = step ? in[1][i] : 0.0f;
        in[2][i] = step ? fabsf(in[2][i]) : 0.0f;
    }
    wire_put_floats(q, x, 6);
    wire_put(q, step);
    wire_put(q, (long long)n);
    for (int k = 0; k < 4; k++)
        wire_put_floats(q, in[k], n);
    TRY(jury_call(r, &a));
    for (int k = 0; k < 3; k++)
        wire_get_floats(a, out[k], n);
    TRY(wire_ended(a));
    adamw_scalars(&args, &(optim_config){.lr = (double)x[1],
                                         .weight_decay = (double)x[2],
                                         .beta1 = (double)x[3],
                                         .beta2 = (double)x[4],
                                         .eps = (double)x[5],
                                         .step = step});
    for (size_t i = 0; i < n; i++) {
        const adamw_exact want = adamw_double(&args, i, (double)x[0]);
        TRY(expect_within("parameter", i, out[0][i], want.param, want.param_tol));
        TRY(expect_within("first moment", i, out[1][i], want.m, want.m_tol));
        TRY(expect_within("second moment", i, out[2][i], want.v, want.v_tol));
    }
    return FSDP_OK;
}

fsdp_status judge_4_1(void)
{
    for (int i = 0; i < CASES; i++)
        TRY(check_adamw(rank_of(i)));
    return FSDP_OK;
}

/* ---- 4.2 ----------------------------------------------------------------------------------- */

static fsdp_status check_ranges(int r)
{
    flat_slot slots[MOST_SLOTS];
    flat_piece want[MOST_SLOTS + 1];
    const flat_layout l = drawn_layout(jury_between(1, 2 * MOST_RANKS), slots);
    const int rank = jury_between(0, l.world_size - 1), n = defined_pieces(&l, rank, want);
    int decays[MOST_PARAMS];
    wire *q = jury_ask(r), *a;
    put_layout(q, &l);
    for (int p = 0; p < MOST_PARAMS; p++)
        wire_put(q, decays[p] = jury_between(0, 1));
    wire_put(q, rank);
    TRY(jury_call(r, &a));
    TRY(expect_int(WHAT("ranges of rank %d of %d", rank, l.world_size), wire_get(a), n));
    for (int i = 0; i < n; i++) {
        const char *what = WHAT("rank %d of %d, range %d", rank, l.world_size, i);
        TRY(expect_size(WHAT("%s: begin", what), (size_t)wire_get(a), want[i].shard_begin));
        TRY(expect_size(WHAT("%s: elems", what), (size_t)wire_get(a), want[i].elems));
        TRY(expect_int(WHAT("%s: decays", what), wire_get(a), decays[slots[want[i].slot].param]));
    }
    return wire_ended(a);
}

fsdp_status judge_4_2(void)
{
    for (int i = 0; i < CASES; i++)
        TRY(check_ranges(rank_of(i)));
    return FSDP_OK;
}

/* ---- 4.5 ----------------------------------------------------------------------------------- */

/* value [l->padded_elems] of the flat array: drawn in slots, NaN between and after them. */
static void drawn_values(const flat_layout *l, float *value)
{
    jury_floats(value, l->padded_elems);
    for (size_t i = 0; i < l->padded_elems; i++)
        value[i] = defined_slot(l, i) < 0 ? NAN : value[i];
}

static fsdp_status check_pack(int r, const flat_layout *l, const float *value)
{
    const int rank = jury_between(0, l->world_size - 1);
    const float *shard = value + (size_t)rank * l->shard_elems;
    flat_piece want[MOST_SLOTS + 1];
    const int n = defined_pieces(l, rank, want);
    float got[MOST_FLAT];
    wire *q = jury_ask(r), *a;
    wire_put(q, 1);
    put_layout(q, l);
    wire_put(q, rank);
    wire_put_floats(q, shard, l->shard_elems);
    TRY(jury_call(r, &a));
    TRY(expect_int(WHAT("ckpt_pack: pieces of rank %d of %d", rank, l->world_size), wire_get(a),
                   n));
    for (int i = 0; i < n; i++) {
        const char *what = WHAT("ckpt_pack: rank %d of %d, pieces[%d]", rank, l->world_size, i);
        TRY(expect_int(WHAT("%s.param", what), wire_get(a), l->slots[want[i].slot].param));
        TRY(expect_size(WHAT("%s.begin", what), (size_t)wire_get(a), want[i].param_begin));
        TRY(expect_size(WHAT("%s.elems", what), (size_t)wire_get(a), want[i].elems));
    }
    for (int i = 0; i < n; i++) {
        wire_get_floats(a, got, want[i].elems);
        TRY(expect_f32(WHAT("ckpt_pack: values of piece %d", i), got, shard + want[i].shard_begin,
                       want[i].elems));
    }
    return wire_ended(a);
}

/* Files that ranks of `from` wrote, read into a shard of the same slots over other ranks. */
static fsdp_status check_unpack(int r, const flat_layout *from, const float *value)
{
    const flat_layout to = over(from, jury_between(1, MOST_RANKS));
    const int rank = jury_between(0, to.world_size - 1);
    float want[MOST_FLAT], got[MOST_FLAT];
    size_t n_want = 0;
    wire *q = jury_ask(r), *a;
    wire_put(q, 0);
    put_layout(q, &to);
    wire_put(q, rank);
    wire_put(q, from->world_size);
    for (int file = from->world_size - 1; file >= 0; file--) { /* any order */
        flat_piece pieces[MOST_SLOTS + 1];
        const int n = defined_pieces(from, file, pieces);
        wire_put(q, n);
        for (int i = 0; i < n; i++) {
            wire_put(q, from->slots[pieces[i].slot].param);
            wire_put(q, (long long)pieces[i].param_begin);
            wire_put(q, (long long)pieces[i].elems);
        }
        for (int i = 0; i < n; i++)
            wire_put_floats(q, value + (size_t)file * from->shard_elems + pieces[i].shard_begin,
                            pieces[i].elems);
    }
    for (size_t i = 0; i < to.shard_elems; i++) {
        const size_t flat = (size_t)rank * to.shard_elems + i;
        const bool holds = defined_slot(from, flat) >= 0;
        want[i] = holds ? value[flat] : NAN;
        n_want += holds;
    }
    TRY(jury_call(r, &a));
    TRY(expect_size(WHAT("ckpt_unpack, %d to %d ranks, rank %d: elements placed", from->world_size,
                         to.world_size, rank),
                    (size_t)wire_get(a), n_want));
    wire_get_floats(a, got, to.shard_elems);
    TRY(wire_ended(a));
    return expect_f32(
        WHAT("ckpt_unpack, %d to %d ranks, rank %d: shard", from->world_size, to.world_size, rank),
        got, want, to.shard_elems);
}

fsdp_status judge_4_5(void)
{
    for (int i = 0; i < CASES; i++) {
        flat_slot slots[MOST_SLOTS];
        float value[MOST_FLAT];
        const flat_layout l = drawn_layout(jury_between(1, MOST_RANKS), slots);
        drawn_values(&l, value);
        TRY(check_pack(rank_of(i), &l, value));
        TRY(check_unpack(rank_of(i), &l, value));
    }
    return FSDP_OK;
}
