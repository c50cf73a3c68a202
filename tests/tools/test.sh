#!/bin/sh
# test.sh -- runs checks of checks.txt; prints a line for each (see check.sh), the slowest ones and the totals.
#
#   tests/tools/test.sh TIER|NAME... [BUILD]        full: also runs quick
#
# Adjacent rows of the table that may share the machine run in LANES lanes (three by default: checks of several ranks often
# wait); each lane takes the next check that is not taken yet. Logs: $LOGS/NAME.log (see env.sh). The last line, also in
# $LOGS/totals, reads "N passed, N failed", followed by ", N skipped" if there were any. Exit status 0 iff nothing failed.
#
# `full` first prints how long it will take. It may be stopped: passed checks are kept in $LOGS/full.kept, and the same command
# continues with the others if the tree and the build have not changed. It ends with a table of all checks.
# shellcheck disable=SC2046,SC2086 # lists of words
set -u
cd "$(dirname "$0")/../.." || exit 2
CHECKS=${CHECKS:-tests/tools/checks.txt}
BUILD=${BUILD:-build} wanted='' full=''
for word in "$@"; do
    if [ "$word" = full ]; then
        wanted="$wanted quick full" full=1
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

echo "${LAUNCHER%% *} starts the ranks$([ -n "$NO_MPI" ] || echo "; in checks of MPI, $MPI_LAUNCHER${mpiexec_version:+ (Hydra $mpiexec_version)}")"

# The rows to run, and their number.
rows=$OUT/rows
awk -v wanted="$wanted" '
    BEGIN { n = split(wanted, word, " ") }
    /^#/ || NF == 0 { next }
    { for (i = 1; i <= n; i++) if ($1 == word[i] || index("," $2 ",", "," word[i] ",")) { print; next } }' $CHECKS >"$rows"

# tree_id -- a hash of the project's files and of the compiler's command line
tree_id() {
    . tests/tools/tree.sh
    { tree_files . | tr '\n' '\0' | xargs -0 cat && cat "$BUILD/flags"; } 2>/dev/null | sha256sum
}
# minutes ROWS -- the time that they take; shared rows fill two cores
minutes() { awk '{ s += $5 / ($3 == "shared" ? 2 : 1) } END { printf "%d h %02d min", s / 3600, s % 3600 / 60 }' "$1"; }

kept=/dev/null
if [ -n "$full" ]; then
    kept=$OUT/full.kept
    id=$(tree_id)
    [ "$(head -1 "$kept" 2>/dev/null)" = "$id" ] || echo "$id" >"$kept"
    awk 'NR == FNR { if (FNR > 1) kept[$3] = 1; next } !($1 in kept)' "$kept" "$rows" >"$rows.left"
    echo "full: $(wc -l <"$rows") checks, about $(minutes "$rows") on two idle cores. Stop it when you like: the same command goes on."
    [ "$(wc -l <"$kept")" -eq 1 ] || echo "      $(($(wc -l <"$kept") - 1)) have passed on this tree and are kept; the others take about $(
        minutes "$rows.left"). rm $kept: from the beginning"
    mv "$rows.left" "$rows"
fi
n_rows=$(wc -l <"$rows")

# place -- ends a check's line with the progress of the run
place() {
    now=$(($(date +%s) - begun))
    printf ', %d of %d at %d:%02d' $(($(wc -l <"$OUT/durations") + 1)) "$n_rows" $((now / 60)) $((now % 60))
}
place_of=place

# run_row NUMBER -- runs the check of that row, unless another lane has taken it
run_row() {
    mkdir "$OUT/taken/$1" 2>/dev/null || return
    set -- $(sed -n "$1p" "$rows")
    name=$1 limit=$4
    shift 5
    mkdir -p "$(dirname "$OUT/$name")"
    eval "check $name $limit \$OUT/$name.log $*"
    echo "$took_s $cpu_s $name $counted" >>"$OUT/durations"
    [ "${counted% 0 *}" = "$counted" ] || echo "$took_s $cpu_s $name $counted" >>"$kept"
}

# lane FIRST LAST -- runs the rows in this range that are not taken; writes its totals to a file
lane() {
    passed=0 failed=0 skipped=0 lane=1 child=''
    # shellcheck disable=SC2064 # check.sh's trap; a background shell starts without it
    trap "$end_child" TERM HUP
    for number in $(seq "$1" "$2"); do
        run_row "$number"
    done
    echo "$passed $failed $skipped" >>"$OUT/lanes"
}

# side_by_side FIRST LAST -- runs these rows in LANES lanes
side_by_side() {
    : >"$OUT/lanes"
    child=new
    for _ in $(seq "${LANES:-3}"); do
        lane "$@" &
        child="${child%new}$! new"
    done
    child=${child%new}
    wait $child
    child=''
    while read -r p f s; do
        passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    done <"$OUT/lanes"
}

: >"$OUT/durations"
set -- $(awk '{ p += $4; s += $6 } END { print p + 0, s + 0 }' "$kept")
passed=$((passed + $1)) skipped=$((skipped + $2))
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
if [ -n "$full" ]; then
    awk 'BEGIN { printf "%-16s %7s %7s %7s %9s\n", "check", "passed", "failed", "skipped", "minutes" }
        FNR == NR { if (FNR > 1 && !($3 in line)) { name[++n] = $3; line[$3] = $0 } next }
        !($3 in line) { name[++n] = $3; line[$3] = $0 }
        END { for (i = 1; i <= n; i++) { split(line[name[i]], w, " "); t += w[1]
                printf "%-16s %7d %7d %7d %9.1f\n", w[3], w[4], w[5], w[6], w[1] / 60 }
            printf "%-16s %31s %9.1f\n", "all, in one lane", "", t / 60 }' "$kept" "$OUT/durations"
    [ $status -ne 0 ] || rm "$kept"
fi
cat "$OUT/totals"
exit $status
