#!/bin/bash
# overlap.sh -- the visible effects of overlap options and variables: the mode that --prefetch auto chooses, buckets, the
# times of a plan, host waits.
. "$(dirname "$0")/lib.sh"
cli_start "$@"
run='--n-layer 4 --d-model 32 --n-head 2 --seq-len 32 --batch-size 2 --synthetic 5000 --reduction canonical --steps 3'

case_is '--prefetch auto on several ranks'
good 2 $run --loss-csv "$work/auto.csv"
grep -q '^prefetch: both, at most 2 + 1 units gathered (auto: several ranks)$' "$work/out" || complain 'it is not both'
case_is '--prefetch auto on one rank'
good 1 $run
grep -q '^prefetch:' "$work/out" && complain 'it prefetches'

case_is 'buckets: fewer collectives, the same losses'
calls() { sed -n 's/^  all-gather .* \([0-9]*\) calls.*/\1/p' "$work/out"; }
good 2 $run
alone=$(calls)
good 2 $run --bucket 30000 --loss-csv "$work/bucket.csv"
[ "$(calls)" -lt "$alone" ] || complain "$(calls) gathers, $alone without buckets"
same_losses "$work/auto.csv" "$work/bucket.csv"
case_is '--bucket auto: the same losses, and no mark of the calibration in the peaks'
good 2 $run --bucket auto --loss-csv "$work/auto-bucket.csv" --memory-report "$work/memory.csv"
same_losses "$work/auto.csv" "$work/auto-bucket.csv"
awk -F, '$1 == "memory" && ($2 == "comm" || $2 == "other") && $3 > 1000000 { bad = 1 } END { exit bad }' "$work/memory.csv" ||
    complain "the calibration is in the peaks: $(cat "$work/memory.csv")"

# figure NAME -- milliseconds of the prediction
figure() { sed -n "s/^  $1 *\([0-9.]*\) ms.*/\1/p" "$work/out"; }
case_is '--plan-device this: a step is compute and what is exposed'
# Each process measures the cost of compute and of the link, so both plans are made at once. What prefetch saves is checked by
# the budget of task 5.6.
for mode in none both; do
    FSDP_LINK=100Mbit,50us "$top_of_tree/tests/tools/limit.sh" $limit_s $starts -n 2 "$trainer" $run --plan --plan-device this --prefetch $mode --d-model 64 \
        >"$work/$mode" 2>"$work/err" &
done
wait
for mode in none both; do
    cp "$work/$mode" "$work/out"
    awk -v s="$(figure step)" -v c="$(figure compute)" -v e="$(figure exposed)" \
        'BEGIN { d = s - c - e; exit !(s > 0 && c > 0 && e > 0 && d * d < 0.04) }' || complain "$mode: $(cat "$work/out")"
done
case_is '--plan of many micro-steps takes as long as a plan of a few' # a slow plan exceeds limit_s
good 2 $run --plan --grad-accum 1000000

# Besides the limiter's waits, the host waits after 5 units (the root and 4 blocks) in forward and in backward, in each of the 2
# traced steps.
syncs() { grep -c '"name":"host sync: compute"' "$work/new/profile/trace-rank-0.json"; }
case_is 'FSDP_HOST_SYNC=1'
FSDP_HOST_SYNC=1 FSDP_ASYNC_COMPUTE=1 good 2 $run --profile "$work/new/profile"
with=$(syncs)
FSDP_ASYNC_COMPUTE=1 good 2 $run --profile "$work/new/profile"
[ $((with - $(syncs))) = 20 ] || complain "$with host syncs with it, $(syncs) without: expected 20 more"

case_is 'the host does not wait for compute within a step'
FSDP_ASYNC_COMPUTE=1 good 2 $run --limit-all-gathers 1000 --profile "$work/new/profile"
[ "$(syncs)" = 0 ] || complain "$(syncs) host syncs, expected none"

cli_end
