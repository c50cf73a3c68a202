#!/bin/bash
# shards.sh -- what --print-shards prints for both layouts, and checkpoints that are resumed with another layout and
# another number of ranks.
#
#   tests/cli/shards.sh [BUILD]
#   CASES=REGEX                only the cases whose names match
#
# Prints PASS, FAIL and SKIP lines and a last line with their numbers.
# shellcheck disable=SC2016,SC2034,SC2086,SC2154
set -u
cd "$(dirname "$0")/../.." || exit 2
. tests/cli/lib.sh
cli_namespace "$PWD/tests/cli/shards.sh" "$@"
cli_begin "${1:-build}"
cheap='--size tiny --n-positions 5 --seq-len 4 --synthetic 4096 --reduction canonical --ops portable'

# drawn NAME PATTERN OPTION... -- the output must have a line that matches PATTERN; blanks in a row count as one
drawn() {
    name="print-shards: $1" pattern=$2
    chosen || return
    shift 2
    launch 1 $cheap --print-shards "$@"
    [ "$rc" = 0 ] || complain "exit status $rc"
    tr -s ' ' <"$work/out" | grep -qxE " ?$pattern" || complain "no line like '$pattern'"
    verdict
}

# A parameter of 5 rows of 64 elements on 4 ranks: each rank has whole rows, and the last one has none.
drawn 'rows' 'transformer.wpe.weight 5x64 2 2 1 0' --layout per-param --plan-ranks 4
drawn 'padding of rows' 'padding, elements 32 32 96 160' --layout per-param --plan-ranks 4
drawn 'elements' 'transformer.wpe.weight 5x64 0 0 0 320' --plan-ranks 4
drawn 'a parameter on two ranks' 'transformer.wte.weight 256x64 8448 7936' --plan-ranks 4 --plan-fsdp-size 2
drawn 'rows of a group' 'transformer.wpe.weight 5x64 3 2' --layout per-param --plan-ranks 6 --plan-fsdp-size 2
drawn 'replicas' 'shards: layout per-param, 2 to a group, 3 replicas of each' --layout per-param --plan-ranks 6 --plan-fsdp-size 2
drawn 'many ranks' 'transformer.wpe.weight 5x64 1 1 1 1 1 0 0 ... 0' --layout per-param --plan-ranks 12
drawn 'units that are alike' 'h.0 ... h.1: 49984 elements gathered, 12608 in a shard' --layout per-param --plan-ranks 4
drawn 'one rank, which has all elements' 'transformer.wpe.weight 5x64 320' --layout per-param --steps 0
name='print-shards: refused without shards'
if chosen; then
    launch 1 $cheap --print-shards --parallel ddp
    [ "$rc" = 1 ] || complain "exit status $rc"
    grep -q 'print-shards: expected --parallel fsdp beside it, got other options' "$work/err" && grep -q 'HINT: pass --parallel fsdp' "$work/err" ||
        complain 'another message'
    verdict
fi

# ---- from one layout to the other -------------------------------------------------------------------------------

# goes W OPTION... -- train two more steps on W ranks
goes() {
    local w=$1
    shift
    launch $w $cheap --global-batch 24 --steps 8 --save "$new/save" --resume auto "$@"
    [ "$rc" = 0 ] || complain "exit status $rc on $w ranks: $*"
}

name='checkpoints: flat on 3, rows on 4, rows on 2 and a flat array on 3 ranks give the weights of one device'
if chosen; then
    launch 1 $cheap --global-batch 24 --steps 8 --parallel single --export "$new/single"
    goes 3 --stop-after 2
    goes 4 --stop-after 4 --layout per-param --sharding hybrid --fsdp-size 2
    goes 2 --stop-after 6 --layout per-param --wrap sub-block
    goes 3 --stop-after 8 --export "$new/many"
    cmp "$new/single/model.safetensors" "$new/many/model.safetensors" || complain 'other weights'
    verdict
fi
name='export: rows of 3 ranks, in bf16'
if chosen; then
    launch 1 $cheap --global-batch 24 --steps 2 --param-dtype bf16 --parallel single --export "$new/single-bf16"
    launch 3 $cheap --global-batch 24 --steps 2 --param-dtype bf16 --layout per-param --export "$new/rows"
    [ "$rc" = 0 ] || complain "exit status $rc"
    cmp "$new/single-bf16/model.safetensors" "$new/rows/model.safetensors" || complain 'other weights'
    verdict
fi
cli_end
