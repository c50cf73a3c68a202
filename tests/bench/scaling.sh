#!/bin/bash
# scaling.sh [BUILD] -- time our step for different model sizes, sequence lengths, ranks and accumulation.
#
# FSDP uses the default transport; one rank uses --parallel single. A micro-step has 4 sequences over all ranks, so more ranks
# share the same work. Default: part of the grid; BENCH_FULL=1: all of it. The turns of all cases are interleaved.
set -u
. "${0%/*}/lib.sh"
title "scaling: model size, T, ranks, accumulation"
D=$OUT/scaling
rm -rf "$D" && mkdir -p "$D"
steps=5
turns='1 2'

# size T accumulation
if [ -n "$FULL" ]; then
    steps=8
    turns='1 2 3'
    grid=$(for size in tiny small 124m; do for t in 64 256 1024; do for a in 1 4; do echo "$size $t $a"; done; done; done)
else
    grid='tiny 64 1
tiny 256 1
small 64 1
small 256 1
small 64 4
124m 64 1'
fi

# Presets other than 124m have at most 256 tokens.
cases=$(echo "$grid" | awk '$1 == "124m" || $2 <= 256')
total=$(($(echo "$cases" | wc -l) * 3 * $(echo "$turns" | wc -w)))
done_runs=0
for turn in $turns; do
    while read -r size t a; do
        for w in 1 2 4; do
            name=$size.$t.$a.$w
            launcher='' parallel=single
            [ "$w" -gt 1 ] && launcher="$LAUNCHER -n $w" parallel=fsdp
            n=$steps
            [ "$size" = 124m ] || n=$((steps * 6))
            # shellcheck disable=SC2086
            timeout 900 $launcher "$BUILD/fsdp_train" --parallel $parallel --size "$size" --seq-len "$t" --global-batch $((4 * a)) \
                --grad-accum "$a" --steps $n --synthetic 100000 --loss-csv "$D/$name.$turn.csv" >"$D/$name.$turn.log" 2>&1 </dev/null ||
                { say "$name failed: $(tail -2 "$D/$name.$turn.log" | head -1)"; rm -f "$D/$name.$turn.csv"; }
            done_runs=$((done_runs + 1))
            [ $((done_runs % 7)) -eq 0 ] && say "$done_runs of $total runs"
        done
    done <<<"$cases"
done

echo 'model,T,micro-steps,ranks,ms,q1,q3,tokens/s,against 1 rank' >"$OUT/scaling.csv"
while read -r size t a; do
    for w in 1 2 4; do
        echo "$size $t $a $w $(cat "$D/$size.$t.$a.$w".*.csv 2>/dev/null | awk -F, '$1 ~ /^[0-9]+$/ && $1 >= 2 { print $NF }' | quartiles)"
    done
done <<<"$cases" | awk -v OFS=, '$5 != "-" { if ($4 == 1) one[$1, $2, $3] = $5
    base = one[$1, $2, $3]
    printf "%s,%d,%d,%d,%.1f,%.1f,%.1f,%.0f,%s\n", $1, $2, $3, $4, $5, $6, $7, 4 * $2 * $3 / $5 * 1e3, base ? sprintf("%.2f", base / $5) : "-" }' >>"$OUT/scaling.csv"
{
    echo '## Scaling'
    echo
    echo "4 sequences of T tokens a micro-step over all ranks; $CORES cores, so that more ranks than cores cannot be faster. Steps 3 on of $(echo "$turns" | wc -w) runs."
    echo
    table "$OUT/scaling.csv"
} >"$OUT/scaling.md"
plot scaling <<END
set style data histograms; set style fill solid 0.8; set logscale y; set ylabel 'tokens/s'; set xtics rotate by -40 noenhanced
set title 'Training: tokens per second over model, T x micro-steps, ranks'
plot "< awk -F, '\$4 == 1' $OUT/scaling.csv" using 8:xtic(strcol(1).' T='.strcol(2).' A='.strcol(3)) title '1 rank', "< awk -F, '\$4 == 2' $OUT/scaling.csv" using 8 title '2 ranks', "< awk -F, '\$4 == 4' $OUT/scaling.csv" using 8 title '4 ranks'
END
say "scaling: $(awk -F, 'NR > 1 { n++ } END { print n }' "$OUT/scaling.csv") points"
