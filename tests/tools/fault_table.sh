#!/bin/sh
# fault_table.sh -- checks in the logs of a test run that every row of tests/faults.txt has passed.
#
#   tests/tools/fault_table.sh quick|full [BUILD]
#
# Prints a line "PASS|FAIL|SKIP fault: outcome" for each row. A row is skipped if all its cases were skipped, and fails if it
# has no case. Run it after the checks whose logs it reads, as make test does.
set -u
cd "$(dirname "$0")/../.." || exit 2
tier=${1:-quick} BUILD=${2:-build} status=0
table=tests/faults.txt

# trimmed WORD -- without the blanks around it
trimmed() {
    echo "$1" | sed 's/^ *//; s/ *$//'
}

while IFS='|' read -r fault outcome when log case; do
    case $fault in '' | '#'*) continue ;; esac
    row="$(trimmed "$fault"): $(trimmed "$outcome")" when=$(trimmed "$when")
    log=$(trimmed "$log") case=$(trimmed "$case")
    [ "$log" != harm ] || case="$(trimmed "$fault")(, --[a-z-]+)? \\(W=" # harm.sh runs this row
    case $log/$when in harm/quick) log=cli/harm ;; harm/*) log=cli-harm ;; esac
    log=$BUILD/test/$log.log
    [ "$when" = quick ] || [ "$tier" = full ] || continue
    if [ -z "$case" ]; then
        echo "FAIL $row: the row has no case" && status=1
    elif [ ! -e "$log" ]; then
        echo "FAIL $row: there is no $log; make test writes it" && status=1
    elif grep -qE "^(FAIL|not ok [0-9]+ -) .*($case)" "$log"; then
        echo "FAIL $row: see $log" && status=1
    elif grep -qE "^(PASS|ok [0-9]+ -) .*($case)" "$log"; then
        echo "PASS $row"
    elif grep -qE "^SKIP |# SKIP|^ok [0-9]+ # SKIP" "$log"; then
        echo "SKIP $row: $(grep -m1 -E '^SKIP |# SKIP' "$log")"
    else
        echo "FAIL $row: no case '$case' has passed in $log" && status=1
    fi
done <$table
exit $status
