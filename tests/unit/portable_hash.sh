#!/bin/sh
# portable_hash.sh -- the portable table gives one hash with every compiler and instruction set.
#
#     sh tests/unit/portable_hash.sh       from the top; exit status 0 when all that ran agree
#
# Prints one line per combination; a compiler or emulator that is not installed is a SKIP line.
# An instruction set that this processor lacks runs under emulation where qemu-user is installed.
set -u
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
sources="tests/unit/portable_hash.c tests/unit/ops_cases_lib.c common/ops/cpu_*.c common/ops/gemm_*.c
         common/ops/op_work.c common/ops/optimizers.c
         $(ls common/base/*.c | grep -v /json.c) common/device/*.c common/sum/*.c"
flags="-D_GNU_SOURCE -I. -std=c11 -O3 -ffp-contract=off -fno-math-errno -fno-trapping-math
       -fopenmp -pthread"
expected=
failed=0

# check NAME RUNNER COMPILER FLAGS...
check() {
    name=$1 runner=$2 compiler=$3
    shift 3
    if ! command -v "$compiler" >/dev/null 2>&1; then
        echo "SKIP $name: $compiler is not installed"
        return
    fi
    if [ -n "$runner" ] && ! command -v "$runner" >/dev/null 2>&1; then
        echo "SKIP $name: $runner is not installed"
        return
    fi
    if ! "$compiler" $flags "$@" -o "$dir/hash" $sources -lm 2>"$dir/log"; then
        echo "FAIL $name: does not build"
        tail -n 5 "$dir/log"
        failed=1
        return
    fi
    hash=$($runner "$dir/hash" total) || { echo "FAIL $name: exit status $?"; failed=1; return; }
    expected=${expected:-$hash}
    if [ "$hash" = "$expected" ]; then
        echo "PASS $name ${hash% total}"
    else
        echo "FAIL $name ${hash% total}, expected ${expected% total}"
        failed=1
    fi
}

if [ "$(uname -m)" = x86_64 ]; then
    for compiler in gcc clang; do
        check "$compiler x86-64" "" "$compiler" -march=x86-64
        if grep -q avx2 /proc/cpuinfo; then
            check "$compiler x86-64-v3" "" "$compiler" -march=x86-64-v3
        else
            echo "SKIP $compiler x86-64-v3: this processor has no AVX2"
        fi
        if grep -q avx512vl /proc/cpuinfo; then
            check "$compiler x86-64-v4" "" "$compiler" -march=x86-64-v4
        else
            echo "SKIP $compiler x86-64-v4: this processor has no AVX-512"
        fi
    done
fi
for compiler in gcc clang; do
    check "$compiler native" "" "$compiler" -march=native
done
check "gcc aarch64 (emulated)" qemu-aarch64 aarch64-linux-gnu-gcc -static
if command -v aarch64-linux-gnu-gcc >/dev/null 2>&1; then # its libraries; clang with gcc's libgomp uses one thread
    check "clang aarch64 (emulated)" qemu-aarch64 clang --target=aarch64-linux-gnu -fopenmp=libgomp -static
else
    echo "SKIP clang aarch64 (emulated): aarch64-linux-gnu-gcc is not installed"
fi
exit $failed
