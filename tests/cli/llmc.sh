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

# bench LOSS -- runs the benchmark beside a trainer that prints this loss
bench() { STANDIN_LOSS=$1 LLMC_DIR=tests/cli/llmc timeout 300 tests/bench/llmc.sh "$work/b" >"$work/log" 2>&1; }

bad=''
bench 1.25 && bad='exit status 0'
ours=$(sed -n 's/.*the loss of step 1 is 1.25, ours \([0-9.]*\): not the same work.*/\1/p' "$work/log")
[ -n "$ours" ] || bad='no word of it'
verdict 'another loss is refused' "$bad"

bad=''
bench "$ours" || bad="exit status $?"
row=$(tail -1 "$csv" 2>/dev/null)
[ -n "$bad" ] || [ "$(echo "$row" | cut -d, -f1,2,7-10)" = tiny,64,35,28,42,20 ] || bad="row: $row"
[ -n "$bad" ] || awk -F, 'NR == 2 { exit !($12 > 5 && $12 == $13) }' "$csv" || bad="losses: $row"
verdict 'row, cold steps, quartiles, loss of the first step' "$bad"

bad=''
tests/bench/llmc.sh "$work/b" >"$work/log" 2>&1 || bad="exit status $?"
[ "$(cat "$page" 2>/dev/null)" = 'llm.c: - (LLMC_DIR=/path/to/llm.c make bench)' ] && [ ! -e "$csv" ] || bad="${bad:-page: $(cat "$page")}"
verdict 'without LLMC_DIR a line says so' "$bad"

bad=''
LLMC_DIR=$work tests/bench/llmc.sh "$work/b" >"$work/log" 2>&1 && bad='exit status 0'
grep -q '^HINT: ' "$work/log" || bad='no HINT'
verdict 'LLMC_DIR without a trainer is refused' "$bad"
exit $failed
