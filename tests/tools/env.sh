# shellcheck shell=sh disable=SC2034 # the scripts that source this use the variables
# env.sh -- sourced by the scripts that launch ranks; what the user has set stays.
#
# Reads BUILD (default build), the folder of the programs to be run. Sets
#
#   LAUNCHER   words that start ranks: $LAUNCHER -n 4 PROGRAM. MPIEXEC or mpiexec; without MPI fsdp_run
#   NO_MPI     why there is no MPI, empty when there is: the programs were built without it, or mpiexec is missing
#   TRANSPORTS of several ranks that can be asked for by FSDP_COMM, on the device FSDP_DEVICE; most is tested over the first
#   LOGS       the folder of what checks print, one for each FSDP_DEVICE
#
# no_mpi CASE: prints SKIP and is true when there is no MPI, for a case that is about MPI itself.

# Idle OpenMP threads sleep: spinning ones take the cores from the ranks they wait for. hwloc and UCX,
# below MPI, keep quiet about a container without /sys.
export OMP_WAIT_POLICY="${OMP_WAIT_POLICY:-passive}" HWLOC_HIDE_ERRORS="${HWLOC_HIDE_ERRORS:-2}"
[ -d /sys/class/net ] || export UCX_LOG_LEVEL="${UCX_LOG_LEVEL:-fatal}"

LOGS=${BUILD:-build}/test${FSDP_DEVICE:+/$FSDP_DEVICE}
NO_MPI='' LAUNCHER=${MPIEXEC:-mpiexec} TRANSPORTS='shm mpi'
command -v "${LAUNCHER%% *}" >/dev/null 2>&1 || NO_MPI="no $LAUNCHER here"
# The Makefile keeps the compiler's command line there; a folder of stand-ins may have none.
[ ! -e "${BUILD:-build}/flags" ] || grep -q -e -DFSDP_HAVE_MPI "${BUILD:-build}/flags" || NO_MPI='built without MPI'
[ -z "$NO_MPI" ] || LAUNCHER="${BUILD:-build}/fsdp_run --no-prefix" TRANSPORTS=shm
case ${FSDP_DEVICE:-} in
cuda*) TRANSPORTS="nccl shm" ;;
npu*) TRANSPORTS="hccl shm" ;;
esac

no_mpi() {
    [ -z "$NO_MPI" ] && return 1
    echo "SKIP $1: $NO_MPI"
}
