/* test_device_schedule.c -- the adversarial scheduler: the same seed gives the same order, any seed
 * gives an allowed order, and the seeds together give the orders that are not obvious.
 * test_device_stress.c, which runs under seeds too, tests that what the scheduler allows is
 * right. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "tests/unit/device_lib.h"

enum { STREAMS = 3, EVENTS = 4, TASKS = 600, SEEDS = 32 };

static bool is_same(const order *a, const order *b)
{
    return a->elems == b->elems && memcmp(a->list, b->list, sizeof a->list) == 0;
}

/* The compute stream and two more. */
static void open_streams(device *d, stream *s[STREAMS])
{
    s[0] = device_compute_stream(d);
    for (int i = 1; i < STREAMS; i++)
        s[i] = new_stream(d, "side");
}

static void sync_streams(stream *s[STREAMS])
{
    for (int i = 0; i < STREAMS; i++)
        OK(stream_sync(s[i]));
}

/* ---- the order is the seed's ---------------------------------------------------------------- */

/* TASKS tasks on STREAMS streams, with events between them that are always the same. */
static void run_program(uint64_t seed, order *x)
{
    device *d = open_scheduled(seed);
    stream *s[STREAMS];
    open_streams(d, s);
    event *e[EVENTS];
    unsigned draws = 1;
    *x = (order){.elems = 0};
    for (int i = 0; i < EVENTS; i++)
        e[i] = new_event(d);
    for (int i = 0; i < TASKS; i++) {
        OK(order_add(x, s[i % STREAMS], i));
        if (i % 5 == 0)
            OK(event_record(e[rand_r(&draws) % EVENTS], s[rand_r(&draws) % STREAMS]));
        if (i % 7 == 0)
            OK(stream_wait_event(s[rand_r(&draws) % STREAMS], e[rand_r(&draws) % EVENTS]));
        if (i % 150 == 149)
            OK(event_sync(e[rand_r(&draws) % EVENTS]));
    }
    sync_streams(s);
    for (int i = 0; i < EVENTS; i++)
        event_free(e[i]);
    device_close(d);
}

TEST(test_seed_is_order)
{
    static order first[SEEDS + 1], again;
    int n_alike = 0;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        run_program(seed, &first[seed]);
        run_program(seed, &again);
        assert_int_equal(again.elems, TASKS);
        assert_true(is_same(&first[seed], &again));
        uint64_t other = 1;
        while (!is_same(&first[other], &first[seed]))
            other++;
        n_alike += other < seed; /* seeds that always let the host wait have few choices */
    }
    assert_uint_in_range(n_alike, 0, SEEDS / 8);
}

/* ---- orders that are allowed, and only those ------------------------------------------------ */

/* Runs a task on each of two streams. waits: the second waits for the first. Returns the first to
 * run. */
static int first_of_two(uint64_t seed, bool waits)
{
    device *d = open_scheduled(seed);
    stream *one = device_compute_stream(d), *two = new_stream(d, "side");
    order x = {.elems = 0};
    event *e = new_event(d);
    OK(order_add(&x, one, 1));
    OK(event_record(e, one));
    if (waits)
        OK(stream_wait_event(two, e));
    OK(order_add(&x, two, 2));
    OK(stream_sync(two));
    OK(stream_sync(one));
    assert_int_equal(x.elems, 2);
    event_free(e);
    stream_free(two);
    device_close(d);
    return x.list[0];
}

TEST(test_missing_wait_shows)
{
    int n_late = 0;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        assert_int_equal(first_of_two(seed, true), 1);
        n_late += first_of_two(seed, false) == 2;
    }
    assert_uint_in_range(n_late, SEEDS / 8, SEEDS * 7 / 8);
}

/* x->elems counts what the host has issued. */
static fsdp_status run_note_issued(void *args, int n_threads)
{
    const append_args *a = args;
    a->x->list[a->value] = a->x->elems;
    return FSDP_OK;
}

/* How far the host was ahead of the first of 100 tasks, and how far at most. */
static void host_ahead(uint64_t seed, int *first, int *most)
{
    device *d = open_scheduled(seed);
    stream *s = device_compute_stream(d);
    order seen = {.elems = 0};
    for (int i = 0; i < 100; i++) {
        seen.elems = i + 1;
        OK(stream_launch(s, run_note_issued, &(append_args){&seen, i}, sizeof(append_args)));
    }
    OK(stream_sync(s));
    *first = seen.list[0];
    *most = 0;
    for (int i = 0; i < 100; i++)
        *most = seen.list[i] - i > *most ? seen.list[i] - i : *most;
    device_close(d);
}

