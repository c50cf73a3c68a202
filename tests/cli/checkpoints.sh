#!/bin/bash
# checkpoints.sh -- where checkpoints are saved, by whom, how many are kept, and which runs may go on from them.
#
#   tests/cli/checkpoints.sh [BUILD]      default build
#   CASES=REGEX                           only the cases whose names match
#
# faults.sh has what kills and full disks leave, bad_input.sh damaged files.
# shellcheck disable=SC2016,SC2086 # $options are lists of words
set -u
cd "$(dirname "$0")/../.." || exit 2
. tests/cli/lib.sh
cli_namespace "$PWD/tests/cli/checkpoints.sh" "$@"
build=${1:-build}
cli_begin "$build"
export OMP_NUM_THREADS=1

model='--n-layer 1 --d-model 16 --n-head 2 --seq-len 16 --ops portable --reduction canonical --batch-size 0'
run="$model --synthetic 5000 --global-batch 12 --steps 8"

# case_of W NAME -- whether the case is wanted. Sets ranks, for went
case_of() {
    name="$2 (W=$1)" ranks=$1
    chosen
}

# went OPTION... -- on $ranks ranks, with status 0
went() {
    launch "$ranks" "$@"
    [ "$rc" = 0 ] || complain "exit status $rc: $*"
}

# Losses from step $2 on are those of the whole run.
same_end() {
    [ "$(losses "$1" | tail -n +2)" = "$(losses "$work/whole.csv" | tail -n "$2")" ] || complain "$1: other losses"
}

ranks=1 name='a whole run (W=1)'
went $run --loss-csv "$work/whole.csv" --export "$work/whole"
verdict

# ---- where ------------------------------------------------------------------------------------------------------

# place NAME DIR [FROM] -- saves at step 3, goes on, saves at step 8; started in the directory FROM
place() {
    local here=$PWD
    case_of 2 "--save $1" || return
    cd "${3:-$here}" || return
    went $run --stop-after 3 --save "$2"
    went $run --resume auto --save "$2" --loss-csv "$new/end.csv"
    cd "$here" || return
    same_end "$new/end.csv" 5
    [ -z "$(find "$new" -name '*.tmp')" ] || complain "left behind: $(find "$new" -name '*.tmp')"
    verdict "$new/end.csv"
}
place 'a directory that is not there' "$new/fresh"
mkdir "$new/empty" "$new/full" "$new/target" "$new/here" && ln -s target "$new/link" && echo text >"$new/full/text"
place 'an empty directory' "$new/empty"
place 'a directory with other files' "$new/full"
[ -f "$new/full/text" ] || { name='other files' && complain 'are gone' && verdict; }
place 'a link to a directory' "$new/link"
[ -L "$new/link" ] || { name='a link' && complain 'was replaced' && verdict; }
place 'the current directory' . "$new/here"
mkdir "$new/plain.old" && echo text >"$new/plain.old/text" # as names of our own they would be removed
place 'beside a DIR.old of somebody' "$new/plain"
[ -f "$new/plain.old/text" ] || { name='DIR.old' && complain 'is gone' && verdict; }
rm -r "$new/plain.old"
if [ -n "${CLI_NAMESPACE:-}" ]; then
    mkdir "$new/mount" && mount -t tmpfs tmpfs "$new/mount" && place 'a mount point' "$new/mount"
    mkdir "$new/over" && mount -t tmpfs tmpfs "$new/over" && mkdir "$new/over/"{lower,upper,work,merged} "$new/over/lower/save"
    if mount -t overlay overlay -o "lowerdir=$new/over/lower,upperdir=$new/over/upper,workdir=$new/over/work" \
        "$new/over/merged" 2>/dev/null; then
        place 'a directory of a lower layer' "$new/over/merged/save"
        umount "$new/over/merged"
    else
        skip 'a directory of a lower layer' 'no overlay file system here'
    fi
    umount "$new/mount" "$new/over"
else
    skip 'mount points' 'not root, or no mount namespaces here'
fi

