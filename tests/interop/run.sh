#!/bin/sh
# run.sh [BUILD] -- PyTorch and Hugging Face as oracles. FSDP_PYTHON names the interpreter that has torch and
# transformers (default python3); without them every check is a SKIP.
#
# Prints PASS, FAIL or SKIP lines and exits non-zero on a FAIL.
set -u
build=${1:-build}
BUILD=$build
. tests/tools/env.sh
python=${FSDP_PYTHON:-python3}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT INT TERM

if ! "$python" -c 'import torch, transformers' 2>/dev/null; then
    echo "SKIP interop: $python has no torch and transformers (set FSDP_PYTHON to one that has)"
    exit 0
fi

# Both sides read the same text: the licence texts that the trainer reads by default.
find /usr/share/common-licenses -maxdepth 1 -type f | LC_ALL=C sort | xargs cat > "$tmp/text"
steps=20 seq_len=64 global=12
common="--data $tmp/text --seq-len $seq_len --global-batch $global --steps $steps"

# Bounds in bf16 are 2.5 times the differences measured with --seed 1, 2 and 3 on one device, fast and portable. The exact
# replay: loss 2.9e-5, norm 1.6e-4, weights 1.2e-3. If a stored number lies near the middle of two bf16 numbers, a different
# order of the sums before it rounds it to the other number, and later numbers change too. The module cast to bf16: 4.1e-5,
# 1.1e-3, 1.5e-3. It rounds in more places, and its gradients of parameters are bf16. Its norm exceeds the bound of the exact
# replay.
exact="--dtype bf16-exact --tol-loss 7.3e-5 --tol-norm 4e-4 --tol-weights 3e-3"
mixed="--dtype bf16-mixed --tol-loss 1.1e-4 --tol-norm 2.7e-3 --tol-weights 3.7e-3"

# Sums in bf16 with parameters in fp32, measured the same way, canonical and fast: loss 3.1e-7, norm 7.4e-5, weights 9.1e-6.
# The cause is a sum near the middle of two bf16 numbers. If the replay sums in fp32, or calls of another size, its weights are
# off by 1.9e-4 or more.
sums="--reduce-dtype bf16 --tol-loss 7.8e-7 --tol-norm 1.9e-4 --tol-weights 2.3e-5"

# replay NAME MODEL-OPTIONS LAUNCHER... -- train, then replay from the exported initial weights; $as: options of the replay.
# Two replays run at a time, with one thread each; the output of the n-th is in $tmp/n.out.
as='' n=0
replay() {
    n=$((n + 1)) name=$1 model=$2 at=$tmp/$n
    shift 2
    echo "     $name" > "$at.out"
    if ! "$@" "$build/fsdp_train" $model $common --export-init "$at.init" --export "$at.final" \
        --loss-csv "$at.csv" > "$at.log" 2>&1; then
        echo "FAIL replay $name: the trainer failed" >> "$at.out"
        tail -5 "$at.log" >> "$at.out"
        touch "$at.failed"
        return
    fi
    OMP_NUM_THREADS=1 "$python" tests/interop/replay.py --init "$at.init" --final "$at.final" --csv "$at.csv" \
        --data "$tmp/text" --seq-len $seq_len --global-batch $global --steps $steps $as >> "$at.out" 2>&1 ||
        touch "$at.failed" &
    [ $((n % 2)) -eq 1 ] || wait
}

replay "single device, fast" "--size tiny --parallel single"
replay "FSDP on 2 ranks, fast" "--size tiny" $LAUNCHER -n 2
replay "FSDP on 3 ranks, canonical, portable" "--size tiny --reduction canonical --ops portable" $LAUNCHER -n 3
replay "DDP on 2 ranks, canonical" "--size tiny --parallel ddp --reduction canonical" $LAUNCHER -n 2
first='--freeze transformer.wte.weight,*.wpe.*,transformer.h.0.*' biases='--freeze *.bias'
as=$first
replay "FSDP on 2 ranks, the first layers frozen" "--size tiny $first" $LAUNCHER -n 2
as="$biases $sums --reduction canonical"
replay "FSDP on 3 ranks, canonical, sums in bf16, biases frozen" \
    "--size tiny --reduce-dtype bf16 --reduction canonical $biases" $LAUNCHER -n 3
