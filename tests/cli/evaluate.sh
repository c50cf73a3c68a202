#!/bin/bash
# evaluate.sh -- runs without training (--eval-only, --steps 0), and steps that compute no norm (--no-grad-norm).
. "$(dirname "$0")/lib.sh"
cli_start "$@"
size='--n-layer 2 --d-model 32 --n-head 2 --seq-len 32'
run="$size --global-batch 12 --synthetic 5000 --reduction canonical"

# as_planned W OPTION... -- the run succeeds, and moves and holds what was planned
as_planned() {
    good "$@"
    grep -q DIFFERS "$work/out" && complain "other bytes or calls than planned: $(grep DIFFERS "$work/out")"
}

# evaluated -- the last loss that was printed
evaluated() { sed -n 's/^eval  step [0-9]*  \(val \)\{0,1\}loss \([^ ]*\)  .*/\2/p' "$work/out" | tail -1; }

# is_loss EXPECTED
is_loss() { [ "$(evaluated)" = "$1" ] || complain "loss $(evaluated), expected $1"; }

# is_near EXPECTED RELATIVE-ERROR
is_near() {
    awk -v a="$(evaluated)" -v b="$1" -v e="$2" 'BEGIN { exit !(a > b * (1 - e) && a < b * (1 + e)) }' || complain "loss $(evaluated), expected $1"
}

# row FILE -- the loss of the first step
row() { sed -n '2s/^0,\([^,]*\),.*/\1/p' "$1"; }

# held ROW FILE -- bytes of a row of --memory-report
held() { awk -F, -v row="$1" '$1 == "memory" && $2 == row { print $4 }' "$2"; }

# ---- one batch with the initial weights: the loss of step 0, on any number of ranks ----
for how in '--parallel single' '--sharding full' '--sharding none' '--sharding grad-op' '--sharding grad-op --reshard-after step' '--parallel ddp' \
    '--layout per-param --wrap sub-block' '--param-dtype bf16' '--sharding full --freeze transformer.h.0.* --gradient-checkpointing' \
    '--sharding full --prefetch both --bucket 30000'; do
    case_is "--eval-only $how"
    as_planned 1 $run $how --steps 1 --loss-csv "$work/one.csv" --memory-report "$work/trains.csv"
    for ranks in 1 2 3; do
        [ "$how" = '--parallel single' ] && [ $ranks -gt 1 ] && continue
        as_planned $ranks $run $how --eval-only --eval-batches 1 --memory-report "$work/memory.csv"
        is_loss "$(row "$work/one.csv")"
        [ "$(held activations "$work/memory.csv")" -lt "$(held activations "$work/trains.csv")" ] || complain 'activations are kept'
        grep -qE '^memory,(grads_shard|grads_full|optimizer),0,0,0$' "$work/memory.csv" || complain 'no report of memory'
        grep -qE '^memory,(grads_shard|grads_full|optimizer),[^,]*[1-9]' "$work/memory.csv" && complain 'memory of gradients or of an optimizer'
        grep -qE '^calls,(reduce-scatter|all-reduce),[1-9]' "$work/memory.csv" && complain 'something is reduced'
    done
done
case_is '--eval-only --sharding hybrid'
as_planned 1 $run --steps 1 --loss-csv "$work/one.csv"
as_planned 4 $run --sharding hybrid --fsdp-size 2 --eval-only --eval-batches 1
is_loss "$(row "$work/one.csv")"

case_is '--eval-batches: as many sequences'
for batches in 1 2 5; do
    as_planned 2 $run --eval-only --eval-batches $batches
    grep -q "^eval .*  ($((12 * batches)) sequences)$" "$work/out" || complain "not $batches batches: $(grep ^eval "$work/out")"
done
as_planned 1 $run --eval-only --eval-batches 1000
says '^eval .*  [(]156 sequences[)]$' "$work/out"
says '^note: --eval-batches 1000 asks for 12000 samples; there are 156, each evaluated once$' "$work/out"
as_planned 1 $run --eval-only
says '^eval .*  [(]128 sequences[)]$' "$work/out"
grep -q '^note' "$work/out" && complain 'a note about nothing'

# ---- every sample once: the loss of a step whose global batch is the whole corpus ----
tiny='--n-layer 1 --d-model 16 --n-head 2 --seq-len 16 --ops portable'
# corpus BYTES -- a text with (BYTES - 1) / 16 sequences
corpus() { head -c "$1" LICENSE >"$work/text"; }
for bytes in 81 80 17 400; do
    samples=$(((bytes - 1) / 16))
    case_is "each of $samples sequences once, for any batch and number of ranks"
    corpus $bytes
    as_planned 1 $tiny --reduction canonical --data "$work/text" --batch-size 1 --global-batch $samples --steps 1 --loss-csv "$work/one.csv"
    for sizes in '1 1 24' '1 2 2' '1 4 64' '1 1 1' '2 1 24' '2 4 8' '2 2 28' '3 1 9' '3 4 24' '3 2 6' '4 1 4' '4 2 40'; do
        read -r ranks batch global <<<"$sizes"
        as_planned "$ranks" $tiny --reduction canonical --data "$work/text" --batch-size "$batch" --global-batch "$global" --eval-only
        is_loss "$(row "$work/one.csv")"
        says "^eval .*  [(]$samples sequences[)]$" "$work/out"
    done
