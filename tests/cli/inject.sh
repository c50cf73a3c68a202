#!/bin/bash
# inject.sh -- a saving run and the one that goes on from it, with a fault at each system call that touches their files,
# at each allocation, and a loss of power after each of these calls.
#
#   tests/cli/inject.sh [BUILD] [full]      default build; full: every point, not a sample
#   CASES=REGEX LIMIT_S=N ONLY='N ...' SEED=N         these cases, these calls, the sample of that seed
#
# A run that survives has the same losses, weights and checkpoint as one without the fault. One that fails says why,
# leaves no process, and the same command again ends with the same bits, from the newest checkpoint that had been
# saved. Whatever files there are meanwhile, each is whole. Two halves of the points run at the same time, in
# namespaces of their own.
# shellcheck disable=SC2016,SC2086,SC2154,SC2206 # $options are lists of words
set -u
cd "$(dirname "$0")/../.." || exit 2
. tests/cli/lib.sh
build=${1:-build} tier=${2:-quick} part=${3:-}
SEED=${SEED:-$RANDOM}
export SEED OMP_NUM_THREADS=1

# sum_of REGEX -- of the numbers at the beginning of the lines that match, in both halves
sum_of() {
    cat "$halves"/*.counts | awk -v what="$1" '$2 ~ what { n += $1 } END { print n + 0 }'
}

if [ -z "$part" ]; then
    if grep -qaE '__(asan|tsan)_init' "$build/fsdp_train"; then
        echo 'SKIP inject: a sanitizer traces the process, and has an allocator, of its own'
        exit 77
    fi
    halves=$(mktemp -d) && touch "$halves/0.counts" && trap 'kill $jobs 2>/dev/null; wait; rm -rf "$halves"' EXIT
    jobs='' status=0
    for part in 0 1; do
        COUNTS=$halves/$part.counts tests/cli/inject.sh "$build" "$tier" "$part" >"$halves/$part.out" 2>&1 &
        jobs="$jobs $!"
    done
    for job in $jobs; do
        wait "$job" || status=1
    done
    cat "$halves"/*.out | grep -vE '^[0-9]+ passed,'
    echo "seed $SEED: $(sum_of call) system calls failed, $(sum_of kill) killed at, $(sum_of allocation) allocations," \
        "$(sum_of cut) power cuts: $(sum_of lost) lost, $(sum_of wrong) wrong, $(sum_of hang) hangs"
    exit $status
fi

cli_namespace "$PWD/tests/cli/inject.sh" "$@"
cli_begin "$build"
limit_s=${LIMIT_S:-100} root=$work/new/run log=$work/calls tools=$build/tests/cli
model='--n-layer 1 --d-model 16 --n-head 2 --seq-len 16 --synthetic 5000 --ops portable --reduction canonical'
run="$model --batch-size 0 --global-batch 12 --steps 4 --seed 3"
saving="$run --save $root/save --save-every 2 --keep 1 --loss-csv $root/export/loss.csv --export $root/export --resume auto"
weights='export/model.safetensors' data_bytes=$((3 * 4 * 11504)) # of a checkpoint, behind its header

# Whether the case $name is to run. Then its choices depend on SEED and nothing before it.
wanted() {
    chosen && RANDOM=$(((SEED + $(echo "$name" | cksum | cut -d' ' -f1)) % 32768))
}

count() {
    echo "$1 $2" >>"${COUNTS:-/dev/null}"
}

# ---- what is there before, and what a run without faults leaves ----------------------------------------------------

# recorded RANKS OPTION... -- a run without a fault; its calls are added to $work/record
recorded() {
    local launcher=()
    [ "$1" = 1 ] || launcher=($starts -n "$1")
    timed $record "${launcher[@]}" "$trainer" "${@:2}"
    [ "$rc" = 0 ] || complain "exit status $rc"
    [ -z "$record" ] || until_true 100 '[ "$(grep -c "^end" "$work/record")" = '$((n_recorded += 1))' ]'
}

name='runs without faults' n_recorded=0
record="$tools/file_calls $work/record $root - record 0"
timed "$tools/file_calls" "$log" "$root" - record 0 true
[ "$rc" != 77 ] || { record='' && skip 'system calls and power' "$(cat "$work/err")"; }
mkdir "$root" "$work/whole"
recorded 1 ${run/--seed 3/--seed 4} --export "$root/export"
cp -r "$root" "$work/first"
recorded 1 ${saving/--export*export/} --stop-after 2
cp -r "$root" "$work/rest"
for by in single fsdp; do # which write the same values in another order
    launch 1 $run --parallel $by --save "$work/whole/save-$by" --loss-csv "$work/whole.csv" --export "$work/whole/export"
    [ "$rc" = 0 ] || complain "exit status $rc"
done
[ -z "$bad" ] || { verdict && cli_end; }

# lost KIND TEXT -- KIND: lost, wrong, hang
lost() {
    count 1 "$1"
    complain "$point: $2"
}

# The values in the last checkpoint below $1.
values() {
    tail -c $data_bytes "$1/step-4/rank-00000.safetensors" | sha256sum
}

# A run has come to its end: the same bits.
check_end() {
    [ "$(losses "$root/export/loss.csv")" = "$(losses "$work/whole.csv")" ] || lost wrong 'other losses'
    cmp -s "$root/$weights" "$work/whole/$weights" || lost wrong 'other weights'
    [ "$(cat "$root/save/latest")" = step-4 ] || lost lost "the latest checkpoint is $(cat "$root/save/latest")"
    [ -e "$root/save/step-4/rank-00001.safetensors" ] || [[ "$(values "$work/whole/save-single") $(values "$work/whole/save-fsdp")" = *$(values "$root/save")* ]] ||
        lost wrong 'another checkpoint'
}

# What there is between a fault and the next run: old or new, and whole.
check_between() {
    local file rows
    [ ! -e "$root/export/loss.csv" ] || {
        rows=$(losses "$root/export/loss.csv")
        [ "$rows" = "$(losses "$work/whole.csv" | head -n "$(echo "$rows" | wc -l)")" ] || lost wrong 'a loss file is not whole'
    }
    for file in model.safetensors config.json; do
        cmp -s "$root/export/$file" "$work/first/export/$file" || cmp -s "$root/export/$file" "$work/whole/export/$file" ||
            lost wrong "$file is neither old nor new"
    done
}

# The same command again, on $1 ranks. The step that the run before had saved when it said more: $2.
go_on() {
    launch "$1" $saving
    [ "$rc" = 0 ] || lost lost "on $1 ranks --resume auto: exit status $rc"
    step=$(sed -n 's/^resumed at step //p' "$work/out")
    [ "${step:-0}" -ge "$2" ] || lost lost "resumed at step ${step:-0}, but step $2 had been saved"
    [ "$rc" != 0 ] || check_end
}

# judge W -- the run of W ranks that has just ended, with a fault at $point
judge() {
    local said
    [ "$rc" != 124 ] && [ "$rc" != 137 ] || [ "$took_ms" -lt $((limit_s * 1000)) ] || lost hang "no end after $limit_s s"
    check_left
    if [ "$rc" = 0 ]; then
        check_end
        return
    fi
    [ "$action" = kill ] || { grep -q '^HINT: ' "$work/err" && [ "$rc" -lt 128 ]; } ||
        lost wrong "exit status $rc, without words and a hint"
    check_between
    said=$(sed -n 's/^step \([0-9]*\).*/\1/p' "$work/out" | tail -1)
    [[ $parallel != *--save-async* ]] || said=$((${said:-1} - 2)) # the newest save may be in flight
    go_on $((RANDOM % 6 == 0 ? 2 + RANDOM % 2 : 1)) $(((${said:-1} - 1) / 2 * 2))
}

