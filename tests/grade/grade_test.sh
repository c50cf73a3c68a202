#!/bin/bash
# grade_test.sh -- the grader with programs that misbehave: they hang, crash, or exit without a verdict or without a
# done-marker. Each must fail only its own task, and no process may survive. Then checks the grader's other messages and what
# it refuses. Takes about a minute, mostly waiting.
set -u
cd "$(dirname -- "$0")/../.." || exit 2
. tests/tools/test_lib.sh
. tests/tools/clock.sh
begin grader
mkdir -p "$dir/tests/grade"
cat >"$dir/tasks.txt" <<'END'
8.1 1 2,3,4 15 lab8 - passes
8.2 2 2,3,4 6 lab8 - hangs
8.3 3 2,3,4 15 lab8 - crashes
8.4 4 2,3,4 15 lab8 - one rank leaves with _exit(0), unmarked
8.5 5 2,3,4 15 lab8 - nobody says anything, exit status 0
8.6 6 2,3,4 15 lab8 - fails on rank 1; rank 0 only lost its peer
8.7 7 2,3,4 15 lab8 8.6 needs 8.6
8.8 8 2,3,4 15 lab8 - passes after all that
8.9 9 2,3,4 15 lab8 - unwritten
8.10 10 2,3,4 15 lab8 - cannot start
7.1 1 2,3,4 15 lab8 - passes
7.2 0 2,3,4 15 lab8 - star: unwritten
6.1 1 2,3,4 15 lab8 - unwritten
6.2 1 2,3,4 15 lab8 6.1 calls 6.1
5.1 1 2,3,4 15 lab8 6.2 fails, because what it needs does
4.1 0 2,3,4 15 lab8 5.1 star: passes, although what it needs fails
3.1 1 2,3,4 15 lab8 3.2 passes, and what it needs does not run on 2 ranks
3.2 1 3 15 lab8 6.1 needs 6.1
END
for file in flags fsdp_run; do # for the launcher that the grader will choose
    ln -s "$(realpath "${BUILD:-build}")/$file" "$dir/" || exit 2
done
# A rank of the stand-in. FAKE_MARK marks its processes.
cat >"$dir/tests/grade/lab8" <<'END'
#!/bin/sh
r=${FSDP_RUN%% *} n=$(echo "$FSDP_RUN" | cut -d' ' -f2)
verdict() { [ "$r" -eq 0 ] && echo "VERDICT $1 $2"; echo "DONE $1 rank $r/$n"; }
while [ $# -gt 0 ]; do
    case $2 in
    8.2) exec sleep 4$FAKE_MARK ;;
    8.3) kill -SEGV $$ ;;
    8.4) [ "$r" -ne 1 ] || exit 0; verdict 8.4 PASS ;;
    8.5) exit 0 ;;
    8.6)
        if [ "$r" -eq 1 ]; then
            echo "RANKFAIL 8.6 1 FSDP_EINVAL full[3]: got 1, expected 2"
            printf '%s\n' 'RANKHINT 8.6 1 look at "slices" & <shards>, \n'
        else
            echo "RANKFAIL 8.6 $r FSDP_EMISMATCH another call"
        fi
        verdict 8.6 "FAIL rank 0: another call"
        sleep 1 # as in grade_main: output of other ranks is lost when the first exits
        exit 1 ;;
    8.9 | 7.2 | 6.1) verdict "$2" TODO ;;
    6.2) verdict 6.2 'BLOCKED needs 6.1' ;;
    5.1)
        echo "RANKFAIL 5.1 $r FSDP_EINVAL it does not work"
        verdict 5.1 'FAIL rank 0: it does not work'
        sleep 1
        exit 1 ;;
    8.10)
        echo "[rank $r/$n] comm_open: only one of us came"
        echo 'HINT: look at the others'
        exit 2 ;;
    *) verdict "$2" PASS ;;
    esac
    shift 2
