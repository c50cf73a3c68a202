/* test_virtual_time.c -- the simulator of virtual_time.h. The rules of streams, calls and links are
 * checked on random schedules; inline compute, parts of a job and floors on schedules computed by
 * hand, with whole numbers as costs so that results are compared with ==. Scripts cover all ranks
 * unless a test says otherwise. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/base/clock.h"
#include "common/base/options.h"
#include "common/observe/timeline_stats.h"
#include "common/simulate/virtual_time.h"
#include "tests/unit/unit_lib.h"

enum { COMPUTE, GATHER, REDUCE, N_STREAMS, MOST_ITEMS = 256, MOST_RANKS = 4 };
static const char STREAMS[][TIMELINE_STREAM_BYTES] = {"compute", "gather", "reduce"};

static double flops_s(const void *self, int view, const timeline_item *item)
{
    return item->flops;
}

/* A byte or a FLOP takes one second. */
static const virtual_config UNIT_COSTS = {.work_s = flops_s, .link = {.bytes_per_s = 1.0}};

/* A handmade timeline. */
typedef struct script {
    timeline_item items[MOST_ITEMS];
    int64_t n_items;
} script;

static int64_t put(script *s, timeline_item item)
{
    assert_true(s->n_items < MOST_ITEMS);
    s->items[s->n_items] = item;
    return s->n_items++;
}

static int64_t work(script *s, int stream, double seconds)
{
    return put(s, (timeline_item){
                      .kind = TIMELINE_WORK, .stream = stream, .name = "matmul", .flops = seconds});
}

static int64_t record(script *s, int stream)
{
    return put(s, (timeline_item){.kind = TIMELINE_RECORD, .stream = stream});
}

static int64_t wait_for(script *s, int stream, int64_t after)
{
    return put(s, (timeline_item){.kind = TIMELINE_WAIT, .stream = stream, .after = after});
}

static int64_t sync_with(script *s, int stream, int64_t after)
{
    return put(s, (timeline_item){.kind = TIMELINE_SYNC, .stream = stream, .after = after});
}

static int64_t step(script *s, uint64_t number)
{
    return put(s, (timeline_item){.kind = TIMELINE_STEP, .stream = TIMELINE_HOST, .seq = number});
}

/* A call of a group that consists of the first `ranks` ranks. It takes `seconds`. */
static int64_t call(script *s, int stream, uint64_t group, uint64_t seq, int ranks, double seconds)
{
    timeline_item c = {.kind = TIMELINE_COLLECTIVE,
                       .stream = stream,
                       .name = "all-gather",
                       .group = group,
                       .seq = seq,
                       .group_ranks = ranks,
                       .last_rank = ranks - 1,
                       .bytes = seconds};
    snprintf(c.unit, sizeof c.unit, "h.%llu", (unsigned long long)seq);
    return put(s, c);
}

/* Make item i a call of a group from rank `first` to rank `last`. */
static int64_t among(script *s, int64_t i, int first, int last)
{
    s->items[i].first_rank = first;
    s->items[i].last_rank = last;
    return i;
}

static int64_t call_of(script *s, uint64_t group, int first, int last, int ranks, double seconds)
{
    return among(s, call(s, GATHER, group, (uint64_t)s->n_items, ranks, seconds), first, last);
}

static void view_scripts(script *scripts, int n_ranks, timeline_view *views)
{
    for (int r = 0; r < n_ranks; r++)
        views[r] = (timeline_view){.rank = r,
                                   .n_streams = N_STREAMS,
                                   .streams = STREAMS,
                                   .items = scripts[r].items,
                                   .n_items = scripts[r].n_items};
}

static fsdp_status simulate(script *scripts, int n_ranks, const virtual_config *config)
{
    timeline_view views[MOST_RANKS];
    view_scripts(scripts, n_ranks, views);
    return virtual_time_run(views, n_ranks, config);
}

static void assert_span(const script *s, int64_t i, double begin_s, double end_s)
{
    const timeline_item *it = &s->items[i];
    if (it->begin_s != begin_s || it->end_s != end_s)
        fail_msg("item %lld: got %g to %g, expected %g to %g", (long long)i, it->begin_s, it->end_s,
                 begin_s, end_s);
}

