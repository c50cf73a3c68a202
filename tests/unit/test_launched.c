/* test_launched.c -- how many ranks there are, and how many on this host, by what launchers put
 * into the environment. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include "common/comm/transport_help.h"

static int forget_launchers(void **state)
{
    static const char *const names[] = {"FSDP_RUN",
                                        "PMI_SIZE",
                                        "PMI_RANK",
                                        "PMIX_SIZE",
                                        "PMIX_RANK",
                                        "OMPI_COMM_WORLD_SIZE",
                                        "OMPI_COMM_WORLD_LOCAL_SIZE",
                                        "MPI_LOCALNRANKS",
                                        "SLURM_STEP_NUM_TASKS",
                                        "SLURM_PROCID"};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        unsetenv(names[i]);
    return 0;
}

static void test_no_launcher(void **state)
{
    (void)state;
    assert_int_equal(comm_launched_ranks(), 1);
    assert_int_equal(comm_launched_local_ranks(), 1);
}

static void test_mpi_says_it(void **state)
{
    (void)state;
    setenv("PMI_SIZE", "8", 1);
    assert_int_equal(comm_launched_local_ranks(), 8);
    setenv("MPI_LOCALNRANKS", "x", 1);
    assert_int_equal(comm_launched_local_ranks(), 8);
    setenv("OMPI_COMM_WORLD_LOCAL_SIZE", "2", 1);
    assert_int_equal(comm_launched_local_ranks(), 2);
    setenv("MPI_LOCALNRANKS", "4", 1);
    assert_int_equal(comm_launched_local_ranks(), 4);
    assert_int_equal(comm_launched_ranks(), 8);
}

static void test_slurm_says_how_many(void **state)
{
    (void)state;
    setenv("SLURM_STEP_NUM_TASKS", "6", 1);
    setenv("SLURM_PROCID", "5", 1);
    assert_int_equal(comm_launched_ranks(), 6);
    assert_int_equal(comm_launched_rank(), 5);
    assert_int_equal(comm_launched_local_ranks(), 6);
}

/* What fsdp_run says goes before all others. */
static void test_fsdp_run_says_it(void **state)
{
    (void)state;
    setenv("PMI_SIZE", "8", 1);
    setenv("MPI_LOCALNRANKS", "4", 1);
    setenv("FSDP_RUN", "1 3 5 6", 1);
    assert_int_equal(comm_launched_ranks(), 3);
    assert_int_equal(comm_launched_rank(), 1);
    assert_int_equal(comm_launched_local_ranks(), 3);
    setenv("FSDP_RUN", "3 3 5 6", 1); /* no such rank */
    assert_int_equal(comm_launched_ranks(), 8);
}

#define TEST(function) cmocka_unit_test_setup(function, forget_launchers)

int main(void)
{
    const struct CMUnitTest tests[] = {TEST(test_no_launcher), TEST(test_mpi_says_it),
                                       TEST(test_slurm_says_how_many), TEST(test_fsdp_run_says_it)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
