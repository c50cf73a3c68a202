#!/bin/sh
# cli.sh -- the scripts of tests/cli, one line each (see check.sh): what the programs print and return to a person.
#
#   tests/tools/cli.sh [SCRIPT...]      BUILD=build
#
# A script is executable and gets the build folder as its argument. Logs: $BUILD/test/cli/.
set -u
cd "$(dirname "$0")/../.." || exit 2
BUILD=${BUILD:-build} LIMIT=${LIMIT:-120}
OUT=$BUILD/test/cli
mkdir -p "$OUT" || exit 2
. tests/tools/env.sh
. tests/tools/check.sh
[ $# -gt 0 ] || set -- tests/cli/*.sh
for script in "$@"; do
    case $script in */lib.sh | *_lib.sh) continue ;; esac # sourced by the others
    name=$(basename "$script" .sh)
    check "$name" "$LIMIT" "$OUT/$name.log" "$script" "$BUILD"
done
sum
