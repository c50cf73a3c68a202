#!/bin/bash
# features.sh [BUILD [zero]] -- print a table of memory by category, traffic and step time for GPT-2 124M with each
# feature; zero: with each stage of ZeRO, 4 ranks and 4 micro-steps. Each row is one run; there is no verdict. A step time
# is the median relative to the first row's median.
#
# SIZE=124m SEQ_LEN=1024 STEPS=3 set the model, the sequence length and the number of steps. With zero, whose steps are short,
# STEPS is 30.
set -u
build=${1:-build} table=${2:-features} size=${SIZE:-124m} seq_len=${SEQ_LEN:-1024} steps=${STEPS:-3}
[ "$table${STEPS:-}" != zero ] || steps=30
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

digits=0 first_ms=
[ "$size" = 124m ] || digits=1

# row W NAME OPTION...
row() {
    local ranks=$1 name=$2 ms
    shift 2
    if ! "$build/fsdp_run" --no-prefix -n "$ranks" "$build/fsdp_train" --size "$size" --seq-len "$seq_len" \
        --synthetic 200000 --batch-size 1 --steps "$steps" --memory-report "$work/csv" "$@" >"$work/log" 2>&1; then
        echo "| $name | $(grep -m1 rank "$work/log") |"
        return
    fi
    ms=$(sed -n 's/^done:.*, \([0-9.]*\) ms.*/\1/p' "$work/log")
    first_ms=${first_ms:-$ms}
    awk -F, -v name="$name" -v ranks="$ranks" -v digits="$digits" -v ms="$ms" -v first_ms="$first_ms" '
        function mb(x) { return sprintf("%.*f", digits, x / 1e6) }
        { of[$1 "," $2] = $3 }
        END {
            printf "| %s | %d | %s | %s | %s | %s | %s | %s | %s | %s | %.2f |\n", name, ranks,
                mb(of["memory,params_shard"]), mb(of["memory,params_full"]),
                mb(of["memory,grads_shard"]), mb(of["memory,grads_full"]), mb(of["memory,optimizer"]),
                mb(of["memory,activations"]), mb(of["memory,total"]),
                mb(of["bytes,all-gather"] + of["bytes,reduce-scatter"]), ms / first_ms
        }' "$work/csv"
}

echo "GPT-2 $size, sequences of $seq_len tokens, 1 per rank and micro-step; peak MB of a rank, MB sent by rank 0 in a step, step time beside the first row's"
echo "| run | ranks | params_shard | params_full | grads_shard | grads_full | optimizer | activations | at one moment | sent | step |"
echo "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
if [ "$table" = zero ]; then
    row 4 DDP --parallel ddp --grad-accum 4
    row 4 'optimizer (ZeRO-1)' --sharding optimizer --grad-accum 4
    row 4 'grad-op (ZeRO-2)' --sharding grad-op --grad-accum 4
    row 4 'full (ZeRO-3)' --sharding full --grad-accum 4
    row 4 'hybrid, shard groups of 2' --sharding hybrid --fsdp-size 2 --grad-accum 4
    exit 0
fi
row 2 full
row 2 'full, recompute blocks' --gradient-checkpointing
row 2 'full, recompute attention' --gradient-checkpointing=attention
row 2 'full, chunked loss' --chunk-loss=256
row 2 'full, recompute blocks, chunked loss' --gradient-checkpointing --chunk-loss=256
row 2 'full, per-param' --layout per-param
row 2 grad-op --sharding grad-op
row 2 none --sharding none
row 4 'hybrid, shard groups of 2' --sharding hybrid --fsdp-size 2
row 2 'full, A = 4' --grad-accum 4
row 2 'full, A = 4, no_sync' --grad-accum 4 --no-sync
row 2 'full, A = 4, reshard after step' --grad-accum 4 --reshard-after step
row 2 'full, bf16' --param-dtype bf16
row 2 'full, bf16, chunked loss' --param-dtype bf16 --chunk-loss=256
row 2 'full, first 6 blocks frozen' --freeze 'transformer.wte.weight,*.wpe.*,transformer.h.[0-5].*'
