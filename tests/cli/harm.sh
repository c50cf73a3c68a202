#!/bin/bash
# harm.sh -- starts a job, strikes it at some point, checks how it ends, resumes it, and compares it with an undisturbed run.
# The rows of tests/faults.txt whose log is "harm" describe the cases; see there.
#
#   tests/cli/harm.sh [BUILD] [full]     full: also the rows of tier full, and every wrapper with every signal and launcher
#
# Outcomes:
#   goes on   the job trains on; the rows of its loss file are equal to the undisturbed run's
#   saves     the job saves and ends in time
#   ends      the job ends in time, with the row's words
# After each, a run resumed from the newest checkpoint has the same bits, and no process is left. Four rows run at a time,
# but a row whose ranks have sessions of their own runs alone.
. "$(dirname "$0")/lib.sh"
cli_start "$@"
build=$(realpath "$build") tier=${2:-quick} top=$work hold=$build/tests/cli/hold_calls.so
unset FSDP_RUN PMI_RANK PMIX_RANK OMPI_COMM_WORLD_RANK
model='--n-layer 1 --d-model 16 --n-head 2 --seq-len 16 --synthetic 5000 --ops portable'
bits='--lr 1e-3 --min-lr 1e-3 --warmup-steps 0 --reduction canonical --batch-size 0 --global-batch 12'
case_is 'a run that nobody disturbs' 1
good 1 --parallel single $model $bits --steps 1000 --loss-csv "$work/whole.csv" --export "$work/export"

# ---- a job ------------------------------------------------------------------------------------------------------

# saved STEP
saved() {
    [ "$(saved_step "$work/ck")" -ge "$1" ]
}

# begin -- starts the job in the background; $job is its launcher's id
begin() {
    local starts="$build/fsdp_run --grace $grace -n $ranks"
    [ "$by" = run ] || starts="$MPI_LAUNCHER -n $ranks"
    [ "$ranks" != 1 ] || starts=''
    launched="$starts "
    : >"$work/out"
    env --default-signal=INT,HUP ${holds:+HOLD=$holds LD_PRELOAD=$hold} $before $starts \
        sh -c 'r=${FSDP_RUN:-${PMI_RANK:-}}; r=${r%% *}; '"$rank_does" sh "$trainer" $model $bits --steps "$steps" \
        ${saves:+--save "$work/ck" --save-every "$every"} $how --loss-csv "$work/loss.csv" --export "$work/export" \
        >"$work/out" 2>"$work/err" </dev/null &
    job=$!
}

# same_rows FILE -- each row is also in the undisturbed run
same_rows() {
    losses "$1" | grep -vxFf <(losses "$top/whole.csv") >"$work/other" &&
        complain "$(wc -l <"$work/other") other losses: $(head -1 "$work/other")"
}

# whole_until STEP -- on a fast machine a job gets far; the undisturbed run is then repeated with more steps
whole_until() {
    (
        flock 9
        [ "$(wc -l <"$top/whole.csv")" -gt "$1" ] || {
            launch 1 --parallel single $model $bits --steps $(($1 + 1000)) --loss-csv "$top/longer.csv"
            mv "$top/longer.csv" "$top/whole.csv"
        }
    ) 9>"$top/lock"
}

# The newest checkpoint is of step $least or later, and two steps from it have the same bits.
usable() {
    local step last
    step=$(saved_step "$work/ck") last=$(tail -n 1 "$work/loss.csv" | cut -d, -f1)
    [ "$step" -ge "$least" ] || complain "saved at step '$step', expected $least or later"
    [ "$last" -ge $((step - 1)) ] || complain 'rows of the loss file are lost'
    cp "$work/err" "$work/err.job"
    whole_until $((last > step ? last + 1 : step + 2))
    same_rows "$work/loss.csv"
    good "$resumes" $model $bits --steps $((step + 2)) --loss-csv "$work/rest.csv" --resume "$work/ck"
    [ "$(wc -l <"$work/rest.csv")" = 3 ] || complain "resumed at step $step: $(wc -l <"$work/rest.csv") lines, expected 3"
    same_rows "$work/rest.csv"
    cp "$work/err.job" "$work/err"
}

# struck -- the job of a row, from start to end
struck() {
    local regex dead=''
    open=1
    cp -r "$top/export" "$work"
    export FSDP_TIMEOUT_S=$limit
    begin
    until_true "$from" || return
    eval "$strike"
    [ "$outcome" != 'goes on' ] || {
        trains_on 3
        ! grep -qv 'note: the checkpoint of step [0-9]* waits' "$work/err" || complain 'wrote to stderr'
        kill -TERM $(rank_pid 0)
    }
    hurt ''
    [[ $rc =~ ^($status)$ ]] || forgotten || complain "exit status $rc, expected $status"
    check_left
    while read -r regex; do
        [ -z "$regex" ] || cat "$work/out" "$work/err" | grep -qE -- "$regex" || complain "nothing like '$regex'"
    done < <(sed 's/ && /\n/g; s/\$dead/'"${dead:-}/g" <<<"$words")
    [ "$outcome" = ends ] || says 'ended by SIGTERM' "$work/out"
    [ "$outcome/$steps" != ends/1000000 ] || same_weights "$work/export" "$top/export" # the export of an earlier run
    [ "$outcome/$from" = ends/true ] || [ -z "$saves" ] || usable
}

