#!/bin/bash
# fsdp_run.sh -- the launcher of one host: options, exit statuses, lines, signals, ranks that die, and training by ranks
# that no MPI has started.
#
#   tests/cli/fsdp_run.sh [BUILD] [no-mpi]    default build; no-mpi: builds BUILD-no-mpi with MPI=0 and tests that
#   CASES=REGEX                               only the cases whose names match
#
# Prints PASS, FAIL and SKIP lines and a last line with their numbers.
# shellcheck disable=SC2016,SC2086,SC2154,SC2317
set -u
cd "$(dirname "$0")/../.." || exit 2
. tests/cli/lib.sh
cli_namespace "$PWD/tests/cli/fsdp_run.sh" "$@"
build=${1:-build}
if [ "${2:-}" = no-mpi ]; then
    build=$build-no-mpi
    mkdir -p "$build"
    make -j"$(nproc)" --no-print-directory CI=1 MPI=0 BUILD="$build" all >"$build/make.log" 2>&1 ||
        { echo "FAIL MPI=0 does not build without warnings: $(grep -m1 -E 'error|\*\*\*' "$build/make.log")" && exit 1; }
    echo 'PASS MPI=0 builds without warnings'
    n_passed=1
fi
cli_begin "$build"
run=$work/bin/fsdp_run compare=$build/fsdp_compare
ln -s "$(command -v sleep)" "$trainer-sleep" || exit 1
unset FSDP_RUN PMI_RANK PMIX_RANK OMPI_COMM_WORLD_RANK
limit_s=100 # ends what has failed to end; good cases take seconds
# What a rank asks for its number.
rank='rank=${FSDP_RUN%% *};'
model='--n-layer 1 --d-model 16 --n-head 2 --seq-len 16 --synthetic 5000'
bits='--lr 1e-3 --min-lr 1e-3 --warmup-steps 0 --reduction canonical --batch-size 0 --global-batch 12'

# expect_in FILE REGEX
expect_in() {
    grep -qE -- "$2" "$work/$1" || complain "nothing like '$2' in its $1"
}

expect_end() {
    [ "$took_ms" -lt $((limit_s * 1000)) ] || complain "not ended in $limit_s s"
}

# begin COMMAND... -- the launcher in the background, its id in $job. A shell's background jobs ignore SIGINT. That shell
# may open the files late: whoever awaits a line must not find those of the case before.
begin() {
    : >"$work/out"
    env --default-signal=INT "$run" "$@" >"$work/out" 2>"$work/err" </dev/null &
    job=$!
    begun=$(now_ms)
}

# end SECONDS -- waits for the job; sets rc, took_ms (since $begun)
end() {
    wait_for_end "$1"
    took_ms=$(($(now_ms) - begun))
} 2>/dev/null

# side_by_side FUNCTION... -- begins cases that wait more than they work, each in a shell and a folder of its own
side_by_side() {
    local function copied=$trainer
    beside=("$@")
    for function in "$@"; do
        (
            work=$work/$function n_passed=0 n_failed=0 CLI_NAMESPACE='' # /dev/shm is everybody's
            trainer=$work/fsdp_train_$function
            mkdir "$work" && ln "$copied" "$trainer" && ln -s "$(command -v sleep)" "$trainer-sleep" || exit
            "$function"
        ) >"$work/$function.log" &
    done
}

# wait_beside -- for these
wait_beside() {
    local function
    wait
    for function in "${beside[@]}"; do
        cat "$work/$function.log"
        n_passed=$((n_passed + $(grep -c '^PASS' "$work/$function.log")))
        n_failed=$((n_failed + $(grep -c '^FAIL' "$work/$function.log")))
    done
}

# ---- usage ------------------------------------------------------------------------------------------------------

# usage NAME REGEX ARGUMENT...
usage() {
    local regex=$2
    case_is "usage: $1" || return
    shift 2
    timed "$run" "$@"
    expect_status 2
    expect_in err "$regex"
    expect_in err '^HINT: '
    [ ! -s "$work/out" ] || complain 'wrote to standard output'
    verdict
}
usage 'no program' 'no program to start'
usage 'no program behind --' 'no program to start' -n 2 --
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
    timed "$run" --help
    expect_status 0
    expect_in out '^Usage: fsdp_run '
    [ ! -s "$work/err" ] || complain 'wrote to stderr'
    verdict
