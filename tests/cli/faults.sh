#!/bin/bash
# faults.sh -- kills during a save and their remains, damaged checkpoints, full disks: earlier saves stay usable.
# harm.sh strikes jobs at other times.
#
#   tests/cli/faults.sh [BUILD] [full]        default build; full: 200 kills while saving, not 12
. "$(dirname "$0")/lib.sh"
cli_start "$@"
kills=12 fresh=1
[ "${2:-}" = full ] && kills=200

model='--n-layer 1 --d-model 16 --n-head 2 --seq-len 16 --synthetic 5000 --ops portable'
# A constant rate, so that the number of steps changes nothing but the end.
bits='--lr 1e-3 --min-lr 1e-3 --warmup-steps 0 --reduction canonical --batch-size 0 --global-batch 12'
case_is 'a run that saves twice' 3
good 3 $model $bits --steps 4 --save "$work/saved" --save-every 2

# ---- kills while saving -----------------------------------------------------------------------------------------

# kill_saving N -- kills runs after a save has begun. A run saves after every step, so most of its time goes to saves; half of
# the runs save in a thread. After each kill the next run finds a checkpoint that is no older than before, and saves over the
# remains.
kill_saving() {
    local last=1 i=0 ranks step
    case_is "$1 kills while saving" || return
    launch 1 $model $bits --steps 1 --save "$new/save"
    while [ $i -lt "$1" ] && [ -z "$bad" ]; do
        i=$((i + 1))
        ranks=$((i % 4 == 0 ? 2 : 1))
        starts=$MPI_LAUNCHER start $ranks $model $bits --steps 1000000 --save "$new/save" --save-every 1 --resume auto \
            $([ $((i / 2 % 2)) = 0 ] || echo --save-async)
        until_true '[ "$(saved_step "$new/save")" -gt '"$last ] 2>/dev/null"
        sleep 0.0$((RANDOM % 10))$((RANDOM % 10))
        hurt 'kill -STOP $(trainers); kill -KILL $(trainers)' # else a rank that dies later may tell of the other's death
        ! grep -q '^HINT: ' "$work/err" || complain "kill $i: the run before it had failed"
        check_left
        good 1 $model $bits --steps 0 --resume "$new/save"
        step=$(sed -n 's/^resumed at step //p' "$work/out")
        [ "${step:-0}" -ge "$last" ] || complain "kill $i: at step ${step:-none}, but step $last had been saved"
        last=${step:-0}
    done
    [ "$last" -gt "$1" ] || complain "only step $last was reached: too few saves for a test"
}
kill_saving "$kills"

