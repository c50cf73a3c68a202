#!/bin/bash
# kernels.sh [BUILD] -- measure every operation of ops.h at GPT-2 124M's shapes and compare it with this machine's roof.
#
# Fast operations: 4 sequences of 64 and of 256 tokens. Portable ones: 4 of 64 (BENCH_FULL=1: also 256). Attention: T=4096.
set -u
. "${0%/*}/lib.sh"
title "kernels: every operation beside the roof"
rm -f "$OUT"/kernels-*.csv
k=$BUILD/tests/bench/kernels

# measure NAME OPTIONS...
measure() {
    local name=$1
    shift
    timeout 1200 "$k" "$@" --roof "$OUT/roof.csv" --csv "$OUT/kernels-$name.csv" 2>"$OUT/kernels.log" </dev/null || fail "$k $*: $(head -1 "$OUT/kernels.log")" 'see above'
    say "$name: $(($(wc -l <"$OUT/kernels-$name.csv") - 1)) cases"
}
measure fast-t64 --ops fast --rows 256 --seq-len 64 --optimizer
measure fast-t256 --ops fast --rows 1024 --seq-len 256 --attention-t 4096
measure portable-t64 --ops portable --rows 256 --seq-len 64 --optimizer
[ -n "$FULL" ] && measure portable-t256 --ops portable --rows 1024 --seq-len 256 --attention-t 4096
for name in fast-t64 fast-t256 portable-t64 portable-t256; do
    [ -f "$OUT/kernels-$name.csv" ] && echo "$OUT/kernels-$name.csv"
done | xargs awk 'FNR > 1 || NR == 1' >"$OUT/kernels.csv"
{
    echo '## Operations at the shapes of GPT-2 124M'
    echo
    echo 'Shapes of a product: rows x inputs x outputs of the layer. bf16: parameters in bf16.'
    echo
    table "$OUT/kernels.csv"
} >"$OUT/kernels.md"
plot kernels <<END
set style fill solid 0.8; set boxwidth 0.7; set yrange [0:*]; set ylabel '% of roof'; set xtics rotate by -60 font ',8' noenhanced; set bmargin 12
set title 'Operations (fast), 4 x 64 tokens: share of the roof that binds them (violet: multiply-adds, green: in bf16, blue: memory, orange: in place)'
plot '$OUT/kernels-fast-t64.csv' skip 1 using 0:13:(strcol(11) eq 'fma' ? 1 : strcol(11) eq 'bf16' ? 2 : strcol(11) eq 'memory' ? 3 : 4):xtic(2) with boxes lc variable notitle
END
say "kernels: $(awk -F, '
    NR > 1 && $1 == "fast" && $2 == "adamw" { adamw = $NF }
    NR > 1 && $1 == "fast" && $2 ~ /^matmul/ { kind = $2 ~ /bf16$/; n[kind]++; sum[kind] += $NF }
    END {
        printf "%d products reach %.0f %% of the roof on average, ", n[0], sum[0] / n[0]
        printf "%d with parameters in bf16 %.0f %% of theirs; ", n[1], sum[1] / n[1]
        printf "AdamW reaches %.0f %% of what its reads and writes stream at", adamw
    }' "$OUT/kernels.csv")"
