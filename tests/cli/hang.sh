#!/bin/bash
# hang.sh -- a job that stands still: each rank writes its last calls, at a timeout, for a failed peer, at SIGTERM and at
# SIGUSR2, and build/fsdp_trace --hang DIR says which rank is behind, at which call.
#
#   tests/cli/hang.sh [BUILD]        default build
#   CASES=REGEX                      only the cases whose names match
#
# Prints PASS, FAIL and SKIP lines and a last line with their numbers.
# shellcheck disable=SC2016,SC2086,SC2154
set -u
cd "$(dirname "$0")/../.." || exit 2
. tests/cli/lib.sh
cli_namespace "$PWD/tests/cli/hang.sh" "$@"
cli_begin "${1:-build}"
dir=$new/hang
export OMP_NUM_THREADS=1
# A constant rate, so that the number of steps changes nothing but the end.
run="--n-layer 1 --d-model 16 --n-head 2 --seq-len 16 --synthetic 5000 --reduction canonical --global-batch 12 --lr 1e-3"
run="$run --min-lr 1e-3 --warmup-steps 0 --steps 300"
forever="$run --steps 1000000"

# begin WORDS... -- in the background: WORDS are the launcher's and those before the trainer's options; the id in $job
begin() {
    rm -rf "$dir" "$new/save" "$new"/loss.csv*
    "$@" --loss-csv "$new/loss.csv" >"$work/out" 2>"$work/err" </dev/null &
    job=$!
    until_true 100 'grep -qs "^1," "$new"/loss.csv*'
}

# goes_on -- the job in the background trains on, with the losses of the plain run, and ends when it is told to
goes_on() {
    local n
    n=$(($(cat "$new"/loss.csv* | wc -l) + 20))
    until_true 100 "[ \$(cat '$new'/loss.csv* | wc -l) -gt $n ]"
    kill -TERM $job
    wait_for_end 100
    expect_status 143
    n=$(losses "$new/loss.csv" | wc -l)
    [ "$n" -gt 20 ] || complain "$n rows"
    [ "$n" -le 301 ] || n=301
    [ "$(losses "$new/loss.csv" | head -n $n)" = "$(losses "$new/plain.csv" | head -n $n)" ] || complain 'other losses'
}

# report -- sets rc, $work/out, $work/err
report() {
    timed "$BUILD/fsdp_trace" --hang ${1:-$dir}
}

# says TEXT... -- the report holds each
says() {
    for text; do
        grep -qF -- "$text" "$work/out" || complain "no '$text' in: $(cat "$work/out")"
    done
}

# in_calls -- the ranks that the report finds in a call, in any
in_calls() {
    sed -n 's/^  in it: ranks* //p' "$work/out" | xargs -n 1 | sort -u | xargs
}

# explained [DIR]
explained() {
    report "$@"
    [ "$rc" = 0 ] || complain "fsdp_trace: exit status $rc: $(cat "$work/err")"
}

# refused NAME PART [DIR] -- the tool ends with 1, one message that holds PART, and a hint
refused() {
    name=$1
    chosen || return
    report "${3:-$dir}"
    expect_status 1
    grep -qF -- "$2" "$work/err" || complain "no '$2'"
    grep -q '^HINT: ' "$work/err" || complain 'no hint'
    ! grep -q '^=>' "$work/out" || complain 'somebody is blamed'
    verdict
}

# odd CASE SECONDS -- begins tests/unit/comm_faults.c on three ranks, the last of which is the odd one; they wait so long
declare -A odd_job
odd() {
    FSDP_HANG_DIR=$new/$1 FSDP_TIMEOUT_S=$2 timeout -k 2 "$limit_s" $starts -n 3 "$BUILD/tests/unit/comm_faults" "$1" >/dev/null 2>&1 &
    odd_job[$1]=$!
}

