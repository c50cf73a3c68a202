#!/bin/sh
# alone_test.sh -- each task can be solved alone: fill in the handout one task after the other.
#
#   tests/grade/alone_test.sh [LAB ...]             (make test-alone LAB=3; default: all six labs, about 15 minutes)
#
# Two checks for each task of tasks.txt, on W = 2, 3 and 4. All other tasks are stubs.
#   alone      The task and all its direct and indirect needs are written: the task passes.
#   in order   All tasks up to this one are written, in the order of tasks.txt: the score of its lab has risen by its points,
#              every task written so far passes, and no other task passes. A task without its own code, such as 3.7, counts
#              as written when its needs are written.
# Prints PASS and FAIL lines; exits non-zero on a FAIL. Works in a temporary folder, with copies of $BUILD's objects.
# shellcheck disable=SC2046,SC2086 # lists of words
set -u
cd "$(dirname -- "$0")/../.." || exit 2
. tests/tools/test_lib.sh
begin alone
BUILD=${BUILD:-build} tasks=$top/tests/grade/tasks.txt

limit 60 tests/tools/handout.sh --lab6 "$dir/tree" >"$dir/log" || exit 2
files=$(grep -l 'SOLUTION BEGIN' lab[1-6]_*/*.c lab[1-6]_*/*.cpp)
copy_build "$dir/tree" || exit 2
cd "$dir/tree" || exit 2

field() { awk -v t="$1" -v c="$2" '!/^#/ && $1 == t "" { print $c }' "$tasks"; }
# with_needs TASK ... -- the tasks and all their direct and indirect needs
with_needs() {
    for wn_task in "$@"; do
        echo "$wn_task"
        (with_needs $(field "$wn_task" 6 | tr ',' ' ' | sed 's/^-$//'))
    done | sort -u
}
# write_only TASK ... -- write the solutions of these tasks and stubs for all others. An unchanged file keeps its time.
write_only() {
    echo "$*" | tr ' ' '\n' | sed 's/[.]/[.]/; s|.*|/SOLUTION (BEGIN\|END) & /d|' >"$dir/keep.sed"
    for file in $files; do
        sed -E -f "$dir/keep.sed" "$top/$file" >"$dir/part" && awk -f "$top/tests/tools/handout.awk" "$dir/part" >"$dir/new" || exit 2
        cmp -s "$dir/new" "$file" || cp "$dir/new" "$file"
    done
}
# grade LAB ARGS... -- build the graders of labs 1 to LAB from the current sources, and grade
grade() {
    lab=$1
    shift
    targets="build/fsdp_run $(seq -f 'build/tests/grade/lab%g' "$lab")"
    [ "$lab" != 6 ] || targets="$targets build/fsdp_npu_sim.so"
    limit 300 make -s -j2 $targets >"$dir/log" 2>&1 &&
        BUILD=build limit 300 tests/grade/grade.sh "$@" --ranks "2 3 4" build >"$dir/log" 2>&1
}
# failed WHAT -- report a failure with the log's first lines about it
failed() {
    complain "$1"
    grep -m3 -E '^(FAIL|BLOCKED|TODO) |error:|undefined' "$log" | sed 's/^/     /'
}
passes() { [ "$(grep -c "^PASS *$1 W=[234] " "$dir/log")" -eq 3 ]; }

# free TASK -- true if the task has no solution of its own: it tests other tasks' code
free() { (cd "$top" && ! grep -q "SOLUTION BEGIN $1 " $files); }
# done_of LAB -- its tasks that must pass when the tasks in $written are written
done_of() {
    for t in $(awk -v l="$1" '!/^#/ && NF { split($1, a, "."); if (a[1] == l) print $1 }' "$tasks"); do
        missing=$(for need in $(with_needs "$t"); do free "$need" || case " $written " in *" $need "*) ;; *) echo "$need" ;; esac; done)
        [ -n "$missing" ] || echo "$t"
    done
}

written=''
for task in $(awk '!/^#/ && NF { print $1 }' "$tasks"); do
    lab=${task%%.*}
    written="$written $task "
    [ $# -eq 0 ] || case " $* " in *" $lab "*) ;; *) continue ;; esac
    write_only $(with_needs "$task")
    grade "$lab" --task "$task"
    others=$(with_needs "$task" | grep -v -x -F "$task" | tr '\n' ' ')
    if passes "$task"; then
        verdict "$task, with ${others:-none }of the other tasks" 0
    else
        failed "$task does not pass with ${others:-none }of the other tasks"
    fi
    free "$task" && continue
    write_only $written
    grade "$lab" --lab "$lab"
    score=0 n_pass=0
    for t in $(done_of "$lab"); do
        score=$((score + $(field "$t" 2))) n_pass=$((n_pass + 3))
        passes "$t" || failed "in order: $t does not pass once $task is written"
    done
    if ! grep -q "^Lab $lab: $score/" "$dir/log"; then
        failed "in order: with $task got \"$(grep "^Lab $lab:" "$dir/log")\", expected $score points"
    elif [ "$(grep -c '^PASS ' "$dir/log")" -ne $n_pass ]; then
        failed "in order: with $task, $(grep -c '^PASS ' "$dir/log") lines PASS, expected $n_pass: a task passes that is not written"
    else
        verdict "in order up to $task: $score points in lab $lab" 0
    fi
done
exit $bad
