#!/bin/bash
# llmc.sh [BUILD] -- the benchmark's row beside llm.c, with a stand-in for that trainer (llmc/train_gpt2.c).
set -u
build=$(cd "${1:-build}" && pwd) || exit 1
work=$(mktemp -d /tmp/fsdp-llmc.XXXXXX) || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
unset BENCH_CASES LLMC_DIR LLMC_CC
export BENCH_FULL=0 BENCH_SIZE=tiny
failed=0

# A separate build folder, so that the results of a real run stay.
mkdir -p "$work/b/tests/bench"
ln -s "$build/fsdp_train" "$work/b/" && ln -s "$build/tests/bench/llmc_files" "$work/b/tests/bench/" || exit 1
csv=$work/b/bench/train-llmc.csv page=$work/b/bench/train-llmc.md

verdict() { # verdict NAME PROBLEM
    [ -z "$2" ] && echo "PASS llmc: $1" && return
    echo "FAIL llmc: $1: $2"
    sed 's/^/     | /' "$work/log" | tail -8
    failed=1
}

bad=''
LLMC_DIR=tests/cli/llmc timeout 300 tests/bench/llmc.sh "$work/b" >"$work/log" 2>&1 || bad="exit status $?"
row=$(tail -1 "$csv" 2>/dev/null)
[ -n "$bad" ] || [ "$(echo "$row" | cut -d, -f1,2,7-10)" = tiny,64,35,28,42,20 ] || bad="row: $row"
[ -n "$bad" ] || awk -F, 'NR == 2 { exit !($12 > 5 && ($12 - $13) ^ 2 < 1e-7) }' "$csv" || bad="losses: $row"
verdict 'row, cold steps, quartiles, loss of the first step' "$bad"
cp "$work/b/bench/llmc/train_gpt2" "$work/standin"

# Trained weights, so that no two tensors are equal, and a vocabulary that needs padding. The stand-in's loss on these weights
# must equal the loss of the next step of a longer run.
t=$work/trained data=dev/data/tinyshakespeare/tiny_shakespeare_train.bin
mkdir -p "$t/0/${data%/*}" "$t/3/${data%/*}"
train() {
    "$build/fsdp_train" --size tiny --n-layer 3 --vocab-size 200 --parallel single --reduction canonical --seq-len 64 --global-batch 4 \
        --lr 1e-2 --min-lr 1e-2 --warmup-steps 0 "$@" >"$work/log" 2>&1
}
bad=''
train --steps 0 --synthetic 1000 --export-init "$t/init" && "$build/tests/bench/llmc_files" "$t/init" LICENSE "$t/0" >>"$work/log" 2>&1 &&
    train --steps 3 --data "$t/0/$data" --export "$t/export" && train --steps 4 --data "$t/0/$data" --loss-csv "$t/loss.csv" &&
    "$build/tests/bench/llmc_files" "$t/export" LICENSE "$t/3" >>"$work/log" 2>&1 || bad='cannot train or write'
ours=$(awk -F, '$1 == 3 { print $2 }' "$t/loss.csv" 2>/dev/null)
theirs=$(cd "$t/3" && "$work/standin" 1 2>&1 | sed -nE 's/^step 0: train loss ([^ ]+).*/\1/p')
[ -n "$bad" ] || awk -v a="$ours" -v b="$theirs" 'BEGIN { exit !(a > 1 && b > 1 && (a - b) ^ 2 < 1e-10) }' || bad="loss: ours ${ours:--}, on llm.c's files ${theirs:--}"
verdict 'files of trained weights hold every tensor in its place' "$bad"

bad=''
LLMC_CC="${CC:-gcc} -DOFF=0.01" LLMC_DIR=tests/cli/llmc timeout 300 tests/bench/llmc.sh "$work/b" >"$work/log" 2>&1 && bad='exit status 0'
grep -q 'not the same work' "$work/log" || bad="no word of it"
verdict 'another loss is refused' "$bad"

bad=''
tests/bench/llmc.sh "$work/b" >"$work/log" 2>&1 || bad="exit status $?"
[ "$(cat "$page" 2>/dev/null)" = 'llm.c: - (LLMC_DIR=/path/to/llm.c make bench)' ] && [ ! -e "$csv" ] || bad="${bad:-page: $(cat "$page")}"
verdict 'without LLMC_DIR a line says so' "$bad"

bad=''
LLMC_DIR=$work tests/bench/llmc.sh "$work/b" >"$work/log" 2>&1 && bad='exit status 0'
grep -q '^HINT: ' "$work/log" || bad='no HINT'
verdict 'LLMC_DIR without a trainer is refused' "$bad"
exit $failed
