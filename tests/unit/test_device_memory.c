/* test_device_memory.c -- device_alloc and device_free on the CPU: alignment, the ledger's figures,
 * recycling and its bounds, where large blocks begin, stream order, early reuse by the same stream,
 * memory shared with other processes, debug fill, threads. */
#include "common/base/page.h"
#include "tests/unit/device_lib.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#if UNDER_ASAN
/* A request beyond all memory must return NULL, as it does without the sanitizer. */
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "allocator_may_return_null=1";
}
#endif

/* Runs in its own process, because a process opens the file only once. Returns 0 for success. */
static int use_under_a_file_limit(void *unused)
{
    struct rlimit tight;
    device *d = NULL;
    device_share share;
    void *ptr = NULL;
    getrlimit(RLIMIT_FSIZE, &tight);
    tight.rlim_cur = 1 << 20;
    if (setrlimit(RLIMIT_FSIZE, &tight) != 0 ||
        device_open(&(device_config){.backend = &device_cpu, .n_threads = 1}, &d) != FSDP_OK)
        return 1;
    stream *s = device_compute_stream(d);
    if (device_share_fd(d) != -1)
        return 2;
    if (device_alloc_host(s, MEM_COMM, 3 << 20, "private after all", &ptr) != FSDP_OK)
        return 3;
    memset(ptr, 1, 3 << 20);
    bool found = device_share_find(d, ptr, 1, &share);
    device_free(s, ptr);
    device_close(d);
    return found ? 4 : 0;
}

/* Growing the file beyond a limit on file sizes would end the process. This test comes first,
 * before anything opens the file. */
TEST(test_no_shared_memory_under_a_file_limit)
{
    assert_int_equal(run_child(use_under_a_file_limit, NULL)->status, 0);
}

/* Skips the test under AddressSanitizer, where no block is used again. */
static device *open_recycling(bool async, bool debug_fill)
{
    if (UNDER_ASAN)
        skip();
    return open_cpu(async, debug_fill);
}

/* ---- memory --------------------------------------------------------------------------------- */
ON_THIS(test_alloc_fails_with_words, open_cpu(false, false))
{
    void *ptr = (void *)1, *kept = new_block(s, 12345, "kept");
    size_t huge = SIZE_MAX / 4;
    assert_int_equal(device_alloc(s, MEM_ACTIVATIONS, huge, "logits", &ptr), FSDP_ENOMEM);
    assert_null(ptr);
    char number[32];
    snprintf(number, sizeof number, "%zu bytes", huge);
    const char *what = fsdp_error_get()->what;
    assert_non_null(strstr(what, number));
    assert_non_null(strstr(what, "'logits'"));
    assert_non_null(strstr(what, "activations"));
    assert_non_null(strstr(what, "12345 bytes"));
    assert_int_equal(device_alloc(s, MEM_OTHER, SIZE_MAX - 5, "most", &ptr), FSDP_ENOMEM);
    float *elems = NULL;
    assert_int_equal(device_alloc_f32(s, MEM_OTHER, SIZE_MAX / 4 + 1, "wraps", &elems),
                     FSDP_EINVAL);
    OK(stream_sync(s)); /* a failed alloc is the caller's error, not the stream's */
    OK(device_alloc_f32(s, MEM_OTHER, 10, "ten", &elems));
    assert_int_equal(live_bytes(d), 12345 + 40);
    device_free(s, elems);
    device_free(s, kept);
}

ON_THIS(test_recycling, open_recycling(false, false))
{
    const size_t bytes = 3 << 20;
    void *a = new_block(s, bytes, "a"), *b = new_block(s, bytes, "b");
    device_free(s, a);
    void *c = new_block(s, bytes + 2 * PAGE_BYTES, "other size");
    assert_ptr_not_equal(a, c);
    device_free(s, c);
    c = new_block(s, bytes, "again");
    assert_ptr_equal(a, c);
    device_free(s, b);
    device_free(s, c);
    void *last = new_block(s, bytes, "latest first");
    assert_ptr_equal(last, c);
    device_free(s, last);
    cpu_pool_trim(pool_of(d), 0);
    assert_int_equal(cpu_pool_cached_bytes(pool_of(d)), 0);
}

/* The cache never exceeds the most bytes that were live at once. Here one block is live at a time,
 * each of a new size, so at most the largest footprint may be cached. */
