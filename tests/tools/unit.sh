#!/bin/sh
# unit.sh -- the unit programs, one line each.
#
#   tests/tools/unit.sh [--ranks "1 2 3 4"] [PROGRAM...]      BUILD=build
#
# A program whose source says "mpiexec -n W" runs once for every number of ranks and every transport
# (shm and mpi, or what FSDP_COMM says; without MPI shm), and every rank must print its DONE line: mpiexec returns 0
# when a rank leaves early with status 0. With --ranks only those programs run, without it on 1 to 4
# ranks. Logs: $BUILD/test/unit/.
set -u
cd "$(dirname "$0")/../.." || exit 2
BUILD=${BUILD:-build} LIMIT=${LIMIT:-120}
ranks='1 2 3 4' only_ranks=''
[ "${1:-}" = --ranks ] && ranks=${2:?} only_ranks=1 && shift 2
OUT=$BUILD/test/unit
mkdir -p "$OUT" || exit 2
. tests/tools/env.sh
transports=${FSDP_COMM:-$TRANSPORTS}
unset FSDP_COMM
trap 'kill -TERM $child 2>/dev/null; exit 130' INT TERM HUP
child='' over='' passed=0 failed=0 skipped=0

# count LOG -- "passed failed skipped"
count() {
    awk '
        /^\[=+\] .*test\(s\) run/ { listing = 1 }
        /^\[=+\] Running/ { listing = 0 }
        /^\[ +OK +\]/ || /^PASS / { p++ }
        /^\[  FAILED  \]/ && !listing || /^FAIL / { f++ }
        /^\[  SKIPPED \]/ && !listing || /^SKIP / { s++ }
        END { print p + 0, f + 0, s + 0 }' "$1"
}

# run NAME W COMMAND... -- over: the transport, of W > 1
run() {
    name=$1 w=$2 log=$OUT/$1-W$2${over:+-$over}.log
    shift 2
    # shellcheck disable=SC2086 # WRAP: valgrind and its options, or nothing
    timeout -k 5 "$LIMIT" "$@" >"$log" 2>&1 </dev/null &
    child=$!
    wait $child
    status=$? child=''
    # shellcheck disable=SC2046
    set -- $(count "$log")
    why=''
    if [ $status -eq 124 ]; then
        why="not done in $LIMIT s"
    elif [ "$2" -gt 0 ]; then
        why=$(grep -m1 -E '^\[  FAILED  \]|^FAIL ' "$log")
    elif [ $status -ne 0 ]; then
        why="exit status $status: $(tail -1 "$log")"
    elif [ $(($1 + $3)) -eq 0 ]; then
        why='no test ran'
    elif [ "$w" -ne 0 ] && [ "$(grep -c '^DONE' "$log")" -ne "$w" ]; then
        why="$(grep -c '^DONE' "$log") of $w ranks were done"
    fi
    bad=$2
    [ -n "$why" ] && [ "$bad" -eq 0 ] && bad=1
    passed=$((passed + $1)) failed=$((failed + bad)) skipped=$((skipped + $3))
    title=$name
    [ "$w" -gt 0 ] && title="$name on $w ranks${over:+ over $over}"
    if [ -n "$why" ]; then
        echo "FAIL $title: $why"
        echo "     log: $log"
    else
        echo "PASS $title: $1 tests"
    fi
    [ "$3" -gt 0 ] && grep -E '^SKIP |^\[  SKIPPED' "$log" | sed 's/^\[  SKIPPED \]/SKIP/' | grep -v 'listed below' | sort -u
}

[ $# -gt 0 ] || set -- tests/unit/test_*.c
for program in "$@"; do
    name=$(basename "$program" .c)
    exe=$BUILD/tests/unit/$name
    if grep -q 'mpiexec -n W' "tests/unit/$name.c"; then
        for w in $ranks; do
            if [ "$w" -eq 1 ]; then
                run "$name" 1 ${WRAP:-} "$exe"
                continue
            fi
            for over in $transports; do
                # shellcheck disable=SC2086 # words
                run "$name" "$w" env FSDP_COMM="$over" $LAUNCHER -n "$w" ${WRAP:-} "$exe"
            done
            over=''
        done
    elif [ -z "$only_ranks" ]; then
        run "$name" 0 ${WRAP:-} "$exe"
    fi
done
no_mpi 'several ranks over mpi' && skipped=$((skipped + 1))
totals="$passed passed, $failed failed"
[ $skipped -gt 0 ] && totals="$totals, $skipped skipped"
echo "$totals"
[ $failed -eq 0 ]