done
case_is 'the tail in fast mode, in bf16, in chunks, by rows and on stand-ins'
corpus 241
stand_ins=()
for device in cuda-sim npu-sim; do
    [ ! -e "$build/fsdp_${device/-/_}.so" ] || { cp "$build/fsdp_${device/-/_}.so" "$work/bin" && stand_ins+=("--device $device --ops fast"); }
done
for how in '' '--ops fast' '--param-dtype bf16' '--chunk-loss=4' '--layout per-param' "${stand_ins[@]}"; do
    as_planned 1 $tiny $how --data "$work/text" --batch-size 5 --global-batch 15 --steps 1 --loss-csv "$work/one.csv"
    as_planned 2 $tiny $how --data "$work/text" --batch-size 4 --global-batch 8 --eval-only
    says '[(]15 sequences[)]$' "$work/out"
    # Products of other shapes sum their 16 terms in another order: a logit, below 1 in size, is off by 16 units of fp32 or by one
    # of bf16, and a loss, above 5, by twice that.
    is_near "$(row "$work/one.csv")" "$([[ $how = *bf16* ]] && echo 2e-3 || echo 1e-6)"
done
case_is 'each image once'
for sizes in '1 1 24' '2 4 8' '3 1 9'; do
    read -r ranks batch global <<<"$sizes"
    as_planned "$ranks" --model mnist --size tiny --synthetic 50 --reduction canonical --batch-size "$batch" --global-batch "$global" --eval-only
    sed -n 's/^eval //p' "$work/out" >"$work/says.$ranks"
    cmp "$work/says.1" "$work/says.$ranks" >/dev/null || complain "W=$ranks says: $(cat "$work/says.$ranks"); W=1: $(cat "$work/says.1")"
done
says '[(]50 images[)]$' "$work/says.1"

# ---- a trained model: the loss equals what training printed at its end ----
case_is 'training with --val-data, saved and exported'
as_planned 2 $run --steps 3 --val-data LICENSE --save "$keep/save" --export "$keep/export"
trained=$(evaluated)
grep -q '^eval  step 3  val loss ' "$work/out" || complain 'no evaluation'
for how in "2 --resume $keep/save" "3 --resume $keep/save --sharding none" "1 --resume $keep/save --parallel single" \
    "2 --init-from $keep/export"; do
    case_is "--eval-only of a trained model: ${how//$keep/DIR}"
    # another recipe and other data: only the weights are used
    as_planned $how $size --global-batch 12 --synthetic 4000 --reduction canonical --lr 7 --clip-grad 3 --val-data LICENSE --eval-only
    is_loss "$trained"
done
case_is '--eval-only of another optimizer is refused'
fails 1 'optimizer: saved with adamw, this run has sgd' $run --optimizer sgd --resume "$keep/save" --eval-only

case_is '--steps 0 --resume --export: the weights, without an optimizer'
as_planned 3 $run --steps 0 --resume "$keep/save" --export "$new/again" --memory-report "$work/memory.csv"
same_weights "$keep/export" "$new/again"
grep -q '^memory,optimizer,0,0,0$' "$work/memory.csv" || complain 'memory of an optimizer'
case_is '--steps 0 --export: the initial weights of one device'
as_planned 1 $run --steps 0 --parallel single --export "$new/one"
as_planned 3 $run --steps 0 --export "$new/three"
same_weights "$new/one" "$new/three"

# ---- no norm ----
sgd='--optimizer sgd --clip-grad 0 --lr 0.1 --steps 4'
case_is '--no-grad-norm: the losses and weights of a run that finds it, no all-reduce'
as_planned 1 $run $sgd --parallel single --loss-csv "$work/norm.csv" --export "$new/norm"
for how in '1' '2' '3 --sharding none' '3 --sharding grad-op --no-sync' '4 --sharding hybrid --fsdp-size 2' '2 --layout per-param'; do
    as_planned $how $run $sgd --no-grad-norm --loss-csv "$work/none.csv" --export "$new/none"
    cmp -s <(cut -d, -f1,2,4 "$work/norm.csv") <(cut -d, -f1,2,4 "$work/none.csv") || complain "$how: other losses"
    cmp -s "$new/norm/model.safetensors" "$new/none/model.safetensors" || complain "$how: other weights"
    grep -q '^  all-reduce  *0 B  *0 B   0 calls, planned 0$' "$work/out" || complain "$how: an all-reduce"
    grep -q grad_norm "$work/out" && complain "$how: a norm is printed"
    [ "$(cut -d, -f3 "$work/none.csv" | sort -u | tr '\n' ' ')" = 'grad_norm nan ' ] || complain "$how: the file of losses has a norm"
