#!/bin/bash
# processes.sh -- a table of what may happen to the processes of a job, and what it leads to: pauses, late ranks, ranks
# that end early, wrappers between launcher and rank.
#
#   tests/cli/processes.sh [BUILD] [full]     default build; full: every wrapper under every signal and launcher
#   CASES=REGEX                               only the rows whose names match
#
# A row is a job of two ranks that trains without end, and something that strikes it. Outcomes:
#   goes on   it trains on: the rows of its loss file are those of a run that nobody disturbed
#   saves     it ends in time, having saved; the checkpoint goes on with the same bits
#   ends      it ends in time, with these words; its newest checkpoint, if it has trained, goes on with the same bits
# After every row no process is left. Four rows go on at a time. Prints PASS, FAIL and SKIP lines and a last line with
# their numbers.
# shellcheck disable=SC1091,SC2016,SC2034,SC2046,SC2086,SC2154,SC2317
set -u
cd "$(dirname "$0")/../.." || exit 2
. tests/cli/lib.sh
cli_namespace "$PWD/tests/cli/processes.sh" "$@"
build=$(realpath "${1:-build}") tier=${2:-quick}
cli_begin "$build"
export OMP_NUM_THREADS=1
unset FSDP_RUN PMI_RANK PMIX_RANK OMPI_COMM_WORLD_RANK
top=$work by=run before='' how='' n_whole=1000
model='--n-layer 1 --d-model 16 --n-head 2 --seq-len 16 --synthetic 5000 --ops portable'
bits='--lr 1e-3 --min-lr 1e-3 --warmup-steps 0 --reduction canonical --batch-size 0 --global-batch 12'

# ---- a job ------------------------------------------------------------------------------------------------------

rows() {
    cat "$work"/loss.csv "$work"/loss.csv.*.tmp 2>/dev/null | grep -c '^[0-9]'
}

# trains_on N -- N rows more than now
trains_on() {
    until_true 100 "[ \$(rows) -gt $(($(rows) + $1)) ]"
}

# begin EVERY WRAPPER -- the job, in the background; its launcher's id in $job. WRAPPER: what a shell does in place of
# starting "$@", where $r is the rank. before: what starts the launcher; how: --save-async or nothing
begin() {
    local starts="$build/fsdp_run --grace ${grace:-20} -n 2"
    [ "$by" = run ] || starts="$LAUNCHER -n 2"
    : >"$work/out"
    env --default-signal=INT $before $starts sh -c 'r=${FSDP_RUN:-$PMI_RANK}; r=${r%% *}; '"$2" sh "$trainer" $model $bits \
        --steps 1000000 --save "$work/ck" --save-every "${every:-$1}" $how --loss-csv "$work/loss.csv" >"$work/out" 2>"$work/err" </dev/null &
    job=$!
}

# same_rows FILE -- each is one of the run that nobody disturbed, as far as that went
same_rows() {
    local last
    last=$(tail -n 1 "$whole" | cut -d, -f1)
    losses "$1" | awk -F, -v last="$last" 'NR > 1 && $1 <= last' | grep -vxFf <(losses "$whole") >"$work/other" &&
        complain "$(wc -l <"$work/other") other losses: $(head -1 "$work/other")"
}

# usable LEAST -- the newest checkpoint is of that step or a later one, and two steps from it have the same bits
usable() {
    local step
    step=$(saved_step "$work/ck")
    [ "$step" -ge "$1" ] || complain "saved at step '$step', expected $1 or later"
    cp "$work/err" "$work/err.job"
    [ "$step" -lt "$n_whole" ] || { # a fast machine
        launch 1 $model $bits --steps $((step + 2)) --loss-csv "$work/whole.csv"
        whole=$work/whole.csv
    }
    launch 1 $model $bits --steps $((step + 2)) --loss-csv "$work/rest.csv" --resume "$work/ck"
    [ "$rc" = 0 ] || complain "--resume: exit status $rc"
    cp "$work/err.job" "$work/err"
    [ "$rc" != 0 ] || same_rows "$work/rest.csv"
}

