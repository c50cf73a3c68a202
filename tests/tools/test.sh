#!/bin/sh
# test.sh -- run the checks of checks.txt one after the other, print a line each (see check.sh) and the sum.
#
#   tests/tools/test.sh quick|full|device|NAME... [BUILD]
#
# Logs: $BUILD/test/NAME.log. The last line, also in $BUILD/test/totals, reads "N passed, N failed", with
# ", N skipped" behind it when there were any. Exit status 0 iff nothing failed.
set -u
cd "$(dirname "$0")/../.." || exit 2
CHECKS=tests/tools/checks.txt
BUILD=${BUILD:-build} wanted=''
for word in "$@"; do
    case $word in
    full) wanted="$wanted quick full" ;;
    quick | device) wanted="$wanted $word" ;;
    *) if grep -q "^$word " $CHECKS; then wanted="$wanted $word"; else BUILD=$word; fi ;;
    esac
done
[ -n "$wanted" ] || wanted=' quick'
export BUILD
OUT=$BUILD/test
mkdir -p "$OUT" && rm -f "$OUT/totals" || exit 2
. tests/tools/env.sh
. tests/tools/check.sh

while read -r name tier limit command; do
    case $name in '' | '#'*) continue ;; esac
    case "$wanted " in
    *" $name "* | *" $tier "*) eval "check $name $limit \$OUT/$name.log $command" ;;
    esac
done <$CHECKS

sum >"$OUT/totals"
status=$?
cat "$OUT/totals"
exit $status
