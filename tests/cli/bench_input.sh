#!/bin/bash
# bench_input.sh -- wrong options of the benchmark's programs and scripts are refused before anything is measured or written.
# The message says what was given and what was expected. And a benchmark that is stopped leaves the page of what it has measured.
. "$(dirname "$0")/lib.sh"
cli_start "$@"
BUILD=$(realpath "$build")
bench=$BUILD/tests/bench

# refused NAME STATUS REGEX HINT COMMAND... -- exits with STATUS and prints one line and one hint, but no table
refused() {
    case_is "$1"
    ends_with "$2" "${@:5}"
    [ "$(grep -cE -- "$3" "$work/err")" = 1 ] || complain "no line, or more than one, matches '$3'"
    [ "$(grep -c 'HINT: ' "$work/err")" = 1 ] || complain 'not one hint'
    says "HINT: .*$4"
    [ ! -e "$work/csv" ] || complain 'wrote a table'
    rm -f "$work/csv"
}

kernels() {
    refused "kernels: $1" 2 "$2" "$3" "$bench/kernels" --csv "$work/csv" "${@:4}"
}
kernels 'unknown table' "--ops: got 'foo', expected one of fast\|portable" '--ops=fast' --ops foo
kernels 'no rows' "--rows: got '0', expected a whole number" '--rows=256' --rows 0
kernels 'rows that are no sequences' '--rows: got 100, expected a multiple of --seq-len 64' '--seq-len' --rows 100
kernels 'unknown option' 'unknown option --bogus' '--help' --bogus
refused 'kernels: a table that cannot be written' 1 'cannot write /nowhere/csv' '--csv' "$bench/kernels" --csv /nowhere/csv

# On one rank, and on two ranks of which one prints.
collectives() {
    refused "collectives: $1" 2 "$2" "$3" "$bench/collectives" --csv "$work/csv" "${@:4}"
    refused "collectives: $1 (W=2)" 2 "$2" "$3" $MPI_LAUNCHER -n 2 "$bench/collectives" --csv "$work/csv" "${@:4}"
}
collectives 'unknown transport' "--backend: got 'foo', expected one of auto\|mpi\|shm" '--backend=auto' --backend foo
collectives 'unknown operation' "--only: got 'foo', expected one of all-gather\|" '--only=all' --only foo
collectives 'fewer bytes than none' "--max-bytes: got '-5', expected a whole number from 256" 'default' --max-bytes -5
collectives 'sizes the wrong way round' '--max-bytes: got 512, expected at least --min-bytes 1024' '--min-bytes' --max-bytes 512

if [ -z "${NO_MPI:-}" ]; then
    # the launcher prints a line too
    refused 'mpich_peer: ranks of fsdp_run' 2 "mpich_peer: got FSDP_RUN='0 2 " 'start it with mpiexec' \
        "$BUILD/fsdp_run" -n 2 "$bench/mpich_peer" --csv "$work/csv"
    refused 'mpich_peer: unknown operation' 2 "--only: got 'foo'" '--only=all' "$bench/mpich_peer" --csv "$work/csv" --only foo
else
    skip mpich_peer "$NO_MPI"
fi

# helped NAME COMMAND... -- prints its options once, with status 0
helped() {
    case_is "$1: help (${*:2})"
    ends_with 0 "${@:2}" --help
    [ ! -s "$work/err" ] && [ "$(grep -c "^Usage: $1" "$work/out")" = 1 ] || complain 'not printed once'
}
cd "$BUILD" || exit 2
helped kernels tests/bench/kernels
helped collectives tests/bench/collectives
helped collectives ./fsdp_run --no-prefix -n 3 tests/bench/collectives
[ -n "${NO_MPI:-}" ] || helped mpich_peer $MPI_LAUNCHER -n 3 tests/bench/mpich_peer
cd - >/dev/null || exit 2

# A separate build folder, so that the results of a real run stay.
mkdir "$work/b"
refused 'make bench: unknown case' 1 "BENCH_CASES: got 'nope', expected some of: single .* fsdp-4 .*llmc" 'leave it out' \
    env BENCH_CASES='single nope' tests/bench/train.sh "$work/b"
refused 'make bench: unknown part' 1 "BENCH=nope is no part" 'train collectives' env BENCH=nope tests/bench/run.sh "$work/b"

# A trainer that keeps the page as it is when the second case begins. Both cases have parts of their step and no peer.
mkdir -p "$work/b/bench"
printf 'key,value\nthreads,1\nfma_all_gflops,100\nbf16_all_gflops,0\n' >"$work/b/bench/roof.csv"
touch "$work/b/bench/machine.md" "$work/b/bench/roof.md"
cat >"$work/b/fsdp_train" <<END
#!/bin/sh
case "\$*" in *canonical*) [ -e $work/seen ] || cp $work/b/bench/bench.md $work/seen ;; esac
exec $BUILD/fsdp_train "\$@"
END
chmod +x "$work/b/fsdp_train"
case_is 'make bench: the page is written after every case, with the parts of a step'
ends_with 0 env -u FSDP_PYTHON BENCH_SIZE=tiny BENCH_FULL=0 BENCH_CASES='single single-canonical' tests/bench/train.sh "$work/b"
[ "$(grep -c '^| single' "$work/seen")" = 3 ] || complain 'the page of the first case does not have its three rows'
grep -q '^- not complete: single ended last' "$work/seen" || complain 'the page of the first case does not say that more follows'
[ "$(grep -c '^| single' "$work/b/bench/bench.md")" = 6 ] || complain 'the last page does not have both cases'
awk -F ' *[|] *' '$2 == "single" && NF == 12 { n++; for (i = 6; i <= 11; i++) { sum += $i; if ($i == "-") exit 1 }; if (sum <= 0) exit 1 } END { exit !n }' "$work/seen" ||
    complain 'a part of the step is missing'
cli_end