# ended SECONDS STATUS -- the job ends by itself. STATUS: a regular expression
ended() {
    { wait_for_end "$1"; } 2>/dev/null
    [[ $rc =~ ^($2)$ ]] || complain "exit status $rc, expected $2"
    check_left
}

# ---- outcomes ---------------------------------------------------------------------------------------------------

# goes_on NAME WRAPPER STRIKE [FIRST] -- FIRST: rows before the strike
goes_on() {
    begin 1000000 "$2"
    [ "${4:-3}" = 0 ] || until_true 100 "[ \$(rows) -gt ${4:-3} ]" || return
    eval "$3"
    trains_on 3
    ! grep -qv 'note: the checkpoint of step [0-9]* waits' "$work/err" || complain 'wrote to stderr'
    kill -TERM $(rank_pid 0)
    ended 100 143
    same_rows "$work/loss.csv"
    usable 4
}

# saves NAME WRAPPER STRIKE [STATUS]
saves() {
    begin 1000000 "$2"
    until_true 100 '[ $(rows) -gt 3 ]' || return
    eval "$3"
    ended 100 "${4:-143}"
    grep -q 'ended by SIGTERM' "$work/out" || complain 'does not say that it saved'
    usable 4
}

# ends NAME WRAPPER STRIKE STATUS WORDS [FIRST] -- WORDS: a regular expression. FIRST: rows before the strike; 0: it may end
# before its first
ends() {
    begin 5 "$2"
    [ "${6:-6}" = 0 ] || until_true 100 "[ \$(rows) -gt ${6:-6} ]" || return
    eval "$3"
    ended 100 "$4"
    cat "$work/out" "$work/err" | grep -qE -- "$5" || complain "nothing like '$5'"
    [ "${6:-6}" = 0 ] || usable 4
}

# no_output NAME -- rank 0 has none: its words get into no other file. It says so at the end; files are complete
no_output() {
    timed "$build/fsdp_run" -n 2 sh -c '[ "${FSDP_RUN%% *}" = 0 ] && exec "$@" >&-; exec "$@"' sh "$trainer" $model $bits \
        --steps 6 --save "$work/ck" --loss-csv "$work/loss.csv"
    expect_status 1
    grep -q 'cannot write to standard output$' "$work/err" || complain 'no word about it'
    [ "$(wc -l <"$work/loss.csv")" = 7 ] || complain "$(wc -l <"$work/loss.csv") lines in the loss file, expected 7"
    same_rows "$work/loss.csv"
    usable 6
}

# fault TIER OUTCOME NAME ... -- a row, in a shell and a folder of its own
n_rows=0
fault() {
    local outcome=$2 row
    name="$3${how:+, $how} ($by): ${2/_/ }"
    [ "$1" = quick ] || [ "$tier" = full ] || return
    chosen || return
    n_rows=$((n_rows + 1)) row=$top/$n_rows
    shift 2
    while [ "$(jobs -rp | wc -l)" -ge 4 ]; do
        wait -n 2>/dev/null
    done
    (
        trap 'cli_kill_left' EXIT
        work=$row trainer=$row/bin/fsdp_train bad=
        mkdir "$row" "$row/bin" && ln "$build/fsdp_train" "$trainer" 2>/dev/null || cp "$build/fsdp_train" "$trainer"
        export FSDP_TIMEOUT_S=${limit:-30}
        CLI_NAMESPACE='' # other rows go on
        $outcome "$@"
        verdict
    ) >"$row.log" 2>&1 &
}

"$trainer" --parallel single $model $bits --steps $((n_whole + 2)) --loss-csv "$work/whole.csv" >"$work/out" 2>"$work/err" ||
    { cat "$work/err" && exit 1; }
whole=$work/whole.csv

# ---- pauses and late ranks --------------------------------------------------------------------------------------

# Both ranks, in $pids.
both() {
    pids=$(trainers)
    [ "$(echo "$pids" | wc -l)" = 2 ]
}

