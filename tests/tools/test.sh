#!/bin/sh
# test.sh -- run checks one after the other, print one line each, and the totals.
#
#   tests/tools/test.sh quick|full|NAME... [BUILD]
#
# The checks stand in checks.txt. A check whose script is missing has failed. Logs:
# $BUILD/test/NAME.log. The last line, also in $BUILD/test/totals, reads "N passed, N failed", with
# ", N skipped" behind it when there were any. Exit status 0 iff nothing failed.
set -u
cd "$(dirname "$0")/../.." || exit 2
CHECKS=tests/tools/checks.txt
BUILD=${BUILD:-build} wanted=''
for word in "$@"; do
    if [ "$word" = quick ] || [ "$word" = full ] || grep -q "^$word " $CHECKS; then
        wanted="$wanted $word"
    else
        BUILD=$word
    fi
done
[ -n "$wanted" ] || wanted=' quick'
export BUILD
OUT=$BUILD/test
mkdir -p "$OUT" && rm -f "$OUT/totals" || exit 2

. tests/tools/env.sh

child=''
stop() {
    [ -n "$child" ] && kill -TERM "$child" 2>/dev/null && wait "$child"
    exit 130
}
trap stop INT TERM HUP

# count LOG STATUS -- "passed failed skipped" of a log. A log without a verdict has failed, and so has
# one that shows no failure behind a bad exit status.
count() {
    awk -v status="$2" '
        /^\[=+\] .*test\(s\) run/ { listing = 1 }   # cmocka lists its failures once more below this
        /^\[=+\] Running/ { listing = 0 }
        /^\[ +OK +\]/ || /^(PASS|ok|KILLED) / { p++ }
        /^\[  FAILED  \]/ && !listing || /^(FAIL|BLOCKED|TODO|SURVIVED) / { f++ }
        /^\[  SKIPPED \]/ && !listing || /^SKIP / { s++ }
        /^[a-z_]+: [0-9]+ (checks|tasks)/ && status == 0 { p += $2 }
        { last = $0 }
        END {
            if (last ~ /^[0-9]+ passed, [0-9]+ failed(, [0-9]+ skipped)?$/) {
                split(last, word, /[ ,]+/)
                p = word[1]; f = word[3]; s = word[5]
            }
            if (status == 77) { if (!s) s = 1 }
            else if ((status != 0 || p + s == 0) && f == 0) f = 1
            print p + 0, f + 0, s + 0
        }' "$1"
}

# explain LOG -- the lines of a failed check that matter, at most twelve
explain() {
    grep -E '^\[  FAILED  \]|^(FAIL|BLOCKED|TODO|SURVIVED) |HINT:|rerun:|error:|Error|rror line|SUMMARY:' "$1" | awk '!seen[$0]++' | head -12 |
        sed 's/^/      /'
    echo "      log: $1"
}

# check NAME LIMIT COMMAND... -- run and print the line
check() {
    name=$1 limit=$2 log=$OUT/$1.log
    shift 2
    if [ ! -x "$1" ]; then
        echo "FAIL  $name: $1 is not there or not executable"
        failed=$((failed + 1))
        return
    fi
    [ -t 1 ] && printf '....  %s' "$name"
    start=$(date +%s)
    timeout -k 5 "$limit" "$@" >"$log" 2>&1 </dev/null &
    child=$!
    wait $child
    status=$?
    child=''
    [ $status -eq 124 ] && echo "FAIL $name: not done in $limit s" >>"$log"
    # shellcheck disable=SC2046
    set -- $(count "$log" $status)
    passed=$((passed + $1)) failed=$((failed + $2)) skipped=$((skipped + $3))
    verdict=PASS
    [ "$1" -eq 0 ] && verdict=SKIP
    [ "$2" -gt 0 ] && verdict=FAIL
    [ -t 1 ] && printf '\r'
    printf '%s  %-12s %4d passed %3d failed %3d skipped %5d s\n' $verdict "$name" "$1" "$2" "$3" \
        $(($(date +%s) - start))
    [ "$3" -gt 0 ] && grep -E '^SKIP ' "$log" | awk '!seen[$0]++' | head -3 | sed 's/^/      /'
    [ "$2" -gt 0 ] && explain "$log"
}

passed=0 failed=0 skipped=0
while read -r name tier limit command; do
    case $name in '' | '#'*) continue ;; esac
    case "$wanted " in
    *" $name "* | *" $tier "* | *" full "*) ;;
    *) continue ;;
    esac
    eval "check $name $limit $command"
done <$CHECKS

totals="$passed passed, $failed failed"
[ $skipped -gt 0 ] && totals="$totals, $skipped skipped"
echo "$totals" | tee "$OUT/totals"
[ $failed -eq 0 ]
