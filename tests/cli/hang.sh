#!/bin/bash
# hang.sh -- a job that hangs: what ranks write about their last calls at a timeout, for a failed peer, at SIGTERM and at
# SIGUSR2. The commands of docs/hangs.md, sort -m and diff, show which rank is late and in which call.
. "$(dirname "$0")/lib.sh"
cli_start "$@"
dir=$new/hang csv=$new/loss.csv
# A constant rate, so that the number of steps changes only where the run ends.
run="--n-layer 1 --d-model 16 --n-head 2 --seq-len 16 --synthetic 5000 --reduction canonical --global-batch 12 --lr 1e-3"
run="$run --min-lr 1e-3 --warmup-steps 0 --steps 300"
forever="$run --steps 1000000"

# begin WORDS... -- starts a job in the background, its id in $job. WORDS: the launcher and what precedes the trainer's options
begin() {
    rm -rf "$dir" "$new/save" "$new"/loss.csv*
    "$@" --loss-csv "$new/loss.csv" >"$work/out" 2>"$work/err" </dev/null &
    job=$!
    until_true 'grep -qs "^1," "$new"/loss.csv*'
}

# goes_on -- the background job trains on with the losses of the plain run, and ends when it gets SIGTERM
goes_on() {
    local n
    trains_on 20
    hurt 'kill -TERM $job'
    expect_status 143
    n=$(losses "$new/loss.csv" | wc -l)
    [ "$n" -gt 20 ] || complain "$n rows"
    [ "$n" -le 301 ] || n=301
    [ "$(losses "$new/loss.csv" | head -n $n)" = "$(losses "$new/plain.csv" | head -n $n)" ] || complain 'other losses'
}

# merged -- the command of docs/hangs.md: calls that are not done, each with the number of ranks that have this line
merged() {
    (cd "$dir/.." && LC_ALL=C sort -m "$(basename "$dir")"/rank-*.txt | uniq -c | grep -v ' done$')
}

# apart RANK RANK -- the command of docs/hangs.md for two ranks
apart() {
    LC_ALL=C diff "$dir/rank-0000$1.txt" "$dir/rank-0000$2.txt"
}

# files RANKS -- exactly these ranks have written files; each file is sorted and its calls are aligned in columns
files() {
    local f
    [ "$(ls "$dir" | sed -n 's/^rank-0000\([0-9]\)\.txt$/\1/p' | xargs)" = "$1" ] || complain "files: $(ls "$dir" | xargs)"
    for f in "$dir"/rank-*.txt; do
        LC_ALL=C sort -c "$f" || complain "$f is not sorted"
        [ -z "$(grep -vE '^# (group [0-9a-f]{16}/|rank [0-9]{5} of [0-9]{5}, )|^[0-9a-f]{16}/[a-z+]+ +[0-9]{10} [a-z -]{14} [ 0-9]{12} .{37} (issued|running|done|failed)$' "$f")" ] ||
            complain "$f: $(cat "$f")"
    done
}

# waits RANKS CALL -- that many ranks are in CALL, an extended regular expression
waits() {
    merged | grep -qE "^ *$1 [0-9a-f]{16}/[a-z+]+ +[0-9]{10} $2 +(running|failed)$"
}

# shows TEXT... -- the merged files contain each TEXT
shows() {
    for text; do
        merged | grep -qF -- "$text" || complain "no '$text' in: $(merged)"
    done
}

# odd CASE SECONDS -- starts a case of tests/unit/comm_faults.c on three ranks; the last is the odd one, the others time out after
# SECONDS
declare -A odd_job
odd() {
    FSDP_HANG_DIR=$new/$1 FSDP_TIMEOUT_S=$2 "$top_of_tree/tests/tools/limit.sh" -k 2 "$limit_s" $starts -n 3 "$build/tests/unit/comm_faults" "$1" >/dev/null 2>&1 &
    odd_job[$1]=$!
}

# These jobs mostly wait, so they run while other cases do. With FSDP_LINK, calls between hosts and
# collectives are numbered separately.
FSDP_LINK=1Gbit,100us odd skipped 60
odd timeout 2
odd kill 60
odd gone_early 60

