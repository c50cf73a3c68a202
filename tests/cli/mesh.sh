#!/bin/bash
# mesh.sh -- one model on meshes of other axes than data: the same bits, checkpoints that fit everywhere, and the bytes of the
# closed forms. --tp-blocks is a property of the model, so a single device with it is what every mesh is compared with.
#
# Bytes of tensor parallelism, sent by a rank in a micro-step of b sequences of T tokens, width C: an all-reduce of n elements
# sends 2 (t - 1) / t n. Each block has two layers. Forward of a layer adds b T C fp32 numbers, and so does backward; the embedding
# adds as many elements of the type, counted in words of 8 bytes, and the head's backward b T C fp32 numbers. The loss gathers
# three numbers for each token of each block of the vocabulary.
. "$(dirname "$0")/lib.sh"
cli_start "$@"
run='--n-head 4 --seq-len 32 --synthetic 20000 --reduction canonical --global-batch 8 --lr 1e-2 --warmup-steps 1'

# rows FILE -- the columns that must be equal
rows() { cut -d, -f1-4 "$1"; }
# as_one W OPTION... -- a run whose losses and norms are those of $keep/one.csv, with the planned bytes and calls
as_one() {
    rm -f "$new/csv"
    good "$@" --loss-csv "$new/csv"
    cmp -s <(rows "$keep/one.csv") <(rows "$new/csv") || complain "other losses than one device: $(diff <(rows "$keep/one.csv") <(rows "$new/csv") | head -3)"
    grep -q DIFFERS "$work/out" && complain "other bytes or calls than planned: $(grep DIFFERS "$work/out")"
}

