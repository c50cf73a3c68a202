#!/bin/bash
# peers.sh [BUILD] -- make bench-peers: BUILD/peers, a Python environment with PyTorch, NumPy and transformers from PyPI.
#
# FSDP2 trains on a CPU from PyTorch 2.6 on. Version 5 of transformers has other names of weights, so 4 is taken.
# The build without CUDA when the index of PyTorch can be reached, else PyPI's (several GB with CUDA's libraries).
# PIP_OPTIONS is passed to pip. Nothing outside BUILD/peers is touched; what is there already is kept.
set -u
. "${0%/*}/lib.sh"
peers=$BUILD/peers
if "$peers/bin/python" -c 'import torch, numpy, transformers' 2>/dev/null; then
    say "$peers has PyTorch $("$peers/bin/python" -c 'import torch; print(torch.__version__)')"
    exit 0
fi
transformers=transformers==4.57.6
python3 -m venv "$peers" || fail 'cannot make a Python environment' 'apt-get install python3-venv'
index=''
"$peers/bin/python" -c 'import urllib.request as u; u.urlopen("https://download.pytorch.org/whl/cpu/torch/", timeout=10)' 2>/dev/null &&
    index='--index-url https://download.pytorch.org/whl/cpu'
say "pip install torch numpy $transformers into $peers${index:+ (build without CUDA)}"
# shellcheck disable=SC2086
"$peers/bin/pip" install --quiet --disable-pip-version-check $index ${PIP_OPTIONS:-} torch numpy ||
    fail 'pip cannot install torch' "see above; any Python that has torch serves: FSDP_PYTHON=/path/to/python make bench"
# shellcheck disable=SC2086
"$peers/bin/pip" install --quiet --disable-pip-version-check ${PIP_OPTIONS:-} $transformers ||
    fail "pip cannot install $transformers" 'see above; without it the rows of Llama have no peer'
version=$("$peers/bin/python" -c 'import numpy, torch, transformers; print(torch.__version__)') ||
    fail "$peers/bin/python cannot import torch, numpy and transformers" "rm -r $peers, then make bench-peers again"
say "$peers has PyTorch $version"
