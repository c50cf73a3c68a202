#!/bin/sh
# run.sh -- the equivalence suite on W = 1, 2, 3, 4 ranks.
#
#   tests/equivalence/run.sh [quick|full] [BUILD]
#
# quick: the tiny model with part of the combinations, and a few drawn configurations; in shared memory, and once over
# MPI (not without it). full: all combinations, many drawn configurations (on 5 and 8 ranks too), and GPT-2 XL's shape; over both.
# A launch passes when it exits with 0, says "0 failed" and every rank leaves its done-marker. Logs: $BUILD/equivalence/.
set -u

mode=${1:-quick}
BUILD=${2:-${BUILD:-build}}
PROGRAM=$BUILD/tests/equivalence/equivalence
OUT=$BUILD/equivalence
. tests/tools/env.sh
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

# launch W LIMIT NAME ARGS... -- run, count its checks, show failures. over: the transport of several ranks
launch() {
    w=$1 limit=$2 log=$OUT/$3-W$1${over:+-$over}.log what="$3 W=$1${over:+ over $over}"
    shift 3
    begin=$(date +%s)
    if [ "$w" -eq 1 ]; then
        timeout -k 3 "$limit" "$PROGRAM" "$@" >"$log" 2>&1 </dev/null &
    else
        # shellcheck disable=SC2086 # words
        FSDP_COMM=$over timeout -k 3 "$limit" $LAUNCHER -n "$w" "$PROGRAM" "$@" >"$log" 2>&1 </dev/null &
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
        echo "        rerun: FSDP_COMM=$over $LAUNCHER -n $w $PROGRAM $*"
    else
        echo "PASS $what: $good checks ($(($(date +%s) - begin)) s)"
    fi
}

# some W -- quick: part of the combinations, a few drawn configurations
some() {
    launch "$1" 120 tiny --quick
    launch "$1" 60 random --random 40 --seed $((100 + $1))
}

# all W -- full
all() {
    launch "$1" 400 tiny
    launch "$1" 300 random --random 300 --seed $((200 + $1))
    launch "$1" 300 xl --xl
}

over=''
[ "$mode" = quick ] && some 1
[ "$mode" = full ] && all 1
for over in $TRANSPORTS; do
    for w in 2 3 4; do
        [ "$mode" = full ] && all $w
        [ "$mode$over" = quickshm ] && some $w
    done
    [ "$mode$over" = quickmpi ] && launch 3 60 random --random 40 --seed 103
    if [ "$mode" = full ]; then
        launch 5 200 random --random 20 --seed 205
        launch 8 200 random --random 10 --seed 208
    fi
done
skipped=''
no_mpi 'equivalence over mpi' && skipped=', 1 skipped'
echo "$passed passed, $failed failed$skipped"
[ "$failed" -eq 0 ] && [ "$launches_failed" -eq 0 ]
