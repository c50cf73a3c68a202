#!/bin/bash
# check_test.sh -- tests check.sh with commands that pass, fail, are skipped, hang, say nothing or lose a rank, and test.sh with
# a table.
set -u
cd "$(dirname "$0")/../.." || exit 2
. tests/tools/test_lib.sh
. tests/tools/clock.sh
begin check
log=$dir/out

# expect WHO PATTERN... -- the log has a line like each of these
expect() {
    who=$1
    shift
    said "$@" || verdict "$who" 1
}

# says COMMAND PATTERN... -- what check prints about a shell command. marks: the number of DONE lines that it must have
marks=0
says() {
    command=$1
    shift
    (
        . tests/tools/check.sh
        done_marks=$marks
        check it 1 "$dir/log" sh -c "$command"
        if sum; then echo ok; else echo not ok; fi
    ) >"$log" 2>&1
    expect "check.sh on \"$command\"" "$@"
}

says 'echo PASS a; echo PASS b' '^PASS it: 2 passed, 0 failed, [0-9]+ s \(CPU [0-9]+ s\)$' '^2 passed, 0 failed$' '^ok$'
says 'echo PASS a; echo "FAIL b: why"; echo "  at c"; exit 1' '^FAIL it: 1 passed, 1 failed, ' '^     FAIL b: why$' \
    '^       at c$' '^     rerun: sh -c ' '^1 passed, 1 failed$' '^not ok$'
says 'echo "FAIL b"' '^FAIL it: 0 passed, 1 failed, '
says 'echo PASS a; echo "7 passed, 0 failed, 2 skipped"' '^PASS it: 7 passed, 0 failed, 2 skipped, '
says 'echo "7 passed, 2 failed"' '^FAIL it: 7 passed, 2 failed, ' '^7 passed, 2 failed$'
says 'echo PASS a; exit 3' '^FAIL it: 1 passed, 1 failed, ' '^     PASS a$'
says 'echo some; echo words' '^FAIL it: 0 passed, 1 failed, ' '^     some$' '^     words$'
says 'echo "SKIP a: no tool"; exit 77' '^SKIP it: 0 passed, 0 failed, 1 skipped, ' '^     SKIP a: no tool$' '^ok$'
says 'exit 77' '^SKIP it: 0 passed, 0 failed, 1 skipped, '
says 'echo "ok 1 - a"; echo "SKIP b: no tool"; echo "not ok 2 # SKIP b"; echo "ok 3 # SKIP c"' \
    '^PASS it: 1 passed, 0 failed, 2 skipped, ' '^     SKIP b: no tool$'
says 'echo "not ok 1 - a"; echo "# 1 != 2"; exit 1' '^FAIL it: 0 passed, 1 failed, ' '^     # 1 != 2$'
# One process that wants to run; a hundred a core.
echo "0 0 0 1/1 1" >"$dir/idle"
echo "0 0 0 $((100 * $(nproc)))/1 1" >"$dir/busy"
LOADAVG=$dir/idle says 'echo PASS a; exec sleep 30' '^FAIL it: 1 passed, 1 failed, ' 'not done in 1 s$'
LOADAVG=$dir/busy says 'echo PASS a; sleep 3' '^PASS it: 1 passed, 0 failed, '
echo 1000 100000 >"$dir/quota" # a hundredth of a core
LOADAVG=$dir/idle CPU_MAX=$dir/quota says 'echo PASS a; sleep 3' '^PASS it: 1 passed, 0 failed, '
# A command that ignores SIGTERM, and its child
LOADAVG=$dir/idle tests/tools/limit.sh -k 1 1 sh -c "trap '' TERM; sleep 900 & echo \$! >$dir/child; wait" >"$log" 2>&1
[ $? -eq 137 ] || complain 'limit.sh: status after SIGKILL'
await 10 '[ -z "$(ps -o stat= -p "$(cat "$dir/child")" | grep -v Z)" ]' || complain 'limit.sh: a child of its command goes on after SIGKILL'
for wrong in 0.5 08 '' 1m; do
    tests/tools/limit.sh "$wrong" true 2>"$log"
    [ $? -eq 125 ] && said 'expected whole seconds' || complain "limit.sh takes '$wrong' for a limit"
done
# SIGTERM after the start of the command, before the variable has its id
cat >"$dir/between" <<END
trap '[ "\$BASH_COMMAND" != child=\\\$! ] || { until [ -s $dir/id ]; do sleep 0.1; done; kill -TERM \$\$; }' DEBUG
END
BASH_ENV=$dir/between tests/tools/limit.sh 60 sh -c "echo \$\$ >$dir/id; exec sleep 90" 2>"$log"
[ $? -eq 143 ] || complain 'limit.sh: status after SIGTERM'
kill "$(cat "$dir/id")" 2>>"$log" && complain 'limit.sh: its command goes on after SIGTERM'
marks=2
says 'echo PASS a; echo DONE rank 0/2' '^FAIL it: 1 passed, 1 failed, ' '1 of 2 ranks were done$'
[ $bad -eq 0 ] && echo 'PASS check.sh: what commands say and return becomes their verdict'