/* A gather issued after a matmul begins after the matmul only if the host runs the matmul. */
TEST(test_inline_compute)
{
    script s[2] = {0};
    for (int r = 0; r < 2; r++) {
        work(&s[r], COMPUTE, 3);
        call(&s[r], GATHER, 1, 0, 2, 5);
        wait_for(&s[r], COMPUTE, record(&s[r], GATHER));
        work(&s[r], COMPUTE, 2);
    }
    OK(simulate(s, 2, &UNIT_COSTS));
    assert_span(&s[0], 1, 0, 5);
    assert_span(&s[0], 4, 5, 7);
    virtual_config config = UNIT_COSTS;
    config.inline_compute = true;
    OK(simulate(s, 2, &config));
    assert_span(&s[0], 0, 0, 3);
    assert_span(&s[0], 1, 3, 8);
    assert_span(&s[0], 3, 3, 8);
    assert_span(&s[0], 4, 8, 10);
}

/* ---- part of a job --------------------------------------------------------------------------- */

/* Hosts of four ranks. A call takes 1 + bytes / 2 within a host, and 2 + bytes across hosts. */
static const virtual_config PART = {.work_s = flops_s,
                                    .link = {.latency_s = 1, .bytes_per_s = 2},
                                    .host_link = {.latency_s = 2, .bytes_per_s = 1},
                                    .ranks_per_host = 4};

/* Ranks without a view delay nobody. The group's first and last rank determine the kind of link. */
TEST(test_part_links)
{
    static const struct {
        int first, last, ranks;
        double lasts_s;
    } GROUPS[] = {
        {5, 5, 1, 0},   /* a single rank: neither latency nor bytes */
        {4, 7, 4, 4},   /* a whole host */
        {4, 6, 2, 4},   /* a part of a host */
        {3, 4, 2, 8},   /* neighbours in two hosts: the only group there */
        {0, 15, 16, 8}, /* all ranks of four hosts */
        {0, 14, 8, 14}, /* 0 2 4 ... and 1 3 5 ... share each host's link */
        {1, 13, 4, 26}, /* 4 groups */
        {0, 16, 3, 26}, /* 0 8 16: a host has 4 ranks, so 4 groups and not 8 */
        {0, 1023, 1024, 8},
    };
    script s = {0};
    for (size_t i = 0; i < sizeof GROUPS / sizeof *GROUPS; i++)
        call_of(&s, 1 + i, GROUPS[i].first, GROUPS[i].last, GROUPS[i].ranks, 6);
    OK(simulate(&s, 1, &PART));
    for (size_t i = 0; i < sizeof GROUPS / sizeof *GROUPS; i++) {
        const timeline_item *it = &s.items[i];
        if (it->end_s - it->begin_s != GROUPS[i].lasts_s)
            fail_msg("%d ranks from %d to %d: got %g s, expected %g", GROUPS[i].ranks,
                     GROUPS[i].first, GROUPS[i].last, it->end_s - it->begin_s, GROUPS[i].lasts_s);
    }
}

/* A call begins when all of its ranks with a view have come, so a late rank delays the other. A
 * call with only one of these ranks is not delayed. */
TEST(test_part_straggler)
{
    script s[2] = {0};
    for (int r = 0; r < 2; r++) {
        work(&s[r], GATHER, r == 1 ? 9 : 1);
        call_of(&s[r], 7 + (uint64_t)r, r, r + 2, 2, 6);
        call_of(&s[r], 1, 0, 15, 16, 6);
        wait_for(&s[r], COMPUTE, record(&s[r], GATHER));
    }
    OK(simulate(s, 2, &PART));
    assert_span(&s[0], 1, 1, 5);
    assert_span(&s[1], 1, 9, 13);
    assert_span(&s[0], 2, 5, 21);
    assert_span(&s[1], 2, 13, 21);
}

/* Each view has its own host, on which its collectives take turns. */
TEST(test_part_host_links)
{
    script s[2] = {0};
    for (int r = 0; r < 2; r++) {
        for (int i = 0; i < 2; i++)
            call_of(&s[r], 1 + (uint64_t)(2 * r + i), r, r + 14, 8, 6);
        s[r].items[1].stream = REDUCE;
    }
    OK(simulate(s, 2, &PART));
    for (int r = 0; r < 2; r++) {
        assert_span(&s[r], 0, 0, 14);
        assert_span(&s[r], 1, 0, 28);
    }
}

