/* test_cuda_nccl.c -- NCCL as transport, on the device that FSDP_DEVICE names.
 *
 *   build/fsdp_run -n W build/tests/unit/test_cuda_nccl          (W = 1: alone)
 *
 * Rank 0 prints a PASS, FAIL or SKIP line per check, every rank a DONE line. comm_faults.sh nccl
 * tests ranks that disagree, wait or die. */
#include "tests/unit/native_cases_lib.h"
#include "tests/unit/target_lib.h"

/* A library that does not keep the order of calls in several groups by itself. */
static void test_order_old(comm_fixture *f)
{
    native_case_under(f, "FSDP_SIM_NCCL", "22500", native_case_drawn);
}

static void one_thread_calls(comm_fixture *f)
{
    native_case_one_thread(f);
    comm_case_calls(f, COMM_OP_ALL_TO_ALL);
}

/* NCCL_COMM_BLOCKING=0 is for programs that poll. Here it changes nothing. */
static void test_made_to_wait(comm_fixture *f)
{
    native_case_under(f, "NCCL_COMM_BLOCKING", "0", one_thread_calls);
}

int main(void)
{
    static const comm_case cases[] = {{"order_old", test_order_old},
                                      {"made_to_wait", test_made_to_wait}};
    return native_cases_run(cases, sizeof cases / sizeof *cases);
}
