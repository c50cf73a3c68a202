# shellcheck shell=sh disable=SC2034 # the scripts that source this use the variables
# env.sh -- sourced by the scripts that launch ranks. Variables that the user has set are kept.
#
# Reads BUILD (default build), the folder of the programs, and FSDP_TOOLS (default tests/tools), this folder. Sets
#
#   LAUNCHER   words that start ranks of this host, which share memory: $LAUNCHER -n 4 PROGRAM. build/fsdp_run
#   MPI_LAUNCHER  words that start ranks under MPI, for what tests MPI (probe.sh: mpiexec_find); without MPI the same as LAUNCHER
#   NO_MPI     why there is no MPI (the programs were built without it, or there is no launcher of it); empty if there is MPI
#   TRANSPORTS transports that FSDP_COMM may name on FSDP_DEVICE for several ranks; most tests use the first
#   LOGS       the folder for the output of checks; each FSDP_DEVICE has its own
#
# no_mpi CASE: if there is no MPI, prints SKIP and returns true; for cases that test MPI itself.
# no_hosts CASE: likewise if MPI cannot divide the ranks of this machine into hosts (MPIR_CVAR_NUM_CLIQUES).
# launcher_over TRANSPORT: prints the words that start ranks whose FSDP_COMM is TRANSPORT.

# Idle OpenMP threads sleep. If they spun, they would take cores from the ranks that they wait for. hwloc and UCX, below
# MPI, print no warnings about a container without /sys.
export OMP_WAIT_POLICY="${OMP_WAIT_POLICY:-passive}" HWLOC_HIDE_ERRORS="${HWLOC_HIDE_ERRORS:-2}"
[ -d /sys/class/net ] || export UCX_LOG_LEVEL="${UCX_LOG_LEVEL:-fatal}"

LOGS=${BUILD:-build}/test${FSDP_DEVICE:+/$FSDP_DEVICE}
NO_MPI='' LAUNCHER="${BUILD:-build}/fsdp_run --no-prefix" TRANSPORTS='shm mpi'
. "${FSDP_TOOLS:-tests/tools}/probe.sh"
mpiexec_find || NO_MPI="no mpiexec of MPICH here$(! command -v mpiexec >/dev/null 2>&1 || echo ', but another'"'"'s')"
[ -z "${MPIEXEC:-}" ] || command -v "${MPIEXEC%% *}" >/dev/null 2>&1 || NO_MPI="MPIEXEC='$MPIEXEC' is no command"
# The Makefile keeps the compiler's command line in this file; a folder of stand-ins may have none.
[ ! -e "${BUILD:-build}/flags" ] || grep -q -e -DFSDP_HAVE_MPI "${BUILD:-build}/flags" || NO_MPI='built without MPI'
MPI_LAUNCHER=$mpiexec
[ -z "$NO_MPI" ] || MPI_LAUNCHER=$LAUNCHER TRANSPORTS=shm
case ${FSDP_DEVICE:-} in
cuda*) TRANSPORTS="nccl shm" ;;
npu*) TRANSPORTS="hccl shm" ;;
esac

no_mpi() {
    [ -z "$NO_MPI" ] && return 1
    echo "SKIP $1: $NO_MPI"
}

no_hosts() {
    no_mpi "$1" && return
    case $mpiexec_version in [34].*) return 1 ;; esac
    echo "SKIP $1: $MPI_LAUNCHER${mpiexec_version:+ $mpiexec_version} is not known to divide ranks into hosts, as MPICH 4 does"
}

launcher_over() {
    case $1 in mpi) echo "$MPI_LAUNCHER" ;; *) echo "$LAUNCHER" ;; esac
}