/* ---- the floor ------------------------------------------------------------------------------- */

static int64_t reduce(script *s, double seconds)
{
    int64_t i = call(s, REDUCE, 2, (uint64_t)s->n_items, 2, seconds);
    s->items[i].reduces = true;
    return i;
}

/* A gather that the next computation waits for. */
static void gather_before(script *s, double seconds)
{
    call(s, GATHER, 1, (uint64_t)s->n_items, 2, seconds);
    wait_for(s, COMPUTE, record(s, GATHER));
}

/* A reduction of the last computation's result. */
static void reduce_after(script *s, double seconds)
{
    wait_for(s, REDUCE, record(s, COMPUTE));
    reduce(s, seconds);
}

/* The floor of the step that begins at item `first`. */
static double floor_of(script *s, int64_t first, const virtual_config *config)
{
    timeline_view view;
    double floor_s;
    view_scripts(s, 1, &view);
    OK(virtual_time_floor(&view, first, config, &floor_s));
    return floor_s;
}

/* Nothing hides the first gather and the last reduction. An earlier step does not count. */
TEST(test_floor_ends)
{
    script s = {0};
    gather_before(&s, 100);
    work(&s, COMPUTE, 1);
    int64_t first = step(&s, 1);
    gather_before(&s, 2);
    work(&s, COMPUTE, 4);
    gather_before(&s, 3);
    work(&s, COMPUTE, 4);
    reduce_after(&s, 3);
    work(&s, COMPUTE, 4);
    reduce_after(&s, 5);
    assert_true(floor_of(&s, first, &UNIT_COSTS) == 2 + 5);
}

/* The floor comes from the middle of the step: a long gather, then a reduction. */
TEST(test_floor_inside)
{
    script s = {0};
    gather_before(&s, 2);
    work(&s, COMPUTE, 4);
    gather_before(&s, 7);
    work(&s, COMPUTE, 3);
    reduce_after(&s, 5);
    work(&s, COMPUTE, 1);
    assert_true(floor_of(&s, 0, &UNIT_COSTS) == (2 + 7) + 3 + 5 - 8);
}

/* A collective that nothing waits for still takes its time on the link. */
TEST(test_floor_of_the_link)
{
    script s = {0};
    work(&s, COMPUTE, 4);
    call(&s, GATHER, 1, 0, 2, 9);
    reduce(&s, 6); /* needs no computation before it */
    assert_true(floor_of(&s, 0, &UNIT_COSTS) == 9 + 6 - 4);
    s.items[1].group_ranks = s.items[2].group_ranks = 1;
    assert_true(floor_of(&s, 0, &UNIT_COSTS) == 0);
}

/* The floor is the larger one of two: the links within a host, and the links between hosts. */
TEST(test_floor_of_two_links)
{
    script s = {0};
    gather_before(&s, 6); /* 4 s within a host, 8 s across hosts */
    work(&s, COMPUTE, 4);
    reduce_after(&s, 14); /* 8 s and 16 s */
    assert_true(floor_of(&s, 0, &PART) == 4 + 8);
    for (int64_t i = 0; i < s.n_items; i++)
        s.items[i].last_rank = i < 3 ? 4 : 1; /* the gather across hosts */
    s.items[0].group_ranks = 5;
    assert_true(floor_of(&s, 0, &PART) == 8);
    s.items[s.n_items - 1].bytes = 22;
    assert_true(floor_of(&s, 0, &PART) == 12);
}

/* Steps of simulated time are read like recorded steps. */
TEST(test_steps)
{
    script s[2] = {0};
    for (int r = 0; r < 2; r++) {
        step(&s[r], 4);
        work(&s[r], COMPUTE, 1);
        work(&s[r], REDUCE, 3); /* no collective before this on the stream */
        wait_for(&s[r], COMPUTE, record(&s[r], REDUCE));
        call(&s[r], COMPUTE, 1, 0, 2, 2);
        wait_for(&s[r], COMPUTE, TIMELINE_NONE);
        step(&s[r], 5);
        work(&s[r], COMPUTE, 1);
        sync_with(&s[r], COMPUTE, TIMELINE_NONE);
        call(&s[r], GATHER, 2, 0, 2, 7);
        work(&s[r], COMPUTE, 1);
    }
    OK(simulate(s, 2, &UNIT_COSTS));
    timeline_view views[2];
    timeline_step t;
    view_scripts(s, 2, views);
    assert_true(timeline_next_step(&views[1], 0, &t));
    assert_true(t.step == 4 && t.begin_s == 0 && t.end_s == 5 && t.compute_s == 1);
    assert_true(t.wait_s == 2 && t.exposed_s == 2);
    assert_true(timeline_next_step(&views[1], t.end, &t));
    assert_true(t.step == 5 && t.begin_s == 0); /* the host ran ahead */
    assert_true(t.end_s == 13 && t.compute_s == 2 && t.exposed_s == 0 && t.comm_s == 7);
}

