#!/bin/bash
# lecture.sh [BUILD] -- schedules in virtual time: every run prints the same figures, and tests/bench/README.md shows them.
. "$(dirname "$0")/lib.sh"
cli_start "$@"

bad=''
tests/bench/lecture.sh "$build" >"$work/once" 2>&1 && tests/bench/lecture.sh "$build" >"$work/again" 2>&1 || bad="exit status $?"
[ -n "$bad" ] || cmp -s "$work/once" "$work/again" || bad='two runs differ'
judge 'lecture: equal figures in every run' "$bad"

bad=''
awk '/^## / { inside = /^## lecture/ } inside && /^\|/' tests/bench/README.md >"$work/shown"
[ "$(wc -l <"$work/shown")" -ge 20 ] || bad='README.md has no tables'
while IFS= read -r row; do
    grep -qxF -e "$row" "$work/once" || bad="not printed: $row"
done <"$work/shown"
judge "lecture: the rows of tests/bench/README.md are what it prints" "$bad"
cli_end
