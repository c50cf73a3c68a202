# good_input_lib.sh -- what the trainer accepts: sourced by bad_input.sh, which sets $keep, $new, $small, $constant.
#
# Bits are compared as text of the loss file, all columns but time.

# shellcheck shell=bash disable=SC2154,SC2086
printed() {
    grep -qE -- "$1" "$work/out" || complain "stdout has no line that matches '$1'"
}

same_losses() {
    [ "$(losses "$1")" = "$(losses "$2")" ] || complain "$1 and $2 differ"
}

run="$small --synthetic 5000"
expect_good 1 'underscores, values apart or not' $run --batch_size=4 --grad-accum 2 --warmup_steps 0
printed 'a step is 8 sequences of 16 tokens \(4 per rank x 2 micro-steps\)'
verdict
expect_good 1 'the last of repeated options' $run --batch-size 4 --batch-size 1
printed '\(1 per rank x 1 micro-steps\)'
verdict
expect_good 2 'global batch alone: batch size by itself' $run --batch-size 0 --global-batch 24
printed 'a step is 24 sequences of 16 tokens \(4 per rank x 3 micro-steps\)'
verdict
expect_good 3 'global batch and accumulation' $run --batch-size 0 --global-batch 24 --grad-accum 2
printed '\(4 per rank x 2 micro-steps\)'
verdict
expect_good 2 'plan' $run --plan --loss-csv "$new/plan.csv"
printed '^traffic of one step \(sent by this rank\)$'
[ ! -e "$new/plan.csv" ] || complain '--plan wrote the loss file'
verdict
expect_good 1 'plan of a model that does not fit' $run --plan $huge --seq-len 1024
printed '^  at one moment  *[0-9]{13,} '
verdict
for ranks in 1 2; do
    expect_good $ranks 'no steps' $run --steps 0 --loss-csv "$new/none.csv" --export "$new/none" --save "$new/none.ckpt"
    [ ! -e "$new/none.csv" ] || complain 'there is a loss file'
    [ -s "$new/none/model.safetensors" ] || complain 'no export'
    verdict
    rm -rf "$new/none" "$new/none.ckpt"
done
expect_good 2 'evaluation' $run --val-data LICENSE --eval-every 1
[ "$(grep -c '^eval  step .* val loss [0-9.]* ' "$work/out")" = 2 ] || complain 'expected two evaluations'
verdict
expect_good 1 'a path with spaces and UTF-8' $run --loss-csv "$new/ä  b.csv"
[ -s "$new/ä  b.csv" ] || complain 'no loss file'
verdict
expect_good 1 'a device as the loss file' $run --loss-csv /dev/null
[ -c /dev/null ] || complain '/dev/null was replaced'
verdict
expect_good 1 'stdout as the loss file' $run --loss-csv /dev/stdout
verdict
expect_good 1 'the loss of all tokens at once' $run $constant --loss-csv "$new/whole.csv"
verdict
for chunk in '' =1 =1000000; do
    expect_good 1 "the loss in chunks: --chunk-loss$chunk" $run $constant --chunk-loss$chunk --loss-csv "$new/chunks.csv"
    same_losses "$new/chunks.csv" "$new/whole.csv"
    verdict
done
ln -s target.csv "$new/link.csv" && : >"$new/target.csv"
expect_good 1 'a link as the loss file' $run --loss-csv "$new/link.csv"
[ -L "$new/link.csv" ] || complain 'the link was replaced'
[ -s "$new/target.csv" ] || complain 'what the link points to was not written'
verdict

# Shards: a directory, and a glob that this program expands.
mkdir "$new/shards" && cp "$new/good.bin" "$new/shards/a.bin" && cp "$new/good.bin" "$new/shards/b.bin"
expect_good 1 'a directory of shards' $small --data "$new/shards"
printed '200 tokens'
verdict
expect_good 1 'a glob of shards' $small --data "$new/shards/*.bin"
printed '200 tokens'
verdict

# Saved on W ranks, continued on V: the same bits as a run that was not interrupted.
# DIR is given with a slash at its end, as shells complete it.
long="$model --synthetic 5000 --global-batch 4 --batch-size 0 $constant"
expect_good 1 'four steps at once' $long --steps 4 --loss-csv "$new/four.csv"
verdict
for ranks in '2 1' '1 2' '2 4'; do
    set -- $ranks
    expect_good $1 'two steps, saved twice' $long --steps 2 --save "$new/half/" --save-every 1
    verdict
    expect_good $2 "two more after --resume of W=$1" $long --steps 4 --resume "$new/half/" --loss-csv "$new/rest.csv"
    printed '^resumed at step 2'
    [ "$(losses "$new/rest.csv" | tail -n +2)" = "$(losses "$new/four.csv" | tail -n 2)" ] ||
        complain 'other losses than without the interruption'
    verdict
    rm -rf "$new/half" "$new/rest.csv"
done
expect_good 2 'auto without a checkpoint begins at 0' $long --steps 2 --save "$new/auto" --resume auto --loss-csv "$new/a.csv"
[ "$(losses "$new/a.csv")" = "$(losses "$new/four.csv" | head -n 3)" ] || complain 'other losses'
verdict
expect_good 2 'auto with one goes on' $long --steps 4 --save "$new/auto" --resume auto --loss-csv "$new/a.csv"
[ "$(losses "$new/a.csv")" = "$(losses "$new/four.csv")" ] || complain 'other losses, or lost ones'
verdict
expect_good 2 'nothing left to do' $long --steps 4 --save "$new/auto" --resume auto
verdict

# A simulated network changes nothing but the time, and says that it is there.
name='the losses over a simulated network (W=4)'
FSDP_LINK=1Gbit,50us,2 launch 4 $long --steps 4 --loss-csv "$new/slow.csv"
[ "$rc" = 0 ] || complain "exit status $rc, expected 0"
[ "$(grep -v '^note: FSDP_LINK simulates links of 1000 Mbit/s and 50 us, 2 ranks on each$' "$work/err")" = '' ] ||
    complain 'wrote something else to stderr'
[ -s "$work/err" ] || complain 'does not say that a network is simulated'
[ "$(losses "$new/slow.csv")" = "$(losses "$new/four.csv")" ] || complain 'other losses'
check_left
verdict
