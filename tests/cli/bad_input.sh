#!/bin/bash
# bad_input.sh -- wrong options, data, outputs and checkpoints, and too little memory. The trainer says once what is wrong,
# where, what it expected and what to do, and leaves nothing. Valid input is accepted.
#
# Every refused run gets --loss-csv, --export, --save and --memory-report on the files of an earlier run. These files must
# not change.
. "$(dirname "$0")/lib.sh"
cli_start "$@"

model='--n-layer 1 --d-model 16 --n-head 2 --seq-len 16 --ops portable'
small="$model --batch-size 2 --steps 2"
run="$small --synthetic 5000 --loss-csv $keep/loss.csv --export $keep/export --memory-report $keep/report.csv --save $keep/save"

# plainly W NAME REGEX HINT OPTION... -- refused, without the outputs of the earlier run
plainly() {
    run="$small --synthetic 5000" refused "$@"
}

# The same on one rank and on two.
refused12() {
    refused 1 "$@"
    refused 2 "$@"
}

# Under mpiexec, if there is one; it may print lines too.
under_mpi() {
    local starts=$MPI_LAUNCHER
    "$@"
}

# Files of an earlier run. With a constant learning rate the number of steps changes only where the run ends.
constant='--lr 1e-3 --min-lr 1e-3 --warmup-steps 0 --reduction canonical'
expect_good 2 'a first run' $run --global-batch 4
expect_good 4 'a first run of 4 ranks' $small --synthetic 5000 --global-batch 8 --save "$keep/four"
kept=$(tree_sum "$keep")

# ---- options ----------------------------------------------------------------------------------------------------

refused12 'unknown option' 'unknown option --bogus' 'fsdp_train --help' --bogus
under_mpi refused 2 'unknown option, under mpiexec' 'unknown option --bogus' 'fsdp_train --help' --bogus
refused 1 'misspelt option' 'unknown option --stesp' 'did you mean --steps\?' --stesp 3
refused 1 'shortened option' 'unknown option --grad-acc' 'did you mean --grad-accum\?' --grad-acc 3
refused12 'positional argument' "got 'text.txt', expected an option" '--name=value' text.txt
refused 1 'single dash' "got '-h', expected an option" '--name=value' -h
refused 1 'empty option' 'unknown option --' '--help' --
refused12 'missing value' '--steps: no value given' '--name=value' --steps
refused 1 'value that is an option' '--lr: no value given' '--name=value' --lr --steps 2
refused 1 'empty value' "--lr: got '', expected a finite number from 0 to 1000" 'default' --lr=
refused 1 'value for a switch' "--plan: got '1', expected no value" 'alone' --plan=1
refused 1 'too small' "--steps: got '-1', expected a whole number from 0 to 1e\+09|--steps: got '-1'" 'default' --steps -1
refused12 'too large' "--beta1: got '1', expected a finite number from 0 to 0.999999999" 'default' --beta1 1
refused 1 'beyond 64 bits' "--steps: got '99999999999999999999'" 'default' --steps 99999999999999999999
refused 1 'fraction' "--steps: got '1.5', expected a whole number" 'default' --steps 1.5
refused12 'NaN' "--lr: got 'nan', expected a finite number" 'default' --lr nan
refused 1 'infinity' "--clip-grad: got 'inf', expected a finite number" 'default' --clip-grad inf
refused 1 'unknown choice' "--sharding: got 'half', expected one of full\|grad-op\|none" 'default' --sharding half
refused12 'unknown optimizer' "--optimizer: got 'adam', expected one of adamw\|sgd\|adadelta" 'default' --optimizer adam
refused 1 'unknown schedule' "--lr-schedule: got 'sine', expected one of cosine\|linear\|step\|constant" 'default' --lr-schedule sine
refused 1 'momentum of 1' "--momentum: got '1', expected a finite number from 0 to 0.999999999" 'describes' --optimizer sgd --momentum 1
refused12 'momentum of AdamW' '--momentum: expected --optimizer sgd beside it' 'leave --momentum out' --momentum 0.9
refused12 'Nesterov without momentum' '--nesterov: expected --optimizer sgd and --momentum M beside it' 'pass --optimizer sgd and --momentum' --optimizer sgd --nesterov
refused 1 'rho of SGD' '--rho: expected --optimizer adadelta beside it' 'leave --rho out' --optimizer sgd --rho 0.5
refused12 'no norm for AdamW' '--no-grad-norm: expected --parallel fsdp and --optimizer sgd, without momentum' 'leave --no-grad-norm out' \
    --no-grad-norm --clip-grad 0
refused 1 'no norm with momentum' '--no-grad-norm: expected .*without momentum' 'leave' --no-grad-norm --optimizer sgd --momentum 0.9 --clip-grad 0
refused 1 'no norm with decay' '--no-grad-norm: expected .*weight decay' 'leave' --no-grad-norm --optimizer sgd --weight-decay 0.1 --clip-grad 0
refused 1 'no norm of DDP' '--no-grad-norm: expected --parallel fsdp' 'leave' --no-grad-norm --optimizer sgd --clip-grad 0 --parallel ddp
refused 1 'no norm with offload' '--no-grad-norm: expected .*offload' 'leave' --no-grad-norm --optimizer sgd --clip-grad 0 --device separate --cpu-offload
refused12 'no norm to clip by' '--no-grad-norm: expected --clip-grad 0 beside it' 'pass --clip-grad 0' --no-grad-norm --optimizer sgd
refused12 'checkpoints of an evaluation' '--eval-only: expected neither --save nor --export-optimizer' 'leave --eval-only out' \
    --eval-only --save "$new/none"
