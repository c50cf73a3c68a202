#!/bin/bash
# fsdp_run.sh -- the launcher of one host: options, exit statuses, output, signals, ranks that die, training on ranks that MPI did
# not start, launchers whose ranks do not find each other, and ranks that compute otherwise than others.
#
#   tests/cli/fsdp_run.sh [BUILD] [no-mpi]    no-mpi: builds BUILD-no-mpi with MPI=0 and tests that
#
# harm.sh strikes ranks and launchers of training runs.
. "$(dirname "$0")/lib.sh"
cli_namespace "$@"
if [ "${2:-}" = no-mpi ]; then
    build=${1:-build}-no-mpi
    mkdir -p "$build"
    make -j"$(nproc)" --no-print-directory CI=1 MPI=0 BUILD="$build" all "$build"/tests/cli/{hold_calls,float_mode}.so >"$build/make.log" 2>&1 ||
        { echo "FAIL MPI=0 does not build without warnings: $(grep -m1 -E 'error|\*\*\*' "$build/make.log")" && exit 1; }
    echo 'PASS MPI=0 builds without warnings'
    n_passed=1
    set -- "$build"
fi
cli_start "$@"
run=$work/bin/fsdp_run fresh=1 hold_calls=$(realpath "$build/tests/cli/hold_calls.so") float_mode=$(realpath "$build/tests/cli/float_mode.so") most_beside=20 # these cases mostly sleep
ln -s "$(command -v sleep)" "$trainer-sleep" || exit 1
unset FSDP_RUN RANK WORLD_SIZE ${!PMI_@} ${!PMIX_@} ${!OMPI_@} ${!SLURM_@} ${!FLUX_@}
# The shell code by which a rank gets its number.
rank='rank=${FSDP_RUN%% *};'
model='--n-layer 1 --d-model 16 --n-head 2 --seq-len 16 --synthetic 5000'
bits='--lr 1e-3 --min-lr 1e-3 --warmup-steps 0 --reduction canonical --batch-size 0 --global-batch 12'

# begin COMMAND... -- starts the launcher in the background, its id in $job. A shell's background jobs ignore SIGINT, so env
# resets it. The background shell may open $work/out late; it is emptied first, so that no line of an earlier case is found.
begin() {
    : >"$work/out"
    env --default-signal=INT,HUP "$run" "$@" >"$work/out" 2>"$work/err" </dev/null &
    job=$!
}

# ---- usage ------------------------------------------------------------------------------------------------------

# usage NAME REGEX ARGUMENT...
usage() {
    case_is "usage: $1" || return
    ends_with 2 "$run" "${@:3}"
    says "$2"
    says '^HINT: '
    [ ! -s "$work/out" ] || complain 'wrote to standard output'
}
usage 'no program' 'no program to start'
usage 'no program after --' 'no program to start' -n 2 --
usage 'zero ranks' "--n: got '0', expected a whole number from 1 to 256" -n 0 true
usage 'too many ranks' "--n: got '257'" -n 257 true
usage 'ranks that are no number' "--n: got '2x'" -n 2x true
usage 'no value' '--n: no value given' -n
usage 'unknown option' 'unknown option --ranks' --ranks 2 true
usage 'time limit' "--timeout: got '0', expected a finite number" --timeout 0 true
usage 'time of grace' "--grace: got 'x', expected a finite number" --grace x true
for variable in PMI_RANK PMIX_RANK OMPI_COMM_WORLD_RANK FSDP_RUN; do
    export $variable=0
    usage "under a launcher ($variable)" "another launcher, $variable is set" -n 2 true
    unset $variable
done

if case_is 'usage: help'; then
    ends_with 0 "$run" --help
    says '^Usage: fsdp_run ' "$work/out"
    [ ! -s "$work/err" ] || complain 'wrote to stderr'
fi

# cannot_start NAME STATUS PROGRAM
cannot_start() {
    case_is "program: $1" || return
    ends_with "$2" "$run" -n 3 "$3"
    says "cannot start $3: "
    [ "$(grep -c 'HINT: ' "$work/err")" = 1 ] || complain 'not one hint'
}
cannot_start 'not found' 127 fsdp-no-such-program
cannot_start 'not executable' 126 /etc/passwd

