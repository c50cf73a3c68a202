#!/bin/sh
# hints_test.sh -- make test HINTS=2 prints the hints of the first task that is not green, up to a level. Also tests the check
# that every task has three levels, on this tree and on a tree without some levels.
set -u
cd "$(dirname -- "$0")/../.." || exit 2
. tests/tools/test_lib.sh
begin hints
mkdir -p "$dir/lab8_x" "$dir/build/test/grade"

# printed NAME STATUS OUTPUT -- check the exit status and the output of the last command
printed() {
    echo "status $2" | { echo "$3" && cat; } | diff - "$log" >"$dir/diff"
    mv "$dir/diff" "$log"
    [ ! -s "$log" ]
    verdict "$1" $?
}
# hints ARGS... -- run hints.sh on the stand-in tree
hints() {
    HINTS_TREE=$dir GRADE_TASKS=$dir/tasks.txt BUILD=$dir/build tests/grade/hints.sh "$@" >"$log" 2>&1
    echo "status $?" >>"$log"
}
# graded STATUS VERDICT... -- a grader that gives 8.1, 8.1a and 8.10 these verdicts
cat >"$dir/graded" <<'END'
#!/bin/sh
echo graded
printf '8.1 2 %s\n8.1a 2 %s\n8.10 2 %s\n' "$2" "$3" "$4" >"$BUILD/test/grade/results"
exit "$1"
END
chmod +x "$dir/graded"
printf '# a comment\n8.1 1 2 60 lab8 - one\n8.1a 1 2 60 lab8 - one more\n8.10 1 2 60 lab8 - ten\n' >"$dir/tasks.txt"
cat >"$dir/lab8_x/HINTS.md" <<'END'
## Hints
### 8.1 one
1. look
2. call
3. words
### 8.1a one more
1. look at a
   and b

2. call a
3. words of a
### 8.10 ten
1. ten
2. ten
3. ten
## Questions
1. no hint
END

hints --check
printed 'three levels of every task' 0 'PASS hints: every task has three levels of hints'
hints 2 "$dir/graded" 1 PASS FAIL TODO
printed 'the first task that is not green, up to a level' 1 "graded

Hints for 8.1a, up to level 2 of 3 (all of them: lab8_x/HINTS.md):
  1. look at a
     and b
  2. call a"
hints 1 "$dir/graded" 1 PASS BLOCKED TODO
printed 'not a task that waits for another one' 1 "graded

Hints for 8.10, up to level 1 of 3 (all of them: lab8_x/HINTS.md):
  1. ten"
hints 3 "$dir/graded" 0 PASS PASS PASS
printed 'no hints when all is green' 0 graded
hints 4 "$dir/graded" 0 PASS FAIL PASS
printed 'a level that does not exist' 2 "hints.sh: got HINTS=4, expected 1 (what to look at), 2 (which call) or 3 (what to write, in words)
HINT: make test LAB=2 TASK=2.1 HINTS=1"
sed -i '/^2. call a/d; s/^### 8.10 ten/### 8.11 ten/' "$dir/lab8_x/HINTS.md"
hints --check
printed 'levels that are missing, and of no task' 1 "FAIL hints: $dir/lab8_x/HINTS.md: task 8.1a has the levels \"1 3\", expected \"1 2 3\"
FAIL hints: $dir/lab8_x/HINTS.md: task 8.10 has the levels \"\", expected \"1 2 3\"
FAIL hints: $dir/lab8_x/HINTS.md: there is no task 8.11 in tasks.txt"
tests/grade/hints.sh --check >"$log" 2>&1
echo "status $?" >>"$log"
printed 'the hints of the labs' 0 'PASS hints: every task has three levels of hints'
exit $bad
