#!/bin/bash
# faults.sh -- ranks and launchers that die or hang, kills while saving, full disks: the job ends, nothing is left
# running, and what earlier saves wrote can be used.
#
#   tests/cli/faults.sh [BUILD] [full]        default build; full: 200 kills while saving, not 12
#   CASES=REGEX                               only the cases whose names match
#
# Prints PASS, FAIL and SKIP lines and a last line with their numbers.
# shellcheck disable=SC2016,SC2086,SC2317 # $model and others are lists of words
set -u
cd "$(dirname "$0")/../.." || exit 2
. tests/cli/lib.sh
cli_namespace "$PWD/tests/cli/faults.sh" "$@"
build=${1:-build} kills=12
[ "${2:-}" = full ] && kills=200
cli_begin "$build"
export OMP_NUM_THREADS=1

model='--n-layer 1 --d-model 16 --n-head 2 --seq-len 16 --synthetic 5000 --ops portable'
# A constant rate, so that the number of steps changes nothing but the end.
bits='--lr 1e-3 --min-lr 1e-3 --warmup-steps 0 --reduction canonical --batch-size 0 --global-batch 12'
forever="$model $bits --steps 1000000 --loss-csv $new/save.csv --export $keep/export --save $new/save --save-every 3"

# What an earlier run left is whole, and a new one on V ranks goes on from the checkpoint with the same bits.
expect_usable() {
    local step
    [ "$(tree_sum "$keep")" = "$kept" ] || complain 'files of an earlier run have changed'
    step=$(saved_step "$new/save")
    [ "$(tail -n 1 "$new/save.csv" | cut -d, -f1)" -ge $((step - 1)) ] || complain 'rows of the loss file are lost'
    launch 1 $model $bits --steps $((step + 3)) --loss-csv "$new/whole.csv"
    launch "$1" $model $bits --steps $((step + 3)) --loss-csv "$new/rest.csv" --resume "$new/save"
    expect_status 0
    [ "$(wc -l <"$new/rest.csv")" = 4 ] || complain "resumed at step $step: $(wc -l <"$new/rest.csv") lines, expected 4"
    same_losses "$new/rest.csv" "$new/whole.csv" 3
    rm -f "$new/rest.csv" "$new/whole.csv"
}

# fault NAME W V COMMAND -- COMMAND strikes a job of W ranks that trains and saves. more: its other options
fault() {
    name="$1 (W=$2)"
    chosen || return
    rm -rf "$new/save"*
    starts=$LAUNCHER start "$2" $forever ${more:-}
    until_true 100 '[ "$(saved_step "$new/save")" -ge 6 ]'
    hurt "$4"
    [ "$rc" != 0 ] || [[ $1 = *interrupted* ]] || complain 'exit status 0' # an interrupted mpiexec may return 0
    check_left
    expect_usable "$3"
    verdict
}

some_rank() {
    trainers | sed -n "${1}p"
}

name='a first run (W=2)'
launch 2 $model $bits --steps 2 --loss-csv "$keep/loss.csv" --export "$keep/export"
expect_status 0
verdict
kept=$(tree_sum "$keep")

# ---- ranks and launchers ----------------------------------------------------------------------------------------

fault 'the only rank is killed' 1 2 'kill -KILL $job'
fault 'rank 0 is killed' 3 1 'kill -KILL $(some_rank 1)'
fault 'the last rank is killed' 3 2 'kill -KILL $(some_rank 3)'
fault 'a rank is ended by SIGALRM' 3 3 'kill -ALRM $(some_rank 2)'
export FSDP_TIMEOUT_S=2 more='--save-every 200' # twelve times that where files are written, so these are few
fault 'a rank is stopped' 3 2 'kill -STOP $(some_rank 2)'
more="$more --save-async"
fault 'a rank is stopped, --save-async' 3 2 'kill -STOP $(some_rank 2)'
unset FSDP_TIMEOUT_S more
export FSDP_SCHEDULE=2
fault 'a rank is killed while a seed chooses who runs' 3 2 'kill -KILL $(some_rank 2)'
unset FSDP_SCHEDULE
fault 'the launcher is killed' 3 1 'kill -KILL $job'
fault 'the launcher is interrupted' 2 1 'kill -INT $job'
more=--save-async
fault 'a rank is killed, --save-async' 3 2 'kill -KILL $(some_rank 2)'
fault 'the launcher is killed, --save-async' 2 3 'kill -KILL $job'
unset more

