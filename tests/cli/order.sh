#!/bin/bash
# order.sh -- what --check-order prints, and that training keeps its bits. tests/equivalence/matrix.sh checks the order
# in all its cells, so that no combination of options lacks an event on any transport.
#
#   tests/cli/order.sh [BUILD]        default build
#
# What the checker finds is tested in tests/unit/test_order_check.c and, by planted bugs, in tests/mutants.
# Prints PASS and FAIL lines and a last line with their numbers.
# shellcheck disable=SC2086
set -u
cd "$(dirname "$0")/../.." || exit 2
. tests/cli/lib.sh
cli_namespace "$PWD/tests/cli/order.sh" "$@"
cli_begin "${1:-build}"
run='--n-layer 2 --d-model 32 --n-head 2 --seq-len 16 --batch-size 2 --grad-accum 3 --steps 2 --synthetic 5000'
bf16='--param-dtype bf16 --reduce-dtype bf16'

# checked W NAME OPTION... -- ends well, and has looked at what a step launches
checked() {
    expect_good "$@"
    grep -qE '^order: [0-9]{3,} launches, [0-9]{2,} memory blocks, 0 violations$' "$work/out" || complain 'no line "order: ..."'
}

expect_good 1 'not checked' $run --loss-csv "$work/new/without.csv"
! grep -q '^order:' "$work/out" || complain 'checked without --check-order'
verdict
checked 1 'the same losses' $run --check-order --loss-csv "$work/new/with.csv"
[ "$(losses "$work/new/with.csv")" = "$(losses "$work/new/without.csv")" ] || complain 'other losses'
verdict
run="$run --check-order"
checked 1 'one device' $run --parallel single --export-init "$work/new/first" --export "$work/new/last"
verdict
checked 1 'one device, in bf16' $run --parallel single $bf16 --reduction canonical
verdict
checked 2 'with evaluation and files' $run --val-data LICENSE --eval-every 1 --save "$work/new/ckpt" --export "$work/new/export"
verdict
checked 2 'resumed' $run --steps 3 --resume "$work/new/ckpt" --resume-change schedule
verdict
checked 4 'hybrid, rows' $run --sharding hybrid --fsdp-size 2 --layout per-param $bf16
verdict
cli_end
