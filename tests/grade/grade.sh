#!/bin/sh
# grade.sh -- run the labs' task tests on several world sizes, print one line each, and the score.
#
#   tests/grade/grade.sh [--lab N] [--task T] [--ranks "2 3"] [BUILD]
#
# Tasks, points and limits stand in tasks.txt; the programs are $BUILD/tests/grade/labN (see grade_lib.h for
# what they print). The tasks of one lab and world size share a launch; a launch ends at its first failure. What
# did not get a verdict, and a failure that was not the first of its launch, is launched again: nothing
# is charged to a task that ran behind another's wreck. Exit status 0 only when everything passed.
# Logs and results: $LOGS/grade/ (see env.sh). A launch that takes too long is killed with all its processes.
set -u

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
TASKS=${GRADE_TASKS:-$here/tasks.txt}
lab='' task='' ranks='1 2 3 4' BUILD=${BUILD:-build}

usage() {
    echo "usage: $0 [--lab N] [--task T] [--ranks \"W ...\"] [BUILD]" >&2
    exit 2
}

while [ $# -gt 0 ]; do
    case $1 in
    --lab) lab=${2:?} && shift ;;
    --task) task=${2:?} && shift ;;
    --ranks) ranks=$(echo "${2:?}" | tr ',' ' ') && shift ;;
    -*) usage ;;
    *) BUILD=$1 ;;
    esac
    shift
done

. "$here/../tools/env.sh"
OUT=$LOGS/grade
mkdir -p "$OUT" || exit 2
RESULTS=$OUT/results # "task W verdict", one line each
: >"$RESULTS"

launch_pid='' private=''
stop() {
    [ -n "$launch_pid" ] && kill -TERM "$launch_pid" 2>/dev/null && wait "$launch_pid"
    rm -rf ${private:+"$private"}
    exit 130
}
trap stop INT TERM HUP

# field TASK COLUMN -- one column of the task's line. Here and below, t "" makes awk compare text: 8.1 is not 8.10.
field() { awk -v t="$1" -v c="$2" '!/^#/ && $1 == t "" { print $c }' "$TASKS"; }
title() { awk -v t="$1" '!/^#/ && $1 == t "" { $1=$2=$3=$4=$5=$6=""; sub(/^ +/, ""); print }' "$TASKS"; }
verdict_of() { awk -v t="$1" -v w="$2" '$1 == t "" && $2 == w { print $3; exit }' "$RESULTS"; }

# private_begin, private_end -- with GRADE_PRIVATE results do not come over standard output, on which the graded code may
# print, but through a file that only the grade program knows. Its name begins each of its lines. Afterwards the log has
# them first, and what was printed has no line that looks like one of them.
private_begin() {
    [ -n "${GRADE_PRIVATE:-}" ] || return 0
    private=$(mktemp -d) || exit 2 # of mode 0700
    GRADE_RESULTS=$private/$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
    export GRADE_RESULTS
    : >"$GRADE_RESULTS"
}
private_end() {
    [ -n "$private" ] || return 0
    sed -n "s/^${GRADE_RESULTS##*/} //p" "$GRADE_RESULTS" >"$log.private"
    sed 's/^[A-Z][A-Z]* /printed: &/' "$log" >>"$log.private"
    mv "$log.private" "$log"
    rm -r "$private"
    private=''
    unset GRADE_RESULTS
}

# launch W LIMIT LOG PROGRAM ARGS... -- run and wait; the exit status is timeout's or the program's.
# timeout(1) gives the launch a process group of its own and kills the whole group.
launch() {
    w=$1 limit=$2 log=$3
    shift 3
    private_begin
    if [ "$w" -eq 1 ]; then
        timeout -k 3 "$limit" "$@" >"$log" 2>&1 </dev/null &
    else
        # shellcheck disable=SC2086 # words
        timeout -k 3 "$limit" $LAUNCHER -n "$w" "$@" >"$log" 2>&1 </dev/null &
    fi
    launch_pid=$!
    wait "$launch_pid"
    launch_status=$?
    launch_pid=''
    private_end
}

