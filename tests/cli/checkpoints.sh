#!/bin/bash
# checkpoints.sh -- where checkpoints are saved, who may write them, how many are kept, and which runs may resume from them.
#
# faults.sh tests kills and full disks; bad_input.sh tests damaged files.
. "$(dirname "$0")/lib.sh"
cli_start "$@"
fresh=1
model='--n-layer 1 --d-model 16 --n-head 2 --seq-len 16 --ops portable --reduction canonical --batch-size 0'
run="$model --synthetic 5000 --global-batch 12 --steps 8"

# went OPTION... -- runs on $ranks ranks and exits with status 0
went() {
    good "$ranks" "$@"
}

# Losses from step $2 on are equal to the losses of the whole run.
same_end() {
    [ "$(losses "$1" | tail -n +2)" = "$(losses "$work/whole.csv" | tail -n "$2")" ] || complain "$1: other losses"
}

case_is 'a whole run' 1
went $run --loss-csv "$work/whole.csv" --export "$work/whole"

# ---- where ------------------------------------------------------------------------------------------------------

# place NAME DIR [COMMAND] -- started in $new, a run saves to DIR at step 3, resumes, and saves at step 8. COMMAND runs in $new
# before; what it makes must stay
place() {
    case_is "--save $1" 2 || return
    cd "$new" || return
    eval "${3:-}" 2>"$work/err" || { cd "$here" && umount "$new/over" && open='' && skip "$name" "$(cat "$work/err")" && return; }
    find . ! -path './over/*' >"$work/before"
    went $run --stop-after 3 --save "$2"
    went $run --resume auto --save "$2" --loss-csv "$work/end.csv"
    same_end "$work/end.csv" 5
    [ -z "$(find . -name '*.tmp')" ] || complain "left behind: $(find . -name '*.tmp')"
    find . | sort - "$work/before" | uniq -d | cmp - <(sort "$work/before") >"$work/err" || complain 'something of the user is gone'
    [ ! -d link ] || [ -L link ] || complain 'the link was replaced'
    umount mount over/merged over 2>/dev/null
    cd "$here" || exit
}
here=$PWD
place 'a directory that is not there' fresh
place 'an empty directory' empty 'mkdir empty'
place 'a directory with other files' full 'mkdir full && echo text >full/text'
place 'a link to a directory' link 'mkdir target && ln -s target link'
place 'the current directory' .
place 'beside a DIR.old of somebody' plain 'mkdir plain.old && echo text >plain.old/text' # a name of our own would be removed
if [ -n "${CLI_NAMESPACE:-}" ]; then
    place 'a mount point' mount 'mkdir mount && mount -t tmpfs tmpfs mount'
    place 'a directory of a lower layer' over/merged/save 'mkdir over && mount -t tmpfs tmpfs over && cd over &&
        mkdir lower upper work merged lower/save && mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=work merged && cd ..'
else
    skip 'mount points' 'not root, or no mount namespaces here'
fi

# not_ours NAME PATH COMMAND -- COMMAND makes a file of the user's where --save DIR would write DIR/PATH
not_ours() {
    case_is "--save, where $1" 1 || return
    mkdir "$new/odd"
    (cd "$new/odd" && eval "$3")
    before=$(cd "$new/odd" && ls -l --full-time)
    fails 1 "$2 is not a file that --save wrote" $run --save "$new/odd"
    untrained
    [ "$(cd "$new/odd" && ls -l --full-time)" = "$before" ] || complain 'it has been written to'
}
not_ours '`latest` is a directory' latest 'mkdir latest'
not_ours '`latest` is a file of the user' latest 'echo the latest news of the whole wide world >latest'

# ---- who writes -------------------------------------------------------------------------------------------------

