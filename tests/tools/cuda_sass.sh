#!/bin/sh
# cuda_sass.sh [BUILD] -- kernels that owe the CPU's bits round as it does: no fused multiply-add, no flush to zero.
#
# PTX says so exactly: there, a division or a root is one instruction. SASS has made Newton steps of these, so a fused
# multiply-add is told from them only in kernels without either. What the fast table has for itself (fast_*.cu) may.
# Needs `make cuda`, and the toolkit's cuobjdump; a SKIP without them.
set -u
cd "$(dirname "$0")/../.." || exit 2
folder=${1:-build}/cuda/common/cuda
tool=$(command -v cuobjdump || ls "${CUDA_HOME:-/usr/local/cuda}/bin/cuobjdump" 2>/dev/null)
[ -n "$tool" ] || { echo 'SKIP cuda_sass: cuobjdump is not installed'; exit 77; }
objects=0 failed=0
for source in common/cuda/*.cu; do
    name=$(basename "$source" .cu)
    case $name in fast_*) continue ;; esac
    object=$folder/$name.o
    [ -e "$object" ] || { echo "SKIP cuda_sass: there is no $object, make cuda builds it"; exit 77; }
    bad=$("$tool" -ptx "$object" | grep -oE '\<(fma|mad|mul|add|sub|div|sqrt|rcp|rsqrt|ex2|lg2)[a-z0-9.]*\.f(32|64)\>' |
        grep -vE '^(mul|add|sub|div|sqrt|rcp)\.rn\.f(32|64)$' | sort | uniq -c | tr -s ' \n' ' ')
    [ -z "$bad" ] || { echo "FAIL cuda_sass: $name.cu, in PTX:$bad"; failed=1; }
    found=$("$tool" -sass "$object" | awk '
        function done() { if (fused > 0 && !newton) print name " (" arch ") " fused " times " which; fused = newton = 0 }
        /^arch = / { arch = $3 }
        /Function :/ { done(); name = $3 }
        /MUFU/ { newton = 1 }
        match($0, /(FFMA|DFMA|HFMA2\.BF16|FMUL\.FTZ|FADD\.FTZ)[A-Z0-9.]*/) { fused++; which = substr($0, RSTART, RLENGTH) }
        END { done() }')
    objects=$((objects + 1))
    [ -z "$found" ] || { echo "FAIL cuda_sass: $name.cu, $found"; failed=1; }
done
[ $failed -eq 0 ] || exit 1
echo "PASS cuda_sass: the kernels of $objects objects round every product and every sum"