fi

# cannot_start NAME STATUS PROGRAM
cannot_start() {
    case_is "program: $1" || return
    timed "$run" -n 3 "$3"
    expect_status "$2"
    expect_in err "cannot start $3: "
    [ "$(grep -c 'HINT: ' "$work/err")" = 1 ] || complain 'not one hint'
    verdict
}
cannot_start 'not found' 127 fsdp-no-such-program
cannot_start 'not executable' 126 /etc/passwd

if case_is 'program: its options are its own'; then
    timed "$run" -n 1 echo -n 5 --help -- x
    expect_status 0
    [ "$(cat "$work/out")" = '[0] 5 --help -- x' ] || complain "got $(cat "$work/out")"
    timed "$run" -n 1 -- echo x
    [ "$(cat "$work/out")" = '[0] x' ] || complain "behind --: got $(cat "$work/out")"
    verdict
fi

# ---- exit status ------------------------------------------------------------------------------------------------

one_early() {
    case_is 'status: all end well, one early' || return
    timed "$run" -n 3 sh -c "$rank"'[ $rank = 1 ] && exit 0; sleep 2.5; echo late'
    expect_status 0
    [ "$(grep -c 'late$' "$work/out")" = 2 ] || complain 'a rank that ended well has ended the others'
    [ ! -s "$work/err" ] || complain 'wrote to stderr'
    verdict
}

# fails NAME STATUS REGEX COMMAND -- rank 1 of 3 does COMMAND, the others would go on
fails() {
    case_is "status: $1" || return
    timed "$run" -n 3 sh -c "$rank"'[ $rank = 1 ] && { echo last words; '"$4"'; }; exec "$0" 1000' "$trainer-sleep"
    expect_status "$2"
    expect_in err "^\[fsdp_run\] rank 1 \(process [0-9]+\) $3; ending the others\$"
    expect_in out '^\[1\] last words$'
    expect_end
    check_left
    verdict
}
one_fails() {
    fails 'a rank ends with 3' 3 'ended with status 3' 'exit 3'
}
one_killed() {
    fails 'a rank is killed' 137 'was ended by signal 9 \(Killed\)' 'kill -KILL $$'
}
one_starts_more() {
    fails 'what a rank has started ends with it' 1 'ended with status 1' '"$0" 1001 & exit 1'
}

others_are_deaf() {
    case_is 'status: the others do not hear SIGTERM' || return
    timed "$run" -n 2 sh -c "$rank"'[ $rank = 1 ] && exit 7; trap "" TERM; "$0" 1000; "$0" 1000' "$trainer-sleep"
    expect_status 7
    expect_end
    check_left
    verdict
}

too_long() {
    case_is 'status: time limit' || return
    timed "$run" -n 2 --timeout 0.5 "$trainer-sleep" 1000
    expect_status 124
    expect_in err '^\[fsdp_run\] not done after 0.5 s; ending the ranks$'
    expect_end
    check_left
    verdict
}

# Nobody reads what the ranks write, nor the launcher's own lines.
nobody_reads() {
    local stalled begun
    case_is 'status: time limit, and nobody reads the output' || return
    begun=$(now_ms)
    mkfifo "$work/full" && exec {stalled}<>"$work/full" # a reader that takes nothing
    timeout $limit_s "$run" -n 2 --timeout 0.5 yes >"$work/full" 2>"$work/err"
    rc=$?
    expect_status 124
    expect_in err '^\[fsdp_run\] not done after 0.5 s, and nobody reads the output: the rest is dropped$'
    timeout $limit_s "$run" -n 2 --timeout 0.5 yes >"$work/full" 2>&1
    rc=$?
    expect_status 124
    [ $(($(now_ms) - begun)) -lt $((limit_s * 1000)) ] || complain 'timeout(1) has ended them'
    exec {stalled}<&-
    check_left
    verdict
}
# A restart is being waited for.
paused() {
    local signo
    case_is 'restarts: a signal during the pause' || return
    for signo in INT TERM HUP; do
        rm -f "$work/err"
        begin -n 1 --restarts 2 --restart-pause 30 false
        until_true 100 'grep -q "restart 1 of 2 in 30 s" "$work/err"'
        kill -$signo $job
        end 20
        expect_status $((128 + $(kill -l $signo)))
    done
    check_left
    verdict
}
times_out_in_pause() {
    case_is 'restarts: --timeout passes during the pause' || return
    timed "$run" -n 1 --timeout 1 --restarts 2 --restart-pause 30 false
    expect_status 124
    expect_in err '^\[fsdp_run\] not done after 1 s$'
    [ "$(grep -c 'ended with status 1' "$work/err")" = 1 ] || complain 'started again'
    check_left
    verdict
}