two_jobs() {
    case_is "two jobs save in one place${1:+, $1}" 1 || return
    "$trainer" $run --steps 100000000 --save "$new/two" $1 >"$work/first" 2>&1 </dev/null &
    job=$!
    until_true 'grep -qs "^process $job on host" "$new/two/lock"'
    kill -STOP $job # holds the lock like a training run, without taking CPU time
    fails 2 "--save $new/two: is in use by process $job on host $(hostname)\$" $run --save "$new/two" --resume auto $1
    [ "$took_ms" -ge 9000 ] || complain "after $took_ms ms, expected 10 s"
    kill -0 $job 2>/dev/null || complain 'the first job has ended'
    hurt 'kill -KILL $job'
    good 2 $run --save "$new/two" --resume auto $1 # a dead process holds no lock
}
beside two_jobs ''
beside two_jobs --save-async

if case_is 'ranks with different data' 2; then
    mkdir "$new/a" "$new/b" && cat LICENSE >"$new/a/text" && tr a-m n-z <LICENSE >"$new/b/text"
    ends_with 1 $starts -n 2 sh -c 'mkdir "$0/claim" 2>/dev/null && cd "$0/a" || cd "$0/b"; exec "$@"' "$new" "$trainer" \
        $model --global-batch 12 --steps 2 --data text
    says 'rank 1 failed: data: text: got tokens with the hash [0-9a-f]+, expected [0-9a-f]+'
fi

for how in '' --save-async; do
    case_is "ranks with different --save directories${how:+, $how}" 2 || continue
    mkdir "$new/ours" "$new/theirs" "$new/ours/save" "$new/theirs/save"
    ends_with 1 $starts -n 2 sh -c 'mkdir "$0/taken" 2>/dev/null && cd "$0/ours" || cd "$0/theirs"; exec "$@"' "$new" "$trainer" \
        $run --save save $how
    says '--save save: this rank does not see save/step-.*, which rank 0 has made'
    untrained
    check_no_tmp
done

# ---- how many ---------------------------------------------------------------------------------------------------

