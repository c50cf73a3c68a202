/* shm_sync.h -- how ranks of one host meet in shared memory: the protocol of one group, and nothing
 * else.
 *
 *   shm_turn_post   this rank's entry of the turn is filled and visible
 *   shm_turn_await  a peer's entry of the turn is visible           (for every peer)
 *   (read the peers' data)
 *   shm_turn_done   a peer's entry has been read                    (for every peer)
 *   shm_turn_free   all peers have read this rank's entry: it may be filled again
 *
 * Every rank has a ring of entries; call number n of the group uses entry n % SHM_RING of every
 * rank, after call n - SHM_RING has finished with it. So calls on several streams may be in flight
 * at once and be reached in any order; who is further ahead than the ring is long waits. There is
 * no cycle in that: a call can only depend on calls with smaller numbers. A turn is one use of an
 * entry (an all-reduce takes two).
 *
 * An entry has two words that ranks sleep on. `posted` is the turn whose data is in the entry; only
 * the owner writes it. `done` counts the peers that have read it; the owner zeroes it before it
 * posts. Whoever sleeps first counts itself in, looks once more and only then asks the kernel to
 * sleep if the word is still the same; whoever changes a word looks at the count afterwards. With
 * sequentially consistent accesses one of the two sees the other, so no wake-up is lost
 * (tests/unit/test_shm_model.c tries all interleavings).
 *
 * Spinning comes before sleeping only when the host has a core for every rank. The length adapts:
 * it grows when a spin saw its word change, or when the sleep behind it was so short that a longer
 * spin would have been cheaper; else it shrinks. source: futex(2) */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum { SHM_RING = 16, SHM_LINE_BYTES = 64 };

/* A word that ranks may sleep on, on a cache line of its own. */
typedef struct shm_word {
    _Alignas(SHM_LINE_BYTES) atomic_uint value;
    atomic_uint sleepers;
} shm_word;

typedef struct shm_entry {
    shm_word posted; /* the turn */
    shm_word done;   /* peers that have read it */
} shm_entry;

/* What a waiting rank asks between two sleeps: true ends the wait. */
typedef struct shm_patience {
    bool (*over)(void *self);
    void *self;
    atomic_uint *spin; /* length of the next spin, adapted; NULL: never spin */
} shm_patience;

/* shm_word_wait -- until the word is `want`; false: patience was over first. */
bool shm_word_wait(shm_word *w, unsigned want, const shm_patience *p);
/* shm_word_set -- change the word, wake who sleeps on it. */
void shm_word_set(shm_word *w, unsigned value);

/* shm_turn_post ... shm_turn_free -- the four steps. An entry's data is filled before post and read
 * between await and done. n_peers: ranks of the group but this one. */
void shm_turn_post(shm_entry *mine, unsigned turn);
bool shm_turn_await(shm_entry *theirs, unsigned turn, const shm_patience *p);
void shm_turn_done(shm_entry *theirs, unsigned n_peers);
bool shm_turn_free(shm_entry *mine, unsigned n_peers, const shm_patience *p);
