#!/bin/sh
# circles.sh -- which functions the objects of the library call, found by their symbols.
#
#   tests/tools/circles.sh [BUILD]
#
# circles     no object of common/, a lab or trainer/ calls an object that calls it back, directly or through others. The same
#             holds for the objects of a plug-in, as its stand-in is built
# transports  objects of common/comm/transport/ call only functions of common/comm/ that transport_help.h declares
# Prints one PASS or FAIL line per rule, and below a FAIL who calls whom; exit status 0 iff both hold.
set -u
cd "$(dirname "$0")/../.." || exit 2
BUILD=${1:-${BUILD:-build}}
HELP=common/comm/transport/transport_help.h
. tests/tools/rule.sh

# calls_in FOLDER -- "from to symbol" for each call between objects of FOLDER. Objects of deleted sources, which a build folder
# may hold, are left out.
calls_in() {
    objects=$(find common lab[1-6]_* trainer -name '*.c*' ! -name '*_main.c' | sed 's/\.[a-z]*$/.o/' | sort |
        while read -r object; do [ ! -e "$1/$object" ] || echo "$object"; done)
    # shellcheck disable=SC2086 # words
    [ -z "$objects" ] || (cd "$1" && nm -A $objects) | awk '
        { split($1, at, ":"); symbol = $NF; kind = $(NF - 1) }
        kind ~ /^[TDBRVWC]$/ { home[symbol] = at[1] }
        kind == "U" { n++; from[n] = at[1]; what[n] = symbol }
        END { for (i = 1; i <= n; i++) if (home[what[i]] != "" && home[what[i]] != from[i]) print from[i], home[what[i]], what[i] }'
}

# circles_of CALLS -- the objects that are in a circle
circles_of() {
    echo "$1" | awk '{ print $1, $2 }' | sort -u | tsort 2>&1 >/dev/null | sed 's/^tsort: //'
}

calls=$(calls_in "$BUILD")
if [ -z "$calls" ]; then
    echo "FAIL circles: $BUILD holds no library; build it first"
    exit 1
fi

rule circles 'no object calls one that calls it in turn' "$(circles_of "$calls")"
for plugin in sim:fsdp_cuda.so npu-sim:fsdp_npu.so; do
    of_plugin=$(calls_in "$BUILD/${plugin%:*}")
    if [ -n "$of_plugin" ]; then
        rule circles "nor does an object of ${plugin#*:}" "$(circles_of "$of_plugin")"
    else
        echo "SKIP circles of ${plugin#*:}: no stand-in is built, which takes g++"
    fi
done

rule transports "a transport calls nothing of common/comm/ but what $HELP declares" \
    "$(echo "$calls" | awk '$1 ~ /^common\/comm\/transport\// && $2 ~ /^common\/comm\/[^\/]*$/' | while read -r from to symbol; do
        grep -qw "$symbol" "$HELP" || echo "$from calls $symbol of $to"
    done)"
exit $status
