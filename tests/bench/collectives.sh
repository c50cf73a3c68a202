#!/bin/bash
# collectives.sh [BUILD] -- compare our collectives with MPICH's own, in the form of nccl-tests.
#
# Launches ours and the peer in turn, twice (BENCH_FULL=1: four times, sizes up to 256 MB, longer, and also our MPI
# transport, not only the default transport). A figure is the median of the launches' medians.
# BENCH_RANKS="2 4 8" sets the numbers of ranks.
set -u
. "${0%/*}/lib.sh"
title "collectives: ours and MPICH's"
D=$OUT/collectives
rm -rf "$D" && mkdir -p "$D"
[ -f "$OUT/roof.csv" ] || tests/bench/roof.sh "$BUILD" || exit 1
options='--factor 4 --max-bytes 67108864 --budget 0.05'
turns='1 2'
ours='auto'
[ -n "$FULL" ] && options='--factor 4 --max-bytes 268435456 --budget 1' turns='1 2 3 4' ours='auto mpi'
no_mpi "MPICH's own collectives" && ours=auto
say "$MPI_LAUNCHER starts the ranks"

# launch NAME COMMAND... -- run it; its lines go to D/NAME.csv
launch() {
    local name=$1
    shift
    bind='' # bind both sides, because ranks that share a core measure the scheduler; fsdp_run has no such option
    [ -n "$mpiexec_version" ] && [ "$w" -le "$(nproc)" ] && bind='-bind-to core'
    # shellcheck disable=SC2086
    if ! timeout 900 $MPI_LAUNCHER $bind -n "$w" "$@" $options --csv "$D/$name.csv" >"$D/$name.log" 2>&1 </dev/null; then
        say "$name failed: $(grep -v '^HINT' "$D/$name.log" | head -1)"
        rm -f "$D/$name.csv"
        failed=1
    fi
}

failed='' shown=$options
for w in ${BENCH_RANKS:-2 4 8}; do
    begun=$SECONDS
    # Large sizes on more than 4 ranks need too much memory for a small machine: only in the long form.
    [ -z "$FULL" ] && [ "$w" -gt 4 ] && options=${options/67108864/4194304}
    for turn in $turns; do
        for backend in $ours; do
            launch "$w.ours-$backend.$turn" "$BUILD/tests/bench/collectives" --backend "$backend"
        done
        [ -n "$NO_MPI" ] || launch "$w.peer.$turn" "$BUILD/tests/bench/mpich_peer"
    done
    say "$w ranks: $((SECONDS - begun)) s, results checked: $(cat "$D/$w".*.csv 2>/dev/null | awk -F, '{ n++; bad += $NF }
        END { printf "%d cases, %d wrong elements", n, bad }')"
done

# One line per transport, ranks, operation and size: medians over launches. The roof is the time in which the memory can
# read and write once the least that all ranks together must.
cat "$D"/*.csv 2>/dev/null | sort -t, -k1,1 -k2,2n -k3,3 -k4,4n -k7,7g | awk -F, -v OFS=, -v roof="$OUT/roof.csv" '
    BEGIN { while ((getline line < roof) > 0) if (split(line, f, ",") == 2 && f[1] ~ /^triad_.*k_all/) { split(f[1], p, /[_k]/); n++; kib[n] = p[2]; rate[n] = f[2] } }
    function memory_us(op, w, size,    times, i) {
        times = op == "reduce-scatter" ? w + 1 : op == "all-reduce" ? 3 * w - 1 : 2 * (w - 1)
        for (i = 1; i < n && kib[i] * 1024 < w * size; i++); # the bytes of all ranks
        return times * size / rate[i] / 1e3
    }
    { key = $1 OFS $2 OFS $3 OFS $4; if (!(key in count)) order[++keys] = key; k = ++count[key]; us[key, k] = $7; q1[key] += $8; q3[key] += $9; wrong[key] += $12 }
    function median(key,    c) { c = count[key]; return c % 2 ? us[key, (c + 1) / 2] : (us[key, c / 2] + us[key, c / 2 + 1]) / 2 }
    END {
        print "transport,W,operation,bytes,count,type,us,q1,q3,algbw GB/s,busbw GB/s,#wrong,roof us,% of roof,MPICH us,MPICH/ours"
        for (j = 1; j <= keys; j++) {
            split(order[j], f, OFS)
            if (f[1] == "MPICH") continue
            w = f[2]; op = f[3]; size = f[4]; c = count[order[j]]; t = median(order[j]); least = memory_us(op, w, size)
            bus = (op == "all-reduce" ? 2 : 1) * (w - 1) / w
            peer = "MPICH" OFS f[2] OFS f[3] OFS f[4]
            theirs = peer in count ? median(peer) : 0
            printf "%s,%d,%s,%d,%d,float,%.1f,%.1f,%.1f,%.2f,%.2f,%d,%s,%s,%s,%s\n", f[1], w, op, size, size / 4, t, q1[order[j]] / c, q3[order[j]] / c,
                size / t / 1e3, size / t / 1e3 * bus, wrong[order[j]], size ? sprintf("%.1f", least) : "-", size ? sprintf("%.0f", 100 * least / t) : "-",
                theirs ? sprintf("%.1f", theirs) : "-", theirs ? sprintf("%.2f", theirs / t) : "-"
        }
    }' >"$OUT/collectives.csv"

{
    echo '## Collectives'
    echo
    echo "Ours by the transport that is chosen by itself$([ -n "$FULL" ] && echo ', and by the MPI transport'), beside MPICH's own; options: $shown."
    echo
    table "$OUT/collectives.csv"
} >"$OUT/collectives.md"
for w in ${BENCH_RANKS:-2 4 8}; do
    {
        echo "set logscale xy; set format x '10^{%L}'; set xlabel 'bytes'; set ylabel 'busbw GB/s'; set title 'Collectives of $w ranks: ours (solid), MPICH (dashed)'"
        k=0
        printf 'plot '
        for op in all-gather reduce-scatter all-reduce all-to-all; do
            k=$((k + 1))
            [ $k -gt 1 ] && printf ', '
            only="awk -F, '\$1 != \"mpi\" && \$2 == $w && \$3 == \"$op\"' $OUT/collectives.csv"
            printf "\"< %s\" using 4:11 with linespoints lw 2 lc %d pt 7 ps 0.6 title '%s', '' using 4:(\$11*\$7/\$15) with lines dt 2 lc %d notitle" "${only//\"/\\\"}" $k "$op" $k
        done
        echo
    } | sed 's/\$\([0-9]* !=\|[0-9]* ==\)/$\1/g' | plot "collectives-$w"
done
say "collectives: $(awk -F, 'NR > 1 && $1 != "mpi" && $16 != "-" { n++; if ($16 >= 1) a++ } END { printf "%d of %d cases at least as fast as MPICH", a, n }' "$OUT/collectives.csv"), $(
    awk -F, 'NR > 1 { bad += $12 } END { print bad + 0 }' "$OUT/collectives.csv") wrong elements"
[ -z "$failed" ]