# ---- points --------------------------------------------------------------------------------------------------------

# points COMMAND TOTAL SAMPLE STRIDE -- COMMAND N for a sample of 1..TOTAL, or in full for every STRIDE-th N; this
# half's. COMMAND N sets injected to nothing when there was no N-th: then its turn is over
points() {
    local command=$1 total=$2 sample=$3 stride=$4 n i=0 list=()
    if [ -n "${ONLY:-}" ]; then
        list=($ONLY)
    elif [ "$tier" = full ]; then
        for ((n = 1 + RANDOM % stride; n <= total + stride; n += stride)); do list+=("$n"); done
    else
        for ((n = 0; n < sample; n++)); do list+=($((1 + RANDOM % total))); done
    fi
    n_points=0
    for n in "${list[@]}"; do
        i=$((i + 1))
        [ $((i % 2)) = "$part" ] || continue
        rm -rf "$root" && cp -r "$work/$from" "$root"
        injected=''
        $command "$n"
        [ -n "$injected" ] || continue
        n_points=$((n_points + 1))
    done
}

# traced ACTION N -- $ranks ranks, the fault in rank $rank
traced() {
    local launcher=()
    [ "$ranks" = 1 ] || launcher=($starts -n "$ranks")
    rm -f "$log"
    { # this shell has a word to say about killed jobs
        timed "${launcher[@]}" "$tools/file_calls" "$log" "$scope" "$rank" "$1" "$2" "$trainer" $parallel $saving
    } 2>/dev/null
    [ "$rc" = 77 ] || until_true 100 'grep -qs "^end" "$log"'
    injected=$(sed -n 's/^injected //p' "$log")
    total=$(sed -n 's/^end //p' "$log")
}

