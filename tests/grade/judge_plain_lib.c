/* judge_plain_lib.c -- see judge_plain_lib.h. A check holds an answer against the contract in the
 * header, not against a second solution: only one answer fits. */
#include "tests/grade/judge_plain_lib.h"
#include <math.h>
#include <string.h>
#include "common/model/init.h"
#include "lab1_flatparam/flat_param.h"
#include "lab4_optimizer/optimizer.h"
#include "lab4_optimizer/checkpoint.h"
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
    shard_span s;
    wire_get_bytes(a, &s, sizeof s);
    TRY(wire_ended(a));
    const size_t shard = s.shard_elems, n = (size_t)w;
    /* shard < 2^40, so no product here overflows */
    TRY(EXPECT(shard >> 40 == 0 && shard % align == 0 && shard * n >= total &&
                   (shard == 0 || (shard - align) * n < total),
               "", "%s.shard_elems: got %zu, expected the least aligned one that holds all", what,
               shard));
    const size_t first = (size_t)rank * shard;
    TRY(expect_size(WHAT("%s.begin", what), s.begin, first < total ? first : total));
    TRY(expect_size(WHAT("%s.elems + pad_elems", what), s.elems + s.pad_elems, shard));
    return EXPECT(s.elems <= total - s.begin && (s.elems == shard || s.begin + s.elems == total),
                  "", "%s.elems: got %zu, expected all of its shard that is there", what, s.elems);
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

static fsdp_status check_slot(const char *what, const flat_slot *got, const flat_slot *want,
                              size_t align, size_t *end)
{
    TRY(expect_int(WHAT("%s.param", what), got->param, want->param));
    TRY(EXPECT(got->offset % align == 0 && got->offset >= *end && got->offset - *end < align, "",
               "%s.offset: got %zu, expected the next multiple of %zu from %zu on", what,
               got->offset, align, *end));
    *end = got->offset + want->elems;
    return expect_size(WHAT("%s.elems", what), got->elems, want->elems);
}

static fsdp_status check_layout(int r)
{
    const size_t n = jury_below(MOST_SLOTS + 1), w = 1 + jury_below(9);
    const flat_align align = {1 + jury_below(9), 1 + jury_below(9)};
    int params[MOST_SLOTS];
    size_t elems[MOST_SLOTS], end = 0;
    flat_slot slots[MOST_SLOTS];
    flat_layout l;
    wire *q = jury_ask(r), *a;
    for (size_t i = 0; i < n; i++) {
        params[i] = jury_between(0, 99);
        elems[i] = jury_below(jury_below(9) ? 40 : (size_t)1 << 34);
    }
    wire_put_rows(q, params, n, sizeof *params);
    wire_put_rows(q, elems, n, sizeof *elems);
    wire_put_bytes(q, &align, sizeof align);
    wire_put(q, (long long)w);
    TRY(jury_call(r, &a));
    wire_get_bytes(a, &l, sizeof l);
    TRY(expect_size("layout.n_slots", wire_get_rows(a, slots, MOST_SLOTS, sizeof *slots), n));
    TRY(wire_ended(a));
    for (size_t i = 0; i < n; i++)
        TRY(check_slot(WHAT("layout.slots[%zu]", i), &slots[i],
                       &(flat_slot){.param = params[i], .elems = elems[i]}, align.slot_elems,
                       &end));
    const size_t used = l.used_elems, shard = l.shard_elems;
    TRY(EXPECT(used % align.slot_elems == 0 && used >= end && used - end < align.slot_elems, "",
               "layout.used_elems: got %zu, expected the end %zu, rounded up to %zu", used, end,
               align.slot_elems));
    TRY(EXPECT(shard >> 40 == 0 && shard % align.shard_elems == 0 && shard * w >= used &&
                   (shard == 0 || (shard - align.shard_elems) * w < used),
               "", "layout.shard_elems: got %zu for %zu elements, W = %zu, alignment %zu", shard,
               used, w, align.shard_elems));
    TRY(expect_size("layout.padded_elems", l.padded_elems, shard * w));
    return expect_size("layout.world_size", (size_t)l.world_size, w);
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
    wire_put_bytes(q, l, sizeof *l);
    wire_put_rows(q, l->slots, (size_t)l->n_slots, sizeof *l->slots);
}

