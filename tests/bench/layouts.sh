#!/bin/sh
# layouts.sh [BUILD] -- compare the flat layout (FSDP1) and the per-parameter one (FSDP2): bytes, memory, padding, time.
#
# Trains GPT-2 124M on 2 ranks with each layout in turn, in shared memory and over MPI. Bytes and memory are the same on
# every machine. A time is the median of all steps after the first two, in the faster of two runs. The rows for 128 ranks
# are plans.
set -u
BUILD=${1:-build}
. "${0%/*}/../tools/env.sh"
shape='--size 124m --seq-len 64 --batch-size 1 --synthetic 100000 --prefetch both'
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT

# row NAME RANKS MS FIGURES -- print a row from the file FIGURES, whose lines are a name and bytes
row() {
    awk -v name="$1" -v ranks="$2" -v ms="$3" '
        { mb[$1] = $2 / 1e6 }
        END {
            printf "| %-20s | %.1f | %.2f %% | %.1f | %.1f | %.1f | %.1f | %.1f | %s |\n", name, mb["params_shard"],
                100 * (mb["params_shard"] * ranks / 4 / 124.439808 - 1), mb["params_full"], mb["comm"], mb["total"],
                mb["all-gather"], mb["reduce-scatter"], ms
        }' "$4"
}

# train TRANSPORT LAYOUT -- add a time to $tmp/TRANSPORT-LAYOUT.ms, and write the figures to $tmp/TRANSPORT-LAYOUT
train() {
    # shellcheck disable=SC2046,SC2086 # words
    FSDP_COMM=$1 $(launcher_over $1) -n 2 "$BUILD/fsdp_train" $shape --steps 7 --layout "$2" --memory-report "$tmp/report" \
        --loss-csv "$tmp/csv" >"$tmp/log" 2>&1 || { cat "$tmp/log" && exit 1; }
    awk -F, '$1 ~ /^(memory|bytes)$/ { print $2, $4 }' "$tmp/report" >"$tmp/$1-$2"
    awk -F, 'NR > 3 { print $5 }' "$tmp/csv" | sort -n | sed -n 3p >>"$tmp/$1-$2.ms"
}

over='shm mpi'
[ -z "$NO_MPI" ] || over=shm
for _ in 1 2; do
    for transport in $over; do
        for layout in flat per-param; do train $transport $layout || exit 1; done
    done
done
echo 'GPT-2 124M, a sequence of 64 tokens a rank; MB that a rank holds, as issued, and sends in a step'
echo
echo '| ranks, layout | shard | padding | gathered | comm | at one moment | all-gather | reduce-scatter | step ms |'
echo '|---|---:|---:|---:|---:|---:|---:|---:|---:|'
for transport in $over; do
    for layout in flat per-param; do
        row "2, $transport, $layout" 2 "$(sort -n "$tmp/$transport-$layout.ms" | head -n 1 | cut -d. -f1)" "$tmp/$transport-$layout"
    done
done
for layout in flat per-param; do
    # shellcheck disable=SC2086 # words
    "$BUILD/fsdp_train" --plan-ranks 128 $shape --layout $layout >"$tmp/plan" || exit 1
    awk '/^  at one/ { print "total", $4 } /^  [a-z]+_[a-z]+ |^  comm / { print $1, $2 } / calls / { print $1, $4 }' "$tmp/plan" >"$tmp/figures"
    row "128, planned, $layout" 128 - "$tmp/figures"
done
