#!/bin/sh
# planned.sh [BUILD] -- the report of a run compares what the run holds and sends with its plan: both must be equal to
# the byte. tests/equivalence/matrix.sh checks this for combinations of options; formulas.sh compares both with
# formulas.
set -u
build=${1:-build}
BUILD=$build
. tests/tools/env.sh
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT INT TERM
failed=0
run="$build/fsdp_run --no-prefix"
cheap='--ops portable --seq-len 16'

# check W OPTIONS -- $run starts the ranks; $cheap: options before these; $files: options that name outputs, besides
files=
check() {
    w=$1
    shift
    # shellcheck disable=SC2086 # words
    if ! $run -n "$w" "$build/fsdp_train" --steps 3 --synthetic 10000 --memory-report "$tmp/report.csv" \
        $cheap "$@" $files > "$tmp/log" 2>&1; then
        echo "FAIL planned W=$w $*: $(grep -m1 rank "$tmp/log")"
        failed=1
        return
    fi
    awk -F, -v name="W=$w $*${FSDP_ASYNC_COMPUTE:+, ahead}" '
        NR > 1 { rows++ }
        NR > 1 && $4 != $5 { print "FAIL planned " name ": " $1 " of " $2 ": as issued " $4 ", planned " $5; bad = 1 }
        END {
            if (rows != 16) print "FAIL planned " name ": the report has " rows " rows, expected 16"
            if (rows == 16 && !bad) print "PASS planned " name
            exit bad || rows != 16
        }' "$tmp/report.csv" && ! grep DIFFERS "$tmp/log" || failed=1
}

# More micro-steps than a plan makes.
check 2 --reduction fast --batch-size 1 --grad-accum 80

# Evaluations of one batch and of three: units that a batch leaves gathered are there when the next batch begins.
head -c 900 LICENSE >"$tmp/val"
for batch in 16 8; do
    check 2 --reduction fast --batch-size $batch --reshard-after step --prefetch none --val-data "$tmp/val" \
        --freeze 'transformer.w*,*.h.0.*,*.h.1.attn.*,*.h.1.ln_1.*'
done

# A plan for four ranks is the same from four processes, which measure how long a step will take, and from one process,
# which counts operations instead.
for how in '--sharding full' '--sharding hybrid --fsdp-size 2' '--parallel ddp'; do
    # shellcheck disable=SC2086 # words
    $run -n 4 "$build/fsdp_train" --plan --plan-device this $cheap --prefetch both --reduction canonical $how >"$tmp/with-time" &&
        grep -q '^one step in virtual time' "$tmp/with-time" &&
        sed '/^one step in virtual time/,$d' "$tmp/with-time" >"$tmp/of-4" &&
        "$build/fsdp_train" --plan-ranks 4 $cheap --prefetch both --reduction canonical $how |
            sed "/^computing of one step/d" >"$tmp/of-1" &&
        [ "$(wc -l <"$tmp/of-4")" -gt 9 ] && cmp "$tmp/of-4" "$tmp/of-1"
    if [ $? -eq 0 ]; then echo "PASS planned: 4 ranks from one process, $how"; else
        echo "FAIL planned: a plan of 4 ranks from one process differs, $how"
        failed=1
    fi
done

# Long sequences. Activations grow with the tokens, not with their square: of 4096 tokens four times those of 1024, but for
# a few numbers that are there once (below 1 kB). And 2 ranks have the bits of one device.
long='--ops fast --n-layer 2 --d-model 16 --n-head 2 --vocab-size 64 --n-positions 4100 --reduction canonical --global-batch 2'

# activations -- measured bytes, of the last check
activations() {
    awk -F, '$1 == "memory" && $2 == "activations" { print $3 }' "$tmp/report.csv"
}
# shellcheck disable=SC2086 # words
check 1 $long --parallel single --seq-len 1024
few=$(activations)
files="--loss-csv $tmp/1.csv --export $tmp/1"
# shellcheck disable=SC2086 # words
check 1 $long --parallel single --seq-len 4096
many=$(activations)
if [ "${few:-0}" -gt 0 ] && [ "$many" -le $((4 * few)) ] && [ "$many" -gt $((4 * few - 1024)) ]; then
    echo "PASS planned: 4096 tokens take four times the activations of 1024: $many and $few bytes"
else
    echo "FAIL planned: activations of 4096 tokens take ${many:-no} bytes, of 1024 ${few:-no}: expected four times as many"
    failed=1
fi
files="--loss-csv $tmp/2.csv --export $tmp/2"
# shellcheck disable=SC2086 # words
check 2 $long --seq-len 4096
for i in 1 2; do
    cut -d, -f1-4 "$tmp/$i.csv" > "$tmp/$i.losses"
done
if [ "$(wc -l < "$tmp/1.losses")" = 4 ] && cmp "$tmp/1.losses" "$tmp/2.losses" &&
    cmp "$tmp/1/model.safetensors" "$tmp/2/model.safetensors" &&
    grep -q '"n_positions":[[:space:]]*4100,' "$tmp/2/config.json"; then
    echo 'PASS planned: 4096 tokens on 2 ranks: the bits of one device'
else
    echo 'FAIL planned: 4096 tokens on 2 ranks: other bits than on one device, or another number of positions'
    failed=1
fi
exit $failed
