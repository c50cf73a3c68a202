/* test_cuda_sim.c -- what the stand-in for CUDA says of mistakes in kernels. Only with
 * FSDP_DEVICE=cuda-sim. test_ops_double.c tests its matrix instruction. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "tests/sim/cuda/planted.h"
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
#define AT(words) "kernel misuse_kernel, block (0,0,0): " words ": tests/sim/cuda/planted.cc:"
    static const char *const SAYS[] = {
        [BARRIER_IN_BRANCH] = AT("threads wait at a barrier that others have passed by"),
        [BARRIERS_APART] = AT("threads wait at different barriers"),
        [LANE_MISSING] = AT("lanes wait for others of their warp that do not come"),
        [MASK_WITHOUT_CALLER] = AT("a thread takes part in an exchange whose mask is without it"),
        [EXCHANGES_APART] = AT("the lanes of a warp are at different exchanges"),
    };
    for (with_mistake = BARRIER_IN_BRANCH; with_mistake <= EXCHANGES_APART; with_mistake++) {
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

int main(void)
{
    sim_need("cuda-sim");
    return tests_run(NULL, NULL);
}