TEST(test_roof)
{
    virtual_device d;
    virtual_config config;
    virtual_device_of(0, &d, &config);
    d.is_bf16 = true;
    d.reached = 0.5;
    assert_true(virtual_work_roof(&d, &(timeline_item){.flops = 989.4e12, .bytes = 1}) == 2);
    assert_true(virtual_work_roof(&d, &(timeline_item){.flops = 1, .bytes = 3.35e12}) == 2);
}

/* Every row of the table can be simulated. All devices of a host share its link. */
TEST(test_devices)
{
    static const char *const NAMES[] = {"h100", "a100", "t4", "910b"};
    for (int i = 0; i < 4; i++) {
        virtual_device d;
        virtual_config config = {0};
        virtual_device_of(i, &d, &config);
        assert_int_equal(options_choice(VIRTUAL_DEVICE_CHOICES, NAMES[i]), i);
        assert_non_null(strcasestr(d.model, NAMES[i]));
        assert_true(d.reached > 0 && d.reached <= 1);
        assert_true(d.bf16_flops_per_s >= d.f32_flops_per_s && !d.is_bf16);
        assert_int_equal(config.ranks_per_host, d.per_host);
        assert_true(config.link.bytes_per_s == 0.8 * d.peer_bytes_per_s);
        assert_true(config.host_link.bytes_per_s == 0.8 * d.per_host * d.network_bytes_per_s);
        assert_true(config.host_link.latency_s > config.link.latency_s &&
                    config.link.latency_s > 0);
    }
}

/* ---- what is refused ------------------------------------------------------------------------ */

TEST(test_lost_items)
{
    script s = {0};
    timeline_view view;
    work(&s, COMPUTE, 1);
    view_scripts(&s, 1, &view);
    view.n_lost = 3;
    assert_int_equal(virtual_time_run(&view, 1, &UNIT_COSTS), FSDP_EINVAL);
    assert_says("rank 0 lost 3 items");
}

static void assert_deadlock(script *s, const char *part)
{
    assert_int_equal(simulate(s, 2, &UNIT_COSTS), FSDP_EMISMATCH);
    assert_says(part);
}

TEST(test_deadlock)
{
    script s[2] = {0};
    work(&s[0], COMPUTE, 1);
    call(&s[0], GATHER, 0x1f, 3, 2, 1);
    assert_deadlock(s, "rank 0 waits in item 1, all-gather h.3, call 3 of group 1f, for 1");
    call(&s[0], GATHER, 0x1f, 4, 2, 1);
    call(&s[1], GATHER, 0x1f, 4, 2, 1);
    call(&s[1], GATHER, 0x1f, 3, 2, 1);
    assert_deadlock(
        s, "rank 0 waits in item 1, all-gather h.3, call 3 of group 1f, for 1; rank 1 waits "
           "in item 0, all-gather h.4, call 4 of group 1f, for 0");
    /* On separate streams the same calls meet. */
    s[0].items[1].stream = s[1].items[1].stream = REDUCE;
    OK(simulate(s, 2, &UNIT_COSTS));
}

/* ---- random schedules ----------------------------------------------------------------------- */

static int draw(uint64_t *seed, int n)
{
    *seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (int)((*seed >> 33) % (uint64_t)n);
}

/* Whether a rank is in group g, one of four. */
static bool is_in_group(int g, int rank, int n_ranks)
{
    return g == 0 || (g == 1 && rank < 2) || (g == 2 && rank >= n_ranks / 2) ||
           (g == 3 && rank == 0);
}