# ---- kills while saving -----------------------------------------------------------------------------------------

# kill_saving N -- saves after every step, half of the runs in a thread, so that most of the time is spent there; killed when
# it has begun to save.
# Whatever a kill leaves, the next run finds a checkpoint, not older than before, and saves over the remains.
kill_saving() {
    local last=1 i=0 ranks step
    name="$1 kills while saving"
    chosen || return
    rm -rf "$new/save"*
    launch 1 $model $bits --steps 1 --save "$new/save"
    while [ $i -lt "$1" ] && [ -z "$bad" ]; do
        i=$((i + 1))
        ranks=$((i % 4 == 0 ? 2 : 1))
        starts=$LAUNCHER start $ranks $model $bits --steps 1000000 --save "$new/save" --save-every 1 --resume auto \
            $([ $((i / 2 % 2)) = 0 ] || echo --save-async)
        until_true 100 '[ "$(saved_step "$new/save")" -gt '"$last ] 2>/dev/null"
        sleep 0.0$((RANDOM % 10))$((RANDOM % 10))
        hurt 'kill -KILL $(trainers)'
        ! grep -q '^HINT: ' "$work/err" || complain "kill $i: the run before it had failed"
        check_left
        launch 1 $model $bits --steps 0 --resume "$new/save"
        step=$(sed -n 's/^resumed at step //p' "$work/out")
        [ "$rc" = 0 ] || complain "kill $i: --resume: exit status $rc"
        [ "${step:-0}" -ge "$last" ] || complain "kill $i: at step ${step:-none}, but step $last had been saved"
        last=${step:-0}
    done
    [ "$last" -gt "$1" ] || complain "only step $last was reached: too few saves for a test"
    verdict "$new/save"*
}
kill_saving "$kills"

