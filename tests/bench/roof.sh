#!/bin/bash
# roof.sh [BUILD] -- measure the most that this machine reaches -> BUILD/bench/roof.csv, and print four lines about it.
set -u
. "${0%/*}/lib.sh"
"$BUILD/tests/bench/kernels" --roof "$OUT/roof.csv" --roof-only || fail 'cannot measure the roof' 'see above'
r() { field "$OUT/roof.csv" "$1"; }
{
    echo "- roof, multiply-adds in registers (fp32): $(r fma_one_gflops) GFLOP/s on one thread, $(r fma_all_gflops) on $(r threads)"
    echo "- roof, memory (triad, all threads): $(r triad_1024k_all_gbs) GB/s over 1 MiB, $(r triad_16384k_all_gbs) over 16 MiB, $(
        r triad_786432k_all_gbs) over 768 MiB ($(r triad_786432k_one_gbs) on one thread)"
    echo "- roof, bf16 multiplied and added in registers (AVX-512 pairs or AMX tiles): $(r bf16_all_gflops) GFLOP/s on $(r threads) (0: no such instruction)"
    echo "- roof, fast products of 2048 x 2048: fp32 $(r sgemm_gflops) GFLOP/s, bf16 $(r bf16_gflops) GFLOP/s"
} | tee "$OUT/roof.md"
