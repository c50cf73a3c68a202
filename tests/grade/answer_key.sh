#!/bin/sh
# answer_key.sh -- check that the commands of answer_key.md print the output shown there, and that every question has an answer.
#
#   tests/grade/answer_key.sh [BUILD]
#
# Each line "$ command" runs from the top of the tree. The lines after it, up to the next command or the end of the block, are
# the expected output. $dir is a temporary folder. Prints PASS and FAIL lines; exit status 0 iff all agree. Takes a few seconds.
set -u
cd "$(dirname -- "$0")/../.." || exit 2
KEY=${KEY:-tests/grade/answer_key.md} BUILD=${1:-${BUILD:-build}} n=0
. tests/tools/test_lib.sh
begin 'answer key'
export dir

# Write one file per command, and one with its expected output.
awk -v to="$dir" '
    /^```/ { on = !on; next }
    on && /^\$ / { n++; sub(/^\$ /, ""); print >(to "/" n ".sh"); printf "" >(to "/" n ".want"); next }
    on && n { print >(to "/" n ".want") }' "$KEY"
while [ -f "$dir/$((n + 1)).sh" ]; do
    n=$((n + 1))
    sed "s|build/fsdp_|$BUILD/fsdp_|g" "$dir/$n.sh" >"$dir/run"
    limit 60 sh "$dir/run" >"$dir/got" 2>"$dir/err" </dev/null
    [ -z "$(tail -c1 "$dir/got")" ] || echo >>"$dir/got"
    diff "$dir/$n.want" "$dir/got" >"$log" && continue
    cat "$dir/err" >>"$log"
    verdict "$(cat "$dir/$n.sh")" 1
done
# answers LAB -- number of answers in its section; questions LAB -- number of questions in its HINTS.md
answers() { sed -n "/^## Lab $1/,/^## Lab $(($1 + 1))/p" "$KEY" | grep -c '^\*\*[1-9]\.[ *]'; }
questions() { sed -n '/^## Questions/,/^## Reading/p' "lab$1"_*/HINTS.md | grep -c '^[1-9]\. '; }
for lab in 1 2 3 4 5 6; do
    [ "$(answers $lab)" -eq "$(questions $lab)" ] ||
        complain "lab $lab: $(answers $lab) answers, its HINTS.md has $(questions $lab) questions"
done
[ $n -gt 10 ] || complain "$n commands in $KEY, expected more than 10"
[ $bad -ne 0 ] || verdict "$n commands print what stands there, and every question has an answer" 0
exit $bad