# remains NAME COMMAND -- what kills at bad moments leave, made on purpose from a checkpoint at step 2; saving over it
# works, and cleans up. What others have put there stays.
remains() {
    local run tmp
    name="remains of a killed save: $1 (W=2)"
    chosen || return
    rm -rf "$new/save"*
    launch 3 $model $bits --steps 2 --save "$new/save"
    run=$(sed -n 's/.*"run":[^"]*"\([0-9a-f]*\)".*/\1/p' "$new/save/step-2/manifest.json")
    tmp=$new/save/step-3.$run.0123456789abcdef.tmp
    cp "$new/save/step-2/rank-00002.safetensors" "$work/kept"
    mkdir "$new/save.old" "$new/save.tmp" && cp -r "$new/save/step-2" "$new/save/step-2.mine"
    eval "$2"
    launch 2 $model $bits --steps 3 --save "$new/save" --resume auto --keep 1
    expect_status 0
    resumed 2
    [ "$(saved_step "$new/save")" = 3 ] || complain 'step 3 was not saved'
    left=$(cd "$new" && echo save* save/* save/step-3/*)
    expected="save save.old save.tmp save/latest save/lock save/step-2.mine save/step-3 save/step-3/manifest.json"
    [ "$left" = "$expected save/step-3/rank-00000.safetensors save/step-3/rank-00001.safetensors" ] || complain "there are: $left"
    cmp -s "$new/save/step-2.mine/rank-00002.safetensors" "$work/kept" || complain "somebody's own copy has changed"
    launch 1 $model $bits --steps 4 --save "$new/save" --resume auto
    expect_status 0
    verdict "$new/save"*
}
remains 'half of a new one' 'cp -r $new/save/step-2 $tmp; rm $tmp/manifest.json; : >$tmp/rank-00007.safetensors'
remains 'a manifest half written' 'cp -r $new/save/step-2 $tmp; mv $tmp/manifest.json $tmp/manifest.json.0123456789abcdef.tmp'
remains 'a new one that is not the latest yet' \
    'cp -r $new/save/step-2 $new/save/step-3; sed -i "/\"step\"/s/2/3/" $new/save/step-3/manifest.json'
remains 'no word which is the latest' 'rm $new/save/latest'
remains 'an old one half removed' 'cp -r $new/save/step-2 $tmp; rm $tmp/rank-00000.safetensors'
remains 'the name of the latest half written' ': >$new/save/latest.0123456789abcdef.tmp'

# falls_back NAME COMMAND -- COMMAND damages the checkpoint of step 4; --resume auto says so and takes that of step 2
falls_back() {
    name="--resume auto: $1 (W=2)"
    chosen || return
    rm -rf "$new/save"*
    launch 3 $model $bits --steps 4 --save "$new/save" --save-every 2
    eval "$2"
    launch 2 $model $bits --steps 6 --save "$new/save" --save-every 2 --resume auto
    expect_status 0
    says "^note: .*$3.*; looking for the checkpoint before it"
    resumed 2
    launch 1 $model $bits --steps 6 --resume "$new/save"
    resumed 6
    verdict "$new/save"*
}
falls_back 'a missing file' 'rm $new/save/step-4/rank-00001.safetensors' 'rank-00001.safetensors: No such file'
falls_back 'a damaged file' 'echo >>$new/save/step-4/rank-00001.safetensors' 'rank-00001.safetensors is damaged'
falls_back 'a damaged manifest' 'truncate -s 40 $new/save/step-4/manifest.json' 'manifest.json: got no JSON'
falls_back 'another word in a manifest' 'sed -i "/\"seed\"/s/1/3/" $new/save/step-4/manifest.json' 'manifest.json is damaged'
falls_back 'a missing step' 'rm -r $new/save/step-4' 'step-4/manifest.json: No such file'

# ---- full disks -------------------------------------------------------------------------------------------------

small='--synthetic 5000 --seq-len 16 --ops portable'

# full NAME W KILOBYTES REGEX OPTION... -- a file system of that size, with an earlier run's output in it
full() {
    local ranks=$2 kilobytes=$3 regex=$4
    name="full disk: $1 (W=$2)"
    chosen || return
    shift 4
    mount -t tmpfs -o size="${kilobytes}k" tmpfs "$disk" || return
    launch 1 $bits $small --steps 1 "$@"
    expect_status 0
    before=$(tree_sum "$disk")
    head -c "$((kilobytes * 1024))" /dev/zero >"$disk/ballast" 2>/dev/null
    [ "$regex" = csv ] || truncate -s -100k "$disk/ballast"
    launch "$ranks" $bits $small --steps 5 "$@"
    expect_status 1
    # A loss file fails in the middle of training and on rank 0 alone, which ends the job at once. A peer that sees rank
    # 0 go before the launcher ends it too may add a hint about that, never the words about the disk.
    local most=1
    [ "$regex" = csv ] && most=$ranks
    words=$(grep -cE 'No space left on device' "$work/err") hints=$(grep -c '^HINT: ' "$work/err")
    [ "$words" = 1 ] || complain "$words lines with 'No space left on device', expected 1"
    [ "$hints" -ge 1 ] && [ "$hints" -le "$most" ] || complain "$hints hints, expected 1 to $most"
    check_left
    check_no_tmp
    rm -f "$disk/ballast"
    [ "$(tree_sum "$disk")" = "$before" ] || complain 'the earlier output has changed'
    umount "$disk"
    verdict
}
if [ -n "${CLI_NAMESPACE:-}" ]; then
    disk=$work/disk && mkdir "$disk"
    for ranks in 1 2; do
        full 'checkpoint' $ranks 2500 save --save "$disk/save" --resume auto
        full 'checkpoint on the way' $ranks 2500 save --save "$disk/save" --resume auto --save-every 2
        full 'checkpoint on the way, --save-async' $ranks 2500 save --save "$disk/save" --resume auto --save-every 2 --save-async
        full 'export' $ranks 1000 export --export "$disk/export"
        starts=$LAUNCHER full 'loss file' $ranks 64 csv --loss-csv "$disk/loss.csv"
        full 'memory report' $ranks 64 csv --memory-report "$disk/report.csv"
    done
else
    skip 'full disks' 'not root, or no mount namespaces here'
fi

name='standard output on a full disk (W=1)'
if chosen; then
    timeout 100 "$trainer" $model $bits --steps 2 --export "$new/out" >/dev/full 2>"$work/err"
    rc=$?
    expect_status 1
    says 'cannot write to standard output'
    [ -s "$new/out/model.safetensors" ] || complain 'no export'
    verdict
fi

cli_end