# ---- input and output -------------------------------------------------------------------------------------------

# Each rank prints lines of many lengths, in turn to both files; its buffers cut them anywhere.
lines='BEGIN { split(ENVIRON["FSDP_RUN"], w, " "); for (i = 0; i < 200; i++) pad = pad "x"
    for (i = 0; i < 10000; i++) printf "%d %d %s\n", w[1], i, substr(pad, 1, i * 7 % 199) > (i % 2 ? "/dev/stderr" : "/dev/stdout") }'
# check_lines STREAMS -- all of 4 ranks' lines on stdin: whole, and those of a rank and file in order
check_lines() {
    awk -v streams="$1" '
        { r = substr($1, 2) + 0; i = $3; s = i % 2 }
        $1 != "[" $2 "]" || r != $2 || length($4) != i * 7 % 199 || NF > 4 || i != next_i[r, s] * 2 + s { bad++ }
        { next_i[r, s]++ }
        END { if (bad || NR != 20000 * streams) { print bad + 0 " bad lines of " NR; exit 1 } }'
}
if case_is 'lines: 4 ranks to one slow pipe'; then
    said=$(timeout $limit_s "$run" -n 4 awk "$lines" 2>&1 | { sleep 0.5 && cat; } | check_lines 2) || complain "$said"
    verdict
fi
if case_is 'lines: 4 ranks to two files'; then
    timed "$run" -n 4 awk "$lines"
    expect_status 0
    said=$(check_lines 1 <"$work/out") || complain "stdout: $said"
    said=$(check_lines 1 <"$work/err") || complain "stderr: $said"
    verdict
fi
if case_is 'lines: longer than any buffer'; then
    timed "$run" -n 1 sh -c 'head -c 300000 /dev/zero | tr "\0" x; echo; echo y'
    { printf '[0] ' && head -c 300000 /dev/zero | tr '\0' x && printf '\n[0] y\n'; } | cmp -s - "$work/out" ||
        complain 'one rank: the line has changed'
    timed "$run" -n 3 sh -c 'head -c 300000 /dev/zero | tr "\0" x'
    [ "$(tr -dc x <"$work/out" | wc -c)" = 900000 ] || complain 'three ranks: not all has arrived'
    ! grep -vqE '^\[[0-2]\] x+$' "$work/out" || complain 'three ranks: a line without its rank'
    verdict
fi
if case_is 'lines: the last one without its end'; then
    timed "$run" -n 2 printf 'a\nb'
    [ "$(sort "$work/out" | tr '\n' ,)" = '[0] a,[0] b,[1] a,[1] b,' ] || complain "got $(cat "$work/out")"
    for option in --no-prefix --no_prefix; do
        timed "$run" -n 1 $option printf 'a\nb'
        [ "$(od -An -c "$work/out" | tr -d ' ')" = 'a\nb' ] || complain "$option: got $(od -c "$work/out")"
    done
    verdict
fi
if case_is 'lines: the reader leaves'; then
    begun=$(now_ms)
    timeout $limit_s "$run" -n 2 yes 2>"$work/err" | head -1 >"$work/out"
    rc=${PIPESTATUS[0]} took_ms=$(($(now_ms) - begun))
    expect_status 141
    expect_end
    verdict
fi
if case_is 'start: no file of that size'; then
    (ulimit -f 10 && timeout $limit_s "$run" -n 2 echo x) >"$work/out" 2>"$work/err"
    rc=$? # without a word it would be 153, of SIGXFSZ
    expect_status 1
    expect_in err 'no shared memory for 2 ranks: File too large'
    verdict
