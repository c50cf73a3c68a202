#!/bin/bash
# shellcheck disable=SC2016,SC2034 # verdict evaluates conditions
# comm_hosts.sh -- groups over several hosts, simulated on one machine: MPICH can divide its ranks into hosts.
#
#   tests/unit/comm_hosts.sh [quick|memory|full] [BUILD]        memory: only failing allocations
#
# H hosts of L ranks each use shared memory inside a host and MPI between hosts. Every collective is checked on them (test_comm,
# comm_stress). The trainer's losses must equal the losses on one device, and ranks on all hosts must hear of a failure on one
# host (comm_faults). If ranks are not numbered host by host, or hosts have unequal numbers of ranks, all calls use MPI.
# tests/multihost/run.sh has hosts with a network between them. Prints one PASS, FAIL or SKIP line per run; the logs are in
# $BUILD/test/hosts/. Exit status 0 iff all pass.
set -u
mode=${1:-quick}
BUILD=${2:-${BUILD:-build}}
. tests/tools/env.sh
no_hosts hosts && exit 77
OUT=$BUILD/test/hosts
mkdir -p "$OUT" || exit 2
child='' failed=0
trap 'kill -TERM $child 2>/dev/null; exit 130' INT TERM HUP

# hosts H RANKS LOG PROGRAM... -- runs RANKS ranks on H hosts, numbered host by host (by_block=0: in turn)
hosts() {
    local h=$1
    n=$2 at="$h hosts x $(($2 / $1)) ranks" log=$OUT/$3-$1-$2.log
    shift 3
    # shellcheck disable=SC2086 # MPI_LAUNCHER is a list of words
    MPIR_CVAR_NUM_CLIQUES=$h MPIR_CVAR_CLIQUES_BY_BLOCK=${by_block:-1} FSDP_TIMEOUT_S=200 \
        tests/tools/limit.sh 300 $MPI_LAUNCHER -n "$n" "$@" >"$log" 2>&1 </dev/null &
    child=$!
    wait $child
    status=$? child=''
}

# verdict NAME GOOD [WHY] -- PASS when GOOD (a command) holds
verdict() {
    eval "$2" && echo "PASS $1" && return
    echo "FAIL $1, exit status $status: ${3:-$(grep -m1 -E '^FAIL|^differs|DIFFERS|rror|waited' "$log")}; log: $log"
    failed=1
}

# said N REGEX -- exactly N lines of the log match
said() {
    [ "$(grep -cE "$2" "$log")" = "$1" ]
}

# checks NAME PROGRAM COUNT H RANKS -- a unit program, which must pass COUNT checks
checks() {
    hosts "$4" "$5" "$2" "$BUILD/tests/unit/$2"
    verdict "$at: $1" '[ $status = 0 ] && said $n ^DONE && said 0 ^FAIL && said '"$3"' ^PASS'
}

# drawn NAME BACKEND ROUNDS SEED H RANKS -- random collectives, over BACKEND
drawn() {
    hosts "$5" "$6" "stress-$2" "$BUILD/tests/unit/comm_stress" --rounds "$3" --seed "$4"
    verdict "${1:-$at: $(sed -n 's/^PASS //p' "$log")}" '[ $status = 0 ] && said $n ^DONE && said 1 "^PASS stress over '"${2//+/[+]},"'"'
}

# every_call H RANKS -- all checks of the unit programs
every_call() {
    checks collectives test_comm '$((162 - 46 * $(grep -c ^SKIP "$log")))' "$@"
    checks 'simulated network' test_link 7 "$@"
}

# collectives H RANKS ROUNDS -- random collectives, and checks that depend on which rank is on which host
collectives() {
    checks mesh test_mesh 3 "$1" "$2"
    checks 'what they touch' test_comm_order 8 "$1" "$2"
    drawn '' shm+mpi "$3" "$1$2" "$1" "$2"
    COMM_TEST_DEVICE=apart drawn '' shm+mpi+staged "$3" "$2$1" "$1" "$2"
}

options='--size tiny --reduction canonical --global-batch 24 --steps 5 --synthetic 100000'
# train H RANKS [OPTIONS] -- compares the trainer's losses on hosts with the losses on one device
train() {
    local csv=$OUT/train.csv
    rm -f "$csv"
    # shellcheck disable=SC2086 # words
    hosts "$1" "$2" "train$(echo "${3:-}" | tr -d ' ')" "$BUILD/fsdp_train" $options ${3:-} --loss-csv "$csv"
    compared=$("$BUILD/fsdp_compare" "$OUT/single.csv" "$csv" 2>&1) && compared_well=1 || compared_well=0
    verdict "$at: trainer${3:+ $3}: $compared" '[ $status = 0 ] && [ $compared_well = 1 ]' "$(tail -1 "$log")"
}

