#!/bin/bash
# small_shm.sh -- nine ranks with a /dev/shm of 64 MB, as in containers; of 16 MB, too small for MPICH's own segments (4 MB per
# rank); and read-only. They train with the bits of one device and leave nothing in /dev/shm or among the System V segments,
# even if a rank is killed.
. "$(dirname "$0")/lib.sh"
cli_start "$@"
if [ -z "${CLI_NAMESPACE:-}" ]; then
    echo 'SKIP a small /dev/shm: not root, or no mount namespaces here'
    exit 77
fi
ranks=9
options='--n-layer 1 --d-model 16 --n-head 2 --seq-len 16 --synthetic 5000 --ops portable --global-batch 18 --reduction canonical'
launch 1 --parallel single $options --steps 3 --loss-csv "$work/single.csv"

# with_shm MEGABYTES NAME -- a case with a /dev/shm of this size
with_shm() {
    case_is "$1 MB of /dev/shm, $2" $ranks && { [ "${size:-}" = ro ] || mount -o remount,size="$1m" /dev/shm; }
}

# trains MEGABYTES NAME LAUNCHER OPTION... -- the run succeeds
trains() {
    with_shm "$1" "$2" || return
    starts=$3 good $ranks $options --steps 3 --loss-csv "$work/loss.csv" "${@:4}"
    [ ! -s "$work/err" ] || complain 'wrote to stderr'
    same_losses "$work/loss.csv" "$work/single.csv"
}

# killed MEGABYTES NAME LAUNCHER OPTION... -- trains until a rank is killed
killed() {
    with_shm "$1" "$2, a rank is killed" || return
    rm -f "$work"/loss.csv*
    starts=$3 start $ranks $options --steps 1000000 --loss-csv "$work/loss.csv" "${@:4}"
    until_true '[ "$(cat "$work"/loss.csv.*.tmp 2>/dev/null | wc -l)" -gt 3 ]' # it has begun to train
    hurt 'kill -KILL "$(trainers | sed -n 5p)"'
    [ "$rc" != 0 ] || forgotten || complain 'exit status 0'
}

run="$BUILD/fsdp_run --no-prefix"
trains 64 'by fsdp_run' "$run"
killed 64 'by fsdp_run' "$run"
if [ -n "$NO_MPI" ]; then
    skip 'a small /dev/shm under MPI' "$NO_MPI"
else
    trains 64 'over shm' "$MPI_LAUNCHER" --comm shm
    trains 16 'over mpi' "$MPI_LAUNCHER" --comm mpi
    killed 16 'over mpi' "$MPI_LAUNCHER" --comm mpi
    for megabytes in 1 4 12 16 20 24 32 40; do
        ranks=2 trains $megabytes 'over mpi' "$MPI_LAUNCHER" --comm mpi
    done
    ranks=9
    case_is 'files that killed MPI jobs left are removed, those in use or of another user stay' 2
    (cd /dev/shm && touch mpich_shar_tmpLeft ucx_shm_posix_1f mpich_shar_tmpOpen ucx_shm_posix_2f mpich_shar_tmpTheirs other &&
        chown 65534 mpich_shar_tmpTheirs)
    exec 7<>/dev/shm/mpich_shar_tmpOpen 8</dev/shm/ucx_shm_posix_2f
    starts=$MPI_LAUNCHER good 2 --parallel ddp $options --steps 1 --comm mpi
    exec 7>&- 8<&-
    left=$(cd /dev/shm && echo *)
    [ "$left" = 'mpich_shar_tmpOpen mpich_shar_tmpTheirs other ucx_shm_posix_2f' ] || complain "left: $left"
    rm -f /dev/shm/*
    mount -o remount,ro /dev/shm
    for comm in auto mpi; do
        size=ro trains 16 "read-only, --comm $comm" "$MPI_LAUNCHER" --comm $comm
    done
    mount -o remount,rw /dev/shm
fi
cli_end
