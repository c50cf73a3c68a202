/* test_launched.c -- how many ranks there are, in all and on this host, according to the
 * environment variables of launchers. */
#include <stdlib.h>
#include "common/comm/transport_help.h"
#include "tests/unit/unit_lib.h"

static void forget_launchers(void)
{
    static const char *const names[] = {"FSDP_RUN",
                                        "PMI_SIZE",
                                        "PMI_RANK",
                                        "PMIX_SIZE",
                                        "PMIX_RANK",
                                        "OMPI_COMM_WORLD_SIZE",
                                        "OMPI_COMM_WORLD_LOCAL_SIZE",
                                        "MPI_LOCALNRANKS",
                                        "MPI_LOCALRANKID",
                                        "OMPI_COMM_WORLD_LOCAL_RANK",
                                        "PMIX_LOCAL_RANK",
                                        "SLURM_LOCALID",
                                        "SLURM_STEP_NUM_TASKS",
                                        "SLURM_PROCID",
                                        "FSDP_SCHEDULE"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        unsetenv(names[i]);
}

TEST(test_no_launcher)
{
    forget_launchers();
    assert_int_equal(comm_launched_ranks(), 1);
    assert_int_equal(comm_launched_local_ranks(), 1);
}

TEST(test_mpi_says_it)
{
    forget_launchers();
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

TEST(test_slurm_says_how_many)
{
    forget_launchers();
    setenv("SLURM_STEP_NUM_TASKS", "6", 1);
    setenv("SLURM_PROCID", "5", 1);
    assert_int_equal(comm_launched_ranks(), 6);
    assert_int_equal(comm_launched_rank(), 5);
    assert_int_equal(comm_launched_local_ranks(), 6);
}

/* fsdp_run takes precedence over all other launchers. */
TEST(test_fsdp_run_says_it)
{
    forget_launchers();
    setenv("PMI_SIZE", "8", 1);
    setenv("MPI_LOCALNRANKS", "4", 1);
    setenv("FSDP_RUN", "1 3 5 6", 1);
    assert_int_equal(comm_launched_ranks(), 3);
    assert_int_equal(comm_launched_rank(), 1);
    assert_int_equal(comm_launched_local_ranks(), 3);
    setenv("FSDP_RUN", "3 3 5 6", 1); /* no such rank */
    assert_int_equal(comm_launched_ranks(), 8);
}

/* Round-robin over two hosts: ranks 0 and 2 on one, ranks 1 and 3 on the other. */
TEST(test_local_rank)
{
    forget_launchers();
    static const char *const names[] = {"SLURM_LOCALID", "PMIX_LOCAL_RANK",
                                        "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"};
    assert_int_equal(comm_launched_local_rank(), 0);
    setenv("PMI_SIZE", "4", 1);
    setenv("PMI_RANK", "2", 1);
    assert_int_equal(comm_launched_local_rank(), 2);
    for (int i = 0; i < 4; i++) {
        setenv(names[i], i % 2 ? "1" : "0", 1);
        assert_int_equal(comm_launched_local_rank(), i % 2);
    }
    setenv("FSDP_RUN", "3 4 5 6", 1);
    assert_int_equal(comm_launched_local_rank(), 3);
}

/* Each rank has its own seed. There is none if FSDP_SCHEDULE is 0 or not set. */
TEST(test_schedule_seed)
{
    forget_launchers();
    uint64_t seed = 7, other;
    OK(comm_schedule_seed(&seed));
    assert_true(seed == 0);
    setenv("FSDP_SCHEDULE", "0", 1);
    setenv("PMI_SIZE", "2", 1);
    setenv("PMI_RANK", "1", 1);
    OK(comm_schedule_seed(&seed));
    assert_true(seed == 0);
    setenv("FSDP_SCHEDULE", "12", 1);
    OK(comm_schedule_seed(&seed));
    setenv("PMI_RANK", "0", 1);
    OK(comm_schedule_seed(&other));
    assert_true(other != 0 && other != seed);
    const char *const wrong[] = {"x", "1x", "-1", "4294967296"};
    for (int i = 0; i < 4; i++) {
        setenv("FSDP_SCHEDULE", wrong[i], 1);
        assert_int_equal(comm_schedule_seed(&seed), FSDP_EINVAL);
        assert_says(wrong[i]);
    }
}

int main(void)
{
    return tests_run(NULL, NULL);
}
