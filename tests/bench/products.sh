#!/bin/bash
# products.sh [BUILD] -- products of many shapes by our kernels, by oneDNN and by libxsmm, in turns, with weights from memory.
#
# Shapes of GPT-2 and Llama, rows from 64 to 4096, the vocabularies of both, and an odd one; on all threads, and some on one.
set -u
. "${0%/*}/lib.sh"
title 'products: our kernels beside libraries and the rate of multiply-adds in registers'
csv=$OUT/products.csv
echo 'threads,type,product,rows x sums x columns,ours GFLOP/s,oneDNN,libxsmm,% of the register loop' >"$csv"
# measure THREADS ROWS INPUTS OUTPUTS
measure() {
    local type roof
    for type in fp32 bf16; do
        rm -f "$OUT/products.part"
        OMP_NUM_THREADS=$1 timeout 600 "$BUILD/tests/bench/products" --rows "$2" --inputs "$3" --outputs "$4" --type $type --csv "$OUT/products.part" \
            2>"$OUT/products.log" </dev/null || fail "products $*: $(head -1 "$OUT/products.log")" 'see above'
        roof=$(field "$OUT/roof.csv" "$([ "$1" = 1 ] && echo fma_one_gflops || echo fma_all_gflops)")
        awk -F, -v OFS=, -v threads="$1" -v roof="$roof" '{ print threads, $0, $1 == "fp32" ? sprintf("%.0f", 100 * $4 / roof) : "-" }' \
            "$OUT/products.part" >>"$csv"
    done
}
for shape in '256 768 768' '256 768 2304' '256 768 3072' '256 3072 768' '256 768 50257' '64 768 3072' '64 3072 768' '512 768 3072' '512 3072 768' \
    '1024 768 3072' '4096 768 768' '1024 2048 2048' '1024 2048 8192' '1024 8192 2048' '64 2048 128256' '100 777 1001'; do
    # shellcheck disable=SC2086 # three numbers
    measure "$CORES" $shape
done
for shape in '64 768 3072' '256 768 3072' '256 3072 768' '1024 768 3072'; do
    # shellcheck disable=SC2086
    measure 1 $shape
done
{
    echo '## Products by shape'
    echo
    echo "Weights and their gradients come from memory, packing is part of a call, results are fp32; medians, GFLOP/s. \"-\": the library has no such"
    echo "product on this processor, or is not installed (libxsmm-dev). forward wT: the weight is stored transposed, as GPT-2's head and Llama's weights are."
    echo
    table "$csv"
} >"$OUT/products.md"
say "products: $(awk -F, 'NR > 1 && $1 > 0 && $2 == "fp32" { n++; s += $8; if ($6 != "-") { m++; r += $5 / $6 } }
    END { printf "%d in fp32 reach %.0f %% of the register loop on average, %.2f times oneDNN", n, s / n, m ? r / m : 0 }' "$csv")"