fi
if case_is 'lines: a full disk'; then
    timeout $limit_s "$run" -n 2 echo x >/dev/full 2>"$work/err"
    rc=$? # 1, or 141 of a rank that printed after that
    [ $rc != 0 ] || complain 'exit status 0'
    expect_in err 'cannot write to standard output: No space left'
    verdict
fi
if case_is 'lines: a file that may not grow'; then
    (ulimit -f 300 && timeout $limit_s "$run" -n 1 head -c 2000000 /dev/zero) >"$work/out" 2>"$work/err"
    rc=$?
    [ $rc != 0 ] && [ $rc != 153 ] || complain "exit status $rc"
    expect_in err 'cannot write to standard output: File too large'
    verdict
fi
if case_is 'input: for rank 0 alone'; then
    printf 'one\ntwo\n' | timeout $limit_s "$run" -n 3 cat >"$work/out" 2>"$work/err"
    [ "$(tr '\n' , <"$work/out")" = '[0] one,[0] two,' ] || complain "got $(cat "$work/out")"
    verdict
fi

# ---- signals ----------------------------------------------------------------------------------------------------

ready() {
    [ "$(grep -c "${2:-ready}\$" "$work/out")" = "$1" ]
}
# signalled SIGNAL STATUS
signalled() {
    case_is "signal: SIG$1 to the launcher" || return
    begin -n 3 sh -c 'echo ready; exec "$0" 1000' "$trainer-sleep"
    until_true 100 'ready 3'
    begun=$(now_ms)
    kill -"$1" $job
    end 100
    expect_status "$2"
    ! grep -q 'ending the others' "$work/err" || complain 'says that a rank has failed'
    check_left
    verdict
}
signalled TERM 143
signalled INT 130
signalled HUP 143 # passed on as SIGTERM
if case_is 'signal: SIGKILL to the launcher and its guard'; then
    begin -n 3 sh -c 'echo ready; exec "$0" 1000' "$trainer-sleep"
    until_true 100 'ready 3'
    kill -KILL $(pgrep -P $job -x 'fsdp_run guard') $job
    end 100
    check_left
    verdict
fi
if case_is 'signal: SIGKILL to the launcher, above a shell whose program never joins'; then
    begin -n 3 sh -c 'echo ready; "$0" 1000; true' "$trainer-sleep"
    until_true 100 'ready 3'
    until_true 100 '[ "$(pgrep -c -f "^$trainer-sleep")" = 3 ]'
    kill -KILL $job
    end 100
    check_left
    verdict
fi
deaf_to_signals() {
    case_is 'signal: ranks that do not hear SIGTERM are killed' || return
    begin --grace 1 -n 2 sh -c 'trap "" TERM; echo ready; "$0" 1000; "$0" 1000' "$trainer-sleep"
    until_true 100 'ready 2'
    begun=$(now_ms)
    kill -TERM $job
    end 100
    expect_status 137
    [ "$took_ms" -ge 1000 ] || complain "after $took_ms ms, before their time of grace was over"
    check_left
    verdict
}
stopped() {
    case_is 'signal: SIGTERM reaches ranks that were stopped' || return
    begin -n 2 sh -c 'echo ready; exec "$0" 1000' "$trainer-sleep"
    until_true 100 'ready 2'
    kill -STOP $(pgrep -f "^$trainer-sleep")
    begun=$(now_ms)
    kill -TERM $job
    end 100
    expect_status 143
    check_left
    verdict
}
unread() {
    case_is 'signal: SIGTERM twice, while nobody reads the output' || return
    mkfifo "$work/fifo" && exec 9<>"$work/fifo"
    env --default-signal=INT "$run" -n 2 yes >"$work/fifo" 2>"$work/err" </dev/null &
    job=$! begun=$(now_ms)
    sleep 1
    kill -TERM $job
    until_true 100 '! pgrep -P $job yes'
    kill -TERM $job
    end 100
    expect_status 143
    exec 9>&-
    verdict
}
signal_arrives() {
    case_is 'signal: SIGUSR1 arrives once' || return
    begin -n 3 sh -c 'trap "echo got; i=90" USR1; echo ready; i=0; while [ $i -lt 100 ]; do sleep 0.1; i=$((i + 1)); done; exit 0'
    until_true 100 'ready 3'
    kill -USR1 $job
    end 100
    expect_status 0
    ready 3 got || complain "$(grep -c 'got$' "$work/out") arrived, expected 3"
    verdict
}
second_signal() {
    case_is 'signal: a second SIGINT kills' || return
    begin -n 2 sh -c 'trap "" INT; echo ready; "$0" 1000' "$trainer-sleep"
    until_true 100 '[ "$(pgrep -c -f "^$trainer-sleep")" = 2 ]'
    kill -INT $job
    kill -INT $job # at once: the same keystroke, as timeout(1) sends it
    sleep 1
    [ "$(pgrep -c -f "^$trainer-sleep")" = 2 ] || complain 'the first one has ended the ranks'
    kill -INT $job
    end 100
    expect_status 130
    check_left
    verdict
}

