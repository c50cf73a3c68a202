#!/bin/sh
# run.sh -- the equivalence suite on W = 1, 2, 3, 4 ranks.
#
#   tests/equivalence/run.sh [few|quick|full] [BUILD]        RANKS="1 3": only these
#
# few, quick: the tiny model with part of the combinations, and a few drawn configurations; in shared memory, and once
# over MPI (not without it). On a device with a transport of its own: over that, and once in shared memory. full: all
# combinations, many drawn configurations (on 5 and 8 ranks too), and GPT-2 XL's shape; over both.
# A line for each launch (see tests/tools/check.sh). Logs: $LOGS/equivalence/.
set -u

mode=${1:-quick}
BUILD=${2:-${BUILD:-build}}
PROGRAM=$BUILD/tests/equivalence/equivalence
. tests/tools/env.sh
OUT=$LOGS/equivalence
. tests/tools/check.sh
case $mode in
few) many=3 ;;
quick) many=40 ;;
full) ;;
*) echo "usage: $0 [few|quick|full] [BUILD]" >&2 && exit 2 ;;
esac
[ -x "$PROGRAM" ] || { echo "run.sh: no $PROGRAM; run \"make tests\"" >&2 && exit 2; }
mkdir -p "$OUT" || exit 2

# launch W LIMIT NAME ARGS... -- over: the transport of several ranks
launch() {
    w=$1 limit=$2 what="$3 W=$1${over:+ over $over}" log=$OUT/$3-W$1${over:+-$over}.log done_marks=$1
    shift 3
    if [ "$w" -eq 1 ]; then
        check "$what" "$limit" "$log" "$PROGRAM" "$@"
    else
        # shellcheck disable=SC2086 # words
        check "$what" "$limit" "$log" env FSDP_COMM="$over" $LAUNCHER -n "$w" "$PROGRAM" "$@"
    fi
}

# some W -- few or quick: part of the combinations, drawn configurations
some() {
    launch "$1" 150 tiny --$mode
    launch "$1" 100 random --random $many --seed $((100 + $1))
}

# all W -- full
all() {
    launch "$1" 1200 tiny
    launch "$1" 900 random --random 300 --seed $((200 + $1))
    launch "$1" 900 xl --xl
}

over='' ranks=" ${RANKS:-1 2 3 4} "
[ "$mode" != full ] && [ "${ranks#* 1 }" != "$ranks" ] && some 1
[ -x "$BUILD/fsdp_run" ] &&
    check 'random W=1 under fsdp_run' 60 "$OUT/random-W1-run.log" "$BUILD/fsdp_run" -n 1 --no-prefix "$PROGRAM" --random 3 --seed 101
[ "$mode" = full ] && all 1
for over in $TRANSPORTS; do
    for w in $ranks; do
        [ "$w" -gt 1 ] || continue
        [ "$mode" = full ] && all $w
        [ "$mode" != full ] && [ "$over" = "${TRANSPORTS%% *}" ] && some $w
    done
    [ "$mode" != full ] && [ "$over" != "${TRANSPORTS%% *}" ] && launch 3 60 random --random $many --seed 103
    if [ "$mode" = full ]; then
        launch 5 600 random --random 20 --seed 205
        launch 8 600 random --random 10 --seed 208
    fi
done
no_mpi 'equivalence over mpi' && skipped=1
sum