if case_is 'program: its options are its own'; then
    ends_with 0 "$run" -n 1 echo -n 5 --help -- x
    [ "$(cat "$work/out")" = '[0] 5 --help -- x' ] || complain "got $(cat "$work/out")"
    timed "$run" -n 1 -- echo x
    [ "$(cat "$work/out")" = '[0] x' ] || complain "after --: got $(cat "$work/out")"
fi

# ---- exit status ------------------------------------------------------------------------------------------------

one_early() {
    case_is 'status: all end well, one early' || return
    ends_with 0 "$run" -n 3 sh -c "$rank"'[ $rank = 1 ] && exit 0; sleep 2.5; echo late'
    [ "$(grep -c 'late$' "$work/out")" = 2 ] || complain 'a rank that ended well has ended the others'
    [ ! -s "$work/err" ] || complain 'wrote to stderr'
}

# ends_others NAME STATUS REGEX COMMAND -- rank 1 of 3 does COMMAND, the others would go on
ends_others() {
    case_is "status: $1" || return
    ends_with "$2" "$run" -n 3 sh -c "$rank"'[ $rank = 1 ] && { echo last words; '"$4"'; }; exec "$0" 1000' "$trainer-sleep"
    says "^\[fsdp_run\] rank 1 \(process [0-9]+\) $3; ending the others\$"
    says '^\[1\] last words$' "$work/out"
}

others_are_deaf() {
    case_is 'status: the others do not hear SIGTERM' || return
    ends_with 7 "$run" -n 2 sh -c "$rank"'[ $rank = 1 ] && exit 7; trap "" TERM; "$0" 1000; "$0" 1000' "$trainer-sleep"
}

too_long() {
    case_is 'status: time limit' || return
    ends_with 124 "$run" -n 2 --timeout 0.5 "$trainer-sleep" 1000
    says '^\[fsdp_run\] not done after 0.5 s; ending the ranks$'
}

# Nobody reads the output of the ranks, or the launcher's own lines.
nobody_reads() {
    local stalled
    case_is 'status: time limit, and nobody reads the output' || return
    mkfifo "$work/full" && exec {stalled}<>"$work/full" # a reader that reads nothing
    ends_with 124 sh -c 'exec "$0" -n 2 --timeout 0.5 yes >"$1"' "$run" "$work/full"
    says '^\[fsdp_run\] not done after 0.5 s, and nobody reads the output: the rest is dropped$'
    ends_with 124 sh -c 'exec "$0" -n 2 --timeout 0.5 yes >"$1" 2>&1' "$run" "$work/full"
    exec {stalled}<&-
}
# The launcher waits before a restart.
paused() {
    local signo
    case_is 'restarts: a signal during the pause' || return
    for signo in INT TERM HUP; do
        rm -f "$work/err"
        begin -n 1 --restarts 2 --restart-pause 30 false
        until_true 'grep -q "restart 1 of 2 in 30 s" "$work/err"'
        limit_s=20 hurt "kill -$signo \$job" # the pause takes longer
        expect_status $((128 + $(kill -l $signo)))
    done
}
times_out_in_pause() {
    case_is 'restarts: --timeout passes during the pause' || return
    ends_with 124 "$run" -n 1 --timeout 1 --restarts 2 --restart-pause 30 false
    says '^\[fsdp_run\] not done after 1 s$'
    [ "$(grep -c 'ended with status 1' "$work/err")" = 1 ] || complain 'started again'
}

# ---- input and output -------------------------------------------------------------------------------------------

# Each rank prints lines of many lengths to both files in turn. Its buffers cut the lines anywhere.
lines='BEGIN { split(ENVIRON["FSDP_RUN"], w, " "); for (i = 0; i < 200; i++) pad = pad "x"
    for (i = 0; i < 10000; i++) printf "%d %d %s\n", w[1], i, substr(pad, 1, i * 7 % 199) > (i % 2 ? "/dev/stderr" : "/dev/stdout") }'
# check_lines STREAMS -- stdin has all lines of 4 ranks. Each line is whole, and the lines of each rank and file are in order
check_lines() {
    awk -v streams="$1" '
        { r = substr($1, 2) + 0; i = $3; s = i % 2 }
        $1 != "[" $2 "]" || r != $2 || length($4) != i * 7 % 199 || NF > 4 || i != next_i[r, s] * 2 + s { bad++ }
        { next_i[r, s]++ }
        END { if (bad || NR != 20000 * streams) { print bad + 0 " bad lines of " NR; exit 1 } }'
}
if case_is 'lines: 4 ranks to one slow pipe'; then
    said=$(limit $limit_s "$run" -n 4 awk "$lines" 2>&1 | { sleep 0.5 && cat; } | check_lines 2) || complain "$said"
