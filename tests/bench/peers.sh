#!/bin/bash
# peers.sh [BUILD] -- make bench-peers: BUILD/peers, a Python environment with PyTorch, NumPy and transformers from PyPI.
#
# FSDP2 trains on a CPU since PyTorch 2.6. Version 5 of transformers names weights differently, so version 4 is installed.
# Installs PyTorch's build without CUDA if PyTorch's index can be reached, else PyPI's build (several GB with CUDA's libraries).
# PIP_OPTIONS is passed to pip. Changes nothing outside BUILD/peers, and keeps what is there already.
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
say "pip install torch>=2.15 numpy $transformers into $peers${index:+ (build without CUDA)}"
# shellcheck disable=SC2086
"$peers/bin/pip" install --quiet --disable-pip-version-check $index ${PIP_OPTIONS:-} 'torch>=2.15' numpy ||
    fail 'pip cannot install torch' "see above; any Python that has torch serves: FSDP_PYTHON=/path/to/python make bench"
# shellcheck disable=SC2086
"$peers/bin/pip" install --quiet --disable-pip-version-check ${PIP_OPTIONS:-} $transformers ||
    fail "pip cannot install $transformers" 'see above; without it the rows of Llama have no peer'
version=$("$peers/bin/python" -c 'import numpy, torch, transformers; print(torch.__version__)') ||
    fail "$peers/bin/python cannot import torch, numpy and transformers" "rm -r $peers, then make bench-peers again"
say "$peers has PyTorch $version"
