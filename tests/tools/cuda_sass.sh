#!/bin/sh
# cuda_sass.sh [BUILD] -- kernels that must have the CPU's bits round like the CPU: no fused multiply-add, no flush to zero.
#
# PTX (make cuda-ptx) shows this exactly, because a division or a root is one instruction there. In SASS these are Newton steps
# with fused multiply-adds, so SASS is checked only for kernels that neither divide nor take roots, and only after make cuda
# with a toolkit that has cuobjdump. Kernels of the fast table (fast_*.cu) may fuse. Without nvcc: SKIP.
set -u
cd "$(dirname "$0")/../.." || exit 2
folder=${1:-build}/cuda/common/cuda
${NVCC:-nvcc} --version >/dev/null 2>&1 || [ -x /usr/local/cuda/bin/nvcc ] || { echo 'SKIP cuda_sass: there is no nvcc' && exit 77; }
make --no-print-directory BUILD="${1:-build}" cuda-ptx || exit 1
tool=$(command -v cuobjdump || ls "${CUDA_HOME:-/usr/local/cuda}/bin/cuobjdump" 2>/dev/null)
files=0 failed=0
for source in common/cuda/*.cu; do
    name=$(basename "$source" .cu)
    case $name in fast_*) continue ;; esac
    bad=$(grep -oE '\<(fma|mad|mul|add|sub|div|sqrt|rcp|rsqrt|ex2|lg2)[a-z0-9.]*\.f(32|64)\>' "$folder/$name.ptx" |
        grep -vE '^(mul|add|sub|div|sqrt|rcp)\.rn\.f(32|64)$' | sort | uniq -c | tr -s ' \n' ' ')
    files=$((files + 1))
    [ -z "$bad" ] || { echo "FAIL cuda_sass: $name.cu, in PTX:$bad"; failed=1; }
    [ -n "$tool" ] && [ -e "$folder/$name.o" ] || continue
    found=$("$tool" -sass "$folder/$name.o" | awk '
        function done() { if (fused > 0 && !newton) print name " (" arch ") " fused " times " which; fused = newton = 0 }
        /^arch = / { arch = $3 }
        /Function :/ { done(); name = $3 }
        /MUFU/ { newton = 1 }
        match($0, /(FFMA|DFMA|HFMA2\.BF16|FMUL\.FTZ|FADD\.FTZ)[A-Z0-9.]*/) { fused++; which = substr($0, RSTART, RLENGTH) }
        END { done() }')
    [ -z "$found" ] || { echo "FAIL cuda_sass: $name.cu, $found"; failed=1; }
done
[ $failed -eq 0 ] || exit 1
echo "PASS cuda_sass: every product and every sum is rounded, in PTX of $files files${tool:+ and in SASS}"