at_call() {
    traced "$action" "$1"
    point="$action at call $1 (${injected/$root/})"
    judge "$ranks"
}

# calls FROM OPTIONS SCOPE RANK ACTION SAMPLE STRIDE -- one case
calls() {
    from=$1 parallel=$2 scope=$3 rank=$4 action=$5 ranks=1
    [ "$rank" = - ] || ranks=2
    local where=its
    [ "$scope" != / ] || where=all
    name="${action/kill/killed} at the system calls of the $from run, $where files,${parallel#--parallel} (W=$ranks)"
    [ "$rank" = - ] || name="$name, rank $rank"
    wanted || return
    rm -rf "$root" && cp -r "$work/$from" "$root"
    traced fail 1000000
    [ "$rc" = 0 ] || complain "without a fault: exit status $rc"
    points at_call "$total" "$6" "$7"
    count "$n_points" "$([ "$action" = kill ] && echo kill || echo call)"
    name="$name: $n_points of $total"
    verdict
}

at_allocation() {
    local launcher=()
    [ "$ranks" = 1 ] || launcher=($starts -n "$ranks")
    rm -f "$log"
    timed "${launcher[@]}" env LD_PRELOAD="$work/bin/alloc_fail.so" ALLOC_FAIL="$1$more" ALLOC_RANK="$rank" ALLOC_LOG="$log" \
        "$trainer" $parallel $saving
    injected=$(sed -n 's/^injected //p' "$log")
    total=$(sed -n 's/^end //p' "$log")
    point="allocation $1$more (at $injected)"
    [ "$1" = 1000000 ] || judge "$ranks"
}

# allocations FROM OPTIONS RANK MORE SAMPLE STRIDE -- one case; MORE "+": all after it fail too
allocations() {
    from=$1 parallel=$2 rank=$3 more=$4 ranks=1 action=allocation
    [ -z "$rank" ] || ranks=2
    name="allocations of the $from run,${parallel#--parallel} (W=$ranks)${rank:+, rank $rank}${more:+, and all that follow}"
    wanted || return
    rm -rf "$root" && cp -r "$work/$from" "$root"
    at_allocation 1000000
    [ "$rc" = 0 ] || complain "without a fault: exit status $rc"
    points at_allocation "$total" "$5" "$6"
    count "$n_points" allocation
    name="$name: $n_points of $total"
    verdict
}

