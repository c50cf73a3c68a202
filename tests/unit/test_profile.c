/* test_profile.c -- the counters, the timer of collectives, the files. test_op_work.c tests the
 * counting of operations. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "common/comm/comm_impl.h"
#include "tests/unit/profile_lib.h"

static const work_key ADD = {.name = "add"};

/* ---- counters ------------------------------------------------------------------------------- */

TEST(test_first_step_is_not_counted)
{
    profile *p = profile_create((profile_roof){0});
    profile_totals t;
    profile_row rows[PROFILE_MAX_ROWS];
    const work_cost c = {.flops = 3, .bytes = 4};
    profile_add(p, PROFILE_COMPUTE, &ADD, 1, 1.0, c); /* before the first step */
    profile_step_begin(p);
    profile_add(p, PROFILE_COMPUTE, &ADD, 1, 1.0, c); /* warm-up */
    profile_step_begin(p);
    profile_add(p, PROFILE_COMPUTE, &ADD, 1, 0.25, c);
    profile_step_end(p);
    profile_add(p, PROFILE_COMPUTE, &ADD, 1, 1.0, c); /* between steps */
    profile_step_end(p);
    profile_step_begin(p);
    profile_add(p, PROFILE_COMPUTE, &ADD, 2, 0.5, c);
    profile_step_end(p);
    assert_int_equal(profile_read(p, &t, rows), 1);
    assert_int_equal(rows[0].calls, 3);
    assert_true(rows[0].seconds == 0.75 && rows[0].cost.flops == 6 && rows[0].cost.bytes == 8);
    assert_int_equal(t.steps, 2);
    assert_true(t.seconds[PROFILE_COMPUTE] == 0.75 && t.cost[PROFILE_COMPUTE].flops == 6);
    profile_free(p);
    profile_free(NULL);
}

/* A step lasts until its last operation: time after that operation does not count. */
TEST(test_wall)
{
    double begun_s = clock_now_s();
    profile *p = warm_profile((profile_roof){0});
    sleep_ms(20);
    profile_add(p, PROFILE_COMPUTE, &ADD, 1, 0.0, (work_cost){0});
    double ended_s = clock_now_s();
    sleep_ms(300);
    double begun_again_s = clock_now_s();
    profile_step_begin(p);
    profile_add(p, PROFILE_COMPUTE, &ADD, 1, 0.0, (work_cost){0});
    profile_step_end(p);
    profile_totals t = totals_of(p);
    assert_int_equal(t.steps, 2);
    assert_true(t.wall_s >= 0.020);
    assert_true(t.wall_s <= ended_s - begun_s + clock_now_s() - begun_again_s); /* not the 300 ms */
    profile_free(p);
}

TEST(test_rows)
{
    profile *p = warm_profile((profile_roof){0});
    profile_totals t;
    profile_row rows[PROFILE_MAX_ROWS];
    char text[PROFILE_NAME_BYTES], add_text[] = "add";
    const work_cost none = {.flops = 0, .bytes = 0};
    work_key mm = {.name = "matmul", .form = "NT+", .m = 2, .n = 3, .k = 4}, other = mm;
    other.k = 5;
    profile_add(p, PROFILE_COMPUTE, &ADD, 1, 1.0, none);
    profile_add(p, PROFILE_COMPUTE, &(work_key){.name = add_text}, 1, 1.0,
                none); /* keys are compared by text, not by address */
    profile_add(p, PROFILE_COMPUTE, &mm, 1, 5.0, none);
    profile_add(p, PROFILE_COMPUTE, &other, 1, 6.0, none);
    profile_add(p, PROFILE_SIDE, &(work_key){.name = "add"}, 1, 9.0, none);
    profile_add(p, PROFILE_COLLECTIVE, &(work_key){.name = "x"}, 1, 10.0, none);
    assert_int_equal(profile_read(p, &t, rows), 5);
    static const char *const EXPECTED[] = {"matmul 2x3x5 NT+", "matmul 2x3x4 NT+", "add", "add",
                                           "x"};
    for (int i = 0; i < 5; i++)
        assert_string_equal(profile_row_name(&rows[i], text), EXPECTED[i]);
    assert_int_equal(rows[2].calls, 2);
    assert_int_equal(rows[3].kind, PROFILE_SIDE);
    profile_free(p);
}

