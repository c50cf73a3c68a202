#!/bin/sh
# cuda_sass.sh [BUILD] -- what nvcc makes of the kernels. Those that must have the CPU's bits round like the CPU: no fused
# multiply-add, no flush to zero. All stay within limits of registers and memory (below).
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

# Limits in sm_90, for nvcc 11.8 to 13.5: the most registers, the most bytes of local memory (arrays that a thread indexes, and
# registers that are spilled), and the fewest loads of 16 bytes in the code. The first row whose pattern is the kernel's name holds.
# No kernel has an atomic operation on shared memory of another type than an integer of 32 bits: these are loops that spin.
limits='
fast_gelu_kernel                40   0    2
fast_gelu_backward_kernel       40   0    4
fast_swiglu_kernel              40   0    4
fast_swiglu_backward_kernel     40   0    6
fast_layernorm_kernel           64   0   10
fast_bias_backward_kernel       80   0   40
fast_norm_backward_kernel      128   0   50
attention_(d_._)?bf16_256      216   0    7
attention_d_._b?f(16|32)_.*    192   8    7
attention_b?f(16|32)_.*        160   0   13
(fast_loss|loss_rows)_kernel    64  32    0
sum_squares_kernel              64 176    1
clip_coef_kernel                64 176    0
sum_kernel                      64 192    0
(layer|rms)norm(_backward)?_kernel  64 128  0
conv_bias_kernel                64  64    0
attention_kernel               104 128    0
d_query_kernel                  80  64    0
d_key_kernel                   136  64    0
matmul_kernel                  128   0    0
.*                              64   0    0
'
# shellcheck disable=SC2046 # file names
found=$(echo "$limits" | awk '
    function kernel_of(line) { match(line, /_Z[0-9]+/); return substr(line, RSTART + RLENGTH, substr(line, RSTART + 2, RLENGTH - 2)) }
    FILENAME == "-" { if (NF == 4) { pattern[++rows] = $1; regs[rows] = $2; stack[rows] = $3; loads[rows] = $4 } next }
    /^\.func/ { kernel = "" }
    /\.entry/ { kernel = kernel_of($0) }
    /ld\.global[a-z.]*\.v4/ { wide[kernel]++ }
    /[ \t](atom|red)\./ && !/\.global/ && !/\.[usb]32/ && !seen[kernel, $1]++ { print kernel ": spins, " $1 }
    /Compiling entry function/ { kernel = kernel_of($0) }
    /bytes stack frame/ { bytes = $1 }
    match($0, /Used [0-9]+ registers/) {
        used = substr($0, RSTART + 5) + 0
        for (i = 1; i < rows && kernel !~ "^(" pattern[i] ")$"; i++);
        hit[i]++
        if (used > regs[i]) print kernel ": " used " registers, at most " regs[i]
        if (bytes > stack[i]) print kernel ": " bytes " bytes of local memory, at most " stack[i]
        if (wide[kernel] < loads[i]) print kernel ": " wide[kernel] + 0 " loads of 16 bytes, at least " loads[i]
        kernels++
    }
    END {
        for (i = 1; i < rows; i++) if (!hit[i]) print "no kernel is named " pattern[i]
        if (!kernels) print "no kernel at all"
    }' - $(ls "$folder"/*.ptx) $(ls "$folder"/*.usage))
[ -z "$found" ] || { echo "$found" | sed 's/^/FAIL cuda_sass: /'; failed=1; }
[ $failed -eq 0 ] || exit 1
echo "PASS cuda_sass: every product and every sum is rounded, in PTX of $files files${tool:+ and in SASS}; all kernels are within limits"
