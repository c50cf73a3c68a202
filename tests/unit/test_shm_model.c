/* test_shm_model.c -- the synchronisation of shm_sync.c under every schedule of a few ranks, and
 * under many random schedules of more.
 *
 *   build/tests/unit/test_shm_model [full]        full: two turns of four ranks as well
 *
 * shm_sync.c is compiled with this file's own memory accesses: at each access any other rank may go
 * on. Between two accesses a rank is a function of the values it has read, so it needs no stack:
 * its step of the protocol runs again from the start, is fed the values read so far, and stops at
 * the first access that is not in that log. A state is then plain data: the words, and each rank's
 * position, log and sleep. States can be copied, to return to them for another choice, and hashed,
 * to visit each only once.
 *
 * A sleep blocks iff the word still has the value seen, and ends only with a wake: no time limit,
 * no spurious wake. So a lost wake-up is a rank that sleeps for ever. Checked in every state:
 *   - between await and done a rank reads its peer's data of the same turn, so no entry is filled
 *     before all ranks have read it
 *   - while a rank is not at its end, some rank can go on
 *   - no state occurs twice on one schedule: every schedule ends
 * Accesses are sequentially consistent here, as they are in shm_sync.c. States are identified by a
 * 64-bit hash. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SHM_MODEL
#define WORD_LOAD(word)        access_word(OP_LOAD, word, 0)
#define WORD_STORE(word, v)    ((void)access_word(OP_STORE, word, v))
#define WORD_ADD(word, v)      access_word(OP_ADD, word, v)
#define WORD_SLEEP(word, seen) ((void)access_word(OP_SLEEP, word, seen))
#define WORD_WAKE(word)        ((void)access_word(OP_WAKE, word, 0))
#define spin(w, want, length)  ((length) != NULL && WORD_LOAD(&(w)->value) == (want))
#define spin_clock(length)     0
#define spin_learn(length, ns) (void)(ns)

typedef enum op_kind { OP_NONE, OP_LOAD, OP_STORE, OP_ADD, OP_SLEEP, OP_WAKE } op_kind;
static unsigned access_word(op_kind kind, void *word, unsigned value);

#include "common/comm/transport/shm_sync.c"
#include "tests/unit/unit_lib.h"

enum { MAX_RANKS = 8, MAX_RING = 2, MAX_LOG = 48, MAX_DEPTH = 1000 };

/* ---- the world ------------------------------------------------------------------------------ */

typedef struct setup {
    int ranks, turns, ring;
    bool frees_late; /* waits for its readers before the next fill, as for inline data */
    bool spins;      /* reads once more before it sleeps */
    int states_log2; /* places for states */
} setup;

typedef struct rank_state {
    uint16_t step; /* of the rank's program; earlier steps are done */
    uint16_t n_log;
    unsigned log[MAX_LOG]; /* results of the accesses in this step */
    op_kind kind;          /* the next access; OP_NONE: the program is at its end */
    atomic_uint *word;
    unsigned value;
    bool asleep;
} rank_state;

typedef struct world_state {
    rank_state rank[MAX_RANKS];
    atomic_uint data[MAX_RANKS][MAX_RING];
    shm_entry entry[MAX_RANKS][MAX_RING];
} world_state;

static world_state world; /* stays at one address: the ranks hold pointers into it */
static setup cfg;

/* The state of the run of one step. */
static rank_state *running;
static int n_fed;
static jmp_buf stopped;

static unsigned access_word(op_kind kind, void *word, unsigned value)
{
    if (n_fed < running->n_log)
        return running->log[n_fed++];
    running->kind = kind;
    running->word = word;
    running->value = value;
    longjmp(stopped, 1);
}

/* ---- the program of a rank ------------------------------------------------------------------- */

static char broken[160]; /* the first error */

#define BREAK(...)                                                                                 \
    do {                                                                                           \
        if (broken[0] == '\0')                                                                     \
            snprintf(broken, sizeof broken, __VA_ARGS__);                                          \
    } while (0)

static bool never(void *self)
{
    return false;
}

static unsigned data_of(int rank, int turn)
{
    return (unsigned)(1000 * turn + rank + 1);
}

static void read_data(int rank, int peer, int turn)
{
    unsigned got = WORD_LOAD(&world.data[peer][turn % cfg.ring]);
    if (got != data_of(peer, turn))
        BREAK("rank %d read %u of rank %d in turn %d, expected %u", rank, got, peer, turn,
              data_of(peer, turn));
}

/* Steps of a turn: free? fill, post, await every peer, read every peer, done every peer, free? */
static int steps_of_turn(void)
{
    return 4 + 3 * (cfg.ranks - 1);
}