refused 1 'states of an evaluation' '--eval-only: expected neither --save nor' 'leave' --eval-only --export-optimizer "$new/none"
refused 1 'times of an evaluation' '--eval-only: expected neither .*--plan-device' 'leave' --eval-only --plan-device h100
refused 1 'steps without their size' '--lr-schedule step: expected --lr-step-size N beside it' 'pass' --lr-schedule step
refused 1 'a size of steps of a line' '--lr-step-size: expected --lr-schedule step beside it' 'pass' --lr-schedule linear --lr-step-size 3
refused 1 'gamma without steps' '--lr-gamma: expected --lr-schedule step and --lr-step-size N beside it' 'pass' --lr-gamma 0.5
refused12 'an end of a constant rate' '--min-lr: expected --lr-schedule cosine or linear beside it' 'pass' --lr-schedule constant --min-lr 1e-4
refused 2 'ZeRO-1 with near groups' '--reshard-to: expected .*--sharding full or hybrid' 'pass' --sharding optimizer --reshard-to 2
refused 1 'unknown size' "no size 'huge', expected one of tiny\|small" 'pass --size' --size huge
refused12 'no gather at all' "--limit-all-gathers: got '0', expected a whole number from 1" 'default' \
    --prefetch both --limit-all-gathers 0
refused 1 'too many gathers' "--limit-all-gathers: got '1025', expected a whole number from 1 to 1024" 'default' --limit-all-gathers 1025
refused12 'offload on the host' '--cpu-offload: the memory of --device cpu is the host.s own' 'pass --device separate' --cpu-offload
refused12 'offload of replicas' '--optimizer-offload: expected .*a --sharding that shards' 'leave --optimizer-offload out' \
    --device separate --optimizer-offload --sharding none
refused12 'a piece of nothing' "--offload-piece: got '0', expected a finite number from 0.00097" 'default' --offload-piece 0
refused 1 'offload in a plan of times' '--plan-device: Ascend 910B has no rate of copies' 'pass --plan-copies' \
    --device separate --cpu-offload --plan --plan-device 910b
refused12 'unknown overlap' "--prefetch: got 'backwards', expected one of none\|backward\|backward-post\|forward\|both\|auto" \
    'default' --prefetch backwards
refused12 'a loss in no chunks' "--chunk-loss: got '0', expected a whole number from 1" 'describes --chunk-loss' --chunk-loss=0
refused 1 'an optional value in the next word' "--chunk-loss: got '0', expected a whole number from 1" 'describes --chunk-loss' --chunk-loss 0
refused 1 'a loss in fewer chunks than none' "--chunk-loss: got '-4', expected a whole number from 1" 'describes --chunk-loss' --chunk-loss=-4
refused 1 'a loss in words' "--chunk-loss: got 'few', expected a whole number from 1" 'describes --chunk-loss' --chunk-loss=few
refused 1 'unknown layout' "--layout: got 'rows', expected one of flat\|per-param" 'default' --layout rows
refused 1 'wrap without a size' "--wrap: got 'size:0', expected" 'pass --wrap' --wrap size:0
refused 1 'wrap with more than a size' "--wrap: got 'size:12x', expected" 'pass --wrap' --wrap size:12x
refused 1 'wrap beyond 64 bits' '--wrap: got .*expected' 'pass --wrap' --wrap size:99999999999999999999
refused12 'heads that do not divide' 'n-head 3 does not divide d-model 16' '--n-head' --n-head 3
refused12 'heads of keys that do not divide' 'llama: n-kv-head 3 does not divide n-head 4' 'change --n-kv-head' --model llama --n-head 4 --n-kv-head 3
refused 1 'heads of keys that GPT-2 has not' 'gpt2: n-kv-head is 1, expected n-head, 2' 'pass --model llama' --n-kv-head 1
refused 1 'heads of an odd width' 'llama: heads of width 9, expected an even number' 'change --n-head' --model llama --d-model 18
refused 1 'an unknown model' "--model: got 'bert', expected one of auto\|gpt2\|llama\|mnist" 'pass one of auto\|gpt2\|llama\|mnist; the default' --model bert
refused 1 'an unknown size' "llama: no size '7b', expected one of tiny\|small" 'pass --size with one of' --model llama --size 7b
refused12 'more tokens than rotary positions' '--seq-len: got 1000, expected at most 256, the positions' '--n-positions .*--seq-len' --model llama --seq-len 1000
refused 1 'a folder without images' '/nowhere/train-images-idx3-ubyte: No such file' "MNIST's files" --model mnist --d-model 4 --n-layer 0 --n-head 0 --seq-len 1 --synthetic 0 --data /nowhere
refused12 'more tokens than positions' '--seq-len: got 1000, expected at most 256' '--n-positions .*--seq-len' --seq-len 1000
refused12 'fewer positions than tokens' '--seq-len: got 16, expected at most 15, the positions' 'pass --n-positions' --n-positions 15
refused 1 'positions that are no number' "--n-positions: got 'many', expected a whole number from 0" 'describes --n-positions' --n-positions many
refused 1 'too many tokens' '--batch-size: got 65536 sequences of 1025 tokens, expected at most .* 67108864 tokens' '--grad-accum' \
    --batch-size 65536 --seq-len 1025 --n-positions 2000
refused12 'canonical with 3 sequences' '--batch-size: got 3, expected a power of two' '--grad-accum' \
    --reduction canonical --batch-size 3
