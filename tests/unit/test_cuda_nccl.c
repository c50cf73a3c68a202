/* test_cuda_nccl.c -- NCCL as transport, on the device that FSDP_DEVICE names.
 *
 *   mpiexec -n W build/tests/unit/test_cuda_nccl        (W = 1 runs without mpiexec too)
 *
 * Rank 0 prints a PASS, FAIL or SKIP line per check, every rank a DONE line. comm_faults.sh nccl
 * tests ranks that disagree, wait or die. */
#include <stdlib.h>
#include "tests/unit/native_cases_lib.h"
#include "tests/unit/target_lib.h"

/* Calls in two groups, with a library that does not keep their order by itself. */
static void test_order_old(comm_fixture *f)
{
    const backend *b = target_backend();
    comm_fixture old = *f;
    setenv("FSDP_SIM_NCCL", "22500", 1);
    CHECK_OK(f, comm_open(f->dev,
                          &(comm_config){.backend = f->world > 1 ? COMM_NATIVE : COMM_AUTO,
                                         .sums = b->fast()->sums,
                                         .native = b->native},
                          &old.c));
    if (old.c != f->c) {
        native_case_drawn(&old);
        CHECK(f, old.why[0] == '\0', "%.190s", old.why);
        comm_close(old.c);
    }
    unsetenv("FSDP_SIM_NCCL");
}

/* NCCL_COMM_BLOCKING=0 is for programs that poll. In this program's environment it changes
 * nothing. */
static void test_made_to_wait(comm_fixture *f)
{
    const backend *b = target_backend();
    comm_fixture other = *f;
    setenv("NCCL_COMM_BLOCKING", "0", 1);
    CHECK_OK(f, comm_open(f->dev,
                          &(comm_config){.backend = f->world > 1 ? COMM_NATIVE : COMM_AUTO,
                                         .sums = b->fast()->sums,
                                         .native = b->native},
                          &other.c));
    if (other.c == f->c)
        return;
    native_case_one_thread(&other);
    comm_case_all_to_all(&other);
    CHECK(f, other.why[0] == '\0', "%.190s", other.why);
    comm_close(other.c);
}

int main(void)
{
    static const native_case cases[] = {
        NATIVE_CASES, {"order_old", test_order_old}, {"made_to_wait", test_made_to_wait}};
    return native_cases_run(cases, sizeof cases / sizeof *cases);
}