as='--gradient-checkpointing'
replay "FSDP on 2 ranks, blocks recomputed" "--size tiny --gradient-checkpointing" $LAUNCHER -n 2
as='--ranks 3 --micro-steps 4'
replay "FSDP on 3 ranks, canonical, no_sync over 4 micro-steps" \
    "--size tiny --reduction canonical --batch-size 1 --grad-accum 4 --no-sync" $LAUNCHER -n 3
as='--ranks 2 --micro-steps 3'
replay "DDP on 2 ranks, no_sync over 3 micro-steps" \
    "--size tiny --parallel ddp --batch-size 2 --grad-accum 3 --no-sync" $LAUNCHER -n 2
as=$exact
replay "single device, bf16, rounded where the trainer rounds" "--size tiny --parallel single --param-dtype bf16"
replay "FSDP on 2 ranks, bf16, canonical, portable, rounded likewise" \
    "--size tiny --param-dtype bf16 --reduction canonical --ops portable" $LAUNCHER -n 2
as="$sums --reduction canonical"
replay "FSDP on 2 ranks, canonical, sums in bf16" "--size tiny --reduce-dtype bf16 --reduction canonical" $LAUNCHER -n 2
as="$sums --reduction fast --batch-size 2"
replay "FSDP on 2 ranks, fast, sums in bf16" "--size tiny --reduce-dtype bf16 --batch-size 2" $LAUNCHER -n 2
as=''
replay "Llama, FSDP on 2 ranks, fast" "--model llama --size tiny" $LAUNCHER -n 2
replay "Llama, untied, FSDP on 3 ranks, canonical, portable, blocks recomputed" \
    "--model llama --size small --reduction canonical --ops portable --gradient-checkpointing" $LAUNCHER -n 3
# Each sequence of a batch keeps another number of targets, from none to all, so no two ranks have as many
perl -e 'print "\1", map { pack "C", $_ % 64 < (64, 1, 0, 33, 17, 5, 60)[$_ / 64 % 7] } 0 .. $ARGV[0] - 2' "$(stat -c %s "$tmp/text")" > "$tmp/mask"
as="--data-mask $tmp/mask"
for ranks in 1 2 3 4; do
    replay "a mask, FSDP on $ranks ranks, canonical" "--size tiny --reduction canonical --batch-size 1 $as" $LAUNCHER -n $ranks
    replay "a mask, FSDP on $ranks ranks, fast" "--size tiny $as" $LAUNCHER -n $ranks
done
as=$mixed
replay "FSDP on 2 ranks, bf16, beside PyTorch's module in bf16" "--size tiny --param-dtype bf16" $LAUNCHER -n 2
wait

# transformers NAME DTYPE SHARD OPTION... -- read weights made by transformers bit for bit, train three steps, and export;
# transformers must load the export and get the same logits
transformers() {
    n=$((n + 1)) name=$1 at=$tmp/$n dtype=$2 shard=$3
    shift 3
    {
        echo "     weights of transformers: $name"
        "$python" tests/interop/weights.py make "$at.made" "$dtype" "$shard" $family &&
            $LAUNCHER -n 3 "$build/fsdp_train" --init-from "$at.made" --data "$tmp/text" --data-format bytes --seq-len $seq_len --global-batch $global \
                --steps 3 --export-init "$at.init" --export "$at.final" --export-shard-size 1 --loss-csv "$at.csv" "$@" > "$at.log" &&
            "$python" tests/interop/weights.py same "$at.made" "$at.init" &&
            "$python" tests/interop/weights.py logits "$at.made" "$build" &&
            "$python" tests/interop/weights.py logits "$at.final" "$build" &&
            "$python" tests/interop/replay.py --init "$at.made" --final "$at.final" --csv "$at.csv" --data "$tmp/text" \
                --seq-len $seq_len --global-batch $global --steps 3
    } > "$at.out" 2>&1 || touch "$at.failed"
}
family=gpt2
transformers 'fp32 in one file' float32 5GB
transformers 'fp32 in several files, by rows' float32 100KB --layout per-param
transformers 'bf16' bfloat16 5GB
transformers 'fp16' float16 5GB
family=llama
transformers 'Llama, heads that share keys' float32 5GB
family=llama31
transformers 'Llama 3.1 in several files, bf16' bfloat16 100KB --layout per-param