# first_difference LOG TASK -- "rank r: what[i]: got g, expected w": the lowest rank whose own check failed; ranks
# that only lost their peers come last.
first_difference() {
    awk -v t="$2" '
        $1 == "RANKFAIL" && $2 == t "" {
            late = $4 ~ /ECOMM|EMISMATCH|ETIMEOUT/ ? 1000 : 0
            if (best == "" || $3 + late < best) { best = $3 + late; rank = $3; status = $4; text = $0 }
        }
        $1 == "VERDICT" && $2 == t "" && $3 == "FAIL" { verdict = $0; sub(/^VERDICT [^ ]+ FAIL /, "", verdict) }
        END {
            if (best != "") {
                sub(/^RANKFAIL [^ ]+ [^ ]+ [^ ]+ /, "", text)
                print "rank " rank ": " (best >= 1000 ? status " " : "") text
            } else print verdict
        }' "$1"
}

# mismatch LOG TASK -- when ranks disagreed about a collective: which calls met
mismatch() {
    awk -v t="$2" '$1 == "RANKFAIL" && $2 == t "" && $4 == "FSDP_EMISMATCH" {
        sub(/^RANKFAIL [^ ]+ [^ ]+ [^ ]+ /, ""); print "        " substr($0, 1, 200); exit }' "$1"
}

# crash_reason LOG TASK W STATUS -- why there is no verdict, or not from everybody
crash_reason() {
    said=$(first_difference "$1" "$2")
    if [ -n "$said" ]; then
        echo "$said"
    elif [ "$4" -eq 124 ] || [ "$4" -eq 137 ]; then
        echo "no verdict in $(field "$2" 4) s: a rank hangs"
    elif grep -q "^VERDICT $2 " "$1"; then
        for r in $(seq 0 $(($3 - 1))); do
            grep -q "^DONE $2 rank $r/" "$1" || { echo "rank $r ended without its done-marker" && break; }
        done
    else
        ours=$(grep -v -E '^\[(mpiexec|proxy)' "$1")
        why=$(echo "$ours" | grep -i -m1 -E 'assert|stand-in: |sanitizer|corrupt|free\(\)|malloc\(\)' ||
            echo "$ours" | grep -i -m1 -E 'error|signal|not found')
        why=${why:-$(echo "$ours" | grep -v -E '^ *(HINT: .*)?$' | tail -1)}
        echo "crashed (exit status $4)${why:+: $why}"
    fi
}

# blocked_by TASK W [run] -- the first need of TASK that did not pass on W ranks. Needs that were not run are taken
# to pass, unless "run" says to find out.
blocked_by() {
    for need in $(field "$1" 6 | tr ',' ' '); do
        [ "$need" = - ] && continue
        v=$(verdict_of "$need" "$2")
        if [ -z "$v" ] && [ "${3:-}" = run ] && [ -x "$BUILD/tests/grade/$(field "$need" 5)" ]; then
            needlog=$OUT/need-$need-W$2.log
            launch "$2" "$(field "$need" 4)" "$needlog" \
                "$BUILD/tests/grade/$(field "$need" 5)" --task "$need"
            v=$(awk -v t="$need" '$1 == "VERDICT" && $2 == t "" { print $3 }' "$needlog")
            v=${v:-FAIL}
        fi
        [ -n "$v" ] && [ "$v" != PASS ] && [ "$v" != SKIP ] && echo "$need" && return
    done
}

# record TASK W VERDICT TEXT -- print the line and keep the verdict
record() {
    printf '%-7s %s W=%s %s\n' "$3" "$1" "$2" "$4"
    echo "$1 $2 $3" >>"$RESULTS"
    if [ "$3" = FAIL ]; then
        mismatch "$log" "$1"
        echo "        rerun: make test LAB=${1%%.*} TASK=$1 RANKS=$2     log: $log"
    fi
}