ON_THIS(test_cache_is_bounded, open_recycling(false, false))
{
    size_t most_cached = 0, seed = 12345;
    for (int i = 0; i < 300; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        void *ptr = new_block(s, (seed >> 33) % 100000, "one");
        device_free(s, ptr);
        size_t cached = cpu_pool_cached_bytes(pool_of(d));
        assert_true(cached <= pool_of(d)->live_peak_bytes);
        most_cached = cached > most_cached ? cached : most_cached;
    }
    /* 128 header + 8 tail + 63 of rounding beside the payload */
    size_t peak = ledger_read(device_ledger(d)).peak_total_bytes;
    assert_true(pool_of(d)->live_peak_bytes <= peak + 128 + 8 + 63);
    assert_true(most_cached > peak / 2); /* the cache is used, not just empty */
}

/* ---- large blocks --------------------------------------------------------------------------- */
enum { SPAN = 4096, LINE = 64, LINES = SPAN / LINE }; /* whatever the system's page */
typedef fsdp_status (*alloc_fn)(stream *s, mem_category category, size_t bytes, const char *label,
                                void **out);

/* Each block begins at a cache line. No two of the 64 blocks begin at the same line of a span. Of
 * any four in a row, no two begin less than 3 lines apart, forwards or backwards. */
static void check_places(unsigned char *const *ptr)
{
    for (int i = 0; i < LINES; i++) {
        assert_int_equal((uintptr_t)ptr[i] % LINE, 0);
        for (int k = 0; k < i; k++) {
            size_t apart = ((uintptr_t)ptr[i] - (uintptr_t)ptr[k]) % SPAN / LINE;
            if (apart == 0)
                fail_msg("blocks %d and %d begin at the same place of a span", k, i);
            if (i - k < 4)
                assert_uint_in_range(apart, 3, LINES - 3);
        }
    }
}

/* Allocates as many blocks as there are places. The first and the last byte of each block are its
 * own. */
static void alloc_large(stream *s, alloc_fn alloc, size_t bytes, unsigned char **ptr)
{
    for (int i = 0; i < LINES; i++) {
        void *new_ptr = NULL;
        OK(alloc(s, MEM_OTHER, bytes, "large", &new_ptr));
        ptr[i] = new_ptr;
        ptr[i][0] = ptr[i][bytes - 1] = (unsigned char)i;
    }
    for (int i = 0; i < LINES; i++)
        assert_true(ptr[i][0] == i && ptr[i][bytes - 1] == i);
}

static void free_large(stream *s, unsigned char *const *ptr)
{
    for (int i = 0; i < LINES; i++)
        device_free(s, ptr[i]);
}

/* again_bytes: size of the blocks allocated next, in the memory of the first ones if it is
 * recycled. */
static void check_large_blocks(alloc_fn alloc, size_t bytes, size_t again_bytes)
{
    device *d = open_cpu(false, false);
    stream *s = device_compute_stream(d);
    unsigned char *ptr[LINES];
    alloc_large(s, alloc, bytes, ptr);
    check_places(ptr);
    free_large(s, ptr);
    alloc_large(s, alloc, again_bytes, ptr);
    check_places(ptr);
    free_large(s, ptr); /* also checks the bytes after the last one */
    cpu_pool_trim(pool_of(d), 0);
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    unsigned char in_core;
    for (int i = 0; i < LINES; i++) { /* unmapped from the first page on */
        assert_int_equal(mincore(ptr[i] - (uintptr_t)ptr[i] % page, page, &in_core), -1);
        assert_int_equal(errno, ENOMEM);
    }
    device_close(d);
}

/* With this many bytes, header, tail and the largest shift fill whole pages. */
static const size_t FULL_BYTES = (2 << 20) + PAGE_BYTES - (128 + 8 + SPAN - LINE);

TEST(test_large_blocks_differ_in_place)
{
    if (UNDER_ASAN)
        skip(); /* there malloc chooses the place */
    check_large_blocks(device_alloc, FULL_BYTES, FULL_BYTES);
    check_large_blocks(device_alloc, FULL_BYTES + 100, FULL_BYTES + 1); /* the same footprint */
}

TEST(test_large_shared_blocks_differ_in_place)
{
    check_large_blocks(device_alloc_host, FULL_BYTES, FULL_BYTES);
    check_large_blocks(device_alloc_host, FULL_BYTES + 1, FULL_BYTES + 100);
}

