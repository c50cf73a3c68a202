#!/bin/bash
# llmc.sh [BUILD] -- compare a training step of GPT-2 124M on one device with llm.c's CPU trainer.
#
# LLMC_DIR is a checkout of https://github.com/karpathy/llm.c. Without it the page says so, and nothing runs.
# llm.c's train_gpt2.c is compiled in BUILD with the flags of its Makefile and runs unchanged: fp32, OpenMP, 4 x 64 tokens, AdamW.
# It has no options, so ours follows it: llmc_files gives both the same weights and the same batch in every step, and ours uses
# its recipe (learning rate 1e-4 throughout, betas 0.9 and 0.999, no decay, no clipping). Therefore all losses must agree. If the
# first losses differ, this script fails. Turns, cold steps and quartiles are as in train.sh. llm.c's step time does not include
# its validation. It is killed after as many steps as ours takes, before it samples. BENCH_SIZE (124m) is the model. LLMC_CC
# (default: CC, else gcc) compiles it.
# Writes BUILD/bench/train-llmc.md and .csv.
set -u
. "${0%/*}/lib.sh"
page=$OUT/train-llmc.md csv=$OUT/train-llmc.csv
rm -f "$page" "$csv"
[ -z "${BENCH_CASES:-}" ] || [[ " $BENCH_CASES " == *" llmc "* ]] || exit 0
if [ -z "${LLMC_DIR:-}" ]; then
    echo 'llm.c: - (LLMC_DIR=/path/to/llm.c make bench)' >"$page"
    exit 0
fi
title "train: one step of GPT-2 ${BENCH_SIZE:-124m}, ours and llm.c's"
D=$OUT/llmc
rm -rf "$D" && mkdir -p "$D/run/dev/data/tinyshakespeare" || exit 1
[ -f "$LLMC_DIR/train_gpt2.c" ] || fail "LLMC_DIR: no $LLMC_DIR/train_gpt2.c" 'git clone https://github.com/karpathy/llm.c; LLMC_DIR=/path/to/llm.c make bench'
size=${BENCH_SIZE:-124m}
steps=$([ -n "$FULL" ] && echo 12 || echo 6)
turns=$([ -n "$FULL" ] && echo 'ours llmc ours llmc ours' || echo 'ours llmc ours')
recipe='--lr 1e-4 --min-lr 1e-4 --warmup-steps 0 --beta1 0.9 --beta2 0.999 --eps 1e-8 --weight-decay 0 --clip-grad 0'

compiler=${LLMC_CC:-${CC:-gcc}}
flags="-Ofast ${MARCH:--march=native} -fopenmp -DOMP" # as in llm.c's Makefile
# shellcheck disable=SC2086
$compiler $flags -w "$LLMC_DIR/train_gpt2.c" -lm -o "$D/train_gpt2" >"$D/compile.log" 2>&1 ||
    fail "LLMC_DIR: $compiler cannot compile train_gpt2.c: $(grep -m1 error "$D/compile.log")" "see $D/compile.log"

tokens=$D/run/dev/data/tinyshakespeare/tiny_shakespeare_train.bin
"$BUILD/fsdp_train" --size "$size" --parallel single --steps 0 --data LICENSE --export-init "$D/init" >"$D/init.log" 2>&1 &&
    "$BUILD/tests/bench/llmc_files" "$D/init" LICENSE "$D/run" >>"$D/init.log" 2>&1 ||
    fail "cannot write what llm.c reads: $(tail -1 "$D/init.log")" 'make, then try again'

run_ours() { # run_ours NAME
    # shellcheck disable=SC2086
    timeout 600 "$BUILD/fsdp_train" --size "$size" --parallel single --seq-len 64 --global-batch 4 --steps "$steps" $recipe \
        --data "$tokens" --loss-csv "$D/$1.csv" >"$D/$1.log" 2>&1 </dev/null
}

# run_llmc NAME -- run llm.c and kill it after the last step's line. stdbuf makes it print each line at once
run_llmc() {
    local line pid lines
    exec {lines}< <(cd "$D/run" && exec env -u OMP_WAIT_POLICY OMP_NUM_THREADS="$CORES" stdbuf -oL ../train_gpt2 2>&1 </dev/null)
    pid=$!
    while read -r -t 600 line <&"$lines"; do
        echo "$line"
        [[ $line == "step $((steps - 1)):"* ]] && break
    done >"$D/$1.log"
    kill "$pid" 2>/dev/null
    wait "$pid" 2>/dev/null
    exec {lines}<&-
    { echo 'step,loss,ms' && sed -nE 's/^step ([0-9]+): train loss ([^ ]+) \(took ([0-9.]+) ms.*/\1,\2,\3/p' "$D/$1.log"; } >"$D/$1.csv"
    [ "$(wc -l <"$D/$1.csv")" -eq $((steps + 1)) ]
}

warm() { cat "$D"/[0-9]."$1".csv | awk -F, '$1 ~ /^[0-9]+$/ && $1 >= 2 { print $NF }'; }
loss() { cat "$D"/[0-9]."$1".csv | awk -F, -v step="$2" '$1 == step { print $2; exit }'; }

turn=0
for who in $turns; do
    turn=$((turn + 1))
    "run_$who" "$turn.$who" || fail "$who failed: $(tail -1 "$D/$turn.$who.log")" "see $D/$turn.$who.log"
    say "$who: $(warm "$who" | quartiles | cut -d' ' -f1) ms (median so far)"
done
rm -rf "$D/run" "$D/init" # large, and easy to make again

last=$((steps - 1))
echo "size,T,ours ms,q1,q3,best,llm.c ms,q1,q3,best,llm.c/ours,our loss of step 1,llm.c's,our loss of step $steps,llm.c's" >"$csv"
echo "$size 64 $(warm ours | quartiles) $(warm ours | sort -g | head -1) $(warm llmc | quartiles) $(warm llmc | sort -g | head -1) $(
    loss ours 0) $(loss llmc 0) $(loss ours $last) $(loss llmc $last)" |
    awk '{ printf "%s,%d,%.0f,%.0f,%.0f,%.0f,%.0f,%.0f,%.0f,%.0f,%.2f,%.4f,%.4f,%.4f,%.4f\n", $1, $2, $3, $4, $5, $7, $8, $9, $10, $12, $8 / $3, $13, $14, $15, $16 }' >>"$csv"
{
    echo "llm.c's CPU trainer, commit $(git -C "$LLMC_DIR" rev-parse --short HEAD 2>/dev/null || echo '?'), $($compiler --version | head -1), $flags. $(
        echo "$turns" | wc -w) turns ($turns), steps 3 to $steps pooled; its recipe on both sides, without clipping, the same batch in every step."
    echo
    table "$csv"
} >"$page"
say "llm.c: $(awk -F, 'NR > 1 { print "ours " $3 " ms, llm.c " $7 " ms, " $11 " x" }' "$csv")"
awk -v ours="$(loss ours 0)" -v theirs="$(loss llmc 0)" 'BEGIN { d = ours - theirs; exit !(d * d <= 1e-6 * ours * ours) }' ||
    fail "llm.c: the loss of step 1 is $(loss llmc 0), ours $(loss ours 0): not the same work" "see tests/bench/llmc_files.c"
