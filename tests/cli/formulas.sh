#!/bin/sh
# formulas.sh [BUILD] -- what a run holds and sends, beside the formulas that --plan prints.
#
# Calls and bytes of one step must be equal. Peak memory of every category must be equal too, but for the two that
# depend on how far the communication stream lags behind the host: grads_shard and comm hold no more than the
# formula, and grads_shard at least 0.9 of it. Where the host runs ahead of compute (FSDP_ASYNC_COMPUTE=1) it depends
# on the schedule how much is there at a time: no category holds more than the formula. For grads_full and activations
# no such bound holds there, because the next block takes any freed one of its size; they are left out.
#
# The formulas know nothing of the maths: most runs take the portable operations, which begin at once.
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
    if ! $run -n "$w" "$build/fsdp_train" --steps 2 --synthetic 10000 --memory-report "$tmp/report.csv" \
        $cheap "$@" $files > "$tmp/log" 2>&1; then
        echo "FAIL formulas W=$w $*: $(grep -m1 rank "$tmp/log")"
        failed=1
        return
    fi
    awk -F, -v name="W=$w $*${FSDP_ASYNC_COMPUTE:+, ahead}" -v ahead="${FSDP_ASYNC_COMPUTE:-0}" '
        NR == 1 || $4 == "" || $2 == "other" { next }
        { rows++ }
        $1 == "memory" && $2 == "comm" { bad = $3 > $4; }
        $1 == "memory" && $2 == "grads_shard" { bad = $3 > $4 || $3 < 0.9 * $4 }
        $1 != "memory" || ($2 != "comm" && $2 != "grads_shard") { bad = $3 != $4 }
        $1 == "memory" && ahead { bad = $3 > $4 && $2 != "grads_full" && $2 != "activations" }
        bad { print "FAIL formulas " name ": " $1 " of " $2 ": measured " $3 ", formula " $4; failed = 1 }
        END {
            if (rows < 13) { print "FAIL formulas " name ": the report has " rows " rows, expected 13"; failed = 1 }
            if (!failed) print "PASS formulas " name ": " rows " figures"
            exit failed
        }' "$tmp/report.csv" || failed=1
}

for mode in canonical fast; do
    check 1 --reduction $mode --global-batch 24
    check 2 --reduction $mode --global-batch 24 --sharding grad-op
    check 3 --reduction $mode --global-batch 48 --wrap sub-block
    check 3 --reduction $mode --global-batch 24 --sharding none
    check 4 --reduction $mode --global-batch 24 --optimizer sgd
    check 4 --reduction $mode --global-batch 24 --parallel ddp
    check 1 --reduction $mode --global-batch 24 --parallel single
    check 1 --reduction $mode --global-batch 24 --grad-accum 6 --parallel single
    check 2 --reduction $mode --global-batch 24 --wrap size:30000
    check 2 --reduction $mode --global-batch 4 --wrap model
    check 3 --reduction $mode --global-batch 24 --val-data README.md --eval-every 1
    check 2 --reduction $mode --global-batch 8 --sharding grad-op --val-data README.md --eval-every 1
    bf16="--param-dtype bf16 --reduction $mode --global-batch 24"
    both="$bf16 --reduce-dtype bf16"
    check 1 $bf16 --parallel single
    check 1 $both --parallel single --grad-accum 6
    check 1 $both
    check 2 $both --sharding grad-op
    check 2 $bf16 --wrap size:30000 --val-data README.md --eval-every 1
    check 3 $both --wrap sub-block --global-batch 48
    check 3 $both --sharding none --val-data README.md --eval-every 1
    check 3 $both --parallel ddp
    check 4 --reduction $mode --global-batch 24 --sharding hybrid --fsdp-size 2
    check 4 $both --sharding hybrid --fsdp-size 2 --wrap sub-block --val-data README.md --eval-every 1
    check 6 --reduction $mode --global-batch 24 --sharding hybrid --fsdp-size 3
    check 4 $bf16 --parallel ddp
    check 4 --reduction $mode --global-batch 24 --reduce-dtype bf16 --optimizer sgd
    check 4 $both --wrap model
    check 2 --ops fast --seq-len 64 --reduction $mode --global-batch 24
    check 3 --ops fast --seq-len 64 $both --val-data README.md --eval-every 1
    no_mpi "formulas, $mode, --comm mpi" || run=$LAUNCHER check 3 $both --comm mpi
done

# Overlap: the bytes of a window of units, and as many calls as without.
for mode in backward backward-post forward both; do
    for how in '--limit-all-gathers 1' '--wrap sub-block --limit-all-gathers 3 --reduction canonical' \
        '--wrap size:30000 --limit-all-gathers 1 --param-dtype bf16' '--sharding grad-op --reduction canonical' \
        '--sharding none --wrap sub-block'; do
        # shellcheck disable=SC2086 # words
        check 2 --prefetch $mode --global-batch 12 $how
        # shellcheck disable=SC2086 # words
        [ $mode = backward ] || [ $mode = forward ] || FSDP_ASYNC_COMPUTE=1 check 3 --prefetch $mode --global-batch 12 $how
    done