# not_ours NAME PATH COMMAND -- COMMAND puts something of the user's where --save DIR would write DIR/PATH
not_ours() {
    case_of 1 "--save, where $1" || return
    rm -rf "$new/odd"
    mkdir "$new/odd"
    (cd "$new/odd" && eval "$3")
    before=$(cd "$new/odd" && ls -l --full-time)
    refused 1 "$2 is not a file that --save wrote" $run --save "$new/odd"
    untrained
    [ "$(cd "$new/odd" && ls -l --full-time)" = "$before" ] || complain 'it has been written to'
    verdict
}
not_ours '`latest` is a directory' latest 'mkdir latest'
not_ours '`latest` is a file of the user' latest 'echo the latest news of the whole wide world >latest'

# ---- by whom ----------------------------------------------------------------------------------------------------

for how in '' --save-async; do
    case_of 1 "two jobs save in one place${how:+, $how}" || continue
    "$trainer" $run --steps 100000000 --save "$new/two" $how >"$work/first" 2>&1 </dev/null &
    job=$!
    until_true 60 'grep -qs "^process $job on host" "$new/two/lock"'
    refused 2 "--save $new/two: is in use by process $job on host $(hostname)\$" $run --save "$new/two" --resume auto $how
    [ "$took_ms" -ge 9000 ] && [ "$took_ms" -le 25000 ] || complain "after $took_ms ms, expected 10 s"
    kill -0 $job 2>/dev/null || complain 'the first job has ended'
    hurt 'kill -KILL $job' 5
    launch 2 $run --save "$new/two" --resume auto $how # a dead process holds nothing
    expect_status 0
    check_left
    verdict "$new/two"
done

if case_of 2 'ranks with different data'; then
    mkdir "$new/a" "$new/b" && cat LICENSE >"$new/a/text" && tr a-m n-z <LICENSE >"$new/b/text"
    timed $starts -n 2 sh -c 'mkdir "$0/claim" 2>/dev/null && cd "$0/a" || cd "$0/b"; exec "$@"' "$new" "$trainer" \
        $model --global-batch 12 --steps 2 --data text
    expect_status 1
    says 'the training data differs: rank 1 has .[0-9]+ tokens, XXH3 [0-9a-f]+., rank 0 has '
    verdict
fi

for how in '' --save-async; do
    case_of 2 "ranks with different --save directories${how:+, $how}" || continue
    mkdir "$new/ours" "$new/theirs" "$new/ours/save" "$new/theirs/save"
    timed $starts -n 2 sh -c 'mkdir "$0/taken" 2>/dev/null && cd "$0/ours" || cd "$0/theirs"; exec "$@"' "$new" "$trainer" \
        $run --save save $how
    expect_status 1
    says '--save save: this rank does not see save/step-.*, which rank 0 has made'
    untrained
    check_no_tmp
    verdict "$new/ours" "$new/theirs" "$new/taken"
done

# ---- how many ---------------------------------------------------------------------------------------------------