# row FAULT OUTCOME TIER RANKS SETTINGS STRIKE [STATUS [WORDS]] -- see faults.txt
row() {
    local outcome=$2 ranks=${4%>*} resumes=${4#*>} strike=$6 status=${7:--} words=${8:-} how ways launchers
    local by=run mpi='' async='' limit=30 every=1000000 from='[ $(rows) -gt 3 ]' least=4 steps=1000000 grace=100 before='' holds='' \
        rank_does='exec "$@"' saves=1 alone=''
    [ "$outcome" != ends ] || every=5 from='saved 5'
    case $status/$outcome in
    -/ends) status='[1-9][0-9]*' ;;
    -/*) status=143 ;;
    esac
    [ "$5" = - ] || eval "$5"
    # Linux schedules each session as a group (sched_autogroup_enabled). Beside several jobs whose ranks are such groups, Linux
    # 6.18 let other processes wait up to 50 s for a core; without groups they waited less than half a second.
    [[ $rank_does != *setsid* ]] || alone=1
    [ "$3" = quick ] || [ "$tier" = full ] || return
    ways=('') launchers=$by
    [ "$async" != too ] || ways=('' --save-async)
    [ "$async" != only ] || ways=(--save-async)
    [ -z "$mpi" ] || [ "$tier" != full ] || launchers='run mpi'
    for by in $launchers; do
        for how in "${ways[@]}"; do
            name="$1${how:+, $how} (W=$ranks, $by): $outcome"
            chosen || continue
            [ "$by" = run ] || [ -z "$NO_MPI" ] || { skip "$name" "$NO_MPI" && continue; }
            [ -z "$alone" ] || wait
            beside struck
            [ -z "$alone" ] || wait
        done
    done
}

# ---- what strikes -----------------------------------------------------------------------------------------------

# Both ranks are running; their ids are in $pids.
both() {
    pids=$(trainers)
    [ "$(echo "$pids" | wc -l)" = 2 ]
}

# The shells that become the two ranks are stopped; their ids are in $shells.
shells_stand() {
    shells=$(pgrep -f "^sh -c .*$trainer")
    [ "$(echo "$shells" | wc -l)" = 2 ] && stopped $shells
}

# stopped PID... -- whether these processes are stopped
stopped() {
    [ "$(ps -o stat= -p "$(echo "$@" | tr ' ' ,)" 2>/dev/null | grep -c T)" = $# ]
}

# A save on request, then training goes on. If a rank gets the signal some steps later, all ranks save again.
asked() {
    kill -USR1 "$job"
    until_true 'saved 4'
    trains_on 20
}

# Sends the second signal as soon as the first was taken. The loop starts no command, because that would take too long.
twice() {
    local pid word value pending=1
    pid=$(rank_pid 1)
    kill -TERM "$pid"
    while [ $pending != 0 ]; do
        pending=0
        while read -r word value; do
            [ "$word" != ShdPnd: ] || pending=$((0x$value & 1 << 14))
        done <"/proc/$pid/status"
    done
    kill -TERM "$pid"
}

# ---- rows -------------------------------------------------------------------------------------------------------

while IFS=$'\x1f' read -r fault outcome when _ ranks settings strike status words; do
    row "$fault" "$outcome" "$when" "$ranks" "$settings" "$strike" "$status" "$words" </dev/null
done < <(sed -nE '/^#/d; / \| harm +\| /s/ +\| +/\x1f/gp' tests/faults.txt)

# under WRAPPER OUTCOME RANK-DOES -- every signal to the launcher, and a rank's death. OUTCOME: of SIGTERM
under() {
    local below="ranks below $1" how="rank_does='$3'" failed='[1-9][0-9]*' signal
    for by in run mpi; do
        [ "$by" = run ] || failed='[0-9]+' # MPICH's mpiexec may return 0
        for signal in TERM HUP; do
            if [ "$by" = run ] && [ "$2" = saves ]; then
                row "SIG$signal, $below" saves full 2 "async=too $how" "kill -$signal \$job" '0|143'
            else
                row "SIG$signal, $below" ends full 2 "by=$by $how" "kill -$signal \$job" "$failed"
            fi
        done
        row "SIGINT, $below" ends full 2 "by=$by $how" 'kill -INT $job' "$failed"
        row "SIGKILL, $below" ends full 2 "by=$by $how" 'kill -KILL $job' 137
        row "a rank is killed, $below" ends full 2 "by=$by $how" 'kill -KILL $(rank_pid 1)' '[0-9]+'
    done
}
under 'no wrapper' saves 'exec "$@"'
under 'sh -c "...; true"' saves '"$@"; true'
under 'a shell that traps SIGTERM' saves 'trap "echo heard" TERM; "$@"; true'
under 'a shell that ignores SIGTERM' saves 'trap "" TERM; "$@"; true'
under 'env' saves 'exec env A=1 "$@"'
under 'timeout' saves 'exec timeout 600 "$@"'
under 'setsid --wait' ends 'exec setsid --wait "$@"'
under 'nohup' saves 'exec nohup "$@"'
under 'nice' saves 'exec nice "$@"'
under 'stdbuf' saves 'exec stdbuf -oL "$@"'

case_is 'nothing is left in shared memory'
cli_end
