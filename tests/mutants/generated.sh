#!/bin/sh
# generated.sh -- plants the mistakes of generate.awk in the SOLUTION blocks, one at a time, and asks whether the task's test fails.
#
#   tests/mutants/generated.sh [OPTION ...] [BUILD]            make mutants-generated LAB=1 [TREES=2]
#
#   --lab N, --task T   only these (all)
#   --trees N           so many at a time (1)
#   --for SECONDS       begin no other mutant after so long; the next call goes on from there
#   --again             first forget those that survived, so that they are tried on changed tests
#   --table             run nothing, only print what is known
#   --fit               run nothing: does each entry of equivalent.txt fit a mutant?
#
# A mutant is compiled and linked into a copy of the lab's grader program; nothing else is rebuilt. The program runs the mutant's
# own task on W = 2, 3 and 4 ranks until one run fails. If none fails, it runs all tasks of the lab. Results are kept in
# $LOGS/mutants/results, one line each. A line is found by the mutant's text, so results stay when lines move; remove the file to
# start anew. Columns, separated by tabs: task, file:line, class, before, after, nth, result, how, W, text of the first report.
#
#   result  own: its task failed; lab: another task of the lab failed; survived; argued: equivalent.txt says why no test can
#           fail; same: the object code is the original's; double: it is an earlier mutant's; refused: by the compiler
#   how     check: a check of the test, or of the NPU's stand-in, failed with a message; abort: an assertion of the
#           runtime ended the program; crash: a signal did; time-out: a rank or a collective waited too long
#
# Exit status 0: the run is complete, at least OWN_PERCENT of the mutants failed their own task, and at least CHECK_PERCENT
# failed by a check. same, double, refused and argued are not counted.
# shellcheck disable=SC2046,SC2086 # lists of words
set -u
cd "$(dirname -- "$0")/../.." || exit 2
OWN_PERCENT=95 CHECK_PERCENT=85

lab='' task='' trees=1 seconds=0 again=0 only='' BUILD=${BUILD:-build}
usage() { sed -n '4,11s/^# *//p' "$0" >&2 && exit 2; }
while [ $# -gt 0 ]; do
    case $1 in
    --lab) lab=${2:?} && shift ;;
    --task) task=${2:?} && shift ;;
    --trees) trees=${2:?} && shift ;;
    --for) seconds=${2:?} && shift ;;
    --again) again=1 ;;
    --table | --fit) only=$1 ;;
    -*) usage ;;
    *) BUILD=$1 ;;
    esac
    shift
done
[ -z "$task" ] || lab=${task%%.*}
. tests/tools/env.sh
out=$LOGS/mutants
results=$out/results objects=$out/objects wanted=$out/wanted
mkdir -p "$out" || exit 2
touch "$results" "$objects"
tab=$(printf '\t')
# A hang must end soon. Time limits inside the tests do not change.
export FSDP_TIMEOUT_S="${FSDP_TIMEOUT_S:-5}"
LAUNCH_LIMIT_S=30

# mutants -- writes the selected lines of generate.awk to $wanted
mutants() {
    grep -l 'SOLUTION BEGIN' lab*_*/*.c lab*_*/*.cpp | grep "^lab${lab:-[1-6]}_" | while IFS= read -r file; do
        awk -f tests/mutants/generate.awk "$file"
    done | awk -F '\t' -v t="$task" 't == "" || $2 == t ""' >"$wanted"
}

# A mutant's columns from column c on, without its line number. This function precedes awk programs.
# shellcheck disable=SC2016
ident='function ident(c,    place) {
    place = $(c + 1)
    sub(/:[0-9]+$/, "", place)
    return $c "\t" place "\t" $(c + 2) "\t" $(c + 3) "\t" $(c + 4) "\t" $(c + 5)
}'

# unknown -- selected mutants without a result
unknown() {
    awk -F '\t' "$ident"'
        FILENAME ~ /results$/ { done[ident(1)]; next }
        !(ident(2) in done)' "$results" "$wanted"
}

