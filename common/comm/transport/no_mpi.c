/* no_mpi.c -- the transports of a build without MPI, in place of mpi*.c and hier*.c. */
#include "common/comm/transport/transport.h"

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

const comm_transport mpi_transport = {.name = "mpi", .moves = MOVES_BY_BRINGING, .open = mpi_open};
const comm_transport hier_transport = {.name = "shm+mpi"}; /* only opened over mpi */