done
END
chmod +x "$dir/tests/grade/lab8"
export FAKE_MARK=$$
outlived() { ps -eo args | awk -v mark="sleep 4$FAKE_MARK" '$0 == mark { n++ } END { exit !n }'; }
# expect PATTERN... -- the output has a line like each of these
expect() {
    for pattern in "$@"; do
        grep -q -E "$pattern" "$dir/out" || complain "no line like: $pattern"
    done
}
# grade STATUS ARGS... -- the grader must return STATUS; expect then checks its output
grade() {
    wanted=$1
    shift
    GRADE_TASKS=$dir/tasks.txt limit 300 tests/grade/grade.sh "$@" "$dir" >"$dir/out" 2>&1
    status=$?
    [ $status -eq "$wanted" ] || { complain "grade.sh $*: exit status $status, expected $wanted" && cat "$dir/out"; }
}
grade 1 --lab 8 --ranks 2
expect '^PASS    8.1 W=2 '
expect '^FAIL    8.2 W=2 .*hangs'
expect '^FAIL    8.3 W=2 crashed .*(egmentation|exit status)'
expect '^FAIL    8.4 W=2 rank 1 ended without its done-marker'
expect '^FAIL    8.5 W=2 .*(crashed|no verdict)'
expect '^FAIL    8.6 W=2 rank 1: full\[3\]: got 1, expected 2'
expect '^ *HINT: look at "slices" & <shards>, \\n$'
expect '^ *rerun: make test LAB=8 TASK=8.6 RANKS=2 '
expect '^BLOCKED 8.7 W=2 \(needs 8.6\)'
expect '^PASS    8.8 W=2 '
expect '^TODO    8.9 W=2 '
expect '^FAIL    8.10 W=2 crashed .exit status 2.: .rank [01]/2. comm_open: only one of us came'
expect '^2 passed, 8 failed$'
expect '^Lab 8: 0/55 .points need'
await 60 '! outlived' || complain "a hanging rank outlived the grader"
grade 1 --task 8.2 --ranks '2 3'
expect '^FAIL    8.2 W=2 .*hangs' '^FAIL    8.2 W=3 not launched: it reached its time limit on W=2$'

# an interrupted grader kills its launch
echo '8.2 2 2,3,4 120 lab8 - hangs for longer than this test' >"$dir/tasks2.txt"
GRADE_TASKS=$dir/tasks2.txt tests/grade/grade.sh --task 8.2 --ranks 2 "$dir" >"$dir/out2" 2>&1 &
grader=$!
await 60 outlived || complain "the hanging rank did not begin"
kill -TERM $grader
wait $grader
if ! await 60 '! outlived'; then
    complain "a hanging rank outlived an interrupted grader"
    for pid in $(ps -eo pid,args | awk -v mark="sleep 4$FAKE_MARK" 'index($0, mark) && !/awk/ { print $1 }'); do
        kill "$pid"
    done
fi
# a task test that crashes, exits or hangs (wrecks.c) reports which rank failed, where, and its last calls
ln -s "$(realpath "${BUILD:-build}/tests/grade/wrecks")" "$dir/tests/grade/" || exit 2
for number in 1 2 3 4 5 6 7 8 9; do
    echo "9.$number 1 2,3,4 60 wrecks - wreck number $number"
done >>"$dir/tasks.txt"
grade 1 --lab 9 --ranks 2
expect '^FAIL    9.1 W=2 rank 1: died of SIGSEGV in (wreck_segv|segv) \(tests/grade/wrecks.c:[0-9]+\)'
expect "the last call of rank 1: barrier #[0-9]+ 'before'$"
expect '^FAIL    9.2 W=2 rank 1: died of SIGSEGV in recurse '
expect '^FAIL    9.3 W=2 rank 1: died of SIGABRT in asserts \(tests/grade/wrecks.c:[0-9]+\): .*g->rank == 1'
expect '^FAIL    9.4 W=2 rank 1: called exit in exits \(tests/grade/wrecks.c:[0-9]+\)'
expect '^FAIL    9.5 W=2 rank 1: called _exit in exits_at_once '
expect '^FAIL    9.6 W=2 rank 1: hangs: it (runs|waits) for .* in (wreck_loop|loops) '
# on a busy machine rank 0 may end the job before rank 1 has found that it hangs
expect '^FAIL    9.7 W=2 rank (1: hangs: it waits for .* in waits |0: FSDP_ETIMEOUT )'
expect "rank 0 waited .* barrier #[0-9]+ 'after'; missing data of ranks: 1"
expect '^PASS    9.8 W=2 '
expect '^FAIL    9.9 W=2 it passed, and then its launch ended with exit status .*stand-in: aclFinalize: 110 blocks are live'
expect '^1 passed, 8 failed$'

# an unwritten task without points is not a failure
grade 0 --lab 7 --ranks 2
expect '^TODO    7.2 W=2 ' '^1 passed, 0 failed$'