refused12 'frozen: no such name' "--freeze: got 'h.0.\*', expected patterns .*, each of which names" 'transformer.h.0.ln_1.weight' --freeze '*.bias,h.0.*'
refused 1 'frozen: an empty pattern' "--freeze: got '', expected patterns with commas" 'lm_head.weight' --freeze '*.bias,,*.weight'
refused12 'frozen: everything' "--freeze: got 'transformer.\*', expected .* left to train" 'transformer.ln_f.weight' --freeze 'transformer.*'
refused 2 'global batch and ranks' '--global-batch: got 7, expected a multiple of 2 ranks' 'divides' --global-batch 7
refused 3 'more ranks than sequences' '--global-batch: got 2, expected a multiple of 3 ranks' 'divides' --global-batch 2
refused12 'global batch and batch' '--global-batch: got 10, expected a multiple of [12] ranks \* batch-size 2' \
    'leave the last two out' --global-batch 10 --grad-accum 3
refused 1 'a batch by division' '--batch-size: got 1000000 sequences' '--grad-accum' \
    --batch-size 0 --grad-accum 1 --global-batch 1000000
refused12 'a mesh that does not divide' '--fsdp-size: got shard groups of 3, expected a divisor of [12] ranks' 'divides' \
    --sharding hybrid --fsdp-size 3
refused 2 'a mesh of replicas alone' '--fsdp-size: got 1, expected at least 2' '--sharding none' --sharding hybrid --fsdp-size 1
refused12 'hybrid without groups' '--sharding hybrid: expected --fsdp-size N beside it, got other options' 'leave --sharding hybrid out' --sharding hybrid
refused12 'groups without hybrid' '--fsdp-size: expected --sharding hybrid beside it, got other options' 'leave --fsdp-size out' --fsdp-size 2
refused 1 'a plan that does not divide' '--plan-fsdp-size: got shard groups of 3, expected a divisor of 8 ranks' 'divides' \
    --plan-ranks 8 --plan-fsdp-size 3
refused 1 'a plan of larger groups' '--plan-fsdp-size: got shard groups of 8, expected a divisor of 4 ranks' 'divides' \
    --plan-ranks 4 --plan-fsdp-size 8
refused 1 'a plan of one device' '--parallel single: got 4 ranks, expected 1' 'single' --plan-ranks 4 --parallel single
refused 1 'a plan of groups for replicas' '--plan-fsdp-size: expected .*--sharding full or hybrid beside it' '--sharding full or hybrid' \
    --plan-ranks 4 --plan-fsdp-size 2 --sharding none
refused 1 'a plan of a batch that does not divide' '--global-batch: got 24, expected a multiple of 5 ranks' 'divides' \
    --plan-ranks 5 --global-batch 24
refused 2 'single device on two ranks' '--parallel single: got 2 ranks, expected 1' 'without a launcher' --parallel single
refused 2 'unknown transport on two ranks' "--comm: got 'smh', expected one of auto\|self\|mpi\|shm" 'default' --comm smh
refused 2 'no transport on two ranks' '--comm self: got 2 ranks, expected 1' 'leave --comm out' --comm self

# The environment. A rank checks it before there is a group, so every rank that sees the error reports it.
FSDP_TIMEOUT_S=soon refused 1 'a word for seconds' "FSDP_TIMEOUT_S: got 'soon', expected a finite number from 0.001 to" 'unset' --comm auto
FSDP_TIMEOUT_S=-1 refused 1 'no time at all' "FSDP_TIMEOUT_S: got '-1', expected a finite number from 0.001 to" 'unset' --comm auto
FSDP_COMM=smh refused 1 'an unknown transport in the environment' "FSDP_COMM: got 'smh'" 'auto, mpi or shm' --comm auto
FSDP_RUN=garbage refused 1 'words that fsdp_run did not write' "FSDP_RUN: got 'garbage'" 'unset FSDP_RUN' --comm auto
if case_is 'no transport in the environment' 2; then
    FSDP_COMM=self launch 2 $run
    for rank in 0 1; do
        says "^\[rank $rank/2\] FSDP_COMM: got 'self' with 2 ranks, expected auto, mpi or shm"
    done
    expect_failed
fi
FSDP_LINK=fast refused 1 'a word for a link' "FSDP_LINK: got 'fast', expected a rate in bit" 'unset' --comm auto
FSDP_LINK=1Gb,50us refused 1 'a link in an unknown unit' "FSDP_LINK: got '1Gb,50us', expected a rate in bit" '1Gbit,50us' --comm auto
if case_is 'a link that three of two ranks share' 2; then
    FSDP_LINK=1Gbit,50us,3 launch 2 $run
    for rank in 0 1; do
        says "^\[rank $rank/2\] FSDP_LINK: got 3 ranks per host, expected a divisor of 2 ranks"
    done
    expect_failed
fi

refused 2 'a profile that cannot be written' 'cannot make the directory /proc/nope' 'pass a --profile directory' --profile /proc/nope
refused 1 'two corpora' '--data: expected --synthetic 0 beside it, got other options' 'leave --data out' --data /etc/passwd

plainly 1 'auto without a directory' '--resume auto: expected --save DIR beside it, got other options' 'pass --save' --resume auto

# One rank prints the help and all ranks exit with status 0. If the help cannot be printed, that is an error.
for ranks in 1 3; do
    case_is "help" $ranks || continue
    good $ranks --steps 3 --help --bogus
    [ "$(grep -c '^Usage: fsdp_train' "$work/out")" = 1 ] || complain 'not printed once'
    grep -q '^  --global-batch=N' "$work/out" || complain 'an option is missing'
    [ ! -s "$work/err" ] || complain 'wrote to stderr'
