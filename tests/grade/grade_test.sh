#!/bin/sh
# grade_test.sh -- the grader against programs that misbehave: they hang, crash, leave without a verdict or
# without a done-marker. Each must cost its own task only, and leave no process behind. About 50 seconds, in which it mostly waits.
set -u
cd "$(dirname -- "$0")/../.." || exit 2
dir=$(mktemp -d "${TMPDIR:-/tmp}/fsdp-grade.XXXXXX")
trap 'rm -rf "$dir"' EXIT
trap 'exit 130' INT TERM HUP
mkdir -p "$dir/tests/grade"
cat >"$dir/tasks.txt" <<'END'
8.1 1 2,3,4 15 lab8 - passes
8.2 2 2,3,4 15 lab8 - hangs
8.3 3 2,3,4 15 lab8 - crashes
8.4 4 2,3,4 15 lab8 - one rank leaves with _exit(0), unmarked
8.5 5 2,3,4 15 lab8 - nobody says anything, exit status 0
8.6 6 2,3,4 15 lab8 - fails on rank 1; rank 0 only lost its peer
8.7 7 2,3,4 15 lab8 8.6 needs 8.6
8.8 8 2,3,4 15 lab8 - passes after all that
8.9 9 2,3,4 15 lab8 - unwritten
8.10 10 2,3,4 15 lab8 - cannot start
END
for file in flags fsdp_run; do # of the launcher that the grader will choose
    ln -s "$(realpath "${BUILD:-build}")/$file" "$dir/" || exit 2
done
# A rank of the stand-in: PMI_RANK and PMI_SIZE, or FSDP_RUN, are the launcher's. FAKE_MARK names its processes.
cat >"$dir/tests/grade/lab8" <<'END'
#!/bin/sh
r=${PMI_RANK:-${FSDP_RUN%% *}} n=${PMI_SIZE:-$(echo "$FSDP_RUN" | cut -d' ' -f2)}
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
        else
            echo "RANKFAIL 8.6 $r FSDP_EMISMATCH another call"
        fi
        verdict 8.6 "FAIL rank 0: another call"
        exit 1 ;;
    8.9) verdict 8.9 TODO ;;
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
bad=0
complain() {
    echo "FAIL grader: $*"
    bad=1
}
export FAKE_MARK=$$
outlived() { ps -eo args | awk -v mark="sleep 4$FAKE_MARK" '$0 == mark { n++ } END { exit !n }'; }
# await COMMAND -- until it is true, a minute at most
await() {
    for try in $(seq 600); do
        eval "$1" && return
        sleep 0.1
    done
    return 1
}
GRADE_TASKS=$dir/tasks.txt timeout 300 tests/grade/grade.sh --lab 8 --ranks 2 "$dir" >"$dir/out" 2>&1
[ $? -eq 1 ] || complain "exit status is not 1"
expect() { grep -q -E "$1" "$dir/out" || complain "no line like: $1"; }
expect '^PASS    8.1 W=2 '
expect '^FAIL    8.2 W=2 .*hangs'
expect '^FAIL    8.3 W=2 crashed .*(egmentation|exit status)' # which of the two, mpiexec leaves to chance
expect '^FAIL    8.4 W=2 rank 1 ended without its done-marker'
expect '^FAIL    8.5 W=2 .*(crashed|no verdict)'
expect '^FAIL    8.6 W=2 rank 1: full\[3\]: got 1, expected 2'
expect '^ *rerun: make test LAB=8 TASK=8.6 RANKS=2 '
expect '^BLOCKED 8.7 W=2 \(needs 8.6\)'
expect '^PASS    8.8 W=2 '
expect '^TODO    8.9 W=2 '
expect '^FAIL    8.10 W=2 crashed .exit status 2.: .rank [01]/2. comm_open: only one of us came'
expect '^2 passed, 8 failed$'
expect '^Lab 8: 0/55 .points need'
await '! outlived' || complain "a hanging rank outlived the grader"

# an interrupted grader takes its launch with it
echo '8.2 2 2,3,4 120 lab8 - hangs for longer than this test' >"$dir/tasks2.txt"
GRADE_TASKS=$dir/tasks2.txt tests/grade/grade.sh --task 8.2 --ranks 2 "$dir" >"$dir/out2" 2>&1 &
grader=$!
await outlived || complain "the hanging rank did not begin"
kill -TERM $grader
wait $grader
if ! await '! outlived'; then
    complain "a hanging rank outlived an interrupted grader"
    for pid in $(ps -eo pid,args | awk -v mark="sleep 4$FAKE_MARK" 'index($0, mark) && !/awk/ { print $1 }'); do
        kill "$pid"
    done
fi
if [ $bad -eq 0 ]; then
    echo 'PASS grader: a launch that misbehaves costs its own task only, and leaves nothing behind'
else
    cat "$dir/out"
fi
exit $bad
