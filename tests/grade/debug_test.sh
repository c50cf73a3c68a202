#!/bin/sh
# debug_test.sh -- make debug: a rank under gdb, whichever launcher starts it, on a terminal and without one.
#
#   tests/grade/debug_test.sh [BUILD]        default build, which has the grader of lab 2
set -u
cd "$(dirname -- "$0")/../.." || exit 2
BUILD=${1:-build}
. tests/tools/env.sh
dir=$(mktemp -d "${TMPDIR:-/tmp}/fsdp-debug-test.XXXXXX")
trap 'rm -rf "$dir"' EXIT
n_passed=0 n_failed=0

# verdict NAME PATTERN... -- every pattern is in $dir/out
verdict() {
    name=$1
    shift
    for pattern in "$@"; do
        if ! grep -qE -- "$pattern" "$dir/out"; then
            echo "FAIL $name: no \"$pattern\" in:"
            sed 's/^/     /' "$dir/out" | tail -30
            n_failed=$((n_failed + 1))
            return
        fi
    done
    echo "PASS $name"
    n_passed=$((n_passed + 1))
}
debug() { timeout -k 3 60 "$@" >"$dir/out" 2>&1 </dev/null; }

debug tests/grade/debug.sh --task 2.9 --rank 1 "$BUILD"
verdict 'a task that does not exist' 'got TASK=2\.9, expected a task' '^HINT: make debug'
debug tests/grade/debug.sh --task 2.1 --rank 3 "$BUILD"
verdict 'a rank that does not exist' 'got RANK=3, expected one from 0 to 2 of RANKS=3' '^HINT: '
debug tests/grade/debug.sh --task 2.1 --rank 1 --ranks '2 3' "$BUILD"
verdict 'ranks that are no number' 'got RANK=1 RANKS=2 3, expected numbers' '^HINT: '
debug env GDB="$dir/gdb" tests/grade/debug.sh --task 2.1 --rank 1 "$BUILD"
verdict 'no gdb' 'there is no .*/gdb on this machine' '^HINT: apt-get install gdb'

if ! command -v gdb >/dev/null; then
    echo 'SKIP a rank under gdb: gdb is not installed'
    echo "$n_passed passed, $n_failed failed, 1 skipped"
    [ $n_failed -eq 0 ]
    exit
fi
# with_launcher NAME LAUNCHER -- the breakpoint is hit on one rank, and the backtrace leads to the task. On a terminal what is
# typed goes to gdb, and what it says comes back.
with_launcher() {
    debug env MPIEXEC="$2" tests/grade/debug.sh --task 2.1 --rank 1 --break unshard_begin "$BUILD"
    [ $? -eq 124 ] || echo 'the job ended' >>"$dir/out" # no rank waits for the one that gdb stopped and then left
    [ "$(grep -c 'hit Breakpoint' "$dir/out")" -ne 1 ] || echo 'one rank was stopped' >>"$dir/out"
    verdict "a breakpoint under $1" 'hit Breakpoint .*unshard_begin' '^#0 +(0x[0-9a-f]+ in )?unshard_begin' 'task_2_1' \
        'the job ended' 'one rank was stopped'
    printf 'backtrace 2\ncontinue\nquit\n' |
        timeout -k 3 60 script -qec "env MPIEXEC=$2 tests/grade/debug.sh --task 2.1 --rank 1 --break task_2_1 $BUILD" /dev/null \
            >"$dir/out" 2>&1
    verdict "a terminal under $1" '\(gdb\) backtrace 2' 'hit Breakpoint' 'exited normally' 'VERDICT 2\.1 PASS'
}
[ -n "$NO_MPI" ] || with_launcher mpiexec "${MPIEXEC:-mpiexec}"
with_launcher fsdp_run /nonexistent/mpiexec
debug tests/grade/debug.sh --task 2.1 --rank 2 "$BUILD"
verdict 'a task that stops nowhere' 'exited normally' '^VERDICT 2\.1 PASS' 'DONE 2\.1 rank 2/3'
echo "$n_passed passed, $n_failed failed"
[ $n_failed -eq 0 ]