done
for program in fsdp_train fsdp_generate tests/bench/kernels tests/bench/collectives; do
    case_is "help: $program on a full device" || continue
    "$build/$program" --help >/dev/full 2>"$work/err" && complain 'exit status 0'
    grep -q '^cannot write to standard output' "$work/err" || complain 'no message'
done

# Two ranks with different command lines: MPMD [A] : [B].
differ() {
    case_is "ranks differ: $1" 2 || return
    [ -z "$NO_MPI" ] || { skip "$name" "$NO_MPI" && return; }
    timed $MPI_LAUNCHER -n 1 "$trainer" $run $4 : -n 1 "$trainer" $run $5
    expect_refusal "$2" "$3"
}
differ 'a number' "the option differs: rank 1 has 'lr=0.002', rank 0 has 'lr=0.001'" 'same options' \
    '--lr 1e-3' '--lr 2e-3'
differ 'a path' "the option differs: rank 1 has 'loss-csv=.*b.csv'" 'same options' '' "--loss-csv $new/b.csv"
differ 'a switch' "the option differs: rank 1 has 'plan=1'" 'same options' '' --plan
differ 'one is wrong' "rank 1 failed: --steps: got 'x'" 'default' '' '--steps x'
differ 'the first is wrong' "unknown option --bogus" '--help' --bogus ''
differ 'only one asks for help' "--help differs: rank 1 has 'given', rank 0 has 'not given'" 'same options' '' --help
long=$new/$(printf 'd%.0s' {1..200})/$(printf 'e%.0s' {1..200})
differ 'after long paths' "the option differs: rank 1 has 'memory-report=b'" 'same options' \
    "--export $long --export-init $long --loss-csv $long --memory-report a" \
    "--export $long --export-init $long --loss-csv $long --memory-report b"

# ---- data -------------------------------------------------------------------------------------------------------

# data_refused NAME REGEX HINT PATH [W]
data_refused() {
    refused "${5:-1}" "data: $1" "$2" "$3" --synthetic 0 --data "$4"
}

# shard FILE MAGIC VERSION N_TOKENS BYTES -- a header, and that many bytes of tokens (all 1)
shard() {
    {
        perl -e 'print pack("l<256", @ARGV)' "$2" "$3" "$4"
        perl -e 'print "\1\0" x ($ARGV[0] / 2), "\1" x ($ARGV[0] % 2)' "$5"
    } >"$1"
}

data_refused 'missing' 'data: /nowhere/text: No such file' '--data' /nowhere/text
data_refused 'missing' 'data: /nowhere/text: No such file' '--data' /nowhere/text 2
under_mpi data_refused 'missing, under mpiexec' 'data: /nowhere/text: No such file' '--data' /nowhere/text 2
: >"$new/empty"
data_refused 'empty' 'got 0 bytes, expected at least 17' 'text in it' "$new/empty"
printf 'sixteen letters.' >"$new/short"
data_refused 'too short by one' 'got 16 bytes, expected at least 17' '--seq-len 15 or less' "$new/short"
mkdir "$new/dir" && data_refused 'directory without shards' 'without .bin files' 'llm.c shards' "$new/dir"
mkfifo "$new/pipe" && data_refused 'a pipe' 'not a regular file' 'regular file' "$new/pipe"
data_refused 'a device' 'not a regular file' 'regular file' /dev/zero
data_refused 'glob without files' 'no file matches' 'pattern' "$new/*.none"
shard "$new/good.bin" 20240520 1 100 200
head -c 1000 "$new/good.bin" >"$new/header.bin"
data_refused 'half a header' 'header: got a file of 1000 bytes, expected at least 1024' 'copy it again' "$new/header.bin"
# name | magic, version, number of tokens, bytes of tokens | what is said | hint | ranks
while IFS='|' read -r what shape regex hint ranks; do
    shard "$new/odd.bin" $shape
    data_refused "$what" "$regex" "$hint" "$new/odd.bin" "$ranks" </dev/null
done <<'END'
magic|20240521 1 100 200|magic: got 20240521, expected 20240520 or 20240801|--data-format|1
Llama 3's shards of another version|20240801 1 100 400|version: got 1, expected 7|llm.c|1
Llama 3's tokens cut off|20240801 7 101 400|length: got 1424 bytes, expected 1428 for the 101 tokens|copy it again|2
version|20240520 2 100 200|version: got 2, expected 1|llm.c|2
number below zero|20240520 1 -5 200|length: got 1224 bytes, expected 1024 for the -5 tokens|copy it again|1
cut off|20240520 1 101 200|length: got 1224 bytes, expected 1226 for the 101 tokens|copy it again|1
added to|20240520 1 99 200|length: got 1224 bytes, expected 1222|copy it again|1
half a token|20240520 1 100 201|length: got 1225 bytes, expected 1224|copy it again|1
no tokens|20240520 1 0 0|got 0 tokens, expected at least 17|text in it|1
the largest number|20240520 1 2147483647 200|length: got 1224 bytes, expected 4294968318|copy it again|1
END
perl -e 'print pack("l<256", 20240520, 1, 100), pack("S<100", (7) x 42, 256, (7) x 57)' >"$new/token.bin"
data_refused 'token beyond the vocabulary' 'token 42: got 256, expected less than 256' '--vocab-size is at least 257' \
    "$new/token.bin" 2
refused 1 'data: text beyond the vocabulary' 'got 108, expected less than 100|byte [0-9]+: got [0-9]+, expected less' \
    '--vocab-size' --synthetic 0 --data LICENSE --vocab-size 100
refused 2 'data: validation text is missing' 'data: /nowhere/val: No such file' '--data|--val-data' --val-data /nowhere/val

# ---- outputs ----------------------------------------------------------------------------------------------------

