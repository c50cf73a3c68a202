#!/bin/sh
# lecture.sh [BUILD] -- what overlap saves: planned schedules of a model of 7B parameters on H100s.
#
# Nothing is measured: every row is a plan (--plan) in virtual time, so the figures are the same on every machine. README.md
# explains the table; --plan prints the assumed rates.
set -u
trainer=${1:-build}/fsdp_train
shape='--size 1558m --n-layer 32 --d-model 4096 --n-head 32 --n-positions 4096 --seq-len 4096 --batch-size 1 --param-dtype bf16'

# plan OPTION... -- milliseconds: step, compute, communication, exposed, floor
plan() {
    # shellcheck disable=SC2086 # words
    "$trainer" --plan --plan-device h100 $shape "$@" >"$text" || exit 1
    awk '/^  (step|compute|communication|exposed) / { printf "%s ", $2 } /^  exposed / { print $NF }' "$text"
}

# row NAME STEP EXPOSED
row() {
    awk -v name="$1" -v step="$2" -v exposed="$3" \
        'BEGIN { printf "| %-32s | %7.1f | %10.1f | %9.1f |\n", name, step, exposed, 100 * exposed / step }'
}

# schedule NAME OPTION... -- print a row
schedule() {
    name=$1
    shift
    figures=$(plan "$@" $network) || exit 1
    row "$name" "${figures%% *}" "$(echo "$figures" | cut -d' ' -f4)"
}

# table NAME OPTION... -- print a machine and its table
table() {
    title=$1
    shift
    network=$*
    figures=$(plan $network) || exit 1
    # shellcheck disable=SC2086 # words
    set -- $figures
    printf '\n%s: compute %s ms, communication %s ms\n%s\n\n' "$title" "$2" "$3" "$(tail -n 1 "$text")"
    printf '| %-32s | step ms | exposed ms | %% of step |\n|----------------------------------|--------:|-----------:|----------:|\n' schedule
    schedule 'a  none' --prefetch none
    schedule 'b  backward-post' --prefetch backward-post
    schedule 'c  both' --prefetch both
    for limit in 1 3 1000; do
        schedule "d  both, limit $limit" --prefetch both --limit-all-gathers $limit
    done
    for prefetch in backward-post backward both; do
        FSDP_HOST_SYNC=1 schedule "e  $prefetch, host syncs" --prefetch $prefetch
    done
    row '   no schedule is better than' "$(awk "BEGIN { print $2 + $5 }")" "$5"
}

text=$(mktemp) || exit 1
trap 'rm -f "$text"' EXIT
echo 'A GPT-2 of 6.7 billion parameters, one sequence of 4096 tokens a device, on H100 SXM; by plan'
table '8 devices of one host' --plan-ranks 8
table '128 devices, 8 adapters a host' --plan-ranks 128
table '128 devices, 4 adapters a host' --plan-ranks 128 --plan-link 160e9,100e-6
table '128 devices, 2 adapters a host' --plan-ranks 128 --plan-link 80e9,100e-6
