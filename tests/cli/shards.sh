#!/bin/bash
# shards.sh -- what --print-shards prints for both layouts, and checkpoints that are resumed with another layout and
# another number of ranks.
. "$(dirname "$0")/lib.sh"
cli_start "$@"
cheap='--size tiny --n-positions 5 --seq-len 4 --synthetic 4096 --reduction canonical --ops portable'

# drawn NAME PATTERN OPTION... -- a line of the output matches PATTERN; several blanks count as one
drawn() {
    case_is "print-shards: $1" || return
    good 1 $cheap --print-shards "${@:3}"
    tr -s ' ' <"$work/out" | grep -qxE " ?$2" || complain "no line like '$2'"
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
run=$cheap refused 1 'print-shards: refused without shards' 'print-shards: expected --parallel fsdp beside it, got other options' \
    'pass --parallel fsdp' --print-shards --parallel ddp

# ---- resuming with the other layout -----------------------------------------------------------------------------

# goes W OPTION... -- train two more steps on W ranks
goes() {
    local w=$1
    shift
    launch $w $cheap --global-batch 24 --steps 8 --save "$new/save" --resume auto "$@"
    [ "$rc" = 0 ] || complain "exit status $rc on $w ranks: $*"
}

if case_is 'checkpoints: flat on 3, rows on 4, rows on 2 and a flat array on 3 ranks give the weights of one device'; then
    launch 1 $cheap --global-batch 24 --steps 8 --parallel single --export "$new/single"
    goes 3 --stop-after 2
    goes 4 --stop-after 4 --layout per-param --sharding hybrid --fsdp-size 2
    goes 2 --stop-after 6 --layout per-param --wrap sub-block
    goes 3 --stop-after 8 --export "$new/many"
    same_weights "$new/single" "$new/many"
fi
if case_is 'export: rows of 3 ranks, in bf16'; then
    launch 1 $cheap --global-batch 24 --steps 2 --param-dtype bf16 --parallel single --export "$new/single-bf16"
    good 3 $cheap --global-batch 24 --steps 2 --param-dtype bf16 --layout per-param --export "$new/rows"
    same_weights "$new/single-bf16" "$new/rows"
fi
cli_end
