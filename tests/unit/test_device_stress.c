/* test_device_stress.c -- seeded random programs on several streams, checked against the
 * happens-before order that device.h promises. Run it under ThreadSanitizer too (make SAN=thread).
 *
 * The test keeps vector clocks: after[s][t] is the number of tasks of stream t that, by the rules
 * of device.h, end before the next task of s starts. What the host has waited for counts for every
 * stream. Each task checks that the last of these tasks has left its mark, for every stream t. Then
 * the task leaves its own mark. Marks are in plain (non-atomic) memory, so ThreadSanitizer proves
 * the order too. */
#include "common/device/instruments/separate.h"
#include "tests/unit/device_lib.h"
#include <stdlib.h>
#include <unistd.h>

enum { STREAMS = 4, EVENTS = 5, BLOCKS = 6, OPS = 1500 };

typedef struct clocks {
    int n[STREAMS];
} clocks;

typedef struct stress_task {
    int (*marks)[OPS + 1]; /* marks[t][k] == 1 once task k of stream t is done; [STREAMS] */
    atomic_int *violations;
    clocks after;
    int stream, number, nap_us;
    uint32_t *block; /* the block that the task uses, or NULL */
    uint32_t expect, write;
} stress_task;

static fsdp_status run_stress(void *args, int n_threads)
{
    stress_task *j = args;
    if (j->nap_us > 0)
        usleep((useconds_t)j->nap_us);
    for (int t = 0; t < STREAMS; t++) {
        int k = j->after.n[t];
        if (k > 0 && j->marks[t][k - 1] != 1)
            atomic_fetch_add(j->violations, 1);
    }
    if (j->block) {
        if (j->expect != 0 && (j->block[0] != j->expect || j->block[49] != j->expect))
            atomic_fetch_add(j->violations, 1);
        j->block[0] = j->block[49] = j->write;
    }
    j->marks[j->stream][j->number] = 1;
    return FSDP_OK;
}

static void merge(clocks *to, const clocks *from)
{
    for (int t = 0; t < STREAMS; t++)
        to->n[t] = to->n[t] > from->n[t] ? to->n[t] : from->n[t];
}

typedef struct stress_block {
    uint32_t *ptr;
    uint32_t value; /* last written; 0: nothing yet */
    clocks used;    /* what must come before its next use */
} stress_block;

typedef struct stress {
    stream *s[STREAMS];
    event *e[EVENTS];
    clocks after[STREAMS], recorded[EVENTS], host;
    int issued[STREAMS];
    stress_block block[BLOCKS];
    int marks[STREAMS][OPS + 1];
    atomic_int violations;
    unsigned seed;
    uint32_t next_value;
    bool inline_compute;
} stress;

static bool covers(const clocks *a, const clocks *b)
{
    for (int t = 0; t < STREAMS; t++)
        if (a->n[t] < b->n[t])
            return false;
    return true;
}

/* Launches a task on s. The task uses b if b's last use is ordered before the task. */
static void stress_launch(stress *x, int s, stress_block *b)
{
    merge(&x->after[s], &x->host);
    stress_task j = {.marks = x->marks,
                     .violations = &x->violations,
                     .after = x->after[s],
                     .stream = s,
                     .number = x->issued[s]++};
    if (rand_r(&x->seed) % 40 == 0)
        j.nap_us = rand_r(&x->seed) % 300;
    x->after[s].n[s] = x->issued[s];
    if (b->ptr && covers(&j.after, &b->used)) {
        j.block = b->ptr;
        j.expect = b->value;
        j.write = b->value = ++x->next_value;
        b->used = (clocks){{0}};
        b->used.n[s] = x->issued[s];
    }
    OK(stream_launch(x->s[s], run_stress, &j, sizeof j));
    if (s == 0 && x->inline_compute)
        x->host.n[0] = x->issued[0];
}

/* Allocates a block for an empty slot and uses the block on its stream, so that other streams must
 * wait for that use. Or frees the block of a full slot, if s is ordered after the block's last
 * use. */
