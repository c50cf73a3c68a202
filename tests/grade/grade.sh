#!/bin/sh
# grade.sh -- run the labs' task tests on several world sizes; print one line per test, and the score.
#
#   tests/grade/grade.sh [--lab "3 4"] [--task "3.9 3.10"] [--ranks "2 3"] [--alone] [BUILD]     commas may separate, too
#
# Tasks, points and limits are in tasks.txt, or in the table GRADE_TASKS. The programs are $BUILD/tests/grade/labN; grade_lib.h
# describes their output, and read_log.awk reads it. The tasks of one lab, program and world size share a launch, which ends at
# its first failure. A task without a verdict, or with a failure that is not the first of its launch, is launched again, so a
# failure of an earlier task does not count against it. If a launch ends badly after all its verdicts, its last PASS is a
# failure. Needs that are not among the graded tasks are run, too, so that one task gets the verdict that it has among all.
# --alone assumes that these needs pass, and runs none of their programs.
#
# Exit status 0: everything passed, except TODO and BLOCKED tasks without points; 1: something failed; 2: refused. Logs and
# results: $LOGS/grade/ (see env.sh), with results.json and results.xml (see results.awk) when whole labs were graded.
# With GRADE_PRIVATE programs are confined, and JUDGE_TOOL (judge.c) judges again the tasks that passed.
# A launch that takes too long is killed with all its processes. The "rerun:" line ends with GRADE_WITH. GRADE_FROM is put
# before the names of logs, for a make that was called in another folder.
# shellcheck disable=SC2046,SC2086 # lists of words
set -u

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
TASKS=${GRADE_TASKS:-$here/tasks.txt}
lab='' task='' ranks='1 2 3 4' needs=run BUILD=${BUILD:-build}

usage() {
    echo "usage: $0 [--lab \"N ...\"] [--task \"T ...\"] [--ranks \"W ...\"] [--alone] [BUILD]" >&2
    exit 2
}

# words LIST -- its words, with a blank between them; fails if there is none
words() { echo "$1" | tr -s ', \t\n' '    ' | sed 's/^ //; s/ $//' | grep .; }
# refuse WHAT HINT
refuse() {
    printf 'grade.sh: %s\nHINT: %s\n' "$1" "$2" >&2
    exit 2
}

while [ $# -gt 0 ]; do
    case $1 in
    --lab) lab=$(words "${2:?}") || usage; shift ;;
    --task) task=$(words "${2:?}") || usage; shift ;;
    --ranks) ranks=$(words "${2:?}") || usage; shift ;;
    --alone) needs=alone ;;
    -*) usage ;;
    *) BUILD=$1 ;;
    esac
    shift
done

FSDP_TOOLS=$here/../tools && . "$FSDP_TOOLS/env.sh"
OUT=$LOGS/grade
mkdir -p "$OUT" || exit 2
RESULTS=$OUT/results # tab-separated: "task W verdict", seconds, text; "task W -" for lines below a verdict
: >"$RESULTS"
: >"$OUT/judged"
: >"$OUT/late" # a line for each task that reached its time limit: task, W
rm -f "$OUT/results.json" "$OUT/results.xml" "$OUT/needs"

launch_pid='' private='' judging='' MOST_OUTPUT=4000000
stop() {
    [ -n "$launch_pid" ] && kill -TERM "$launch_pid" 2>/dev/null && wait "$launch_pid"
    rm -rf ${private:+"$private" "$private.pipe"}
    exit 130
}
trap stop INT TERM HUP

# field TASK COLUMN -- one column of the task's line. Here and below, t "" makes awk compare as text: 8.1 is not 8.10.
field() { awk -v t="$1" -v c="$2" '!/^#/ && $1 == t "" { print $c }' "$TASKS"; }
title() { awk -v t="$1" '!/^#/ && $1 == t "" { $1=$2=$3=$4=$5=$6=""; sub(/^ +/, ""); print }' "$TASKS"; }
verdict_of() { awk -v t="$1" -v w="$2" '$1 == t "" && $2 == w { print $3; exit }' "$RESULTS"; }

