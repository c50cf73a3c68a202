#!/bin/bash
# llmc.sh [BUILD] -- the benchmark's row beside llm.c, with a stand-in for that trainer (llmc/train_gpt2.c).
. "$(dirname "$0")/lib.sh"
cli_start "$@"
build=$(realpath "$build")
unset BENCH_CASES LLMC_DIR OMP_NUM_THREADS
export LLMC_CC=$cc BENCH_FULL=0 BENCH_SIZE=tiny

# A separate build folder, so that the results of a real run stay.
mkdir -p "$work/b/tests/bench"
ln -s "$build/fsdp_train" "$work/b/" && ln -s "$build/tests/bench/llmc_files" "$work/b/tests/bench/" || exit 1
csv=$work/b/bench/train-llmc.csv page=$work/b/bench/train-llmc.md

# bench LOSS -- runs the benchmark beside a trainer that prints this loss
bench() { STANDIN_LOSS=$1 LLMC_DIR=tests/cli/llmc limit 300 tests/bench/llmc.sh "$work/b" >"$work/err" 2>&1; }

problem=''
bench 1.25 && problem='exit status 0'
ours=$(sed -n 's/.*the loss of step 1 is 1.25, ours \([0-9.]*\): not the same work.*/\1/p' "$work/err")
[ -n "$ours" ] || problem='no word of it'
judge 'llmc: another loss is refused' "$problem"

problem=''
bench "$ours" || problem="exit status $?"
row=$(tail -1 "$csv" 2>/dev/null)
[ -n "$problem" ] || [ "$(echo "$row" | cut -d, -f1,2,7-10)" = tiny,64,35,28,42,20 ] || problem="row: $row"
[ -n "$problem" ] || awk -F, 'NR == 2 { exit !($12 > 5 && $12 == $13) }' "$csv" || problem="losses: $row"
judge 'llmc: row, cold steps, quartiles, loss of the first step' "$problem"

problem=''
tests/bench/llmc.sh "$work/b" >"$work/err" 2>&1 || problem="exit status $?"
[ "$(cat "$page" 2>/dev/null)" = 'llm.c: - (LLMC_DIR=/path/to/llm.c make bench)' ] && [ ! -e "$csv" ] || problem="${problem:-page: $(cat "$page")}"
judge 'llmc: without LLMC_DIR a line says so' "$problem"

problem=''
LLMC_DIR=$work tests/bench/llmc.sh "$work/b" >"$work/err" 2>&1 && problem='exit status 0'
grep -q '^HINT: ' "$work/err" || problem='no HINT'
judge 'llmc: LLMC_DIR without a trainer is refused' "$problem"
cli_end