/* With more keys than rows nothing is lost: the rest goes to the row "other" of its kind. */
TEST(test_more_keys_than_rows)
{
    profile *p = warm_profile((profile_roof){0});
    profile_totals t;
    profile_row rows[PROFILE_MAX_ROWS];
    work_key key = {.name = "matmul", .form = "NN"};
    const work_cost c = {.flops = 1, .bytes = 2};
    for (key.m = 0; key.m < 3 * PROFILE_MAX_ROWS; key.m++)
        profile_add(p, key.m % 2 ? PROFILE_SIDE : PROFILE_COMPUTE, &key, 1, 0.5, c);
    size_t n = profile_read(p, &t, rows);
    uint64_t calls = 0, others = 0;
    assert_true(n <= PROFILE_MAX_ROWS);
    for (size_t i = 0; i < n; i++) {
        calls += rows[i].calls;
        others += strcmp(rows[i].key.name, "other") == 0;
    }
    assert_int_equal(calls, 3 * PROFILE_MAX_ROWS);
    assert_int_equal(others, 2);
    assert_true(totals_of(p).cost[PROFILE_SIDE].bytes == 3 * PROFILE_MAX_ROWS);
    profile_free(p);
}

enum { THREADS = 4, ADDS = 100000 };

static void *add_many(void *arg)
{
    for (int i = 0; i < ADDS; i++) {
        work_key key = {.name = "matmul", .form = "NN", .m = (size_t)i % 7};
        profile_add(arg, PROFILE_COMPUTE, &key, 1, 0.5, (work_cost){.flops = 1, .bytes = 2});
    }
    return NULL;
}

TEST(test_threads)
{
    profile *p = warm_profile((profile_roof){0});
    profile_totals t;
    profile_row rows[PROFILE_MAX_ROWS];
    pthread_t thread[THREADS];
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, add_many, p), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(thread[i], NULL);
    uint64_t calls = 0;
    assert_int_equal(profile_read(p, &t, rows), 7);
    for (int i = 0; i < 7; i++)
        calls += rows[i].calls;
    assert_int_equal(calls, THREADS * ADDS);
    assert_true(totals_of(p).seconds[PROFILE_COMPUTE] == 0.5 * THREADS * ADDS);
    profile_free(p);
}

TEST(test_share)
{
    const char *binds;
    const profile_roof roof = {.flops_per_s = 100, .bytes_per_s = 10};
    profile_row row = {.seconds = 2, .cost = {.flops = 150, .bytes = 4}}; /* 75 of 100, 2 of 10 */
    assert_true(profile_share(&row, roof, &binds) == 0.75);
    assert_string_equal(binds, "compute");
    row.cost.bytes = 18; /* 9 of 10 */
    assert_true(profile_share(&row, roof, &binds) == 0.9);
    assert_string_equal(binds, "memory");
    assert_true(profile_share(&row, (profile_roof){.flops_per_s = 0, .bytes_per_s = 0}, &binds) ==
                0);
    assert_string_equal(binds, "-");
    row.kind = PROFILE_COLLECTIVE;
    assert_true(profile_share(&row, roof, &binds) == 0);
    row = (profile_row){.cost = {.flops = 1, .bytes = 1}};
    assert_true(profile_share(&row, roof, &binds) == 0);
    assert_string_equal(binds, "-");
}

/* bf16 products are compared with the bf16 roof, alone and in a sum of both types. */
TEST(test_share_of_bf16)
{
    const char *binds;
    const profile_roof roof = {.flops_per_s = 100, .bytes_per_s = 10, .bf16_flops_per_s = 400};
    profile_row row = {.seconds = 2, .cost = {.flops = 400, .bf16_flops = 400, .bytes = 4}};
    assert_true(profile_share(&row, roof, &binds) == 0.5); /* 200 of 400, not 200 of 100 */
    assert_string_equal(binds, "compute");
    row.cost.flops += 50; /* half a second of fp32 more */
    assert_true(profile_share(&row, roof, &binds) == 0.75);
    row.cost.bytes = 18;
    assert_true(profile_share(&row, roof, &binds) == 0.9);
    assert_string_equal(binds, "memory");
    const profile_roof of_fp32 = {.flops_per_s = 100, .bytes_per_s = 10};
    assert_true(profile_share(&row, of_fp32, &binds) == 0); /* not measured: nothing to compare */
    assert_string_equal(binds, "-");
}

/* ---- stalls --------------------------------------------------------------------------------- */

static void add_time(profile *p, profile_kind kind, const char *name, uint64_t n_calls,
                     double seconds)
{
    profile_add(p, kind, &(work_key){.name = name}, n_calls, seconds, (work_cost){0});
}