# ---- one hash ----
meshes='2 --tp 2|4 --tp 4|4 --tp 2|4 --tp 1|4 --tp 2 --sharding none|4 --tp 2 --layout per-param|4 --tp 2 --sharding grad-op --prefetch none
4 --tp 2 --gradient-checkpointing --no-sync --grad-accum 2|4 --tp 2 --sharding optimizer --grad-accum 2|8 --tp 2 --sharding hybrid --fsdp-size 2 --check-order
4 --tp 2 --wrap model|2 --tp 2 --chunk-loss 24|2 --tp 2 --sequence-parallel|4 --tp 4 --sequence-parallel --chunk-loss 24
4 --tp 2 --sequence-parallel --gradient-checkpointing --check-order|4 --tp 2 --cpu-offload --device separate'
for model in 'gpt2' 'gpt2 --param-dtype bf16' 'llama --n-kv-head 4' 'llama --n-kv-head 2' 'llama --n-kv-head 1 --param-dtype bf16' 'gpt2 --ops portable --vocab-size 259 --freeze *.mlp.*'; do
    case_is "one hash: $model" || continue
    good 1 --parallel single --model $model $run --steps 12 --tp-blocks 4 --loss-csv "$keep/one.csv"
    while IFS= read -r mesh; do
        as_one ${mesh%% *} --model $model $run --steps 12 --tp-blocks 4 ${mesh#* }
    done < <(tr '|' '\n' <<<"$meshes")
done
case_is 'one hash: three data ranks' &&
    good 1 --parallel single $run --global-batch 24 --steps 12 --tp-blocks 4 --loss-csv "$keep/one.csv" &&
    as_one 6 $run --global-batch 24 --steps 12 --tp 2 --tp-blocks 4
case_is 'one hash: another number of blocks is another sum' &&
    good 1 --parallel single $run --steps 12 --loss-csv "$new/csv" && good 1 --parallel single $run --steps 12 --tp-blocks 4 --loss-csv "$keep/one.csv" &&
    cmp -s <(rows "$keep/one.csv") <(rows "$new/csv") && complain 'the losses are the same'
case_is 'fast: calls of the same blocks have the same bits, whoever makes them' &&
    good 1 --parallel single $run --reduction fast --steps 6 --tp-blocks 2 --loss-csv "$keep/one.csv" && as_one 2 $run --reduction fast --steps 6 --tp 2

# ---- files ----
# written W DIR OPTION... -- export, states and digests
written() {
    mkdir -p "$2"
    good "$1" $run --tp-blocks 4 --steps 3 --export-init "$2/init" --export "$2/end" --export-optimizer "$2/states" --digests "$2/digests" "${@:3}"
    grep -v '^#' "$2/digests" | cut -d, -f1,2,4-7 >"$2/hashes"
}
if case_is 'exports, states and digests are those of one device'; then
    written 1 "$keep/one" --parallel single
    for mesh in '2 --tp 2' '4 --tp 2' '4 --tp 4' '4 --tp 2 --sequence-parallel' '8 --tp 2 --sharding hybrid --fsdp-size 2'; do
        written ${mesh%% *} "$new/mesh" ${mesh#* }
        for file in init/model.safetensors end/model.safetensors states hashes; do
            cmp -s "$keep/one/$file" "$new/mesh/$file" || complain "$mesh: $file differs"
        done
    done
    for to in '4 --tp 4' '2 --tp 2' '4 --tp 2'; do # blocks that share keys and values
        shared="--model llama --n-kv-head 2 --tp-blocks 4"
        good 1 --parallel single $run $shared --steps 3 --export "$new/one" --save "$new/kv-$to" --digests "$new/one-digests"
        good ${to%% *} $run $shared --steps 3 --export "$new/mesh" --digests "$new/mesh-digests" ${to#* }
        cmp -s "$new/one/model.safetensors" "$new/mesh/model.safetensors" || complain "llama $to: other weights"
        cmp -s <(grep -v '^#' "$new/one-digests" | cut -d, -f1,2,4-7) <(grep -v '^#' "$new/mesh-digests" | cut -d, -f1,2,4-7) || complain "llama $to: other digests"
        good ${to%% *} $run $shared --steps 3 --resume "$new/kv-$to" --export "$new/again" ${to#* }
        cmp -s "$new/one/model.safetensors" "$new/again/model.safetensors" || complain "llama $to: other weights after a checkpoint"
    done
    good 1 --parallel single $run --steps 0 --export-init "$new/uncut"
    cmp -s "$keep/one/init/model.safetensors" "$new/uncut/model.safetensors" || complain 'initial weights depend on the blocks'
    good 4 $run --tp 2 --tp-blocks 4 --steps 0 --init-from "$keep/one/end" --export-init "$new/back"
    cmp -s "$keep/one/end/model.safetensors" "$new/back/model.safetensors" || complain '--init-from changed the weights'
fi
if case_is 'checkpoints load on any mesh'; then
    good 1 --parallel single $run --tp-blocks 4 --steps 6 --loss-csv "$keep/whole.csv"
    for from in '1 --parallel single' '4 --tp 2' '4 --tp 4'; do
        rm -rf "$new/saved"
        good ${from%% *} $run --tp-blocks 4 --steps 6 --stop-after 3 --save "$new/saved" ${from#* }
        for to in '1 --parallel single' '2 --tp 2' '3 --tp 1 --global-batch 24' '4 --tp 4 --layout per-param' '4 --tp 2'; do
            [ "${to%% *}" = 3 ] && continue
            good ${to%% *} $run --tp-blocks 4 --steps 6 --resume "$new/saved" --loss-csv "$new/rest.csv" ${to#* }
            cmp -s <(rows "$keep/whole.csv" | tail -3) <(rows "$new/rest.csv" | tail -3) || complain "$from, then $to: other losses"
        done
    done
fi
if case_is '--resume-change tp-blocks: the same values in another order'; then
    rm -rf "$new/saved"
    good 4 $run --tp 2 --tp-blocks 4 --steps 6 --stop-after 3 --save "$new/saved" --export "$keep/stopped" --export-optimizer "$keep/states"
    for to in '1 --parallel single --tp-blocks 2' '1 --parallel single' '4 --tp 2 --layout per-param' '2 --tp 1'; do
        good ${to%% *} $run --steps 6 --stop-after 3 --resume "$new/saved" --resume-change tp-blocks --export "$new/other" --export-optimizer "$new/states" ${to#* }
        cmp -s "$keep/stopped/model.safetensors" "$new/other/model.safetensors" || complain "$to: other weights"
        cmp -s "$keep/states" "$new/states" || complain "$to: other states"
        launch ${to%% *} $run --steps 6 --resume "$new/saved" ${to#* }
        grep -q '^HINT: .*--resume-change tp-blocks' "$work/err" || complain "$to: goes on with other sums, unasked"
    done
fi

# ---- bytes ----
# check T W S b TYPE BYTES
check() {
    local t=$1 w=$2 b=$4 type=$5 bytes=$6
    case_is "bytes: tp $t of $w ranks, $b sequences, $type" || return
    good "$w" $run --global-batch 0 --batch-size "$b" --reduction fast --steps 2 --tp "$t" --tp-blocks 4 --param-dtype "$type" --memory-report "$new/report"
    awk -F, -v t="$t" -v w="$w" -v b="$b" -v bytes="$bytes" '
        $1 == "calls" { calls[$2] = $4 }
        $1 == "bytes" { sent[$2] = $4 }
        END {
            rows = b * 32; n = rows * 64; blocks = 2
            of_layers = blocks * 4 + 1 # and the head
            want_calls = of_layers + 1 + 1 # embedding, norm
            want = of_layers * 2 * (t - 1) / t * n * 4 + 2 * (t - 1) / t * n * bytes + 2 * (w - 1) / w * 22 * 8
            d = sent["all-reduce"] - want
            if (calls["all-reduce"] != want_calls) print "calls of all-reduce: " calls["all-reduce"] ", expected " want_calls
            if (d > 8 * w || d < -8 * w) print "bytes of all-reduce: " sent["all-reduce"] ", expected " want
        }' "$new/report" >"$new/said"
    [ -s "$new/said" ] && complain "$(cat "$new/said")"
}
check 2 2 1 4 fp32 4
# With sequence parallelism a rank has T / t tokens of what lies between layers. In place of an all-reduce, each layer gathers its
# norm's output, in backward again and with the gradient of its own output, and scatters each of its two sums: a call for each
# sequence. The embedding's gradient and, twice, the norm before the logits are gathered. All-reduces are left at both ends of the
# model, for the norm of gradients, and one for each gain and bias, of the leaves' sums.
case_is 'bytes: sequence parallelism' &&
    good 2 $run --global-batch 0 --batch-size 4 --steps 2 --tp 2 --tp-blocks 4 --memory-report "$new/none" &&
    good 2 $run --global-batch 0 --batch-size 4 --steps 2 --tp 2 --tp-blocks 4 --sequence-parallel --memory-report "$new/report" && {
    awk -F, -v t=2 -v b=4 '
        $1 == "calls" { calls[$2] = $4 }
        $1 == "bytes" { sent[$2] = $4 }
        $1 == "memory" { held[$2, FILENAME] = $4 }
        function differs(what, got, want) { if (got != want) print what ": " got ", expected " want }
        END {
            n = b * 32 * 64; layers = 4
            differs("calls of reduce-scatter", calls["reduce-scatter"], layers * 2 * b + 3 + 1) # of three units and the tied weight, among one
            differs("bytes of reduce-scatter", sent["reduce-scatter"], layers * 2 * (t - 1) / t * n * 4)
            differs("calls of all-gather", calls["all-gather"], layers * 3 * b + 3 * b + 1 + 1) # the loss, and its parts
            differs("calls of all-reduce", calls["all-reduce"], 2 + 1 + 2 * layers + 1)
            if (held["activations", ARGV[2]] >= held["activations", ARGV[1]]) print "no less memory of activations"
        }' "$new/none" "$new/report" >"$new/said"
    [ -s "$new/said" ] && complain "$(cat "$new/said")"
}
check 2 4 2 2 fp32 4
check 4 4 1 1 bf16 2

case_is 'a plan of any rank is what that rank does' &&
    good 1 $run --tp 2 --tp-blocks 4 --plan --plan-ranks 8 --plan-rank 5 --sharding hybrid --fsdp-size 2 &&
    says '^plan for 8 ranks: 2 replicas, shard groups of 2, tp 2; as rank 5$' "$work/out"

# ---- what does not fit ----
# refused W TEXT OPTION...
refused() {
    case_is "refused: $2" || return
    launch "$1" $run --steps 1 "${@:3}"
    [ "$rc" = 1 ] || complain "status $rc"
    grep -qF -- "$2" "$work/err" || complain "$(cat "$work/err")"
    grep -q '^HINT: ' "$work/err" || complain 'no hint'
}
refused 3 '--tp: got 2, expected a divisor of 3 ranks' --tp 2
refused 4 '--tp: got 4, expected a divisor of --tp-blocks, 2' --tp 4 --tp-blocks 2
refused 1 '--tp-blocks: got 3, expected a power of two up to 128' --tp-blocks 3
refused 1 '--tp-blocks: got 8, expected a divisor of --n-head, 4' --tp-blocks 8
refused 1 '--tp-blocks: got 4, expected a divisor of --d-ff, 190' --tp-blocks 4 --d-ff 190
refused 1 '--tp-blocks: got 4, expected a divisor or a multiple of --n-kv-head, 3' --tp-blocks 4 --model llama --n-head 12 --d-model 48 --n-kv-head 3
refused 1 'leaves none for the last' --tp-blocks 4 --vocab-size 5 --synthetic 0
refused 1 '--seq-len: got 30, expected a multiple of --tp-blocks, 4' --tp-blocks 4 --seq-len 30
refused 2 '--sequence-parallel: expected --tp N beside it' --sequence-parallel
refused 1 'mnist: tp-blocks is 2, expected 1' --tp-blocks 2 --model mnist --n-head 0
refused 2 '--tp: expected --parallel fsdp beside it' --tp 2 --parallel ddp
cli_end
