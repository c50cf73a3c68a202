#!/bin/sh
# configs.sh [BUILD] -- 300 models of random configurations, made by transformers: read with the same logits, or refused by
# name (configs.py). FSDP_PYTHON names the interpreter that has torch and transformers (default python3); without them
# the check is a SKIP.
set -u
build=${1:-build}
python=${FSDP_PYTHON:-python3}
if ! "$python" -c 'import torch, transformers' 2>/dev/null; then
    echo "SKIP configs: $python has no torch and transformers (set FSDP_PYTHON to one that has)"
    exit 0
fi
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT INT TERM
OMP_NUM_THREADS=1 "$python" -W ignore tests/interop/configs.py "$build" "$tmp"