stopped_mpi() {
    dir=$new/hang
    export FSDP_HANG_DIR=$dir FSDP_TIMEOUT_S=2
    case_is 'a stopped rank is named after the timeout (W=2, mpi)' || return
    begin $MPI_LAUNCHER -n 2 "$trainer" $forever --comm mpi
    hurt 'kill -STOP "$(rank_pid 1)"'
    files 0
    shows '/mpi      ranks 0 1' '# rank 00000 of 00002, started ' ': rank 0 waited 2.0 s in '
    merged | grep -qE ' waits for [2-9]\.[0-9]{3} s: ' || complain "$(merged)"
    waits 1 '.*' || complain "it is in no call: $(merged)"
}
if [ -n "$NO_MPI" ]; then
    skip 'a stopped rank, over MPI' "$NO_MPI"
else
    beside stopped_mpi
fi

# ---- ranks that are stopped ---------------------------------------------------------------------------------------

export FSDP_HANG_DIR=$dir
case_is 'a run that ends leaves no file (W=3)'
launch 3 $run --loss-csv "$new/plain.csv"
[ "$rc" = 0 ] && [ -z "$(ls "$dir")" ] || complain "exit status $rc, files: $(ls "$dir")"

if case_is 'a stopped rank is named, and the run goes on to the same bits (W=3, shm)'; then
    begin $starts -n 3 "$trainer" $forever --save "$new/save"
    stopped=$(rank_pid 1)
    kill -STOP $stopped
    # until both ranks have reached and written the call that the third rank does not make
    until_true 'kill -USR2 $job; sleep 0.3; waits 2 ".*"'
    files '0 2'
    shows '/shm      ranks 0 1 2' '# rank 00000 of 00003, started ' '# rank 00002 of 00003, started ' ' s: SIGUSR2'
    kill -CONT $stopped
    until_true 'grep -qs "^# rank 00001 of 00003, .*: SIGUSR2\$" "$dir/rank-00001.txt"'
    goes_on
    check_no_tmp
fi

if case_is 'a stopped rank is named among several groups (W=4, shm, hybrid)'; then
    begin $starts --grace 1 -n 4 "$trainer" $forever --global-batch 16 --sharding hybrid --fsdp-size 2
    kill -STOP "$(rank_pid 3)"
    # a call that all ranks of a group make except one, which has no file
    lacks_one() {
        merged | awk '$2 == "#" && $3 == "group" { n[$4] = NF - 5; last[$4] = $NF }
            $NF == "running" && $1 == n[$2] - 1 && last[$2] == 3 { found = 1 } END { exit !found }'
    }
    until_true 'kill -USR2 $job; sleep 0.3; lacks_one'
    files '0 1 2'
    hurt 'kill -TERM $job'
fi

# ---- signals ------------------------------------------------------------------------------------------------------

if case_is 'SIGTERM writes and ends a run that stands still' 2; then
    begin $starts --grace 1 -n 2 "$trainer" $forever
    kill -STOP "$(rank_pid 1)"
    kill -TERM "$(rank_pid 0)"
    until_true '[ -s "$dir/rank-00000.txt" ]'
    grep -q '^# rank 00000 of 00002, .*: SIGTERM$' "$dir/rank-00000.txt" || complain "$(head -5 "$dir/rank-00000.txt")"
    hurt 'kill -TERM $job'
    expect_status 143
fi

# HOLD delays each fsync of the last rank's hang thread by 1 s, so this thread still writes for SIGUSR2 when SIGTERM arrives. The
# job saves, because the first rank tells it to, before that thread can handle SIGTERM.
for how in '' --save-async; do
    case_is "SIGTERM writes, saves and ends${how:+, $how}" 2 || continue
    begin env HOLD=fsync:hang,1,0/1,1 LD_PRELOAD="$(realpath "$build/tests/cli/hold_calls.so")" $starts -n 2 "$trainer" $forever --save "$new/save" $how
    kill -USR2 $(rank_pid 1)
    until_true 'ls "$dir"/rank-00001.txt.*.tmp >/dev/null 2>&1'
    hurt 'kill -TERM $job'
    expect_status 143
    grep -q '^ended by SIGTERM' "$work/out" && [ -s "$new/save/latest" ] || complain 'nothing is saved'
    [ "$(grep -l '^# rank .*: SIGTERM$' "$dir"/rank-0000[01].txt | wc -l)" = 2 ] || complain "files: $(grep '^# rank' "$dir"/*)"
    rm -rf "$new/save"
