#!/bin/sh
# run.sh -- the equivalence suite on W = 1, 2, 3, 4 ranks.
#
#   tests/equivalence/run.sh [quick|full] [BUILD]
#
# quick: the tiny model with part of the combinations, and a few drawn configurations.
# full: all combinations, many drawn configurations (on 5 and 8 ranks too), and GPT-2 XL's shape on 2 and 3 ranks.
# A launch passes when it exits with 0, says "0 failed" and every rank leaves its done-marker. Logs: $BUILD/equivalence/.
set -u

mode=${1:-quick}
BUILD=${2:-${BUILD:-build}}
PROGRAM=$BUILD/tests/equivalence/equivalence
OUT=$BUILD/equivalence
case $mode in
quick | full) ;;
*) echo "usage: $0 [quick|full] [BUILD]" >&2 && exit 2 ;;
esac
[ -x "$PROGRAM" ] || { echo "run.sh: no $PROGRAM; run \"make tests\"" >&2 && exit 2; }
mkdir -p "$OUT" || exit 2

launch_pid=''
stop() {
    [ -n "$launch_pid" ] && kill -TERM "$launch_pid" 2>/dev/null && wait "$launch_pid"
    exit 130
}
trap stop INT TERM HUP

passed=0 failed=0 launches_failed=0

# launch W LIMIT NAME ARGS... -- run, count its checks, show failures
launch() {
    w=$1 limit=$2 log=$OUT/$3-W$1.log what="$3 W=$1"
    shift 3
    begin=$(date +%s)
    if [ "$w" -eq 1 ]; then
        timeout -k 3 "$limit" "$PROGRAM" "$@" >"$log" 2>&1 </dev/null &
    else
        timeout -k 3 "$limit" mpiexec -n "$w" "$PROGRAM" "$@" >"$log" 2>&1 </dev/null &
    fi
    launch_pid=$!
    wait "$launch_pid"
    status=$?
    launch_pid=''
    good=$(grep -c '^PASS ' "$log")
    bad=$(grep -c '^FAIL ' "$log")
    marks=$(grep -c "^DONE rank [0-9]*/$w\$" "$log")
    passed=$((passed + good)) failed=$((failed + bad))
    grep '^FAIL ' "$log"
    if [ "$status" -ne 0 ] || [ "$marks" -ne "$w" ] || [ "$good" -eq 0 ]; then
        launches_failed=$((launches_failed + 1))
        echo "FAIL $what: exit status $status, $marks of $w done-markers, $bad checks failed; log: $log"
        echo "        rerun: mpiexec -n $w $PROGRAM $*"
    else
        echo "PASS $what: $good checks ($(($(date +%s) - begin)) s)"
    fi
}

for w in 1 2 3 4; do
    if [ "$mode" = quick ]; then
        launch $w 120 tiny --quick
        launch $w 60 random --random 40 --seed $((100 + w))
    else
        launch $w 400 tiny
        launch $w 300 random --random 300 --seed $((200 + w))
    fi
done
if [ "$mode" = full ]; then
    launch 5 200 random --random 20 --seed 205
    launch 8 200 random --random 10 --seed 208
    for w in 1 2 3 4; do
        launch $w 300 xl --xl
    done
fi
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$launches_failed" -eq 0 ]
