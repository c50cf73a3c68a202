/* limiter_lib.c -- task 5.4: how many units are gathered at a time, and when the host waits. */
#include "tests/grade/limiter_lib.h"
#include <stdlib.h>
#include <unistd.h>
#include "tests/grade/prefetch_lib.h"
#include "tests/grade/six_lib.h"

enum { MAX_N = 3 };

/* ---- the books ------------------------------------------------------------------------------- */

static fsdp_status acquire(fixture *fx, limiter *l, bool ahead, bool want)
{
    bool granted = !want;
    const int held = l->n_held;
    TRY(limiter_acquire(l, ahead, &granted));
    note(fx, EXPECT(granted == want, "",
                    "limiter_acquire, limit %d, %d held: a unit %s was %s, expected %s", l->limit,
                    held, ahead ? "ahead" : "that compute needs", granted ? "granted" : "refused",
                    want ? "granted" : "refused"));
    note(fx, expect_int("n_held after limiter_acquire", l->n_held, held + want));
    if (ahead && want && l->n_held + l->n_freed > l->limit + 1)
        note(fx,
             expect_int(WHAT("limit %d: n_held + n_freed when a unit ahead is granted", l->limit),
                        l->n_held + l->n_freed, l->limit + 1));
    return EXPECT(l->first_freed >= 0 && l->first_freed < l->capacity,
                  "after its end the ring continues at 0: % l->capacity",
                  "limiter_acquire: first_freed is %d, expected 0 to %d, the places of the ring",
                  l->first_freed, l->capacity - 1);
}

static const event *recorded; /* last */

static uint64_t see_record(void *self, const device_act *act)
{
    if (act->kind == ACT_RECORD)
        recorded = act->event;
    return 0;
}

static fsdp_status release(fixture *fx, limiter *l)
{
    const int held = l->n_held, want = (l->first_freed + l->n_freed) % l->capacity;
    int at = 0;
    recorded = NULL;
    TRY(limiter_release(l, fx->compute));
    note(fx, expect_int("n_held after limiter_release", l->n_held, held - 1));
    while (at < 2 * l->capacity && l->freed[at] != recorded)
        at++;
    return EXPECT(at == want, "the next free place, % l->capacity",
                  "limiter_release: recorded %s%d%s, expected freed[%d] of %d places",
                  recorded ? "freed[" : "", recorded ? at : 0, recorded ? "]" : " events", want,
                  l->capacity);
}

/* Spare places follow the ring of this part, so that an index outside the ring shows. */
static prefetch_part ring_user;

static fsdp_status guarded_part(fixture *fx, prefetch *p)
{
    limiter *l = &p->limiter;
    const int end = 2 * l->capacity;
    l->freed = realloc(l->freed, (size_t)end * sizeof(event *));
    FSDP_ASSERT(l->freed != NULL);
    for (int i = l->capacity; i < end; i++)
        TRY(event_create(fx->dev, &l->freed[i]));
    device_set_second_watch(fx->dev, &(device_watch){.issued = see_record});
    const fsdp_status status = ring_user(fx, p);
    fix_waits_watch(fx);
    for (int i = l->capacity; i < end && (status == FSDP_OK || status == FSDP_ETODO); i++)
        event_free(l->freed[i]);
    return status;
}

static fsdp_status counts_part(fixture *fx, prefetch *p)
{
    limiter *l = &p->limiter;
    for (int i = 0; i <= l->limit; i++)
        TRY(acquire(fx, l, i % 2, true));
    TRY(acquire(fx, l, true, false)); /* all are held: nothing to wait for */
    TRY(acquire(fx, l, false, true)); /* compute needs this unit to go on */
    TRY(acquire(fx, l, true, false));
    for (int i = 0; i < l->limit + 2; i++)
        TRY(release(fx, l));
    return acquire(fx, l, true, true);
}

/* ---- when the host waits --------------------------------------------------------------------- */

/* One unit was freed after a closed gate. There is room for `limit` more: nobody may wait. */
static fsdp_status room_part(fixture *fx, prefetch *p)
{
    limiter *l = &p->limiter;
    TRY(acquire(fx, l, false, true));
    TRY(gate_close(fx->g, fx->compute));
    TRY(release(fx, l));
    for (int i = 0; i < l->limit; i++)
        TRY(acquire(fx, l, true, true));
    note(fx, gate_open(fx->g, "limiter_acquire, while there is room"));
    return FSDP_OK;
}

