/* mpich_peer.c -- MPICH's own collectives, timed and checked like ours in collectives.c.
 *
 *   mpiexec.hydra -n W build/tests/bench/mpich_peer [options of collectives; --backend is ignored]
 *
 * A separate single-threaded program, so that MPICH runs at its best. */
#include "tests/bench/coll_lib.h"
#ifdef FSDP_HAVE_MPI
#include <mpi.h>
#include <stdlib.h>
#include "common/comm/comm.h"
#include "tests/bench/bench_lib.h"

static fsdp_status checked(int code, const char *what)
{
    return code == MPI_SUCCESS ? FSDP_OK : fsdp_error(FSDP_ECOMM, "", "%s: code %d", what, code);
}

static int collective(coll_transport *t, coll_op op, int elems)
{
    int total = elems * t->world;
    switch (op) {
    case COLL_ALL_GATHER:
        return MPI_Allgather(MPI_IN_PLACE, 0, MPI_FLOAT, t->buf, elems, MPI_FLOAT, MPI_COMM_WORLD);
    case COLL_REDUCE_SCATTER:
        return MPI_Reduce_scatter_block(t->buf, t->out, elems, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    case COLL_ALL_REDUCE:
        return MPI_Allreduce(MPI_IN_PLACE, t->buf, total, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    case COLL_ALL_TO_ALL:
        return MPI_Alltoall(t->buf, elems, MPI_FLOAT, t->out, elems, MPI_FLOAT, MPI_COMM_WORLD);
    default:
        return MPI_Barrier(MPI_COMM_WORLD);
    }
}

static fsdp_status peer_run(coll_transport *t, coll_op op, size_t slice_elems, size_t n)
{
    for (size_t i = 0; i < n; i++)
        TRY(checked(collective(t, op, (int)slice_elems), "collective"));
    return FSDP_OK;
}

static fsdp_status peer_agree(coll_transport *t, double value, double *greatest, double *sum)
{
    TRY(checked(MPI_Allreduce(&value, greatest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD), "max"));
    return checked(MPI_Allreduce(&value, sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD), "sum");
}

/* MPI does not know fsdp_run's ranks: each rank would be alone in its own world. */
static fsdp_status parse(int argc, char **argv, coll_options *o)
{
    const char *launched = getenv("FSDP_RUN");
    if (launched != NULL)
        return fsdp_error(FSDP_EINVAL, "start it with mpiexec.hydra -n W",
                          "mpich_peer: got FSDP_RUN='%s', the ranks of fsdp_run, expected an MPI "
                          "launcher",
                          launched);
    return coll_parse("mpich_peer", argc, argv, o);
}

int main(int argc, char **argv)
{
    coll_options o;
    coll_transport t = {.name = "MPICH", .run = peer_run, .agree = peer_agree};
    fsdp_status status = parse(argc, argv, &o);
    if (status != FSDP_OK)
        return coll_leave(status, "mpich_peer");
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &t.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &t.world);
    t.buf = calloc(coll_max_elems(&o), sizeof(float));
    t.out = calloc(coll_max_elems(&o), sizeof(float));
    status = FSDP_ENOMEM;
    if (t.buf != NULL && t.out != NULL)
        status = coll_run(&t, &o);
    else
        fsdp_error(status, "pass a smaller --max-bytes", "cannot allocate 2 x %lld bytes",
                   (long long)o.max_bytes);
    if (status != FSDP_OK) {
        fsdp_error_print(stderr, t.rank, t.world);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    free(t.buf);
    free(t.out);
    MPI_Finalize();
    return 0;
}
#else
int main(void)
{
    fprintf(stderr, "mpich_peer: built without MPI\n");
    return 77;
}
#endif
