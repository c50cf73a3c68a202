#!/bin/sh
# losses.sh [--make] [BUILD] [NAME ...] -- the coursework losses: committed files, the same bits everywhere.
#
# With --ops portable and --reduction canonical the losses do not depend on the machine, the compiler or the
# number of ranks, so tests/reference/NAME.csv is compared byte for byte with runs on RANKS (default "1 2 3 4")
# ranks. --make writes the files anew (needed only when the recipe itself changes, which every learner's
# copy would notice).  Names: tiny small xl-2l (default: tiny small).
set -u
make=0
[ "${1:-}" = --make ] && make=1 && shift
build=${1:-build}
[ $# -gt 0 ] && shift
names=${*:-tiny small}
here=$(dirname "$0")
BUILD=$build
. "$here/../tools/env.sh"
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT INT TERM
failed=0

options() {
    case $1 in
    tiny) echo "--size tiny --seq-len 32 --steps 20" ;;
    small) echo "--size small --seq-len 64 --steps 10" ;;
    xl-2l) echo "--size xl-2l --seq-len 32 --steps 3" ;;
    *) echo "losses.sh: unknown name $1, expected tiny, small or xl-2l" >&2; exit 2 ;;
    esac
}

# train NAME W CSV -- global batch 24 divides by 1, 2, 3, 4, 6 and 8
train() {
    launcher=
    [ "$2" -gt 1 ] && launcher="$LAUNCHER -n $2"
    $launcher "$build/fsdp_train" $(options "$1") --global-batch 24 --reduction canonical --ops portable \
        --synthetic 100000 --loss-csv "$tmp/raw.csv" > "$tmp/log" 2>&1 || { tail -5 "$tmp/log"; return 1; }
    cut -d, -f1-4 "$tmp/raw.csv" > "$3"
}

for name in $names; do
    reference=$here/$name.csv
    if [ $make = 1 ]; then
        train "$name" 1 "$reference" && echo "wrote $reference"
        continue
    fi
    for w in ${RANKS:-1 2 3 4}; do
        if ! train "$name" "$w" "$tmp/got.csv"; then
            echo "FAIL reference $name W=$w: the trainer failed"
            failed=1
        elif verdict=$("$build/fsdp_compare" "$reference" "$tmp/got.csv"); then
            echo "PASS reference $name W=$w: $verdict"
        else
            echo "FAIL reference $name W=$w: $verdict"
            failed=1
        fi
    done
done
exit $failed
