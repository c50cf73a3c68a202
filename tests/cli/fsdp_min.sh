#!/bin/bash
# fsdp_min.sh [BUILD] -- docs/fsdp_min.c: it trains, any number of ranks prints what one rank prints, and a number that does not
# divide the batch is refused.
. "$(dirname "$0")/lib.sh"
cli_start "$@"
if [ -n "$NO_MPI" ]; then
    case_is 'it trains on MPI ranks'
    skip 'it trains on MPI ranks' "$NO_MPI"
    cli_end
fi

# ranks_print W -- the output of W ranks in $work/out
ranks_print() {
    timed $MPI_LAUNCHER -n "$1" "$build/fsdp_min"
    expect_status 0
    [ ! -s "$work/err" ] || complain 'wrote to stderr'
}

# 11 steps of one batch, between two checksums. The loss falls to a tenth or less.
case_is 'it trains' 1
ranks_print 1
cp "$work/out" "$keep/one"
awk '
    NR == 1 && /^weights before: [0-9a-f]+$/ { before = $NF; next }
    NR <= 12 && /^step +[0-9]+  loss [0-9.e-]+$/ { n += $2 == 10 * (NR - 2); if (NR == 2) first = $NF; last = $NF; next }
    NR == 13 && /^weights after: [0-9a-f]+$/ { after = $NF; next }
    { exit bad = 1 }
    END { exit bad || NR != 13 || n != 11 || before == after || !(last > 0 && last < first / 10) }' "$keep/one" ||
    complain "it printed: $(tr '\n' ';' <"$keep/one")"

for ranks in ${RANKS:-2 3 4 6}; do
    case_is 'the text of one rank' $ranks
    ranks_print $ranks
    cmp -s "$work/out" "$keep/one" || complain "other lines: $(diff "$keep/one" "$work/out" | grep '^[<>]' | head -4 | tr '\n' ';')"
done

case_is 'a number of ranks that does not divide the batch is refused' 5
timed $MPI_LAUNCHER -n 5 "$build/fsdp_min"
expect_status 2
[ "$(grep -c '^fsdp_min: 5 ranks cannot share 12 samples' "$work/err")" = 1 ] || complain 'no line of stderr, or several, say why'
[ "$(grep -c '^HINT: start 1, 2, 3, 4, 6 or 12 ranks' "$work/err")" = 1 ] || complain 'no hint, or several'
[ ! -s "$work/out" ] || complain "it printed: $(head -1 "$work/out")"
cli_end
