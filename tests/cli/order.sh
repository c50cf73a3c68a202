#!/bin/bash
# order.sh -- what --check-order prints, and that training keeps its bits. tests/equivalence/matrix.sh checks the order in all
# its cells, so no combination of options lacks an event on any transport.
#
# What the checker finds is tested in tests/unit/test_order_check.c and, by planted bugs, in tests/mutants.
. "$(dirname "$0")/lib.sh"
cli_start "$@"
run='--n-layer 2 --d-model 32 --n-head 2 --seq-len 16 --batch-size 2 --grad-accum 3 --steps 2 --synthetic 5000'
bf16='--param-dtype bf16 --reduce-dtype bf16'

# checked W NAME OPTION... -- the run succeeds and has checked the launches of a step
checked() {
    expect_good "$@"
    grep -qE '^order: [0-9]{3,} launches, [0-9]{2,} memory blocks, 0 violations$' "$work/out" || complain 'no line "order: ..."'
}

expect_good 1 'not checked' $run --loss-csv "$work/new/without.csv"
! grep -q '^order:' "$work/out" || complain 'checked without --check-order'
checked 1 'the same losses' $run --check-order --loss-csv "$work/new/with.csv"
same_losses "$work/new/with.csv" "$work/new/without.csv"
run="$run --check-order"
checked 1 'one device' $run --parallel single --export-init "$work/new/first" --export "$work/new/last"
checked 1 'one device, in bf16' $run --parallel single $bf16 --reduction canonical
checked 2 'with evaluation and files' $run --val-data LICENSE --eval-every 1 --save "$work/new/ckpt" --export "$work/new/export"
checked 2 'resumed' $run --steps 3 --resume "$work/new/ckpt" --resume-change schedule
checked 4 'hybrid, rows' $run --sharding hybrid --fsdp-size 2 --layout per-param $bf16
cli_end