# private_begin, private_end -- with GRADE_PRIVATE, programs are confined (confine.sh), and results come through a file that only the
# grade program knows, because the graded code may print on standard output. Each line of results begins with the file's name.
# Afterwards the log begins with the results; of the output, MOST_OUTPUT bytes follow, in which no line looks like a result.
private_begin() {
    [ -n "${GRADE_PRIVATE:-}" ] || return 0
    private=$(mktemp -d "${TMPDIR:-/tmp}/fsdp-grade.XXXXXX") || exit 2 # mode 0700
    GRADE_RESULTS=$private/$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
    export GRADE_RESULTS
    : >"$GRADE_RESULTS"
    exec 5<"$GRADE_RESULTS" # the program may put something else in its place
}
private_end() {
    [ -n "$private" ] || return 0
    head -c $MOST_OUTPUT <&5 | sed -n "s/^${GRADE_RESULTS##*/} //p" >"$log.private"
    exec 5<&-
    cut -b1-2000 "$log" | awk '$1 ~ /^[A-Z]/ { $0 = "printed: " $0 } 1' >>"$log.private" # words as read_log.awk sees them
    mv "$log.private" "$log"
    rm -rf "$private" "$private.pipe"
    private=''
    unset GRADE_RESULTS
}

# launch W LIMIT LOG PROGRAM ARGS... -- run and wait; $launch_status is the exit status of limit.sh or of the program.
# limit.sh gives the launch its own process group and kills the whole group. With $judging, arguments of the judge, the judge starts
# the program, and writes its verdicts to LOG.verdicts.
launch() {
    w=$1 limit=$2 log=$3
    shift 3
    private_begin
    [ -z "$private" ] || [ "$CONFINE" = none ] || set -- "$CONFINE_TOOL" --alone -- "$@"
    [ "$w" -eq 1 ] || set -- $LAUNCHER -n "$w" "$@"
    [ -z "$private" ] || set -- "$here/confine.sh" --write "$private" --in "${BUILD%/build}" -- "$@"
    verdicts=/dev/null to=$log reader=''
    [ -z "$judging" ] || { set -- "$JUDGE_TOOL" --ranks "$w" --folder "$private" $judging -- "$@" && verdicts=$log.verdicts; }
    if [ -n "$private" ]; then # a program that left its group may keep the pipe open
        to=$private.pipe
        mkfifo "$to" || exit 2
        "$FSDP_TOOLS/limit.sh" $((limit + 10)) head -c $MOST_OUTPUT <"$to" >"$log" &
        reader=$!
    fi
    "$FSDP_TOOLS/limit.sh" -k 3 "$limit" "$@" >"$to" 2>&1 </dev/null 3>"$verdicts" 5<&- &
    launch_pid=$!
    wait "$launch_pid"
    launch_status=$?
    launch_pid=''
    [ -z "$reader" ] || wait "$reader"
    private_end
}

# read_log LOG TASK WHAT -- see read_log.awk
read_log() { awk -v t="$2" -v want="$3" -f "$here/read_log.awk" "$1"; }

# place LOG TASK -- " in function (file:line)": where a rank died or hangs, the innermost frame of a lab if there is one
place() {
    set -- $(read_log "$1" "$2" stack)
    [ $# -gt 1 ] || return
    object=$BUILD/tests/grade/${1##*/} # the log may name any file
    shift
    {
        if command -v addr2line >/dev/null; then
            echo "$@" | tr ' ' '\n' | sed 's/=.*//' | addr2line -f -e "$object" 2>/dev/null | paste -d' ' - -
        fi
        echo "$@" | tr ' ' '\n' | sed 's/.*=//; /^$/d'
    } | awk '
        $1 ~ /^([?][?]|fsdp_assert.*)$/ { next }
        first == "" { first = $0 }
        $2 ~ /\/lab[1-6]_[a-z]+\// { first = $0; exit }
        END {
            n = split(first, word, " ")
            if (n) printf " in %s", word[1]
            if (match(word[2], /(lab[1-6]_[a-z]+|common|tests|trainer)\//)) printf " (%s)", substr(word[2], RSTART)
        }'
}

# complaint LOG -- the line that says why a process ended: a missing wait takes precedence over the assertion that it causes
complaint() {
    grep -m1 -E '^\[rank [0-9/]+\] order: ' "$1" ||
        grep -v -E '^[A-Z]+ [0-9]+[.]' "$1" | grep -i -m1 -E 'assert|stand-in: |sanitizer|corrupt|free\(\)|malloc\(\)'
}

# reason LOG TASK -- the message of the rank that failed first; empty if there is none. If the order checker has reported work
# outside its array, the damage shows in a place that did nothing wrong, which is not named.
reason() {
    said=$(read_log "$1" "$2" reason)
    why=''
    case $said in
    *'died of SIGABRT') why=$(complaint "$1") ;;
    *'died of '*) why=$(grep -m1 -E '^\[rank [0-9/]+\] order: ' "$1") ;;
    esac
    case $why in
    *'] order: '*) printf '%s\n' "$said: ${why#*] }" ;;
    *) printf '%s\n' "$said${said:+$(place "$1" "$2")}${why:+: $why}" ;;
    esac
}