# ---- trainings that wait ------------------------------------------------------------------------------------------

# train_and COMMAND OPTION... -- begins a training of 4 ranks that has no end, strikes when it trains. wrapper: what starts
# each rank; restarts: how many
wrapper=() restarts=
train_and() {
    rm -f "$work"/loss.csv*
    local strike=$1
    shift
    begin -n 4 --restarts "${restarts:-0}" --restart-pause 0.01 "${wrapper[@]}" "$trainer" $model $bits --steps 1000000 --loss-csv "$work/loss.csv" "$@"
    until_true 100 '[ "$(cat "$work"/loss.csv.*.tmp 2>/dev/null | wc -l)" -gt 3 ]'
    begun=$(now_ms)
    eval "$strike"
}
# process_of RANK -- of the job
process_of() {
    for pid in $(pgrep -P $job); do
        tr '\0' '\n' <"/proc/$pid/environ" | grep -q "^FSDP_RUN=$1 " && echo $pid
    done
}
# Files that are slow to write: the others wait, although they give a call no such time.
slow_files() {
    case_is 'training: a file system that takes longer than FSDP_TIMEOUT_S' || return
    printf '%s\n' '#include <stdlib.h>' '#include <string.h>' '#include <unistd.h>' 'int fsync(int fd) {' \
        'static int n;' 'if (strncmp(getenv("FSDP_RUN"), "0 ", 2) == 0 && n++ % 12 == 0) usleep(4000000);' 'return fdatasync(fd); }' >"$work/slow.c"
    ${CC:-cc} -shared -fPIC -o "$work/slow.so" "$work/slow.c" || complain 'no slow.so'
    timed "$run" -n 2 env FSDP_TIMEOUT_S=3 LD_PRELOAD="$work/slow.so" "$trainer" $model $bits --steps 2 \
        --export-init "$work/slow-init" --export "$work/slow-export" --save "$work/slow-save" --loss-csv "$work/slow.csv"
    expect_status 0
    [ -s "$work/slow-export/model.safetensors" ] || complain 'no export'
    check_left
    verdict
}
stopped_long() {
    case_is 'training: stopped for longer than FSDP_TIMEOUT_S, and continued' || return
    export FSDP_TIMEOUT_S=4
    train_and 'kill -TSTP $job; sleep 7; lines=$(cat "$work"/loss.csv.*.tmp | wc -l); kill -CONT $job'
    unset FSDP_TIMEOUT_S
    until_true 100 '[ "$(cat "$work"/loss.csv.*.tmp | wc -l)" -gt $((lines + 3)) ]'
    [ ! -s "$work/err" ] || complain 'wrote to stderr'
    kill -TERM $job
    end 100
    expect_status 143
    check_left
    verdict
}
restarts_end() {
    case_is 'restarts: so many and no more' || return
    begun=$(now_ms)
    timed "$run" -n 2 --restarts 2 --restart-pause 0.4 sh -c "$rank"'[ $rank = 0 ] || exit 5; exec "$0" 1000' "$trainer-sleep"
    expect_status 5
    [ "$(grep -cE 'restart (1 of 2 in 0.4|2 of 2 in 0.8) s$' "$work/err")" = 2 ] || complain 'not two restarts, or other pauses'
    [ $(($(now_ms) - begun)) -ge 1200 ] || complain 'no pause'
    [ "$(grep -c 'ended with status 5' "$work/err")" = 3 ] || complain 'not three tries'
    check_left
    verdict
}