TEST(test_stalls)
{
    profile *p = profile_create((profile_roof){0});
    profile_totals t;
    profile_row rows[PROFILE_MAX_ROWS];
    char name[] = "all-gather h.3";
    profile_step_begin(p);
    add_time(p, PROFILE_EXPOSED, name, 1, 9.0); /* the first step */
    profile_step_begin(p);
    profile_add(p, PROFILE_COMPUTE, &ADD, 1, 0.25, (work_cost){.flops = 1});
    add_time(p, PROFILE_EXPOSED, name, 1, 0.5);
    name[13] = '4'; /* must not matter: the row has a copy */
    add_time(p, PROFILE_REST, "copies", 1, 4.0);
    add_time(p, PROFILE_EXPOSED, "loss", 1, 2.0);
    add_time(p, PROFILE_EXPOSED, "all-gather h.3", 2, 0.25);
    assert_int_equal(profile_read(p, &t, rows), 4);
    assert_string_equal(rows[1].key.name, "loss");
    assert_string_equal(rows[2].key.name, "all-gather h.3");
    assert_true(rows[2].calls == 3 && rows[2].seconds == 0.75);
    assert_int_equal(rows[3].kind, PROFILE_REST);
    assert_true(t.seconds[PROFILE_EXPOSED] == 2.75 && t.seconds[PROFILE_REST] == 4.0);
    t.wall_s = 8;
    assert_true(profile_unaccounted(&t) == 1.0);
    profile_free(p);
}

/* A step ends with its last operation, even if its stalls are counted later. */
TEST(test_stalls_after_the_step)
{
    double begun_s = clock_now_s();
    profile *p = warm_profile((profile_roof){0});
    profile_add(p, PROFILE_COMPUTE, &ADD, 1, 0.0, (work_cost){0});
    double ended_s = clock_now_s();
    sleep_ms(20);
    add_time(p, PROFILE_EXPOSED, "loss", 1, 0.0);
    profile_step_end(p);
    assert_true(totals_of(p).wall_s <= ended_s - begun_s);
    profile_free(p);
}

/* ---- collectives ---------------------------------------------------------------------------- */

static void note_timing(void *self, const comm_record *t)
{
    ((unsigned *)self)[t->op] += t->calls;
    assert_true(t->seconds >= 0 && t->bytes == 0);
}

TEST(test_timer_of_one_rank)
{
    device *d;
    comm *c;
    float buf[2] = {1, 2};
    unsigned calls[COMM_OPS] = {0};
    OK(device_open(&(device_config){.backend = &device_cpu, .n_threads = 1}, &d));
    OK(comm_open(d, &(comm_config){.backend = COMM_SELF}, &c));
    stream *s = device_compute_stream(d);
    OK(comm_all_reduce(c, s, "before", DTYPE_F32, buf, 2));
    comm_set_watch(c, &(comm_watch){.self = calls, .ended = note_timing});
    OK(comm_all_reduce(c, s, "x", DTYPE_F32, buf, 2));
    OK(comm_all_gather(c, s, "y", DTYPE_F32, buf, buf, 2));
    OK(comm_agree(c, FSDP_OK)); /* a call of the host is not timed */
    comm_set_watch(c, NULL);
    OK(comm_all_reduce(c, s, "behind", DTYPE_F32, buf, 2));
    for (int op = 0; op < COMM_OPS; op++)
        assert_int_equal(calls[op], op == COMM_OP_ALL_REDUCE || op == COMM_OP_ALL_GATHER);
    comm_close(c);
    device_close(d);
}

typedef struct timings {
    int n;
    comm_record last;
} timings;

static void keep_timing(void *self, const comm_record *t)
{
    ((timings *)self)->n++;
    ((timings *)self)->last = *t;
}

static uint64_t issue(comm *c, const comm_desc *d, int world_size)
{
    comm_issue i = {.op = (comm_op)d->op, .type = (dtype)d->dtype};
    c->team.size = world_size;
    return comm_recorder_issue(&c->team, "test", NULL, &i, d);
}

/* Mark one call on a group of W ranks as its transport would, and return the bytes reported to the
 * timer. */
static double told_bytes(comm *c, timings *told, const comm_desc *d, int world_size)
{
    int n_before = told->n;
    uint64_t ticket = issue(c, d, world_size);
    comm_recorder_mark(c->team.recorder, ticket, COMM_RUNNING);
    assert_int_equal(told->n, n_before);
    comm_recorder_mark(c->team.recorder, ticket, COMM_DONE);
    assert_int_equal(told->n, n_before + 1);
    assert_int_equal(told->last.calls, 1);
    assert_int_equal(told->last.op, d->op);
    return told->last.bytes;
}

