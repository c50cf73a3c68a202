#!/bin/sh
# comm_hosts.sh -- groups over several hosts, on one machine: MPICH divides its ranks into hosts when told to.
#
#   tests/unit/comm_hosts.sh [quick|memory|full] [BUILD]        memory: only that a rank gets none
#
# H hosts of L ranks each use shared memory inside a host and MPI between hosts: every collective is checked on them
# (test_comm, comm_stress), that the trainer's losses are those of one device, and that ranks on all hosts hear of a
# failure on one (comm_faults). Ranks that are not numbered host by
# host, or hosts with unequally many, go by MPI alone. tests/multihost/run.sh has hosts with a network between them.
# Prints one PASS, FAIL or SKIP line per run; the logs are in $BUILD/test/hosts/. Exit status 0 iff all pass.
set -u
mode=${1:-quick}
BUILD=${2:-${BUILD:-build}}
. tests/tools/env.sh
no_mpi hosts && exit 77
OUT=$BUILD/test/hosts
mkdir -p "$OUT" || exit 2
child='' failed=0
trap 'kill -TERM $child 2>/dev/null; exit 130' INT TERM HUP

# hosts H RANKS LOG PROGRAM... -- all RANKS on H hosts, one behind the other
hosts() {
    h=$1 n=$2 log=$OUT/$3.log
    shift 3
    # shellcheck disable=SC2086 # LAUNCHER is a list of words
    MPIR_CVAR_NUM_CLIQUES=$h MPIR_CVAR_CLIQUES_BY_BLOCK=${by_block:-1} FSDP_TIMEOUT_S=60 \
        timeout -k 5 300 $LAUNCHER -n "$n" "$@" >"$log" 2>&1 </dev/null &
    child=$!
    wait $child
    status=$? child=''
}

# verdict NAME GOOD -- PASS when the run ended well and GOOD (a command) holds
verdict() {
    if [ $status -eq 0 ] && [ "$(grep -c '^DONE' "$log")" -eq "$n" ] && ! grep -q '^FAIL' "$log" && eval "$2"; then
        echo "PASS $1"
    else
        echo "FAIL $1, exit status $status: $(grep -m1 -E '^FAIL|^differs|rror|waited' "$log"); log: $log"
        failed=1
    fi
}

# every_call H L -- all that the unit programs look at
every_call() {
    hosts "$1" $(($1 * $2)) "comm-$1x$2" "$BUILD/tests/unit/test_comm"
    verdict "$1 hosts x $2 ranks: collectives" '[ "$(grep -c ^PASS "$log")" -eq $((183 - 52 * $(grep -c ^SKIP "$log"))) ]'
    hosts "$1" $(($1 * $2)) "link-$1x$2" "$BUILD/tests/unit/test_link"
    verdict "$1 hosts x $2 ranks: simulated network" '[ "$(grep -c ^PASS "$log")" -eq 7 ]'
}

# collectives H L ROUNDS -- drawn ones, and what depends on who is on which host
collectives() {
    hosts "$1" $(($1 * $2)) "mesh-$1x$2" "$BUILD/tests/unit/test_mesh"
    verdict "$1 hosts x $2 ranks: mesh" '[ "$(grep -c ^PASS "$log")" -eq 4 ]'
    hosts "$1" $(($1 * $2)) "order-$1x$2" "$BUILD/tests/unit/test_comm_order"
    verdict "$1 hosts x $2 ranks: what they touch" '[ "$(grep -c ^PASS "$log")" -eq 8 ]'
    hosts "$1" $(($1 * $2)) "stress-$1x$2" "$BUILD/tests/unit/comm_stress" --rounds "$3" --seed "$1$2"
    verdict "$1 hosts x $2 ranks: $(sed -n 's/^PASS //p' "$log")" 'grep -q "^PASS stress over shm+mpi," "$log"'
    hosts "$1" $(($1 * $2)) "apart-$1x$2" env COMM_TEST_DEVICE=apart \
        "$BUILD/tests/unit/comm_stress" --rounds "$3" --seed "$2$1"
    verdict "$1 hosts x $2 ranks: $(sed -n 's/^PASS //p' "$log")" 'grep -q "^PASS stress over shm+mpi+staged," "$log"'
}

# stays_with_mpi NAME H RANKS
stays_with_mpi() {
    hosts "$2" "$3" "mpi-$2-$3" "$BUILD/tests/unit/comm_stress" --rounds 3
    verdict "$1: MPI alone" 'grep -q "^PASS stress over mpi," "$log"'
}

options='--size tiny --reduction canonical --global-batch 24 --steps 5 --synthetic 100000'
# train H L [OPTIONS] -- the trainer on hosts, its losses against one device's
train() {
    at="$1 hosts x $2 ranks" name="train-$1x$2$(echo "${3:-}" | tr -d ' ')" n=$(($1 * $2))
    rm -f "$OUT/$name.csv"
    # shellcheck disable=SC2086 # words
    hosts "$1" $n "$name" "$BUILD/fsdp_train" $options ${3:-} --loss-csv "$OUT/$name.csv"
    if [ $status -eq 0 ] && said=$("$BUILD/fsdp_compare" "$OUT/single.csv" "$OUT/$name.csv"); then
        echo "PASS $at: trainer${3:+ $3}: $said"
    else
        echo "FAIL $at: trainer${3:+ $3}, exit status $status: ${said:-$(tail -1 "$log")}; log: $log"
        failed=1
    fi
}