# kept K STEPS
kept() {
    case_is "--keep $1" 2 || return
    went $run --save "$new/kept" --save-every 2 --stop-after 7 ${1:+--keep $1}
    [ "$(cd "$new/kept" && echo step-*)" = "$2" ] || complain "there are $(cd "$new/kept" && echo step-*), expected $2"
    [ "$(cat "$new/kept/latest")" = step-7 ] || complain "the latest is $(cat "$new/kept/latest")"
    ranks=3
    went $run --resume "$new/kept/${2%% *}" --loss-csv "$new/kept.csv" # the oldest checkpoint that was kept
    n=${2%% *}
    same_end "$new/kept.csv" $((8 - ${n#step-}))
}
kept '' 'step-6 step-7'
kept 1 'step-7'
kept 3 'step-4 step-6 step-7'
kept 0 'step-2 step-4 step-6 step-7'

# ---- loss files -------------------------------------------------------------------------------------------------

csv="$new/loss.csv" again="$run --save $new/csv --loss-csv $new/loss.csv --resume auto --save-every 2"
if case_is 'csv: the same command until it is done, and again' 2; then
    went $again --stop-after 3
    [ "$(wc -l <"$csv")" = 4 ] || complain "$(wc -l <"$csv") lines, expected 4"
    for how in "$again" "$again" "$run --loss-csv $csv --resume $new/csv/step-6 --stop-after 6"; do # the last two: nothing to do
        went $how
        same_losses "$csv" "$work/whole.csv"
    done
fi
# A finished run is resumed with a larger --steps. At a constant rate --steps changes only where the run ends.
if case_is 'the finished command again, with more steps and with fewer' 2; then
    constant="$again --lr 1e-3 --min-lr 1e-3 --warmup-steps 0 --export $new/steps"
    launch 1 $constant --steps 9 --save "$new/nine" --loss-csv "$new/nine.csv" --export "$new/nine.w"
    went $constant --steps 6
    for steps in 6 9 9 6 0; do
        went $constant --steps $steps
        [ $steps = 6 ] || [ $steps = 0 ] || same_weights "$new/steps" "$new/nine.w"
    done
    same_losses "$csv" "$new/nine.csv"
    fails 2 'step-9 is a checkpoint of another run' ${constant/--resume auto/} --steps 9
    same_weights "$new/steps" "$new/nine.w"
fi
if case_is 'csv: killed and restarted' 1; then
    long="$again --steps 1000000 --lr 1e-3 --min-lr 1e-3 --warmup-steps 0"
    for _ in 1 2 3; do
        step=$(saved_step "$new/csv")
        start 1 $long
        until_true '[ "$(saved_step "$new/csv")" != "$step" ]'
        hurt 'kill -KILL $job'
    done
    step=$(saved_step "$new/csv")
    went $long --stop-after $((step + 1))
    [ "$(cut -d, -f1 "$csv" | tail -n +2)" = "$(seq 0 "$step")" ] || complain 'rows are missing, or come twice'
fi

if case_is 'csv: no new line at the end of the rows' 1; then
    went $again --stop-after 3
    truncate -s -1 "$csv"
    went $again
    same_end "$csv" 8
    [ "$(wc -l <"$csv")" = 9 ] || complain 'rows are missing, or on one line'
    rm -rf "$new/csv"
    went $again --stop-after 3
    truncate -s -10 "$csv" # an incomplete row does not count
    went $again
    [ "$(cut -d, -f1 "$csv" | tail -n +2 | xargs)" = '0 1 3 4 5 6 7' ] || complain 'a cut row was kept, or another one lost'
fi
if case_is 'csv: rows that cannot be read' 1; then
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
fi
if case_is 'the initial weights are those of the first start' 2; then
    went $run --save "$new/first" --resume auto --export-init "$new/initial" --stop-after 3
    before=$(tree_sum "$new/initial")
    went $run --save "$new/first" --resume auto --export-init "$new/initial"
    [ "$(tree_sum "$new/initial")" = "$before" ] || complain 'a resumed run has replaced them'
fi
if case_is 'the finished command again changes nothing' 2; then
    mkdir "$new/done"
    whole="$run --save $new/done --resume auto --memory-report $new/done/report.csv --profile $new/done --export $new/done"
    went $whole
    before=$(tree_sum "$new/done")
    went $whole
    [ "$(tree_sum "$new/done")" = "$before" ] || complain 'files have changed'
    rm "$new/done/model.safetensors" && went $whole # as if a kill had come before the export
    [ "$(tree_sum "$new/done")" = "$before" ] || complain 'the export is not made again'
fi
for by in 'single 1' 'ddp 2' 'fsdp 3' 'fsdp 2 --save-async'; do
    set -- $by
    case_is "SIGTERM again and again saves once and ends: $1${3:+, $3}" "$2" || continue
    start "$ranks" $run --parallel "$1" --steps 1000000 --save "$new/term" ${3:-}
    until_true 'grep -q "^step " "$work/out"'
    pids=$(cli_left)
    while [ -e "/proc/${pids##*[!0-9]}/exe" ]; do # starts no process, so that some signals arrive during the save
        kill -TERM $pids
    done 2>/dev/null
    hurt ''
    expect_status 143
    says '^ended by SIGTERM' "$work/out"
    [ "$(ls "$new/term")" = "$(printf '%s\n' latest lock "$(cat "$new/term/latest")")" ] || complain "there are: $(ls "$new/term")"
done

# ---- saves while steps run --------------------------------------------------------------------------------------

# The fsync of a save's file waits on rank 1, or on the only rank, as long as the file $hold exists. The first fsync is not
# held: a run tests fsync at its start.
hold=$work/hold hold_calls=$(realpath "$build/tests/cli/hold_calls.so") held_at=fsync:rank-,1,1/1
start_held() {
    touch "$hold"
    HOLD=$held_at,$hold LD_PRELOAD=$hold_calls start "$1" $constant --save "$new/async" --save-async \
        --save-every 5 --resume auto --loss-csv "$new/async.csv" "${@:2}"
}

# held W OPTION... -- a run in the background, from step 1 on; its saves of steps 5 and 10 wait until $hold is removed.
# Returns after step 10, when the save of step 10 waits for the save of step 5.
held() {
    start_held "$@"
    until_true 'grep -q "^note: the checkpoint of step 10 waits" "$work/err"'
    [ "$(cat "$new/async/latest")" = step-1 ] || complain "published before it was written: $(cat "$new/async/latest")"
    until_true '[ "$(tail -n 1 "$new/async.csv" 2>/dev/null | cut -d, -f1)" = 9 ]'
}

constant="${run/--steps 8/} --lr 1e-3 --min-lr 1e-3 --warmup-steps 0"
for by in '1 --parallel single' '2 --parallel ddp' '2 --wrap sub-block' '2 --device separate' '3 --sharding none --optimizer sgd'; do
    set -- $by
    case_is "--save-async: steps go on, and files equal --save's files, ${*:2}" "$1" || continue
    went $constant "${@:2}" --steps 1 --save "$new/sync"
    cp -r "$new/sync" "$new/async"
    went $constant "${@:2}" --steps 12 --save "$new/sync" --save-every 5 --keep 0 --resume auto --loss-csv "$new/sync.csv"
    held "$ranks" "${@:2}" --steps 12 --keep 0
    hurt 'rm "$hold"'
    expect_status 0
    diff -r "$new/sync" "$new/async" >"$work/err" || complain 'other checkpoints'
    same_losses "$new/sync.csv" "$new/async.csv"
    check_no_tmp
done
if case_is '--save-async: steps go on while an old checkpoint is removed' 2; then
    went $constant --steps 1 --save "$new/async"
    held_at=unlinkat:rank-,-,0/1 start_held 2 --keep 1 --steps 12
    until_true 'grep -q "step 10/12 " "$work/out"' || complain 'steps wait for the removal'
    [ "$(cat "$new/async/latest")" = step-5 ] || complain "latest is $(cat "$new/async/latest")"
    ls -d "$new"/async/step-1.*.tmp >"$work/ls" 2>&1 || complain 'nothing is being removed'
    hurt 'rm "$hold"'
    expect_status 0
    [ "$(cd "$new/async" && echo step-*)" = step-12 ] || complain "left: $(ls "$new/async")"
    check_no_tmp
fi
if case_is '--save-async: SIGTERM waits for the checkpoint in flight' 2; then
    went $constant --steps 1 --save "$new/async"
    held 2 --steps 1000000
    hurt 'kill -TERM $job && rm "$hold"'
    expect_status 143
    step=$(saved_step "$new/async")
    [ "$step" -ge 10 ] || complain "step $step is saved"
    check_no_tmp
    went $constant --steps $((step + 1)) --save "$new/async" --resume auto --loss-csv "$new/async.csv"
    [ "$(tail -n +2 "$new/async.csv" | cut -d, -f1)" = "$(seq 1 "$step")" ] || complain 'rows of the loss file are lost'
fi
if case_is '--save-async: killed while a thread writes' 2; then
    went $constant --steps 1 --save "$new/async"
    held 2 --steps 1000000
    hurt 'kill -KILL $(rank_pid 1)'
    rm "$hold"
    [ "$rc" != 0 ] || complain 'exit status 0'
    check_left
    went $constant --steps 3 --save "$new/async" --resume auto
    resumed 1
    check_no_tmp
fi

# ---- training that diverges -------------------------------------------------------------------------------------

# Step 2 overflows second moments and step 3 parameters, while losses and norms are finite.
diverging="--n-layer 3 --d-model 16 --n-head 2 --seq-len 8 --synthetic 5000 --ops portable --reduction canonical
    --global-batch 2 --lr 1000 --min-lr 1000 --beta2 0 --clip-grad 0 --warmup-steps 0 --steps 3"
for by in '1 --parallel single' '2 --parallel ddp' '2 --device separate' '2 --sharding none --wrap sub-block' '2 --save-async'; do
    set -- $by
    case_is "diverged: neither saved nor exported, ${*:2}" "$1" || continue
    mkdir "$new/diverged"
    went $diverging "${@:2}" --steps 1 --save "$new/diverged" --export "$new/diverged/export"
    before=$(tree_sum "$new/diverged")
    fails "$ranks" 'checkpoint of step 2: training has diverged: unit .*, transformer.*[.]v: element .* is inf' \
        $diverging "${@:2}" --save "$new/diverged" --save-every 1 --keep 1 --resume auto --resume-change schedule
    says '^HINT: resume from step 1, which is finite'
    how=${*:2}
    fails "$ranks" 'export of step 3: training has diverged: unit .*, transformer.*[.]p: element .* is -*nan' \
        $diverging ${how/--save-async/} --export "$new/diverged/export"
    [ "$(grep -c '^HINT: ' "$work/err")" = 1 ] || complain 'exported: expected one hint'
    [ "$(tree_sum "$new/diverged")" = "$before" ] || complain 'files have changed'
    went $diverging "${@:2}" --save "$new/diverged" --resume auto --resume-change schedule,clip-grad,betas --lr 1e-3 \
        --min-lr 1e-3 --clip-grad 1 --beta2 0.95
    resumed 1
done
for how in '' --save-async; do
    case_is "diverged: --restarts goes on from the newest finite checkpoint each time${how:+, $how}" 2 || continue
    ends_with 1 $starts -n 2 --restarts 2 "$trainer" $diverging --save "$new/diverged" --save-every 1 --resume auto $how
    [ "$(grep -c '^resumed at step 1' "$work/out")" = 2 ] || complain 'did not resume twice at step 1'
    [ "$(cat "$new/diverged/latest")" = step-1 ] || complain "saved: $(cat "$new/diverged/latest")"
    check_no_tmp
done
for how in '' --save-async; do
    case_is "no step is left: another --save directory gets the checkpoint${how:+, $how}" 2 || continue
    went $run --save "$new/a" --loss-csv "$new/a.csv"
    went $run --resume "$new/a" --save "$new/b" $how
    for from in a b; do
        went $run --resume "$new/$from" --steps 9 --resume-change schedule --export "$new/w$from"
    done
    same_weights "$new/wa" "$new/wb"
    stamp=$(stat -c %Y%i "$new/a/"step-*)
    went $run --resume auto --save "$new/a" $how # the finished command again: nothing changes
    [ "$stamp" = "$(stat -c %Y%i "$new/a/"step-*)" ] || complain 'saved again'
done
if case_is 'diverged: the checkpoint in flight is published, --save-async' 2; then
    for how in '' --save-async; do
        fails 2 'training diverged at step 4: loss' $run --optimizer sgd --lr 1000 --min-lr 1000 --clip-grad 0 \
            --warmup-steps 0 --save "$new/nan$how" --save-every 1 --keep 0 $how
    done
    [ "$(ls "$new/nan")" = "$(ls "$new/nan--save-async")" ] || complain "there are: $(ls "$new/nan--save-async")"
fi

# ---- who may resume ---------------------------------------------------------------------------------------------

for by in 'single 1' 'ddp 2' 'fsdp 3'; do
    set -- $by
    case_is "saved by $1" "$2" || continue
    went $run --stop-after 4 --parallel "$1" --save "$new/by"
    for to in 'single 1' 'ddp 3' 'fsdp 1' 'fsdp 2'; do
        set -- $to
        ranks=$2
        went $run --parallel "$1" --resume "$new/by" --export "$new/by.w" --loss-csv "$new/by.csv"
        same_end "$new/by.csv" 4
        same_weights "$new/by.w" "$work/whole"
    done
done

ranks=2
launch 2 $run --stop-after 4 --save "$work/base"
# free OPTION... -- the run resumes with the same bits
free() {
    case_is "free to change: $*" "$ranks" || return
    went $run --resume "$work/base" --loss-csv "$new/free.csv" "$@"
    resumed 4
    same_end "$new/free.csv" 4
}

# changed NAME OPTION... -- refused with that name, unless --resume-change lists it
changed() {
    local fact=$1
    shift
    case_is "changed: $fact, $*" 2 || return
    fails 2 "base/step-4: ${fact%,*}: saved with .*, this run has " $run --resume "$work/base" "$@"
    untrained
    launch 2 $run --resume "$work/base" "$@" --resume-change "seed,$fact"
    case $fact in
    model | optimizer) expect_status 1 ;;
    *) expect_status 0; resumed 4 ;;
    esac
}

# other_numbers OPTION... -- the run resumes; its numbers may differ, as on another machine or with another library
other_numbers() {
    case_is "goes on with other numbers: $*" 2 || return
    went $run --resume "$work/base" "$@"
    resumed 4
}

# How a resumed run treats another value of an option: it is free, or the option belongs to a fact. Lines are for options whose
# other value is not made from their row, by made_lines.
options='
parallel       | free --parallel ddp
sharding       | free --sharding grad-op
sharding       | free --sharding none --wrap model
sharding       | ranks=3 free --grad-accum 4 --sharding optimizer
fsdp-size      | free --sharding hybrid --fsdp-size 2
tp             | changed tp-blocks --tp 2
sequence-parallel | changed tp-blocks --tp 2 --sequence-parallel
tp-blocks      | changed tp-blocks --tp-blocks 2
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
limit-all-gathers | free --prefetch both --limit-all-gathers 1
bucket         | free --bucket 10000
reduction      | changed reduction --reduction fast
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
beta1          | changed betas --beta1 0.8
beta2          | changed betas --beta2 0.8
eps            | changed eps --eps 1e-7
freeze         | changed freeze --freeze "*.bias"
data           | changed data --synthetic 0 --data LICENSE
synthetic      | changed data --synthetic 5001
data-format    | changed data --synthetic 0 --data LICENSE --data-format bytes
data-mask      | changed data,mask --synthetic 0 --data LICENSE --data-mask LICENSE
val-data       | free --val-data LICENSE
val-mask       | free --val-data LICENSE --val-mask LICENSE
eval-every     | free --val-data LICENSE --eval-every 1
eval-batches   | free --val-data LICENSE --eval-batches 1
loss-csv       | free
export-shard-size | free --export $new/free --export-shard-size 1
export-optimizer | free --export-optimizer $new/free
save-every     | free --save $new/free --save-every 1
save-async     | free --save $new/free --save-every 1 --save-async
keep           | free --save $new/free --keep 1
resume-change  | free --resume-change seed
stop-after     | free --stop-after 8
profile        | free --profile $new/free
digests        | free --digests $new/free
digest-values  | free --digests $new/free --digest-values 6:h.0
print-shards   | free --print-shards
'
no_run='no-grad-norm eval-only resume plan' # and plan-...: options without another value or without a run

# made_lines ROWS -- lines for the options of the table that have none above: another choice, a number beside the default, a new path
made_lines() {
    awk -v listed=" $(sed -n 's/ *|.*//p' <<<"$options" | xargs) $no_run " 'NR > 2 {
        gsub(/\\\|/, "\001")
        split($0, column, / *\| */)
        name = arg = column[2]
        sub(/^`--/, "", name)
        sub(/[[=`].*/, "", name)
        if (index(listed, " " name " ") || name ~ /^plan-/)
            next
        how = (column[6] == "" ? "free" : "changed " column[6]) " --" name
        gsub(/.*=|]?`$/, "", arg)
        n = split(arg, choice, "\001")
        if (column[5] != "")
            how = "no_line " name
        else if (n > 1)
            how = how "=" choice[choice[1] == column[3] ? 2 : 1]
        else if (arg == "N" || arg == "X")
            how = how "=" (arg == "N" ? column[3] + 1 : column[3] / 2)
        else if (arg ~ /^(FILE|DIR|PATH)$/)
            how = how "=$new/free"
        else if (column[2] ~ /=/)
            how = "no_line " name
        print name " | " how
    }' "$1"
}
no_line() {
    case_is "free to change, or not: --$1" && complain 'its value cannot be made from its row: give it a line'
}
"$build/tests/cli/option_table" >"$work/rows"
made=$(made_lines "$work/rows")
if case_is 'options of the lines are options of the trainer, and some are made from their rows'; then
    for option in $no_run $(sed -n 's/ *|.*//p' <<<"$options"); do
        grep -qE "^. .--$option[=[\`]" "$work/rows" || complain "no --$option"
    done
    [ "$(grep -c ' | ' <<<"$made")" -gt 10 ] || complain "made: $made"
fi
while IFS='|' read -r _ how; do
    eval "$how" </dev/null
done <<<"$options$made"

# optimizer_goes_on TENSOR FACT OTHER OPTION... -- the run resumes on fewer ranks and on one. A file has states named TENSOR.
# The options OTHER are refused with FACT.
optimizer_goes_on() {
    local tensor=$1 fact=$2 other=$3
    shift 3
    case_is "optimizer: $*" 3 || return
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
    fails 2 "step-4: $fact: saved with .*, this run has " $run "$@" --resume "$new/optimizer" $other
}
optimizer_goes_on p weight-decay '--weight-decay 0.1' --optimizer sgd --lr 0.1
optimizer_goes_on momentum_buffer momentum '--momentum 0.8' --optimizer sgd --momentum 0.9 --lr 0.1
optimizer_goes_on momentum_buffer optimizer '--momentum 0' --optimizer sgd --momentum 0.9 --lr 0.1
optimizer_goes_on momentum_buffer momentum '--momentum 0.8' --optimizer sgd --momentum 0.9 --nesterov --weight-decay 0.1 --lr 0.1
optimizer_goes_on acc_delta rho '--rho 0.8' --optimizer adadelta --lr 1
for rule in $("$build/fsdp_train" --help | sed -n 's/.*--optimizer=\([a-z|]*\).*/\1/p' | tr '|' ' '); do
    optimizer_goes_on p optimizer '--momentum 0.9 --optimizer sgd' --optimizer "$rule"
done

# A checkpoint holds no moments of frozen parameters. A run that trains them later starts their moments at zero.
if case_is 'frozen: without moments, on other ranks, unfrozen, frozen later' 3; then
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
fi

# Only a vector is trained, of which rank 0 has all.
if case_is 'frozen: ranks without a part of what is trained' 4; then
    idle="$run --freeze transformer.w*,transformer.h.*,*.ln_f.weight"
    ranks=1
    went $idle --parallel single --loss-csv "$new/single.csv"
    ranks=4
    went $idle --stop-after 4 --save "$new/idle" --clip-grad 0
    for how in '--prefetch both' '--device separate --cpu-offload' '--sharding hybrid --fsdp-size 2' '--clip-grad 0.1 --layout per-param'; do
        [ "$rc" = 0 ] || break # what hangs once hangs each time
        went $idle $how --loss-csv "$new/many.csv"
        case $how in *clip*) ;; *) same_losses "$new/many.csv" "$new/single.csv" ;; esac
    done
    went $idle --resume "$new/idle" --resume-change clip-grad --loss-csv "$new/end.csv"
    ranks=1
    went $idle --resume "$new/idle" --resume-change clip-grad --loss-csv "$new/one.csv"
    same_losses "$new/end.csv" "$new/one.csv"
fi

if case_is 'changed: the same tokens from elsewhere' 2; then
    head -c 3000 LICENSE >"$new/one" && cp "$new/one" "$new/other"
    went $model --global-batch 12 --steps 8 --stop-after 2 --data "$new/one" --save "$new/moved"
    went $model --global-batch 12 --steps 8 --data "$new/other" --resume "$new/moved"
fi
cli_end
