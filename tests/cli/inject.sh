#!/bin/bash
# inject.sh -- runs a job that saves and a job that resumes it, with a fault at each system call that touches their files, at
# each allocation, and a power cut after each of these calls.
#
#   tests/cli/inject.sh [BUILD] [full]      default build; full: every point, not a sample
#   CASES=REGEX LIMIT_S=N ONLY='N ...' SEED=N         choose cases, a time limit, calls, the sample
#
# A run that survives has the losses, weights and checkpoint of a run without the fault. A run that fails says why and leaves
# no process. The same command then resumes from the newest checkpoint that had been saved, and ends with the same bits. In
# between, every file is whole. Two halves of the points run at the same time, each in its own namespaces.
. "$(dirname "$0")/lib.sh"
build=${1:-build} tier=${2:-quick} part=${3:-}
export SEED=${SEED:-$RANDOM}

# sum_of REGEX -- adds up the numbers at the beginning of the matching lines of both halves
sum_of() {
    cat "$halves"/*.counts | awk -v what="$1" '$2 ~ what { n += $1 } END { print n + 0 }'
}

if [ -z "$part" ]; then
    if grep -qaE '__(asan|tsan)_init' "$build/fsdp_train"; then
        echo 'SKIP inject: a sanitizer traces the process, and has an allocator, of its own'
        exit 77
    fi
    halves=$(mktemp -d) && trap 'kill $jobs 2>/dev/null; wait; rm -rf "$halves"' EXIT
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

cli_start "$@"
root=$work/new/run log=$work/calls tools=$build/tests/cli
model='--n-layer 1 --d-model 16 --n-head 2 --seq-len 16 --synthetic 5000 --ops portable --reduction canonical'
run="$model --batch-size 0 --global-batch 12 --steps 4 --seed 3"
saving="$run --save $root/save --save-every 2 --keep 1 --loss-csv $root/export/loss.csv --export $root/export --resume auto"
weights='export/model.safetensors' data_bytes=$((3 * 4 * 11504)) # of a checkpoint, after its header

# wanted NAME FROM -- whether the case is to run; prepares the files of FROM. The case's choices then depend only on SEED
wanted() {
    case_is "$1" || return
    rm -rf "$root" && cp -r "$work/$2" "$root"
    RANDOM=$(((SEED + $(echo "$name" | cksum | cut -d' ' -f1)) % 32768))
}

count() {
    echo "$1 $2" >>"${COUNTS:-/dev/null}"
}

# ---- files from before, and runs without faults --------------------------------------------------------------------

# recorded RANKS OPTION... -- a run without a fault; its calls are added to $work/record
recorded() {
    local launcher=()
    [ "$1" = 1 ] || launcher=($starts -n "$1")
    ends_with 0 $record "${launcher[@]}" "$trainer" "${@:2}"
    [ -z "$record" ] || until_true '[ "$(grep -c "^end" "$work/record")" = '$((n_recorded += 1))' ]'
}

case_is 'runs without faults'
n_recorded=0
record="$tools/file_calls $work/record $root - record 0"
timed "$tools/file_calls" "$log" "$root" - record 0 true
[ "$rc" != 77 ] || { record='' && skip 'system calls and power' "$(cat "$work/err")"; }
mkdir "$root" "$work/whole"
recorded 1 ${run/--seed 3/--seed 4} --export "$root/export"
cp -r "$root" "$work/first"
recorded 1 ${saving/--export*export/} --stop-after 2
cp -r "$root" "$work/rest"
for by in single fsdp; do # the two write the same values in different orders
    good 1 $run --parallel $by --save "$work/whole/save-$by" --loss-csv "$work/whole.csv" --export "$work/whole/export"
done
[ -z "$bad" ] || cli_end

# lost KIND TEXT -- KIND: lost, wrong, hang
lost() {
    count 1 "$1"
    complain "$point: $2"
}

# A hash of the values in the last checkpoint below $1.
values() {
    tail -c $data_bytes "$1/step-4/rank-00000.safetensors" | sha256sum
}

# A run that has finished: it has the same bits.
check_end() {
    [ "$(losses "$root/export/loss.csv")" = "$(losses "$work/whole.csv")" ] || lost wrong 'other losses'
    cmp -s "$root/$weights" "$work/whole/$weights" || lost wrong 'other weights'
    [ "$(cat "$root/save/latest")" = step-4 ] || lost lost "the latest checkpoint is $(cat "$root/save/latest")"
    [ -e "$root/save/step-4/rank-00001.safetensors" ] ||
        [[ "$(values "$work/whole/save-single") $(values "$work/whole/save-fsdp")" = *$(values "$root/save")* ]] ||
        lost wrong 'another checkpoint'
}

# Between a fault and the next run, each file is old or new, and whole.
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

# Runs the same command again on $1 ranks. It must resume at step $2 or later, which the failed run had saved.
go_on() {
    launch "$1" $saving
    [ "$rc" = 0 ] || lost lost "on $1 ranks --resume auto: exit status $rc"
    step=$(sed -n 's/^resumed at step //p' "$work/out")
    [ "${step:-0}" -ge "$2" ] || lost lost "resumed at step ${step:-0}, but step $2 had been saved"
    [ "$rc" != 0 ] || check_end
}

# judge W -- judges the run of W ranks that has just ended, after a fault at $point
judge() {
    local said
    [ "$rc" != 124 ] || [ "$took_ms" -lt $((limit_s * 1000)) ] || lost hang "no end after $limit_s s"
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

# points TOTAL SAMPLE STRIDE -- strikes a sample of 1..TOTAL, or in full every STRIDE-th point; only this half's points. Points that
# a run does not reach do not count
points() {
    local total=$1 sample=$2 stride=$3 n i=0 list=()
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
        strike "$n"
        judge "$ranks"
        [ -z "$injected" ] || n_points=$((n_points + 1))
    done
}

# strike N -- runs with $action at point N of rank $rank, or of all ranks
strike() {
    local command=("$trainer" $parallel $saving)
    case $action in
    alloc*) command=(env "LD_PRELOAD=$work/bin/alloc_fail.so" "ALLOC_FAIL=$1${action#alloc}" "ALLOC_RANK=${rank#-}" \
        "ALLOC_LOG=$log" "${command[@]}") ;;
    *) command=("$tools/file_calls" "$log" "$scope" "$rank" "$action" "$1" "${command[@]}") ;;
    esac
    [ "$ranks" = 1 ] || command=($starts -n "$ranks" "${command[@]}")
    rm -f "$log"
    { # the shell prints a message about killed jobs
        timed "${command[@]}"
    } 2>/dev/null
    [ "$rc" = 77 ] || [[ $action = alloc* ]] || until_true 'grep -qs "^end" "$log"' # the tracer may be late
    injected=$(sed -n 's/^injected //p' "$log") total=$(sed -n 's/^end //p' "$log")
    point="$action at $1 (${injected/$root/})"
}

# fault FROM OPTIONS FILES RANK ACTION SAMPLE STRIDE -- a case: the run starts from the files of FROM. The fault strikes calls on
# its own files, or all calls
fault() {
    local kind=call title of=''
    from=$1 parallel="--parallel ${2/,/ }" scope=$root rank=$4 action=$5 ranks=1
    [ "$3" = its ] || scope=/
    [ "$rank" = - ] || ranks=2 of=", rank $rank"
    title="${action/kill/killed} at the system calls of the $from run, $3 files, ${2/,/ } (W=$ranks)$of"
    case $action in
    kill) kind=kill ;;
    alloc) kind=allocation title="allocations of the $from run, ${2/,/ } (W=$ranks)$of" ;;
    alloc+) kind=allocation title="allocations of the $from run, ${2/,/ } (W=$ranks)$of, and all that follow" ;;
    esac
    wanted "$title" "$from" || return
    strike 1000000 # without a fault
    expect_status 0
    points "$total" "$6" "$7"
    count "$n_points" $kind
    name="$name: $n_points of $total"
}

# ---- power ---------------------------------------------------------------------------------------------------------

# power W VARIANTS SAMPLE [OPTION] -- the three recorded runs, the last on W ranks and with OPTION; resumes from SAMPLE of the
# states
power() {
    local i variant call first
    action=kill
    wanted "power cuts in three runs, the last on $1 ranks${4:+, $4}" rest || return
    for i in '' .data; do # the third run follows the first two, not another third
        [ -e "$work/rest-record$i" ] || cp "$work/record$i" "$work/rest-record$i"
        cp "$work/rest-record$i" "$work/record$i"
    done
    n_recorded=2
    recorded "$1" $saving ${4:-}
    result=$("$tools/power_cut" check "$work/record" "$root" "$work/new/cut" "$SEED" "$2" 2>"$work/err") || complain "$result"
    count "$(echo "$result" | sed -n 's/^\([0-9]*\) power cuts.*/\1/p')" cut
    count "$(echo "$result" | sed -n 's/.* \([0-9]*\) wrong$/\1/p')" lost
    first=$(grep -n -m1 '^end' "$work/record" | cut -d: -f1) # the end of the run that only exports
    for ((i = 0; i < $3; i++)); do
        variant=$((RANDOM % (5 + $2))) call=$((first + RANDOM % ($(wc -l <"$work/record") - first + 1)))
        point="after call $call, variant $variant"
        rm -rf "$root"
        "$tools/power_cut" write "$work/record" "$root" "$root" "$SEED" "$variant" "$call"
        check_between
        go_on $((1 + RANDOM % 3)) 0
    done
    name="$name: $(echo "$result" | tail -1), $3 gone on from"
}