# ---- power ---------------------------------------------------------------------------------------------------------

# power W VARIANTS SAMPLE [OPTION] -- the three recorded runs, the last on W ranks and with OPTION; SAMPLE of the states are
# gone on from
power() {
    local i variant call first
    action=kill name="power cuts in three runs, the last on $1 ranks${4:+, $4}"
    wanted || return
    rm -rf "$root" && cp -r "$work/rest" "$root"
    recorded "$1" $saving ${4:-}
    result=$("$tools/power_cut" check "$work/record" "$root" "$work/new/cut" "$SEED" "$2" 2>"$work/err") || complain "$result"
    count "$(echo "$result" | sed -n 's/^\([0-9]*\) power cuts.*/\1/p')" cut
    count "$(echo "$result" | sed -n 's/.* \([0-9]*\) wrong$/\1/p')" lost
    first=$(grep -n -m1 '^end' "$work/record" | cut -d: -f1) # the end of the run that only exported
    for ((i = 0; i < $3; i++)); do
        variant=$((RANDOM % (5 + $2))) call=$((first + RANDOM % ($(wc -l <"$work/record") - first + 1)))
        point="after call $call, variant $variant"
        rm -rf "$root"
        "$tools/power_cut" write "$work/record" "$root" "$root" "$SEED" "$variant" "$call"
        check_between
        go_on $((1 + RANDOM % 3)) 0
    done
    name="$name: $(echo "$result" | tail -1), $3 gone on from"
    verdict
}

# ---- cases ---------------------------------------------------------------------------------------------------------

single='--parallel single' fsdp='--parallel fsdp'
if [ -n "$record" ]; then
    for from_now in first rest; do
        calls $from_now "$single" "$root" - fail 16 1
        calls $from_now "$single" "$root" - kill 8 1
        calls $from_now "$single" "$root" - fail+ 6 3
        calls $from_now "$fsdp" "$root" - nospace+ 4 3
        calls $from_now "$fsdp" "$root" - short 4 5
        calls $from_now "$single" "$root" - eintr 4 5
    done
    calls rest "$single" / - fail 8 1
    for rank_now in 0 1; do
        calls rest "$fsdp" "$root" $rank_now fail 4 2
        calls rest "$fsdp" "$root" $rank_now kill 2 2
    done
    for by in "$single" "$fsdp"; do
        calls rest "$by --save-async" "$root" - fail 6 4
        calls rest "$by --save-async" "$root" - kill 4 4
    done
    calls rest "$single --save-async" "$root" - fail+ 2 4
    calls rest "$single --save-async" "$root" - nospace+ 2 4
    calls rest "$fsdp --save-async" "$root" - short 2 5
    calls rest "$single --save-async" "$root" - eintr 2 5
    calls rest "$single --save-async" / - fail 2 4
    for rank_now in 0 1; do
        calls rest "$fsdp --save-async" "$root" $rank_now fail 2 4
        calls rest "$fsdp --save-async" "$root" $rank_now kill 2 4
    done
    if [ "$tier" = full ]; then
        power $((part + 1)) 40 40
        power $((part + 1)) 40 40 --save-async
    else # SEED says who writes in a thread
        power $((part + 1)) 2 2 "$([ $((SEED % 2)) = "$part" ] || echo --save-async)"
    fi
fi
cp "$tools/alloc_fail.so" "$work/bin/"
for from_now in first rest; do
    allocations $from_now "$single" '' '' 12 2
    allocations $from_now "$fsdp" '' + 4 9
done
for rank_now in 0 1; do
    allocations rest "$fsdp" $rank_now '' 4 9
done
allocations rest "$single --save-async" '' '' 4 4
cli_end
