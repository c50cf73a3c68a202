#!/bin/sh
# test.sh -- run checks of checks.txt, print a line each (see check.sh), the slowest ones and the sum.
#
#   tests/tools/test.sh TIER|NAME... [BUILD]        full: quick too
#
# Neighbours in the table that may share the machine run in two lanes: each lane takes the next check that nobody has
# taken. Logs: $LOGS/NAME.log (see env.sh). The last line, also in $LOGS/totals, reads "N passed, N failed", with
# ", N skipped" after it when there were any. Exit status 0 iff nothing failed.
set -u
cd "$(dirname "$0")/../.." || exit 2
CHECKS=${CHECKS:-tests/tools/checks.txt}
BUILD=${BUILD:-build} wanted=''
for word in "$@"; do
    if [ "$word" = full ]; then
        wanted="$wanted quick full"
    elif awk -v w="$word" '!/^#/ && ($1 == w || index("," $2 ",", "," w ",")) { found = 1 } END { exit !found }' $CHECKS; then
        wanted="$wanted $word"
    else
        BUILD=$word
    fi
done
[ -n "$wanted" ] || wanted=quick
export BUILD
. tests/tools/env.sh
OUT=$LOGS
rm -rf "$OUT/totals" "$OUT/taken" && mkdir -p "$OUT/taken" || exit 2
. tests/tools/check.sh
begun=$(date +%s)

# The rows that are wanted, and how many there are.
rows=$OUT/rows
awk -v wanted="$wanted" '
    BEGIN { n = split(wanted, word, " ") }
    /^#/ || NF == 0 { next }
    { for (i = 1; i <= n; i++) if ($1 == word[i] || index("," $2 ",", "," word[i] ",")) { print; next } }' $CHECKS >"$rows"
n_rows=$(wc -l <"$rows")

# place -- after a check's line: how far the run is
place() {
    now=$(($(date +%s) - begun))
    printf ', %d of %d at %d:%02d' $(($(wc -l <"$OUT/durations") + 1)) "$n_rows" $((now / 60)) $((now % 60))
}
place_of=place

# run_row NUMBER -- the check of that row, unless a lane has taken it
run_row() {
    mkdir "$OUT/taken/$1" 2>/dev/null || return
    # shellcheck disable=SC2046 # words
    set -- $(sed -n "$1p" "$rows")
    name=$1 limit=$4
    shift 4
    mkdir -p "$(dirname "$OUT/$name")"
    eval "check $name $limit \$OUT/$name.log $*"
    echo "$took_s $cpu_s $name" >>"$OUT/durations"
}

# lane FIRST LAST -- whatever nobody has taken of these rows; what is counted goes to a file
lane() {
    passed=0 failed=0 skipped=0 lane=1
    # shellcheck disable=SC2064 # of check.sh; a shell in the background starts without it
    trap "$end_child" TERM HUP
    for number in $(seq "$1" "$2"); do
        run_row "$number"
    done
    echo "$passed $failed $skipped" >>"$OUT/lanes"
}

# side_by_side FIRST LAST -- in two lanes
side_by_side() {
    : >"$OUT/lanes"
    lane "$@" &
    child=$!
    lane "$@" &
    child="$child $!"
    # shellcheck disable=SC2086 # ids
    wait $child
    child=''
    while read -r p f s; do
        passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    done <"$OUT/lanes"
}

: >"$OUT/durations"
number=1
while [ $number -le "$n_rows" ]; do
    last=$(awk -v first=$number 'NR >= first && $3 != "shared" { exit } { last = NR } END { print last + 0 }' "$rows")
    if [ "$last" -gt $number ]; then
        side_by_side $number "$last"
        number=$last
    else
        run_row $number
    fi
    number=$((number + 1))
done

n_ended=$(wc -l <"$OUT/durations")
[ "$n_ended" -eq "$n_rows" ] || { echo "FAIL test.sh: $n_ended of $n_rows checks came to their end" && failed=$((failed + 1)); }
echo "slowest: $(sort -rn "$OUT/durations" | head -10 | awk '{ printf "%s%s %d s (CPU %d s)", (NR > 1 ? ", " : ""), $3, $1, $2 }')"
sum >"$OUT/totals"
status=$?
cat "$OUT/totals"
exit $status