# Cases that wait, also in the parts on exit status and signals. The other cases go on meanwhile.
side_by_side slow_files stopped_long restarts_end one_early one_fails one_killed one_starts_more others_are_deaf too_long \
    nobody_reads paused times_out_in_pause signal_arrives second_signal deaf_to_signals stopped unread

# ---- training ---------------------------------------------------------------------------------------------------

if case_is 'training: the same bits as one device'; then
    timed "$trainer" --parallel single $model $bits --steps 4 --loss-csv "$work/1.csv"
    expect_status 0
    for w in 1 2 3 4; do
        timed "$run" -n $w "$trainer" $model $bits --steps 4 --loss-csv "$work/$w-ranks.csv"
        expect_status 0
        [ ! -s "$work/err" ] || complain 'wrote to stderr'
        expect_in out "^\[0\] fsdp: .* $w rank"
        "$compare" "$work/1.csv" "$work/$w-ranks.csv" >"$work/err" || complain "$w ranks: other bits"
    done
    check_left
    verdict
fi
if case_is 'training: from a folder with a space in its name'; then
    mkdir "$work/a folder"
    cp "$run" "$trainer" "$work/a folder"
    (cd "$work/a folder" && timeout $limit_s ./fsdp_run -n 2 "./${trainer##*/}" $model $bits --steps 2 --loss-csv 'a file.csv') \
        >"$work/out" 2>"$work/err"
    rc=$?
    expect_status 0
    [ -s "$work/a folder/a file.csv" ] || complain 'no loss file'
    verdict
fi
if case_is 'training: different options'; then
    timed "$run" -n 3 sh -c "$rank"'exec "$0" "$@" --steps $((5 + rank / 2))' "$trainer" $model $bits
    expect_in err "the option differs: rank 2 has 'steps=6', rank 0 has 'steps=5'"
    expect_status 1
    check_left
    verdict
fi
# refused NAME REGEX COMMAND...
refused() {
    local regex=$2
    case_is "training: $1" || return
    shift 2
    timed "$@"
    expect_status 1
    expect_in err "$regex"
    expect_in err 'HINT: '
    check_left
    verdict
}
refused '--comm mpi' '--comm mpi under fsdp_run' "$run" -n 2 "$trainer" $model $bits --steps 1 --comm mpi
refused 'twice in one start' 'has joined already' "$run" -n 2 sh -c '"$@" && exec "$@"' sh "$trainer" $model $bits --steps 1
refused 'files that are not the launcher'\''s' "launcher's files 0 and 2 are not open" \
    env FSDP_RUN='0 2 0 2' "$trainer" $model $bits --steps 1

if case_is 'training: files that may not grow'; then
    (ulimit -f 20 && timeout $limit_s "$trainer" $model $bits --steps 2 --export "$work/large") >"$work/out" 2>"$work/err"
    rc=$?
    expect_status 1
    expect_in err 'write: File too large'
    expect_in err '^HINT: '
    verdict
fi

if case_is 'training: a rank is killed'; then
    train_and 'dead=$(process_of 2); kill -KILL $dead'
    end 100
    expect_status 137
    expect_in err "^\[fsdp_run\] rank 2 \(process $dead\) was ended by signal 9 \(Killed\); ending the others\$"
    for r in 0 1 3; do
        expect_in err "^\[$r\] .*rank 2 \(process $dead\) ended without leaving the group"
    done
    check_left
    verdict
fi
if case_is 'training: the launcher is killed'; then
    train_and 'kill -KILL $job'
    end 100
    check_left
    verdict
fi
if case_is 'training: the launcher is killed, far above its ranks'; then
    wrapper=(sh -c 'sh -c "\"\$0\" \"\$@\"; true" "$0" "$@"; true')
    train_and 'kill -KILL $job'
    wrapper=()
    end 100
    check_left
    verdict
fi
if case_is 'training: the launcher is terminated'; then
    train_and 'kill -TERM $job'
    end 100
    expect_status 143
    check_left
    verdict
fi