# recipe -- the lines of docs/models.md that make tokens: a model with a tokenizer takes no text, and takes these tokens
recipe() {
    n=$((n + 1)) at=$tmp/$n top=$PWD
    mkdir "$at" && head -c 40000 "$tmp/text" > "$at/text.txt"
    sed -n '/^```python$/,/^```$/p' docs/models.md | sed '1d; $d' > "$at/recipe.py"
    model="$build/fsdp_train --size tiny --vocab-size 400 --seq-len $seq_len"
    {
        echo "     the recipe for tokens"
        $model --steps 0 --export "$at/DIR" > "$at.log" && "$python" tests/interop/tokenizer.py "$at/text.txt" "$at/DIR" &&
            ! $build/fsdp_train --init-from "$at/DIR" --data "$at/text.txt" --steps 1 > "$at.log" 2>&1 &&
            grep 'HINT: make tokens as docs/models.md shows' "$at.log" &&
            (cd "$at" && "$python" recipe.py) &&
            $LAUNCHER -n 2 "$build/fsdp_train" --init-from "$at/DIR" --data "$at/tokens.u32" --data-format uint32 --steps 2 > "$at.log" &&
            "$python" -c 'import sys, numpy, transformers
ids = numpy.fromfile(sys.argv[1] + "/tokens.u32", "<u4")
text = transformers.AutoTokenizer.from_pretrained(sys.argv[1] + "/DIR").decode(ids)
ok = text == open(sys.argv[1] + "/text.txt").read() and len(ids) < len(text)
print("PASS" if ok else "FAIL", "recipe: the tokens are the text")
sys.exit(not ok)' "$at"
    } > "$at.out" 2>&1 || { echo "FAIL recipe" >> "$at.out" && tail -3 "$at.log" >> "$at.out" && touch "$at.failed"; }
}
recipe

# net NAME RANKS OPTION... -- train the MNIST net on $images or on the same drawn digits, and compare with PyTorch's net
images=$tmp/images
mkdir "$images"
"$build/tests/cli/idx_files" "$images" train 0 100 && "$build/tests/cli/idx_files" "$images" t10k 1000000 96 &&
    "$python" tests/interop/mnist.py make "$tmp/net" || exit 1
net() {
    n=$((n + 1)) name=$1 ranks=$2 at=$tmp/$n
    shift 2
    {
        echo "     the net for MNIST: $name"
        $LAUNCHER -n "$ranks" "$build/fsdp_train" --model mnist --global-batch 12 --steps 10 --optimizer adadelta --lr 1 \
            --lr-schedule step --lr-step-size 4 --lr-gamma 0.7 --warmup-steps 0 --clip-grad 0 --val-data "$images" \
            --export-init "$at.init" --export "$at.final" --loss-csv "$at.csv" "$@" > "$at.log" &&
            OMP_NUM_THREADS=1 "$python" tests/interop/mnist.py replay "$images" "$at" $made
    } > "$at.out" 2>&1 || touch "$at.failed"
}
made=''
net 'tiny, FSDP on 2 ranks, fast' 2 --size tiny --synthetic 100
made=$tmp/net
net "PyTorch's weights, FSDP on 3 ranks, canonical, portable" 3 --init-from "$made" --data "$images" --reduction canonical \
    --ops portable
for i in $(seq $n); do
    cat "$tmp/$i.out"
done
[ -z "$(find "$tmp" -maxdepth 1 -name '*.failed')" ]
