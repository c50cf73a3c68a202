#!/bin/bash
# limit.sh -- run a command under a time limit that follows the load of the machine.
#
#   tests/tools/limit.sh [-k SECONDS] SECONDS COMMAND...
#
# Like timeout(1): the command gets SIGTERM when its time is over, SIGKILL -k SECONDS (5) later, and the status is then 124 or 137.
# A second counts whole while the processes that want to run have a core each. With R of them on N cores it counts N/R of a second, at
# least a tenth, so that a command that waits for a core is not taken for one that hangs. LOADAVG: a file instead of /proc/loadavg (for tests).
set -u
grace=5
[ "$1" != -k ] || { grace=$2 && shift 2; }
left_ms=$(($1 * 1000)) cores=$(nproc) child=''
shift
trap 'kill -TERM ${child:-$!} 2>/dev/null || exit 143' TERM INT HUP # before the start: a signal may come before child=$!
timeout -k "$grace" 1000000 "$@" <&0 &
child=$!

# clock -- ticks until its input ends, which it does when this script ends, however it does. timeout(1) acts on SIGALRM as it does
# when its own time is over.
clock() {
    while [ $left_ms -gt 0 ]; do
        read -r -t 1
        [ $? -gt 128 ] || return
        read -r _ _ _ running _ <"${LOADAVG:-/proc/loadavg}"
        running=${running%/*}
        share_ms=$((1000 * cores / (running > cores ? running : cores)))
        left_ms=$((left_ms - (share_ms > 100 ? share_ms : 100)))
    done
    kill -ALRM $child
}
exec {alive}> >(clock >/dev/null 2>&1)
while
    { wait $child; } 2>/dev/null # a signal interrupts it
    status=$?
    kill -0 $child 2>/dev/null
do :; done
exit $status
