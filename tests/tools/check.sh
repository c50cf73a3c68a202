# shellcheck shell=sh
# check.sh -- sourced by the scripts that run checks; prints a line for each check and the totals in one format.
#
#   check NAME LIMIT_S LOG COMMAND...   runs the command and prints, with the reasons indented below,
#                                       PASS|FAIL|SKIP NAME: N passed, N failed[, N skipped], 12 s (CPU 8 s)
#   sum                                 prints "N passed, N failed[, N skipped]"; true iff nothing failed
#
# A command prints a line "PASS name", "FAIL name: why" or "SKIP name: why" for each thing that it tests (TAP under cmocka), or
# ends with a line of totals. It returns 0, or 77 if all was skipped. A command counts as one failure if it returns another
# status without a FAIL line, prints no such line, or exceeds the time limit. With done_marks=N the log must have N lines that
# begin with DONE, because mpiexec returns 0 when a rank leaves early with status 0.
#
# check sets took_s, cpu_s and counted, the three numbers. With place_of=COMMAND the output of COMMAND ends the line. lane: not
# empty in a shell that runs beside another one; on a terminal it does not print the name of the running check.
passed=0 failed=0 skipped=0 done_marks=0 child='' place_of='' lane=''
# A signal may come after a child has started and before a variable has its id. In between, child holds "new".
end_child='child=${child%new}$(case $child in *new) echo $! ;; esac)
    [ -z "$child" ] || { kill -TERM $child 2>/dev/null; wait $child; }; exit 130'
# shellcheck disable=SC2064 # expanded now
trap "$end_child" INT TERM HUP
export CMOCKA_MESSAGE_OUTPUT=TAP

# count LOG STATUS -- "passed failed skipped". A cmocka test may print its own SKIP line first, which counts once.
count() {
    awk -v status="$2" '
        /^(PASS|ok [0-9]+ -) / { p++ }
        /^(FAIL|not ok [0-9]+ -) / { f++ }
        /^SKIP / || /# SKIP / && !said { s++ }
        { said = /^SKIP /; last = $0 }
        END {
            if (last ~ /^[0-9]+ passed, [0-9]+ failed(, [0-9]+ skipped)?$/) {
                split(last, word, /[ ,]+/)
                p = word[1]; f = word[3]; s = word[5]
            }
            if (status == 77 && !s) s = 1
            if (!f && (status != 0 && status != 77 || p + s == 0)) f = 1
            print p + 0, f + 0, s + 0
        }' "$1"
}

# reasons LOG -- failures and skips with the lines below that belong to them; if there are none, the last lines
reasons() {
    awk '
        /^[^ #]/ { show = /^(FAIL|BLOCKED|TODO|SKIP) / || /^not ok / }
        show && !seen[$0]++ && n < 12 { print "     " $0; n++ }
        { late[NR % 3] = $0 }
        END { for (i = NR + 1; !n && i <= NR + 3; i++) if (late[i % 3] != "") print "     " late[i % 3] }' "$1"
}

totals() { echo "$1 passed, $2 failed$([ "$3" -eq 0 ] || echo ", $3 skipped")"; }

# cpu_of TIMES BEFORE -- whole seconds of the children's CPU time, from two outputs of the shell's `times`
cpu_of() {
    awk 'FNR == 2 { for (i = 1; i <= 2; i++) { split($i, t, /[ms]/); sum[FILENAME] += 60 * t[1] + t[2] } }
        END { printf "%.0f\n", sum[ARGV[1]] - sum[ARGV[2]] }' "$1" "$2"
}

check() {
    title=$1 limit=$2 log=$3 start=$(date +%s)
    shift 3
    [ -t 1 ] && [ -z "$lane" ] && printf '....  %s\r' "$title"
    times >"$log.before"
    child=new
    tests/tools/limit.sh "$limit" "$@" >"$log" 2>&1 </dev/null &
    child=$!
    wait $child
    status=$? child=''
    times >"$log.after"
    took_s=$(($(date +%s) - start)) cpu_s=$(cpu_of "$log.after" "$log.before")
    rm -f "$log.before" "$log.after"
    [ $status -ne 124 ] || echo "FAIL $title: not done in $limit s" >>"$log"
    marks=$(grep -c '^DONE' "$log")
    [ "$done_marks" -eq 0 ] || [ "$marks" -eq "$done_marks" ] || echo "FAIL $title: $marks of $done_marks ranks were done" >>"$log"
    rerun="$*"
    # shellcheck disable=SC2046 # three numbers
    set -- $(count "$log" $status)
    counted="$1 $2 $3"
    passed=$((passed + $1)) failed=$((failed + $2)) skipped=$((skipped + $3))
    verdict=PASS
    [ "$1" -gt 0 ] || verdict=SKIP
    [ "$2" -eq 0 ] || verdict=FAIL
    echo "$( # in one piece: several lanes print
        echo "$verdict $title: $(totals "$1" "$2" "$3"), $took_s s (CPU $cpu_s s)$($place_of)"
        [ "$2$3" = 00 ] || reasons "$log"
        [ "$2" -eq 0 ] || printf '     log: %s\n     rerun: %s\n' "$log" "$rerun"
    )"
}

sum() {
    totals $passed $failed $skipped
    [ $failed -eq 0 ]
}
