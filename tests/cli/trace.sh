#!/bin/bash
# trace.sh -- what --profile DIR writes as traces is whole and fits together; build/fsdp_trace says of it what the profile
# says, and names what is wrong with others.
#
#   tests/cli/trace.sh [BUILD]        default build
#
# Prints PASS and FAIL lines and a last line with their numbers.
# shellcheck disable=SC2086
set -u
cd "$(dirname "$0")/../.." || exit 2
. tests/cli/lib.sh
cli_namespace "$PWD/tests/cli/trace.sh" "$@"
cli_begin "${1:-build}"
dir=$work/new/profile
run='--n-layer 2 --d-model 32 --n-head 2 --seq-len 32 --batch-size 2 --synthetic 5000'

# trace ARGUMENT... -- sets rc, $work/out, $work/err
trace() {
    timed "$BUILD/fsdp_trace" "$@"
}

# The steps 1 to N of every rank, in order, as the tool prints them.
check_table() {
    local ranks=$1 steps=$2
    [ "$(awk '$1 ~ /^[0-9]+$/ { print $1, $2 }' "$work/out" | tr '\n' ' ')" = \
        "$(for ((s = 1; s <= steps; s++)); do for ((r = 0; r < ranks; r++)); do echo -n "$s $r "; done; done)" ] ||
        complain "steps and ranks: $(awk '{ print $1, $2 }' "$work/out" | tr '\n' ' ')"
    awk '$1 ~ /^[0-9]+$/ && !($3 > $4 && $4 > 0 && $5 >= 0 && $6 >= 0 && $4 + $6 < $3 + 0.01)' "$work/out" | grep -q . &&
        complain "a step does not add up: $(cat "$work/out")"
}

# Exposed communication of a rank: the profile's total over its three steps is that of the trace.
check_exposed() {
    local rank=$1
    awk -F, -v rank="$rank" '
        FILENAME ~ /csv$/ { if ($1 == "total" && $2 == "exposed") of_profile = 1e3 * $4; next }
        { split($0, f, " ") }
        f[1] ~ /^[0-9]+$/ && f[2] == rank { of_trace += f[6] }
        END { d = of_trace - of_profile; exit !(d * d < 1e-4 && (of_trace > 0)) }' \
        "$dir/profile-rank-$rank.csv" "$work/out" || complain "rank $rank: exposed in trace and profile differ"
}

# traced W NAME OPTION... -- train and look at the traces
traced() {
    local ranks=$1 rank
    shift
    expect_good "$ranks" "$1" $run --steps 4 --profile "$dir" "${@:2}"
    trace "$dir"
    [ "$rc" = 0 ] || complain "fsdp_trace: exit status $rc: $(cat "$work/err")"
    check_table "$ranks" 3
    for ((rank = 0; rank < ranks; rank++)); do
        [ "$ranks" = 1 ] || check_exposed "$rank"
    done
    verdict
}

# refused NAME PART COMMAND... -- the tool ends with 1, one message that holds PART, and a hint
refused() {
    name=$1
    local part=$2
    shift 2
    trace "$@"
    [ "$rc" = 1 ] || complain "exit status $rc, expected 1"
    grep -qF -- "$part" "$work/err" || complain "no '$part'"
    grep -q '^HINT: ' "$work/err" || complain 'no hint'
    verdict
}

traced 1 'one device' --parallel single
rm -rf "$dir"
traced 3 'FSDP'
traced 2 'FSDP, where three ranks were before' --sharding full
export FSDP_ASYNC_COMPUTE=1
traced 2 'FSDP, computing on a worker'
unset FSDP_ASYNC_COMPUTE
traced 2 'DDP' --parallel ddp
traced 2 'accumulating, canonical' --grad-accum 2 --reduction canonical

name='more steps than are kept'
expect_good 2 "$name" $run --steps 6 --profile "$dir"
trace "$dir"
check_table 2 3
verdict

name='two hosts: clocks are compared'
if no_mpi "$name"; then
    n_skipped=$((n_skipped + 1))