# kept K STEPS
kept() {
    case_of 2 "--keep $1" || return
    rm -rf "$new/kept"
    went $run --save "$new/kept" --save-every 2 --stop-after 7 ${1:+--keep $1}
    [ "$(cd "$new/kept" && echo step-*)" = "$2" ] || complain "there are $(cd "$new/kept" && echo step-*), expected $2"
    [ "$(cat "$new/kept/latest")" = step-7 ] || complain "the latest is $(cat "$new/kept/latest")"
    ranks=3
    went $run --resume "$new/kept/${2%% *}" --loss-csv "$new/kept.csv" # the oldest of them
    n=${2%% *}
    same_end "$new/kept.csv" $((8 - ${n#step-}))
    verdict "$new/kept.csv"
}
kept '' 'step-6 step-7'
kept 1 'step-7'
kept 3 'step-4 step-6 step-7'
kept 0 'step-2 step-4 step-6 step-7'

# ---- loss files -------------------------------------------------------------------------------------------------

csv="$new/loss.csv" again="$run --save $new/csv --loss-csv $new/loss.csv --resume auto --save-every 2"
same_csv() {
    same_losses "$csv" "$work/whole.csv"
}
if case_of 2 'csv: the same command until it is done, and again'; then
    went $again --stop-after 3
    [ "$(wc -l <"$csv")" = 4 ] || complain "$(wc -l <"$csv") lines, expected 4"
    went $again
    same_csv
    went $again
    same_csv
    went $run --loss-csv "$csv" --resume "$new/csv/step-6" --stop-after 6 # nothing to do there
    same_csv
    verdict "$new/csv" "$csv"
fi
# A finished run again, with another end. At a constant rate --steps changes nothing but the end.
if case_of 2 'the finished command again, with more steps and with fewer'; then
    constant="$again --lr 1e-3 --min-lr 1e-3 --warmup-steps 0 --export $new/steps"
    launch 1 $constant --steps 9 --save "$new/nine" --loss-csv "$new/nine.csv" --export "$new/nine.w"
    went $constant --steps 6
    for steps in 6 9 9 6 0; do
        went $constant --steps $steps
        [ $steps = 6 ] || [ $steps = 0 ] || same_weights "$new/steps" "$new/nine.w"
    done
    same_losses "$csv" "$new/nine.csv"
    refused 2 'step-9 is a checkpoint of another run' ${constant/--resume auto/} --steps 9
    same_weights "$new/steps" "$new/nine.w"
    verdict "$new/csv" "$csv" "$new"/nine* "$new/steps"
fi
if case_of 1 'csv: killed and restarted'; then
    long="$again --steps 1000000 --lr 1e-3 --min-lr 1e-3 --warmup-steps 0"
    for _ in 1 2 3; do
        step=$(saved_step "$new/csv")
        start 1 $long
        until_true 20 '[ "$(saved_step "$new/csv")" != "$step" ]'
        hurt 'kill -KILL $job' 5
    done
    step=$(saved_step "$new/csv")
    went $long --stop-after $((step + 1))
    [ "$(cut -d, -f1 "$csv" | tail -n +2)" = "$(seq 0 "$step")" ] || complain 'rows are missing, or come twice'
    verdict "$new/csv" "$csv"*
fi

if case_of 1 'csv: no new line at the end of the rows'; then
    went $again --stop-after 3
    truncate -s -1 "$csv"
    went $again
    same_end "$csv" 8
    [ "$(wc -l <"$csv")" = 9 ] || complain 'rows are missing, or on one line'
    rm -rf "$new/csv"
    went $again --stop-after 3
    truncate -s -10 "$csv" # a row that is cut is none
    went $again
    [ "$(cut -d, -f1 "$csv" | tail -n +2 | xargs)" = '0 1 3 4 5 6 7' ] || complain 'a cut row was kept, or another one lost'
    verdict "$new/csv" "$csv"*
fi
if case_of 1 'csv: rows that cannot be read'; then
    went $again --stop-after 3
    before=$(cat "$csv")
    chmod 200 "$csv"
    capable=() # root may read everything
    [ "$(id -u)" != 0 ] || capable=(setpriv '--bounding-set=-dac_override,-dac_read_search')
    timed "${capable[@]}" "$trainer" $again
    chmod 600 "$csv"
    expect_status 1
    says 'cannot read .*/loss.csv, whose rows this run goes on from: Permission denied'
    [ "$(cat "$csv")" = "$before" ] || complain 'the loss file has changed'
    check_no_tmp
    verdict "$new/csv" "$csv"*
fi
if case_of 2 'the initial weights are those of the first start'; then
    went $run --save "$new/first" --resume auto --export-init "$new/initial" --stop-after 3
    before=$(tree_sum "$new/initial")
    went $run --save "$new/first" --resume auto --export-init "$new/initial"
    [ "$(tree_sum "$new/initial")" = "$before" ] || complain 'a resumed run has replaced them'
    verdict
fi
if case_of 2 'the finished command again changes nothing'; then
    mkdir "$new/done"
    whole="$run --save $new/done --resume auto --memory-report $new/done/report.csv --profile $new/done --export $new/done"
    went $whole
    before=$(tree_sum "$new/done")
    went $whole
    [ "$(tree_sum "$new/done")" = "$before" ] || complain 'files have changed'
    rm "$new/done/model.safetensors" && went $whole # as if it had been killed before that
    [ "$(tree_sum "$new/done")" = "$before" ] || complain 'the export is not made again'
    verdict
fi
for by in 'single 1' 'ddp 2' 'fsdp 3' 'fsdp 2 --save-async'; do
    set -- $by
    case_of "$2" "SIGTERM again and again saves once and ends: $1${3:+, $3}" || continue
    start "$ranks" $run --parallel "$1" --steps 1000000 --save "$new/term" ${3:-}
    until_true 60 'grep -q "^step " "$work/out"'
    pids=$(cli_left)
    while [ -e "/proc/${pids##*[!0-9]}/exe" ]; do # without a process of its own, so that some arrive during the save
        kill -TERM $pids
    done 2>/dev/null
    hurt '' 60
    expect_status 143
    says '^ended by SIGTERM' "$work/out"
    [ "$(ls "$new/term")" = "$(printf '%s\n' latest lock "$(cat "$new/term/latest")")" ] || complain "there are: $(ls "$new/term")"
    check_left
    verdict "$new/term"
done

# ---- saves beside the steps -------------------------------------------------------------------------------------

# A library that holds back the removal of checkpoints if HOLD_AT says so, or else rank 1, or the only one, where a save
# syncs its file, as long as there is a file $hold. A run has tried fsync out before.
hold=$work/hold
cat >"$work/hold.c" <<'END'
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
static int is_held(const char *at)
{
    return strcmp(getenv("HOLD_AT") ? getenv("HOLD_AT") : "fsync", at) == 0 && access(getenv("HOLD"), F_OK) == 0;
}
int unlinkat(int dir, const char *name, int flags)
{
    while (strncmp(name, "rank-", 5) == 0 && is_held("unlinkat"))
        usleep(1000);
    return (int)syscall(SYS_unlinkat, dir, name, flags);
}
int fsync(int fd)
{
    static int n;
    char link[64], path[4096] = "";
    const char *rank = getenv("FSDP_RUN");
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    if (readlink(link, path, sizeof path - 1) > 0 && strstr(path, "/rank-") && n++ > 0 && (!rank || *rank == '1'))
        while (is_held("fsync"))
            usleep(1000);
    return fdatasync(fd);
}
END
${CC:-cc} -D_GNU_SOURCE -shared -fPIC -o "$work/hold.so" "$work/hold.c" 2>/dev/null || rm -f "$work/hold.so"

start_held() {
    touch "$hold"
    HOLD=$hold LD_PRELOAD=$work/hold.so start "$1" $constant --save "$new/async" --save-async --save-every 5 --resume auto \
        --loss-csv "$new/async.csv" "${@:2}"
}

# held W OPTION... -- in the background, from step 1 on, the saves of steps 5 and 10 held back until $hold is removed.
# Returns when step 10 has been made and its save waits for the one of step 5.
held() {
    start_held "$@"
    until_true "${HELD_S:-100}" 'grep -q "^note: the checkpoint of step 10 waits" "$work/err"'
    [ "$(cat "$new/async/latest")" = step-1 ] || complain "published before it was written: $(cat "$new/async/latest")"
    until_true 100 '[ "$(tail -n 1 "$new/async.csv" 2>/dev/null | cut -d, -f1)" = 9 ]'
}

constant="${run/--steps 8/} --lr 1e-3 --min-lr 1e-3 --warmup-steps 0"
for by in '1 --parallel single' '2 --parallel ddp' '2 --wrap sub-block' '2 --device separate' '3 --sharding none --optimizer sgd'; do
    set -- $by
    case_of "$1" "--save-async: steps go on, and files are those of --save, ${*:2}" || continue
    [ -e "$work/hold.so" ] || { skip "$name" 'no C compiler here' && continue; }
    went $constant "${@:2}" --steps 1 --save "$new/sync"
    cp -r "$new/sync" "$new/async"
    went $constant "${@:2}" --steps 12 --save "$new/sync" --save-every 5 --keep 0 --resume auto --loss-csv "$new/sync.csv"
    held "$ranks" "${@:2}" --steps 12 --keep 0
    hurt 'rm "$hold"'
    expect_status 0
    diff -r "$new/sync" "$new/async" >"$work/err" || complain 'other checkpoints'
    same_losses "$new/sync.csv" "$new/async.csv"
    check_no_tmp
    verdict "$new/sync"* "$new/async"*
done
if [ -e "$work/hold.so" ] && case_of 2 '--save-async: steps go on while an old checkpoint is removed'; then
    went $constant --steps 1 --save "$new/async"
    HOLD_AT=unlinkat start_held 2 --keep 1 --steps 12
    until_true 100 'grep -q "step 10/12 " "$work/out"' || complain 'steps wait for the removal'
    [ "$(cat "$new/async/latest")" = step-5 ] || complain "latest is $(cat "$new/async/latest")"
    ls -d "$new"/async/step-1.*.tmp >"$work/ls" 2>&1 || complain 'nothing is being removed'
    hurt 'rm "$hold"'
    expect_status 0
    [ "$(cd "$new/async" && echo step-*)" = step-12 ] || complain "left: $(ls "$new/async")"
    check_no_tmp
    verdict "$new/async"*
fi
if [ -e "$work/hold.so" ] && case_of 2 '--save-async: SIGTERM waits for the checkpoint in flight'; then
    went $constant --steps 1 --save "$new/async"
    held 2 --steps 1000000
    hurt 'kill -TERM $job && rm "$hold"'
    expect_status 143
    step=$(saved_step "$new/async")
    [ "$step" -ge 10 ] || complain "step $step is saved"
    check_no_tmp
    went $constant --steps $((step + 1)) --save "$new/async" --resume auto --loss-csv "$new/async.csv"
    [ "$(tail -n +2 "$new/async.csv" | cut -d, -f1)" = "$(seq 1 "$step")" ] || complain 'rows of the loss file are lost'
    verdict "$new/async"*
fi
if [ -e "$work/hold.so" ] && case_of 2 '--save-async: killed while a thread writes'; then
    went $constant --steps 1 --save "$new/async"
    held 2 --steps 1000000
    hurt 'kill -KILL $(rank_pid 1)'
    rm "$hold"
    [ "$rc" != 0 ] || complain 'exit status 0'
    check_left
    went $constant --steps 3 --save "$new/async" --resume auto
    resumed 1
    check_no_tmp
    verdict "$new/async"*
fi

# ---- training that diverges -------------------------------------------------------------------------------------

# Step 2 overflows second moments and step 3 parameters, while losses and norms are finite.
diverging="--n-layer 3 --d-model 16 --n-head 2 --seq-len 8 --synthetic 5000 --ops portable --reduction canonical
    --global-batch 2 --lr 1000 --min-lr 1000 --beta2 0 --clip-grad 0 --warmup-steps 0 --steps 3"
for by in '1 --parallel single' '2 --parallel ddp' '2 --device separate' '2 --sharding none --wrap sub-block' '2 --save-async'; do
    set -- $by
    case_of "$1" "diverged: neither saved nor exported, ${*:2}" || continue
    mkdir "$new/diverged"
    went $diverging "${@:2}" --steps 1 --save "$new/diverged" --export "$new/diverged/export"
    before=$(tree_sum "$new/diverged")
    refused "$ranks" 'checkpoint of step 2: training has diverged: unit .*, transformer.*[.]v: element .* is inf' \
        $diverging "${@:2}" --save "$new/diverged" --save-every 1 --keep 1 --resume auto --resume-change schedule
    says '^HINT: resume from step 1, which is finite'
    how=${*:2}
    refused "$ranks" 'export of step 3: training has diverged: unit .*, transformer.*[.]p: element .* is -*nan' \
        $diverging ${how/--save-async/} --export "$new/diverged/export"
    [ "$(grep -c '^HINT: ' "$work/err")" = 1 ] || complain 'exported: expected one hint'
    [ "$(tree_sum "$new/diverged")" = "$before" ] || complain 'files have changed'
    went $diverging "${@:2}" --save "$new/diverged" --resume auto --resume-change schedule,clip-grad,betas --lr 1e-3 \
        --min-lr 1e-3 --clip-grad 1 --beta2 0.95
    resumed 1
    verdict "$new/diverged"
done
for how in '' --save-async; do
    case_of 2 "diverged: --restarts goes on from the newest finite checkpoint each time${how:+, $how}" || continue
    timed $starts -n 2 --restarts 2 "$trainer" $diverging --save "$new/diverged" --save-every 1 --resume auto $how
    expect_status 1
    [ "$(grep -c '^resumed at step 1' "$work/out")" = 2 ] || complain 'did not resume twice at step 1'
    [ "$(cat "$new/diverged/latest")" = step-1 ] || complain "saved: $(cat "$new/diverged/latest")"
    check_no_tmp
    verdict "$new/diverged"
done
if case_of 2 'diverged: the checkpoint in flight is published, --save-async'; then
    for how in '' --save-async; do
        refused 2 'training diverged at step 3: loss' $run --optimizer sgd --lr 1000 --min-lr 1000 --clip-grad 0 \
            --warmup-steps 0 --save "$new/nan$how" --save-every 1 --keep 0 $how
    done
    [ "$(ls "$new/nan")" = "$(ls "$new/nan--save-async")" ] || complain "there are: $(ls "$new/nan--save-async")"
    verdict "$new/nan"*
fi

# ---- who may go on ----------------------------------------------------------------------------------------------

for by in 'single 1' 'ddp 2' 'fsdp 3'; do
    set -- $by
    case_of "$2" "saved by $1" || continue
    went $run --stop-after 4 --parallel "$1" --save "$new/by"
    for to in 'single 1' 'ddp 3' 'fsdp 1' 'fsdp 2'; do
        set -- $to
        ranks=$2
        went $run --parallel "$1" --resume "$new/by" --export "$new/by.w" --loss-csv "$new/by.csv"
        same_end "$new/by.csv" 4
        same_weights "$new/by.w" "$work/whole"
        rm -rf "$new/by.w" "$new/by.csv"
    done
    verdict "$new/by"
done

ranks=2
launch 2 $run --stop-after 4 --save "$new/base"
# free OPTION... -- goes on with the same bits
free() {
    name="free to change: $* (W=2)"
    chosen || return
    went $run --resume "$new/base" --loss-csv "$new/free.csv" "$@"
    resumed 4
    same_end "$new/free.csv" 4
    verdict "$new/free.csv" "$new/free"
}

# changed NAME OPTION... -- refused by that name, unless --resume-change says it
changed() {
    local fact=$1
    shift
    case_of 2 "changed: $fact, $*" || return
    refused 2 "base/step-4: $fact: saved with .*, this run has " $run --resume "$new/base" "$@"
    untrained
    launch 2 $run --resume "$new/base" "$@" --resume-change "seed,$fact"
    case $fact in
    model | optimizer) expect_status 1 ;;
    *) expect_status 0; resumed 4 ;;
    esac
    verdict
}

# other_numbers OPTION... -- goes on, with what another machine or library computes
other_numbers() {
    case_of 2 "goes on with other numbers: $*" || return
    went $run --resume "$new/base" "$@"
    resumed 4
    verdict
}

# Every option of --help: how a resumed run takes another value of it. none: there is no other, or no run.
options='
parallel       | free --parallel ddp
sharding       | free --sharding grad-op
sharding       | free --sharding none --wrap model
sharding       | ranks=3 free --grad-accum 4 --sharding optimizer
fsdp-size      | free --sharding hybrid --fsdp-size 2
wrap           | free --wrap sub-block
layout         | free --layout per-param
gradient-checkpointing | free --gradient-checkpointing
chunk-loss     | free --chunk-loss=5
no-sync        | ranks=3 free --grad-accum 4 --no-sync
reshard-after  | free --reshard-after step
reshard-to     | ranks=4 free --reshard-to 2
optimizer-offload | free --device separate --optimizer-offload
cpu-offload    | free --device separate --cpu-offload
offload-piece  | free --device separate --cpu-offload --offload-piece 0.01
prefetch       | free --prefetch none
limit-all-gathers | free --prefetch both --limit-all-gathers 1
bucket         | free --bucket 10000
reduction      | changed reduction --reduction fast
param-dtype    | changed param-dtype --param-dtype bf16
reduce-dtype   | changed reduce-dtype --reduce-dtype bf16
device         | free --device separate
device-memory  | free --device-memory 1000
comm           | free --comm shm
ops            | other_numbers --ops fast
model          | changed model --model llama
size           | changed model --size 124m
n-layer        | changed model --n-layer 2
n-head         | changed model --n-head 4
n-kv-head      | changed model --model llama --n-kv-head 1
d-model        | changed model --d-model 32
d-ff           | changed model --d-ff 32
vocab-size     | changed model --vocab-size 300
n-positions    | changed model --n-positions 300
seq-len        | changed seq-len --seq-len 8
batch-size     | free --batch-size 2
grad-accum     | free --grad-accum 6
global-batch   | changed global-batch --global-batch 24
steps          | changed schedule --steps 9
seed           | changed seed --seed 2
init-from      | free --init-from $work/whole
optimizer      | changed optimizer --optimizer sgd
momentum       | changed optimizer --optimizer sgd --momentum 0.9
nesterov       | changed optimizer --optimizer sgd --momentum 0.9 --nesterov
rho            | changed optimizer --optimizer adadelta --rho 0.8
lr-schedule    | changed schedule --lr-schedule linear
lr-step-size   | changed schedule --lr-schedule step --lr-step-size 2
lr-gamma       | changed schedule --lr-schedule step --lr-step-size 2 --lr-gamma 0.5
lr             | changed schedule --lr 2e-3
min-lr         | changed schedule --min-lr 2e-4
warmup-steps   | changed schedule --warmup-steps 3
weight-decay   | changed weight-decay --weight-decay 0
beta1          | changed betas --beta1 0.8
beta2          | changed betas --beta2 0.8
eps            | changed eps --eps 1e-7
clip-grad      | changed clip-grad --clip-grad 0.5
no-grad-norm   | none
freeze         | changed freeze --freeze "*.bias"
data           | changed data --synthetic 0 --data LICENSE
synthetic      | changed data --synthetic 5001
val-data       | free --val-data LICENSE
eval-every     | free --val-data LICENSE --eval-every 1
eval-batches   | free --val-data LICENSE --eval-batches 1
eval-only      | none
loss-csv       | free
export-init    | free --export-init $new/free
export         | free --export $new/free
export-shard-size | free --export $new/free --export-shard-size 1
export-optimizer | free --export-optimizer $new/free
save           | free --save $new/free
save-every     | free --save $new/free --save-every 1
save-async     | free --save $new/free --save-every 1 --save-async
keep           | free --save $new/free --keep 1
resume         | none
resume-change  | free --resume-change seed
stop-after     | free --stop-after 8
memory-report  | free --memory-report $new/free
profile        | free --profile $new/free
snapshot       | free --snapshot $new/free
check-order    | free --check-order
digests        | free --digests $new/free
digest-values  | free --digests $new/free --digest-values 6:h.0
print-shards   | free --print-shards
plan           | none
plan-ranks     | none
plan-fsdp-size | none
plan-rank      | none
plan-device    | none
plan-link      | none
plan-copies    | none
plan-slow      | none
plan-fit       | none
plan-prices    | none
help           | none
'
name='every option of --help is in the list of those that a resumed run may change or not'
if chosen; then
    "$build/fsdp_train" --help | sed '/^Not there yet/,/^$/d' | sed -n 's/^  --\([a-z0-9-]*\).*/\1/p' | sort -u >"$work/out"
    echo "$options" | sed -n 's/ *|.*//p' | sort -u | diff - "$work/out" >"$work/err" || complain 'the lists differ'
    [ "$(wc -l <"$work/out")" -gt 50 ] || complain 'too few options'
    verdict
fi
while IFS='|' read -r _ how; do
    case $how in '' | ' none') continue ;; esac
    eval "${how# }" </dev/null