/* The same program on all ranks, with other costs on each: it cannot deadlock. */
static void draw_program(script *s, int n_ranks, uint64_t *seed)
{
    uint64_t n_calls[4] = {0};
    memset(s, 0, (size_t)n_ranks * sizeof *s);
    for (int op = 0; op < MOST_ITEMS - 2; op++) {
        int kind = draw(seed, 10), stream = draw(seed, N_STREAMS), group = draw(seed, 4);
        int seconds = 1 + draw(seed, 8), n_members = 0, ahead = draw(seed, 12);
        int first = group == 2 ? n_ranks / 2 : 0;
        for (int r = 0; r < n_ranks; r++)
            n_members += is_in_group(group, r, n_ranks);
        for (int r = 0; r < n_ranks; r++) {
            int64_t after = s[r].n_items - 1 - ahead;
            if (after < 0 || s[r].items[after].kind != TIMELINE_RECORD)
                after = TIMELINE_NONE;
            if (kind < 3)
                work(&s[r], stream, draw(seed, 8));
            else if (kind < 5)
                record(&s[r], stream);
            else if (kind < 8)
                wait_for(&s[r], stream, after);
            else if (kind == 9 && is_in_group(group, r, n_ranks))
                among(&s[r],
                      call(&s[r], stream, (uint64_t)group, n_calls[group], n_members, seconds),
                      first, first + n_members - 1);
            else if (kind == 8 && ahead == 0)
                sync_with(&s[r], stream, after);
        }
        n_calls[group] += kind == 9;
    }
}

/* A call in the result, as seen by its ranks. */
typedef struct met {
    uint64_t group, seq;
    double ready_s, begin_s, end_s;
    bool has_rank[MOST_RANKS];
    int n_ranks;
} met;

/* Collect the calls, and check that all ranks agree on when each ends. Returns the number of
 * calls. */
static int collect_calls(const script *s, int n_ranks, met *calls)
{
    int n = 0;
    for (int r = 0; r < n_ranks; r++)
        for (int64_t i = 0; i < s[r].n_items; i++) {
            const timeline_item *it = &s[r].items[i];
            if (it->kind != TIMELINE_COLLECTIVE)
                continue;
            int k = 0;
            while (k < n && (calls[k].group != it->group || calls[k].seq != it->seq))
                k++;
            met *c = &calls[k];
            if (k == n) {
                n++;
                *c = (met){it->group, it->seq, it->begin_s, 0, it->end_s, {0}, 0};
            }
            assert_true(c->end_s == it->end_s);
            c->ready_s = it->begin_s > c->ready_s ? it->begin_s : c->ready_s;
            c->has_rank[r] = true;
            c->n_ranks++;
            c->begin_s = c->end_s - (c->n_ranks > 1 ? it->bytes : 0);
        }
    return n;
}

static int compare_ready(const void *a, const void *b)
{
    const met *x = a, *y = b;
    if (x->ready_s != y->ready_s)
        return x->ready_s < y->ready_s ? -1 : 1;
    if (x->group != y->group)
        return x->group < y->group ? -1 : 1;
    return (x->seq > y->seq) - (x->seq < y->seq);
}

/* In the order in which calls became ready, each begins as soon as all its links are free. */
static void check_links(const script *s, int n_ranks)
{
    static met calls[MOST_RANKS * MOST_ITEMS];
    double free_s[MOST_RANKS] = {0};
    int n = collect_calls(s, n_ranks, calls);
    qsort(calls, (size_t)n, sizeof *calls, compare_ready);
    for (int k = 0; k < n; k++) {
        double begin_s = calls[k].ready_s;
        for (int r = 0; r < n_ranks && calls[k].n_ranks > 1; r++)
            if (calls[k].has_rank[r] && free_s[r] > begin_s)
                begin_s = free_s[r];
        assert_true(calls[k].begin_s == begin_s);
        for (int r = 0; r < n_ranks && calls[k].n_ranks > 1; r++)
            if (calls[k].has_rank[r])
                free_s[r] = calls[k].end_s;
    }
}