echo text >"$new/file"
for option in loss-csv memory-report digests snapshot export export-init save profile; do
    refused 2 "output: --$option without a parent" "--$option /nowhere/x: /nowhere: No such file" 'directory that exists' \
        "--$option" /nowhere/x
    refused 1 "output: --$option below a file" "--$option $new/file/x: $new/file: Not a directory" 'directory that exists' \
        "--$option" "$new/file/x"
done
for option in export export-init save profile; do
    refused 1 "output: --$option on a file" "--$option $new/file: $new/file: Not a directory" 'directory that' \
        "--$option" "$new/file"
done
for option in loss-csv memory-report digests snapshot; do
    refused 1 "output: --$option on a directory" "--$option $new: $new: Is a directory" 'directory that exists' \
        "--$option" "$new"
    for ranks in 1 2; do # so the other outputs are valid, and new
        plainly $ranks "output: --$option on a full device" 'cannot write /dev/full: No space left' 'free some space' \
            "--$option" /dev/full
    done
    under_mpi plainly 2 "output: --$option on a full device, under mpiexec" 'cannot write /dev/full: No space left' \
        'free some space' "--$option" /dev/full
done
[ -c /dev/full ] || complain '/dev/full was replaced by a file'
refused 1 'output: --save beyond the longest path' 'too long' 'path' --save "$new/$(printf 'd/%.0s' {1..2040})"
if [ -n "${CLI_NAMESPACE:-}" ]; then
    mkdir "$work/ro" && mount -t tmpfs tmpfs "$work/ro" && mkdir "$work/ro/dir" && mount -o remount,ro "$work/ro"
    for option in loss-csv memory-report digests export save profile; do
        refused 1 "output: --$option on a read-only file system" "--$option .*: Read-only file system" 'can be written' \
            "--$option" "$work/ro/x"
    done
    refused 1 'output: --export in a directory that is read-only' 'Read-only file system' 'can be written' \
        --export "$work/ro/dir"
    umount "$work/ro"
else
    skip 'output: read-only file systems' 'not root, or no mount namespaces here'
fi

# ---- memory -----------------------------------------------------------------------------------------------------

sizes='[0-9.]+ [kMGTPE]B'
huge='--size 1558m --n-layer 1000 --n-head 100 --d-model 100000 --d-ff 1000000 --vocab-size 1000000'
refused12 'memory: a huge model' "this run needs $sizes on each rank, $sizes of memory are available" '--plan' \
    $huge --seq-len 1024 --batch-size 65536 --global-batch 0

refused12 'memory: a huge model on the host' "this run needs $sizes on each rank, $sizes of host memory are available" 'leave --cpu-offload' \
    --device separate --cpu-offload --size 124m --n-layer 1000 --n-head 12 --d-model 768 --d-ff 3072
refused12 'memory: a large piece' "this run needs .* by --device-memory" 'a smaller --offload-piece' \
    --device separate --cpu-offload --offload-piece 4000 --device-memory 200 --size 124m --n-layer 12 --n-head 12 --d-model 768 --d-ff 3072
refused 1 'memory: the copy of --save-async' "this run needs $sizes on each rank, 2.1 MB of memory are available to it by" '--plan' \
    --device-memory 2 --d-model 64 --save-async
if case_is 'memory: 124m parameters under ulimit -v' 1; then
    timed bash -c 'ulimit -v 1500000 && exec "$0" "$@"' "$trainer" $run --size 124m --n-layer 12 --d-model 768 --n-head 12
    expect_refusal "this run needs [12].[0-9] GB on each rank, $sizes of memory are available" '--plan'
fi

# Too little memory for the process itself: the rank that notices says so. No signal, no hang.
for megabytes in 400 600 700 800; do
    case_is "memory: $megabytes MB of address space" 1 || continue
    timed bash -c 'ulimit -v "$0" && shift 0 && exec "$@"' $((megabytes * 1000)) "$trainer" $small --synthetic 5000 \
        --size small --n-layer 6 --d-model 256 --n-head 8 --ops fast
    [ "$rc" = 0 ] || [ "$rc" = 1 ] || [ "$rc" = 127 ] || complain "exit status $rc, expected 0 or 1"
    [ "$rc" != 1 ] || grep -q '^HINT: ' "$work/err" || complain 'no hint'
    check_no_tmp
done

# ---- weights ----------------------------------------------------------------------------------------------------

# weights NAME PERL-EDIT FILE REGEX HINT [W] -- the export of the earlier run, with FILE edited
weights() {
    rm -rf "$new/weights" && cp -r "$keep/export" "$new/weights" && perl -pi -e "$2" "$new/weights/$3"
    refused "${6:-1}" "weights: $1" "$4" "$5" --init-from "$new/weights"
}
tensors=model.safetensors
refused12 'weights: missing' '/nowhere/config.json: No such file' 'model.safetensors of a model' --init-from /nowhere
refused12 'weights: of another size' '--n-layer: got 2, expected 1, which .*/export/config.json has' 'options of size' \
    --init-from "$keep/export" --n-layer 2
refused 1 'weights: of another preset' '--n-head or --size: got 12, expected 2' 'options of size' \
    --init-from "$keep/export" --size 124m --n-layer 1 --n-head 0
weights 'of an unknown family' 's/"gpt2"/"bert"/' config.json '"model_type": got "bert", expected one of gpt2\|llama' 'one of these families'
weights 'of another family' 's/"gpt2"/"llama"/' config.json '"num_hidden_layers" is missing' 'of a model'
refused12 'weights: of another family than --model' '--model: got llama, expected gpt2, which .*/export/config.json has' 'leave --model out' \
    --init-from "$keep/export" --model llama