static void run_step(int rank, int step)
{
    int turn = step / steps_of_turn(), i = step % steps_of_turn(), peers = cfg.ranks - 1;
    atomic_uint length = 1;
    unsigned number = (unsigned)turn + 1;
    shm_patience p = {.over = never, .spin = cfg.spins ? &length : NULL};
    shm_entry *mine = &world.entry[rank][turn % cfg.ring];
    int peer = (rank + 1 + (i - 3 + peers) % peers) % cfg.ranks;
    shm_entry *theirs = &world.entry[peer][turn % cfg.ring];
    bool there = true;
    if (i == 0)
        there = !cfg.frees_late || turn < cfg.ring || shm_turn_free(mine, (unsigned)peers, &p);
    else if (i == 1)
        WORD_STORE(&world.data[rank][turn % cfg.ring], data_of(rank, turn));
    else if (i == 2)
        shm_turn_post(mine, number);
    else if (i < 3 + peers)
        there = shm_turn_await(theirs, number, &p);
    else if (i < 3 + 2 * peers)
        read_data(rank, peer, turn);
    else if (i < 3 + 3 * peers)
        shm_turn_done(theirs, (unsigned)peers);
    else
        there = cfg.frees_late || shm_turn_free(mine, (unsigned)peers, &p);
    if (!there)
        BREAK("rank %d: a wait of turn %d ended early", rank, turn);
}

/* Run rank r up to its next access. */
static void advance(int r)
{
    running = &world.rank[r];
    if (setjmp(stopped) != 0)
        return;
    running->kind = OP_NONE;
    while (running->step < cfg.turns * steps_of_turn()) {
        n_fed = 0;
        run_step(r, running->step);
        running->step++;
        running->n_log = 0;
    }
}

static void log_result(int r, unsigned result)
{
    rank_state *me = &world.rank[r];
    if (me->n_log == MAX_LOG) {
        BREAK("rank %d goes round and round in step %d", r, me->step);
        me->kind = OP_NONE;
        return;
    }
    me->log[me->n_log++] = result;
    advance(r);
}

static void wake_all(const atomic_uint *word)
{
    for (int r = 0; r < cfg.ranks; r++) {
        if (!world.rank[r].asleep || world.rank[r].word != word)
            continue;
        world.rank[r].asleep = false;
        log_result(r, 0);
    }
}

/* Let rank r do its next access. */
static void take_step(int r)
{
    rank_state *me = &world.rank[r];
    unsigned old = atomic_load_explicit(me->word, memory_order_relaxed);
    switch (me->kind) {
    case OP_STORE:
        atomic_store_explicit(me->word, me->value, memory_order_relaxed);
        break;
    case OP_ADD:
        atomic_store_explicit(me->word, old + me->value, memory_order_relaxed);
        break;
    case OP_SLEEP:
        me->asleep = old == me->value;
        break;
    case OP_WAKE:
        wake_all(me->word);
        break;
    default:
        break;
    }
    if (!me->asleep)
        log_result(r, old);
}

static bool can_go(int r)
{
    return world.rank[r].kind != OP_NONE && !world.rank[r].asleep;
}

static void world_begin(const setup *s)
{
    cfg = *s;
    memset(&world, 0, sizeof world);
    broken[0] = '\0';
    for (int r = 0; r < cfg.ranks; r++)
        advance(r);
}

/* No rank can go on: then all must be at their end. */
static void check_end(void)
{
    for (int r = 0; r < cfg.ranks; r++)
        if (world.rank[r].kind != OP_NONE)
            BREAK("rank %d sleeps for ever in turn %d", r, world.rank[r].step / steps_of_turn());
}

/* ---- states seen ---------------------------------------------------------------------------- */

static uint64_t mix(uint64_t h, uint64_t value)
{
    h = (h ^ value) * UINT64_C(0x9e3779b97f4a7c15);
    return h ^ (h >> 29);
}

static uint64_t world_hash(void)
{
    uint64_t h = 1;
    for (int r = 0; r < cfg.ranks; r++) {
        const rank_state *me = &world.rank[r];
        h = mix(h, (uint64_t)me->step << 20 | (uint64_t)me->n_log << 4 | me->asleep);
        for (int i = 0; i < me->n_log; i++)
            h = mix(h, me->log[i]);
        for (int e = 0; e < cfg.ring; e++) {
            const shm_entry *x = &world.entry[r][e];
            h = mix(h, (uint64_t)x->posted.value << 32 | x->posted.sleepers);
            h = mix(h, (uint64_t)x->done.value << 32 | x->done.sleepers);
            h = mix(h, world.data[r][e]);
        }
    }
    return h == 0 ? 1 : h;
}

/* A hash table with open addressing; 0 marks an empty place. */
static struct {
    uint64_t *hash;
    bool *open; /* the state is on the current schedule */
    size_t places, n;
} seen;

static size_t seen_place(uint64_t h)
{
    size_t i = h & (seen.places - 1);
    while (seen.hash[i] != 0 && seen.hash[i] != h)
        i = (i + 1) & (seen.places - 1);
    return i;
}

static void seen_make(size_t places)
{
    seen.places = places;
    seen.hash = calloc(places, sizeof *seen.hash);
    seen.open = calloc(places, sizeof *seen.open);
    if (seen.hash == NULL || seen.open == NULL)
        abort();
}