# cause LOG -- the line that says why a launch ended badly, with ": " before it
cause() {
    ours=$(grep -v -E '^(\[fsdp_run\]|(VERDICT|DONE|TIME) )' "$1")
    why=$(complaint "$1" || printf '%s\n' "$ours" | grep -i -m1 -E 'error|signal|not found')
    why=${why:-$(printf '%s\n' "$ours" | grep -v -E '^ *(HINT: .*)?$' | tail -1)}
    printf '%s\n' "${why:+: $why}"
}

# crash_reason LOG TASK W STATUS -- why there is no verdict, or why done-markers are missing
crash_reason() {
    said=$(reason "$1" "$2")
    if [ -n "$said" ]; then
        printf '%s\n' "$said"
    elif [ "$4" -eq 124 ] || [ "$4" -eq 137 ]; then
        echo "no verdict in $(field "$2" 4) s: a rank hangs"
    elif grep -q "^VERDICT $2 " "$1"; then
        for r in $(seq 0 $(($3 - 1))); do
            grep -q "^DONE $2 rank $r/" "$1" || { echo "rank $r ended without its done-marker" && break; }
        done
    elif [ "$4" -eq 141 ] && [ -n "${GRADE_PRIVATE:-}" ]; then # SIGPIPE
        echo "no verdict: it printed more than $MOST_OUTPUT bytes"
    elif [ "$4" -eq 0 ]; then
        printf 'no verdict: a rank ended before its end, with exit status 0 (_exit?)%s\n' "$(cause "$1")"
    else
        printf 'crashed (exit status %s)%s\n' "$4" "$(cause "$1")"
    fi
}

# verdict_or_run TASK W -- the verdict of a need. Runs a need that has no verdict yet; with --alone prints nothing instead
verdict_or_run() {
    v=$(verdict_of "$1" "$2")
    [ -n "$v" ] || v=$(awk -v t="$1" -v w="$2" '$1 == t "" && $2 == w { print $3; exit }' "$OUT/needs" 2>/dev/null)
    if [ -z "$v" ] && [ $needs = run ]; then
        needlog=$OUT/need-$1-W$2.log
        launch "$2" "$(field "$1" 4)" "$needlog" "$BUILD/tests/grade/$(field "$1" 5)" --task "$1"
        v=$(read_log "$needlog" "$1" verdict)
        v=${v%% *}
        [ "$v" != - ] || v=FAIL
        [ "$v" != PASS ] || [ -z "$(blocked_by "$1" "$2" run)" ] || v=BLOCKED
        echo "$1 $2 $v" >>"$OUT/needs"
    fi
    echo "$v"
}

# blocked_by TASK W [run] -- the first need of TASK that runs on W ranks and did not pass. A need that was not run counts as
# passed, unless "run" asks to run it.
blocked_by() {
    for need in $(field "$1" 6 | tr ',' ' '); do
        case ",$(field "$need" 3)," in *",$2,"*) ;; *) continue ;; esac
        v=$(verdict_of "$need" "$2")
        [ -n "$v" ] || [ "${3:-}" != run ] || v=$(verdict_or_run "$need" "$2")
        [ -n "$v" ] && [ "$v" != PASS ] && [ "$v" != SKIP ] && echo "$need" && return
    done
}

# blocked_from NEED W -- the task to do first: NEED, or the task that directly or indirectly blocks it
blocked_from() {
    deeper=$(blocked_by "$1" "$2" run)
    if [ -n "$deeper" ]; then blocked_from "$deeper" "$2"; else echo "$1"; fi
}

# below TEXT -- print and keep a line below a verdict
below() {
    printf '        %s\n' "$1"
    printf '%s %s -\t\t%s\n' "$t" "$rw_w" "$1" >>"$RESULTS"
}