fi
if case_is 'lines: 4 ranks to two files'; then
    ends_with 0 "$run" -n 4 awk "$lines"
    said=$(check_lines 1 <"$work/out") || complain "stdout: $said"
    said=$(check_lines 1 <"$work/err") || complain "stderr: $said"
fi
if case_is 'lines: longer than any buffer'; then
    timed "$run" -n 1 sh -c 'head -c 300000 /dev/zero | tr "\0" x; echo; echo y'
    { printf '[0] ' && head -c 300000 /dev/zero | tr '\0' x && printf '\n[0] y\n'; } | cmp -s - "$work/out" ||
        complain 'one rank: the line has changed'
    timed "$run" -n 3 sh -c 'head -c 300000 /dev/zero | tr "\0" x'
    [ "$(tr -dc x <"$work/out" | wc -c)" = 900000 ] || complain 'three ranks: not all has arrived'
    ! grep -vqE '^\[[0-2]\] x+$' "$work/out" || complain 'three ranks: a line without its rank'
fi
if case_is 'lines: the last one without its end'; then
    timed "$run" -n 2 printf 'a\nb'
    [ "$(sort "$work/out" | tr '\n' ,)" = '[0] a,[0] b,[1] a,[1] b,' ] || complain "got $(cat "$work/out")"
    for option in --no-prefix --no_prefix; do
        timed "$run" -n 1 $option printf 'a\nb'
        [ "$(od -An -c "$work/out" | tr -d ' ')" = 'a\nb' ] || complain "$option: got $(od -c "$work/out")"
    done
fi
if case_is 'lines: the reader leaves'; then
    limit $limit_s "$run" -n 2 yes 2>"$work/err" | head -1 >"$work/out"
    rc=${PIPESTATUS[0]}
    expect_status 141
fi
if case_is 'start: no file of that size'; then
    (ulimit -f 10 && limit $limit_s "$run" -n 2 echo x) >"$work/out" 2>"$work/err"
    rc=$?
    expect_status 1 # without a message it would be 153, from SIGXFSZ
    says 'no shared memory for 2 ranks: File too large'
fi
if case_is 'lines: a full disk'; then
    limit $limit_s "$run" -n 2 echo x >/dev/full 2>"$work/err"
    rc=$? # 1, or 141 from a rank that printed later
    [ $rc != 0 ] || complain 'exit status 0'
    says 'cannot write to standard output: No space left'
fi
if case_is 'lines: a file that may not grow'; then
    (ulimit -f 300 && limit $limit_s "$run" -n 1 head -c 2000000 /dev/zero) >"$work/out" 2>"$work/err"
    rc=$?
    [ $rc != 0 ] && [ $rc != 153 ] || complain "exit status $rc"
    says 'cannot write to standard output: File too large'
fi
if case_is 'input: for rank 0 alone'; then
    printf 'one\ntwo\n' | limit $limit_s "$run" -n 3 cat >"$work/out" 2>"$work/err"
    [ "$(tr '\n' , <"$work/out")" = '[0] one,[0] two,' ] || complain "got $(cat "$work/out")"
fi

# ---- signals ----------------------------------------------------------------------------------------------------

ready() {
    [ "$(grep -c "${2:-ready}\$" "$work/out")" = "$1" ]
}
asleep() {
    [ "$(pgrep -c -f "^$trainer-sleep")" = "$1" ]
}