done
check 3 --prefetch both --global-batch 12 --val-data README.md --eval-every 1
FSDP_ASYNC_COMPUTE=1 check 4 --prefetch both --limit-all-gathers 1 --global-batch 48 --sharding hybrid --fsdp-size 2 \
    --val-data README.md --eval-every 1

# By --plan a step sends half the bytes with parameters and sums in bf16, but for its losses (fp32: 2 numbers to each peer).
halves() {
    for w in 2 3 4; do
        for d in fp32 bf16; do
            "$build/fsdp_train" --plan-ranks $w --batch-size 4 --grad-accum 2 "$@" --param-dtype $d --reduce-dtype $d \
                > "$tmp/$d" || failed=1
        done
        awk -v name="W=$w $*" -v loss=$(((w - 1) * 2 * 4)) '
            FNR == 1 { d++ }
            $3 == "calls" { calls[d, $1] = $2; bytes[d, $1] = $4 }
            END {
                ok = bytes[1, "reduce-scatter"] > 0 && bytes[1, "reduce-scatter"] == 2 * bytes[2, "reduce-scatter"]
                ok = ok && bytes[1, "all-gather"] - loss == 2 * (bytes[2, "all-gather"] - loss)
                ok = ok && calls[1, "all-gather"] == calls[2, "all-gather"]
                print (ok ? "PASS" : "FAIL") " formulas: bf16 sends half of fp32: " name
                exit !ok
            }' "$tmp/fp32" "$tmp/bf16" || failed=1
    done
}
halves
# A plan of four ranks is the same from four processes, which also measure how long a step will take, and from one.
for how in '--sharding full' '--sharding hybrid --fsdp-size 2' '--parallel ddp'; do
    # shellcheck disable=SC2086 # words
    $run -n 4 "$build/fsdp_train" --plan $cheap --prefetch both --reduction canonical $how >"$tmp/with-time" &&
        sed '/^one step in virtual time/,$d' "$tmp/with-time" >"$tmp/of-4" &&
        "$build/fsdp_train" --plan-ranks 4 $cheap --prefetch both --reduction canonical $how >"$tmp/of-1" &&
        [ "$(wc -l <"$tmp/of-4")" -gt 9 ] && cmp "$tmp/of-4" "$tmp/of-1"
    if [ $? -eq 0 ]; then echo "PASS formulas: plan of 4 ranks from one process, $how"; else
        echo "FAIL formulas: plan of 4 ranks from one process differs, $how"
        failed=1
    fi
done
halves --wrap sub-block --reduction canonical
halves --sharding grad-op --wrap model

# Long sequences. Activations grow with the tokens, not with their square: of 4096 tokens four times those of 1024, but for
# a few numbers that are there once (below 1 kB). And 2 ranks have the bits of one device.
long='--ops fast --n-layer 2 --d-model 16 --n-head 2 --vocab-size 64 --n-positions 4100 --reduction canonical --global-batch 2'

# activations -- measured bytes, of the last check
activations() {
    awk -F, '$1 == "memory" && $2 == "activations" { print $3 }' "$tmp/report.csv"
}
check 1 $long --parallel single --seq-len 1024
few=$(activations)
files="--loss-csv $tmp/1.csv --export $tmp/1"
check 1 $long --parallel single --seq-len 4096
many=$(activations)
if [ "${few:-0}" -gt 0 ] && [ "$many" -le $((4 * few)) ] && [ "$many" -gt $((4 * few - 1024)) ]; then
    echo "PASS formulas: 4096 tokens take four times the activations of 1024: $many and $few bytes"
else
    echo "FAIL formulas: activations of 4096 tokens take ${many:-no} bytes, of 1024 ${few:-no}: expected four times as many"
    failed=1
fi
files="--loss-csv $tmp/2.csv --export $tmp/2"
check 2 $long --seq-len 4096
for i in 1 2; do
    cut -d, -f1-4 "$tmp/$i.csv" > "$tmp/$i.losses"
done
if [ "$(wc -l < "$tmp/1.losses")" = 3 ] && cmp "$tmp/1.losses" "$tmp/2.losses" &&
    cmp "$tmp/1/model.safetensors" "$tmp/2/model.safetensors" &&
    grep -q '"n_positions":[[:space:]]*4100,' "$tmp/2/config.json"; then
    echo 'PASS formulas: 4096 tokens on 2 ranks: the bits of one device'
else
    echo 'FAIL formulas: 4096 tokens on 2 ranks: other bits than on one device, or another number of positions'
    failed=1
fi
exit $failed
