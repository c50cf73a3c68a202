# shellcheck shell=bash
# good_input_lib.sh -- what the trainer accepts: sourced by bad_input.sh, which sets $keep, $new, $small, $constant.

printed() {
    says "$1" "$work/out"
}

run="$small --synthetic 5000"
expect_good 1 'underscores, values apart or not' $run --batch_size=4 --grad-accum 2 --warmup_steps 0
printed 'a step is 8 sequences of 16 tokens \(4 per rank x 2 micro-steps\)'
expect_good 1 'the last of repeated options' $run --batch-size 4 --batch-size 1
printed '\(1 per rank x 1 micro-steps\)'
expect_good 2 'global batch alone: batch size by itself' $run --batch-size 0 --global-batch 24
printed 'a step is 24 sequences of 16 tokens \(4 per rank x 3 micro-steps\)'
expect_good 1 'an optional value in the next word' $run --no-sync off --chunk-loss 16
expect_good 1 'an option in the place of an optional value' $run --chunk-loss --no-sync
expect_good 3 'global batch and accumulation' $run --batch-size 0 --global-batch 24 --grad-accum 2
printed '\(4 per rank x 2 micro-steps\)'
expect_good 2 'plan' $run --plan --loss-csv "$new/plan.csv"
printed '^traffic of one step \(sent by this rank\)$'
[ ! -e "$new/plan.csv" ] || complain '--plan wrote the loss file'
expect_good 1 'plan of a model that does not fit' $run --plan $huge --seq-len 1024
printed '^  at one moment  *[0-9]{13,} '
for ranks in 1 2; do
    expect_good $ranks 'no steps' $run --steps 0 --loss-csv "$new/none.csv" --export "$new/none" --save "$new/none.ckpt"
    [ ! -e "$new/none.csv" ] || complain 'there is a loss file'
    [ -s "$new/none/model.safetensors" ] || complain 'no export'
    expect_good $ranks 'a checkpoint of no step resumes' $run --steps 2 --resume "$new/none.ckpt" --resume-change schedule --loss-csv "$new/two.csv"
    expect_good $ranks 'as without it' $run --steps 2 --loss-csv "$new/none.csv"
    diff <(cut -d, -f1-3 "$new/two.csv") <(cut -d, -f1-3 "$new/none.csv") >/dev/null || complain 'other losses'
    rm "$new/none.csv" "$new/two.csv"
    rm -rf "$new/none" "$new/none.ckpt"
done
expect_good 2 'evaluation' $run --val-data LICENSE --eval-every 1
[ "$(grep -c '^eval  step .* val loss [0-9.]* ' "$work/out")" = 2 ] || complain 'expected two evaluations'
expect_good 1 'a path with spaces and UTF-8' $run --loss-csv "$new/ä  b.csv"
[ -s "$new/ä  b.csv" ] || complain 'no loss file'
expect_good 1 'a device as the loss file' $run --loss-csv /dev/null
[ -c /dev/null ] || complain '/dev/null was replaced'
expect_good 1 'stdout as the loss file' $run --loss-csv /dev/stdout
expect_good 1 'the loss of all tokens at once' $run $constant --loss-csv "$new/whole.csv"
for chunk in '' =1 =1000000; do
    expect_good 1 "the loss in chunks: --chunk-loss$chunk" $run $constant --chunk-loss$chunk --loss-csv "$new/chunks.csv"
    same_losses "$new/chunks.csv" "$new/whole.csv"
done
ln -s target.csv "$new/link.csv" && : >"$new/target.csv"
expect_good 1 'a link as the loss file' $run --loss-csv "$new/link.csv"
[ -L "$new/link.csv" ] || complain 'the link was replaced'
[ -s "$new/target.csv" ] || complain 'what the link points to was not written'

# Shards: a directory, and a glob that the trainer expands.
mkdir "$new/shards" && cp "$new/good.bin" "$new/shards/a.bin" && cp "$new/good.bin" "$new/shards/b.bin"
expect_good 1 'a directory of shards' $small --data "$new/shards"
printed '200 tokens'
expect_good 1 'a glob of shards' $small --data "$new/shards/*.bin"
printed '200 tokens'

# A run that is saved on W ranks and resumed on V has the bits of an uninterrupted run.
# DIR is given with a slash at its end, as shells complete it.
long="$model --synthetic 5000 --global-batch 4 --batch-size 0 $constant"
expect_good 1 'four steps at once' $long --steps 4 --loss-csv "$new/four.csv"
for ranks in '2 1' '1 2' '2 4'; do
    set -- $ranks
    expect_good $1 'two steps, saved twice' $long --steps 2 --save "$new/half/" --save-every 1
    expect_good $2 "two more after --resume of W=$1" $long --steps 4 --resume "$new/half/" --loss-csv "$new/rest.csv"
    printed '^resumed at step 2'
    same_losses "$new/rest.csv" "$new/four.csv" 2
    rm -rf "$new/half" "$new/rest.csv"
done
expect_good 2 'auto without a checkpoint begins at 0' $long --steps 2 --save "$new/auto" --resume auto --loss-csv "$new/a.csv"
[ "$(losses "$new/a.csv")" = "$(losses "$new/four.csv" | head -n 3)" ] || complain 'other losses'
expect_good 2 'auto with one goes on' $long --steps 4 --save "$new/auto" --resume auto --loss-csv "$new/a.csv"
same_losses "$new/a.csv" "$new/four.csv"
expect_good 2 'nothing left to do' $long --steps 4 --save "$new/auto" --resume auto

# A simulated network changes only the time. A note says that the network is simulated.
case_is 'the losses over a simulated network' 4
FSDP_LINK=1Gbit,50us,2 good 4 $long --steps 4 --loss-csv "$new/slow.csv"
[ "$(grep -v '^note: FSDP_LINK simulates links of 1000 Mbit/s and 50 us, 2 ranks on each$' "$work/err")" = '' ] ||
    complain 'wrote something else to stderr'
[ -s "$work/err" ] || complain 'does not say that a network is simulated'
same_losses "$new/slow.csv" "$new/four.csv"
