/* lab1.c -- the task tests of lab 1: what lives where. Expected values are literals or come from
 * common/ alone. Each rank checks its own part. */
#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include "common/model/family.h"
#include "common/model/init.h"
#include "lab1_flatparam/dim0.h"
#include "lab1_flatparam/flat_param.h"
#include "lab2_forward/fsdp_setup.h"
#include "tests/grade/defined_lib.h"
#include "tests/grade/grade_lib.h"

enum { MAX_PIECES = 8, MAX_WORLD = 4 };

/* If each call leaks, memory grows in every round of calls. In some it may grow for another reason:
 * first calls keep memory for later ones, and so does each thread that has just started. mallinfo2
 * ignores sanitizers. */
static fsdp_status expect_all_freed(const char *what, fsdp_status (*call)(void))
{
    enum { ROUNDS = 5, CALLS = 50, LEAST_BLOCK_BYTES = 16 };
    size_t kept = 0;
    for (int round = 0; round < ROUNDS; round++) {
        const size_t before = mallinfo2().uordblks;
        for (int i = 0; i < CALLS; i++)
            TRY(call());
        const size_t after = mallinfo2().uordblks;
        if (after < before + CALLS * LEAST_BLOCK_BYTES)
            return FSDP_OK;
        kept = after - before;
    }
    return fsdp_error(FSDP_EINVAL, "free what it allocates, on every way out",
                      "%s: %d calls kept %zu bytes of host memory, expected 0", what, CALLS, kept);
}

/* ---- 1.0: the answer table, worked out by doing what the collectives do -------------------- */
static fsdp_status task_1_0(grade *g)
{
    enum { W = 3, N = 3 };
    long x[W][N], sum[N] = {0};
    for (int r = 0; r < W; r++)
        for (int i = 0; i < N; i++)
            sum[i] += x[r][i] = 10 * r + i + 1;
    const long want[] = {x[1][0], x[7 / N][7 % N], W * N, sum[1], N / W, sum[2], 2, (W - 1) * N};
    int n = 0;
    const predict_answer *a = predict_answers(&n);
    TRY(expect_int("number of answers", n, (long long)(sizeof want / sizeof *want)));
    int n_answered = 0;
    for (int i = 0; i < n; i++)
        n_answered += a[i].answer >= 0;
    if (n_answered == 0)
        return fsdp_todo("1.0");
    /* Not the expected value: that would be the answer. */
    for (int i = 0; i < n; i++)
        if (a[i].answer != want[i])
            return fsdp_error(FSDP_EINVAL, "do it on paper, with the picture in lab 1's README.md",
                              "%s: got %ld, which is %s", a[i].question, (long)a[i].answer,
                              a[i].answer < 0 ? "no answer yet" : "wrong");
    return FSDP_OK;
}

/* ---- 1.1 ----------------------------------------------------------------------------------- */
/* The fields of one struct: "what.field: got g, expected w". */
static fsdp_status expect_fields(const char *what, const char *const *fields, int n_fields,
                                 const size_t *got, const size_t *want)
{
    for (int i = 0; i < n_fields; i++)
        TRY(expect_size(WHAT("%s.%s", what, fields[i]), got[i], want[i]));
    return FSDP_OK;
}

static fsdp_status check_span(size_t n, size_t align, int world_size, int rank, shard_span want)
{
    static const char *const fields[] = {"shard_elems", "begin", "elems", "pad_elems"};
    shard_span got = {77, 77, 77, 77};
    TRY(shard_range(n, align, world_size, rank, &got));
    return expect_fields(WHAT("shard_range(%zu, %zu, %d, %d)", n, align, world_size, rank), fields,
                         4, (size_t[]){got.shard_elems, got.begin, got.elems, got.pad_elems},
                         (size_t[]){want.shard_elems, want.begin, want.elems, want.pad_elems});
}

/* One rank of a world, compared with the definition: shards are the smallest aligned ones that hold
 * everything, and element j belongs to rank j / shard_elems. */
static fsdp_status check_defined_span(size_t total, size_t align, int world_size, int rank)
{
    shard_span want = {.begin = total};
    while (want.shard_elems * (size_t)world_size < total)
        want.shard_elems += align;
    for (size_t j = total; j-- > 0;)
        if (j / want.shard_elems == (size_t)rank) {
            want.begin = j;
            want.elems++;
        }
    want.pad_elems = want.shard_elems - want.elems;
    return check_span(total, align, world_size, rank, want);
}

