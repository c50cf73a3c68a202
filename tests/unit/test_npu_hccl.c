/* test_npu_hccl.c -- HCCL as transport, on the device that FSDP_DEVICE names.
 *
 *   build/fsdp_run -n W build/tests/unit/test_npu_hccl          (W = 1: alone)
 *
 * Rank 0 prints a PASS, FAIL or SKIP line for each check; every rank prints a DONE line.
 * comm_faults.sh hccl tests ranks that disagree, wait or die. */
#include <stdlib.h>
#include <string.h>
#include "tests/unit/native_cases_lib.h"
#include "tests/unit/target_lib.h"

enum { ELEMS = 1000 };

/* sum [ELEMS] = the sum over ranks of this rank's part of send [W*ELEMS], in fast mode. */
static void sum_once(comm_fixture *f, float *send, float *sum)
{
    const size_t n = (size_t)f->world * ELEMS;
    grad_acc acc;
    float *there = NULL, *from = comm_test_up(f, send, n * sizeof *send);
    grad_acc_init(&acc, GRAD_ACC_FAST, f->sums, ELEMS, MEM_GRADS_SHARD, "sum");
    CHECK_OK(f, comm_reduce_scatter(f->c, f->s, "rs", from, ELEMS, &acc, 0));
    CHECK_OK(f, grad_acc_finish(&acc, f->s, &there));
    if (there != NULL)
        CHECK_OK(f, device_download(f->s, sum, there, ELEMS * sizeof *sum));
    comm_test_down(f, send, from, n * sizeof *send);
    device_free(f->s, there);
    grad_acc_free(&acc, f->s);
}

/* Sums that round have the same bits each time. */
static void test_same_bits(comm_fixture *f)
{
    const size_t n = (size_t)f->world * ELEMS;
    float *send = comm_test_alloc(n * sizeof *send), first[ELEMS], sum[ELEMS];
    for (int k = 0; k < 4; k++) {
        for (size_t i = 0; i < n; i++)
            send[i] = 1.0f / (float)(3 + 7 * f->rank + (int)i % 91);
        sum_once(f, send, k == 0 ? first : sum);
        CHECK(f, k == 0 || memcmp(first, sum, sizeof sum) == 0, "other bits in sum %d", k);
    }
    free(send);
}

/* A call with no elements needs no buffer. HCCL would refuse the NULL buffer. */
static void test_nothing(comm_fixture *f)
{
    CHECK_OK(f, comm_all_gather(f->c, f->s, "none", DTYPE_F32, NULL, NULL, 0));
    CHECK_OK(f, stream_sync(f->s));
}

static void is_strict(comm_fixture *f)
{
    CHECK(f, strcmp(getenv("HCCL_DETERMINISTIC"), "strict") == 0, "it was changed");
}

/* HCCL_DETERMINISTIC is set, but a value that the user sets is kept. */
static void test_environment(comm_fixture *f)
{
    const char *set = getenv("HCCL_DETERMINISTIC");
    CHECK(f, f->world == 1 || (set != NULL && strcmp(set, "true") == 0), "HCCL_DETERMINISTIC is %s",
          set != NULL ? set : "not set");
    native_case_under(f, "HCCL_DETERMINISTIC", "strict", is_strict);
}

int main(void)
{
    static const comm_case cases[] = {{"same_bits", test_same_bits},
                                      {"nothing", test_nothing},
                                      {"environment", test_environment}};
    return native_cases_run(cases, sizeof cases / sizeof *cases);
}