# A signal to all ranks, or to one: the checkpoint has the bits of a run that nobody disturbed.
saves='--save-every 1000000 --steps 1000000'
# goes_on W -- from $work/asked, for two steps
goes_on() {
    local step
    step=$(sed -n 's/^step-//p' "$work/asked/latest")
    [ "${step:-0}" -gt 3 ] || complain "saved at step '$step'"
    timed "$trainer" --parallel single $model $bits --steps $((step + 2)) --loss-csv "$work/whole.csv"
    expect_status 0
    timed "$run" -n "$1" "$trainer" $model $bits --steps $((step + 2)) --loss-csv "$work/rest.csv" --resume "$work/asked"
    expect_status 0
    [ "$(losses "$work/rest.csv" | tail -2)" = "$(losses "$work/whole.csv" | tail -2)" ] || complain 'other losses afterwards'
    rm -rf "$work/asked"* "$work"/*.csv
}
for to in 'the launcher' 'a rank'; do
    if case_is "training: SIGTERM to $to saves and ends"; then
        train_and '[ "$to" = "a rank" ] && job_or_rank=$(process_of 2); kill -TERM ${job_or_rank:-$job}' --save "$work/asked" $saves
        end 100
        expect_status 143
        expect_in out 'ended by SIGTERM'
        [ "$to" = 'a rank' ] || [ ! -s "$work/err" ] || complain 'wrote to stderr'
        check_left
        goes_on 3
        verdict
    fi
done
if case_is 'training: SIGUSR1 saves and goes on'; then
    train_and 'kill -USR1 $job' --save "$work/asked" $saves
    until_true 100 '[ -s "$work/asked/latest" ]'
    # The file is written anew after a save. A rank that hears the signal some steps later makes all save again.
    until_true 100 'lines=$(cat "$work"/loss.csv.*.tmp | wc -l); [ "$lines" -gt 0 ]'
    until_true 100 '[ "$(cat "$work"/loss.csv.*.tmp | wc -l)" -gt $((lines + 20)) ]'
    cp -r "$work/asked" "$work/saved"
    kill -TERM $job
    end 100
    expect_status 143
    rm -rf "$work/asked" && mv "$work/saved" "$work/asked"
    goes_on 1
    verdict
fi

# ---- restarts ---------------------------------------------------------------------------------------------------

if case_is 'restarts: from the last checkpoint, with the same bits'; then
    restarts=2
    train_and 'until_true 100 "[ -s $work/asked/latest ]"; kill -KILL $(process_of 1)' --save "$work/asked" --save-every 20 \
        --resume auto
    restarts=
    until_true 100 'resumed=$(sed -n "s/.*resumed at step //p" "$work/out"); [ -n "$resumed" ]'
    until_true 100 '[ "$(saved_step "$work/asked")" -gt "$resumed" ]'
    kill -TERM $job
    end 100
    expect_status 143
    expect_in err '^\[fsdp_run\] restart 1 of 2 in 0.01 s$'
    expect_in out 'resumed at step [0-9]*0$'
    timed "$trainer" --parallel single $model $bits --steps $((1 + $(tail -n 1 "$work/loss.csv" | cut -d, -f1))) --loss-csv "$work/whole.csv"
    expect_status 0
    [ "$(losses "$work/loss.csv" | tail -10)" = "$(losses "$work/whole.csv" | tail -10)" ] || complain 'other losses'
    rm -rf "$work/asked"*
    check_left
    verdict
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
    verdict
fi

if case_is 'build: MPI=0'; then
    make -n MPI=0 BUILD="$work/b" "$work/b/fsdp_run" >"$work/out" 2>"$work/err" || complain 'make -n MPI=0 fails'
    ! grep -qE 'FSDP_HAVE_MPI|lmpich' "$work/out" || complain 'MPI is still used'
    said=$(PATH=$work/none MPI=0 /bin/bash tests/tools/deps.sh --check build 2>&1) # a machine that has nothing
    [[ $said = *missing:*gcc* && $said != *mpich* ]] || complain "deps.sh: $said"
    said=$(unset MPI && PATH=$work/none /bin/bash tests/tools/deps.sh --check build 2>&1)
    [[ $said = *mpich* ]] || complain "deps.sh without MPI=0: $said"
    verdict
fi

wait_beside
name='nothing is left'
check_left
verdict
cli_end