# remains NAME COMMAND -- COMMAND makes remains of badly timed kills, from a checkpoint at step 2. Saving over them works and
# removes them. Files of others stay.
remains() {
    local run tmp
    case_is "remains of a killed save: $1" 2 || return
    cp -r "$work/saved" "$new/save" && rm -r "$new/save/step-4" && echo step-2 >"$new/save/latest"
    run=$(sed -n 's/.*"run":[^"]*"\([0-9a-f]*\)".*/\1/p' "$new/save/step-2/manifest.json")
    tmp=$new/save/step-3.$run.0123456789abcdef.tmp
    cp "$new/save/step-2/rank-00002.safetensors" "$work/kept"
    mkdir "$new/save.old" "$new/save.tmp" && cp -r "$new/save/step-2" "$new/save/step-2.mine"
    eval "$2"
    good 2 $model $bits --steps 3 --save "$new/save" --resume auto --keep 1
    resumed 2
    [ "$(saved_step "$new/save")" = 3 ] || complain 'step 3 was not saved'
    left=$(cd "$new" && echo save* save/* save/step-3/*)
    expected="save save.old save.tmp save/latest save/lock save/step-2.mine save/step-3 save/step-3/manifest.json"
    [ "$left" = "$expected save/step-3/rank-00000.safetensors save/step-3/rank-00001.safetensors" ] || complain "there are: $left"
    cmp -s "$new/save/step-2.mine/rank-00002.safetensors" "$work/kept" || complain "somebody's own copy has changed"
    good 1 $model $bits --steps 4 --save "$new/save" --resume auto
}
remains 'half of a new one' 'cp -r $new/save/step-2 $tmp; rm $tmp/manifest.json; : >$tmp/rank-00007.safetensors'
remains 'a manifest half written' 'cp -r $new/save/step-2 $tmp; mv $tmp/manifest.json $tmp/manifest.json.0123456789abcdef.tmp'
remains 'a new one that is not the latest yet' \
    'cp -r $new/save/step-2 $new/save/step-3; sed -i "/\"step\"/s/2/3/" $new/save/step-3/manifest.json'
remains 'no word which is the latest' 'rm $new/save/latest'
remains 'an old one half removed' 'cp -r $new/save/step-2 $tmp; rm $tmp/rank-00000.safetensors'
remains 'the name of the latest half written' ': >$new/save/latest.0123456789abcdef.tmp'

# falls_back NAME COMMAND -- COMMAND damages the checkpoint of step 4; --resume auto says so and takes the one of step 2
falls_back() {
    case_is "--resume auto: $1" 2 || return
    cp -r "$work/saved" "$new/save"
    eval "$2"
    good 2 $model $bits --steps 6 --save "$new/save" --save-every 2 --resume auto
    says "^note: .*$3.*; looking for the checkpoint before it"
    resumed 2
    good 1 $model $bits --steps 6 --resume "$new/save"
    resumed 6
}
falls_back 'a missing file' 'rm $new/save/step-4/rank-00001.safetensors' 'rank-00001.safetensors: No such file'
falls_back 'a damaged file' 'echo >>$new/save/step-4/rank-00001.safetensors' 'rank-00001.safetensors is damaged'
falls_back 'a damaged manifest' 'truncate -s 40 $new/save/step-4/manifest.json' 'manifest.json: got no JSON'
falls_back 'another word in a manifest' 'sed -i "/\"seed\"/s/1/3/" $new/save/step-4/manifest.json' 'manifest.json is damaged'
falls_back 'a missing step' 'rm -r $new/save/step-4' 'step-4/manifest.json: No such file'

# ---- full disks -------------------------------------------------------------------------------------------------

small='--synthetic 5000 --seq-len 16 --ops portable'

# full NAME W KILOBYTES REGEX OPTION... -- a file system of that size that holds an earlier run's output
full() {
    local ranks=$2 kilobytes=$3 regex=$4
    case_is "full disk: $1" $2 || return
    shift 4
    mount -t tmpfs -o size="${kilobytes}k" tmpfs "$disk" || return
    good 1 $bits $small --steps 1 "$@"
    before=$(tree_sum "$disk")
    head -c "$((kilobytes * 1024))" /dev/zero >"$disk/ballast" 2>/dev/null
    [ "$regex" = csv ] || truncate -s -100k "$disk/ballast"
    launch "$ranks" $bits $small --steps 5 "$@"
    expect_status 1
    # A loss file fails in the middle of training, and only on rank 0, which ends the job at once. A peer that sees rank 0 end
    # before the launcher ends the peer may add a hint about that, but not the message about the disk.
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
}
if [ -n "${CLI_NAMESPACE:-}" ]; then
    disk=$work/disk && mkdir "$disk"
    for ranks in 1 2; do
        full 'checkpoint' $ranks 2500 save --save "$disk/save" --resume auto
        full 'checkpoint on the way' $ranks 2500 save --save "$disk/save" --resume auto --save-every 2
        full 'checkpoint on the way, --save-async' $ranks 2500 save --save "$disk/save" --resume auto --save-every 2 --save-async
        full 'export' $ranks 1000 export --export "$disk/export"
        starts=$MPI_LAUNCHER full 'loss file' $ranks 64 csv --loss-csv "$disk/loss.csv"
        full 'memory report' $ranks 64 csv --memory-report "$disk/report.csv"
    done
else
    skip 'full disks' 'not root, or no mount namespaces here'
fi

if case_is 'standard output on a full disk' 1; then
    ends_with 1 sh -c '"$@" >/dev/full' sh "$trainer" $model $bits --steps 2 --export "$new/out"
    says 'cannot write to standard output'
    [ -s "$new/out/model.safetensors" ] || complain 'no export'
fi

cli_end
