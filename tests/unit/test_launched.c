/* test_launched.c -- how many ranks there are, in all and on this host, according to the
 * environment variables of launchers. */
#include <stdlib.h>
#include <string.h>
#include "common/comm/transport_help.h"
#include "tests/unit/unit_lib.h"

static void forget_launchers(void)
{
    char names[] = "FSDP_RUN PMI_SIZE PMI_RANK PMIX_SIZE PMIX_RANK PMIX_LOCAL_RANK MPI_LOCALNRANKS "
                   "MPI_LOCALRANKID OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_LOCAL_SIZE "
                   "OMPI_COMM_WORLD_LOCAL_RANK SLURM_LOCALID SLURM_STEP_NUM_TASKS SLURM_PROCID "
                   "FSDP_SCHEDULE";
    for (char *rest = names, *name; (name = strsep(&rest, " ")) != NULL;)
        unsetenv(name);
}

/* What variables of the environment (separated by commas) say. In each part of the table a row
 * takes precedence over the rows above it, whose variables are set too. */
static const struct {
    const char *variables;
    int ranks, rank, local_ranks, local_rank;
} LAUNCHES[] = {
    {"", 1, 0, 1, 0},
    {"PMI_SIZE=8,PMI_RANK=2", 8, 2, 8, 2},
    {"MPI_LOCALNRANKS=x", 8, 2, 8, 2},
    {"OMPI_COMM_WORLD_LOCAL_SIZE=2", 8, 2, 2, 2},
    {"MPI_LOCALNRANKS=4", 8, 2, 4, 2},
    {"FSDP_RUN=3 3 5 6", 8, 2, 4, 2}, /* no such rank */
    {"FSDP_RUN=1 3 5 6", 3, 1, 3, 1},
    {"", 1, 0, 1, 0},
    {"SLURM_STEP_NUM_TASKS=6,SLURM_PROCID=5", 6, 5, 6, 5},
    /* ranks 0 and 2 on one host, ranks 1 and 3 on the other */
    {"", 1, 0, 1, 0},
    {"PMI_SIZE=4,PMI_RANK=2", 4, 2, 4, 2},
    {"SLURM_LOCALID=0", 4, 2, 4, 0},
    {"PMIX_LOCAL_RANK=1", 4, 2, 4, 1},
    {"OMPI_COMM_WORLD_LOCAL_RANK=0", 4, 2, 4, 0},
    {"MPI_LOCALRANKID=1", 4, 2, 4, 1},
    {"FSDP_RUN=3 4 5 6", 4, 3, 4, 3},
};

TEST(test_launchers)
{
    for (size_t i = 0; i < sizeof LAUNCHES / sizeof *LAUNCHES; i++) {
        char list[80], *rest = list;
        snprintf(list, sizeof list, "%s", LAUNCHES[i].variables);
        if (*list == '\0')
            forget_launchers();
        for (char *name; *list != '\0' && (name = strsep(&rest, ",")) != NULL;) {
            char *value = strchr(name, '=');
            *value = '\0';
            setenv(name, value + 1, 1);
        }
        print_message("row %zu: %s\n", i, LAUNCHES[i].variables);
        assert_int_equal(comm_launched_ranks(), LAUNCHES[i].ranks);
        assert_int_equal(comm_launched_rank(), LAUNCHES[i].rank);
        assert_int_equal(comm_launched_local_ranks(), LAUNCHES[i].local_ranks);
        assert_int_equal(comm_launched_local_rank(), LAUNCHES[i].local_rank);
    }
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
