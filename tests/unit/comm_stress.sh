#!/bin/sh
# comm_stress.sh -- comm_stress on several numbers of ranks, over shared memory and over MPI.
#
#   tests/unit/comm_stress.sh [quick|full] [BUILD]
#
# Prints one PASS or FAIL line per run; the logs are in $BUILD/test/stress/. Exit status 0 iff all pass.
set -u
mode=${1:-quick}
BUILD=${2:-${BUILD:-build}}
. tests/tools/env.sh
OUT=$BUILD/test/stress
mkdir -p "$OUT" || exit 2
child='' failed=0
trap 'kill -TERM $child 2>/dev/null; exit 130' INT TERM HUP

# stress WAY W ROUNDS SEED... -- shm, mpi: started by $MPI_LAUNCHER; run: started by fsdp_run; schedule: like run, in an order that
# the seed chooses; staged-WAY: on the device `separate`
stress() {
    way=$1 w=$2 rounds=$3
    shift 3
    [ "${way#staged-}" = mpi ] && no_mpi "W=$w mpi" && return
    for seed in "$@"; do
        log=$OUT/$way-W$w-$seed.log
        set -- "$BUILD/tests/unit/comm_stress" --rounds "$rounds" --seed "$seed"
        case $way in
        staged-*) set -- env COMM_TEST_DEVICE=separate "$@" ;;
        esac
        case ${way#staged-} in
        run) set -- "$BUILD/fsdp_run" --no-prefix -n "$w" "$@" ;;
        schedule) set -- env FSDP_SCHEDULE="$seed" "$BUILD/fsdp_run" --no-prefix -n "$w" "$@" ;;
        *) set -- env FSDP_COMM="${way#staged-}" $MPI_LAUNCHER -n "$w" "$@" ;; # words
        esac
        FSDP_TIMEOUT_S=${FSDP_TIMEOUT_S:-300} tests/tools/limit.sh 600 "$@" >"$log" 2>&1 </dev/null &
        child=$!
        wait $child
        status=$? child=''
        if [ $status -eq 0 ] && [ "$(grep -c '^DONE' "$log")" -eq "$w" ] && grep -q '^PASS' "$log"; then
            echo "PASS W=$w $way: $(sed -n 's/^PASS //p' "$log")"
        else
            echo "FAIL W=$w $way, exit status $status: $(grep -m1 -E '^differs|^FAIL|rror|waited' "$log"); log: $log"
            echo "        rerun: $*"
            failed=1
        fi
    done
}

case $mode in
quick)
    for w in 2 3 4; do
        stress shm $w 50 $w
        stress mpi $w 30 $w
        stress staged-shm $w 50 $w
    done
    stress staged-mpi 3 30 4
    stress staged-schedule 3 50 9
    stress run 4 100 5
    stress schedule 3 100 6 7
    ;;
full)
    for w in 2 3 4 5 6 7 8; do
        stress shm $w 1000 1$w 2$w
        stress mpi $w 1000 1$w
        stress run $w 1000 3$w
        stress schedule $w 500 4$w 5$w 6$w
        stress staged-shm $w 500 7$w
        stress staged-mpi $w 300 7$w
        stress staged-schedule $w 300 7$w
    done
    ;;
*) echo "usage: $0 [quick|full] [BUILD]" >&2 && exit 2 ;;
esac
exit $failed