TEST(test_host_ahead_and_behind)
{
    int n_ahead = 0, n_behind = 0, first, most;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        host_ahead(seed, &first, &most);
        n_ahead += first == 100;
        n_behind += most == 1;
    }
    assert_uint_in_range(n_ahead, 2, SEEDS / 2);
    assert_uint_in_range(n_behind, 2, SEEDS / 2);
}

/* Is there a seed under which `last` has no turn while the other streams have tasks? */
static bool is_starved(int last)
{
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        device *d = open_scheduled(seed);
        stream *s[STREAMS];
        open_streams(d, s);
        order x = {.elems = 0};
        for (int i = 0; i < 20 * STREAMS; i++)
            OK(order_add(&x, s[i % STREAMS], i % STREAMS));
        sync_streams(s);
        int n_others = 0;
        while (x.list[n_others] != last)
            n_others++;
        device_close(d);
        if (n_others == 20 * (STREAMS - 1))
            return true;
    }
    return false;
}

TEST(test_any_stream_is_starved)
{
    for (int last = 0; last < STREAMS; last++)
        assert_true(is_starved(last));
}

/* ---- the host ------------------------------------------------------------------------------- */

/* A gate waits for the host, so the host goes on, with other streams too. */
TEST(test_gate)
{
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        device *d = open_scheduled(seed);
        stream *held = device_compute_stream(d), *free_to_run = new_stream(d, "side");
        order x = {.elems = 0};
        sem_t gate;
        close_gate(held, &gate);
        OK(order_add(&x, held, 2));
        OK(order_add(&x, free_to_run, 1));
        OK(stream_sync(free_to_run));
        assert_int_equal(x.elems, 1);
        sem_post(&gate);
        OK(stream_sync(held));
        assert_true(x.elems == 2 && x.list[0] == 1);
        stream_free(free_to_run);
        device_close(d);
    }
}

/* A host that polls again and again does not keep the turn. */
TEST(test_polling_ends)
{
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        device *d = open_scheduled(seed);
        stream *s = device_compute_stream(d);
        order x = {.elems = 0};
        event *e = new_event(d);
        for (int i = 0; i < 20; i++)
            OK(order_add(&x, s, i));
        OK(event_record(e, s));
        while (!event_done(e))
            ;
        assert_int_equal(x.elems, 20);
        event_free(e);
        device_close(d);
    }
}

static fsdp_status run_post(void *args, int n_threads)
{
    sem_post(*(sem_t **)args);
    return FSDP_OK;
}

/* A host that waits for one of its devices, or for ranks that wait for an older call on another
 * device, does not stop the other device. */
TEST(test_two_devices)
{
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        device *d[2] = {open_scheduled(seed), open_scheduled(seed)};
        sem_t gate, *at = &gate;
        if (seed % 2)
            close_gate(device_compute_stream(d[0]), at);
        else
            sem_init(at, 0, 0);
        launch_config l = {
            .fn = run_post, .args = &at, .args_bytes = sizeof at, .waits_for = WAITS_FOR_RANKS};
        OK(stream_launch_work(device_compute_stream(d[1]), &l));
        if (seed % 2) {
            OK(stream_sync(device_compute_stream(d[0])));
        } else {
            device_host_call_begin();
            sem_wait(at);
            device_host_call_end();
        }
        device_close(d[0]);
        device_close(d[1]);
    }
}

/* While a host waits for other ranks, streams reach callbacks of a plug-in and pass them, because
 * these may make the calls that the ranks wait for. To the stream, a callback is a gate. */
TEST(test_callbacks_in_a_call)
{
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        device *d = open_scheduled(seed);
        stream *s = device_compute_stream(d);
        sem_t gate, ranks, *at = &ranks;
        struct timespec until;
        sem_init(at, 0, 0);
        close_gate(s, &gate);
        launch_config l = {
            .fn = run_post, .args = &at, .args_bytes = sizeof at, .waits_for = WAITS_FOR_HOST};
        OK(stream_launch_work(s, &l));
        device_host_call_begin();
        sem_post(&gate);
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += 60;
        assert_int_equal(sem_timedwait(at, &until), 0);
        device_host_call_end();
        device_close(d);
    }
}