# pauses TIER -- of ranks and launcher
pauses() {
    [ "$by" = run ] || ! no_mpi 'pauses, by mpiexec' || return
    limit=6
    fault "$1" goes_on 'all ranks are stopped for longer than they wait, and continued' 'exec "$@"' \
        'until_true 100 both; kill -STOP $pids; sleep 8; kill -CONT $pids'
    # Behind a save, in which they wait for longer.
    every=1000000 fault "$1" ends 'a rank is stopped in a step, for longer than the others wait' 'exec "$@"' \
        'kill -USR1 $(rank_pid 0); until_true 100 "[ \$(saved_step \$work/ck) -ge 4 ]"; trains_on 5; kill -STOP $(rank_pid 1)' \
        '[0-9]+' 'waited [0-9.]+ s in .*; missing data of ranks: (1|none, but peers have not received)'
    fault "$1" ends 'a rank starts later than the others wait' '[ $r = 1 ] && sleep 200; exec "$@"' \
        true '[1-9][0-9]*' '(waited 10.0 s for rank 1 to start|MPI_Init has waited 10.0 s)' 0
    limit=''
    fault "$1" goes_on 'a rank starts two seconds after the others' '[ $r = 1 ] && sleep 2; exec "$@"' true
    fault "$1" goes_on 'a rank is stopped for a second, and continued' 'exec "$@"' \
        'pid=$(rank_pid 1); kill -STOP $pid; sleep 1; kill -CONT $pid'
    fault "$1" goes_on 'the launcher is stopped for two seconds, and continued' 'exec "$@"' \
        'kill -STOP $job; sleep 2; kill -CONT $job'
    fault "$1" ends 'the launcher is killed while it is stopped' 'exec "$@"' 'kill -STOP $job; kill -KILL $job' 137 ''
}
pauses quick
by=mpi
pauses full
by=run

# A rank that stops in its second save, where it would see to it that its file is on the disk. It has tried that out before.
# With PAUSE_S set only the thread that saves stands still, for so long.
stopped() {
    [ "$(ps -o stat= -p "$(rank_pid 1)" 2>/dev/null | cut -c1)" = T ]
}
printf '%s\n' '#include <signal.h>' '#include <stdlib.h>' '#include <unistd.h>' 'int fsync(int fd) {' \
    'static int n;' 'const char *pause_s = getenv("PAUSE_S");' \
    'if (n++ == 2) { if (pause_s) sleep((unsigned)atoi(pause_s)); else raise(SIGSTOP); }' \
    'return fdatasync(fd); }' >"$top/stop.c"
if ${CC:-cc} -shared -fPIC -o "$top/stop.so" "$top/stop.c" 2>/dev/null; then
    stops='[ $r = 1 ] && export LD_PRELOAD='"$top/stop.so"'; exec "$@"'
    limit=4 every=4
    fault quick goes_on 'a rank is stopped in a save for longer than FSDP_TIMEOUT_S, and continued' \
        "$stops" 'until_true 100 stopped; sleep 6; kill -CONT $(rank_pid 1)'
    how=--save-async
    fault quick goes_on "a rank's disk stands still for longer than FSDP_TIMEOUT_S" "export PAUSE_S=6; $stops" \
        'until_true 100 "grep -q waits \$work/err"'
    limit=''
    fault quick goes_on 'a rank is stopped in a save, and continued' \
        "$stops" 'until_true 100 stopped; sleep 1; kill -CONT $(rank_pid 1)'
    limit=2
    # The others are in a step meanwhile, where they wait for less long.
    fault full ends 'a rank is stopped in a save' "$stops" 'until_true 100 stopped' 1 'waited 2.0 s in .*; missing data of ranks: 1'
    how=''
    fault full ends 'a rank is stopped in a save' "$stops" 'until_true 100 stopped' 1 'waited 24.0 s in .*; missing data of ranks: 1'
    limit='' every=''
else
    skip 'a rank is stopped in a save' 'no C compiler here'