# ---- cases ---------------------------------------------------------------------------------------------------------

cp "$tools/alloc_fail.so" "$work/bin/"
while read -r runs options files ranks_struck action_now sample stride; do
    [ -n "$record" ] || [[ $action_now = alloc* ]] || continue
    for from_now in ${runs//,/ }; do
        for rank_now in ${ranks_struck//,/ }; do
            fault "$from_now" "$options" "$files" "$rank_now" "$action_now" "$sample" "$stride" </dev/null
        done
    done
done <<'TABLE'
first,rest single              its -   fail     16 1
first,rest single              its -   kill      8 1
first,rest single              its -   fail+     6 3
first,rest fsdp                its -   nospace+  4 3
first,rest fsdp                its -   short     4 5
first,rest single              its -   eintr     4 5
rest       single              all -   fail      8 1
rest       fsdp                its 0,1 fail      4 2
rest       fsdp                its 0,1 kill      2 2
rest       single,--save-async its -   fail      6 4
rest       fsdp,--save-async   its -   fail      6 4
rest       single,--save-async its -   kill      4 4
rest       fsdp,--save-async   its -   kill      4 4
rest       single,--save-async its -   fail+     2 4
rest       single,--save-async its -   nospace+  2 4
rest       fsdp,--save-async   its -   short     2 5
rest       single,--save-async its -   eintr     2 5
rest       single,--save-async all -   fail      2 4
rest       fsdp,--save-async   its 0,1 fail      2 4
rest       fsdp,--save-async   its 0,1 kill      2 4
first,rest single              -   -   alloc    12 2
first,rest fsdp                -   -   alloc+    4 9
rest       fsdp                -   0,1 alloc     4 9
rest       single,--save-async -   -   alloc     4 4
TABLE
if [ -z "$record" ]; then
    :
elif [ "$tier" = full ]; then
    power $((part + 1)) 40 40
    power $((part + 1)) 40 40 --save-async
else # SEED chooses which half saves in a thread
    power $((part + 1)) 2 2 "$([ $((SEED % 2)) = "$part" ] || echo --save-async)"
fi
cli_end
