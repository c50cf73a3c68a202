#!/bin/sh
# same_bits.sh BUILD W [OPTION...] -- canonical training by FSDP on W ranks of --device cuda has the bits of one rank, in fp32 and
# bf16. DEVICE=cuda-sim: on that device.
# shellcheck disable=SC2086 # lists of words
set -u
build=$1 w=$2
shift 2
device=${DEVICE:-cuda}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
for type in fp32 bf16; do
    run="--device $device --size tiny --seq-len 32 --steps 6 --global-batch 24 --reduction canonical --synthetic 100000 --param-dtype $type"
    "$build/fsdp_train" $run --parallel single --loss-csv "$tmp/1.csv" --export "$tmp/1" >"$tmp/log" 2>&1 || { tail -3 "$tmp/log" && exit 1; }
    "$build/fsdp_run" -n "$w" "$build/fsdp_train" $run "$@" --loss-csv "$tmp/w.csv" --export "$tmp/w" >"$tmp/log" 2>&1 || { tail -3 "$tmp/log" && exit 1; }
    cut -d, -f1-4 "$tmp/1.csv" >"$tmp/1.bits" && cut -d, -f1-4 "$tmp/w.csv" | cmp - "$tmp/1.bits" || exit 1
    cmp "$tmp/1/model.safetensors" "$tmp/w/model.safetensors" || exit 1
done
echo "losses and weights of $w ranks have the bits of one rank, fp32 and bf16"
