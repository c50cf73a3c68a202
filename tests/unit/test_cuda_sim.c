/* test_cuda_sim.c -- what the stand-in for CUDA says of mistakes in kernels. Only with
 * FSDP_DEVICE=cuda-sim. test_ops_double.c tests its matrix instruction. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "tests/sim/cuda/planted.h"
#include "tests/unit/accel_lib.h"
#include "tests/unit/sim_lib.h"
#include "tests/unit/target_lib.h"
#include "tests/unit/unit_lib.h"

/* ---- mistakes that end the process ----------------------------------------------------------- */

enum { N_OUT = PLANTED_BLOCKS * PLANTED_THREADS };

/* Launches the kernel and gets its numbers. Each call opens its own device. */
static void run_kernel(planted_kernel kernel, bool correct, float out[N_OUT])
{
    device *d = NULL;
    void *on_device;
    OK(device_open(&(device_config){.backend = target_backend()->device, .n_threads = 1}, &d));
    stream *s = device_compute_stream(d);
    OK(device_alloc(s, MEM_OTHER, N_OUT * sizeof *out, "planted", &on_device));
    OK(SIM(planted_launch)(
        s, &(planted_args){.kernel = kernel, .correct = correct, .out = on_device}));
    OK(device_download(s, out, on_device, N_OUT * sizeof *out));
    OK(stream_sync(s));
    device_free(s, on_device);
    device_close(d);
}

static planted_kernel with_mistake; /* the mistake of this process's case */

static void plant(void)
{
    float out[N_OUT];
    run_kernel(with_mistake, false, out);
}

static void plant_nothing(void)
{
    float out[N_OUT];
    run_kernel(with_mistake, true, out);
}

TEST(test_misuse_ends_the_process)
{
#define AT(words)        IN("misuse_kernel, block (0,0,0)", words)
#define IN(block, words) "kernel " block ": " words ": tests/sim/cuda/planted.cc:"
    static const char *const SAYS[] = {
        [BARRIER_IN_BRANCH] = AT("threads wait at a barrier that others have passed by"),
        [BARRIERS_APART] = AT("threads wait at different barriers"),
        [LANE_MISSING] = AT("lanes wait for others of their warp that do not come"),
        [MASK_WITHOUT_CALLER] = AT("a thread takes part in an exchange whose mask is without it"),
        [EXCHANGES_APART] = AT("the lanes of a warp are at different exchanges"),
        [COUNT_WITHOUT_FENCE] =
            IN("counting_kernel, block (0,0,0)", "a block is counted without a fence before it"),
        [READ_WITHOUT_FENCE] =
            IN("counting_kernel, block (1,0,0)", "a block is counted without a fence after it"),
    };
    for (with_mistake = BARRIER_IN_BRANCH; with_mistake <= READ_WITHOUT_FENCE; with_mistake++) {
        const char *says = SAYS[with_mistake];
        assert_true(sim_case_holds(&(sim_case){ENDS(says, plant, says)}, 1, sim_run_alone, NULL));
        assert_true(sim_case_holds(&(sim_case){WELL(plant_nothing)}, 1, sim_run_alone, NULL));
    }
}

/* ---- mistakes that show as values ------------------------------------------------------------ */

/* Counts the NaNs in each block. */
static void count_nans(const float *out, int n[PLANTED_BLOCKS])
{
    for (int i = 0; i < PLANTED_BLOCKS; i++)
        n[i] = 0;
    for (int i = 0; i < N_OUT; i++)
        n[i / PLANTED_THREADS] += isnan(out[i]) != 0;
}