# signal NAME W STATUS STRIKE SCRIPT [OPTION...] -- W ranks run SCRIPT, in which "$0" sleeps. STRIKE runs when all are ready. No
# message says that a rank failed
signal() {
    case_is "signal: $1" || return
    begin "${@:6}" -n "$2" sh -c "$5" "$trainer-sleep"
    until_true "ready $2"
    begun=$(now_ms)
    hurt "$4"
    took_ms=$(($(now_ms) - begun))
    [[ $rc =~ ^($3)$ ]] || complain "exit status $rc, expected $3"
    ! grep -q 'ending the others' "$work/err" || complain 'says that a rank has failed'
}
sleeps='echo ready; exec "$0" 1000'
signal 'SIGTERM to the launcher' 3 143 'kill -TERM $job' "$sleeps"
signal 'SIGINT to the launcher' 3 130 'kill -INT $job' "$sleeps"
signal 'SIGHUP to the launcher' 3 143 'kill -HUP $job' "$sleeps" # passed on as SIGTERM
signal 'SIGKILL to the launcher and its guard' 3 137 "kill -KILL \$(pgrep -P \$job -x 'fsdp_run guard') \$job" "$sleeps"
signal 'SIGKILL to the launcher, above a shell whose program never joins' 3 137 \
    'until_true "asleep 3"; kill -KILL $job' 'echo ready; "$0" 1000; true'
deaf_to_signals() {
    signal 'ranks that do not hear SIGTERM are killed' 2 137 'kill -TERM $job' 'trap "" TERM; echo ready; "$0" 1000; "$0" 1000' --grace 1 ||
        return
    [ "$took_ms" -ge 1000 ] || complain "after $took_ms ms, before their time of grace was over"
}
signal_arrives() {
    signal 'SIGUSR1 arrives once' 3 0 'kill -USR1 $job' \
        'trap "echo got; i=90" USR1; echo ready; i=0; while [ $i -lt 100 ]; do sleep 0.1; i=$((i + 1)); done; exit 0' || return
    ready 3 got || complain "$(grep -c 'got$' "$work/out") arrived, expected 3"
}
# Two SIGINTs at once count as one keystroke, because timeout(1) sends two.
two_keystrokes() {
    until_true 'asleep 2'
    kill -INT $job
    kill -INT $job
    sleep 1
    asleep 2 || complain 'the first one has ended the ranks'
    kill -INT $job
}
unread() {
    case_is 'signal: SIGTERM twice, while nobody reads the output' || return
    mkfifo "$work/fifo" && exec 9<>"$work/fifo"
    env --default-signal=INT,HUP "$run" -n 2 yes >"$work/fifo" 2>"$work/err" </dev/null &
    job=$!
    sleep 1
    kill -TERM $job
    until_true '! pgrep -P $job yes'
    hurt 'kill -TERM $job'
    expect_status 143
    exec 9>&-
}

# ---- cases that wait, side by side ----------------------------------------------------------------------------------

# Files that are slow to write: the other ranks wait, although FSDP_TIMEOUT_S is shorter.
slow_files() {
    case_is 'training: a file system that takes longer than FSDP_TIMEOUT_S' || return
    ends_with 0 "$run" -n 2 env FSDP_TIMEOUT_S=3 HOLD=fsync:/,0,0/12,4 LD_PRELOAD="$hold_calls" "$trainer" $model $bits --steps 2 \
        --export-init "$work/slow-init" --export "$work/slow-export" --save "$work/slow-save" --loss-csv "$work/slow.csv"
    [ -s "$work/slow-export/model.safetensors" ] || complain 'no export'
}
restarts_end() {
    case_is 'restarts: so many and no more' || return
    ends_with 5 "$run" -n 2 --restarts 2 --restart-pause 0.4 sh -c "$rank"'[ $rank = 0 ] || exit 5; exec "$0" 1000' "$trainer-sleep"
    [ "$(grep -cE 'restart (1 of 2 in 0.4|2 of 2 in 0.8) s$' "$work/err")" = 2 ] || complain 'not two restarts, or other pauses'
    [ "$took_ms" -ge 1200 ] || complain 'no pause'
    [ "$(grep -c 'ended with status 5' "$work/err")" = 3 ] || complain 'not three tries'
}

# sleeper COMMAND... -- runs COMMAND with a sleep program whose name belongs to these cases
sleeper() {
    ln -s "$(command -v sleep)" "$trainer-sleep"
    "$@"
}
for function in slow_files restarts_end one_early others_are_deaf too_long nobody_reads paused times_out_in_pause signal_arrives \
    deaf_to_signals unread; do
    beside sleeper $function
