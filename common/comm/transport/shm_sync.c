/* shm_sync.c -- see shm_sync.h. The model checker includes this file with its own load, store,
 * sleep and wake (SHM_MODEL). */
#include "common/comm/transport/shm_sync.h"

#ifndef SHM_MODEL
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define WORD_LOAD(word)        atomic_load(word)
#define WORD_STORE(word, v)    atomic_store(word, v)
#define WORD_ADD(word, v)      atomic_fetch_add(word, v)
#define WORD_SLEEP(word, seen) futex_sleep(word, seen)
#define WORD_WAKE(word)        futex_wake(word)

enum {
    LONGEST_SPIN = 8192,
    SHORTEST_SPIN = 16,
    YIELD_EVERY = 64,
    SHORT_WAIT_NS = 200000,
    SLEEP_MS = 50
};

/* Sleep at most SLEEP_MS, so that this rank notices if a peer died or failed elsewhere. */
static void futex_sleep(atomic_uint *word, unsigned seen)
{
    struct timespec t = {.tv_nsec = SLEEP_MS * 1000000L};
    syscall(SYS_futex, word, FUTEX_WAIT, seen, &t, NULL, 0);
}

static void futex_wake(atomic_uint *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE, 1 << 30, NULL, NULL, 0);
}

static void core_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static bool spin(shm_word *w, unsigned want, atomic_uint *length)
{
    if (length == NULL)
        return false;
    unsigned n = atomic_load_explicit(length, memory_order_relaxed);
    for (unsigned i = 0; i < n; i++) {
        if (WORD_LOAD(&w->value) == want) {
            n = n < LONGEST_SPIN ? n * 2 : LONGEST_SPIN;
            atomic_store_explicit(length, n, memory_order_relaxed);
            return true;
        }
        if (i % YIELD_EVERY == YIELD_EVERY - 1)
            sched_yield(); /* the peer may be waiting for this core */
        else
            core_relax();
    }
    return false;
}

static uint64_t spin_clock(const atomic_uint *length)
{
    struct timespec t = {0};
    if (length != NULL)
        clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

/* The spin failed and the thread slept. If the whole wait was short, a longer spin would have been
 * better, because putting a core to sleep and waking it takes longer. */
static void spin_learn(atomic_uint *length, uint64_t began_ns)
{
    if (length == NULL)
        return;
    unsigned n = atomic_load_explicit(length, memory_order_relaxed);
    if (spin_clock(length) - began_ns < SHORT_WAIT_NS)
        n = n < LONGEST_SPIN ? n * 2 : LONGEST_SPIN;
    else
        n = n > SHORTEST_SPIN ? n / 2 : SHORTEST_SPIN;
    atomic_store_explicit(length, n, memory_order_relaxed);
}
#endif

bool shm_word_wait(shm_word *w, unsigned want, const shm_patience *p)
{
    unsigned seen = WORD_LOAD(&w->value);
    if (seen == want)
        return true;
    uint64_t began_ns = spin_clock(p->spin);
    if (spin(w, want, p->spin))
        return true;
    WORD_ADD(&w->sleepers, 1);
    while ((seen = WORD_LOAD(&w->value)) != want && !p->over(p->self))
        WORD_SLEEP(&w->value, seen);
    WORD_ADD(&w->sleepers, -1U);
    spin_learn(p->spin, began_ns);
    return seen == want;
}

void shm_word_set(shm_word *w, unsigned value)
{
    WORD_STORE(&w->value, value);
    if (WORD_LOAD(&w->sleepers) != 0)
        WORD_WAKE(&w->value);
}

void shm_turn_post(shm_entry *mine, unsigned turn)
{
    WORD_STORE(&mine->done.value, 0);
    shm_word_set(&mine->posted, turn);
}

bool shm_turn_await(shm_entry *theirs, unsigned turn, const shm_patience *p)
{
    return shm_word_wait(&theirs->posted, turn, p);
}

/* The last reader wakes the owner. */
void shm_turn_done(shm_entry *theirs, unsigned n_peers)
{
    shm_word *w = &theirs->done;
    if (WORD_ADD(&w->value, 1) + 1 == n_peers && WORD_LOAD(&w->sleepers) != 0)
        WORD_WAKE(&w->value);
}

bool shm_turn_free(shm_entry *mine, unsigned n_peers, const shm_patience *p)
{
    return shm_word_wait(&mine->done, n_peers, p);
}
