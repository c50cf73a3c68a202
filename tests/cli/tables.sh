#!/bin/bash
# tables.sh [BUILD [full]] -- checks tests/bench/tables.sh: WRITEUP.md shows what it prints, and what is said to explain a difference
# explains it; and tests/bench/lecture.sh, whose tables tests/bench/README.md shows. formulas.sh compares runs, and so plans, with closed forms.
# full: also the runs, which must agree in every digit.
. "$(dirname "$0")/lib.sh"
cli_start "$@"

# shown RUNS -- table rows in WRITEUP.md's section. 1: of the table with "sum of parameters", 0: of the others
shown() {
    awk -v runs="$1" '/^##/ { inside = /^### Published tables/ } !inside { next }
        !/^\|/ { of_runs = 0 } /^\|.*sum of parameters/ { of_runs = 1 } /^\|/ && of_runs == runs' WRITEUP.md
}

# same_rows RUNS PRINTED -- prints a problem, or nothing
same_rows() {
    shown "$1" >"$work/shown"
    grep '^|' "$2" >"$work/printed"
    cmp -s "$work/shown" "$work/printed" || echo "differs: $(diff "$work/shown" "$work/printed" | sed -n 2p)"
}

problem=''
tests/bench/tables.sh "$build" plans >"$work/plans" 2>"$work/err" || problem="exit status $?: $(head -1 "$work/err")"
judge 'tables: the plans are made' "$problem"
judge 'tables: the rows of WRITEUP.md are what it prints' "$(same_rows 0 "$work/plans")"

# In a row that ends "..., and theirs holds 0.06 of angles too: 9.48", 9.48 must be the published figure
judge "tables: what FSDPToys' program holds beside ours makes its figures" "$(awk -F' [|] ' '
    $2 == "allocated" { rows++; sum = $5; gsub(/.*: | [|]$/, "", sum); if (sum + 0 != $3 + 0) print "row " rows ": got " sum ", expected " $3 }
    END { if (rows != 8) print "got " rows + 0 " rows, expected 8" }' "$work/plans")"

problem=''
tests/bench/tables.sh "$build" plan >"$work/err" 2>"$work/err"
[ $? -eq 2 ] && grep -q "got 'plan', expected" "$work/err" && grep -q '^HINT: ' "$work/err" || problem="$(head -1 "$work/err")"
judge 'tables: a wrong part is refused' "$problem"

problem=''
tests/bench/lecture.sh "$build" >"$work/once" 2>&1 && tests/bench/lecture.sh "$build" >"$work/again" 2>&1 || problem="exit status $?"
[ -n "$problem" ] || cmp -s "$work/once" "$work/again" || problem='two runs differ'
judge 'lecture: equal figures in every run' "$problem"
awk '/^## / { inside = /^## lecture/ } inside && /^\|/' tests/bench/README.md >"$work/shown"
problem=$(grep -vxFf "$work/once" "$work/shown" | head -1)
[ "$(wc -l <"$work/shown")" -ge 20 ] || problem='README.md has no tables'
judge "lecture: the rows of tests/bench/README.md are what it prints" "${problem:+not printed: $problem}"

if [ "${2:-}" = full ]; then
    problem=''
    tests/bench/tables.sh "$build" run >"$work/run" 2>&1 || problem="exit status $?: $(tail -1 "$work/run")"
    judge 'tables: six runs of 1 to 8 ranks have the same losses and weights' "$problem"
    judge "tables: WRITEUP.md's losses and sums are what it prints" "$(same_rows 1 "$work/run")"
fi
cli_end