/* A missing barrier shows in at least one of two blocks, because they run in different orders. */
TEST(test_missing_barriers_show)
{
    float out[N_OUT];
    int n[PLANTED_BLOCKS];
    for (planted_kernel kernel = BLOCK_NEIGHBOUR; kernel <= WARP_NEIGHBOUR; kernel++) {
        run_kernel(kernel, true, out);
        for (int i = 0; i < N_OUT; i++) {
            const int own = i % PLANTED_THREADS, before = own > 0 ? own - 1 : 0;
            const int expected = kernel == BLOCK_NEIGHBOUR ? before : own ^ 1;
            assert_int_equal((int)out[i], expected);
        }
        run_kernel(kernel, false, out);
        count_nans(out, n);
        assert_true(n[0] + n[1] > 0);
        if (kernel == BLOCK_NEIGHBOUR)
            assert_true((n[0] == 0) != (n[1] == 0));
    }
}

/* ---- free blocks ---------------------------------------------------------------------------- */

static unsigned gets(void)
{
    return SIM(sim_pool_gets)();
}

/* Takes and frees a block of `bytes`, and returns how often the pool was asked. */
static unsigned one_block(stream *s, size_t bytes)
{
    const unsigned before = gets();
    void *block;
    OK(device_alloc(s, MEM_OTHER, bytes, "block", &block));
    device_free(s, block);
    return gets() - before;
}

/* The same for two at once, of which the stream `other` frees the first. */
static unsigned two_blocks(stream *s, size_t bytes, stream *other)
{
    const unsigned before = gets();
    void *first, *second;
    OK(device_alloc(s, MEM_OTHER, bytes, "block", &first));
    OK(device_alloc(s, MEM_OTHER, bytes, "block", &second));
    assert_ptr_not_equal(first, second);
    OK(stream_sync(s)); /* the other stream may not free it before it is there */
    device_free(other, first);
    device_free(s, second);
    return gets() - before;
}

static device *device_of(bool debug_fill)
{
    device *d = NULL;
    OK(device_open(&(device_config){.backend = target_backend()->device,
                                    .n_threads = 1,
                                    .debug_fill = debug_fill},
                   &d));
    return d;
}

/* The second request of a size costs no call, whichever stream freed the block, unless another
 * stream makes it, or two blocks are in use at once, or so many others were freed since. */
TEST(test_free_blocks_stay_with_their_stream)
{
    enum { MOST_FREES = 16384 };
    device *d = device_of(false);
    stream *s = device_compute_stream(d), *side;
    OK(stream_create(d, &(stream_config){.name = "side"}, &side));
    assert_int_equal(one_block(s, 1000), 1);
    assert_int_equal(one_block(s, 1000), 0);
    assert_int_equal(one_block(s, 1001), 1);
    assert_int_equal(one_block(s, 1000), 0);
    assert_int_equal(one_block(side, 1000), 1);
    assert_int_equal(two_blocks(s, 1000, side), 1);
    assert_int_equal(two_blocks(s, 1000, side), 0);
    assert_int_equal(one_block(side, 1000), 0);
    assert_int_equal(two_blocks(side, 1000, side), 1);
    OK(stream_sync(side));
    assert_int_equal(ledger_read(device_ledger(d)).live_total_bytes, 0);
    assert_int_equal(one_block(s, 2001), 1);
    for (int i = 1; i < MOST_FREES; i++)
        assert_int_equal(one_block(s, 2000), i == 1);
    assert_int_equal(one_block(s, 2001), 0);
    assert_int_equal(one_block(s, 1000), 1);
    stream_free(side);
    device_close(d);
    d = device_of(true);
    assert_int_equal(one_block(device_compute_stream(d), 1000), 1);
    assert_int_equal(one_block(device_compute_stream(d), 1000), 1);
    device_close(d);
}

/* A block that another stream has freed but not reached: the ledger counts it; a request waits for
 * it on the stream, not on the host, and counts it once; one that needs no wait is preferred. */