# record TASK W VERDICT TEXT [SECONDS] -- print the line and keep the verdict
record() {
    printf '%-7s %s W=%s %s\n' "$3" "$1" "$2" "$4"
    printf '%s %s %s\t%s\t%s\n' "$1" "$2" "$3" "${5:-0}" "$4" >>"$RESULTS"
    [ "$3" = FAIL ] || return 0
    while IFS= read -r line; do
        [ -z "$line" ] || below "$line"
    done <<END
$(read_log "$log" "$1" below)
END
    case $log in /*) shown=$log ;; *) shown=${GRADE_FROM:-}$log ;; esac
    again="test LAB=${1%%.*} TASK=$1 RANKS=$2${GRADE_WITH:+ $GRADE_WITH}"
    case $4 in "the judge, seed "*) again="judge TASK=$1 RANKS=$2 SEED=$(echo "$4" | sed 's/.*seed \(0x[0-9a-f]*\).*/\1/')" ;; esac
    below "rerun: make $again     log: $shown"
}

# record_blocked TASK W NEED TEXT -- BLOCKED, with the task to do first
record_blocked() {
    root=$(blocked_from "$3" "$2")
    [ "${root%%.*}" = "${1%%.*}" ] || built_on=$root
    [ "$root" = "$3" ] && root='' || root="; do $root first"
    record "$1" "$2" BLOCKED "(needs $3$root)${4:+ $4}"
}

# settle TASK W -- print TASK's line from the log. Returns 1 if this task must be launched again, because it has no verdict
# or because it failed after another task.
settle() {
    t=$1
    read -r v marks seconds <<END
$(read_log "$log" "$t" verdict)
END
    text=$(read_log "$log" "$t" text)
    need=$(blocked_by "$t" "$2")
    case $need$v in PASS | TODO) need=$(blocked_by "$t" "$2" run) ;; esac
    if [ -n "$need" ]; then
        record_blocked "$t" "$2" "$need" ''
        return 0
    fi
    if [ "$v" = - ] || { [ "$v" != FAIL ] && [ "$marks" -ne "$2" ]; }; then
        [ "$t" = "$first" ] || return 1
        v=FAIL
    elif [ "$v" = FAIL ] && [ "$t" != "$first" ]; then
        return 1
    fi
    [ "$t" != "$fallen" ] || v=FALLEN
    case $v in
    PASS)
        text=$(judged "$t" "$2")
        case " $judged_tasks ",$text in *" $t "*,) text='FAIL the judge has no verdict' ;; esac
        case $text in
        FAIL*) log=$OUT/judge-$t-W$2.log && record "$t" "$2" FAIL "${text#FAIL }" ;;
        *) record "$t" "$2" PASS "($seconds s)" "$seconds" ;;
        esac
        ;;
    TODO) record "$t" "$2" TODO "$(title "$t")" ;;
    BLOCKED)
        need=${text#needs }
        if [ -n "$(field "$need" 1)" ]; then record_blocked "$t" "$2" "$need" ''; else record "$t" "$2" FAIL "it says that it needs $need, which is no task"; fi
        ;;
    SKIP) record "$t" "$2" SKIP "$text" ;;
    FALLEN) record "$t" "$2" FAIL "it passed, and then its launch ended with exit status $launch_status$(cause "$log")" "$seconds" ;;
    *)
        reason=$(crash_reason "$log" "$t" "$2" "$launch_status")
        need=$(blocked_by "$t" "$2" run)
        reached_limit && echo "$t $2" >>"$OUT/late"
        if [ -n "$need" ]; then
            record_blocked "$t" "$2" "$need" "$reason"
        else
            record "$t" "$2" FAIL "$reason"
        fi
        ;;
    esac
}

# find_fallen W TASKS... -- if a launch ends badly although none of its tasks failed, set $fallen to the last task that passed
find_fallen() {
    ff_w=$1 fallen=''
    [ $launch_status -ne 0 ] || return 0
    shift
    for t in "$@"; do
        read -r v marks seconds <<END
$(read_log "$log" "$t" verdict)
END
        case $v in -|FAIL) fallen='' && return ;; esac
        [ "$marks" -eq "$ff_w" ] || { fallen='' && return; }
        [ "$v" != PASS ] || fallen=$t
    done
}