/* Streams run in order, nothing begins before it is issued, and waits last until their record. */
static void check_rank(const script *s)
{
    double end_s[N_STREAMS] = {0}, host_s = 0;
    const timeline_item *items = s->items;
    for (int64_t i = 0; i < s->n_items; i++) {
        const timeline_item *it = &items[i];
        assert_true(it->issued_s == host_s);
        double begin_s =
            it->kind != TIMELINE_SYNC && end_s[it->stream] > host_s ? end_s[it->stream] : host_s;
        double until_s =
            it->after >= 0 && items[it->after].end_s > begin_s ? items[it->after].end_s : begin_s;
        assert_true(it->begin_s == begin_s);
        if (it->kind == TIMELINE_SYNC) {
            if (it->after < 0 && end_s[it->stream] > until_s)
                until_s = end_s[it->stream];
            assert_true(it->end_s == until_s);
            host_s = until_s;
            continue;
        }
        if (it->kind == TIMELINE_WORK)
            assert_true(it->end_s == begin_s + it->flops);
        else if (it->kind == TIMELINE_WAIT)
            assert_true(it->end_s == until_s);
        else if (it->kind == TIMELINE_RECORD)
            assert_true(it->end_s == begin_s);
        end_s[it->stream] = it->end_s;
    }
}

TEST(test_random)
{
    static script s[MOST_RANKS], before[MOST_RANKS];
    for (uint64_t seed = 1; seed <= 300; seed++) {
        uint64_t drawn = seed;
        int n_ranks = 1 + (int)(seed % MOST_RANKS);
        draw_program(s, n_ranks, &drawn);
        OK(simulate(s, n_ranks, &UNIT_COSTS));
        memcpy(before, s, sizeof before);
        OK(simulate(s, n_ranks, &UNIT_COSTS));
        assert_memory_equal(before, s, sizeof before);
        check_links(s, n_ranks);
        for (int r = 0; r < n_ranks; r++)
            check_rank(&s[r]);
    }
}

/* A random schedule: gathers that computation waits for at once, later or never; reductions of the
 * last result or of nothing; gathers that wait for computation. Groups have 1 to 4 ranks, on one
 * host or several. At the end the compute stream waits for all other streams. */
static void draw_schedule(script *s, uint64_t *seed)
{
    int64_t gathered = TIMELINE_NONE;
    memset(s, 0, sizeof *s);
    for (int n_ops = 4 + draw(seed, 20); n_ops > 0; n_ops--) {
        int kind = draw(seed, 7), ranks = 1 + draw(seed, 4);
        int64_t i = kind < 2   ? call(s, GATHER, 1, (uint64_t)s->n_items, ranks, draw(seed, 8))
                    : kind < 4 ? reduce(s, draw(seed, 8))
                    : kind < 6 ? work(s, COMPUTE, draw(seed, 8))
                               : wait_for(s, GATHER, record(s, COMPUTE));
        s->items[i].group_ranks = ranks;
        s->items[i].last_rank = (1 + 3 * draw(seed, 2)) * (ranks - 1);
        if (kind < 2)
            gathered = record(s, GATHER);
        if (gathered != TIMELINE_NONE && draw(seed, 2))
            wait_for(s, COMPUTE, gathered);
        if (draw(seed, 2))
            wait_for(s, REDUCE, record(s, COMPUTE));
    }
    wait_for(s, COMPUTE, record(s, GATHER));
    wait_for(s, COMPUTE, record(s, REDUCE));
}

/* No schedule is shorter than its computation plus its floor; some are exactly as long. */
TEST(test_floor_random)
{
    static script s;
    int n_reached = 0;
    for (uint64_t n = 1; n <= 1000; n++) {
        uint64_t seed = n;
        draw_schedule(&s, &seed);
        virtual_config config = n % 2 ? UNIT_COSTS : PART;
        config.ranks_per_host = n % 2 ? 0 : 2;
        config.inline_compute = draw(&seed, 2);
        OK(simulate(&s, 1, &config));
        double floor_s = floor_of(&s, 0, &config), over_s = s.items[s.n_items - 1].end_s;
        for (int64_t i = 0; i < s.n_items; i++)
            over_s -= s.items[i].flops;
        if (!(over_s >= floor_s))
            fail_msg("schedule %llu: %g s beside computation, the floor is %g",
                     (unsigned long long)n, over_s, floor_s);
        n_reached += floor_s > 0 && over_s == floor_s;
    }
    assert_true(n_reached > 100);
}

int main(void)
{
    return tests_run(NULL, NULL);
}