TEST(test_requests_wait_for_another_streams_free)
{
    enum { BYTES = 1000 };
    device *d = device_of(false);
    stream *s = device_compute_stream(d), *side;
    event *taken;
    void *slow, *quick, *again;
    sem_t gate;
    OK(stream_create(d, &(stream_config){.name = "side"}, &side));
    OK(event_create(d, &taken));
    OK(device_alloc(s, MEM_PARAMS_FULL, BYTES, "slow", &slow));
    OK(device_alloc(s, MEM_PARAMS_FULL, BYTES, "quick", &quick));
    OK(stream_sync(s));
    close_gate(side, &gate);
    device_free(s, quick);
    assert_int_equal(ledger_read(device_ledger(d)).live_total_bytes, BYTES);
    device_free(side, slow);
    assert_int_equal(ledger_read(device_ledger(d)).live_total_bytes, BYTES);
    const unsigned before = gets();
    OK(device_alloc(s, MEM_PARAMS_FULL, BYTES, "first", &again));
    assert_ptr_equal(again, quick);
    OK(stream_sync(s)); /* it waits for nothing */
    assert_int_equal(ledger_read(device_ledger(d)).live_total_bytes, 2 * BYTES);
    OK(device_alloc(s, MEM_PARAMS_FULL, BYTES, "second", &again));
    assert_ptr_equal(again, slow);
    assert_int_equal(gets(), before);
    assert_int_equal(ledger_read(device_ledger(d)).live_total_bytes, 2 * BYTES);
    OK(event_record(taken, s));
    assert_false(event_done(taken));
    open_gate(&gate);
    OK(event_sync(taken));
    device_free(s, again);
    device_free(s, quick);
    assert_int_equal(ledger_read(device_ledger(d)).live_total_bytes, 0);
    event_free(taken);
    stream_free(side);
    device_close(d);
}

/* Streams end in any order while blocks that they allocated, or freed for another, remain. */
TEST(test_free_blocks_of_streams_that_end)
{
    for (int first = 0; first < 2; first++) {
        device *d = device_of(false);
        stream *s = device_compute_stream(d), *side;
        void *mine, *others;
        sem_t gate;
        OK(stream_create(d, &(stream_config){.name = "side"}, &side));
        OK(device_alloc(s, MEM_PARAMS_FULL, 1000, "mine", &mine));
        OK(device_alloc(side, MEM_PARAMS_FULL, 1000, "others", &others));
        OK(stream_sync(s));
        OK(stream_sync(side));
        if (first == 0) { /* the allocating stream ends first */
            stream_free(side);
            device_free(s, others);
            device_free(s, mine);
        } else { /* the freeing stream ends first */
            close_gate(side, &gate);
            device_free(side, mine);
            device_free(s, others);
            open_gate(&gate);
            stream_free(side);
        }
        OK(stream_sync(s));
        assert_int_equal(ledger_read(device_ledger(d)).live_total_bytes, 0);
        device_close(d);
    }
}

static void make_room(void)
{
    device *d = device_of(false);
    stream *s = device_compute_stream(d);
    const size_t all = device_mem_available(d);
    void *block;
    assert_int_equal(one_block(s, all / 4 * 3), 1);
    assert_true(device_mem_available(d) == all);
    OK(device_alloc(s, MEM_PARAMS_FULL, all / 2, "large", &block));
    device_free(s, block);
    device_close(d);
}

/* If memory is short, what streams keep is given back. */
TEST(test_free_blocks_make_room)
{
    const sim_case small = {WELL(make_room), .setting = "FSDP_SIM_MEMORY_MIB=64"};
    assert_true(sim_case_holds(&small, 1, sim_run_alone, NULL));
}

/* ---- a count of blocks ---------------------------------------------------------------------- */

/* While a block counts itself, the next one runs and reads what is not there yet. */
TEST(test_early_counts_show)
{
    float out[N_OUT];
    int n[PLANTED_BLOCKS];
    for (int correct = 0; correct < 2; correct++) {
        run_kernel(COUNTED_EARLY, correct, out);
        count_nans(out, n);
        assert_int_equal(n[0], 0);
        assert_int_equal(n[1], correct ? 0 : PLANTED_THREADS - 1);
    }
}

int main(void)
{
    sim_need("cuda-sim");
    return tests_run(NULL, NULL);
}