done

if case_is 'SIGUSR2 before a rank is up ends nobody' 2; then
    rm -rf "$dir"
    ends_with 0 $starts -n 2 sh -c 'kill -USR2 $PPID; sleep 0.1; exec "$0" "$@"' "$trainer" $run --steps 2
fi

if case_is 'SIGUSR2 without FSDP_HANG_DIR prints the last calls, and the run goes on' 2; then
    unset FSDP_HANG_DIR
    begin $starts -n 2 "$trainer" $forever --save "$new/save"
    kill -USR2 $job
    until_true '[ "$(grep -c "^\[rank [01]\] last calls, oldest first:\$" "$work/err")" = 2 ]'
    goes_on
    export FSDP_HANG_DIR=$dir
fi

if case_is 'FSDP_HANG_DIR cannot be written: a word, and the run goes on' 2; then
    echo text >"$new/file"
    export FSDP_HANG_DIR=$new/file
    begin $starts -n 2 "$trainer" $forever --save "$new/save"
    kill -USR2 $job # both ranks say so at the start, and again at the signal
    until_true '[ "$(grep -c "FSDP_HANG_DIR: cannot write into $new/file: " "$work/err")" = 4 ]'
    goes_on
    export FSDP_HANG_DIR=$dir
fi

# ---- ranks that disagree, wait or die -----------------------------------------------------------------------------

# left CASE RANKS -- these ranks of the job that odd started have left files
left() {
    wait "${odd_job[$1]}"
    dir=$new/$1
    files "$2"
}

if case_is 'a rank skips a collective: both calls are named'; then
    left skipped '0 1 2'
    waits '[12]' 'all-gather +320 f32  skipped' && waits 1 'all-gather +320 f32  next' || complain "$(merged)"
    r=$(grep -l '^[0-9a-f].* skipped ' "$dir"/rank-0000[01].txt | sed -n '1s/.*rank-0000\(.\).txt/\1/p') # the other may lag
    apart "$r" 2 | grep -qE '^< 0{16}/shm\+link 0000000003 all-gather +320 f32  skipped ' &&
        apart "$r" 2 | grep -qE '^> 0{16}/shm\+link 0000000003 all-gather +320 f32  next ' || complain "$(apart "$r" 2)"
fi
if case_is 'FSDP_HANG_DIR cannot be written: a failure keeps its own words'; then
    echo text >"$new/file"
    FSDP_HANG_DIR=$new/file timed $starts -n 3 "$build/tests/unit/comm_faults" skipped
    [ "$(grep -c '^SAW rank [0-2] FSDP_EMISMATCH .*ranks disagree: ' "$work/out")" = 3 ] || complain "$(cat "$work/out")"
fi
if case_is 'a rank never calls: its file ends with its last call'; then
    left timeout '0 1 2'
    waits 2 'all-gather +320 f32  awaited' || complain "$(merged)"
    [ "$(apart 0 2 | grep -c '^[<>] [0-9a-f]')" = 1 ] && apart 0 2 | grep -q '^< .* 0000000004 all-gather .* awaited  *running$' ||
        complain "ranks 0 and 2: $(apart 0 2)"
    tail -n 1 "$dir/rank-00002.txt" | grep -q ' 0000000003 all-gather .* warm up  *done$' || complain "$(tail -n 1 "$dir/rank-00002.txt")"
fi
if case_is 'a rank dies: the others write who it was'; then
    left kill '0 1'
    shows 'of 00003, started ' ': rank 2 (process ' 'ended without leaving the group'
fi
if case_is 'a rank never comes: the others write who it is'; then
    left gone_early '0 1'
    shows 'of 00003, started ' ': comm_open: rank 2 (process '
fi

cli_end