# argued -- the entries of equivalent.txt, one line each: task, file, before, after
argued() {
    awk '
        /^(#|$)/ { next }
        /^IN / { file = $2; task = $3; next }
        /^BEFORE / { before = substr($0, 8); sub(/^ +/, "", before); next }
        /^AFTER / { after = substr($0, 7); sub(/^ +/, "", after); print task "\t" file "\t" before "\t" after; next }
        /^(WHY| ) *[^ ]/ { next }
        { print "equivalent.txt:" FNR ": not understood: " $0 >"/dev/stderr" }' tests/mutants/equivalent.txt
}

# fit -- whether each entry still fits a mutant
fit() {
    argued >"$out/argued"
    awk -F '\t' '
        FILENAME ~ /wanted$/ { sub(/:[0-9]+$/, "", $3); there[$2 "\t" $3 "\t" $5 "\t" $6]; next }
        { n++ }
        !($0 in there) { print "     no such mutant: " $0; bad++ }
        END {
            if (bad) print "FAIL equivalent.txt: " bad " of " n " entries fit no mutant"
            else print "PASS equivalent.txt: all " n + 0 " entries fit a mutant"
            exit bad > 0
        }' "$wanted" "$out/argued"
}

# ---- one mutant --------------------------------------------------------------------------------
# command_for TARGET OUTPUT SOURCE -- the Makefile's command that writes OUTPUT after SOURCE has changed
command_for() {
    make -n --no-print-directory BUILD="$BUILD" -W "$3" "$1" 2>/dev/null | grep -F -e "-o $2 " | tail -1 |
        sed 's/ -MMD -MP//'
}

# copy_grader -- copies the grader program of lab n to $tree, and the plug-in that it opens from its own folder
copy_grader() {
    mkdir -p "$tree/tests/grade" "$tree/tmp"
    rm -f "$tree/tests/grade/lab$n" "$tree/fsdp_npu_sim.so"
    cp "$BUILD/tests/grade/lab$n" "$tree/tests/grade/lab$n" || return
    [ "$n" != 6 ] || { cp "$BUILD/fsdp_npu_sim.so" "$tree" && ln -sf ../../fsdp_npu_sim.so "$tree/tests/grade"; }
}

tasks_of() { awk -v l="lab$1" '!/^#/ && $5 == l { print $1 }' tests/grade/tasks.txt; }

# prepare FILE -- sets the commands that compile and link FILE's mutants in this tree
prepare() {
    source=$1 n=${1#lab} && n=${n%%_*}
    object=$BUILD/${source%.*}.o linked=$BUILD/tests/grade/lab$n
    [ "$n" = 6 ] && object=$BUILD/npu-sim/${source%.*}.o linked=$BUILD/fsdp_npu_sim.so
    strict='-g0 -Werror=return-type -Werror=incompatible-pointer-types -Werror=int-conversion -Werror=implicit-function-declaration'
    case $source in *.cpp) strict='-g0 -Werror=return-type' ;; esac
    mine=$tree/$source
    mkdir -p "$(dirname "$mine")"
    copy_grader
    compile=$(command_for "$linked" "$object" "$source" | sed "s/ -W[a-z-]*//g; s| -c -o $object $source\$| $strict -c -o $tree/mutant.o $mine|")
    link=$(command_for "$linked" "$linked" "$source")
    case $n in
    6) link=$(echo "$link" | sed "s| -o $linked | -o $tree/fsdp_npu_sim.so |; s| $object | $tree/mutant.o |") ;;
    *) link=$(echo "$link" | sed "s| -o $linked | -o $tree/tests/grade/lab$n -Wl,-z,muldefs $tree/mutant.o |") ;;
    esac
    cp "$source" "$mine"
    if ! sh -c "$compile" >"$tree/log" 2>&1; then
        echo "generated.sh: $source does not compile without a mutant: $(tail -1 "$tree/log")" >&2
        return 1
    fi
    original=$(cksum <"$tree/mutant.o")
}

