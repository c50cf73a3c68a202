#!/bin/bash
# run.sh [BUILD] -- make bench: compare every figure with a peer measured in the same run and with this machine's roof.
#
# BENCH="train collectives" runs only these parts; products runs only if named. BENCH_FULL=1 runs the long form. FSDP_PYTHON is the
# interpreter with PyTorch (default: from make bench-peers; without PyTorch the peer's columns say "-"). LLMC_DIR is a
# checkout of llm.c (llmc.sh).
# Writes BUILD/bench/bench.md, *.csv and *.png. Exit status 0 if every part ran and every checked result is right, whatever
# the speed.
set -u
. "${0%/*}/lib.sh"
find_python
parts=${BENCH:-train collectives kernels scaling overlap}
for part in $parts; do
    case $part in train | collectives | kernels | scaling | overlap | products) ;; *) fail "BENCH=$part is no part" 'BENCH="train collectives kernels scaling overlap products"' ;; esac
done
title "make bench: $parts$([ -n "$FULL" ] && echo ', the long form')"
say "peers of training: ${PYTHON:-- (make bench-peers)}; llm.c: ${LLMC_DIR:-- (LLMC_DIR=/path/to/llm.c)}"
begun=$SECONDS
ticks=$(cpu_ticks)
{ echo '# Benchmarks' && echo && echo "Written by \`make bench\`; what the columns mean is in tests/bench/README.md." && echo && machine; } >"$OUT/machine.md"
cat "$OUT/machine.md"
tests/bench/roof.sh "$BUILD" || exit 1
failed=''
rm -f "$OUT"/{train,collectives,kernels,scaling,overlap,products}.{md,csv}
for part in $parts; do
    "tests/bench/$part.sh" "$BUILD" || failed="$failed $part"
    bench_page "not complete: $part ended last"
done
times >"$OUT/times.txt"
noise=$(others "$ticks" $((SECONDS - begun + 1)) "$OUT/times.txt")
bench_page "while it ran: $noise (more than a few per cent: do not trust these figures)"
title "Done in $(((SECONDS - begun + 30) / 60)) minutes: $OUT/bench.md"
for part in $parts; do
    case $part in
    train) awk -F, 'NR > 1 { printf "  train        %-17s %6d ms, peer %s ms (%s)\n", $1, $4, $11, $15 == "-" ? "-" : $15 " x" }' "$OUT/train.csv"
        awk -F, 'NR > 1 { printf "  train        %-17s %6d ms, llm.c %d ms (%s x)\n", "single", $3, $7, $11 }' "$OUT/train-llmc.csv" ;;
    collectives) awk -F, 'NR > 1 && $16 != "-" { n++; r[n] = $16; if ($16 >= 1) a++; bad += $12 } END { printf "  collectives  %d of %d cases at least as fast as MPICH, %d wrong elements\n", a, n, bad }' "$OUT/collectives.csv" ;;
    kernels) awk -F, 'NR > 1 && $1 == "fast" && $2 ~ /^matmul/ { n++; s += $NF } END { printf "  kernels      %d products at %.0f %% of the roof on average\n", n, n ? s / n : 0 }' "$OUT/kernels.csv" ;;
    scaling) awk -F, 'NR > 1 { n++ } END { printf "  scaling      %d points\n", n }' "$OUT/scaling.csv" ;;
    esac
done 2>/dev/null
echo "  noise        $noise"
[ -z "$failed" ] || { echo "FAILED:$failed" && exit 1; }
