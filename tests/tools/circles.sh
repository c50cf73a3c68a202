#!/bin/sh
# circles.sh -- what the objects of the library call, by their symbols.
#
#   tests/tools/circles.sh [BUILD]
#
# circles     no object of common/, a lab or trainer/ calls another that calls it in turn, by whatever way
# transports  those of common/comm/transport/ call nothing of common/comm/ that transport_help.h does not declare
# Prints one PASS or FAIL line per rule, and below a FAIL who calls whom; exit status 0 iff both hold.
set -u
cd "$(dirname "$0")/../.." || exit 2
BUILD=${1:-${BUILD:-build}}
HELP=common/comm/transport_help.h
. tests/tools/rule.sh

# A build folder may hold objects of sources that are gone, and it has none of some sources.
objects=$(find common lab[1-6]_* trainer -name '*.c' ! -name '*_main.c' | sed 's/\.c$/.o/' | sort |
    while read -r object; do [ ! -e "$BUILD/$object" ] || echo "$object"; done)
# shellcheck disable=SC2086 # words
calls=$([ -n "$objects" ] && cd "$BUILD" && nm -A $objects | awk '
    { split($1, at, ":"); symbol = $NF; kind = $(NF - 1) }
    kind ~ /^[TDBRVWC]$/ { home[symbol] = at[1] }
    kind == "U" { n++; from[n] = at[1]; what[n] = symbol }
    END { for (i = 1; i <= n; i++) if (home[what[i]] != "" && home[what[i]] != from[i]) print from[i], home[what[i]], what[i] }')
if [ -z "$calls" ]; then
    echo "FAIL circles: $BUILD holds no library; build it first"
    exit 1
fi

rule circles 'no object calls one that calls it in turn' \
    "$(echo "$calls" | awk '{ print $1, $2 }' | sort -u | tsort 2>&1 >/dev/null | sed 's/^tsort: //')"

rule transports "a transport calls nothing of common/comm/ but what $HELP declares" \
    "$(echo "$calls" | awk '$1 ~ /^common\/comm\/transport\// && $2 ~ /^common\/comm\/[^\/]*$/' | while read -r from to symbol; do
        grep -qw "$symbol" "$HELP" || echo "$from calls $symbol of $to"
    done)"
exit $status
