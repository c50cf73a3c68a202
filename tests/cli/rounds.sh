#!/bin/bash
# rounds.sh -- kills a training run again and again and resumes it on other ranks. In the end its weights and loss file equal
# an undisturbed run's, and nothing is left.
#
#   tests/cli/rounds.sh [BUILD] [full|KILLS]  default build; full: 200 kills, not 10
#   SEED=N                                    repeats an earlier run's choices; when a kill strikes also depends on the machine
. "$(dirname "$0")/lib.sh"
cli_start "$@"
kills=${2:-10}
[ "$kills" != full ] || kills=200
SEED=${SEED:-$(od -An -N2 -tu2 /dev/urandom | tr -d ' ')}
RANDOM=$SEED
echo "SEED=$SEED"

# A rate that changes with every step, so that a step which is left out or repeated shows.
model='--n-layer 1 --d-model 16 --n-head 2 --seq-len 8 --synthetic 5000 --ops portable --reduction canonical'
run="$model --batch-size 0 --global-batch 60 --steps 100000 --warmup-steps 1000"
files="--save $new/save --resume auto --loss-csv $new/loss.csv --export $new/export"

# pick WORD... -- chooses one, in $picked. Not in a subshell, which would draw the same number again and again
pick() {
    local n=$((RANDOM % $#))
    shift $n
    picked=$1
}

# Chooses how to resume: sets ranks, how (what starts them), options.
choose() {
    pick 1 2 3 4 5 && ranks=$picked
    pick fsdp_run fsdp_run mpiexec && how=$picked
    [ -z "$NO_MPI" ] || how=fsdp_run
    [ $ranks != 1 ] || { pick alone $how && how=$picked; }
    pick 1 1 2 && options="--save-every $picked"
    pick 0 1 2 3 && options="$options --keep $picked"
    pick '' '' --save-async && options="$options $picked"
    case $ranks in
    1) pick single ddp fsdp ;;
    4) pick ddp 'fsdp --sharding hybrid --fsdp-size 2' fsdp fsdp ;;
    *) pick ddp fsdp fsdp ;;
    esac
    options="$options --parallel $picked"
    [ "$picked" != fsdp ] || { pick full grad-op none && options="$options --sharding $picked"; }
    [[ $options != *fsdp* ]] || { pick block sub-block model size:500 && options="$options --wrap $picked"; }
    [[ $options != *fsdp* ]] || { pick auto none both && options="$options --prefetch $picked"; }
    [ $how != mpiexec ] || { pick auto shm mpi && options="$options --comm $picked"; }
    [ $how != alone ] || launcher=
    [ $how != fsdp_run ] || launcher="$starts -n $ranks"
    [ $how != mpiexec ] || launcher="$MPI_LAUNCHER -n $ranks"
}

begin() {
    : >"$work/out"
    $launcher "$trainer" $run $files $options "$@" >"$work/out" 2>"$work/err" </dev/null &
    job=$!
}

alive() {
    kill -0 $job 2>/dev/null && [ "$(ps -o stat= -p $job | cut -c1)" != Z ]
}

# Files that only an unfinished save leaves.
remains() {
    find "$new" -name 'step-*.tmp' -o -name 'latest.*.tmp' 2>/dev/null | sort
}

# Kills the $victim of $job; all others then end by themselves.
strike() {
    local ranks_now helpers
    ranks_now=$(trainers) helpers=$(pgrep -P $job)
    case $victim in
    rank) pick ${ranks_now:-$job} ;;
    ranks) picked=${ranks_now:-$job} ;;
    launcher) picked=$job ;;
    all) picked="$job $helpers $ranks_now" ;;
    esac
    kill -KILL $picked
    wait_for_end
    until_true '[ -z "$(cli_left)" ]'
    for pid in $helpers; do
        until_true "! kill -0 $pid || [ \"\$(ps -o ppid= -p $pid)\" -ne $job ]"
    done
} 2>/dev/null

# Removes files and System V segments that MPICH and UCX leave if they are killed between making and removing them. Ranks make
# no segments.
forget_mpich() {
    [ -n "${CLI_NAMESPACE:-}" ] && [ $how = mpiexec ] || return
    rm -f /dev/shm/mpich_shar_tmp* /dev/shm/ucx_shm_posix_*
    ipcrm --all=shm
}