# BLOCKED names the task to do first, and how to go on without it; the "rerun:" line keeps the caller's options
export GRADE_WITH='BASE=ref REF=../ref' GRADE_FROM=../
grade 1 --lab 5 --ranks 2
expect '^BLOCKED 5.1 W=2 \(needs 6.2; do 6.1 first\) rank 0: it does not work$' '^ *make test LAB=5 BASE=ref REF='
grade 1 --task 8.6 --ranks 3
expect '^ *rerun: make test LAB=8 TASK=8.6 RANKS=3 BASE=ref REF=../ref     log: (/|../)'
unset GRADE_WITH GRADE_FROM
# a task gets the same verdict alone and among others. A task without points that is BLOCKED is not a failure
grade 1 --ranks 2 --lab '4, 5'
expect '^BLOCKED 4.1 W=2 \(needs 5.1; do 6.1 first\)' '^All labs: 0/1$' '^0 passed, 1 failed$'
grade 0 --ranks 2 --task 4.1
expect '^BLOCKED 4.1 W=2 \(needs 5.1; do 6.1 first\)' '^0 passed, 0 failed$'
grade 1 --ranks 2 --task 6.2
expect '^BLOCKED 6.2 W=2 '
grade 1 --ranks '2 3' --task 3.1
expect '^PASS    3.1 W=2 ' '^BLOCKED 3.1 W=3 \(needs 3.2; do 6.1 first\)'
grade 0 --ranks 2 --task 4.1 --alone
expect '^PASS    4.1 W=2 '
grade 0 --ranks 2,3 --task '7.1,8.1'
expect '^PASS    7.1 W=3 ' '^PASS    8.1 W=2 ' '^4 passed, 0 failed$'
grade 1 --task 5.1 --ranks 2 --alone
expect '^FAIL    5.1 W=2 rank 0: it does not work$'

# results for other programs
sed -n '/^8[.][169] /p; /^[74]/p; s/^5.1 1/5.1 0/p' "$dir/tasks.txt" | sed 's/2,3,4 15/1,&/' >"$dir/tasks3.txt"
mv "$dir/tasks3.txt" "$dir/tasks.txt"
grade 1 --ranks '2 3 4'
expect '^All labs: 2/17$'
if command -v python3 >/dev/null; then
    python3 - "$dir/test/grade" <<'END' >"$dir/out" 2>&1 || { complain 'results.json, results.xml:' && cat "$dir/out"; }
import json, sys
import xml.etree.ElementTree as xml
results = json.load(open(sys.argv[1] + "/results.json"))
assert results["score"] == 2 and isinstance(results["execution_time"], int), results
tests = {test["number"]: test for test in results["tests"]}
assert list(tests) == ["8.1", "8.6", "8.9", "7.1", "7.2", "5.1", "4.1"], list(tests)
assert [test["score"] for test in tests.values()] == [1, 0, 0, 1, 0, 0, 0]
assert [test["max_score"] for test in tests.values()] == [1, 6, 9, 1, 0, 0, 0]
assert [test.get("status") for test in tests.values()] == ["passed", "failed", "failed", "passed", None, "failed", None]
assert tests["8.6"]["name"] == "fails on rank 1; rank 0 only lost its peer"
assert 'FAIL on 3 ranks: rank 1: full[3]: got 1, expected 2\nanother call\nHINT: look at "slices" & <shards>, \\n\n' in tests["8.6"]["output"]
suites = xml.parse(sys.argv[1] + "/results.xml").getroot()
assert [suite.attrib["name"] for suite in suites] == ["lab8", "lab7", "lab5", "lab4"]
assert [[suite.attrib[k] for k in ("tests", "failures", "skipped")] for suite in suites] == [["9", "6", "0"], ["6", "0", "3"], ["3", "3", "0"], ["3", "0", "3"]], [s.attrib for s in suites]
case = [case for case in suites[0] if case.attrib["name"].startswith("8.6 ") and "(W=3)" in case.attrib["name"]][0]
assert case[0].tag == "failure" and case[0].attrib["message"] == "rank 1: full[3]: got 1, expected 2"
assert '"slices" & <shards>' in case[0].text
END
else
    echo 'SKIP grader: results.json and results.xml: no python3 here'
fi
[ -s "$dir/test/grade/results.json" ] || complain 'no results.json'

# refused arguments
refused() {
    hint=$1
    shift
    grade 2 "$@"
    expect "$hint"
    ! grep -q ' passed, ' "$dir/out" || complain "grade.sh $*: graded"
}
refused '^grade.sh: task 7.1 runs on 1 2 3 4 ranks, got RANKS="2 5"' --task 7.1 --ranks '2 5'
refused '^HINT: RANKS="2 3 4"' --lab 7 --ranks two
refused '^HINT: the labs and their tasks: 8.1 8.6' --task 7.9
refused '^grade.sh: no task 7.9 in ' --task '7.1 7.9 8.1'
refused '^grade.sh: no lab 9 in ' --lab '7 9'
[ ! -e "$dir/test/grade/results.json" ] || complain 'results.json of another run is left'
touch -d '1 minute ago' "$dir/tests/grade/lab8"
touch "$dir/libfsdp.a"
refused '^HINT: make test LAB=7 builds it' --lab 7
rm "$dir/tests/grade/lab8"
refused '^grade.sh: there is no .*/tests/grade/lab8' --lab 7