# planned H RANKS [OPTION...] -- compares cells of the matrix with one device, and what they send and hold with dry runs; then the
# trainer's report with its plan
planned() {
    hosts "$1" "$2" planned "$BUILD/tests/equivalence/matrix" --pairs --seed 103 \
        --fix 'transport=--comm auto' --fix 'model=--seq-len 16' --fix 'batch=*accum 3' --fix 'prefetch=*both' "${@:3}"
    verdict "$at: planned calls, bytes and memory" '[ $status = 0 ] && said 1 "^[0-9]* passed, 0 failed" && said $n ^DONE'
    # shellcheck disable=SC2086 # words
    hosts "$1" "$2" report "$BUILD/fsdp_train" $options
    verdict "$at: the report finds no difference from the plan" '[ $status = 0 ] && grep -q "^sent by rank 0" "$log" && said 0 DIFFERS'
}

# faulty H RANKS CASE [WORD...] -- runs a case of comm_faults; WORDs come before the program
faulty() {
    COMM_FAULT_MEET=$(mktemp -d) || exit 1
    export COMM_FAULT_MEET
    hosts "$1" "$2" "faults-$3" "${@:4}" "$BUILD/tests/unit/comm_faults" "$3"
    rm -rf "$COMM_FAULT_MEET"
}

# disagree H RANKS CASE -- all ranks get the error of a disagreement, not a time-out
disagree() {
    faulty "$@"
    verdict "$at: ranks disagree, $3" 'said $n "^SAW.*FSDP_EMISMATCH"' 'not all are told'
}

# no_memory H RANKS CASE FIRST -- memory requests of the last rank fail while a group is made, each in turn from request FIRST
# on: either all ranks get the error, or all go on
no_memory() {
    local request
    for request in $(seq "$4" 200); do
        rm -f "$OUT/injected"
        export COMM_FAULT_ALLOC="$request"
        faulty "$1" "$2" "$3" env LD_PRELOAD="$BUILD/tests/cli/alloc_fail.so" ALLOC_LOG="$OUT/injected"
        [ -e "$OUT/injected" ] || break
        said $n '^SAW.*FSDP_ENOMEM' || said $n '^SAW.*FSDP_OK' ||
            { verdict "$at: $3: request $request" false 'neither told nor going on' && return; }
    done
    verdict "$at: $3, with $((request - 1)) requests" "[ $request -gt $4 ] && said \$n '^SAW.*FSDP_OK'" 'the ranks do not go on'
}

if [ $mode = memory ]; then
    no_memory 2 4 split_no_memory 1
    no_memory 2 4 open_no_memory 8 # an earlier failure leaves no group to tell the peers
    exit $failed
fi
# shellcheck disable=SC2086 # words
"$BUILD/fsdp_train" --parallel single $options --loss-csv "$OUT/single.csv" >"$OUT/single.log" 2>&1 || {
    echo "FAIL hosts: the run on one device failed; log: $OUT/single.log"
    exit 1
}
case $mode in
quick)
    every_call 2 4
    collectives 2 4 8
    collectives 2 6 8
    drawn '' shm+mpi 8 36 3 6
    # the matrix has other values of what is fixed here, on one host
    planned 2 4 --fix 'recompute=*gradient-checkpointing' --fix 'optimizer=*adamw' --fix 'schedule=' --fix 'files=' --fix 'host=' \
        --fix 'maths=*fast' --fix 'offload=' --fix 'loss=' --fix 'freeze=' --fix 'wrap=*wrap block' --fix 'evaluation=' \
        --fix 'clip=*0.5' --fix 'digests=' --fix 'limit=*2' --fix 'bucket=*block' --fix 'threads=*1'
    train 2 6
    train 2 6 '--sharding hybrid --fsdp-size 2'
    disagree 2 4 label
    disagree 2 4 subgroup_awaited
    disagree 2 8 subgroup_awaited
    disagree 2 6 op
    ;;
full)
    for layout in '2 4' '3 6' '2 6' '4 8' '2 8'; do
        # shellcheck disable=SC2086 # two numbers
        {
            every_call $layout
            collectives $layout 300
            for case in op elems_large label root lengths pairs skipped subgroup subgroup_awaited; do
                disagree $layout $case
            done
            train $layout
            train $layout '--sharding hybrid --fsdp-size 2'
        }
    done
    train 2 4 '--layout per-param'
    planned 2 4
    ;;
*) echo "usage: $0 [quick|memory|full] [BUILD]" >&2 && exit 2 ;;
esac
drawn '2 hosts x 1 rank: MPI alone' mpi 3 1 2 2
drawn '2 + 1 ranks: MPI alone' mpi 3 1 2 3
by_block=0
drawn 'ranks in turn on 2 hosts: MPI alone' mpi 3 1 2 4
exit $failed
