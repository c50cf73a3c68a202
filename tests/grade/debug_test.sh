#!/bin/sh
# debug_test.sh -- make debug: a rank under gdb, on a terminal and without.
#
#   tests/grade/debug_test.sh [BUILD]        default: build, with the grader of lab 2 in it
set -u
cd "$(dirname -- "$0")/../.." || exit 2
BUILD=${1:-build}
. tests/tools/test_lib.sh
begin debug

# says NAME PATTERN... -- the last command printed these patterns
says() {
    name=$1
    shift
    said "$@"
    verdict "$name" $?
}
debug() { limit -k 3 60 "$@" >"$log" 2>&1 </dev/null; }

debug tests/grade/debug.sh --task 2.9 --rank 1 "$BUILD"
says 'a task that does not exist' 'got TASK=2\.9, expected a task' '^HINT: make debug'
debug tests/grade/debug.sh --task 2.1 --rank 3 "$BUILD"
says 'a rank that does not exist' 'got RANK=3, expected one from 0 to 2 of RANKS=3' '^HINT: '
debug tests/grade/debug.sh --task 2.1 --rank 1 --ranks '2 3' "$BUILD"
says 'ranks that are no number' 'got RANK=1 RANKS=2 3, expected numbers' '^HINT: '
debug env GDB="$dir/gdb" tests/grade/debug.sh --task 2.1 --rank 1 "$BUILD"
says 'no gdb' 'there is no .*/gdb on this machine' '^HINT: apt-get install gdb'

if ! command -v gdb >/dev/null; then
    echo 'SKIP a rank under gdb: gdb is not installed'
    exit $bad
fi
# One rank hits the breakpoint, and the backtrace leads to the task.
debug tests/grade/debug.sh --task 2.1 --rank 1 --break unshard_begin "$BUILD"
[ $? -eq 124 ] || echo 'the job ended' >>"$log" # no rank waits for the rank that gdb stopped
[ "$(grep -c 'hit Breakpoint' "$log")" -ne 1 ] || echo 'one rank was stopped' >>"$log"
says 'a breakpoint' 'hit Breakpoint .*unshard_begin' '^#0 +(0x[0-9a-f]+ in )?unshard_begin' 'task_2_1' \
    'the job ended' 'one rank was stopped'
# On a terminal gdb gets what is typed, and its output comes back.
printf 'backtrace 2\ndelete 1\ncontinue\nquit\n' |
    limit -k 3 60 script -qec "tests/grade/debug.sh --task 2.1 --rank 1 --break task_2_1 $BUILD" /dev/null >"$log" 2>&1
says 'a terminal' '\(gdb\) backtrace 2' 'hit Breakpoint' 'exited normally' 'VERDICT 2\.1 PASS'
debug tests/grade/debug.sh --task 2.1 --rank 2 "$BUILD"
says 'a task that stops nowhere' 'exited normally' '^VERDICT 2\.1 PASS' 'DONE 2\.1 rank 2/3'
exit $bad
