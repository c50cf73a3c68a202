#!/bin/sh
# cli.sh -- the scripts of tests/cli, one line each: what the programs print and return to a person.
#
#   tests/tools/cli.sh [SCRIPT...]      BUILD=build
#
# A script gets the build folder as its argument, is executable, prints PASS, FAIL and SKIP lines and returns 0
# iff nothing failed. Logs: $BUILD/test/cli/.
set -u
cd "$(dirname "$0")/../.." || exit 2
BUILD=${BUILD:-build} LIMIT=${LIMIT:-120}
OUT=$BUILD/test/cli
mkdir -p "$OUT" || exit 2
. tests/tools/env.sh
trap 'kill -TERM $child 2>/dev/null; exit 130' INT TERM HUP
child=''
[ $# -gt 0 ] || set -- tests/cli/*.sh
bad=0 ran=0
for script in "$@"; do
    case $script in */lib.sh | *_lib.sh | *'*'*) continue ;; esac # sourced by the others
    ran=1
    log=$OUT/$(basename "$script" .sh).log
    timeout -k 5 "$LIMIT" "$script" "$BUILD" >"$log" 2>&1 </dev/null &
    child=$!
    wait $child
    status=$? child=''
    grep -vE '^[0-9]+ passed, ' "$log"
    [ $status -eq 0 ] && continue
    bad=1
    grep -q '^FAIL ' "$log" || echo "FAIL $script: exit status $status: $(tail -1 "$log")"
    echo "     log: $log"
done
[ $ran -eq 1 ] || { echo 'SKIP cli: tests/cli has no script' && exit 77; }
exit $bad