/* Two units were freed. Compute has reached the first free but not the second. The host must wait
 * for the first only. */
static fsdp_status oldest_part(fixture *fx, prefetch *p)
{
    limiter *l = &p->limiter;
    TRY(acquire(fx, l, false, true));
    TRY(acquire(fx, l, true, true));
    TRY(release(fx, l));
    TRY(gate_close(fx->g, fx->compute));
    TRY(release(fx, l));
    for (int i = 0; i < l->limit; i++)
        TRY(acquire(fx, l, true, true));
    note(fx, gate_open(fx->g, "limiter_acquire, which needs the oldest free only"));
    return acquire(fx, l, true, true);
}

static fsdp_status slow(void *args, int n_threads)
{
    usleep(500);
    atomic_fetch_add(*(atomic_int **)args, 1);
    return FSDP_OK;
}

/* Rounds of gather, compute and free, until the ring has wrapped around many times. When number k
 * is granted, compute has freed k - limit units. */
static fsdp_status ring_part(fixture *fx, prefetch *p)
{
    enum { ROUNDS = 40 };
    limiter *l = &p->limiter;
    atomic_int n_done = 0, *const done = &n_done;
    int k = 0;
    for (int round = 0; round < ROUNDS; round++) {
        int at_a_time = 1 + round % (l->limit + 1);
        for (int i = 0; i < at_a_time; i++, k++) {
            TRY(acquire(fx, l, i > 0, true));
            const int n = atomic_load(&n_done);
            note(fx,
                 EXPECT(n >= k - l->limit, "event_sync of the oldest free comes first",
                        "limit %d: unit number %d was granted when compute had freed %d, expected "
                        "%d or more",
                        l->limit, k, n, k - l->limit));
        }
        for (int i = 0; i < at_a_time; i++) {
            TRY(grade_launch_idle(fx->compute, slow, &done, sizeof done, NULL));
            TRY(release(fx, l));
        }
    }
    return stream_sync(fx->compute);
}

static fsdp_status limiter_body(fixture *fx)
{
    static const prefetch_part parts[] = {counts_part, room_part, oldest_part, ring_part};
    for (int n = 1; n <= MAX_N; n++)
        for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
            ring_user = parts[i];
            TRY(with_prefetch(fx, PREFETCH_BACKWARD, n, guarded_part));
        }
    return FSDP_OK;
}

/* ---- bytes of a whole model ------------------------------------------------------------------ */

/* A host that runs ahead gathers as much as the limiter allows. The root is not counted. The next
 * micro-step's root may be gathered before the last one's is freed. */
static fsdp_status bytes_body(six *s)
{
    const size_t blocks = (size_t)s->config->limit + 1;
    const size_t least = s->root_bytes + blocks * s->block_bytes, most = least + s->root_bytes;
    for (int k = 0; k < 4; k++) {
        const bool evaluates = k % 2 == 1;
        TRY(stream_sync(s->f.compute));
        ledger_reset_peaks(device_ledger(s->dev));
        TRY(evaluates ? six_evaluation(s) : six_step(s));
        TRY(stream_sync(s->f.compute));
        size_t peak = ledger_read(device_ledger(s->dev)).peak_bytes[MEM_PARAMS_FULL];
        TRY(EXPECT(
            peak >= least && peak <= most, "",
            "%s, limit %d, compute is slow: got %.2f blocks gathered beside the root, expected "
            "%zu",
            evaluates ? "an evaluation" : "a step", s->config->limit,
            ((double)peak - (double)s->root_bytes) / (double)s->block_bytes, blocks));
    }
    return FSDP_OK;
}

fsdp_status task_5_4(grade *g)
{
    static const prefetch_mode modes[] = {PREFETCH_BACKWARD, PREFETCH_BOTH};
    TRY(fixture_run(g, AHEAD_SPEC(), limiter_body));
    for (int n = 1; n <= MAX_N; n++)
        for (int i = 0; i < 2; i++)
            TRY(six_run(g, &(six_config){.mode = modes[i], .limit = n, .slow_compute = true},
                        bytes_body));
    return FSDP_OK;
}