/* ---- calls of several ranks ----------------------------------------------------------------- */

enum { RANKS = 3, CALLS = 60 };

/* A job whose ranks are threads, and whose calls are barriers. */
typedef struct job {
    pthread_barrier_t call[CALLS];
    uint64_t seed;
    unsigned program;
    bool one_stream; /* calls go to one stream */
} job;

typedef struct rank {
    job *j;
    int number;
    order ran;
    bool done;
    pthread_t thread;
} rank;

typedef struct meet_args {
    pthread_barrier_t *call;
    order *x; /* NULL: nothing is noted */
    int value, nap_us;
} meet_args;

static fsdp_status run_meet(void *args, int n_threads)
{
    const meet_args *a = args;
    usleep((useconds_t)a->nap_us);
    pthread_barrier_wait(a->call);
    if (a->x)
        a->x->list[a->x->elems++] = a->value;
    return FSDP_OK;
}

/* The same program on all ranks: tasks, events, calls of streams, calls and waits of the host. Each
 * rank comes to its calls at its own time. */
static void *rank_main(void *arg)
{
    rank *r = arg;
    job *j = r->j;
    unsigned draws = j->program, naps = (unsigned)r->number + (unsigned)time(NULL);
    device *d = open_scheduled((uint64_t)r->number << 32 | j->seed);
    stream *s[STREAMS];
    open_streams(d, s);
    event *e = new_event(d);
    for (int k = 0; k < CALLS; k++) {
        stream *on = s[rand_r(&draws) % STREAMS], *from = s[rand_r(&draws) % STREAMS];
        OK(order_add(&r->ran, from, 2 * k));
        OK(event_record(e, from));
        if (rand_r(&draws) % 2)
            OK(stream_wait_event(on, e));
        if (rand_r(&draws) % 8 == 0) {
            device_host_call_begin();
            pthread_barrier_wait(&j->call[k]);
            device_host_call_end();
        } else {
            meet_args a = {&j->call[k], j->one_stream ? &r->ran : NULL, 2 * k + 1,
                           (int)(rand_r(&naps) % 200)};
            OK(stream_launch_work(j->one_stream ? s[1] : on,
                                  &(launch_config){.fn = run_meet,
                                                   .args = &a,
                                                   .args_bytes = sizeof a,
                                                   .waits_for = WAITS_FOR_RANKS}));
        }
        if (rand_r(&draws) % 16 == 0)
            OK(stream_sync(from));
    }
    sync_streams(s);
    event_free(e);
    device_close(d);
    r->done = true;
    return NULL;
}

static void run_job(uint64_t seed, bool one_stream, rank *ranks)
{
    static job j;
    j = (job){.seed = seed, .program = (unsigned)seed, .one_stream = one_stream};
    for (int k = 0; k < CALLS; k++)
        pthread_barrier_init(&j.call[k], NULL, RANKS);
    for (int r = 0; r < RANKS; r++) {
        ranks[r] = (rank){.j = &j, .number = r};
        pthread_create(&ranks[r].thread, NULL, rank_main, &ranks[r]);
    }
    for (int r = 0; r < RANKS; r++) {
        pthread_join(ranks[r].thread, NULL);
        assert_true(ranks[r].done);
    }
    for (int k = 0; k < CALLS; k++)
        pthread_barrier_destroy(&j.call[k]);
}

/* Each rank has its own order, with calls on all streams. All ranks reach the end. */
TEST(test_calls_of_ranks_end)
{
    static rank ranks[RANKS];
    for (uint64_t seed = 1; seed <= SEEDS; seed++)
        run_job(seed, false, ranks);
}

/* With calls on one stream the order of a rank does not depend on when its peers come. */
TEST(test_peers_do_not_matter)
{
    static rank first[RANKS], again[RANKS];
    for (uint64_t seed = 1; seed <= SEEDS / 2; seed++) {
        run_job(seed, true, first);
        run_job(seed, true, again);
        for (int r = 0; r < RANKS; r++)
            assert_true(is_same(&first[r].ran, &again[r].ran));
    }
}

int main(void)
{
    alarm(600); /* a deadlock is a failure, not a hang */
    return tests_run(NULL, NULL);
}