# Meanwhile, for they mostly wait. Below a link hosts' calls and collectives have numbers of their own.
FSDP_LINK=1Gbit,100us odd skipped 60
odd timeout 2
odd kill 60
odd gone_early 60

# Likewise, in a folder of its own.
stopped_mpi() {
    work=$(mktemp -d /tmp/fsdp-cli.XXXXXX) && cp "$trainer" "$work/fsdp_train" || exit
    trainer=$work/fsdp_train new=$work dir=$work/hang
    trap 'cli_kill_left; rm -rf "$work"' EXIT
    export FSDP_HANG_DIR=$dir FSDP_TIMEOUT_S=2
    begin $LAUNCHER -n 2 "$trainer" $forever --comm mpi
    kill -STOP "$(rank_pid 1)"
    wait_for_end 100
    explained
    says 'files of rank 0' 'no file of rank 1' 'rank 0 says: rank 0 waited 2.0 s in ' '2 ranks over mpi' '=> rank 1 is behind'
    verdict
}
stopped_job=''
if no_mpi 'a stopped rank, over MPI'; then
    n_skipped=$((n_skipped + 1))
elif case_is 'a stopped rank is named after the timeout (W=2, mpi)'; then
    stopped_mpi >"$work/mpi.log" 2>&1 &
    stopped_job=$!
fi

# ---- ranks that are stopped ---------------------------------------------------------------------------------------

export FSDP_HANG_DIR=$dir
name='a run that ends leaves no file (W=3)'
launch 3 $run --loss-csv "$new/plain.csv"
[ "$rc" = 0 ] && [ -z "$(ls "$dir")" ] || complain "exit status $rc, files: $(ls "$dir")"
verdict

if case_is 'a stopped rank is named, and the run goes on to the same bits (W=3, shm)'; then
    begin $starts -n 3 "$trainer" $forever --save "$new/save"
    stopped=$(rank_pid 1)
    kill -STOP $stopped
    # until both have waited for a second, and written that
    until_true 100 'kill -USR2 $job; sleep 0.3; report; [ $rc = 0 ] && grep -q "^files of ranks 0 2" "$work/out" && [ "$(in_calls)" = "0 2" ]'
    says 'files of ranks 0 2' 'no file of rank 1' ', 3 ranks over shm, for ' 'behind: rank 1, no file' \
        '=> rank 1 is behind: the others wait for it'
    kill -CONT $stopped
    until_true 100 'grep -qs "^why SIGUSR2\$" "$dir/rank-00001.txt"'
    goes_on
    check_no_tmp
    verdict
fi

if case_is 'a stopped rank is named among several groups (W=4, shm, hybrid)'; then
    begin $starts --grace 1 -n 4 "$trainer" $forever --global-batch 16 --sharding hybrid --fsdp-size 2
    kill -STOP "$(rank_pid 3)"
    until_true 100 'kill -USR2 $job; sleep 0.3; report; [ $rc = 0 ] && grep -q "^=> rank 3 is behind" "$work/out"'
    says 'no file of rank 3' '=> rank 3 is behind: the others wait for it'
    kill -TERM $job
    wait_for_end 100
    verdict
fi

# ---- signals ------------------------------------------------------------------------------------------------------

if case_is 'SIGTERM writes and ends a run that stands still (W=2)'; then
    begin $starts --grace 1 -n 2 "$trainer" $forever
    kill -STOP "$(rank_pid 1)"
    kill -TERM "$(rank_pid 0)"
    until_true 100 '[ -s "$dir/rank-00000.txt" ]'
    grep -q '^why SIGTERM$' "$dir/rank-00000.txt" || complain "$(head -5 "$dir/rank-00000.txt")"
    kill -TERM $job
    wait_for_end 100
    expect_status 143
    verdict
fi