# judge W TASKS... -- the tasks that passed go to the judge, if it knows them. $OUT/judged has a row for each:
# task, W, verdict, text. A launch of the judge ends at its first failure, and the remaining tasks are launched again.
judge() {
    j_w=$1 j_tasks='' j_log=$log j_status=$launch_status
    shift
    for t in "$@"; do
        case " $judged_tasks $(read_log "$log" "$t" verdict)" in *" $t "*" PASS "*) j_tasks="$j_tasks $t" ;; esac
    done
    set -- $j_tasks
    while [ $# -gt 0 ]; do
        judging=$(printf -- '--task %s ' "$@")
        launch "$j_w" $(($(field "$1" 4) + 5 * $#)) "$OUT/judge-$1-W$j_w.log" "$BUILD/tests/grade/worker" $judging
        judging=''
        while [ $# -gt 0 ]; do
            v=$(awk -v t="$1" '$1 == "VERDICT" && $2 == t "" { sub(/^VERDICT [^ ]+ /, ""); print }' "$log.verdicts")
            why=$(reason "$log" "$1")
            [ -n "$v" ] || { reached_limit && echo "$1 $j_w" >>"$OUT/late"; v="FAIL the judge has no verdict: $(crash_reason "$log" "$1" "$j_w" "$launch_status")"; }
            [ "$v" = PASS ] || [ -z "$why" ] || v="$v ($why)"
            printf '%s %s %s\n' "$1" "$j_w" "$v" >>"$OUT/judged"
            shift
            [ "$v" = PASS ] || break
        done
    done
    log=$j_log launch_status=$j_status
}
# judged TASK W -- its last verdict with its text; empty: not judged
judged() { awk -v t="$1" -v w="$2" '$1 == t "" && $2 == w { $1 = $2 = ""; v = substr($0, 3) } END { print v }' "$OUT/judged"; }

# reached_limit -- whether the last launch was ended at its time limit
reached_limit() { [ "$launch_status" -eq 124 ] || [ "$launch_status" -eq 137 ]; }

# goes_without TASK W -- record the task without a launch if a need has not passed, or if it reached its time limit on other
# ranks: else a tree that hangs everywhere would take hours
goes_without() {
    t=$1
    need=$(blocked_by "$1" "$2") late=$(awk -v t="$1" '$1 == t "" { print $2; exit }' "$OUT/late")
    if [ -n "$need" ]; then
        record_blocked "$1" "$2" "$need" ''
    elif [ -n "$late" ]; then
        record "$1" "$2" FAIL "not launched: it reached its time limit on W=$late"
    else
        return 1
    fi
}

# run_world LAB W TASKS... -- run tasks of one lab and program on W ranks
run_world() {
    rw_lab=$1 rw_w=$2
    shift 2
    while [ $# -gt 0 ]; do
        if goes_without "$1" "$rw_w"; then
            shift
            continue
        fi
        first=$1 args='' limit=$(field "$1" 4)
        for t in "$@"; do
            args="$args --task $t"
            [ "$t" = "$first" ] || limit=$((limit + 1))
        done
        n_launch=$((n_launch + 1))
        log=$OUT/lab$rw_lab-W$rw_w-$n_launch.log
        launch "$rw_w" "$limit" "$log" "$BUILD/tests/grade/$(field "$first" 5)" $args
        find_fallen "$rw_w" "$@"
        [ -z "$judged_tasks" ] || judge "$rw_w" "$@"
        while [ $# -gt 0 ]; do
            settle "$1" "$rw_w" || break
            shift
        done
    done
}

# score LAB TASKS... -- points per task, then "Lab 2: 14/14"
score() {
    sc_lab=$1 sum=0 all=0
    shift
    for t in "$@"; do
        points=$(field "$t" 2) green=0
        for w in 2 3 4; do
            [ "$(verdict_of "$t" $w)" = PASS ] && green=$((green + 1))
        done
        got=0
        [ $green -eq 3 ] && got=$points
        sum=$((sum + got)) all=$((all + points))
        printf '  %s/%s  %s %s\n' "$got" "$points" "$t" "$(title "$t")"
    done
    note=''
    for w in 2 3 4; do
        case " $ranks " in *" $w "*) ;; *) note=' (points need W = 2, 3 and 4 in one run)' ;; esac
    done
    echo "Lab $sc_lab: $sum/$all$note"
    total_sum=$((total_sum + sum)) total_all=$((total_all + all))
}

# rows -- the table's lines of the requested tasks; without tasks, of the requested labs
rows() { awk -v l="$lab" -v t="$task" '!/^#/ && NF { split($1, a, "."); if (index(" " (t == "" ? l : t) " ", " " (t == "" ? a[1] : $1) " ") || l t == "") print }' "$TASKS"; }
# worlds -- the world sizes that at least one of these tasks runs on
worlds() { rows | awk '{ n = split($3, w, ","); for (i = 1; i <= n; i++) if (!seen[w[i]]++) printf " %s", w[i] }'; }

[ -n "$task" ] && kind=task || kind=lab
known=$(awk -v kind=$kind '!/^#/ && NF { if (kind == "lab") sub(/[.].*/, "", $1); print $1 }' "$TASKS")
for word in ${task:-$lab}; do
    printf '%s\n' "$known" | grep -qxF -e "$word" ||
        refuse "no $kind $word in $TASKS" "the labs and their tasks: $(awk '!/^#/ && NF { printf "%s ", $1 }' "$TASKS")"
done
what="$kind ${task:-$lab}"
labs=$(rows | awk '{ sub(/[.].*/, "", $1); if (!seen[$1]++) print $1 }')
[ -z "$task" ] || lab=$(words "$labs")
case $lab in
'') build='make test builds it' ;;
*' '*) build="make test LAB=\"$lab\" builds it" ;;
*) build="make test LAB=$lab builds it" ;;
esac
for w in $ranks; do
    case " $(worlds) " in
    *" $w "*) ;;
    *) refuse "${what% } runs on$(worlds) ranks, got RANKS=\"$ranks\"" "RANKS=\"2 3 4\", which is what points need" ;;
    esac
