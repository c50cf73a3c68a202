#!/bin/sh
# lecture.sh [BUILD] -- the schedules in virtual time: equal figures in every run, and those that tests/bench/README.md shows.
set -u
lecture=${1:-build}/tests/bench/lecture
work=$(mktemp -d /tmp/fsdp-lecture.XXXXXX) || exit 1
trap 'rm -rf "$work"' EXIT
failed=0

verdict() { # verdict NAME PROBLEM
    [ -z "$2" ] && echo "PASS lecture: $1" && return
    echo "FAIL lecture: $1: $2"
    failed=1
}

bad=''
"$lecture" --pictures >"$work/once" 2>&1 && "$lecture" --pictures >"$work/again" 2>&1 || bad="exit status $?"
[ -n "$bad" ] || cmp -s "$work/once" "$work/again" || bad='two runs differ'
verdict 'equal figures and pictures in every run' "$bad"

bad=''
awk '/^## / { inside = /^## lecture/ } inside && /^\|/' tests/bench/README.md >"$work/shown"
[ "$(wc -l <"$work/shown")" -ge 10 ] || bad='README.md has no table'
while IFS= read -r row; do
    grep -qxF -e "$row" "$work/once" || bad="not printed: $row"
done <"$work/shown"
verdict "the rows of tests/bench/README.md are what it prints" "$bad"

bad=''
"$lecture" --picture >"$work/log" 2>&1
[ $? -eq 2 ] || bad='exit status is not 2'
grep -q 'HINT.*--pictures' "$work/log" || bad="$bad no hint: $(cat "$work/log")"
verdict 'an unknown option is refused with a hint' "$bad"
exit $failed