# The last rank's thread is still writing what SIGUSR2 asked for: whoever else takes SIGTERM comes before it, and the job
# has saved, on the word of the first rank, before it has time for it.
if case_is 'SIGTERM writes, saves and ends (W=2)'; then
    printf '%s\n' '#include <stdlib.h>' '#include <string.h>' '#include <sys/prctl.h>' '#include <unistd.h>' 'int fsync(int fd) {' \
        'char thread[16] = ""; prctl(PR_GET_NAME, thread);' \
        'if (strcmp(thread, "hang") == 0 && getenv("FSDP_RUN")[0] == 49) sleep(1);' 'return fdatasync(fd); }' >"$work/slow.c"
    ${CC:-cc} -shared -fPIC -o "$work/slow.so" "$work/slow.c" || complain 'no slow.so'
    begin env LD_PRELOAD="$work/slow.so" $starts -n 2 "$trainer" $forever --save "$new/save"
    kill -USR2 $(rank_pid 1)
    until_true 100 'ls "$dir"/rank-00001.txt.*.tmp >/dev/null 2>&1'
    kill -TERM $job
    wait_for_end 100
    expect_status 143
    grep -q '^ended by SIGTERM' "$work/out" && [ -s "$new/save/latest" ] || complain 'nothing is saved'
    [ "$(grep -l '^why SIGTERM$' "$dir"/rank-0000[01].txt | wc -l)" = 2 ] || complain "files: $(grep '^why' "$dir"/*)"
    verdict
fi

if case_is 'SIGUSR2 before a rank is up ends nobody (W=2)'; then
    rm -rf "$dir"
    timed $starts -n 2 sh -c 'kill -USR2 $PPID; sleep 0.1; exec "$0" "$@"' "$trainer" $run --steps 2
    expect_status 0
    verdict
fi

if case_is 'SIGUSR2 without FSDP_HANG_DIR prints the last calls, and the run goes on (W=2)'; then
    unset FSDP_HANG_DIR
    begin $starts -n 2 "$trainer" $forever --save "$new/save"
    kill -USR2 $job
    until_true 100 '[ "$(grep -c "^\[rank [01]\] last calls, oldest first:\$" "$work/err")" = 2 ]'
    goes_on
    export FSDP_HANG_DIR=$dir
    verdict
fi

if case_is 'FSDP_HANG_DIR cannot be written: a word, and the run goes on (W=2)'; then
    echo text >"$new/file"
    export FSDP_HANG_DIR=$new/file
    begin $starts -n 2 "$trainer" $forever --save "$new/save"
    kill -USR2 $job # said by both at the start, and at the signal
    until_true 100 '[ "$(grep -c "FSDP_HANG_DIR: cannot write into $new/file: " "$work/err")" = 4 ]'
    goes_on
    export FSDP_HANG_DIR=$dir
    verdict
fi

# ---- ranks that disagree, wait or die -----------------------------------------------------------------------------

# calls CASE -- what the job that odd began has left
calls() {
    wait "${odd_job[$1]}"
    explained "$new/$1"
}

if case_is 'a rank skips a collective: both calls are named'; then
    calls skipped
    says 'files of ranks 0-2'
    grep -qx "ranks disagree: rank [01] called all-gather #3 'skipped' of 320 f32, rank 2 called all-gather #3 'next' of 320 f32" \
        "$work/out" || complain "$(cat "$work/out")"
    verdict
fi
if case_is 'FSDP_HANG_DIR cannot be written: a failure keeps its own words'; then
    echo text >"$new/file"
    FSDP_HANG_DIR=$new/file timed $starts -n 3 "$BUILD/tests/unit/comm_faults" skipped
    [ "$(grep -c '^SAW rank [0-2] FSDP_EMISMATCH .*ranks disagree: ' "$work/out")" = 3 ] || complain "$(cat "$work/out")"
    verdict
fi
if case_is 'a rank never calls: it is named with its last call'; then
    calls timeout
    says "all-gather #4 'awaited' of 320 f32, 3 ranks over shm" 'behind: rank 2, not called' \
        "the last call of rank 2 there: all-gather #3 'warm up' of 320 f32, " '=> rank 2 is behind'
    verdict