/* ---- stream-ordered free and early reuse ---------------------------------------------------- */
ON_THIS(test_free_is_stream_ordered, open_cpu(false, false))
{
    stream *other = new_stream(d, "other");
    s = new_stream(d, "s");
    int *a = new_block(s, 4000, "a"), *b, seen = 0;
    void *c = NULL;
    sem_t gate;
    close_gate(s, &gate);
    OK(device_upload(s, a, &(int){42}, sizeof(int)));
    OK(device_download(s, &seen, a, sizeof(int)));
    device_free(s, a);
    assert_int_equal(live_bytes(d), 4000); /* the stream has not reached the free */
    b = new_block(other, 4000, "b");
    assert_ptr_not_equal(a, b); /* another stream must not get it yet */
    b[0] = 7;
    /* 4000 + 136 and 4010 + 136 round up to the same footprint, but the tail would move */
    void *near = new_block(s, 4010, "near");
    assert_ptr_not_equal(a, near);
    OK(device_alloc(s, MEM_COMM, 4000, "c", &c));
    if (!UNDER_ASAN) {
        assert_ptr_equal(a, c); /* the same stream may */
        assert_int_equal(live_bytes(d), 8000 + 4010);
        assert_int_equal(ledger_read(device_ledger(d)).live_bytes[MEM_COMM], 4000);
    }
    OK(device_upload(s, c, &(int){43}, sizeof(int)));
    sem_post(&gate);
    OK(stream_sync(s));
    assert_int_equal(seen, 42); /* the older use came first */
    assert_int_equal(*(int *)c, 43);
    assert_int_equal(b[0], 7);
    assert_int_equal(live_bytes(d), 8000 + 4010); /* the queued free left the new owner alone */
    device_free(device_compute_stream(d), near);
    device_free(s, c);
    device_free(other, b);
    OK(stream_sync(s));
    OK(stream_sync(other));
    assert_int_equal(live_bytes(d), 0);
}

/* A stream gets the block that it freed itself before a block that another stream has freed since:
 * with the other's block it would hold two. */
ON_THIS(test_own_block_first, open_recycling(false, false))
{
    sem_t gate;
    s = new_stream(d, "s");
    void *a = new_block(s, 4000, "a"), *b = new_block(device_compute_stream(d), 4000, "b");
    close_gate(s, &gate);
    device_free(s, a);
    device_free(device_compute_stream(d), b);
    void *c = new_block(s, 4000, "c");
    assert_ptr_equal(c, a);
    assert_int_equal(live_bytes(d), 4000);
    sem_post(&gate);
    device_free(s, c);
    OK(stream_sync(s));
}

/* A host that runs ahead needs one block, not a hundred; with debug_fill the block holds NaN at the
 * start of each life, in stream order. */
ON_THIS(test_run_ahead_needs_one_block, open_recycling(true, true))
{
    sem_t gate;
    close_gate(s, &gate);
    unsigned first[100], last[100];
    for (int i = 0; i < 100; i++) {
        unsigned *ptr = new_block(s, 50000, "temporary");
        OK(device_download(s, &first[i], ptr, sizeof *ptr));
        OK(device_zero(s, ptr, 50000));
        OK(device_download(s, &last[i], ptr, sizeof *ptr));
        device_free(s, ptr);
    }
    assert_int_equal(live_bytes(d), 50000);
    sem_post(&gate);
    OK(stream_sync(s));
    for (int i = 0; i < 100; i++) {
        assert_int_equal(first[i], 0xFFFFFFFFu);
        assert_int_equal(last[i], 0);
    }
    ledger_figures f = ledger_read(device_ledger(d));
    assert_int_equal(f.peak_total_bytes, 50000);
    assert_int_equal(f.live_blocks, 0);
}

/* A block is freed on one stream while an older free, of its earlier life, still waits on another.
 * Whichever free runs last retires the block. */
ON_THIS(test_two_frees_in_flight, open_recycling(false, false))
{
    stream *a = new_stream(d, "a"), *b = new_stream(d, "b");
    void *first = new_block(a, 640, "first");
    sem_t gate;
    close_gate(a, &gate);
    device_free(a, first);
    void *second = new_block(a, 640, "second");
    assert_ptr_equal(first, second);
    device_free(b, second); /* the event that this needs is missing: the pool must survive */
    OK(stream_sync(b));
    assert_int_equal(live_bytes(d), 640); /* stream a may still use it */
    void *third = new_block(s, 640, "third");
    assert_ptr_not_equal(first, third);
    sem_post(&gate);
    OK(stream_sync(a));
    assert_int_equal(live_bytes(d), 640);
    device_free(s, third);
    assert_int_equal(live_bytes(d), 0);
}

/* ---- shared memory -------------------------------------------------------------------------- */

typedef struct piece {
    int fd;
    device_share share;
    size_t bytes;
    unsigned char byte;
} piece;

/* Runs in another process: maps the piece from the parent's file, and compares the bytes. Returns 0
 * if they are the same. */
