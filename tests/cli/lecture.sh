#!/bin/sh
# lecture.sh [BUILD] -- schedules in virtual time: equal figures in every run, and those that tests/bench/README.md shows.
set -u
build=${1:-build}
work=$(mktemp -d /tmp/fsdp-lecture.XXXXXX) || exit 1
trap 'rm -rf "$work"' EXIT
failed=0

verdict() { # verdict NAME PROBLEM
    [ -z "$2" ] && echo "PASS lecture: $1" && return
    echo "FAIL lecture: $1: $2"
    failed=1
}

bad=''
tests/bench/lecture.sh "$build" >"$work/once" 2>&1 && tests/bench/lecture.sh "$build" >"$work/again" 2>&1 || bad="exit status $?"
[ -n "$bad" ] || cmp -s "$work/once" "$work/again" || bad='two runs differ'
verdict 'equal figures in every run' "$bad"

bad=''
awk '/^## / { inside = /^## lecture/ } inside && /^\|/' tests/bench/README.md >"$work/shown"
[ "$(wc -l <"$work/shown")" -ge 20 ] || bad='README.md has no tables'
while IFS= read -r row; do
    grep -qxF -e "$row" "$work/once" || bad="not printed: $row"
done <"$work/shown"
verdict "the rows of tests/bench/README.md are what it prints" "$bad"
exit $failed