done
beside sleeper ends_others 'a rank ends with 3' 3 'ended with status 3' 'exit 3'
beside sleeper ends_others 'a rank is killed' 137 'was ended by signal 9 \(Killed\)' 'kill -KILL $$'
beside sleeper ends_others 'what a rank has started ends with it' 1 'ended with status 1' '"$0" 1001 & exit 1'
beside sleeper signal 'a second SIGINT kills' 2 130 two_keystrokes 'trap "" INT; echo ready; "$0" 1000'
beside sleeper signal 'SIGTERM reaches ranks that were stopped' 2 143 \
    'until_true "asleep 2"; kill -STOP $(pgrep -f "^$trainer-sleep"); kill -TERM $job' "$sleeps"

# ---- training ---------------------------------------------------------------------------------------------------

if case_is 'training: the same bits as one device'; then
    ends_with 0 "$trainer" --parallel single $model $bits --steps 4 --loss-csv "$work/1.csv"
    for w in 1 2 3 4; do
        ends_with 0 "$run" -n $w "$trainer" $model $bits --steps 4 --loss-csv "$work/$w-ranks.csv"
        [ ! -s "$work/err" ] || complain 'wrote to stderr'
        says "^\[0\] fsdp: .* $w rank" "$work/out"
        same_losses "$work/$w-ranks.csv" "$work/1.csv"
    done
fi
if case_is 'training: from a folder with a space in its name'; then
    mkdir "$work/a folder"
    cp "$run" "$trainer" "$work/a folder"
    (cd "$work/a folder" && limit $limit_s ./fsdp_run -n 2 "./${trainer##*/}" $model $bits --steps 2 --loss-csv 'a file.csv') \
        >"$work/out" 2>"$work/err"
    rc=$?
    expect_status 0
    [ -s "$work/a folder/a file.csv" ] || complain 'no loss file'
fi
if case_is 'training: different options'; then
    timed "$run" -n 3 sh -c "$rank"'exec "$0" "$@" --steps $((5 + rank / 2))' "$trainer" $model $bits
    says "the option differs: rank 2 has 'steps=6', rank 0 has 'steps=5'"
    expect_status 1
fi
# refused NAME REGEX COMMAND...
refused() {
    case_is "training: $1" || return
    ends_with 1 "${@:3}"
    says "$2"
    says 'HINT: '
}
refused '--comm mpi' '--comm mpi under fsdp_run' "$run" -n 2 "$trainer" $model $bits --steps 1 --comm mpi
refused 'twice in one start' 'has joined already' "$run" -n 2 sh -c '"$@" && exec "$@"' sh "$trainer" $model $bits --steps 1
refused 'files that are not the launcher'\''s' "launcher's files 0 and 2 are not open" \
    env FSDP_RUN='0 2 0 2' "$trainer" $model $bits --steps 1

if case_is 'training: files that may not grow'; then
    ends_with 1 bash -c 'ulimit -f 20 && exec "$@"' bash "$trainer" $model $bits --steps 2 --export "$work/large"
    says 'write: File too large'
    says '^HINT: '
fi

# ---- other launchers --------------------------------------------------------------------------------------------

# stranger NAME VARIABLE=VALUE... -- a launcher whose ranks do not find each other. VALUE of the first variable says that there are 2
stranger() {
    case_is "launcher: $1 starts two ranks, and each sees itself alone" || return
    ends_with 1 env "${@:2}" "$trainer" $model --steps 1 --batch-size 4 --loss-csv "$new/loss.csv"
    says "comm_open: $1 sets $2: the launcher started (at least )?2 ranks, (MPI|this process) sees 1\$"
    says "^HINT: start it with .*fsdp_run -n 2 on one host.*; unset ${2%%=*} "
    [ ! -e "$new/loss.csv" ] || complain 'it trained'
    ends_with 0 env "${@:2}" "$trainer" --help
    says '^Usage: fsdp_train ' "$work/out"
}
if [ -z "$NO_MPI" ]; then
    stranger mpiexec PMI_SIZE=2 PMI_RANK=1
    stranger 'Open MPI' OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=1 PMIX_RANK=1
    stranger srun SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=1 SLURM_LOCALID=1
    stranger flux FLUX_JOB_SIZE=2 FLUX_TASK_RANK=0 FLUX_TASK_LOCAL_ID=0