static int peer_compare(void *arg)
{
    const piece *p = arg;
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)getppid(), p->fd);
    int own_fd = open(path, O_RDWR | O_CLOEXEC);
    if (own_fd < 0)
        return 2;
    char *at = mmap(NULL, p->share.bytes, PROT_READ, MAP_SHARED, own_fd, (off_t)p->share.offset);
    if (at == MAP_FAILED)
        return 3;
    return all_bytes(at + p->share.inner, p->bytes, p->byte) ? 0 : 1;
}

static int peer_sees(device *d, const void *ptr, size_t bytes, unsigned char byte)
{
    piece p = {.fd = device_share_fd(d), .bytes = bytes, .byte = byte};
    assert_true(device_share_find(d, ptr, bytes, &p.share));
    return run_child(peer_compare, &p)->status;
}

ON_EACH(TEST_BOTH, test_shared_is_seen_by_peers, true)
{
    static const size_t SIZES[] = {1, 100, 65400, 65401, 100001, (2 << 20) + 5, 3 << 20};
    enum { N = sizeof SIZES / sizeof *SIZES };
    unsigned char *ptr[N];
    device_share share;
    assert_true(device_share_fd(d) >= 0);
    for (int i = 0; i < N; i++) {
        ptr[i] = new_host_block(s, SIZES[i], "shared");
        OK(stream_sync(s));
        assert_int_equal((uintptr_t)ptr[i] % 64, 0);
        memset(ptr[i], i + 1, SIZES[i]);
    }
    for (int i = 0; i < N; i++) {
        assert_int_equal(peer_sees(d, ptr[i], SIZES[i], (unsigned char)(i + 1)), 0);
        size_t from = SIZES[i] / 2; /* a piece of a block */
        assert_int_equal(peer_sees(d, ptr[i] + from, SIZES[i] - from, (unsigned char)(i + 1)), 0);
        assert_false(device_share_find(d, ptr[i], SIZES[i] + 2 * PAGE_BYTES, &share));
    }
    assert_int_equal(peer_sees(d, ptr[0], 1, 77) != 0, 1); /* a peer sees a difference */
    for (int i = 0; i < N; i++) {
        device_free(s, ptr[i]);
        OK(stream_sync(s));
        assert_false(device_share_find(d, ptr[i], 1, &share));
    }
    assert_int_equal(live_bytes(d), 0);
}

/* The blocks of the file that occupy memory. */
static size_t shared_blocks(device *d)
{
    struct stat st;
    assert_int_equal(fstat(device_share_fd(d), &st), 0);
    return (size_t)st.st_blocks;
}

ON_THIS(test_shared_memory_is_given_back, open_cpu(false, false))
{
    enum { BYTES = 16 << 20, ONE_HUGE_PAGE = (2 << 20) / 512 };
    for (int i = 0; i < 5; i++) {
        void *kept = new_host_block(s, 5000, "kept"), *ptr = new_host_block(s, BYTES, "large");
        memset(kept, 1, 5000);
        memset(ptr, 1, BYTES);
        assert_true(shared_blocks(d) >= BYTES / 512);
        device_free(s, ptr);
        cpu_pool_trim(pool_of(d), 0);
        assert_true(shared_blocks(d) <= ONE_HUGE_PAGE);
        assert_true(all_bytes(kept, 5000, 1)); /* the hole is in the right place */
        device_free(s, kept);
        cpu_pool_trim(pool_of(d), 0);
        assert_true(shared_blocks(d) <= ONE_HUGE_PAGE);
    }
}

/* 65400 bytes have a footprint of 65536 either way. */
ON_THIS(test_shared_and_private_are_not_mixed, open_cpu(false, false))
{
    device_share share;
    for (int i = 0; i < 2; i++) {
        void *ptr[2] = {new_block(s, 65400, "private"), new_host_block(s, 65400, "shared")};
        assert_false(device_share_find(d, ptr[0], 65400, &share));
        assert_true(device_share_find(d, ptr[1], 65400, &share));
        device_free(s, ptr[i]);
        device_free(s, ptr[1 - i]);
        void *again[2] = {new_block(s, 65400, "private"), new_host_block(s, 65400, "shared")};
        assert_true(device_share_find(d, again[1], 65400, &share));
        assert_false(device_share_find(d, again[0], 65400, &share));
        if (!UNDER_ASAN) {
            assert_ptr_equal(again[0], ptr[0]);
            assert_ptr_equal(again[1], ptr[1]);
        }
        device_free(s, again[0]);
        device_free(s, again[1]);
    }
}

