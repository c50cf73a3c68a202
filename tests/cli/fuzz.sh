#!/bin/bash
# fuzz.sh -- random command lines and damaged files: no crash, no hang, no leak; a message and a hint each time.
#
#   tests/cli/fuzz.sh [quick|full] [BUILD]        default quick, build
#
# quick: the programs of the build. full: more tries, with AddressSanitizer and UBSan, in $BUILD-fuzz.
# FUZZ_SEED sets the seed (1). Prints PASS and FAIL lines and a last line with their numbers.
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
    programs=$build-fuzz/tests/cli
    make -s -j"$(nproc)" BUILD="$build-fuzz" SAN=address DEBUG=1 MARCH= MPI=0 "$programs/fuzz_options" \
        "$programs/fuzz_bin" || exit 1
fi

export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=1:allocator_may_return_null=1}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-halt_on_error=1:print_stacktrace=1}
export UCX_VFS_ENABLE=n # without it, UCX 1.18 opens a socket in a thread of its own while the first try counts descriptors
TMPDIR=$(mktemp -d) && export TMPDIR && trap 'rm -rf "$TMPDIR"' EXIT # a crash leaves its files there
log=$TMPDIR/log
passed=0 failed=0
run() {
    tests/tools/limit.sh 400 "$programs/$1" "$2" "$seed" >"$log" 2>&1
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
