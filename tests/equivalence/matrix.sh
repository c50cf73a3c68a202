#!/bin/sh
# matrix.sh -- the matrix of options on W = 1, 2, 3, 4 ranks: see matrix.c.
#
#   tests/equivalence/matrix.sh [fewest|few|quick|full] [BUILD]        RANKS="1 3": only these
#
# fewest, few: some pairs, for slow devices. quick: pairs on 1, 2, 3 and 4 ranks (on 4 of some axes); pairs in fast mode, compared only
# with their plans; pairs under fsdp_run. full: triples on 1 to 5 and 8 ranks, with two seeds, and again in fast mode; pairs under
# the adversarial scheduler, with 40 seeds. Prints a line for each launch (see tests/tools/check.sh). Logs: $LOGS/matrix/.
set -u
cd "$(dirname "$0")/../.." || exit 2
mode=${1:-quick}
BUILD=${2:-${BUILD:-build}}
PROGRAM=$BUILD/tests/equivalence/matrix
. tests/tools/env.sh
. tests/tools/check.sh
OUT=$LOGS/matrix
mkdir -p "$OUT/tmp" || exit 2
[ -x "$PROGRAM" ] || { echo "matrix.sh: no $PROGRAM; run \"make tests\"" >&2 && exit 2; }
export TMPDIR="$PWD/$OUT/tmp" FSDP_TIMEOUT_S="${FSDP_TIMEOUT_S:-300}"
case $OUT in /*) TMPDIR=$OUT/tmp ;; esac
trap 'rm -rf "$OUT/tmp"' EXIT
fast='--fix reduction=*fast'

# figures -- print what the cells of a launch cover, after the launch's line
figures() { sed -n 's/^PASS W=[0-9]* coverage: \(.*\); [0-9]* s$/, \1/p' "$log"; }
place_of=figures

# launch W ARGS... -- run the matrix on W ranks. $by: the command that starts several ranks
by=$MPI_LAUNCHER
launch() {
    w=$1 done_marks=$1
    shift
    what="W=$w $*"
    log=$OUT/$(echo "$what" | tr -cs 'A-Za-z0-9=\n' '-' | cut -c 1-150).log
    set -f
    # shellcheck disable=SC2086 # words
    if [ "$w" -eq 1 ]; then check "$what" 3600 "$log" "$PROGRAM" "$@"; else check "$what" 3600 "$log" $by -n "$w" "$PROGRAM" "$@"; fi
    set +f
}

ranks=${RANKS:-1 2 3 4}
case $mode in
few*)
    [ $mode = few ] && set -- || set -- --fix 'transport=*auto' --fix 'memory='
    launch 3 --pairs --seed 3 "$@" --fix 'model=*131*' --fix 'batch=*accum 4' --fix 'prefetch=*both' --fix 'wrap=*wrap block' \
        --fix 'recompute=*checkpointing' --fix 'freeze=*bias' --fix 'evaluation=' --fix 'limit=*1' --fix 'bucket=*block' \
        --fix 'strategy=*full' --fix 'host=' --fix 'files=' --fix 'threads=*1' --fix 'clip=*0.5' \
        --fix 'schedule=' --fix 'optimizer=*adamw' --fix 'loss=*19' --fix 'digests='
    ;;
quick)
    for w in $ranks; do
        case $w in
        4) # MPI's threads fight over few cores, so few axes; 4 ranks of fsdp_run have all, and so have 3 ranks here
            launch 4 --pairs --seed 4 --fix 'model=--seq-len 16' --fix 'recompute=*gradient-checkpointing' --fix 'optimizer=*adamw' \
                --fix 'schedule=' --fix 'files=' --fix 'host=' --fix 'evaluation=' --fix 'digests='
            ;;
        *) launch "$w" --pairs --seed "$w" ;;
        esac
    done
    # shellcheck disable=SC2086 # words
    launch 3 --pairs --seed 13 $fast
    by="$BUILD/fsdp_run --no-prefix"
    launch 4 --pairs --seed 14
    ;;
full)
    for w in ${RANKS:-1 2 3 4 5 8}; do
        launch "$w" --seed "2$w"
        launch "$w" --seed "3$w"
        # shellcheck disable=SC2086 # words
        launch "$w" $fast --seed "4$w"
    done
    by="$BUILD/fsdp_run --no-prefix"
    for seed in $(seq 101 140); do
        launch $((2 + seed % 3)) --pairs --seed "$seed" --fix 'host=FSDP_SCHEDULE*' --fix 'transport=--comm auto'
    done
    ;;
*) echo "usage: $0 [fewest|few|quick|full] [BUILD]" >&2 && exit 2 ;;
esac
sum
