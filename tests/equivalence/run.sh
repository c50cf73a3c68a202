#!/bin/sh
# run.sh -- the equivalence suite on W = 1, 2, 3, 4 ranks.
#
#   tests/equivalence/run.sh [few|quick|full] [BUILD]        RANKS="1 3": only these
#
# few, quick: the tiny model with part of the combinations, over the first transport. full: all combinations, over each
# transport; and GPT-2 XL's shape (d 1600, 25 heads) with fast operations. matrix.sh tests combinations of options.
# Prints a line for each launch (see tests/tools/check.sh). Logs: $LOGS/equivalence/.
set -u

mode=${1:-quick}
BUILD=${2:-${BUILD:-build}}
PROGRAM=$BUILD/tests/equivalence/equivalence
. tests/tools/env.sh
OUT=$LOGS/equivalence
. tests/tools/check.sh
case $mode in
few | quick | full) ;;
*) echo "usage: $0 [few|quick|full] [BUILD]" >&2 && exit 2 ;;
esac
[ -x "$PROGRAM" ] || { echo "run.sh: no $PROGRAM; run \"make tests\"" >&2 && exit 2; }
mkdir -p "$OUT" || exit 2

# launch W LIMIT NAME ARGS... -- run the suite on W ranks. $over: the transport of several ranks
launch() {
    w=$1 limit=$2 what="$3 W=$1 over $over" log=$OUT/$3-W$1-$over.log done_marks=$1
    shift 3
    if [ "$w" -eq 1 ]; then
        check "$what" "$limit" "$log" "$PROGRAM" "$@"
    else
        # shellcheck disable=SC2046 # words
        check "$what" "$limit" "$log" env FSDP_COMM="$over" $(launcher_over "$over") -n "$w" "$PROGRAM" "$@"
    fi
}

over='' ranks=${RANKS:-1 2 3 4}
for over in $TRANSPORTS; do
    for w in $ranks; do
        [ "$w" -gt 1 ] || [ "$over" = "${TRANSPORTS%% *}" ] || continue
        if [ "$mode" = full ]; then
            launch "$w" 1200 tiny
        elif [ "$over" = "${TRANSPORTS%% *}" ]; then
            launch "$w" 150 tiny --$mode
        fi
    done
done
if [ "$mode" = full ]; then
    done_marks=0
    check "XL's shape" 900 "$OUT/xl.log" env OPS=fast RANKS="$ranks" tests/reference/losses.sh "$BUILD" xl-2l
fi
no_mpi 'equivalence over mpi' && skipped=1
sum