/* Add the state; false if it is known. */
static bool seen_enter(uint64_t h)
{
    const size_t i = seen_place(h);
    if (2 * seen.n >= seen.places)
        BREAK("%zu states fill the table", seen.n);
    if (seen.hash[i] == h) {
        if (seen.open[i])
            BREAK("a schedule comes back to a state: it need not end");
        return false;
    }
    seen.hash[i] = h;
    seen.open[i] = true;
    seen.n++;
    return true;
}

static void seen_free(void)
{
    free(seen.hash);
    free(seen.open);
    memset(&seen, 0, sizeof seen);
}

/* ---- every schedule ------------------------------------------------------------------------- */

static int schedule[MAX_DEPTH]; /* the ranks whose accesses led here */
static int n_scheduled, deepest;
static size_t n_steps;

/* Checks the state just reached. If it is new, follows every schedule from here. */
static void visit(int depth)
{
    const uint64_t h = world_hash();
    bool stuck = true;
    for (int r = 0; r < cfg.ranks; r++)
        stuck = stuck && !can_go(r);
    if (stuck)
        check_end();
    if (!seen_enter(h) || broken[0] != '\0')
        return;
    if (depth == MAX_DEPTH) {
        BREAK("a schedule of more than %d accesses", MAX_DEPTH);
        return;
    }
    world_state here;
    memcpy(&here, &world, sizeof here);
    deepest = depth + 1 > deepest ? depth + 1 : deepest;
    for (int r = 0; r < cfg.ranks; r++) {
        if (!can_go(r))
            continue;
        schedule[depth] = r;
        n_scheduled = depth + 1;
        n_steps++;
        take_step(r);
        if (broken[0] == '\0')
            visit(depth + 1);
        if (broken[0] != '\0')
            return;
        memcpy(&world, &here, sizeof here);
    }
    seen.open[seen_place(h)] = false;
}

static void print_setup(const setup *s)
{
    print_message("%d ranks, %d turns, ring of %d, %s%s: ", s->ranks, s->turns, s->ring,
                  s->frees_late ? "late" : "early", s->spins ? ", spinning" : "");
}

static void explore(const setup *s)
{
    deepest = 0;
    n_scheduled = 0;
    n_steps = 0;
    seen_make((size_t)1 << s->states_log2);
    world_begin(s);
    visit(0);
    print_setup(s);
    print_message("%zu states, %zu accesses, all schedules (up to %d accesses each)\n", seen.n,
                  n_steps, deepest);
    seen_free();
    for (int i = 0; i < n_scheduled && broken[0] != '\0'; i++)
        print_message("access %d: rank %d\n", i, schedule[i]);
    if (broken[0] != '\0')
        fail_msg("%s", broken);
}

/* Two and three ranks. An entry is freed early, late, or late in a ring of two, with and without
 * spinning. (A rank that frees early uses one entry of the ring at a time.) */
TEST(test_all_schedules)
{
    for (int i = 0; i < 12; i++)
        explore(&(setup){.ranks = 2 + i / 6,
                         .turns = 3,
                         .ring = i % 3 == 2 ? 2 : 1,
                         .states_log2 = 20,
                         .frees_late = i % 3 > 0,
                         .spins = i % 6 >= 3});
}

static int turns_of_4 = 1; /* 2: the argument is "full" */

TEST(test_all_schedules_4)
{
    explore(&(setup){.ranks = 4,
                     .turns = turns_of_4,
                     .ring = 1,
                     .frees_late = true,
                     .states_log2 = turns_of_4 == 1 ? 22 : 26});
}

/* ---- random schedules ------------------------------------------------------------------------ */

static uint64_t draw(uint64_t *seed)
{
    *seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *seed >> 33;
}

/* Follow one schedule: usually the last rank goes on, for runs of random length. */
static size_t follow_drawn(uint64_t seed)
{
    size_t steps = 0;
    int r = 0, run = 0;
    while (broken[0] == '\0') {
        int first = (int)(draw(&seed) % (unsigned)cfg.ranks), tried = 0;
        if (run-- <= 0 || !can_go(r)) {
            run = (int)(draw(&seed) % 6);
            for (r = first; tried < cfg.ranks && !can_go(r); tried++)
                r = (r + 1) % cfg.ranks;
        }
        if (tried == cfg.ranks)
            break;
        take_step(r);
        steps++;
    }
    check_end();
    return steps;
}

TEST(test_drawn_schedules)
{
    enum { SCHEDULES = 500 };
    for (int i = 0; i < 12; i++) {
        static const int RANKS[] = {3, 4, 8};
        setup s = {.ranks = RANKS[i % 3],
                   .turns = 5,
                   .ring = 1 + i / 3 % 2,
                   .frees_late = i / 6 % 2,
                   .spins = i % 2};
        size_t steps = 0;
        for (uint64_t seed = 1; seed <= SCHEDULES; seed++) {
            world_begin(&s);
            steps += follow_drawn(seed);
            if (broken[0] != '\0')
                fail_msg("%d ranks, ring of %d, seed %d: %s", s.ranks, s.ring, (int)seed, broken);
        }
        print_setup(&s);
        print_message("%d drawn schedules, %zu accesses\n", SCHEDULES, steps);
    }
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "full") == 0)
        turns_of_4 = 2;
    return tests_run(NULL, NULL);
}