done
case_is '--no-grad-norm: saved, resumed'
for how in '' --save-async; do
    rm -rf "$new/save"
    as_planned 2 $run $sgd --no-grad-norm --lr-schedule constant --stop-after 2 --save "$new/save" $how --loss-csv "$new/part.csv"
    as_planned 3 $run $sgd --no-grad-norm --lr-schedule constant --resume "$new/save" --loss-csv "$new/part.csv"
    as_planned 1 $run $sgd --no-grad-norm --lr-schedule constant --loss-csv "$new/whole.csv"
    same_losses "$new/part.csv" "$new/whole.csv"
done
case_is '--no-grad-norm: divergence is still found'
fails 2 'training diverged at step' $run --optimizer sgd --clip-grad 0 --no-grad-norm --lr 1000 --min-lr 1000 --warmup-steps 0 --steps 50

# ---- a norm that is not finite on some ranks: all ranks end at once, whichever has it. The program is linked with two functions that
# overwrite the norm of step 2 in the ranks that the case names ----
cat >"$work/apart.c" <<'END'
#include <stdlib.h>
#include <string.h>
#include "common/device/device.h"
#include "lab4_optimizer/offload.h"
static fsdp_status overwrite(fsdp_optimizer *o, const step_scalars *sc, float *norm)
{
    static float value;
    const char *rank = getenv("FSDP_RUN");
    value = strtof(getenv("NORM"), NULL);
    if (sc->optim.step != 1 || !strchr(getenv("NORM_OF"), rank ? *rank : '0'))
        return FSDP_OK;
    return device_upload(o->compute, norm, &value, sizeof value);
}
fsdp_status __real_optimizer_step(fsdp_optimizer *o, const step_scalars *sc, float *norm);
fsdp_status __wrap_optimizer_step(fsdp_optimizer *o, const step_scalars *sc, float *norm);
fsdp_status __wrap_optimizer_step(fsdp_optimizer *o, const step_scalars *sc, float *norm)
{
    TRY(__real_optimizer_step(o, sc, norm));
    return overwrite(o, sc, norm);
}
fsdp_status __real_offload_step(fsdp_optimizer *o, const step_scalars *sc, adamw_fn f, float *norm);
fsdp_status __wrap_offload_step(fsdp_optimizer *o, const step_scalars *sc, adamw_fn f, float *norm);
fsdp_status __wrap_offload_step(fsdp_optimizer *o, const step_scalars *sc, adamw_fn f, float *norm)
{
    TRY(__real_offload_step(o, sc, f, norm));
    return overwrite(o, sc, norm);
}
END
case_is 'a program whose norm can be overwritten is built'
read -r compile <"$build/flags"
link=${compile#* / } compile=${compile%% / *}
flags=${compile#"$cc "} whole=$trainer trainer=$work/bin/apart_$$
{ $cc $flags -MF "$work/deps" -c "$work/apart.c" -o "$work/apart.o" && $cc -o "$trainer" "$build/trainer/fsdp_train_main.o" "$work/apart.o" \
    "$build/libfsdp.a" -Wl,--wrap=optimizer_step,--wrap=offload_step $link; } >"$work/err" 2>&1 || complain "$(head -1 "$work/err")"
# apart W RANKS NORM OPTION... -- the ranks named have this norm
apart() {
    case_is "a norm of $3 on ranks $2${4:+, ${*:4}}" "$1" || return
    NORM_OF=$2 NORM=$3 launch "$1" $run --steps 20 "${@:4}"
    expect_failed
    says "^(.rank ${2:0:1}/$1. )?training diverged at step 2: loss [0-9.]*, gradient norm $3, expected finite\$"
    says '^HINT: .*--lr'
    ! grep -E ' waited |last calls' "$work/err" || complain 'it ended at a time limit'
}
kept=$(tree_sum "$keep")
apart 3 0 nan
apart 3 2 nan --prefetch both
apart 2 1 inf --sharding none
apart 4 3 nan --sharding hybrid --fsdp-size 2
apart 2 0 nan --device separate --cpu-offload
apart 1 0 nan
apart 3 012 nan
trainer=$whole

# ---- images: the number of correct answers over all ranks ----
case_is 'the accuracy on images is the same on 1 to 4 ranks'
net='--model mnist --size tiny --global-batch 12 --synthetic 2000 --reduction canonical --steps 40 --optimizer adadelta --lr 1
    --lr-schedule constant --warmup-steps 0 --clip-grad 0 --val-data digits --eval-batches 40'
for ranks in 1 2 3 4; do
    as_planned $ranks $net
    sed -n 's/^.*eval  step //p' "$work/out" >"$work/says.$ranks"
    cmp "$work/says.1" "$work/says.$ranks" >/dev/null || complain "W=$ranks says: $(cat "$work/says.$ranks"); W=1: $(cat "$work/says.1")"
done
awk '$6 + 0 > 10 && $6 + 0 < 100 && /[(]480 images[)]/ { ok = 1 } END { exit !ok }' "$work/says.1" || complain "got: $(cat "$work/says.1")"

cli_end