static void stress_memory(stress *x, int s, stress_block *b)
{
    merge(&x->after[s], &x->host);
    if (!b->ptr) {
        void *new_ptr = NULL;
        OK(device_alloc(x->s[s], MEM_OTHER, 200, "stress", &new_ptr));
        b->ptr = new_ptr;
        b->value = 0;
        b->used = (clocks){{0}};
        stress_launch(x, s, b);
    } else if (covers(&x->after[s], &b->used)) {
        device_free(x->s[s], b->ptr);
        b->ptr = NULL;
    }
}

static void stress_op(stress *x)
{
    int s = rand_r(&x->seed) % STREAMS, e = rand_r(&x->seed) % EVENTS;
    int op = rand_r(&x->seed) % 100;
    stress_block *b = &x->block[rand_r(&x->seed) % BLOCKS];
    if (op < 40) {
        stress_launch(x, s, b);
    } else if (op < 60) {
        stress_memory(x, s, b);
    } else if (op < 78) {
        OK(event_record(x->e[e], x->s[s]));
        merge(&x->after[s], &x->host);
        x->recorded[e] = x->after[s];
    } else if (op < 96) {
        OK(stream_wait_event(x->s[s], x->e[e]));
        merge(&x->after[s], &x->recorded[e]);
        if (s == 0 && x->inline_compute) /* blocks the host */
            merge(&x->host, &x->recorded[e]);
    } else if (op < 98) {
        OK(event_sync(x->e[e]));
        merge(&x->host, &x->recorded[e]);
    } else if (op == 98) {
        OK(stream_sync(x->s[s]));
        merge(&x->host, &x->after[s]);
    } else { /* a recorded event is freed; waits keep what it stood for */
        event_free(x->e[e]);
        OK(event_create(stream_device(x->s[0]), &x->e[e]));
        x->recorded[e] = (clocks){{0}};
    }
}

/* The test replaces the seed by the program's. */
static device_mode SCHEDULED = {.async = true, .backend = &device_cpu, .seed = 1};
static device_mode SCHEDULED_SEPARATE = {.async = true, .backend = &device_separate, .seed = 1};

TEST_EACH(test_stress,
          TEST_IN_THREE(test_stress) TEST_IN(test_stress, "test_stress (scheduled)", &SCHEDULED)
              TEST_IN(test_stress, "test_stress (scheduled, separate)", &SCHEDULED_SEPARATE))
{
    device_mode mode = *(device_mode *)*state;
    for (unsigned seed = 1; seed <= 12; seed++) {
        mode.seed = mode.seed ? seed : 0;
        device *d = open_mode(&mode, mode.seed || seed % 2 == 0);
        stress *x = calloc(1, sizeof *x);
        x->seed = seed * 7919;
        x->inline_compute = !mode.async;
        x->s[0] = device_compute_stream(d);
        for (int s = 1; s < STREAMS; s++)
            OK(stream_create(d, &(stream_config){.name = "stress"}, &x->s[s]));
        for (int e = 0; e < EVENTS; e++)
            OK(event_create(d, &x->e[e]));
        for (int i = 0; i < OPS; i++)
            stress_op(x);
        for (int s = 0; s < STREAMS; s++)
            OK(stream_sync(x->s[s]));
        for (int b = 0; b < BLOCKS; b++)
            device_free(x->s[0], x->block[b].ptr);
        OK(stream_sync(x->s[0]));
        for (int e = 0; e < EVENTS; e++)
            event_free(x->e[e]);
        if (atomic_load(&x->violations) != 0)
            fail_msg("seed %u: %d violations of the promised order", seed,
                     atomic_load(&x->violations));
        assert_int_equal(live_bytes(d), 0);
        device_close(d);
        free(x);
    }
}

int main(void)
{
    alarm(600); /* a deadlock is a failure, not a hang */
    return tests_run(NULL, NULL);
}
