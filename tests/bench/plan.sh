#!/bin/bash
# plan.sh [BUILD] -- steps as planned beside steps as measured: each run over a simulated link writes a profile, whose times
# of operations are the prices of the plan. Prints a table; judges nothing.
#
# FSDP_RANKS=2 and STEPS=9 say how many.
set -u
build=${1:-build} ranks=${FSDP_RANKS:-2} steps=${STEPS:-9}
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
export FSDP_LINK=1Gbit,50us

# ms FILE PATTERN -- the number before " ms" in the line that matches
ms() { sed -n "s/^$2 *\([0-9.]*\) ms.*/\1/p" "$1"; }

# cell NAME OPTION... -- a row
cell() {
    local name=$1
    shift
    rm -rf "$work/profile"
    "$build/fsdp_run" --no-prefix -n "$ranks" "$build/fsdp_train" "$@" --synthetic 20000 --steps "$steps" \
        --profile "$work/profile" >"$work/run" || exit 1
    "$build/fsdp_train" "$@" --plan-ranks "$ranks" --plan-prices "$work/profile/profile-rank-0.csv" \
        --plan-link 125e6,50e-6 >"$work/plan" || exit 1
    awk -v name="$name" -v measured="$(ms "$work/run" 'done:.*,')" -v planned="$(ms "$work/plan" '  step')" \
        'BEGIN { printf "| %-24s | %11.1f | %10.1f | %18.3f |\n", name, measured, planned, planned / measured }'
}

echo "| model, prefetch          | measured ms | planned ms | planned / measured |"
echo "|--------------------------|------------:|-----------:|-------------------:|"
for prefetch in none backward both; do
    cell "6 x 128, $prefetch" --n-layer 6 --d-model 128 --n-head 4 --seq-len 128 --batch-size 8 --prefetch $prefetch
    cell "4 x 256, $prefetch" --n-layer 4 --d-model 256 --n-head 4 --seq-len 128 --batch-size 8 --prefetch $prefetch
done