fi
stranger torchrun WORLD_SIZE=2 RANK=0 LOCAL_WORLD_SIZE=2 LOCAL_RANK=0 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500
stranger horovodrun HOROVOD_SIZE=2 HOROVOD_RANK=1
stranger MVAPICH2 MV2_COMM_WORLD_SIZE=2 MV2_COMM_WORLD_RANK=1
stranger jsrun JSM_NAMESPACE_SIZE=2 JSM_NAMESPACE_RANK=0
stranger PALS PALS_RANKID=1
stranger aprun ALPS_APP_PE=1
stranger 'HPE MPT' MPT_MPI_RANK=1

few="$model --steps 1 --batch-size 4"
bys=("$run") # the commands that start ranks: one for each transport
[ -n "$NO_MPI" ] || bys+=("$MPI_LAUNCHER")
# inside VARIABLE=VALUE... -- a process whose environment says that there are two
inside() {
    case_is "launcher: its hint works in $1" || return
    ends_with 0 env "$@" "$run" -n 2 "$trainer" $few --batch-size 2
    [ ! -s "$work/err" ] || complain 'wrote to stderr'
    says "^\[0\] fsdp: .* 2 ranks" "$work/out"
    ends_with 0 env "$@" env -u "${1%%=*}" "$trainer" $few
    case_is "launcher: what needs one process runs alone in $1" || return
    ends_with 0 env "$@" "$trainer" $few --parallel single --loss-csv "$new/loss.csv" --export "$new/export"
    says '^single: .* 1 rank,' "$work/out"
    ends_with 0 env "$@" "$trainer" $few --comm self
    for what in '--plan --plan-ranks 4' '--print-shards --plan-ranks 4' --help; do
        ends_with 0 env "$@" "$trainer" $model $what
        [ -s "$work/out" ] && [ ! -s "$work/err" ] || complain "$what: prints nothing, or to stderr"
    done
    ends_with 0 env "$@" "$build/fsdp_compare" "$new/loss.csv" "$new/loss.csv"
    ends_with 0 env "$@" "$build/fsdp_generate" "$new/export" --prompt a --length 2
    for what in '' --plan '--parallel single --comm mpi'; do
        ends_with 1 env "$@" "$trainer" $few $what
    done
}
inside WORLD_SIZE=2 RANK=1
inside SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=1 SLURM_LOCALID=1
if case_is 'launcher: --parallel single on ranks of one job is refused'; then
    for by in "${bys[@]}"; do
        ends_with 1 $by -n 2 "$trainer" $few --parallel single
        says '--parallel single: got 2 ranks, expected 1$'
    done
fi
for one in 'WORLD_SIZE=1 RANK=0' 'RANK=3' 'WORLD_SIZE=4' 'WORLD_SIZE= RANK=' 'WORLD_SIZE=four RANK=0' 'SLURM_STEP_NUM_TASKS=1 SLURM_PROCID=0' \
    'SLURM_NTASKS=4 SLURM_PROCID=0' 'PMI_RANK=0' 'FLUX_JOB_SIZE=1 FLUX_TASK_RANK=0' 'PALS_RANKID=0'; do
    case_is "launcher: $one is one rank" || continue
    ends_with 0 env $one "$trainer" $few
    [ ! -s "$work/err" ] || complain 'wrote to stderr'
done

# ---- ranks that differ ------------------------------------------------------------------------------------------

