#!/bin/bash
# plan.sh [BUILD] -- compare planned steps with measured steps. Each run over a simulated link writes a profile. One plan uses
# the profile's times of operations as prices; another uses the rates of --plan-device this. Prints a table and the medians of
# the ratios; there is no verdict.
#
# FSDP_RANKS=2 and STEPS=9 set the numbers of ranks and steps.
set -u
build=${1:-build} ranks=${FSDP_RANKS:-2} steps=${STEPS:-9}
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
export FSDP_LINK=1Gbit,50us

# ms FILE PATTERN -- the number before " ms" in the line that matches
ms() { sed -n "s/^$2 *\([0-9.]*\) ms.*/\1/p" "$1"; }

# cell NAME OPTION... -- print a row
cell() {
    local name=$1
    shift
    rm -rf "$work/profile"
    "$build/fsdp_run" --no-prefix -n "$ranks" "$build/fsdp_train" "$@" --synthetic 20000 --steps "$steps" \
        --profile "$work/profile" >"$work/run" || exit 1
    "$build/fsdp_train" "$@" --plan-ranks "$ranks" --plan-prices "$work/profile/profile-rank-0.csv" \
        --plan-link 125e6,50e-6 >"$work/plan" || exit 1
    "$build/fsdp_run" --no-prefix -n "$ranks" "$build/fsdp_train" "$@" --plan --plan-device this \
        --plan-link 125e6,50e-6 >"$work/this" || exit 1
    awk -v name="$name" -v measured="$(ms "$work/run" 'done:.*,')" -v priced="$(ms "$work/plan" '  step')" \
        -v this="$(ms "$work/this" '  step')" \
        'BEGIN { printf "| %-18s | %8.1f | %6.1f | %5.3f | %6.1f | %5.3f |\n", name, measured, priced, priced / measured,
                        this, this / measured }' | tee -a "$work/rows"
}

# median COLUMN
median() {
    awk -F'|' -v c="$1" '{ print $c + 0 }' "$work/rows" | sort -n |
        awk '{ x[NR] = $1 } END { printf "%.2f", (x[int((NR + 1) / 2)] + x[int(NR / 2) + 1]) / 2 }'
}

echo "| model, prefetch    | measured | priced | ratio |   this | ratio |   (ms a step)"
echo "|--------------------|---------:|-------:|------:|-------:|------:|"
for prefetch in none backward both; do
    cell "6 x 128, $prefetch" --n-layer 6 --d-model 128 --n-head 4 --seq-len 128 --batch-size 8 --prefetch $prefetch
    cell "4 x 256, $prefetch" --n-layer 4 --d-model 256 --n-head 4 --seq-len 128 --batch-size 8 --prefetch $prefetch
done
echo "planned / measured, median: $(median 5) with the prices of the run's profile, $(median 7) with --plan-device this"