static fsdp_status check_refused_spans(void)
{
    static const struct {
        const char *what;
        size_t n, align;
        int world_size, rank;
    } cases[] = {
        {"shard_range with W = 0", 10, 1, 0, 0},
        {"shard_range with rank -1", 10, 1, 2, -1},
        {"shard_range with rank 2 of 2", 10, 1, 2, 2},
        {"shard_range with align 0", 10, 0, 2, 0},
        {"shard_range of SIZE_MAX, align 4, W = 1", SIZE_MAX, 4, 1, 0},
        {"shard_range of SIZE_MAX, align 1, W = 2", SIZE_MAX, 1, 2, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        shard_span s;
        fsdp_status got =
            shard_range(cases[i].n, cases[i].align, cases[i].world_size, cases[i].rank, &s);
        TRY(expect_status(cases[i].what, got, FSDP_EINVAL));
    }
    return FSDP_OK;
}

static fsdp_status task_1_1(grade *g)
{
    const size_t all = SIZE_MAX, far = (size_t)1 << 32;
    for (size_t total = 0; total <= 70; total++)
        for (size_t align = 1; align <= 6; align++)
            for (int i = 0; i < MAX_WORLD * MAX_WORLD; i++)
                if (i % MAX_WORLD <= i / MAX_WORLD)
                    TRY(check_defined_span(total, align, 1 + i / MAX_WORLD, i % MAX_WORLD));
    TRY(check_span(all, 1, 1, 0, (shard_span){all, 0, all, 0}));
    /* more elements than an int can count */
    TRY(check_span(4 * far + 1, 1, 4, 1, (shard_span){far + 1, far + 1, far + 1, 0}));
    TRY(check_span(4 * far + 1, 1, 4, 3, (shard_span){far + 1, 3 * far + 3, far - 2, 3}));
    return check_refused_spans();
}

/* ---- 1.2 ----------------------------------------------------------------------------------- */
typedef struct layout_case {
    int n_params;
    size_t elems[3];
    flat_align align;
    size_t offset[3], used;
    size_t shard[4]; /* shard_elems for W = 1, 2, 3, 4 */
} layout_case;

/* Worked out by hand. */
static const layout_case LAYOUT_CASES[] = {
    {3, {5, 7, 3}, {2, 2}, {0, 6, 14}, 18, {18, 10, 6, 6}}, /* the header's example */
    {3, {5, 7, 3}, {1, 1}, {0, 5, 12}, 15, {15, 8, 5, 4}},
    {3, {5, 7, 3}, {4, 1}, {0, 8, 16}, 20, {20, 10, 7, 5}},
    {3, {5, 7, 3}, {1, 4}, {0, 5, 12}, 15, {16, 8, 8, 4}},
    {3, {5, 7, 3}, {2, 4}, {0, 6, 14}, 18, {20, 12, 8, 8}},
    {3, {16, 1, 33}, {16, 16}, {0, 16, 32}, 80, {80, 48, 32, 32}},
    {3, {64, 64, 64}, {32, 32}, {0, 64, 128}, 192, {192, 96, 64, 64}},
    {2, {17, 48}, {16, 2}, {0, 32}, 80, {80, 40, 28, 20}},
    {1, {5}, {1, 1}, {0}, 5, {5, 3, 2, 2}},
    {1, {5}, {1, 2}, {0}, 5, {6, 4, 2, 2}},
    {1, {1}, {1, 1}, {0}, 1, {1, 1, 1, 1}},
    {1, {1}, {1, 2}, {0}, 1, {2, 2, 2, 2}},
    {0, {0}, {32, 32}, {0}, 0, {0, 0, 0, 0}},
    {3, {5, 7, 3}, {3, 5}, {0, 6, 15}, 18, {20, 10, 10, 5}}, /* no powers of two */
    {3, {5, 7, 3}, {6, 4}, {0, 6, 18}, 24, {24, 12, 8, 8}},
    {3, {5, 0, 3}, {4, 4}, {0, 8, 8}, 12, {12, 8, 4, 4}}, /* a parameter without elements */
    {3,                                                   /* more elements than an int can count */
     {5000000000, 1, 3000000000},
     {32, 32},
     {0, 5000000000, 5000000032},
     8000000032,
     {8000000032, 4000000032, 2666666688, 2000000032}},
};
enum { N_LAYOUT_CASES = sizeof LAYOUT_CASES / sizeof *LAYOUT_CASES };

static fsdp_status check_layout(const layout_case *c, int world_size)
{
    static const int params[] = {7, 2, 9}; /* the caller's numbers and order are kept */
    static const char *const slot_fields[] = {"offset", "param", "elems"};
    static const char *const fields[] = {"used_elems", "shard_elems", "padded_elems", "world_size",
                                         "row_ranks"};
    const size_t w = (size_t)world_size, shard = c->shard[world_size - 1];
    const char *what =
        WHAT("elems {%zu,%zu,%zu}, align {%zu,%zu}, W=%d: layout", c->elems[0], c->elems[1],
             c->elems[2], c->align.slot_elems, c->align.shard_elems, world_size);
    flat_layout l = {0};
    TRY(flat_layout_build(c->n_params, params, c->elems, c->align, world_size, &l));
    TRY(expect_int(WHAT("%s.n_slots", what), l.n_slots, c->n_params));
    for (int i = 0; i < c->n_params; i++)
        TRY(expect_fields(WHAT("%s.slots[%d]", what, i), slot_fields, 3,
                          (size_t[]){l.slots[i].offset, (size_t)l.slots[i].param, l.slots[i].elems},
                          (size_t[]){c->offset[i], (size_t)params[i], c->elems[i]}));
    TRY(expect_fields(what, fields, 5,
                      (size_t[]){l.used_elems, l.shard_elems, l.padded_elems, (size_t)l.world_size,
                                 (size_t)l.row_ranks},
                      (size_t[]){c->used, shard, shard * w, w, 0}));
    flat_layout_free(&l);
    return FSDP_OK;
}

/* The call must return FSDP_EINVAL and leave a layout that flat_layout_free accepts. */
static fsdp_status check_refused_layouts(void)
{
    const size_t half = SIZE_MAX / 2;
    const struct {
        const char *what;
        size_t elems[2];
        flat_align align;
        int world_size;
    } cases[] = {
        {"slot alignment 0", {5, 5}, {0, 4}, 2},
        {"shard alignment 0", {5, 5}, {4, 0}, 2},
        {"W = 0", {5, 5}, {4, 4}, 0},
        {"2 x SIZE_MAX/2 elements", {half, half}, {4, 4}, 2},
        /* the sums wrap round to 2, 4 and 0, which alignment does not catch */
        {"2 x (SIZE_MAX/2 + 2) elements", {half + 2, half + 2}, {1, 1}, 2},
        {"5 and SIZE_MAX - 3 elements", {5, SIZE_MAX - 3}, {4, 4}, 2},
        {"SIZE_MAX + 1 elements", {5, SIZE_MAX - 4}, {1, 1}, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        flat_layout l = {0};
        fsdp_status got = flat_layout_build(2, (int[]){0, 1}, cases[i].elems, cases[i].align,
                                            cases[i].world_size, &l);
        flat_layout_free(&l);
        TRY(expect_status(WHAT("flat_layout_build with %s", cases[i].what), got, FSDP_EINVAL));
    }
    return FSDP_OK;
}

static fsdp_status build_and_free(void)
{
    const layout_case *c = &LAYOUT_CASES[0];
    flat_layout l;
    TRY(flat_layout_build(c->n_params, (int[]){7, 2, 9}, c->elems, c->align, 2, &l));
    flat_layout_free(&l);
    return FSDP_OK;
}

static fsdp_status task_1_2(grade *g)
{
    for (int i = 0; i < N_LAYOUT_CASES; i++)
        for (int w = 1; w <= 4; w++)
            TRY(check_layout(&LAYOUT_CASES[i], w));
    TRY(check_refused_layouts());
    return expect_all_freed("flat_layout_build, then flat_layout_free", build_and_free);
}

/* ---- 1.3 ----------------------------------------------------------------------------------- */
/* Layouts written by hand; the offsets contain the slots' alignment. Parameters have the model's
 * numbers, so no slot has the number of its parameter. */
enum { CASE_SLOTS = 6, CASE_PARAMS = 9 };
typedef struct flat_case {
    int n_slots;
    flat_slot slots[CASE_SLOTS];
    size_t used_elems, shard_align;
} flat_case;
enum { CASE_HEADER, CASE_MANY };
static const flat_case FLAT_CASES[] = {
    /* the header's example; a slot beyond n_slots is no slot */
    [CASE_HEADER] = {3, {{7, 0, 5}, {2, 6, 7}, {4, 14, 3}, {0, 0, 24}}, 18, 2},
    /* more slots than ranks, aligned to 3 */
    [CASE_MANY] = {6, {{5, 0, 2}, {4, 3, 4}, {8, 9, 1}, {0, 12, 3}, {7, 15, 5}, {3, 21, 3}}, 24, 3},
    {3, {{2, 0, 4}, {0, 4, 4}, {1, 8, 4}}, 12, 1},
    {1, {{3, 0, 10}}, 10, 1},           /* over all ranks */
    {2, {{5, 0, 6}, {0, 6, 6}}, 12, 4}, /* W=2: alignment moves a boundary into the second slot */
    {2, {{1, 0, 3}, {6, 4, 29}}, 36, 4},
    {1, {{8, 0, 5}}, 5, 1}, /* W=4: the last rank is all padding */
    {1, {{8, 0, 5}}, 5, 2},
    {1, {{4, 0, 1}}, 1, 1},
};
enum { N_FLAT_CASES = sizeof FLAT_CASES / sizeof *FLAT_CASES };

static flat_layout literal_layout(const flat_case *c, int world_size)
{
    size_t w = (size_t)world_size, shard = 0;
    while (shard * w < c->used_elems)
        shard += c->shard_align;
    return (flat_layout){.world_size = world_size,
                         .n_slots = c->n_slots,
                         .slots = (flat_slot *)c->slots,
                         .used_elems = c->used_elems,
                         .shard_elems = shard,
                         .padded_elems = shard * w};
}

/* The name of part k of a layout. It has no "W=", which begins the line with the ranks that run. */
static const char *part_name(char *buf, const flat_layout *l, int k)
{
    return l->row_ranks > 0
               ? grade_words(buf, "slice %d of %d, S=%d", k, l->world_size, l->row_ranks)
               : grade_words(buf, "shard %d of %d", k, l->world_size);
}
#define PART(l, k) part_name((char[WHAT_BYTES]){0}, l, k)

/* want: the expected pieces, then one without elements. */
static fsdp_status check_pieces(const flat_layout *l, int rank, const flat_piece *want)
{
    static const char *const fields[] = {"slot (an index into slots, not the parameter)",
                                         "param_begin", "shard_begin", "elems"};
    flat_piece got[MAX_PIECES], untouched;
    int n = -1, n_want = 0;
    memset(got, 0x55, sizeof got);
    memset(&untouched, 0x55, sizeof untouched);
    TRY(flat_intersect(l, rank, got, &n));
    while (want[n_want].elems > 0)
        n_want++;
    TRY(EXPECT(n == n_want, "cut each slot at both ends of the shard; leave out what is empty then",
               "%s: n_pieces: got %d, expected %d", PART(l, rank), n, n_want));
    for (int i = l->n_slots; i < MAX_PIECES; i++)
        TRY(EXPECT(memcmp(&got[i], &untouched, sizeof untouched) == 0,
                   "a slot has at most one piece in a shard: count a piece once",
                   "%s: flat_intersect wrote to pieces[%d], expected room for n_slots = %d",
                   PART(l, rank), i, l->n_slots));
    for (int i = 0; i < n; i++) {
        const flat_piece *g = &got[i], *w = &want[i];
        TRY(expect_fields(WHAT("%s: pieces[%d]", PART(l, rank), i), fields, 4,
                          (size_t[]){(size_t)g->slot, g->param_begin, g->shard_begin, g->elems},
                          (size_t[]){(size_t)w->slot, w->param_begin, w->shard_begin, w->elems}));
    }
    return FSDP_OK;
}

static fsdp_status check_defined_pieces(const flat_layout *l)
{
    for (int r = 0; r < l->world_size; r++) {
        flat_piece want[CASE_SLOTS + 1];
        defined_pieces(l, r, want);
        TRY(check_pieces(l, r, want));
    }
    return FSDP_OK;
}

/* More elements than an int can count. */
static fsdp_status check_large_pieces(void)
{
    const size_t far = (size_t)1 << 32;
    flat_slot slots[] = {{3, 0, 5 * far}, {1, 5 * far, far + 4}};
    const flat_layout l = {.world_size = 3,
                           .n_slots = 2,
                           .slots = slots,
                           .used_elems = 6 * far + 4,
                           .shard_elems = 2 * far + 4,
                           .padded_elems = 3 * (2 * far + 4)};
    TRY(check_pieces(&l, 1, (flat_piece[]){{0, 2 * far + 4, 0, 2 * far + 4}, {0}}));
    return check_pieces(
        &l, 2, (flat_piece[]){{0, 4 * far + 8, 0, far - 8}, {1, 0, far - 8, far + 4}, {0}});
}

/* The example of flat_param.h, padded for 4 ranks and cut for 2, then for 1. */
static fsdp_status check_cuts(void)
{
    flat_layout abc = literal_layout(&FLAT_CASES[CASE_HEADER], 4);
    flat_layout two = flat_layout_cut(&abc, 2), one = flat_layout_cut(&abc, 1);
    TRY(expect_size("cut for 2: shard_elems", two.shard_elems, 12));
    TRY(expect_size("cut for 2: padded_elems", two.padded_elems, 24));
    return expect_size("cut for 1: shard_elems", one.shard_elems, 24);
}

static fsdp_status task_1_3(grade *g)
{
    TRY(check_cuts());
    TRY(check_large_pieces());
    for (int i = 0; i < N_FLAT_CASES; i++) {
        flat_layout four = literal_layout(&FLAT_CASES[i], MAX_WORLD);
        for (int w = 1; w <= MAX_WORLD; w++) {
            flat_layout l = literal_layout(&FLAT_CASES[i], w);
            TRY(check_defined_pieces(&l));
        }
        for (int n_ranks = 1; n_ranks <= 2; n_ranks++) {
            flat_layout cut = flat_layout_cut(&four, n_ranks);
            TRY(check_defined_pieces(&cut));
        }
    }
    return FSDP_OK;
}

/* ---- 1.4 ----------------------------------------------------------------------------------- */
/* A model of two blocks, as module_tree_build returns it for GPT-2 with tied head and embedding. */
static const module_node GPT2_NODES[] = {
    {MODULE_MODEL, -1, -1, 0, false}, {MODULE_LAYER, 0, 0, 500, true}, /* embed */
    {MODULE_BLOCK, 0, -1, 0, false},  {MODULE_LAYER, 2, 1, 40, false},
    {MODULE_LAYER, 2, 2, 80, false},  {MODULE_BLOCK, 0, -1, 0, false},
    {MODULE_LAYER, 5, 3, 40, false},  {MODULE_LAYER, 5, 4, 80, false},
    {MODULE_LAYER, 0, 5, 8, true}, /* head */
};
/* Untied layers outside blocks and tied layers in blocks; one tied layer is alone in its block. */
static const module_node MIXED_NODES[] = {
    {MODULE_MODEL, -1, -1, 0, false}, {MODULE_LAYER, 0, 0, 30, false},
    {MODULE_BLOCK, 0, -1, 0, false},  {MODULE_LAYER, 2, 1, 40, true},
    {MODULE_LAYER, 2, 2, 80, false},  {MODULE_BLOCK, 0, -1, 0, false},
    {MODULE_LAYER, 5, 3, 0, true},    {MODULE_LAYER, 5, 4, 20, false},
    {MODULE_BLOCK, 0, -1, 0, false},  {MODULE_LAYER, 8, 5, 8, true},
    {MODULE_LAYER, 0, 6, 25, false},
};
/* More elements than an int can count. */
static const module_node LARGE_NODES[] = {{MODULE_MODEL, -1, -1, 0, false},
                                          {MODULE_BLOCK, 0, -1, 0, false},
                                          {MODULE_LAYER, 1, 0, (size_t)1 << 32, false},
                                          {MODULE_LAYER, 1, 1, (size_t)1 << 31, false}};
enum { GPT2_N = 9, MIXED_N = 11, LARGE_N = 4 };
static const module_tree GPT2_TREE = {GPT2_N, (module_node *)GPT2_NODES};
static const module_tree MIXED_TREE = {MIXED_N, (module_node *)MIXED_NODES};
static const module_tree LARGE_TREE = {LARGE_N, (module_node *)LARGE_NODES};

typedef struct wrap_case {
    const module_tree *tree;
    const char *name;
    wrap_policy policy;
    size_t min_elems;
    int want[MIXED_N]; /* unit of each node; unit numbers have no gaps */
} wrap_case;

static const wrap_case WRAP_CASES[] = {
    {&GPT2_TREE, "block", WRAP_BLOCK, 0, {0, 0, 1, 1, 1, 2, 2, 2, 0}},
    {&GPT2_TREE, "sub-block", WRAP_SUB_BLOCK, 0, {0, 0, 0, 1, 2, 0, 3, 4, 0}},
    {&GPT2_TREE, "model", WRAP_MODEL, 0, {0}},
    /* no part of a block has 100 elements, but the whole block (120) has */
    {&GPT2_TREE, "size:100", WRAP_SIZE, 100, {0, 0, 1, 1, 1, 2, 2, 2, 0}},
    /* The MLP (80) is its own unit; the rest of the block (40) is too small. If the MLP is counted
     * a second time for its block, the block becomes a unit as well: the 2.37x bug. */
    {&GPT2_TREE, "size:80", WRAP_SIZE, 80, {0, 0, 0, 0, 1, 0, 0, 2, 0}},
    {&GPT2_TREE, "size:41", WRAP_SIZE, 41, {0, 0, 0, 0, 1, 0, 0, 2, 0}}, /* 40: still too small */
    {&GPT2_TREE, "size:40", WRAP_SIZE, 40, {0, 0, 0, 1, 2, 0, 3, 4, 0}}, /* blocks keep nothing */
    /* a block that has only a tied layer is a unit without parameters */
    {&MIXED_TREE, "block", WRAP_BLOCK, 0, {0, 0, 1, 0, 1, 2, 0, 2, 3, 0, 0}},
    {&MIXED_TREE, "sub-block", WRAP_SUB_BLOCK, 0, {0, 1, 0, 0, 2, 0, 0, 3, 0, 0, 4}},
    {&MIXED_TREE, "model", WRAP_MODEL, 0, {0}},
    /* the first block has 120 elements, but 40 of them belong to the root */
    {&MIXED_TREE, "size:100", WRAP_SIZE, 100, {0}},
    {&MIXED_TREE, "size:20", WRAP_SIZE, 20, {0, 1, 0, 0, 2, 0, 0, 3, 0, 0, 4}},
    /* even blocks without elements */
    {&MIXED_TREE, "size:0", WRAP_SIZE, 0, {0, 1, 2, 0, 3, 4, 0, 5, 6, 0, 7}},
    {&LARGE_TREE, "size:100 of 2^32 and 2^31 elements", WRAP_SIZE, 100, {0, 0, 1, 2}},
};

static fsdp_status check_wrap(const wrap_case *c)
{
    const module_tree *tree = c->tree;
    int got[MIXED_N + 1], n = -1, n_want = 0;
    const char *name = WHAT("%s%s", c->name, tree == &MIXED_TREE ? ", tied layers in blocks" : "");
    memset(got, 0x7f, sizeof got);
    const int untouched = got[MIXED_N];
    TRY(wrap_assign(tree, c->policy, c->min_elems, got, &n));
    for (int i = 0; i < tree->n_nodes; i++) {
        n_want = c->want[i] >= n_want ? c->want[i] + 1 : n_want;
        TRY(expect_int(WHAT("%s: unit_of_node[%d]%s", name, i,
                            tree->nodes[i].tied ? ", tied: the root's" : ""),
                       got[i], c->want[i]));
    }
    TRY(expect_int(WHAT("%s: n_units", name), n, n_want));
    return EXPECT(got[tree->n_nodes] == untouched, "",
                  "%s: wrap_assign wrote to unit_of_node[%d], expected room for n_nodes = %d", name,
                  tree->n_nodes, tree->n_nodes);
}

static fsdp_status assign_gpt2(void)
{
    int unit[GPT2_N], n;
    return wrap_assign(&GPT2_TREE, WRAP_SIZE, 80, unit, &n);
}

static fsdp_status task_1_4(grade *g)
{
    for (size_t i = 0; i < sizeof WRAP_CASES / sizeof *WRAP_CASES; i++)
        TRY(check_wrap(&WRAP_CASES[i]));
    return expect_all_freed("wrap_assign", assign_gpt2);
}

/* ---- 1.5: integrates lab 1 ----------------------------------------------------------------- */
/* A model for FLAT_CASES. Values are normal, so every element differs, also from the elements that
 * another parameter's spec gives. */
static void literal_params(const flat_case *c, param_spec *params)
{
    for (int p = 0; p < CASE_PARAMS; p++)
        params[p] = (param_spec){.elems = 64,
                                 .init = INIT_NORMAL,
                                 .init_scale = 0.02f + 0.01f * (float)p,
                                 .tied_to = NOT_TIED};
    for (int i = 0; i < c->n_slots; i++)
        params[c->slots[i].param].elems = c->slots[i].elems;
}

/* The full flat array as a single rank would make it, without learner code. */
static void full_values(const flat_layout *l, const model *m, uint64_t seed, float *full)
{
    memset(full, 0, l->padded_elems * sizeof *full);
    for (int i = 0; i < l->n_slots; i++)
        param_init_range(&m->params[l->slots[i].param], l->slots[i].param, seed, 0,
                         l->slots[i].elems, full + l->slots[i].offset);
}

static fsdp_status check_init(const char *what, const flat_layout *l, const model *m, uint64_t seed,
                              int rank)
{
    size_t n = l->shard_elems;
    float *full = malloc((l->padded_elems + 1) * sizeof *full);
    float *shard = malloc((n + 1) * sizeof *shard);
    FSDP_ASSERT(full != NULL && shard != NULL);
    full_values(l, m, seed, full);
    memset(shard, 0xff, (n + 1) * sizeof *shard); /* NaN: gaps and padding must be written */
    fsdp_status st = flat_init_shard(l, m, seed, rank, shard);
    if (st == FSDP_OK)
        st = expect_f32(what, shard, full + (size_t)rank * n, n);
    const uint32_t nan_bits = UINT32_MAX;
    if (st == FSDP_OK)
        st = EXPECT(memcmp(&shard[n], &nan_bits, sizeof nan_bits) == 0,
                    "write this rank's part only, at the piece's shard_begin",
                    "%s: flat_init_shard wrote to shard[%zu], expected room for shard_elems = %zu",
                    what, n, n);
    free(full);
    free(shard);
    return st;
}

/* peak_rss_bytes -- VmHWM, the largest resident size since the last reset; 0: unknown. */
static size_t peak_rss_bytes(bool reset)
{
    char line[128];
    size_t kb = 0;
    FILE *f = reset ? fopen("/proc/self/clear_refs", "w") : NULL;
    if (f) {
        fputs("5", f);
        fclose(f);
    }
    f = fopen("/proc/self/status", "r");
    if (!f)
        return 0;
    while (fgets(line, sizeof line, f) && sscanf(line, "VmHWM: %zu kB", &kb) != 1)
        continue;
    fclose(f);
    return kb * 1024;
}

/* 32 MB of parameters: a rank may touch its own 32/W and little else. The slack is a quarter of the
 * whole, so a full copy (a half or three quarters too much) shows for W >= 2. */
static fsdp_status check_peak(grade *g)
{
    flat_case big = {1, {{0, 0, 8u << 20}}, 8u << 20, FLAT_ALIGN_ELEMS};
    param_spec spec = {.elems = 8u << 20, .init = INIT_ONE, .tied_to = NOT_TIED};
    model m = {.n_params = 1, .params = &spec};
    flat_layout l = literal_layout(&big, g->world_size);
    size_t shard_bytes = l.shard_elems * sizeof(float), full_bytes = sizeof(float) * (8u << 20);
    float *shard = malloc(shard_bytes);
    FSDP_ASSERT(shard != NULL);
    size_t before = peak_rss_bytes(true);
    fsdp_status st = flat_init_shard(&l, &m, 1, g->rank, shard);
    size_t after = peak_rss_bytes(false);
    free(shard);
    TRY(st);
    return EXPECT(before == 0 || after <= before + shard_bytes + full_bytes / 4,
                  "fill the shard piece by piece",
                  "flat_init_shard: touched %zu bytes for a shard of %zu bytes (all: %zu)",
                  after - before, shard_bytes, full_bytes);
}

/* Shards of all units hold this rank's part, and one unit stores each parameter. */
static fsdp_status check_units(const grade *g, const fsdp *f, wrap_policy policy)
{
    const model *m = f->run.m;
    int times[256] = {0};
    size_t stored = 0;
    for (int u = 0; u < f->n_units; u++) {
        const flat_layout *l = &f->units[u].layout;
        for (int i = 0; i < l->n_slots; i++) {
            times[l->slots[i].param]++;
            stored += l->slots[i].elems;
        }
        TRY(check_init(WHAT("wrap %d, unit %d: shard", (int)policy, u), l, m, 1337, g->rank));
    }
    for (int p = 0; p < m->n_params; p++)
        TRY(expect_int(m->params[p].name, times[p], m->params[p].tied_to == NOT_TIED));
    return expect_size("elements stored in all units", stored, m->n_param_elems);
}

static fsdp_status init_again(void)
{
    param_spec params[CASE_PARAMS];
    const model m = {.n_params = CASE_PARAMS, .params = params};
    const flat_layout l = literal_layout(&FLAT_CASES[CASE_MANY], MAX_WORLD);
    float shard[64];
    literal_params(&FLAT_CASES[CASE_MANY], params);
    return flat_init_shard(&l, &m, 1, 0, shard);
}

static fsdp_status check_literal_inits(const grade *g)
{
    for (int i = 0; i < N_FLAT_CASES; i++) {
        param_spec params[CASE_PARAMS];
        const model m = {.n_params = CASE_PARAMS, .params = params};
        literal_params(&FLAT_CASES[i], params);
        flat_layout l = literal_layout(&FLAT_CASES[i], g->world_size);
        TRY(check_init("shard", &l, &m, 1337, g->rank));
        TRY(check_init("shard of another seed", &l, &m, 7, g->rank));
    }
    return expect_all_freed("flat_init_shard", init_again);
}

static fsdp_status task_1_5(grade *g)
{
    TRY(check_literal_inits(g));
    TRY(check_peak(g));
    const wrap_policy policies[] = {WRAP_BLOCK, WRAP_SUB_BLOCK, WRAP_SIZE, WRAP_MODEL};
    model_config config;
    model m;
    mesh_shape shape;
    TRY(model_preset("gpt2", "tiny", &config));
    TRY(model_create(&config, &m));
    TRY(mesh_shape_make(g->world_size, (const int[N_AXES]){[AXIS_SHARD] = g->world_size}, g->rank,
                        &shape));
    fsdp_status st = FSDP_OK;
    for (int i = 0; st == FSDP_OK && i < 4; i++) {
        const fsdp_config wrapped = {.run.m = &m, .wrap = policies[i], .wrap_min_elems = 20000};
        fsdp f = {0};
        st = fsdp_lay_out(&wrapped, &shape, &f);
        if (st == FSDP_OK)
            st = check_units(g, &f, policies[i]);
        fsdp_free(&f);
    }
    model_free(&m);
    return st;
}

/* ---- 1.6, a star ----------------------------------------------------------------------------- */
typedef struct rows_case {
    int shard_size, world_size;
    size_t shard_align, b_begin, shard_elems; /* the last: shard_elems of a slice */
    flat_piece pieces[4][3];                  /* pieces of each slice, for check_pieces */
} rows_case;
enum { ROWS_SLOT_ALIGN = 4 };
static const rows_case ROWS_CASES[] = {
    {2, 2, 4, 8, 12, {{{0, 0, 0, 6}, {1, 0, 8, 2}}, {{0, 6, 0, 4}, {1, 2, 8, 1}}}},
    /* rows 2, 2, 1 and 1, 1, 1 */
    {3,
     3,
     4,
     4,
     8,
     {{{0, 0, 0, 4}, {1, 0, 4, 1}}, {{0, 4, 0, 4}, {1, 1, 4, 1}}, {{0, 8, 0, 2}, {1, 2, 4, 1}}}},
    /* rows 2, 2, 1, 0 and 1, 1, 1, 0: the last rank has none */
    {4,
     4,
     4,
     4,
     8,
     {{{0, 0, 0, 4}, {1, 0, 4, 1}}, {{0, 4, 0, 4}, {1, 1, 4, 1}}, {{0, 8, 0, 2}, {1, 2, 4, 1}}}},
    /* two replicas: shards of 12 as two slices of 8 */
    {2, 4, 4, 8, 8, {{{0, 0, 0, 6}}, {{1, 0, 0, 2}}, {{0, 6, 0, 4}}, {{1, 2, 0, 1}}}},
    /* three replicas: the rows of a in shard 0 are cut */
    {2, 6, 4, 8, 4, {{{0, 0, 0, 4}}, {{0, 4, 0, 2}}, {{1, 0, 0, 2}}, {{0, 6, 0, 4}}}},
    /* rooms aligned to 4, slices to 3; then the same slices without an alignment */
    {2, 4, 3, 8, 6, {{{0, 0, 0, 6}}, {{1, 0, 2, 2}}, {{0, 6, 0, 4}}, {{1, 2, 2, 1}}}},
    {2, 4, 1, 8, 6, {{{0, 0, 0, 6}}, {{1, 0, 2, 2}}, {{0, 6, 0, 4}}, {{1, 2, 2, 1}}}},
    /* b begins one element after its slice */
    {2, 4, 7, 8, 7, {{{0, 0, 0, 6}}, {{1, 0, 1, 2}}, {{0, 6, 0, 4}}, {{1, 2, 1, 1}}}},
    /* five replicas, which do not divide 12 */
    {2, 10, 1, 8, 3, {{{0, 0, 0, 3}}, {{0, 3, 0, 3}}, {{1, 0, 2, 1}}, {{1, 1, 0, 1}}}},
};

static fsdp_status check_literal_rows(const rows_case *c, const flat_layout *l)
{
    const struct {
        const char *name;
        size_t got, want;
    } rows[] = {{"elements of a row of a", l->rows[0].row_elems, 2},
                {"elements of a row of b", l->rows[1].row_elems, 1},
                {"where b begins in a shard", l->rows[1].shard_begin, c->b_begin},
                {"elements of a slice", l->shard_elems, c->shard_elems},
                {"padded_elems", l->padded_elems, 16}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        TRY(expect_size(
            WHAT("a [5,2] and b [3], S=%d, %d slices, slot_elems %d, shard_elems %zu: %s",
                 c->shard_size, c->world_size, ROWS_SLOT_ALIGN, c->shard_align, rows[i].name),
            rows[i].got, rows[i].want));
    for (int k = 0; k < 4 && k < c->world_size; k++)
        TRY(check_pieces(l, k, c->pieces[k]));
    return FSDP_OK;
}

/* All slices together hold each element once. On one rank the array stays flat. */
static fsdp_status check_all_rows(const flat_layout *l)
{
    float times[2][10] = {{0}}, once[2][10] = {{0}};
    for (int k = 0; k < l->world_size; k++) {
        flat_piece pieces[MAX_PIECES];
        int n = 0;
        TRY(flat_intersect(l, k, pieces, &n));
        for (int i = 0; i < n; i++)
            for (size_t e = 0; e < pieces[i].elems; e++)
                times[pieces[i].slot][pieces[i].param_begin + e] += 1.0f;
    }
    for (int i = 0; i < 2; i++)
        for (size_t e = 0; e < l->slots[i].elems; e++)
            once[i][e] = 1.0f;
    return expect_f32("how often an element is in a shard", times[0], once[0], 20);
}

/* The example of dim0.h: a [5,2] and b [3] in slots aligned to 4, laid out in rows. They are
 * parameters 3 and 0 of the model. */
static fsdp_status check_rows(const rows_case *c)
{
    static const param_spec PARAMS[] = {
        {.n_dims = 1, .dims = {3}, .elems = 3, .tied_to = NOT_TIED},
        {.n_dims = 2, .dims = {7, 3}, .elems = 21, .tied_to = NOT_TIED},
        {.n_dims = 1, .dims = {9}, .elems = 9, .tied_to = NOT_TIED},
        {.n_dims = 2, .dims = {5, 2}, .elems = 10, .tied_to = NOT_TIED}};
    /* the slot after n_slots must be ignored */
    static const flat_case TWO = {2, {{3, 0, 10}, {0, 12, 3}, {1, 0, 16}}, 16, 1};
    flat_layout l = literal_layout(&TWO, c->world_size);
    l.shard_elems = size_round_up(l.shard_elems, c->shard_align);
    l.padded_elems = l.shard_elems * (size_t)c->world_size;
    l.slots = malloc(sizeof TWO.slots); /* flat_layout_free frees them */
    FSDP_ASSERT(l.slots != NULL);
    memcpy(l.slots, TWO.slots, sizeof TWO.slots);
    fsdp_status st =
        dim0_layout(&l, PARAMS, c->shard_size, (flat_align){ROWS_SLOT_ALIGN, c->shard_align});
    if (st == FSDP_OK && c->shard_elems > 0)
        st = check_literal_rows(c, &l);
    if (st == FSDP_OK)
        st = check_all_rows(&l);
    flat_layout_free(&l);
    return st;
}

static fsdp_status task_1_6(grade *g)
{
    for (size_t i = 0; i < sizeof ROWS_CASES / sizeof *ROWS_CASES; i++)
        TRY(check_rows(&ROWS_CASES[i]));
    for (int n = 1; n <= 3; n++) {
        const rows_case c = {g->world_size, n * g->world_size, .shard_align = 4};
        TRY(check_rows(&c));
    }
    return FSDP_OK;
}

int main(int argc, char **argv)
{
    static const grade_task tasks[] = {{"1.0", task_1_0}, {"1.1", task_1_1}, {"1.2", task_1_2},
                                       {"1.3", task_1_3}, {"1.4", task_1_4}, {"1.5", task_1_5},
                                       {"1.6", task_1_6}};
    return grade_main(argc, argv, tasks, (int)(sizeof tasks / sizeof *tasks));
}