# differs WORDS W [VARIABLE=VALUE...] COMMAND... -- W ranks are refused, with WORDS on one line, and write no file
differs() {
    ends_with 1 $by -n "$2" "${@:3}" $few --loss-csv "$new/loss.csv"
    [ "$(grep -cE "$1" "$work/err")" = 1 ] || complain "not one line: $1"
    says '^(\[[0-9]\] )?HINT: '
    [ ! -e "$new/loss.csv" ] || complain 'it trained'
}
# other NAME TEXT -- a program like the trainer, in which the number after TEXT is another
other() {
    LC_ALL=C sed -E "s/($2 )([0-9])/\1x/" "$trainer" >"$work/bin/$1" && chmod +x "$work/bin/$1"
    ! cmp -s "$trainer" "$work/bin/$1" || complain "the trainer has no '$2'"
}
# one_is COMMAND RANK -- the shell code by which one rank runs COMMAND "$@", the others the trainer
one_is() {
    echo 'r=${FSDP_RUN:-$PMI_RANK}; r=${r%% *}; [ $r = '"$2 ] && exec $1"' "$@"; exec "$0" "$@"'
}
stale_build() {
    case_is "alike: ${by##*/}: a rank of another build" || return
    other stale sources
    differs "the program differs: rank 1 has 'sources x[0-9]*', rank 0 has 'sources [0-9]+'" 2 sh -c "$(one_is "$work/bin/stale" 1)" "$trainer"
    says 'HINT: copy one build'
    differs "the program differs: rank 2 has 'sources x[0-9]*', rank 0 has 'sources [0-9]+'" 3 sh -c "$(one_is "$work/bin/stale" 2)" "$trainer"
    differs "the program differs: rank 1 has 'sources [0-9]+', rank 0 has 'sources x[0-9]*'" 2 sh -c "$(one_is "$work/bin/stale" 0)" "$trainer"
}
other_compiler() {
    case_is "alike: ${by##*/}: a rank of another compiler" || return
    other elsewhere target
    differs "the compiler or the processor differs: rank 2 has '.* target x[0-9]*, .*', rank 0 has '.*'" 3 \
        sh -c "$(one_is "$work/bin/elsewhere" 2)" "$trainer" --ops fast --reduction canonical
    for how in '--ops portable --reduction canonical' '--ops fast --reduction fast'; do # as the hint says
        ends_with 0 $by -n 2 sh -c "$(one_is "$work/bin/elsewhere" 1)" "$trainer" $how $few
        [ "$(grep -cE "note: .*rank 1 has '.* target x" "$work/err")" = 1 ] || complain "$how: not one note"
    done
}
other_mode() {
    case_is "alike: ${by##*/}: a rank in another floating-point mode" || return
    for mode in flush up $([ "$by" != "$run" ] || echo read both down zero); do
        differs "the floating-point mode differs: rank 1 has 'rounds [ a-z,]*', rank 0 has 'rounds to nearest, reads and writes denormals'" 2 \
            env LD_PRELOAD="$float_mode" FLOAT_MODE=$mode,1 "$trainer"
    done
    says 'HINT: unset .* LD_PRELOAD'
    differs "the floating-point mode differs: rank 2 has 'rounds to zero, .*', rank 0 has " 3 env LD_PRELOAD="$float_mode" FLOAT_MODE=zero,2 "$trainer"
    differs "the floating-point mode differs: rank 1 has .*, rank 0 has 'rounds up, .*'" 2 env LD_PRELOAD="$float_mode" FLOAT_MODE=up,0 "$trainer"
}
modes=$(case $(uname -m) in x86_64 | aarch64) ;; *) echo 'float_mode.c does not know the modes of this processor' ;; esac)
for by in "${bys[@]}"; do
    stale_build
    other_compiler
    [ -n "$modes" ] || other_mode
done
if [ -n "$modes" ]; then
    skip 'alike: another floating-point mode' "$modes"
elif case_is 'alike: one process in another floating-point mode'; then
    for mode in 'flush .* and flushes' 'read .* ignores and' 'both .* ignores and flushes' 'up up,' 'down down,' 'zero to zero,'; do
        ends_with 1 env LD_PRELOAD="$float_mode" FLOAT_MODE=${mode%% *} "$trainer" $few --reduction canonical
        says "--reduction canonical: this process rounds ${mode#* } .*, expected one that rounds to nearest, reads and writes denormals$"
        says '^HINT: unset .* LD_PRELOAD .*--reduction fast'
    done
    ends_with 0 env LD_PRELOAD="$float_mode" FLOAT_MODE=both "$trainer" $few --reduction fast
    ends_with 0 "$trainer" $few --export "$new/export"
    text="$build/fsdp_generate $new/export --prompt a --length 2"
    for mode in flush read both up down zero; do
        ends_with 1 env LD_PRELOAD="$float_mode" FLOAT_MODE=$mode $text --ops portable
        says '--ops portable: this process rounds .*, expected one that rounds to nearest, reads and writes denormals$'
        says '^HINT: unset .* LD_PRELOAD .*--ops fast'
        [ ! -s "$work/out" ] || complain "$mode: it wrote a text"
    done
    ends_with 0 env LD_PRELOAD="$float_mode" FLOAT_MODE=both $text --ops fast
    ends_with 0 $text --ops portable
    ends_with 0 "$run" -n 2 env LD_PRELOAD="$float_mode" FLOAT_MODE=both "$trainer" $few --reduction fast
