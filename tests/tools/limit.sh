#!/bin/bash
# limit.sh -- run a command under a time limit that follows the load of the machine (clock.sh).
#
#   tests/tools/limit.sh [-k SECONDS] SECONDS COMMAND...
#
# Like timeout(1): the command has a process group of its own, which gets SIGTERM when its time is over, SIGKILL -k SECONDS (5) later,
# and the status is then 124 or 137. A signal that ends this script ends the command in the same way; the status is the command's.
set -u
. "${0%/*}/clock.sh"
grace=5 child='' late=''
[ "$1" != -k ] || { grace=$2 && shift 2; }
seconds=$1
shift
case $seconds in '' | 0?* | *[!0-9]*) echo "limit.sh: got '$seconds', expected whole seconds" >&2 && exit 125 ;; esac

end() {
    child=${child:-${!:-}} # a signal may come before child=$!
    [ -n "$child" ] || exit 143
    kill -TERM -- -"$child"
    kill -CONT -- -"$child"
    await "$grace" '! kill -0 "$child"' || kill -KILL -- -"$child"
} 2>/dev/null
trap end TERM INT HUP
trap 'late=1; end' ALRM
set -m # its own process group
exec "$@" <&0 &
child=$!
set +m
exec 2>/dev/null # the shell's messages about killed jobs

# The clock ticks until its input ends: then this script has ended.
ended() {
    read -r -t 1
    [ $? -le 128 ]
}
exec {alive}> >(exec >/dev/null && await "$seconds" ended || kill -ALRM $$)
while kill -0 $child; do wait $child; done # a signal interrupts it
wait $child
status=$?
[ -z "$late" ] || [ $status -eq 137 ] || status=124
exit $status
