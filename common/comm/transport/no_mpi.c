/* no_mpi.c -- the mpi transport of a build without MPI, in place of mpi*.c. */
#include "common/comm/transport/mpi_failure.h"

static fsdp_status mpi_open(comm_team *team, transport_group **out)
{
    (void)team;
    (void)out;
    return fsdp_error(
        FSDP_ESKIP,
        "run `make deps` (installs MPICH) and build again, or start the ranks of one host with "
        "build/fsdp_run",
        "comm_open: the mpi backend was not built");
}

const comm_transport mpi_transport = {.name = "mpi", .open = mpi_open};

void mpi_fail(void)
{
}

void mpi_on_failure(fsdp_status (*tell)(void))
{
    (void)tell;
}

void mpi_speak_last(transport_group *group)
{
    (void)group;
}