fi
if ! grep -q FSDP_HAVE_DNNL "$build/flags" || ! grep -qw avx2 /proc/cpuinfo; then
    skip 'alike: oneDNN uses other instructions on one rank' 'no oneDNN, or not several sets of instructions'
elif case_is 'alike: oneDNN uses other instructions on one rank'; then
    differs "rank 1 has '.* oneDNN [0-9.]+, instructions 0x[0-9a-f]+', rank 0 has '.*'" 2 \
        sh -c "$(one_is 'env ONEDNN_MAX_CPU_ISA=SSE41 "$0"' 1)" "$trainer" --ops fast --reduction canonical
fi
if case_is 'build: the checksum of the sources follows their bytes'; then
    checksum() { make -n -C "$work/copy" CC="$cc" BUILD="$work/b" "$work/b/alike" 2>&1 | grep -o 'FSDP_SOURCES=[0-9]*'; }
    mkdir "$work/copy" && cp -r Makefile common trainer lab?_* tests "$work/copy"
    before=$(grep -o 'FSDP_SOURCES=[0-9]*' "$build/alike")
    [ "$(checksum)" = "$before" ] || complain "a copy has another one"
    for file in common/base/hash.h lab3_backward/backward.c; do
        echo '/* another */' >>"$work/copy/$file"
        [ "$(checksum)" != "$before" ] || complain "$file does not count"
        cp "$file" "$work/copy/$file"
    done
fi

# ---- restarts ---------------------------------------------------------------------------------------------------

if case_is 'restarts: from the last checkpoint, with the same bits'; then
    begin -n 4 --restarts 2 --restart-pause 0.01 "$trainer" $model $bits --steps 1000000 --loss-csv "$work/loss.csv" \
        --save "$work/asked" --save-every 20 --resume auto
    until_true '[ -s "$work/asked/latest" ]'
    kill -KILL "$(rank_pid 1)"
    until_true 'resumed=$(sed -n "s/.*resumed at step //p" "$work/out"); [ -n "$resumed" ]'
    until_true '[ "$(saved_step "$work/asked")" -gt "$resumed" ]'
    hurt 'kill -TERM $job'
    expect_status 143
    says '^\[fsdp_run\] restart 1 of 2 in 0.01 s$'
    says 'resumed at step [0-9]*0$' "$work/out"
    ends_with 0 "$trainer" --parallel single $model $bits --steps $((1 + $(tail -n 1 "$work/loss.csv" | cut -d, -f1))) --loss-csv "$work/whole.csv"
    same_losses "$work/loss.csv" "$work/whole.csv" 10
fi
if case_is 'restarts: not after a signal, a time limit or a program that is not there'; then
    printf '%s\n' '#!/bin/sh' 'kill -TERM $PPID; sleep 1000' >"$work/ends-its-launcher"
    printf '%s\n' '#!/bin/sh' 'exit 143' >"$work/has-saved"
    chmod +x "$work/ends-its-launcher" "$work/has-saved"
    for words in '--timeout 0.3 sleep 1000' no-such-program "$work/ends-its-launcher" "$work/has-saved"; do
        timed "$run" -n 1 --restarts 3 $words
        [ "$rc" != 0 ] && [ "$rc" != 137 ] || complain "$words: exit status $rc"
        ! grep -q restart "$work/err" || complain "$words: started again"
    done
fi

if case_is 'build: MPI=0'; then
    make -n MPI=0 CC="$cc" BUILD="$work/b" "$work/b/fsdp_run" >"$work/out" 2>"$work/err" || complain 'make -n MPI=0 fails'
    ! grep -qE 'FSDP_HAVE_MPI|lmpich' "$work/out" || complain 'MPI is still used'
    said=$(PATH=$work/none MPI=0 /bin/bash tests/tools/deps.sh --check build 2>&1) # a machine without any command
    [[ $said = *missing:*gcc* && $said != *mpich* ]] || complain "deps.sh: $said"
    said=$(unset MPI && PATH=$work/none /bin/bash tests/tools/deps.sh --check build 2>&1)
    [[ $said = *mpich* ]] || complain "deps.sh without MPI=0: $said"
fi

case_is 'nothing is left'
cli_end