# launch W TASK... -- runs the tasks; the log is $tree/log
launch() {
    w=$1 && shift
    args=''
    for t in "$@"; do
        args="$args --task $t"
    done
    TMPDIR=$tree/tmp tests/tools/limit.sh -k 3 $((LAUNCH_LIMIT_S * (1 + $# / 4))) "$BUILD/fsdp_run" --no-prefix -n "$w" \
        "$tree/tests/grade/lab$n" $args >"$tree/log" 2>&1 </dev/null &
    job=$!
    wait $job
    status=$?
    job=''
}

# first_red TASK... -- runs the tasks on 2, 3 and 4 ranks until one fails; false if none does. Sets red, the number of ranks
first_red() {
    for red in 2 3 4; do
        launch $red "$@"
        [ "$status" -eq 0 ] && [ "$(grep -c '^VERDICT [^ ]* PASS\|^VERDICT [^ ]* SKIP' "$tree/log")" -eq $# ] &&
            [ "$(grep -c '^DONE ' "$tree/log")" -eq $((red * $#)) ] || return 0
    done
    return 1
}

# how STATUS -- "how<tab>words" from the log of a mutant whose run failed
how() {
    awk -v status="$1" '
        $1 == "RANKFAIL" && $4 ~ /^FSDP_/ && $4 !~ /^FSDP_(ECOMM|ETIMEOUT)$/ && check == "" { check = $0; sub(/^RANKFAIL [^ ]+ /, "rank ", check) }
        $1 == "RANKFAIL" && $4 ~ /^(FSDP_ECOMM|FSDP_ETIMEOUT|LOOP|WAIT)$/ && lost == "" { lost = $0; sub(/^RANKFAIL [^ ]+ /, "rank ", lost) }
        $1 == "RANKFAIL" && $4 ~ /^(FSDP_ETIMEOUT|LOOP|WAIT)$/ { late = 1 }
        /stand-in: / && rule == "" { rule = $0 }
        /assertion failed/ && said == "" { said = $0 }
        /^RANKFAIL [^ ]+ [^ ]+ (SIG|EXIT)|signal|free\(\)|malloc|corrupt/ && died == "" { died = $0 }
        { last = $0 }
        END {
            if (check != "" || rule != "") print "check\t" (check != "" ? check : rule)
            else if (said != "") print "abort\t" said
            else if (died != "" || status > 128 && status != 137) print "crash\t" (died != "" ? died : "exit status " status)
            else if (status == 124 || status == 137 || late) print "time-out\t" (lost != "" ? lost : "killed")
            else print "crash\t" (lost != "" ? lost : "exit status " status ": " last)
        }' "$tree/log" | cut -c1-300
}

# try_mutant LINE -- tries the mutant in a line of generate.awk
try_mutant() {
    number=${1%%"$tab"*} columns=${1#*"$tab"}
    own=${columns%%"$tab"*} place=${columns#*"$tab"}
    file=${place%%:*}
    name=$(echo "$columns" | sed "s/:[0-9]*$tab/$tab/")
    [ "$file" = "$source" ] || prepare "$file" || return
    awk -v plant="$number" -f tests/mutants/generate.awk "$file" >"$mine"
    if ! sh -c "$compile" >"$tree/log" 2>&1; then
        result refused && return
    fi
    code=$(cksum <"$tree/mutant.o")
    if [ "$code" = "$original" ]; then
        result same && return
    elif grep -F "$file $code$tab" "$objects" | grep -q -v -F "$tab$name"; then
        result double && return
    fi
    if ! sh -c "$link" >"$tree/log" 2>&1; then
        result refused && return
    fi
    echo "$file $code$tab$name" >>"$objects"
    if first_red "$own"; then
        result own "$(how $status)" $red
    elif first_red $(tasks_of "$n"); then
        result lab "$(how $status)" $red
    else
        result survived
    fi
}

# check_whole LAB -- without a mutant all tasks of the lab must pass, within the same limits. Runs once for each build of it.
check_whole() {
    n=$1 tree=$out/tree-whole
    copy_grader || return
    code=$(cat "$tree"/tests/grade/lab"$n" "$tree"/fsdp_npu_sim.so 2>/dev/null | cksum)
    [ "$code" != "$(cat "$out/whole-$n" 2>/dev/null)" ] || return 0
    if first_red $(tasks_of "$n"); then
        echo "FAIL mutants-generated: lab $n on $red ranks is not green without a mutant: $(how $status)"
        return 1
    fi
    echo "$code" >"$out/whole-$n"
}

# result WHAT [HOW-AND-WORDS W] -- writes the mutant's line
result() {
    words=${2:-"-${tab}-"}
    printf '%s\t%s\t%s\t%s\t%s\n' "$columns" "$1" "${words%%"$tab"*}" "${3:--}" "${words#*"$tab"}" >>"$results"
}

# lane I -- tries every trees-th mutant of the list
lane() {
    tree=$out/tree-$1 source='' job=''
    trap '[ -z "$job" ] || { kill -TERM "$job" && wait "$job"; }; exit 130' INT TERM HUP
    mkdir -p "$tree"
    end=$(($(date +%s) + seconds))
    awk -v i="$1" -v n="$trees" 'NR % n == i' "$out/todo" >"$tree/todo"
    while IFS= read -r line; do
        [ "$seconds" -eq 0 ] || [ "$(date +%s)" -lt $end ] || break
        try_mutant "$line"
    done <"$tree/todo"
}

# ---- the results -------------------------------------------------------------------------------
# table -- results by lab, by task and by class; then the survivors
table() {
    argued >"$out/argued"
    awk -F '\t' -v own_goal=$OWN_PERCENT -v check_goal=$CHECK_PERCENT "$ident"'
        function add(row, what, how) {
            if (!(row in all)) order[++n_rows] = row
            all[row]++
            n[row, what]++
            if (what == "own") n[row, how]++
        }
        function line(title, row) {
            printf "%-14s %7d %6d %5d %9d | %6d %6d %6d %9d | %6.1f%% %6.1f%%\n", title, all[row], n[row, "own"], n[row, "lab"],
                n[row, "survived"], n[row, "check"], n[row, "abort"], n[row, "crash"], n[row, "time-out"],
                100 * n[row, "own"] / (all[row] + !all[row]), 100 * n[row, "check"] / (all[row] + !all[row])
        }
        FILENAME ~ /argued$/ { equal[$0]; next }
        FILENAME ~ /wanted$/ { k = ident(2); wanted[k]; place[k] = $3; n_wanted++; next }
        {
            k = ident(1)
            if (!(k in wanted)) next
            known++
            file = $2
            sub(/:[0-9]+$/, "", file)
            result = $7
            if (result ~ /^(survived|lab)$/ && ($1 "\t" file "\t" $4 "\t" $5) in equal) result = "argued"
            if (result !~ /^(own|lab|survived)$/) { left[result]++; next }
            lab = substr($1, 1, index($1, ".") - 1)
            add("all", result, $8); add("lab " lab, result, $8); add("task " $1, result, $8); add("class " $3, result, $8)
            if (result != "own") alive[result] = alive[result] sprintf("  %s  task %s, %s%s\n      %s\n   => %s\n", place[k], $1, $3,
                result == "lab" ? "; the lab: " $10 : "", $4, $5)
        }
        END {
            printf "%-14s %7s %6s %5s %9s | %6s %6s %6s %9s | %7s %7s\n", "", "mutants", "own", "lab", "survived", "check", "abort",
                "crash", "time-out", "own", "check"
            for (pass = 1; pass <= 4; pass++)
                for (i = 1; i <= n_rows; i++)
                    if (order[i] ~ (pass == 1 ? "^lab " : pass == 2 ? "^task " : pass == 3 ? "^class " : "^all$"))
                        line(order[i], order[i])
            printf "not counted: %d refused by the compiler, %d with the same object code, %d doubles, %d argued equivalent\n",
                left["refused"], left["same"], left["double"], left["argued"]
            if (alive["lab"] != "") printf "seen only by other tasks of the lab:\n%s", alive["lab"]
            if (alive["survived"] != "") printf "survived:\n%s", alive["survived"]
            if (known < n_wanted) printf "%d of %d mutants are still to be tried\n", n_wanted - known, n_wanted
            own = 100 * n["all", "own"] / (all["all"] + !all["all"])
            check = 100 * n["all", "check"] / (all["all"] + !all["all"])
            good = known == n_wanted && own >= own_goal && check >= check_goal
            printf "%s mutants-generated: %.1f%% seen by their own task (at least %d%%), %.1f%% by a check (at least %d%%)\n",
                good ? "PASS" : "FAIL", own, own_goal, check, check_goal
            exit !good
        }' "$out/argued" "$wanted" "$results"
}

mutants
case $only in
--fit) fit && exit 0 || exit 1 ;;
--table) table && exit 0 || exit 1 ;;
esac
[ -x "$BUILD/fsdp_run" ] || { echo "generated.sh: no $BUILD/fsdp_run; run \"make mutants-generated\"" >&2 && exit 2; }
lanes='' job=''
trap 'kill -TERM $lanes $job 2>/dev/null; wait; exit 130' INT TERM HUP
if [ $again -eq 1 ]; then
    awk -F '\t' '$7 != "survived" && $7 != "lab"' "$results" >"$out/kept" && mv "$out/kept" "$results"
fi
unknown >"$out/todo"
for l in 1 2 3 4 5 6; do
    ! cut -f2 "$out/todo" | grep -q "^$l\." || check_whole "$l" || exit 1
done
i=0
while [ $i -lt "$trees" ]; do
    lane $i &
    lanes="$lanes $!"
    i=$((i + 1))
done
wait
table