/* A stream reuses a shared block even if its free still waits on a worker's queue. */
ON_THIS(test_shared_early_reuse, open_recycling(true, false))
{
    device_share share;
    void *private_ptr = new_block(s, 65400, "private"),
         *shared_ptr = new_host_block(s, 65400, "shared");
    sem_t gate;
    close_gate(s, &gate);
    device_free(s, shared_ptr);
    device_free(s, private_ptr);
    void *ptr = new_host_block(s, 65400, "again");
    assert_ptr_equal(ptr, shared_ptr);
    assert_true(device_share_find(d, ptr, 65400, &share));
    sem_post(&gate);
    OK(stream_sync(s));
    assert_true(device_share_find(d, ptr, 65400, &share));
    device_free(s, ptr);
}

/* ---- debug fill ----------------------------------------------------------------------------- */
TEST_BOTH(test_debug_fill)
{
    bool async = *(bool *)*state;
    device *d = open_cpu(async, true);
    stream *s = device_compute_stream(d);
    unsigned char *ptr = new_block(s, 1001, "filled");
    OK(stream_sync(s));
    assert_true(all_bytes(ptr, 1001, 0xFF));
    OK(device_zero(s, ptr, 1001));
    OK(device_poison(s, ptr, 500));
    OK(stream_sync(s));
    assert_true(all_bytes(ptr, 500, 0xFF));
    assert_true(all_bytes(ptr + 500, 501, 0));
    device_free(s, ptr);
    OK(stream_sync(s));
    if (!UNDER_ASAN) /* the block is cached, so its bytes can be read */
        assert_true(all_bytes(ptr, 1001, 0xFF));
    device_close(d);

    d = open_cpu(async, false); /* off: poison does nothing */
    s = device_compute_stream(d);
    ptr = new_block(s, 100, "plain");
    OK(device_zero(s, ptr, 100));
    OK(device_poison(s, ptr, 100));
    OK(stream_sync(s));
    assert_true(all_bytes(ptr, 100, 0));
    device_free(s, ptr);
    device_close(d);
}

/* Fresh memory is filled when the stream reaches the allocation. A host that writes too early finds
 * NaN. */
ON_THIS(test_fill_is_stream_ordered, open_cpu(true, true))
{
    sem_t gate;
    close_gate(s, &gate);
    unsigned char *ptr = new_block(s, 100, "filled");
    memset(ptr, 1, 100);
    sem_post(&gate);
    OK(stream_sync(s));
    assert_true(all_bytes(ptr, 100, 0xFF));
    device_free(s, ptr);
}

/* ---- threads -------------------------------------------------------------------------------- */
typedef struct alloc_thread {
    device *d;
    unsigned seed;
    int wrong;
} alloc_thread;

/* Holds eight blocks at a time. Each is filled with a pattern that must still be there when the
 * block is freed. */
static void *run_alloc_thread(void *arg)
{
    alloc_thread *t = arg;
    stream *s = device_compute_stream(t->d);
    struct {
        unsigned char *ptr;
        size_t bytes;
        unsigned char byte;
    } slot[8] = {0};
    for (int i = 0; i < 4000; i++) {
        int k = rand_r(&t->seed) % 8;
        if (slot[k].ptr) {
            if (!all_bytes(slot[k].ptr, slot[k].bytes, slot[k].byte))
                t->wrong++;
            device_free(s, slot[k].ptr);
        }
        slot[k].bytes = 100 * (size_t)(1 + rand_r(&t->seed) % 5);
        slot[k].byte = (unsigned char)rand_r(&t->seed);
        void *new_ptr = NULL;
        if (device_alloc(s, MEM_OTHER, slot[k].bytes, "slot", &new_ptr) != FSDP_OK)
            t->wrong++;
        slot[k].ptr = new_ptr;
        if (new_ptr != NULL)
            memset(slot[k].ptr, slot[k].byte, slot[k].bytes);
    }
    for (int k = 0; k < 8; k++)
        device_free(s, slot[k].ptr);
    return NULL;
}

ON_THIS(test_alloc_from_threads, open_cpu(false, false))
{
    alloc_thread arg[3];
    pthread_t thread[3];
    for (int i = 0; i < 3; i++) {
        arg[i] = (alloc_thread){d, (unsigned)i + 1, 0};
        assert_int_equal(pthread_create(&thread[i], NULL, run_alloc_thread, &arg[i]), 0);
    }
    for (int i = 0; i < 3; i++) {
        pthread_join(thread[i], NULL);
        assert_int_equal(arg[i].wrong, 0);
    }
    assert_int_equal(live_bytes(d), 0);
}

int main(void)
{
    alarm(600); /* a deadlock is a failure, not a hang */
    return tests_run(NULL, NULL);
}