# Sets $where to where the kill struck. Arguments: the saved step and the remains from before the round.
look_where() {
    local rows
    rows=$(tail -n 1 "$new/loss.csv" 2>/dev/null | cut -d, -f1)
    where=between
    [ "$(saved_step "$new/save")" -gt "$1" ] || where=before
    [[ $rows = *[!0-9]* ]] || [ "$((${rows:--1} + 1))" -le "$(saved_step "$new/save")" ] || where=during
    [ -z "$(comm -13 <(echo "$2") <(remains))" ] || where=during
}

# round EARLY OPTION... -- one kill. EARLY=1: at any time after the start, 0: after some saves
round() {
    local early=$1 saved left delay=0 more=1 resumed notes
    shift
    choose
    pick rank ranks launcher all && victim=$picked
    saved=$(saved_step "$new/save") left=$(remains)
    [ $early = 1 ] && delay=$((RANDOM % 500)) || more=$((2 + RANDOM % 5))
    begin "$@"
    said="kill $((n_before + n_during + n_between + 1)): $victim of $ranks by $how, $options"
    [ $early = 1 ] || until_true '[ $(saved_step "$new/save") -ge '$((saved + more))' ] || ! alive'
    [ $early = 1 ] || delay=$((RANDOM % 40))
    sleep "$(printf '0.%03d' $delay)"
    alive || [ $# -gt 0 ] || complain "$said: the run has ended before"
    strike
    look_where $saved "$left"
    eval "n_$where=\$((n_$where + 1))"
    forget_mpich
    check_left
    resumed=$(sed -n 's/^resumed at step //p' "$work/out")
    [ "${resumed:-$saved}" -ge "$saved" ] || complain "$said: went on at step $resumed, though step $saved had been saved"
    [ "$(saved_step "$new/save")" -ge "$saved" ] || complain "$said: the latest is step $(saved_step "$new/save"), and was step $saved"
    notes=$(grep '^note: ' "$work/err" | grep -v '^note: the checkpoint of step [0-9]* waits until')
    [ -z "$notes" ] || complain "$said: $notes"
}

case_is "$kills kills of ranks and launchers (SEED=$SEED)"
n_before=0 n_during=0 n_between=0
while [ $((n_before + n_during + n_between)) -lt $kills ] && [ -z "$bad" ]; do
    pick 1 0 0 0
    round $picked
done
said="$n_before before the first save of the run, $n_during during a save, $n_between in between; step $(saved_step "$new/save")"
echo "kills: $said"
[ -n "$bad" ] || [ "$(saved_step "$new/save")" -gt "$kills" ] || complain "only step $(saved_step "$new/save") was reached: too few saves for a test"
[ -n "$bad" ] || [ "$kills" -lt 100 ] || [ $((n_before * n_during * n_between)) -gt 0 ] || complain "not everywhere: $said"

# The end of a run may be killed as well: the last save, the loss file, the export.
case_is "kills near the end (SEED=$SEED)"
last=$(($(saved_step "$new/save") + 3))
for _ in $(seq $((1 + kills / 20))); do
    round 1 --stop-after $last
done

case_is "the bits of a run that nobody disturbed (SEED=$SEED)"
choose
timed $launcher "$trainer" $run $files $options --stop-after $last
[ "$rc" = 0 ] || complain "the last run ($how, $ranks ranks, $options): exit status $rc"
check_left
timed "$trainer" $run --parallel single --stop-after $last --loss-csv "$work/whole.csv" --export "$work/whole"
[ "$rc" = 0 ] || complain "the run that nobody disturbed: exit status $rc"
[ "$(losses "$new/loss.csv")" = "$(losses "$work/whole.csv")" ] ||
    complain "other losses: $(diff <(losses "$new/loss.csv") <(losses "$work/whole.csv") | head -3 | tr '\n' ' ')"
same_weights "$new/export" "$work/whole"
left=$(cd "$new" && find . -mindepth 1 -maxdepth 2 ! -name 'step-[0-9]*' | LC_ALL=C sort | tr '\n' ' ')
[ "$left" = './export ./export/config.json ./export/model.safetensors ./loss.csv ./save ./save/latest ./save/lock ' ] ||
    complain "there are: $left"
cli_end