# Two checks that wait for each other and one after both; one that kills the shell that runs it; two that are interrupted.
cat >"$dir/checks" <<'END'
one   meet  shared 100 1 sh -c 'touch $BUILD/1; until [ -e $BUILD/2 ]; do sleep 0.1; done; echo PASS one; touch $BUILD/1.done'
two   meet  shared 100 1 sh -c 'touch $BUILD/2; until [ -e $BUILD/1 ]; do sleep 0.1; done; echo PASS two; touch $BUILD/2.done'
three meet  whole  100 1 sh -c 'ls $BUILD/1.done $BUILD/2.done && echo PASS three'
four  lost  shared 100 1 sh -c 'kill -KILL $(ps -o ppid= -p $PPID); echo PASS four'
five  lost  shared 100 1 sh -c 'echo PASS five'
six   stop  shared 100 1 sh -c 'echo $$ >$BUILD/6; exec sleep 90'
seven stop  shared 100 1 sh -c 'echo $$ >$BUILD/7; exec sleep 90'
eight full  whole  100 7200 sh -c 'echo >>$BUILD/8; echo PASS eight; echo SKIP ate: no'
nine  full  whole  100 60 sh -c 'echo PASS nine; ls $BUILD/9'
END
mkdir "$dir/build"
run_table() { CHECKS="$dir/checks" FSDP_DEVICE='' BUILD="$dir/build" exec tests/tools/test.sh "$1" >"$log" 2>&1; }
# runs TIER STATUS PATTERN... -- what test.sh prints
runs() {
    tier=$1 expected=$2
    shift 2
    (run_table "$tier")
    status=$?
    [ $status -eq "$expected" ] || complain "test.sh $tier: status $status, expected $expected"
    expect "test.sh $tier" "$@"
}
runs meet 0 '^PASS three: .*, 3 of 3 at 0:' '^slowest: ' '^3 passed, 0 failed$'
runs lost 1 '^FAIL test.sh: 1 of 2 checks came to their end$' ' [1-9] failed$'
(run_table stop) &
table=$!
until [ -s "$dir/build/6" ] && [ -s "$dir/build/7" ]; do sleep 0.1; done
kill -TERM $table
wait $table
for id in $(cat "$dir/build/6" "$dir/build/7"); do
    kill "$id" 2>/dev/null && complain 'test.sh: a check goes on after SIGTERM'
done
[ $bad -eq 0 ] && echo 'PASS test.sh: lanes, one that is lost, and none that outlives it'

# Passed checks are kept until all have passed, or until the build changes.
echo 'cc -O1' >"$dir/build/flags"
runs full 1 '^full: 2 checks, about 2 h 01 min ' '^eight +1 +0 +1 ' '^nine +1 +1 +0 ' '^2 passed, 1 failed, 1 skipped$'
runs full 1 '^      1 have passed on this tree and are kept; the others take about 0 h 01 min' '^eight +1 +0 +1 ' '^2 passed, 1 failed, 1 skipped$'
[ "$(wc -l <"$dir/build/8")" -eq 1 ] || complain 'test.sh: a check that had passed was run again'
echo 'cc -O2' >"$dir/build/flags"
touch "$dir/build/9"
runs full 0 '^eight +1 +0 +1 ' '^nine +1 +0 +0 ' '^2 passed, 0 failed, 1 skipped$'
runs full 0 '^eight +1 +0 +1 '
[ "$(wc -l <"$dir/build/8")" -eq 3 ] || complain 'test.sh: checks of another build, or of a run that is over, were kept'

# figures TEXT PATTERN... -- what writeup_check.sh says about a document
figures() {
    printf '%b\n' "# It\n$1" >"$dir/doc"
    shift
    WRITEUP="$dir/doc" tests/tools/writeup_check.sh "$dir/build" >"$log" 2>&1
    expect writeup_check.sh "$@"
}
figures '<!-- figures: echo 3 4.5 -->\nOf 2 there are 3, or 4.5.' '\| 2 \| 0 \| 0.0 \|.* PASS' '^1 passed, 0 failed$'
figures '<!-- figures: echo 4.5 3 -->\nOf 2 there are 3, or 4.5.' '^FAIL writeup: It: no 3 within 0% ' '^0 passed, 1 failed$'
figures '<!-- figures: echo 3 -->\nThere are 4.\n\nHere are 3.' '^FAIL writeup: It: no 3 '
figures '<!-- figures 5%: echo 100 -->\n<!-- figures 3%: echo 50 -->\n| a | 104 |\n| b | 52 |' ' 3.8 .* PASS' '^FAIL writeup: It: no 50 within 3%'
figures '<!-- figures: echo 1; exit 3 -->\n```\n1\n```' '^FAIL writeup: It: exit status 3'
figures '<!-- figures: echo no -->\nNone.' '^FAIL writeup: It: the command prints no number$'
figures '<!-- figures around: echo 1 -->\n1' ':2: not understood: '
figures '| a | 1 | 2 |\n\n<!-- figures: cells WRITEUP.md 2 nonesuch -->\n1' '^FAIL writeup: It: exit status 1: WRITEUP.md has no row nonesuch'
[ $bad -eq 0 ] && echo 'PASS writeup_check.sh: figures in their order, within their bands, of commands that succeed'
[ $bad -eq 0 ] && echo 'PASS test.sh: a full run goes on where it was stopped'
exit $bad
