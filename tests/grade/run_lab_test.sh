#!/bin/sh
# run_lab_test.sh -- make run LAB=n in the handout, while its labs are filled in one after the other.
#
# For each lab: before it is written, make run names the first task; when it is written, make run passes and says what it
# compared; with a bug, make run fails and says where. Takes about five minutes; works in a temporary folder with copies of
# $BUILD's objects. Prints PASS and FAIL lines; exits non-zero on a FAIL.
set -u
cd "$(dirname -- "$0")/../.." || exit 2
. tests/tools/test_lib.sh
begin run-labs
BUILD=${BUILD:-build}

limit 60 tests/tools/handout.sh --lab6 "$dir/tree" >"$dir/log" || exit 2
solutions=$(grep -l 'SOLUTION BEGIN' lab[1-6]_*/*.c lab[1-6]_*/*.cpp)
copy_build "$dir/tree" || exit 2
unset BUILD
cd "$dir/tree" || exit 2

# run ARGS... -- sets rc
run() {
    limit 300 make -j2 run "$@" >"$dir/log" 2>&1 </dev/null
    rc=$?
}
# refused LAB...
refused() {
    run "$@"
    [ $rc -ne 0 ] && said '^run_lab.sh: got LAB="' '^HINT: make run LAB=' && unsaid '^  (CC|LINK) '
    verdict "make run $*: refused with a hint, before anything is built" $?
}
# waits LAB TASK -- make run must name the unwritten task
waits() {
    run LAB="$1"
    [ $rc -ne 0 ] && said "^run: lab $1 cannot run yet: task $2 is not written$" "^HINT: do task $2 first: make test LAB=${2%%.*} TASK=$2$"
    verdict "LAB=$1 before task $2: it is named" $?
}
# write LAB -- copy its solution into the tree
write() {
    for file in $solutions; do
        case $file in lab"$1"_*) cp "$top/$file" "$file" ;; esac
    done
}
# passes LAB WORDS
passes() {
    run LAB="$1"
    [ $rc -eq 0 ] && said "^PASS run: lab $1: $2\$" '^  W=4  ' && unsaid '^FAIL'
    verdict "LAB=$1 with labs 1 to $1 written" $?
}
# fails LAB PATTERN MUTANT... -- with these mutants of tests/mutants, the log must match PATTERN
fails() {
    lab=$1 pattern=$2
    shift 2
    for mutant in "$@"; do
        awk -v plant="$mutant" -f "$top/tests/mutants/apply.awk" "$top"/tests/mutants/*.mut || bad=1
    done
    run LAB="$lab"
    [ $rc -ne 0 ] && said "^FAIL run: lab $lab: $pattern" '^HINT: make test LAB=' && unsaid '^PASS run'
    verdict "LAB=$lab with a bug ($*): it is seen" $?
    for file in "lab${lab}_"*/*.c* trainer/*.c; do
        cmp -s "$top/$file" "$file" || cp "$top/$file" "$file"
    done
}

refused
refused LAB=9
refused LAB=12

waits 1 1.1
write 1
passes 1 'the initial weights, joined from the shards of 1, 2, 3 and 4 ranks, equal the weights of one device that cuts nothing: the same [0-9]+ bytes'
said 'a rank holds' '^    shards: layout flat, 4 to a group'
verdict 'LAB=1 shows the shards' $?
fails 1 'W=2: the joined shards are not the weights of one device: ' 1.5-ranks-differ

waits 2 2.1
write 2
passes 2 'the loss of the first batch, forward only, is 5.55298901 on 1, 2, 3 and 4 ranks and in tests/reference/tiny.csv: the same bits'
fails 2 'W=4 against tests/reference/tiny.csv: step 0, loss: got (-?nan|[0-9.]+), expected 5.55298901' 2.1-rank-order

waits 3 3.1
write 3
passes 3 '20 steps of SGD on 1, 2, 3 and 4 ranks have the losses of one device in tests/reference/tiny-sgd.csv: the same bits'
fails 3 'W=3 against tests/reference/tiny-sgd.csv: step 1, loss: got [0-9.]+, expected [0-9.]+$' 3.3-divided-twice
unsaid 'W=1 against'
verdict 'LAB=3 with that bug, which one rank does not have: W=1 is not blamed' $?

waits 4 4.1
write 4
passes 4 '20 steps of AdamW on 1, 2, 3 and 4 ranks, and on 3 from a checkpoint of 4, have the bits of your W=1; tests/reference/tiny.csv is at most 0 away, allowed is 8.8e-07'
sed 's|a->step_size \* m\[i\] / \(.*\);|m[i] * (a->step_size / \1);|' "$top/lab4_optimizer/optimizer.c" >lab4_optimizer/optimizer.c
! cmp -s "$top/lab4_optimizer/optimizer.c" lab4_optimizer/optimizer.c && run LAB=4 && [ $rc -eq 0 ] && said '^PASS run: lab 4: .* at most [1-9][.0-9]*e-0[78] away'
verdict 'LAB=4 with an AdamW in another order of operations passes' $?
cp "$top/lab4_optimizer/optimizer.c" lab4_optimizer/optimizer.c
fails 4 'W=1 against tests/reference/tiny.csv: step [12], loss: got [0-9.]+, expected [0-9.]+$' 4.6-tiny-bias
fails 4 'W=3 against your W=1, after 10 steps on 4 ranks and a checkpoint: step [0-9]+, ' 4.5-resume-step-lost

waits 5 5.1
write 5
passes 5 '20 steps on 1, 2, 3 and 4 ranks with --prefetch none and both: the same bits; both hides more of communication'
fails 5 'overlap with --prefetch both: got [0-9]+%, expected more than the [0-9]+% without prefetch' 5.2-no-op 5.3-no-op 5.5-awaited-at-once

waits 6 6.1
write 6
passes 6 '3 steps on an NPU.s stand-in, on 1, 2, 3 and 4 ranks, have the bits of your W=1; the CPU.s tests/reference/tiny.csv is at most [0-9.e-]+ away, allowed is 8.8e-07'
fails 6 'the run on 1 rank.s. failed:' 6.5-no-workspace
exit $bad
