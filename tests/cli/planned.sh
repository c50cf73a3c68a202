#!/bin/bash
# planned.sh -- a run's report compares what the run holds and sends with its plan: both must be equal to the byte.
# tests/equivalence/matrix.sh checks this for combinations of options; formulas.sh compares both with formulas.
. "$(dirname "$0")/lib.sh"
cli_start "$@"
cheap='--ops portable --seq-len 16'

# check W OPTION... -- $more: options that the case's name omits
more=''
check() {
    local options=${*:2}
    case_is "planned W=$1 ${options//$work\//}"
    ends_with 0 $starts -n "$1" "$trainer" --steps 3 --synthetic 10000 --memory-report "$work/report.csv" $cheap "${@:2}" $more
    ! grep DIFFERS "$work/out" >"$work/err" || complain 'it says so'
    awk -F, 'NR > 1 && $4 != $5 { print $1 " of " $2 ": as issued " $4 ", planned " $5; bad = 1 }
        END { exit bad || NR != 17 }' "$work/report.csv" >"$work/err" || complain "other bytes, or not 16 of them"
}

# Evaluations of one batch and of three: units that a batch leaves gathered are still gathered when the next batch begins.
head -c 900 LICENSE >"$work/val"
more="--val-data $work/val"
for batch in 16 8; do
    check 2 --reduction fast --batch-size $batch --reshard-after step --prefetch none \
        --freeze 'transformer.w*,*.h.0.*,*.h.1.attn.*,*.h.1.ln_1.*'
done

# A plan for four ranks is the same from four processes, which measure how long a step will take, as from one process, which
# counts operations instead.
for how in '--sharding full' '--sharding hybrid --fsdp-size 2' '--parallel ddp'; do
    case_is "planned: 4 ranks from one process, $how"
    good 4 --plan --plan-device this $cheap --prefetch both --reduction canonical $how
    says '^one step in virtual time' "$work/out"
    sed '/^one step in virtual time/,$d' "$work/out" >"$work/of-4"
    good 1 --plan-ranks 4 $cheap --prefetch both --reduction canonical $how
    [ "$(wc -l <"$work/of-4")" -gt 9 ] && sed '/^computing of one step/d' "$work/out" | cmp - "$work/of-4" >"$work/err" ||
        complain 'another plan'
done

# Long sequences. Activations grow with the tokens, not with their square: 4096 tokens take four times the activations of 1024,
# except a few numbers that exist once (below 1 kB). And 2 ranks have the bits of one device.
long='--ops fast --n-layer 2 --d-model 16 --n-head 2 --vocab-size 64 --n-positions 4100 --reduction canonical --global-batch 2'

# activations -- measured bytes in the last check
activations() {
    awk -F, '$1 == "memory" && $2 == "activations" { print $3 }' "$work/report.csv"
}
more=''
check 1 $long --parallel single --seq-len 1024
few=$(activations)
more="--loss-csv $work/1.csv --export $work/1"
check 1 $long --parallel single --seq-len 4096
many=$(activations)
case_is "planned: 4096 tokens take four times the activations of 1024"
[ "${few:-0}" -gt 0 ] && [ "$many" -le $((4 * few)) ] && [ "$many" -gt $((4 * few - 1024)) ] || complain "$many and $few bytes"
more="--loss-csv $work/2.csv --export $work/2"
check 2 $long --seq-len 4096
case_is 'planned: 4096 tokens on 2 ranks: the bits of one device'
[ "$(wc -l <"$work/1.csv")" = 4 ] || complain 'not three losses'
same_losses "$work/1.csv" "$work/2.csv"
same_weights "$work/1" "$work/2"
says '"n_positions":[[:space:]]*4100,' "$work/2/config.json"

# What is written after the last step, or beside steps, one by one: a peak of one must not hide another's.
more='--n-layer 2 --d-model 32 --n-head 2 --vocab-size 300 --batch-size 2'
for layout in flat per-param; do
    for w in 1 2 3; do
        for outputs in "--export $work/out-1" "--export-optimizer $work/out-2" "--save $work/out-3 --save-async" \
            "--export-init $work/out-4 --save $work/out-5 --digests $work/out-6 --export $work/out-1 --export-optimizer $work/out-2"; do
            rm -rf "$work"/out-*
            check "$w" --layout $layout $outputs
        done
    done
done
cli_end