TEST(test_timer_bytes)
{
    timings told = {0};
    comm c = {.team.recorder = comm_recorder_create(NULL)};
    comm_set_watch(&c, &(comm_watch){.self = &told, .ended = keep_timing});
    comm_desc d = {.op = COMM_OP_ALL_GATHER, .dtype = DTYPE_F32, .elems = 10};
    assert_true(told_bytes(&c, &told, &d, 3) == 80); /* to 2 others, 40 each */
    d.op = COMM_OP_REDUCE_SCATTER;
    assert_true(told_bytes(&c, &told, &d, 3) == 80);
    d.shape_hash = 12345; /* slices of 10 elements in all: 2 of 3 go to other ranks, on average */
    expect_near(told_bytes(&c, &told, &d, 3), 80.0 / 3, 1e-9);
    d.shape_hash = 0;
    d.op = COMM_OP_ALL_REDUCE;
    expect_near(told_bytes(&c, &told, &d, 3), 2 * 80.0 / 3, 1e-9);
    d.op = COMM_OP_ALL_TO_ALL;
    d.dtype = DTYPE_BF16;
    assert_true(told_bytes(&c, &told, &d, 3) == 40);
    d.op = COMM_OP_BARRIER;
    assert_true(told_bytes(&c, &told, &d, 3) == 0);
    comm_recorder_free(c.team.recorder);
}

/* Whether the recorder's report lists the call as under way. */
static bool is_under_way(const comm *c)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    assert_non_null(out);
    (void)comm_recorder_write(c->team.recorder, out, "test");
    fclose(out);
    bool found = strstr(text, " running\n") != NULL;
    free(text);
    return found;
}

/* An all-reduce is reported in two parts, whose times add up. Failed calls and calls of the host
 * are not reported. */
TEST(test_timer_of_halves)
{
    timings told = {0};
    comm c = {.team.recorder = comm_recorder_create(NULL)};
    comm_set_watch(&c, &(comm_watch){.self = &told, .ended = keep_timing});
    comm_desc d = {.op = COMM_OP_ALL_REDUCE, .dtype = DTYPE_F32, .elems = 10};
    uint64_t ticket = issue(&c, &d, 2);
    sleep_ms(1); /* the wait before the call starts on its stream does not count */
    double begun_s = clock_now_s(), first_s, first_begin_s;
    comm_recorder_mark(c.team.recorder, ticket, COMM_RUNNING);
    sleep_ms(10);
    comm_recorder_mark(c.team.recorder, ticket, COMM_DONE);
    first_s = told.last.seconds;
    first_begin_s = told.last.begin_s;
    assert_true(first_begin_s >= begun_s && first_s >= 0.010);
    sleep_ms(10); /* the time between the parts counts */
    comm_recorder_mark(c.team.recorder, ticket, COMM_RUNNING);
    assert_true(is_under_way(&c));
    comm_recorder_mark(c.team.recorder, ticket, COMM_DONE);
    assert_int_equal(told.n, 2);
    assert_int_equal(told.last.calls, 0);
    assert_true(told.last.begin_s == first_begin_s + first_s);
    assert_true(told.last.bytes == 0);
    assert_true(first_s >= 0.010 && told.last.seconds >= 0.010);
    assert_true(first_s + told.last.seconds <= clock_now_s() - begun_s);
    ticket = issue(&c, &d, 2);
    comm_recorder_mark(c.team.recorder, ticket, COMM_RUNNING);
    comm_recorder_mark(c.team.recorder, ticket, COMM_FAILED);
    d.op = COMM_OP_HOST;
    ticket = issue(&c, &d, 2);
    comm_recorder_mark(c.team.recorder, ticket, COMM_RUNNING);
    comm_recorder_mark(c.team.recorder, ticket, COMM_DONE);
    assert_int_equal(told.n, 2);
    comm_recorder_free(c.team.recorder);
}

/* ---- text ----------------------------------------------------------------------------------- */

typedef void print_fn(profile *p, FILE *out);

/* The output of `print`; valid until the next call. */
static char *printed(print_fn *print, profile *p)
{
    static char text[1 << 16];
    FILE *out = fmemopen(text, sizeof text, "w");
    assert_non_null(out);
    print(p, out);
    fclose(out);
    return text;
}

static void expect_line(const char *text, const char *line)
{
    if (!strstr(text, line))
        fail_msg("no '%s' in:\n%s", line, text);
}