# settle TASK W -- turn what the log says about TASK into a line. Returns 1 when the launch must be
# done again from this task (there is no verdict, or a failure behind another task).
settle() {
    t=$1
    v=$(awk -v t="$t" '$1 == "VERDICT" && $2 == t "" { print $3; exit }' "$log")
    text=$(sed -n "s/^VERDICT $t [A-Z]* *//p" "$log")
    marks=$(grep -c "^DONE $t rank " "$log")
    need=$(blocked_by "$t" "$2")
    if [ -n "$need" ]; then
        record "$t" "$2" BLOCKED "(needs $need)"
        return 0
    fi
    if [ -z "$v" ] || { [ "$v" != FAIL ] && [ "$marks" -ne "$2" ]; }; then
        [ "$t" = "$first" ] || return 1
        v=FAIL
    elif [ "$v" = FAIL ] && [ "$t" != "$first" ]; then
        return 1
    fi
    case $v in
    PASS) record "$t" "$2" PASS "($(awk -v t="$t" '$1 == "TIME" && $2 == t "" { print $3 }' "$log") s)" ;;
    TODO) record "$t" "$2" TODO "$(title "$t")" ;;
    BLOCKED) record "$t" "$2" BLOCKED "($text)" ;;
    SKIP) record "$t" "$2" SKIP "$text" ;;
    *)
        reason=$(crash_reason "$log" "$t" "$2" "$launch_status")
        faillog=$log
        need=$(blocked_by "$t" "$2" run)
        log=$faillog
        if [ -n "$need" ]; then
            record "$t" "$2" BLOCKED "(needs $need) $reason"
        else
            record "$t" "$2" FAIL "$reason"
        fi
        ;;
    esac
}

# run_world LAB W TASKS... -- all tasks of one lab on W ranks
run_world() {
    rw_lab=$1 rw_w=$2
    shift 2
    n_launch=0
    while [ $# -gt 0 ]; do
        first=$1 args='' limit=$(field "$1" 4)
        for t in "$@"; do
            args="$args --task $t"
            [ "$t" = "$first" ] || limit=$((limit + 1))
        done
        n_launch=$((n_launch + 1))
        log=$OUT/lab$rw_lab-W$rw_w-$n_launch.log
        # shellcheck disable=SC2086 # args is a list of words
        launch "$rw_w" "$limit" "$log" "$BUILD/tests/grade/lab$rw_lab" $args
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

total_sum=0 total_all=0 n_labs=0
[ -n "$task" ] && lab=${task%%.*}
labs=$(awk -v l="$lab" '!/^#/ && NF { split($1, a, "."); if ((l == "" || a[1] == l) && !seen[a[1]]++) print a[1] }' "$TASKS")
[ -n "$labs" ] || { echo "grade.sh: no lab \"$lab\" in $TASKS" >&2 && exit 2; }
for l in $labs; do
    ids=$(awk -v l="$l" -v t="$task" '!/^#/ && NF { split($1, a, "."); if (a[1] == l && (t == "" || $1 == t "")) print $1 }' "$TASKS")
    [ -n "$ids" ] || { echo "grade.sh: no task \"$task\" in $TASKS" >&2 && exit 2; }
    [ -x "$BUILD/tests/grade/lab$l" ] || { echo "grade.sh: no $BUILD/tests/grade/lab$l; run \"make test LAB=$l\"" >&2 && exit 2; }
    for w in $ranks; do
        wanted=''
        for t in $ids; do
            case ",$(field "$t" 3)," in *",$w,"*) wanted="$wanted $t" ;; esac
        done
        # shellcheck disable=SC2086
        run_world "$l" "$w" $wanted
    done
    # shellcheck disable=SC2086
    score "$l" $ids
    n_labs=$((n_labs + 1))
done
[ $n_labs -gt 1 ] && echo "All labs: $total_sum/$total_all"

awk '{ n[$3 == "PASS" ? "p" : $3 == "SKIP" ? "s" : "f"]++ }
     END {
        printf "%d passed, %d failed", n["p"], n["f"]
        if (n["s"]) printf ", %d skipped", n["s"]
        print ""
        exit (n["f"] > 0)
     }' "$RESULTS"
