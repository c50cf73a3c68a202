#!/bin/sh
# format.sh [--check] -- formats the C sources with clang-format 14, or lists those that it would change.
# Other versions format differently; without version 14 --check is a SKIP.
# shellcheck disable=SC2086 # lists of words
set -u
cd "$(dirname "$0")/../.." || exit 2
tool=$(command -v clang-format-14 || command -v clang-format)
[ -n "$tool" ] && "$tool" --version | grep -q 'version 14\.' || tool=''
sources=$(find common lab*_* trainer tests docs -name '*.[ch]' -o -name '*.cu' -o -name '*.cc')
if [ -z "$tool" ]; then
    [ "${1:-}" = --check ] && echo 'SKIP format: clang-format 14 is not installed' && exit 77
    echo 'format: clang-format 14 is not installed' >&2
    echo 'HINT: apt-get install clang-format-14' >&2
    exit 1
fi
if [ "${1:-}" != --check ]; then
    exec "$tool" -i $sources
fi
bad=$(echo $sources | xargs -n 40 -P 0 "$tool" --dry-run -Werror 2>&1 | sed -n 's/^\([^ :]*\):[0-9].* error: .*/ \1/p' | sort -u | tr -d '\n')
[ -z "$bad" ] && echo "PASS format: $(echo "$sources" | wc -l) files" && exit 0
echo "FAIL format: make format would change$bad"
exit 1