weights 'another function' 's/gelu_new/relu/' config.json '"activation_function": got "relu", expected "gelu_new"' 'GPT-2' 2
weights 'embeddings that are not tied' 's/true/false/' config.json '"tie_word_embeddings": got false, expected true' 'GPT-2'
weights 'an unknown field' 's/^{/{"rotary_dim": 4,/' config.json '"rotary_dim": got a field that GPT-2 here does not have' 'remove the field'
weights 'a field twice' 's/^{/{"n_layer": 2,/' config.json 'got the key "n_layer" twice' 'of a model'
weights 'epsilon in quotes' 's/1e-05/"1e-05"/' config.json '"layer_norm_epsilon": got "1e-05", expected a number' 'of a model'
weights 'text after config.json' 's/^}/} {/' config.json 'text after the object' 'of a model'
weights 'whole numbers' 's/F32/I64/' $tensors 'wte.weight: dtype: got I64, expected F32, BF16 or F16' 'convert' 2
weights 'another shape' 's/\[256,16\]/[512,16]/' $tensors 'wte.weight: shape: got .512,16., expected .256,16.' 'same model'
weights 'another name' 's/ln_f[.]bias/ln_f.bios/' $tensors \
    '1 parameters without a tensor: transformer.ln_f.bias; 1 tensors of no parameter: transformer.ln_f.bios' 'same model' 2
rm -rf "$new/weights" && cp -r "$keep/export" "$new/weights" && truncate -s -4 "$new/weights/$tensors"
refused12 'weights: cut off' 'model.safetensors: data_offsets: got tensors that .* end elsewhere than the file' 'of a model' --init-from "$new/weights"
rm "$new/weights/$tensors"
echo '{"weight_map": {"transformer.wte.weight": "model-00001-of-00002.safetensors"}}' >"$new/weights/$tensors.index.json"
refused12 'weights: a file of the index is missing' 'model-00001-of-00002.safetensors: No such file' 'index.json names this file' \
    --init-from "$new/weights"
perl -e 'print pack("Q", 100_000_000), "{", "\"a\":[", "0," x 49_999_980, "0]}", " " x 40' >"$new/weights/model-00001-of-00002.safetensors"
refused 1 'weights: a header of 100 MB' 'header length: got 100000000, expected at most 16777216' 'index.json names' --init-from "$new/weights"
rm -rf "$new/weights"
refused 1 'states of an optimizer without any' '--export-optimizer: expected --momentum, or another --optimizer than sgd' 'leave --export-optimizer out' \
    --optimizer sgd --export-optimizer "$new/states"

# ---- checkpoints ------------------------------------------------------------------------------------------------

# damaged NAME REGEX -- the checkpoint in $new/damaged
damaged() {
    refused "${4:-1}" "resume: $1" "$2" "${3:-another checkpoint}" --resume "$new/damaged" --resume-change global-batch
    rm -rf "$new/damaged"
}
# patch FILE OFFSET BYTES -- octal: '\0377'
patch() {
    printf '%b' "$3" | dd of="$1" bs=1 seek="$2" conv=notrunc status=none
}
copy() {
    cp -r "$keep/save" "$new/damaged"
    step=$new/damaged/step-2 file=$new/damaged/step-2/rank-00000.safetensors
}

refused12 'resume: missing' 'checkpoint: /nowhere/latest: No such file' '--save wrote' --resume /nowhere
mkdir "$new/damaged" && damaged 'empty directory' 'no such file, and no step-N' '--save wrote'
copy && rm "$new/damaged/latest" && rm "$step/manifest.json" && damaged 'no manifest' 'manifest.json: No such file'
copy && : >"$step/manifest.json" && damaged 'empty manifest' 'manifest.json: got no JSON object'
copy && echo '{}' >>"$step/manifest.json" && damaged 'text after the manifest' 'manifest.json: got no JSON object at byte 0, or text after'
copy && sed -i '1s/{/{"step": 1,/' "$step/manifest.json" && damaged 'a key twice' 'manifest.json: got the key "step" twice'
copy && sed -i 's/checkpoint-2/checkpoint-3/' "$step/manifest.json" && damaged 'format' 'format: got fsdp-labs-checkpoint-3, expected'
copy && sed -i 's/"step":.*,/"step": 1e300,/' "$step/manifest.json" && damaged 'number of the step' 'manifest.json is damaged'
copy && sed -i 's/"step":.*,/"step": 3,/' "$step/manifest.json" && damaged 'another step' 'rank-00000.safetensors: step: got 2, expected 3'
copy && sed -i 's/"run":.*,/"run": "0123456789abcdef",/' "$step/manifest.json" &&
    damaged 'another run' 'rank-00000.safetensors: run: got [0-9a-f]{16}, expected 0123456789abcdef' '' 2
copy && sed -i 's/"xxh3":.*"/"xxh3": "0123456789abcdef"/' "$step/manifest.json" && damaged 'a hash' 'rank-00000.safetensors is damaged'
copy && rm "$step/rank-00001.safetensors" && damaged 'a file is missing' 'rank-00001.safetensors: No such file' '' 2
copy && truncate -s -1 "$file" && damaged 'cut off' 'rank-00000.safetensors is damaged: got [0-9]+ bytes with XXH3'
copy && truncate -s 3 "$file" && damaged 'three bytes' 'rank-00000.safetensors is damaged: got 3 bytes'
copy && patch "$file" 0 X && damaged 'length of the header' 'rank-00000.safetensors is damaged'
copy && patch "$file" 5000 '\0252\0252' && damaged 'a value' 'rank-00000.safetensors is damaged: got .* XXH3' '' 3
for file in 0 1 2 3; do # some rank reads each file of a checkpoint, however many ranks there are
    for ranks in 1 2; do
        cp -r "$keep/four" "$new/damaged" && patch "$new/damaged/step-2/rank-0000$file.safetensors" 5000 '\0252\0252'
        damaged "a value in file $file of 4" "rank-0000$file.safetensors is damaged: got .* XXH3" '' $ranks
    done
