# env.sh -- sourced by the scripts that launch ranks; what the user has set stays.
#
# Idle OpenMP threads sleep: spinning ones take the cores from the ranks they wait for. hwloc and UCX,
# below MPI, keep quiet about a container without /sys.
export OMP_WAIT_POLICY="${OMP_WAIT_POLICY:-passive}" HWLOC_HIDE_ERRORS="${HWLOC_HIDE_ERRORS:-2}"
[ -d /sys/class/net ] || export UCX_LOG_LEVEL="${UCX_LOG_LEVEL:-fatal}"