TEST(test_files)
{
    profile *p = warm_profile((profile_roof){.flops_per_s = 1000e9, .bytes_per_s = 100e9});
    work_key mm = {.name = "matmul", .form = "NN", .m = 2, .n = 3, .k = 4};
    profile_add(p, PROFILE_COMPUTE, &mm, 2, 0.5, (work_cost){.flops = 400e9, .bytes = 1e9});
    profile_add(p, PROFILE_COMPUTE, &ADD, 1, 0.25, (work_cost){.flops = 1e9, .bytes = 20e9});
    profile_add(p, PROFILE_COLLECTIVE, &(work_key){.name = "all-gather"}, 1, 2.0,
                (work_cost){.flops = 0, .bytes = 4e9});
    add_time(p, PROFILE_EXPOSED, "all-gather h.3", 2, 0.125);
    add_time(p, PROFILE_REST, "copies", 1, 0.0625);
    profile_step_end(p);
    const char *text = printed(profile_print_csv, p);
    expect_line(text, "compute,matmul 2x3x4 NN,2,0.500000000,400000000000,1000000000,8e+11,2e+09,"
                      "0.8,compute\n");
    expect_line(text, "compute,add,1,0.250000000,1000000000,20000000000,4e+09,8e+10,0.8,memory\n");
    expect_line(text, "collective,all-gather,1,2.000000000,0,4000000000,0,2e+09,0,-\n");
    expect_line(text, "total,compute,1,0.750000000,401000000000,21000000000,");
    expect_line(text, "total,wall,1,");
    expect_line(text, "exposed,all-gather h.3,2,0.125000000,,,,,,\n");
    expect_line(text, "rest,copies,1,0.062500000,,,,,,\n");
    expect_line(text, "total,exposed,1,0.125000000,,,,,,\n");
    expect_line(text, "roof,measured,,,,,1e+12,1e+11,,\n");
    assert_null(strstr(text, "bf16"));
    text = printed(profile_print_table, p);
    expect_line(text, ": 1 steps, without the first");
    expect_line(text, "1000.0 GFLOP/s");
    assert_null(strstr(text, "bf16"));
    expect_line(text, "| matmul 2x3x4 NN                      |        2.0 |    500.000 |");
    expect_line(text, "|    800.00 |    2.00 |     80% | compute |");
    expect_line(text, "| **sum**                              |        3.0 |    750.000 |");
    expect_line(text, "| **exposed communication** (below)    |            |    125.000 |");
    expect_line(text, "| copies                               |            |     62.500 |");
    expect_line(text, "**not accounted**");
    expect_line(text, "| all-gather h.3                       |        2.0 |    125.000 |");
    profile_free(p);
}

/* Costs add up with their bf16 part, in the total of the table too. The files have both rates. */
TEST(test_files_of_bf16)
{
    profile *p = warm_profile(
        (profile_roof){.flops_per_s = 1000e9, .bytes_per_s = 100e9, .bf16_flops_per_s = 4000e9});
    work_key mm = {.name = "matmul", .form = "NN bf16", .m = 2, .n = 3, .k = 4};
    for (int i = 0; i < 2; i++)
        profile_add(p, PROFILE_COMPUTE, &mm, 1, 0.5,
                    (work_cost){.flops = 1000e9, .bf16_flops = 1000e9});
    profile_add(p, PROFILE_COMPUTE, &ADD, 1, 1.0, (work_cost){.flops = 100e9});
    profile_step_end(p);
    const char *text = printed(profile_print_csv, p);
    expect_line(text, "2,1.000000000,2000000000000,0,2e+12,0,0.5,compute\n");
    expect_line(text, "roof,measured,,,,,1e+12,1e+11,,\nroof,bf16,,,,,4e+12,,,\n");
    text = printed(profile_print_table, p);
    expect_line(text, " 1000.0 GFLOP/s (a large matmul), 4000.0 GFLOP/s (the same in bf16");
    expect_line(text, "|   1050.00 |    0.00 |     30% | compute |"); /* (0.5 + 0.1) / 2 */
    profile_free(p);
}

/* If no step was counted, the files have no rows, and nothing is divided by 0. */
TEST(test_files_of_nothing)
{
    profile *p = profile_create((profile_roof){0});
    expect_line(printed(profile_print_csv, p), "total,wall,0,0.000000000,");
    const char *text = printed(profile_print_table, p);
    expect_line(text, ": 0 steps");
    assert_null(strstr(text, "nan"));
    profile_free(p);
}

int main(void)
{
    return tests_run(NULL, NULL);
}
