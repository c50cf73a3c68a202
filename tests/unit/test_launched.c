/* test_launched.c -- how many ranks there are, and how many on this host, by what launchers put
 * into the environment. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include "common/comm/comm.h"

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
                                        "SLURM_STEP_TASKS_PER_NODE",
                                        "SLURM_TASKS_PER_NODE",
                                        "SLURM_NODEID",
                                        "SLURM_PROCID"};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        unsetenv(names[i]);
    return 0;
}

/* Local ranks of a step of so many tasks. */
static int local_ranks_of(const char *tasks, const char *per_node, const char *node)
{
    setenv("SLURM_STEP_NUM_TASKS", tasks, 1);
    setenv("SLURM_STEP_TASKS_PER_NODE", per_node, 1);
    setenv("SLURM_NODEID", node, 1);
    return comm_launched_local_ranks();
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
    assert_int_equal(local_ranks_of("8", "6,2", "0"), 4);
    assert_int_equal(comm_launched_ranks(), 8);
}

static void test_slurm_lists(void **state)
{
    (void)state;
    assert_int_equal(local_ranks_of("4", "4", "0"), 4);
    assert_int_equal(local_ranks_of("8", "4(x2)", "0"), 4);
    assert_int_equal(local_ranks_of("8", "4(x2)", "1"), 4);
    assert_int_equal(local_ranks_of("6", "4,2", "0"), 4);
    assert_int_equal(local_ranks_of("6", "4,2", "1"), 2);
    assert_int_equal(local_ranks_of("48", "16,3(x10),2", "0"), 16);
    assert_int_equal(local_ranks_of("48", "16,3(x10),2", "1"), 3);
    assert_int_equal(local_ranks_of("48", "16,3(x10),2", "10"), 3);
    assert_int_equal(local_ranks_of("48", "16,3(x10),2", "11"), 2);
}

/* The job's list serves where the step has none, and its tasks are those of the step. */
static void test_slurm_job(void **state)
{
    (void)state;
    setenv("SLURM_TASKS_PER_NODE", "5,3", 1);
    assert_int_equal(local_ranks_of("8", "", "1"), 3);
    assert_int_equal(local_ranks_of("6", "", "1"), 6);
    assert_int_equal(local_ranks_of("8", "6,2", "1"), 2);
    setenv("PMI_SIZE", "8", 1); /* srun --mpi=pmi2 */
    assert_int_equal(local_ranks_of("8", "6,2", "1"), 2);
}

static void test_slurm_bad_text(void **state)
{
    static const char *const bad[] = {"",       "x",
                                      "4(x2",   "4(x2)x",
                                      "4(y2)",  "4(x)",
                                      "4x2",    "4(x0)",
                                      "4(x2),", ",4(x2)",
                                      "4,,4",   "4, 4",
                                      "-8",     "+8",
                                      "8.0",    "4(x-2)",
                                      "0,8",    "4(x2)4",
                                      "4(x 2)", " 8",
                                      "8 ",     "(x2)",
                                      "4(x3)",  "7",
                                      "8,0",    "99999999999999999999"};
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(local_ranks_of("8", bad[i], "0"), 8);
    assert_int_equal(local_ranks_of("8", "4(x2)", "2"), 8);
    assert_int_equal(local_ranks_of("8", "4(x2)", "-1"), 8);
    assert_int_equal(local_ranks_of("8", "4(x2)", ""), 8);
    unsetenv("SLURM_NODEID");
    assert_int_equal(comm_launched_local_ranks(), 8);
}

#define TEST(function) cmocka_unit_test_setup(function, forget_launchers)

int main(void)
{
    const struct CMUnitTest tests[] = {TEST(test_no_launcher), TEST(test_mpi_says_it),
                                       TEST(test_slurm_lists), TEST(test_slurm_job),
                                       TEST(test_slurm_bad_text)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
