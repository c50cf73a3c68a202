#!/bin/sh
# unit.sh -- runs the unit programs; one line each (see check.sh).
#
#   tests/tools/unit.sh [--ranks "1 2 3 4"] [PROGRAM...]      BUILD=build
#
# A program whose source says "fsdp_run -n W" runs once for every number of ranks and every transport (shm and mpi, or those in
# FSDP_COMM; without MPI only shm), and every rank must print its DONE line. A program about one transport (native_cases_lib.h)
# runs once for every number of ranks. With --ranks only these programs run; the default is 1 to 4 ranks, over mpi 2 and 3,
# because MPI's ranks poll and four of them take most of two cores (comm_hosts.sh has four, and so has make test-full). With FSDP_DEVICE only programs run that take their device from it (test_cuda_* on cuda and cuda-sim,
# test_npu_* on npu and npu-sim, test_accel_* on all four); without it, all programs run except these three kinds.
# WRAP: valgrind and its options, or nothing. Logs: $LOGS/unit/.
# shellcheck disable=SC2046,SC2086 # lists of words
set -u
cd "$(dirname "$0")/../.." || exit 2
BUILD=${BUILD:-build} LIMIT=${LIMIT:-600}
ranks='1 2 3 4' only_ranks='' cmocka=''
[ "${1:-}" = --ranks ] && ranks=${2:?} only_ranks=1 && shift 2
. tests/tools/env.sh
OUT=$LOGS/unit
mkdir -p "$OUT" || exit 2
. tests/tools/check.sh
transports=${FSDP_COMM:-$TRANSPORTS}
unset FSDP_COMM

# accel_lib.h includes target_lib.h, so either name shows that a program takes its device from FSDP_DEVICE.
takes_device() { grep -lE '(accel|target)_lib\.h' tests/unit/test_*.c; }
case ${FSDP_DEVICE:-} in
'') all=$(find tests/unit -name 'test_*.c' ! -name 'test_cuda_*' ! -name 'test_npu_*' ! -name 'test_accel_*' | sort) ;;
cuda*) all=$(takes_device | grep -v /test_npu_) ;;
npu*) all=$(takes_device | grep -v /test_cuda_) ;;
*) all=$(takes_device | grep -vE '/test_(accel|cuda|npu)_') ;;
esac
[ $# -gt 0 ] || set -- $all
for program in "$@"; do
    name=$(basename "$program" .c)
    if [ ! -e "$BUILD/tests/unit/$name" ] && [ -z "${cmocka:=$(probe cmocka)}" ] && grep -q /unit_lib.h "tests/unit/$name.c"; then
        echo "SKIP $name: there is no cmocka" && skipped=$((skipped + 1))
        continue
    fi
    exe="${WRAP:-} $BUILD/tests/unit/$name" done_marks=0
    if grep -q 'fsdp_run -n W' "tests/unit/$name.c"; then
        for w in $ranks; do
            done_marks=$w
            if [ "$w" -eq 1 ]; then
                check "$name on 1 rank" "$LIMIT" "$OUT/$name-W1.log" $exe
                continue
            fi
            over_all=$transports
            if grep -q native_cases_lib.h "tests/unit/$name.c"; then over_all=${transports%% *}; fi
            for over in $over_all; do
                [ "$over$w$only_ranks" != mpi4 ] || continue
                check "$name on $w ranks over $over" "$LIMIT" "$OUT/$name-W$w-$over.log" \
                    env FSDP_COMM="$over" $(launcher_over "$over") -n "$w" $exe
            done
        done
    elif [ -z "$only_ranks" ]; then
        check "$name" "$LIMIT" "$OUT/$name.log" $exe
    fi
done
no_mpi 'several ranks over mpi' && skipped=$((skipped + 1))
sum