# an instructor's tests are graded with the labs' tests
export BUILD="${BUILD:-build}"
# extra FOLDER ARGS... -- run make with the tests in that folder
extra() {
    folder=$1
    shift
    limit 300 make -s BUILD="$BUILD" EXTRA_TESTS="$folder" "$@" >"$dir/out" 2>&1
}
extra tests/grade/hidden_example test-labs LAB=1 RANKS="2 3 4" || complain 'hidden tests of lab 1 do not pass'
expect '^PASS    1.91 W=3 ' '^  1/1  1.x1 flat_intersect' '^Lab 1: 19/19$'
cp "$BUILD/test/grade/results.json" "$dir/out"
expect '"number": "1.x1",.* "score": 1, "max_score": 1, .*"visibility": "after_published"'
[ "$(grep -c '"visibility"' "$dir/out")" -eq 2 ] || complain 'results.json: a task of the labs is hidden'
extra tests/grade/hidden_example test LAB=2 TASK=2.91 RANKS=2 || complain 'a hidden test of lab 2 does not pass'
expect '^PASS    2.91 W=2 '
# objects built from another folder do not count, and the "rerun:" line names the folder
mkdir "$dir/hidden" && cd "$dir/hidden" || exit 2
sed 's/(end - begin)/(end + 1)/' "$OLDPWD/tests/grade/hidden_example/hidden1.c" >hidden1.c
touch -d '1 day ago' hidden1.c
# row LINE -- make it the only line of the folder's tasks.txt
row() { echo "$1" >"$dir/hidden/tasks.txt"; }
row '1.91 2 2,3,4 60 hidden1 - primes'
cd "$OLDPWD" || exit 2
extra "$dir/hidden" test LAB=1 TASK=1.91 RANKS=2 && complain 'a hidden test that must fail passes'
expect '^FAIL    1.91 W=2 rank 0: elems: got ' "^ *rerun: make test LAB=1 TASK=1.91 RANKS=2 EXTRA_TESTS=$dir/hidden "
echo 'int x = ; /* "1.91" */' >"$dir/hidden/hidden1.c"
extra "$dir/hidden" test LAB=1 TASK=1.91 RANKS=2 && complain 'a hidden test that does not compile is graded'
expect "^extra.sh: $dir/hidden/hidden1.c does not build: " '^HINT: '
extra "$dir/nowhere" test LAB=1 && complain 'a folder that is not there is graded'
expect "^extra.sh: EXTRA_TESTS=$dir/nowhere: there is no such folder" '^HINT: '
# refused_row LINE PATTERN -- the folder is refused with these words
refused_row() {
    row "$1"
    tests/grade/extra.sh "$dir/hidden" "$dir" >"$dir/out" 2>&1 && complain "hidden tests: \"$1\" is not refused"
    expect "^extra.sh: EXTRA_TESTS=$dir/hidden: .*$2" '^HINT: '
}
refused_row '1.1 2 2,3,4 60 hidden1 - again' 'tasks.txt:1: there is a task 1.1 already'
refused_row '1.91 2 2,3,4 60 hidden7 - no source' 'task 1.91: there is no .*/hidden7.c'
refused_row '1.92 2 2,3,4 60 hidden1 - not in the source' 'hidden1.c has no "1.92"'
refused_row '1.91 2 2,3,4 60 lab1 - one of the labs' 'got the program "lab1", expected .*none of the labs'
refused_row '1.91 2 2,3 60 hidden1 - two sizes' 'got ranks "2,3", expected .*2,3,4 among them'
refused_row '7.91 2 2,3,4 60 hidden1 - another lab' 'got the task "7.91", expected a lab from 1 to 6'
refused_row '1.91 2 2,3,4 60 hidden1 1.99 a need' 'got the need 1.99, '
refused_row '1.91 few 2,3,4 60 hidden1 - points' 'got points "few" '
refused_row '1.91 2 2,3,4 60 hidden1' 'got 5 columns, expected task points '
refused_row '# nothing' 'tasks.txt has no task'
rm "$dir/hidden/tasks.txt" && tests/grade/extra.sh "$dir/hidden" "$dir" >"$dir/out" 2>&1 && complain 'a folder without tasks.txt is not refused'
expect "^extra.sh: EXTRA_TESTS=$dir/hidden: there is no .*/tasks.txt"

if [ $bad -eq 0 ]; then
    echo 'PASS grader: a launch that misbehaves costs its own task only, says what happened, and leaves nothing behind'
fi
exit $bad