# planned H L -- compare what runs on hosts send and hold with dry runs; then cells of the matrix
planned() {
    hosts "$1" $(($1 * $2)) "planned-$1x$2" "$BUILD/tests/equivalence/matrix" --pairs --seed 103 \
        --fix 'transport=--comm auto' --fix 'model=--seq-len 16' --fix 'batch=*accum 3' --fix 'prefetch=*both'
    verdict "$1 hosts x $2 ranks: planned calls, bytes and memory" 'grep -q "^[0-9]* passed, 0 failed" "$log"'
    hosts "$1" $(($1 * $2)) "report-$1x$2" "$BUILD/fsdp_train" $options
    if [ $status -eq 0 ] && grep -q '^sent by rank 0' "$log" && ! grep -q DIFFERS "$log"; then
        echo "PASS $1 hosts x $2 ranks: the report finds no difference from the plan"
    else
        echo "FAIL $1 hosts x $2 ranks: the report, exit status $status: $(grep -m1 DIFFERS "$log"); log: $log"
        failed=1
    fi
}

# disagree H L CASE -- all ranks are told, which is no time-out
disagree() {
    COMM_FAULT_MEET=$(mktemp -d) || exit 1
    export COMM_FAULT_MEET
    hosts "$1" $(($1 * $2)) "faults-$1x$2-$3" "$BUILD/tests/unit/comm_faults" "$3"
    rm -rf "$COMM_FAULT_MEET"
    unset COMM_FAULT_MEET
    told=$(grep -c '^SAW.*FSDP_EMISMATCH' "$log")
    if [ "$told" -eq "$n" ]; then
        echo "PASS $1 hosts x $2 ranks: ranks disagree, $3"
    else
        echo "FAIL $1 hosts x $2 ranks: ranks disagree, $3: $told of $n told; log: $log"
        failed=1
    fi
}

# no_memory H L CASE FIRST -- the last rank gets no memory while a group is made, at each of its requests from FIRST on in
# turn: all are told, or all go on
no_memory() {
    at="$1 hosts x $2 ranks: $3"
    for request in $(seq "$4" 200); do
        COMM_FAULT_MEET=$(mktemp -d) || exit 1
        export COMM_FAULT_MEET COMM_FAULT_ALLOC="$request"
        rm -f "$OUT/injected"
        hosts "$1" $(($1 * $2)) "faults-$1x$2-$3" env LD_PRELOAD="$BUILD/tests/cli/alloc_fail.so" ALLOC_LOG="$OUT/injected" \
            "$BUILD/tests/unit/comm_faults" "$3"
        rm -rf "$COMM_FAULT_MEET"
        unset COMM_FAULT_MEET COMM_FAULT_ALLOC
        told=$(grep -c '^SAW.*FSDP_ENOMEM' "$log") well=$(grep -c '^SAW.*FSDP_OK' "$log")
        [ -e "$OUT/injected" ] || break
        [ "$told" -eq "$n" ] || [ "$well" -eq "$n" ] && continue
        echo "FAIL $at: request $request: $told of $n told; log: $log"
        failed=1
        return
    done
    if [ "$request" -gt "$4" ] && [ "$well" -eq "$n" ]; then
        echo "PASS $at, with $((request - 1)) requests"
    else
        echo "FAIL $at: there is no request $request, and the ranks do not go on; log: $log"
        failed=1
    fi
}

hosts 2 4 probe "$BUILD/tests/unit/comm_stress" --rounds 1
if grep -q 'over shm,' "$OUT/probe.log"; then
    echo "SKIP hosts: this MPI does not divide its ranks (MPIR_CVAR_NUM_CLIQUES)"
    exit 0
fi
if [ $mode = memory ]; then
    no_memory 2 2 split_no_memory 1
    no_memory 2 2 open_no_memory 8 # before that it has no group to tell its peers by
    exit $failed
fi
# shellcheck disable=SC2086 # words
"$BUILD/fsdp_train" --parallel single $options --loss-csv "$OUT/single.csv" >"$OUT/single.log" 2>&1 || {
    echo "FAIL hosts: the run on one device failed; log: $OUT/single.log"
    exit 1
}
case $mode in
quick)
    every_call 2 2
    collectives 2 2 15
    collectives 2 3 15
    planned 2 2
    train 2 2
    train 2 3
    train 2 2 '--sharding hybrid --fsdp-size 2'
    train 2 2 '--layout per-param'
    train 2 3 '--sharding hybrid --fsdp-size 2'
    disagree 2 2 label
    disagree 2 2 subgroup_awaited
    disagree 2 4 subgroup_awaited
    disagree 2 3 op
    ;;
full)
    for layout in '2 2' '3 2' '2 3' '4 2' '2 4'; do
        # shellcheck disable=SC2086 # two numbers
        every_call $layout
        # shellcheck disable=SC2086
        collectives $layout 300
        for case in op elems_large label root lengths pairs skipped subgroup subgroup_awaited; do
            # shellcheck disable=SC2086
            disagree $layout $case
        done
        # shellcheck disable=SC2086
        train $layout
        # shellcheck disable=SC2086
        train $layout '--sharding hybrid --fsdp-size 2'
    done
    ;;
*) echo "usage: $0 [quick|memory|full] [BUILD]" >&2 && exit 2 ;;
esac
stays_with_mpi '2 hosts x 1 rank' 2 2
stays_with_mpi '2 + 1 ranks' 2 3
by_block=0
stays_with_mpi 'ranks in turn on 2 hosts' 2 4
exit $failed