done <<<"$options"

# optimizer_goes_on TENSOR FACT OTHER OPTION... -- goes on on fewer ranks and on one; a file has states of that name. OTHER
# options are refused by the FACT.
optimizer_goes_on() {
    local tensor=$1 fact=$2 other=$3
    shift 3
    case_of 3 "optimizer: $*" || return
    ranks=1
    went $run "$@" --loss-csv "$work/whole.csv"
    ranks=3
    went $run "$@" --stop-after 4 --save "$new/optimizer"
    cat "$new"/optimizer/step-4/*.safetensors | grep -aq "mlp.c_fc.bias@[0-9]*[.]$tensor\"" || complain "no $tensor"
    for ranks in 1 2; do
        for how in "$([ "$ranks" = 1 ] && echo --parallel single)" '--parallel ddp'; do
            went $run "$@" $how --resume "$new/optimizer" --loss-csv "$new/end.csv"
            same_losses "$new/end.csv" "$work/whole.csv" 4
        done
    done
    refused 2 "step-4: $fact: saved with .*, this run has " $run "$@" --resume "$new/optimizer" $other
    verdict "$new/optimizer"
}
optimizer_goes_on p weight-decay '--weight-decay 0.1' --optimizer sgd --lr 0.1
optimizer_goes_on momentum_buffer momentum '--momentum 0.8' --optimizer sgd --momentum 0.9 --lr 0.1
optimizer_goes_on momentum_buffer optimizer '--momentum 0' --optimizer sgd --momentum 0.9 --lr 0.1
optimizer_goes_on momentum_buffer momentum '--momentum 0.8' --optimizer sgd --momentum 0.9 --nesterov --weight-decay 0.1 --lr 0.1
optimizer_goes_on acc_delta rho '--rho 0.8' --optimizer adadelta --lr 1
optimizer_goes_on square_avg optimizer '--optimizer adamw' --optimizer adadelta --lr 1

# A checkpoint holds no moments of frozen parameters. A run that trains them later starts their moments at zero.
if case_of 3 'frozen: without moments, on other ranks, unfrozen, frozen later'; then
    frozen="$run --freeze transformer.w*,*.bias"
    ranks=1
    went $frozen --loss-csv "$work/frozen.csv"
    went $frozen --parallel single --stop-after 4 --save "$new/frozen1"
    ranks=3
    went $frozen --stop-after 4 --save "$new/frozen3"
    for from in frozen1 frozen3; do
        cat "$new/$from"/step-4/*.safetensors >"$work/all"
        for tensor in mlp.c_fc.bias@0.p mlp.c_fc.weight@0.m wte.weight@0.p; do
            grep -aq "$tensor" "$work/all" || complain "$from: no $tensor"
        done
        ! grep -aqE '(bias|wte.weight|wpe.weight)@[0-9]+[.][mv]' "$work/all" || complain "$from: moments of frozen parameters"
        ranks=1
        went $frozen --resume "$new/$from" --parallel single --loss-csv "$new/end.csv"
        same_losses "$new/end.csv" "$work/frozen.csv" 4
        ranks=2
        for how in '--prefetch both' '--sharding none' '--parallel ddp'; do
            went $frozen --resume "$new/$from" $how --loss-csv "$new/end.csv"
            same_losses "$new/end.csv" "$work/frozen.csv" 4
        done
        went $run --resume "$new/$from" --resume-change freeze --loss-csv "$new/fsdp.csv"
        went $run --resume "$new/$from" --resume-change freeze --loss-csv "$new/ddp.csv" --parallel ddp
        same_losses "$new/fsdp.csv" "$new/ddp.csv"
    done
    went $run --stop-after 4 --save "$new/unfrozen"
    went $frozen --resume "$new/unfrozen" --resume-change freeze --loss-csv "$new/fsdp.csv"
    went $frozen --resume "$new/unfrozen" --resume-change freeze --loss-csv "$new/ddp.csv" --parallel ddp
    same_losses "$new/fsdp.csv" "$new/ddp.csv"
    verdict
fi

if case_of 2 'changed: the same tokens from elsewhere'; then
    head -c 3000 LICENSE >"$new/one" && cp "$new/one" "$new/other"
    went $model --global-batch 12 --steps 8 --stop-after 2 --data "$new/one" --save "$new/moved"
    went $model --global-batch 12 --steps 8 --data "$new/other" --resume "$new/moved"
    verdict
fi
cli_end