done
copy && cp "$step/rank-00001.safetensors" "$file" && damaged 'one part twice' 'rank-00000.safetensors is damaged'
mkdir "$new/damaged" && touch "$new/damaged/meta.json" "$new/damaged/rank-00000.ckpt" &&
    damaged 'the old form' 'damaged is of the old form' 'program that saved it' 2
refused12 'resume: another model' 'model: saved with .*width 16.*, this run has .*width 32' 'model options' --resume "$keep/save" --d-model 32
refused12 'resume: other heads' 'model: saved with .*2 heads.*, this run has .*4 heads' 'model options' --resume "$keep/save" --n-head 4
refused12 'resume: another optimizer' 'optimizer: saved with adamw, this run has sgd' 'optimizer options' \
    --resume "$keep/save" --optimizer sgd
refused 1 'resume: momentum that was not' 'optimizer: saved with adamw, this run has sgd with momentum' 'optimizer options' \
    --resume "$keep/save" --optimizer sgd --momentum 0.9
refused 1 'a change of a run that is not resumed' '--resume-change: expected --resume DIR beside it' 'pass --resume DIR, or leave' --resume-change seed
refused12 'resume: a name that does not exist' "--resume-change: got 'sead', expected some of data,mask,seq-len" 'name what' \
    --resume "$keep/save" --resume-change seed,sead
refused12 'output: --save on checkpoints of another run' 'save: .*/save/step-2 is a checkpoint of another run' '--resume auto'
refused12 'output: --save to a checkpoint' 'save/step-2: is itself a checkpoint' 'directory that it is in' --save "$keep/save/step-2" --resume auto
copy && cp -r "$step" "$new/damaged/step-1" && sed -i 's/"run":.*,/"run": "0123456789abcdef",/' "$new/damaged/step-1/manifest.json" &&
    refused 1 'output: a checkpoint of another run beside' 'step-1 is a checkpoint of another run' 'move it away' \
        --save "$new/damaged" --resume auto --resume-change global-batch,schedule
rm -rf "$new/damaged"

# ---- training itself --------------------------------------------------------------------------------------------

diverges='--optimizer sgd --lr 1000 --min-lr 1000 --warmup-steps 0 --clip-grad 0 --steps 200'
{
    diverges="$diverges --save $new/diverged"
    refused12 'diverging training' 'training diverged at step [0-9]+: loss .*nan|training diverged at step' 'lower --lr' $diverges
    under_mpi refused 2 'diverging training, under mpiexec' 'training diverged at step' 'lower --lr' $diverges
}

# ---- the other programs -----------------------------------------------------------------------------------------

# other NAME PROGRAM REGEX HINT ARGUMENT...
other() {
    local regex=$3 hint=$4 program=$2
    case_is "$1" || return
    shift 4
    timed "$build/$program" "$@"
    expect_refusal "$regex" "$hint"
}
other 'generate: no directory' fsdp_generate 'config.json: No such file' 'config.json and the model.safetensors' /nowhere --prompt x
other 'generate: an option' fsdp_generate 'unknown option --bogus' '--help' "$keep/export" --bogus
rows='step,loss,grad_norm,lr,ms\n0,5.5,1,1e-3,7\n'
printf 'step,loss,grad,lr,ms\n0,5.5,1,1e-3,7\n' >"$work/header.csv"
printf '0,5.5,1,1e-3,7\n1,5.5,1,1e-3,7\n' >"$work/no-header.csv"
printf "${rows}1,5.5,1,1e-3,7\\0\\n2,x\\n" >"$work/nul.csv"
printf "${rows}1,5.5\\033[2J,1,1e-3,7\\n" >"$work/control.csv"
for file in /nowhere "$new" "$new/empty" "$work/"{header,no-header,nul,control}.csv; do
    case_is "compare: ${file##*/}" || continue
    timed "$build/fsdp_compare" "$file" "$file"
    [ "$rc" = 2 ] && rc=1 # fsdp_compare exits with 2 if a file is unusable, with 1 if the files differ
    expect_refusal 'cannot read (/nowhere|.*: Is a directory)|no steps to compare|(no-)?header.csv: line 1: expected step,loss|(nul|control).csv: line 3' '--loss-csv'
done

if case_is 'compare: a full disk'; then
    printf "$rows" >"$work/one.csv"
    "$build/fsdp_compare" "$work/one.csv" "$work/one.csv" >/dev/full 2>"$work/err"
    rc=$?
    [ "$rc" = 2 ] && rc=1
    expect_refusal 'cannot write to standard output' 'send the output elsewhere'
fi

# A path that clears the terminal, and a path that prints a line of its own.
for file in $'a\033[2Jb' $'a\n[rank 0/1] b' $'a\u009b2Jb'; do
    case_is "control characters in a path: $(printf %q "$file")" || continue
    launch 1 --size tiny --data "$new/$file"
    expect_refusal 'data: .*/new/a(\\x1b\[2Jb|\\x0a\[rank 0/1\] b|\\xc2\\x9b2Jb): (No such file|no file matches)' '--data'
done

# ---- valid input ------------------------------------------------------------------------------------------------

