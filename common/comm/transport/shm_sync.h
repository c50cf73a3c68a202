/* shm_sync.h -- how ranks of one host meet in shared memory: only the protocol of one group.
 *
 *   shm_turn_post   this rank's entry of the turn is filled and visible
 *   shm_turn_await  a peer's entry of the turn is visible           (for every peer)
 *   (read the peers' data)
 *   shm_turn_done   a peer's entry has been read                    (for every peer)
 *   shm_turn_free   all peers have read this rank's entry: it may be filled again
 *
 * Every rank has a ring of entries. Call number n of the group uses entry n % SHM_RING of every
 * rank, after call n - SHM_RING has finished with it. So calls on several streams may be in flight
 * at once and may be reached in any order. A rank that is ahead by more than the length of the ring
 * waits. These waits form no cycle: a call can only depend on calls with smaller numbers. A turn is
 * one use of an entry (an all-reduce takes two).
 *
 * An entry has two words that ranks sleep on. `posted` is the turn whose data is in the entry; only
 * the owner writes it. `done` counts the peers that have read it; the owner zeroes it before it
 * posts. A rank that is about to sleep first increments `sleepers` and reads the word again, then
 * asks the kernel to sleep if the word is still the same. A rank that changes a word reads
 * `sleepers` afterwards. With sequentially consistent accesses one of the two sees the other, so no
 * wake-up is lost (tests/unit/test_shm_model.c tries all interleavings).
 *
 * A rank spins before it sleeps only if the host has a core for every rank. The length of the spin
 * adapts. It grows if the word changed during the spin, or if the sleep after it was so short that
 * a longer spin would have been cheaper; otherwise it shrinks. source: futex(2) */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum { SHM_RING = 16, SHM_LINE_BYTES = 64 };

/* A word that ranks may sleep on, in a cache line of its own. */
typedef struct shm_word {
    _Alignas(SHM_LINE_BYTES) atomic_uint value;
    atomic_uint sleepers;
} shm_word;

typedef struct shm_entry {
    shm_word posted; /* the turn in the entry */
    shm_word done;   /* number of peers that have read it */
} shm_entry;

/* What a waiting rank calls between two sleeps: if it returns true, the wait ends. */
typedef struct shm_patience {
    bool (*over)(void *self);
    void *self;
    atomic_uint *spin; /* length of the next spin, adapted; NULL: never spin */
} shm_patience;

/* shm_word_wait -- wait until the word is `want`; false if patience ended first. */
bool shm_word_wait(shm_word *w, unsigned want, const shm_patience *p);
/* shm_word_set -- change the word and wake the ranks that sleep on it. */
void shm_word_set(shm_word *w, unsigned value);

/* shm_turn_post ... shm_turn_free -- the four steps. An entry's data is filled in before post and
 * read between await and done. n_peers: number of ranks of the group without this one. */
void shm_turn_post(shm_entry *mine, unsigned turn);
bool shm_turn_await(shm_entry *theirs, unsigned turn, const shm_patience *p);
void shm_turn_done(shm_entry *theirs, unsigned n_peers);
bool shm_turn_free(shm_entry *mine, unsigned n_peers, const shm_patience *p);
