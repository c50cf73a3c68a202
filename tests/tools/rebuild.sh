#!/bin/sh
# rebuild.sh clang|asan|tsan|valgrind -- builds everything in another way and runs what can fail in that way.
#
#   clang     no warning with clang; unit programs
#   asan      gcc, AddressSanitizer with UBSan: unit programs, labs on 2 ranks, a short training, failures (on the
#             stand-ins too)
#   tsan      clang, ThreadSanitizer: streams, memory, collectives, failures
#   valgrind  unit programs, built for x86-64-v3 (valgrind knows no AVX-512)
# Builds into $BUILD-WAY. Prints PASS, FAIL and SKIP lines.
# shellcheck disable=SC2086 # lists of words
set -u
cd "$(dirname "$0")/../.." || exit 2
way=${1:?clang, asan, tsan or valgrind}
base=${BUILD:-build}
BUILD=$base-$way
export BUILD
mkdir -p "$BUILD/test"
bad=0 limit_s=300

need() {
    command -v "$1" >/dev/null 2>&1 && return
    echo "SKIP $way: $1 is not installed"
    exit 77
}

# build VARIABLE=VALUE... -- builds everything; warnings are errors
build() {
    if make -j"$(nproc)" --no-print-directory CI=1 BUILD="$BUILD" "$@" tests >"$BUILD/test/make.log" 2>&1; then
        echo "PASS $way builds without warnings"
        . tests/tools/env.sh # for the new build
        return
    fi
    echo "FAIL $way does not build: $(grep -m1 -E ' error: |\*\*\* ' "$BUILD/test/make.log")"
    exit 1
}

# units ARGS... -- unit.sh without its line of totals, because this script's lines are counted
units() { tests/tools/unit.sh "$@" | sed '$d'; }

# quiet NAME COMMAND... -- the command exits with 0 and no sanitizer reports anything
quiet() {
    name=$1
    shift
    if tests/tools/limit.sh "$limit_s" "$@" >"$BUILD/test/quiet.log" 2>&1 </dev/null &&
        ! grep -qE 'ERROR: |runtime error|WARNING: ThreadSanitizer' "$BUILD/test/quiet.log"; then
        echo "PASS $way $name"
    else
        echo "FAIL $way $name: $(grep -m1 -E 'ERROR: |runtime error|WARNING: Thread|^FAIL' "$BUILD/test/quiet.log")"
        cp "$BUILD/test/quiet.log" "$BUILD/test/quiet-failed.log"
        bad=1
    fi
}

# ending -- ranks that fail, are killed, stopped or told to end. The test scripts read the output of the ranks, so sanitizers
# write their reports to files. A rank that fails does not join the thread that has written a checkpoint before it ends;
# ThreadSanitizer must not report that.
ending() {
    reports=$(cd "$BUILD/test" && pwd)/reports
    rm -rf "$reports" && mkdir "$reports"
    export "ASAN_OPTIONS=${ASAN_OPTIONS:-}:log_path=$reports/asan"
    export "TSAN_OPTIONS=${TSAN_OPTIONS:-} log_path=$reports/tsan report_thread_leaks=0"
    export "UBSAN_OPTIONS=${UBSAN_OPTIONS:-}:log_path=$reports/ubsan"
    limit_s=600
    quiet 'ranks that disagree, wait or die' tests/unit/comm_faults.sh "$BUILD/tests/unit/comm_faults"
    quiet 'kills while saving' env CASES='kill' tests/cli/faults.sh "$BUILD"
    quiet 'trainings that are struck' env CASES='killed|a rank is stopped|interrupted|SIGALRM|^training|Ctrl-Z' tests/cli/harm.sh "$BUILD"
    quiet 'trainings that are killed again and again' tests/cli/rounds.sh "$BUILD"
}

# reported -- a FAIL line for each report since ending began
reported() {
    for report in "$reports"/*; do
        [ ! -e "$report" ] || { echo "FAIL $way $report: $(grep -m1 -E 'ERROR: |runtime error|WARNING: ' "$report")" && bad=1; }
    done
}

short='--size tiny --steps 3 --global-batch 6 --seq-len 32 --synthetic 4096'
case $way in
clang)
    need clang
    build CC=clang
    units
    ;;
asan)
    need gcc
    export ASAN_OPTIONS=detect_leaks=0:verify_asan_link_order=0 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 LIMIT=300
    build CC=gcc SAN=address
    units
    quiet 'random collectives' tests/unit/comm_stress.sh quick "$BUILD"
    quiet 'labs on 2 ranks' tests/grade/grade.sh --ranks 2 "$BUILD"
    leaks="${ASAN_OPTIONS}:detect_leaks=1" # the last word counts
    quiet 'training on 3 ranks leaks nothing' env "ASAN_OPTIONS=$leaks" $LAUNCHER -n 3 "$BUILD/fsdp_train" $short
    quiet 'training on 4 ranks, hybrid, leaks nothing' env "ASAN_OPTIONS=$leaks" $LAUNCHER -n 4 "$BUILD/fsdp_train" $short --global-batch 8 --sharding hybrid --fsdp-size 2
    ending
    for device in cuda-sim npu-sim; do
        quiet "ranks that disagree, wait or die on $device" env FSDP_DEVICE=$device \
            tests/unit/comm_faults.sh "$BUILD/tests/unit/comm_faults" native
    done
    reported
    ;;
tsan)
    need clang
    export OMP_NUM_THREADS=1 LIMIT=600
    export TSAN_OPTIONS="halt_on_error=1 ignore_noninstrumented_modules=1"
    export UCX_MEM_MMAP_HOOK_MODE=none # UCX, below MPI: its patches of mmap sometimes make ThreadSanitizer crash
    build CC=clang SAN=thread
    units tests/unit/test_device*.c tests/unit/test_separate.c tests/unit/test_comm.c tests/unit/test_sum_run.c \
        tests/unit/test_profile.c tests/unit/test_recycle.c tests/unit/test_checkpoint.c
    quiet 'random collectives on 3 ranks' $LAUNCHER -n 3 "$BUILD/tests/unit/comm_stress" --rounds 60 --seed 5
    quiet 'training on 2 ranks' $LAUNCHER -n 2 "$BUILD/fsdp_train" $short
    quiet 'training with a compute thread' env FSDP_ASYNC_COMPUTE=1 $LAUNCHER -n 2 "$BUILD/fsdp_train" $short
    quiet 'training under a schedule' env FSDP_SCHEDULE=3 $LAUNCHER -n 2 "$BUILD/fsdp_train" $short
    ending
    reported
    ;;
valgrind)
    need valgrind
    export OMP_NUM_THREADS=1 LIMIT=900
    # allregs: after the handler of guard.c has opened memory, the access runs again, and every
    # register must be right. By default valgrind only keeps the registers that it needs to unwind.
    WRAP='valgrind -q --error-exitcode=9 --leak-check=full --errors-for-leak-kinds=definite --fair-sched=yes'
    export WRAP="$WRAP --vex-iropt-register-updates=allregs-at-mem-access"
    build CC=gcc MARCH=-march=x86-64-v3
    # Not test_pmath, which compares with long double: valgrind computes long double in 64 bits.
    units tests/unit/test_base.c tests/unit/test_data.c tests/unit/test_device.c tests/unit/test_device_memory.c \
        tests/unit/test_export.c tests/unit/test_observe.c tests/unit/test_options.c tests/unit/test_rsum.c
    ;;
*)
    echo "usage: $0 clang|asan|tsan|valgrind" >&2
    exit 2
    ;;
esac
exit $bad