[ -n "${CASES:-}" ] || . tests/cli/good_input_lib.sh

# ---- files without an end ----------------------------------------------------------------------------------------

# never_read COMMAND... -- refused with one hint, in 1 GB of memory
never_read() {
    timed bash -c 'ulimit -v 1000000 && exec "$@"' _ "$@"
    [ "$rc" = "$refusal" ] && [ "$(grep -c '^HINT: .' "$work/err")" = 1 ] || complain "exit status $rc: $*"
    says "${endless##*/}.*(expected|damaged|not a regular file)"
}
case_is 'files that never end, or not for long' && {
    mkfifo "$new/fifo"
    truncate -s 50G "$new/large"
    printf 'step,loss,grad_norm,lr,ms\n0,1,1,1,1\n' >"$new/1.csv"
    for endless in /dev/zero "$new/fifo" "$new/large"; do
        refusal=1 never_read "$trainer" --plan --n-layer 1 --plan-prices "$endless"
        [ ! -p "$endless" ] || continue # it has no writer yet
        refusal=2 never_read "$build/fsdp_compare" "$new/1.csv" "$endless"
        refusal=2 never_read "$build/fsdp_compare" --bisect "$endless" "$new/1.csv"
    done
    rm "$new/fifo" "$new/large"
}

# ---- environment variables ---------------------------------------------------------------------------------------

# env_refused W NAME=VALUE EXPECTED -- one message and one hint; the hint's value, if the variable is set to it, is taken
env_refused() {
    local variable=${2%%=*} took
    timed env "$2" $([ "$1" = 1 ] || echo "$starts -n $1") "$trainer" $small --synthetic 5000
    grep -v '^libgomp\|^$' "$work/err" >"$work/own" # OpenMP says it too
    expect_status 1
    [ "$(grep -c "$variable: got '${2#*=}', expected $3" "$work/own")" = 1 ] || complain "$2 on $1 ranks: not one message"
    [ "$(grep -c "^HINT: .*unset $variable, or set it to " "$work/own")" = 1 ] || complain "$2 on $1 ranks: not one hint"
    took=$(sed -n 's/^HINT: .*set it to .*\b\([0-9][0-9]*\)$/\1/p' "$work/own")
    [ -z "$took" ] || ends_with 0 env "$variable=$took" "$trainer" $small --synthetic 5000
}
case_is 'a bad value of an environment variable' && {
    for flag in PIN CHECK DEBUG_FILL ASYNC_COMPUTE HOST_SYNC MIXED_GPUS MIXED_NPUS; do
        env_refused 1 FSDP_$flag=yes 'a whole number from 0 to 1'
    done
    env_refused 2 FSDP_PIN=99 'a whole number from 0 to 1'
    env_refused 1 FSDP_DEBUG_FILL=' 1' 'a whole number from 0 to 1'
    for value in nan -1 inf 1e10 1e-320 5ms; do
        env_refused 1 FSDP_PROFILE_AXIS_MS=$value 'a finite number from 0 to 1e+09\|a finite number from 0 to 1000000000'
    done
    env_refused 2 FSDP_TIMEOUT_S=0 'a finite number from 0.001 to'
    env_refused 2 FSDP_SCHEDULE=4294967296 'a whole number from 0 to 4294967295'
    env_refused 1 FSDP_MPI_CHUNK_BYTES=1e6 'a whole number from 1 to 1073741824'
    env_refused 1 FSDP_COMM=MPI 'one of auto|self|mpi|shm|nccl|hccl'
    for value in abc 0 -3 1.5; do
        env_refused 1 OMP_NUM_THREADS=$value 'a whole number from 1 to 65536'
    done
    FSDP_HOST_SYNC=on timed "$build/fsdp_generate" "$keep/export" --prompt x
    expect_status 1
    says "FSDP_HOST_SYNC: got 'on'"
}
case_is 'an unknown variable is noted once, with the nearest name; variables of tests are not noted' && {
    for pair in FSDP_TIMEOUT=FSDP_TIMEOUT_S FSDP_DEBUGFILL=FSDP_DEBUG_FILL FSDP_SCHED=FSDP_SCHEDULE; do
        ends_with 0 env ${pair%=*}=1 $starts -n 2 "$trainer" $small --synthetic 5000
        [ "$(cat "$work/err")" = "note: the environment has ${pair%=*}, which nothing reads; did you mean ${pair#*=}?" ] ||
            complain "another note: ${pair%=*}"
    done
    ends_with 0 env OMP_NUM_THREADS=1,2 FSDP_PIN= FSDP_SIM_GPUS=2 FSDP_PYTHON=python3 FSDP_DEVICE=cpu FSDP_TOOLS=1 "$trainer" $small --synthetic 5000
    [ ! -s "$work/err" ] || complain 'a note without a reason'
}

# ---- a config.json of another size -------------------------------------------------------------------------------

case_is 'weights of one layer with a config.json of 65536' && {
    rm -rf "$new/deep" && cp -r "$keep/export" "$new/deep"
    sed -i 's/"n_layer":[^,]*/"n_layer": 65536/' "$new/deep/config.json"
    for command in "$trainer --steps 1 --seq-len 16 --synthetic 5000 --device-memory 1 --init-from $new/deep" "$build/fsdp_generate $new/deep --prompt 1"; do
        timed bash -c 'ulimit -t 30 && exec "$@"' _ $command
        expect_status 1
        says '[0-9]+ parameters without a tensor: transformer.h.1.ln_1.weight'
        says '^HINT: config.json and the weights must belong to the same model'
    done
    rm -rf "$new/deep"
}
cli_end