fi
if case_is 'a rank dies: the others write who it was'; then
    calls kill
    says 'no file of rank 2' 'rank 0 says: rank 2 (process ' 'ended without leaving the group'
    verdict
fi
if case_is 'a rank never comes: the others write who it is'; then
    calls gone_early
    says 'files of ranks 0-1' 'no file of rank 2' ' says: comm_open: rank 2 (process ' '=> rank 2 is behind'
    verdict
fi

# ---- files --------------------------------------------------------------------------------------------------------

# wrote RANK RANKS LINE... -- its file, by hand; began, when: seconds of its run's begin and of its own end; run_id: which run
wrote() {
    mkdir -p "$dir"
    { printf 'fsdp-hang 1\nrank %s of %s\nopened %s run %s\nwritten %s\nwhy SIGUSR2\n' "$1" "$2" "${began:-1000}" "${run_id:-0}" "${when:-2000}" &&
        printf '%s\n' "${@:3}" end; } >"$dir/rank-$(printf %05d "$1").txt"
}

rm -rf "$dir"
gathers="0a all-gather #7 'h.0' of 320 f32"
if case_is 'all are in the call: the data is under way'; then
    for rank in 0 1 2; do
        wrote $rank 3 'group 1 0 mpi last 8 ranks 0 1 2' "call 1 7 running 5.5 5.$rank -1 $gathers" 'call 1 8 issued 1 -1 -1 0b x'
    done
    explained
    says "all-gather #7 'h.0' of 320 f32, 3 ranks over mpi, for 5.200 s:" 'in it: ranks 0-2' 'nobody is behind: the data is under way'
    ! grep -q '^=>' "$work/out" || complain 'somebody is blamed'
    verdict
fi
if case_is 'a call that one has still queued, and another is through with'; then
    wrote 1 3 'group 4 0 mpi last 9 ranks 0 1 2' "call 4 7 issued 5 -1 -1 $gathers"
    wrote 2 3 'group 1 0 mpi last 90 ranks 0 1 2'
    explained
    says 'in it: rank 0' 'through: rank 2' 'behind: rank 1, issued, but its stream has not come to it' '=> rank 1 is behind'
    verdict
fi
if case_is 'of two calls in flight the one that a rank has not come to'; then
    rm -rf "$dir"
    wrote 0 2 'group 1 0 shm last 8 ranks 0 1' 'call 1 7 running 5 5 -1 0a a' 'call 1 8 running 4 4 -1 0b b'
    wrote 1 2 'group 1 0 shm last 7 ranks 0 1' 'call 1 7 running 5 5 -1 0a a'
    explained
    says 'b, 2 ranks over shm' '=> rank 1 is behind'
    verdict
fi
if case_is 'a rank that waits in another group is not blamed'; then
    rm -rf "$dir"
    wrote 0 3 'group 1 1 shm last 3 ranks 0 1' 'call 1 3 running 5 5 -1 0a a'
    wrote 1 3 'group 1 1 shm last 2 ranks 0 1' 'group 2 2 shm last 9 ranks 1 2' 'call 2 9 running 6 6 -1 0b b'
    wrote 2 3 'group 7 2 shm last 8 ranks 1 2' 'call 7 8 done 7 7 7 0c c'
    explained
    says 'a, 2 ranks over shm' 'behind: rank 1, not called' 'b, 2 ranks over shm' 'rank 2 there: c, 7.000 s before' '=> rank 2 is behind'
    verdict
fi
if case_is 'ranks that wait for each other'; then
    rm -rf "$dir"
    wrote 0 2 'group 1 1 shm last 3 ranks 0 1' 'group 2 2 shm last 3 ranks 0 1' 'call 1 3 running 5 5 -1 0a a'
    wrote 1 2 'group 1 2 shm last 4 ranks 0 1' 'group 2 1 shm last 2 ranks 0 1' 'call 1 4 running 5 5 -1 0b b'
    explained
    says '=> ranks 0-1 wait for each other'
    verdict
