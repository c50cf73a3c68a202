#!/bin/bash
# fuzz.sh -- random command lines and damaged files: no crash, no hang, no leak; a message and a hint each time.
#
#   tests/cli/fuzz.sh [quick|full] [BUILD]        default quick, build
#
# quick: the programs of the build. full: more tries, with AddressSanitizer and UBSan, in $BUILD-fuzz, where only
# what is needed is built. FUZZ_SEED sets the seed (1). Prints PASS and FAIL lines and a last line with their numbers.
set -u
cd "$(dirname "$0")/../.." || exit 2
tier=quick build=build
for word in "$@"; do
    case $word in
    quick | full) tier=$word ;;
    *) build=$word ;;
    esac
done
seed=${FUZZ_SEED:-1} options_tries=5000 bin_tries=1000
programs=$build/tests/cli

if [ "$tier" = full ]; then
    options_tries=100000 bin_tries=10000
    programs=$build-fuzz
    sources="$(ls common/base/*.c common/data/*.c common/device/*.c common/model/*.c common/observe/*.c common/ops/*.c)
        common/train/train_config.c common/model/runner.c lab1_flatparam/flat_param.c lab1_flatparam/flat_param.c
        lab4_optimizer/checkpoint.c lab4_optimizer/ckpt_pieces.c tests/cli/fuzz_lib.c"
    objects=
    for source in $sources tests/cli/fuzz_options.c tests/cli/fuzz_bin.c; do
        objects="$objects $programs/${source%.c}.o"
    done
    # shellcheck disable=SC2086 # lists of words
    make -s -j"$(nproc)" BUILD="$programs" SAN=address DEBUG=1 MARCH= $objects || exit 1
    for program in fuzz_options fuzz_bin; do
        other=fuzz_options
        [ "$program" = fuzz_options ] && other=fuzz_bin
        # shellcheck disable=SC2046,SC2086
        ${CC:-gcc} -fsanitize=address,undefined -fopenmp -pthread -o "$programs/$program" \
            $(printf '%s\n' $objects | grep -v "/$other.o") -lcjson \
            $([ ! -e /usr/include/dnnl.h ] || echo -ldnnl) -lm || exit 1
    done
fi

export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=1:allocator_may_return_null=1}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-halt_on_error=1:print_stacktrace=1}
TMPDIR=$(mktemp -d) && export TMPDIR && trap 'rm -rf "$TMPDIR"' EXIT # a crash leaves its files there
log=$TMPDIR/log
passed=0 failed=0
run() {
    timeout -k 5 400 "$programs/$1" "$2" "$seed" >"$log" 2>&1
    status=$?
    grep -vE '^[0-9]+ passed, ' "$log"
    passed=$((passed + $(grep -c '^PASS' "$log")))
    n=$(grep -c '^FAIL' "$log")
    if [ $status -ne 0 ] && [ "$n" = 0 ]; then
        echo "FAIL $1: exit status $status"
        n=1
    fi
    failed=$((failed + n))
}
run fuzz_options $options_tries
run fuzz_bin $bin_tries
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