fi
limit=4
fault full goes_on 'all ranks are stopped before they join, and continued' 'kill -STOP $$; exec "$@"' \
    'until_true 100 "[ \"\$(ps -o stat= -p \"\$(pgrep -d, -f \"^sh -c .*$trainer\")\" 2>/dev/null | grep -c T)\" = 2 ]"; sleep 6
     kill -CONT $(pgrep -f "^sh -c .*$trainer")' 0
limit=''

# ---- files that are closed --------------------------------------------------------------------------------------

fault quick goes_on 'a rank has no standard output' '[ $r = 1 ] && exec "$@" >&-; exec "$@"' true

fault quick no_output 'rank 0 has no standard output'

# ---- wrappers ---------------------------------------------------------------------------------------------------

# The second one comes as soon as the first has been taken: no command is started in between, that would take its time.
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
for how in '' --save-async; do
    fault quick saves 'SIGTERM, ranks below sh -c "...; true"' '"$@"; true' 'kill -TERM $job'
    fault quick saves 'SIGTERM, ranks below timeout' 'exec timeout 600 "$@"' 'kill -TERM $job'
    fault quick saves 'SIGTERM to the launcher and to the ranks' 'exec "$@"' 'kill -TERM $job $(trainers)'
    fault quick saves 'SIGHUP to the launcher' 'exec "$@"' 'kill -HUP $job'
    fault quick saves 'SIGTERM twice, a moment apart' 'exec "$@"' twice
    before='timeout 600'
    fault quick saves 'SIGTERM to timeout above the launcher' 'exec "$@"' 'kill -TERM $job'
    before=''
done
how=''
fault quick ends 'the launcher is killed, ranks below setsid --wait' 'exec setsid --wait "$@"' 'kill -KILL $job' 137 ''

# under NAME OUTCOME WRAPPER -- every signal to the launcher, and a death. OUTCOME: of SIGTERM
under() {
    local below="ranks below $1" wrapper=$3 failed='[1-9][0-9]*'
    [ "$by" = run ] || failed='[0-9]+' # MPICH's mpiexec may return 0
    [ "$by" = run ] || ! no_mpi "$below, by mpiexec" || return
    if [ "$by" = run ] && [ "$2" = saves ]; then
        for how in '' --save-async; do
            fault full saves "SIGTERM, $below" "$wrapper" 'kill -TERM $job' '0|143'
            fault full saves "SIGHUP, $below" "$wrapper" 'kill -HUP $job' '0|143'
        done
        how=''
    else
        fault full ends "SIGTERM, $below" "$wrapper" 'kill -TERM $job' "$failed" ''
        fault full ends "SIGHUP, $below" "$wrapper" 'kill -HUP $job' "$failed" ''
    fi
    fault full ends "SIGINT, $below" "$wrapper" 'kill -INT $job' "$failed" ''
    fault full ends "SIGKILL, $below" "$wrapper" 'kill -KILL $job' 137 ''
    fault full ends "a rank is killed, $below" "$wrapper" 'kill -KILL $(rank_pid 1)' '[0-9]+' ''
}
for by in run mpi; do
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
done
by=run

before=nohup
fault full goes_on 'SIGHUP to the launcher, below nohup' 'exec "$@"' 'kill -HUP $job'
before=setsid
fault full saves 'SIGTERM to the launcher, below setsid' 'exec "$@"' 'kill -TERM $job'
before=''
grace=1
fault full ends 'SIGTERM, a rank is stopped' 'exec "$@"' 'kill -STOP $(rank_pid 1); kill -TERM $job' '143|137' ''
grace=''

# ---- the whole --------------------------------------------------------------------------------------------------

wait
for i in $(seq $n_rows); do
    cat "$top/$i.log"
    n_passed=$((n_passed + $(grep -c '^PASS' "$top/$i.log")))
    n_failed=$((n_failed + $(grep -c '^FAIL' "$top/$i.log")))
done
name='nothing is left in shared memory'
check_left
verdict
cli_end