fi
if case_is 'nobody has made a call'; then
    rm -rf "$dir"
    wrote 0 4
    wrote 2 4
    explained
    says 'no rank has made a call' '=> ranks 1 3 are behind'
    verdict
fi
rm -rf "$dir"
wrote 0 2 'group 1 0 shm last 7 ranks 0 1' "call 1 7 running 5 0.5 -1 $gathers"
wrote 1 2 'group 1 0 shm last 6 ranks 0 1'
refused 'ranks that are at work' 'no rank has been in a call for 1 s'
if case_is 'a file of an earlier run counts as none'; then
    sed -i 's/ 0.5 / 4.5 /' "$dir/rank-00000.txt"
    when=900 wrote 1 2 'group 1 0 shm last 7 ranks 0 1' "call 1 7 done 5 5 5 $gathers"
    when=901 wrote 3 4 'group 1 0 shm last 7 ranks 0 1 2 3'
    explained
    says 'only a file of an earlier run of rank 1' 'behind: rank 1, no file' '=> rank 1 is behind'
    verdict
fi
if case_is 'so does one of another run of fsdp_run, but not one of a rank that had ended before another began'; then
    began=990 run_id=5 wrote 1 2 'group 1 0 shm last 7 ranks 0 1' "call 1 7 done 5 5 5 $gathers"
    began=1500 run_id=6 wrote 0 2 'group 1 0 shm last 7 ranks 0 1' "call 1 7 running 5 4.5 -1 $gathers"
    explained
    says 'only a file of an earlier run of rank 1'
    began=990 run_id=6 when=1400 wrote 1 2
    explained
    says 'files of ranks 0-1' 'behind: rank 1, not called'
    verdict
fi
wrote 0 2 'group 1 0 shm last 7 ranks 0 1' "call 1 7 running 5 4.5 -1 $gathers"
wrote 3 4
refused 'files of two jobs' 'files of jobs of 2 and of 4 ranks'
rm "$dir/rank-00003.txt"
wrote 1 2 'group 1 0 shm last 7 ranks 0 1' 'call 2 7 done 5 5 5 0a x'
refused 'a call of no group' 'rank-00001.txt: line 7 is damaged'
wrote 1 2 'group 1 0 shm last 7 ranks 1'
refused 'a group of other ranks' 'rank-00001.txt: line 6 is damaged'
wrote 1 2 'group 1 0 shm last 7 ranks 0 1 2'
refused 'a rank that there is not' 'rank-00001.txt: line 6 is damaged'
wrote 1 2 'group 1 0 shm last 7 ranks 0 1'
sed -i '$d' "$dir/rank-00001.txt"
refused 'a file that is cut off' 'rank-00001.txt: line 6 is damaged, or the last of a file that is cut off'
head -c 40 /dev/urandom >"$dir/rank-00001.txt"
refused 'noise' 'rank-00001.txt: line 1 is damaged'
sed 's/rank 0/rank 1/; s/hang 1/hang 2/' "$dir/rank-00000.txt" >"$dir/rank-00001.txt"
refused 'another version' 'rank-00001.txt: line 1 is damaged'
rm -rf "$dir"
refused 'no directory' "cannot read $dir: No such file or directory"
mkdir "$dir"
refused 'no files' 'no rank has left a file there'
refused 'a directory and traces' 'got traces in' "$dir $dir"
[ -z "$stopped_job" ] || {
    wait $stopped_job
    cat "$work/mpi.log"
    n_passed=$((n_passed + $(grep -c '^PASS' "$work/mpi.log"))) n_failed=$((n_failed + $(grep -c '^FAIL' "$work/mpi.log")))
}
cli_end