/* ---- 1.3 ----------------------------------------------------------------------------------- */

static fsdp_status check_pieces(int r, const flat_layout *l, int rank)
{
    flat_piece want[MOST_SLOTS + 1], got[MOST_SLOTS];
    const int n = defined_pieces(l, rank, want);
    wire *q = jury_ask(r), *a;
    put_layout(q, l);
    wire_put(q, rank);
    TRY(jury_call(r, &a));
    TRY(expect_size(WHAT("pieces of rank %d of %d", rank, l->world_size),
                    wire_get_rows(a, got, MOST_SLOTS, sizeof *got), (size_t)n));
    for (int i = 0; i < n; i++) {
        const char *what = WHAT("rank %d of %d, pieces[%d]", rank, l->world_size, i);
        TRY(expect_int(WHAT("%s.slot", what), got[i].slot, want[i].slot));
        TRY(expect_size(WHAT("%s.param_begin", what), got[i].param_begin, want[i].param_begin));
        TRY(expect_size(WHAT("%s.shard_begin", what), got[i].shard_begin, want[i].shard_begin));
        TRY(expect_size(WHAT("%s.elems", what), got[i].elems, want[i].elems));
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
    wire_put_rows(q, t->nodes, (size_t)t->n_nodes, sizeof *t->nodes);
    wire_put(q, policy);
    wire_put(q, (long long)min_elems);
    TRY(jury_call(r, &a));
    const long long said = wire_get(a);
    TRY(expect_size("nodes", wire_get_rows(a, unit, MOST_NODES, sizeof *unit), (size_t)t->n_nodes));
    TRY(wire_ended(a));
    for (int i = 0; i < t->n_nodes; i++) /* the units are numbered in the order of nodes */
        n_units += is_unit[i] = unit[i] == n_units;
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
    for (int p = 0; p < MOST_PARAMS; p++) {
        params[p] = (param_spec){.elems = 20,
                                 .init = jury_below(2) ? INIT_NORMAL : INIT_UNIFORM,
                                 .init_scale = 0.5f,
                                 .tied_to = NOT_TIED};
        for (int i = 0; i < l.n_slots; i++)
            params[p].elems = slots[i].param == p ? slots[i].elems : params[p].elems;
    }
    put_layout(q, &l);
    wire_put_rows(q, params, MOST_PARAMS, sizeof *params);
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
    const float coef = 1.0f + jury_float();
    const optim_config config = {.lr = 0.01,
                                 .weight_decay = jury_below(2) ? 0.25 : 0.0,
                                 .beta1 = 0.75 + 0.25 * (double)jury_float(),
                                 .beta2 = 0.875 + 0.125 * (double)jury_float(),
                                 .eps = 1e-8,
                                 .step = jury_between(0, 30)};
    wire *q = jury_ask(r), *a;
    adamw_args args = {.param = in[0], .m = in[1], .v = in[2], .grad = in[3]};
    wire_put_floats(q, &coef, 1);
    wire_put_bytes(q, &config, sizeof config);
    for (int k = 0; k < 4; k++) {
        jury_floats(in[k], n);
        for (size_t i = 0; i < n; i++) { /* m and v begin at 0, and v has no sign */
            in[k][i] = config.step == 0 && (k == 1 || k == 2) ? 0.0f : in[k][i];
            in[k][i] = k == 2 ? fabsf(in[k][i]) : in[k][i];
        }
        wire_put_rows(q, in[k], n, sizeof(float));
    }
    TRY(jury_call(r, &a));
    for (int k = 0; k < 3; k++)
        wire_get_floats(a, out[k], n);
    TRY(wire_ended(a));
    adamw_scalars(&args, &config);
    for (size_t i = 0; i < n; i++) {
        const adamw_exact want = adamw_double(&args, i, (double)coef);
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
    decay_range got[MOST_SLOTS];
    param_spec params[MOST_PARAMS] = {0};
    const flat_layout l = drawn_layout(jury_between(1, 2 * MOST_RANKS), slots);
    const int rank = jury_between(0, l.world_size - 1), n = defined_pieces(&l, rank, want);
    wire *q = jury_ask(r), *a;
    for (int p = 0; p < MOST_PARAMS; p++)
        params[p].decay = jury_below(2) == 0;
    put_layout(q, &l);
    wire_put_rows(q, params, MOST_PARAMS, sizeof *params);
    wire_put(q, rank);
    TRY(jury_call(r, &a));
    TRY(expect_size(WHAT("ranges of rank %d of %d", rank, l.world_size),
                    wire_get_rows(a, got, MOST_SLOTS, sizeof *got), (size_t)n));
    for (int i = 0; i < n; i++) {
        const char *what = WHAT("rank %d of %d, range %d", rank, l.world_size, i);
        TRY(expect_size(WHAT("%s: begin", what), got[i].begin, want[i].shard_begin));
        TRY(expect_size(WHAT("%s: elems", what), got[i].elems, want[i].elems));
        TRY(expect_int(WHAT("%s: decays", what), got[i].decay,
                       params[slots[want[i].slot].param].decay));
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

/* The pieces of a rank's file, by definition; their values stand in its shard. */
static int file_pieces(const flat_layout *l, int rank, flat_piece *pieces, ckpt_piece *of_file)
{
    const int n = defined_pieces(l, rank, pieces);
    for (int i = 0; i < n; i++)
        of_file[i] = (ckpt_piece){.param = l->slots[pieces[i].slot].param,
                                  .begin = pieces[i].param_begin,
                                  .elems = pieces[i].elems};
    return n;
}

static fsdp_status check_pack(int r, const flat_layout *l, const float *value)
{
    const int rank = jury_between(0, l->world_size - 1);
    const float *shard = value + (size_t)rank * l->shard_elems;
    flat_piece at[MOST_SLOTS + 1];
    ckpt_piece want[MOST_SLOTS], got[MOST_SLOTS];
    const int n = file_pieces(l, rank, at, want);
    float values[MOST_FLAT], *packed = values;
    wire *q = jury_ask(r), *a;
    wire_put(q, 1);
    put_layout(q, l);
    wire_put(q, rank);
    wire_put_floats(q, shard, l->shard_elems);
    TRY(jury_call(r, &a));
    TRY(expect_size(WHAT("ckpt_pack: pieces of rank %d of %d", rank, l->world_size),
                    wire_get_rows(a, got, MOST_SLOTS, sizeof *got), (size_t)n));
    wire_get_floats(a, values, l->shard_elems);
    TRY(wire_ended(a));
    for (int i = 0; i < n; i++) {
        const char *what = WHAT("ckpt_pack: rank %d of %d, pieces[%d]", rank, l->world_size, i);
        TRY(expect_int(WHAT("%s.param", what), got[i].param, want[i].param));
        TRY(expect_size(WHAT("%s.begin", what), got[i].begin, want[i].begin));
        TRY(expect_size(WHAT("%s.elems", what), got[i].elems, want[i].elems));
        TRY(expect_f32(WHAT("%s: values", what), packed, shard + at[i].shard_begin, at[i].elems));
        packed += at[i].elems;
    }
    return FSDP_OK;
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
        flat_piece at[MOST_SLOTS + 1];
        ckpt_piece pieces[MOST_SLOTS];
        float packed[MOST_FLAT];
        size_t n_packed = 0;
        const int n = file_pieces(from, file, at, pieces);
        for (int i = 0; i < n; n_packed += at[i++].elems)
            memcpy(packed + n_packed, value + (size_t)file * from->shard_elems + at[i].shard_begin,
                   at[i].elems * sizeof *packed);
        wire_put_rows(q, pieces, (size_t)n, sizeof *pieces);
        wire_put_rows(q, packed, n_packed, sizeof *packed);
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