done
if [ $needs = run ]; then
    programs=$(awk -v lab="$lab" -v task="$task" -f "$here/programs.awk" "$TASKS")
else
    programs=$(rows | awk '!seen[$5]++ { print $5 }')
fi
for program in $programs; do
    program=$BUILD/tests/grade/$program
    [ -x "$program" ] || refuse "there is no $program" "$build"
    [ -z "$(find "$BUILD/libfsdp.a" -newer "$program" 2>/dev/null)" ] ||
        refuse "$program is older than $BUILD/libfsdp.a: it tests what the labs were" "$build"
done

judged_tasks=''
[ -z "${GRADE_PRIVATE:+${JUDGE_TOOL:-}}" ] || judged_tasks=$("$JUDGE_TOOL" --list | tr '\n' ' ' | grep .) || refuse "$JUDGE_TOOL does not run" "$build"
total_sum=0 total_all=0 n_labs=0 begun=$(date +%s)
for l in $labs; do
    ids=$(rows | awk -v l="$l" '{ split($1, a, "."); if (a[1] == l) print $1 }')
    built_on=''
    for w in $ranks; do
        n_launch=0
        for program in $(rows | awk -v l="$l" '{ split($1, a, "."); if (a[1] == l && !seen[$5]++) print $5 }'); do
            wanted=$(rows | awk -v l="$l" -v w="$w" -v p="$program" '{ split($1, a, "."); if (a[1] == l && $5 == p && index("," $3 ",", "," w ",")) print $1 }')
            run_world "$l" "$w" $wanted
        done
    done
    score "$l" $ids
    if [ -n "$built_on" ]; then
        echo "Lab $l is built on task $built_on, which does not pass here. On the finished labs of another tree:"
        echo "        make test LAB=$l BASE=ref REF=<directory of that tree>"
    fi
    n_labs=$((n_labs + 1))
done
[ $n_labs -gt 1 ] && echo "All labs: $total_sum/$total_all"
if [ -z "$task$note" ]; then
    for format in json xml; do
        LC_ALL=C awk -v format=$format -v labs="$(echo "$labs" | tr '\n' ' ')" -v seconds=$(($(date +%s) - begun)) -f "$here/results.awk" "$TASKS" "$RESULTS" >"$OUT/results.$format"
    done
fi

# A task without points that is unwritten or BLOCKED counts neither as passed nor as failed.
awk 'FNR == 1 { file++ }
     file == 1 { points[$1] = $2; next }
     $3 == "-" || $3 ~ /^(TODO|BLOCKED)$/ && points[$1] == 0 { next }
     { n[$3 == "PASS" ? "p" : $3 == "SKIP" ? "s" : "f"]++ }
     END {
        printf "%d passed, %d failed", n["p"], n["f"]
        if (n["s"]) printf ", %d skipped", n["s"]
        print ""
        exit (n["f"] > 0)
     }' "$TASKS" "$RESULTS"