else
    MPIR_CVAR_NUM_CLIQUES=2 MPIR_CVAR_CLIQUES_BY_BLOCK=1 timed $LAUNCHER -n 4 "$trainer" $run --steps 2 --profile "$work/new/hosts"
    [ "$rc" = 0 ] || complain "exit status $rc"
    trace "$work/new/hosts"
    [ "$rc" = 0 ] || complain "fsdp_trace: exit status $rc: $(cat "$work/err")"
    check_table 4 1
    grep -q '"clock_offset_us":0.000,"clock_bound_us":0.000' "$work/new/hosts/trace-rank-0.json" || complain 'offset of rank 0'
    grep -q '"clock_bound_us":0.000' "$work/new/hosts/trace-rank-3.json" && complain 'the clock of rank 3 was not compared'
    verdict
fi

name='pictures'
trace "$dir" --timeline --step 2 --svg "$work/new/step.svg"
[ "$rc" = 0 ] || complain "exit status $rc"
grep -q '^step 2$' "$work/out" && grep -q '^ *1 compute |' "$work/out" || complain "no timeline: $(cat "$work/out")"
grep -q '>Step 2 on 2 ranks' "$work/new/step.svg" && tail -1 "$work/new/step.svg" | grep -q '^</svg>$' || complain 'no svg'
# On a busy machine a step is mostly waiting, and compute too short to be seen.
trace "$dir" --timeline --step 2 --link-gbit 100
grep -q '^ *1 compute |.*[fb]' "$work/out" || complain "no compute in the timeline: $(cat "$work/out")"
trace --merge="$work/new/all.json" "$dir"
[ "$rc" = 0 ] || complain "merge: exit status $rc"
[ "$(grep -c '"ph":"X"' "$work/new/all.json")" = "$(cat "$dir"/trace-rank-[01].json | grep -c '"ph":"X"')" ] ||
    complain 'the merged trace has other slices'
[ "$(grep -o '"ph":"s","id":[0-9]*' "$work/new/all.json" | sort | uniq -d)" = '' ] || complain 'arrows share an id'
verdict

name='a step that is not there'
refused "$name" 'got no step 9' "$dir" --step 9 --timeline
refused 'no directory given' 'got no directory'
refused 'two directories' 'expected an option' "$dir" "$dir"
refused 'no such directory' "$work/nowhere/trace-rank-0.json" "$work/nowhere"
refused 'an option that there is not' '--steps' "$dir" --steps 2
refused 'a picture that cannot be written' "$work/nowhere/x.svg" "$dir" --svg "$work/nowhere/x.svg"

cp -r "$dir" "$work/new/broken"
mv "$work/new/broken/trace-rank-1.json" "$work/keep/"
refused 'a rank is missing' 'broken/trace-rank-1.json' "$work/new/broken"
cp "$dir/trace-rank-0.json" "$work/new/broken/trace-rank-1.json"
refused 'a rank is there twice' 'got the trace of rank 0 of 2, expected rank 1 of 2' "$work/new/broken"
head -c 3000 "$work/keep/trace-rank-1.json" >"$work/new/broken/trace-rank-1.json"
refused 'broken JSON' 'broken/trace-rank-1.json: it is no JSON' "$work/new/broken"
# a second late: what a rank ends before another begins it
sed 's/"ts":\([0-9]*\)\([0-9]\{6\}\)\./"ts":\19\2./g; s/"issued":\([0-9]*\)\([0-9]\{6\}\)\./"issued":\19\2./g' \
    "$work/keep/trace-rank-1.json" >"$work/new/broken/trace-rank-1.json"
refused 'a clock that is wrong' 'before rank 1 begins it' "$work/new/broken"
name='help'
trace --help
[ "$rc" = 0 ] && grep -q -- '--timeline' "$work/out" || complain "exit status $rc: $(cat "$work/out")"
verdict

# A directory that cannot be written is named before training.
echo text >"$work/new/file"
launch 2 $run --steps 4 --profile "$work/new/file"
name='--profile on a file'
[ "$rc" != 0 ] && grep -q -- '--profile' "$work/err" || complain "exit status $rc"
grep -q '^step' "$work/out" && complain 'it trained'
verdict
cli_end
