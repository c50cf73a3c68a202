#!/bin/bash
# report.sh [BUILD] -- what --device cuda does on this machine's GPUs: a Markdown page, BUILD/gpu/report.md.
#
#   make gpu-report                     all parts that have no result yet, then the page
#   make gpu-report PARTS="csv train"   only these; OUT=dir: where results go
#
# Each part takes at most 8 minutes (LIMIT=480 seconds) and leaves OUT/NAME.part, so a report that was cut off goes on where it was; remove
# a file to run its part again. The build is without MPI and oneDNN; NCCL is looked for beside the toolkit and in python3's packages.
#
#   tests      unit tests, labs and equivalence on the device
#   sanitizer  compute-sanitizer: memcheck, racecheck, synccheck
#   csv        portable losses and weights, byte for byte those of the CPU
#   train      one rank, GPT-2 124M to 1558M, fp32 and bf16: step time, MFU, memory, beside PyTorch where python3 has it
#   shared     ranks that share the GPU (staged), canonical bits; several GPUs: NCCL
set -u
cd "$(dirname "$0")/../.." || exit 2
BUILD=${1:-build} LIMIT=${LIMIT:-480}
OUT=${OUT:-$BUILD/gpu}
PARTS=${PARTS:-tests sanitizer csv train shared}
mkdir -p "$OUT" || exit 1
OUT=$(cd "$OUT" && pwd)

say() { printf '%s %s\n' "$(date +%T)" "$*"; }
fail() {
    echo "gpu-report: $1" >&2
    echo "HINT: $2" >&2
    exit 1
}

gpu=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -1)
[ -n "$gpu" ] || fail 'nvidia-smi names no GPU' 'run it on a machine that has one; make test DEVICE=cuda-sim runs the same kernels on the CPU'
n_gpus=$(nvidia-smi --query-gpu=name --format=csv,noheader | wc -l)
arch=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -1 | tr -d .)

# ---- build ---------------------------------------------------------------------------------------
if [ -d "$BUILD/gpu-pack" ]; then
    pack=$(cd "$BUILD/gpu-pack" && pwd)
    export PKG_CONFIG_PATH="$pack/lib/pkgconfig"
    pkg-config --version >/dev/null 2>&1 || PATH=$pack/bin:$PATH
fi
pkg-config --exists libcjson libxxhash cmocka || fail 'no cJSON, xxHash or cmocka' 'make deps; or make gpu-pack where they are, and bring build/gpu-pack along'
nccl=${NCCL_HOME:-}
for dir in /usr/local/cuda $(python3 -c 'import nvidia.nccl as n; print(n.__path__[0])' 2>/dev/null); do
    [ -z "$nccl" ] && [ -e "$dir/include/nccl.h" ] && nccl=$dir
done
[ -n "$nccl" ] || fail 'no nccl.h' 'set NCCL_HOME to the folder that holds include/nccl.h and lib/'
say "building for sm_$arch with NCCL of $nccl"
make -j"$(nproc)" --no-print-directory MPI=0 BUILD="$BUILD" CUDA_ARCHS="$arch" NCCL_HOME="$nccl" tests cuda >"$OUT/build.log" 2>&1 ||
    fail "the build failed: $(grep -m1 -E 'error|Error' "$OUT/build.log")" "$OUT/build.log"

# ---- helpers of the parts ------------------------------------------------------------------------
begun=$(date +%s)
left() { echo $((LIMIT - ($(date +%s) - begun))); }
# try NAME COMMAND... -- run it in what is left of the part's time; a row of a table
try() {
    local name=$1 log since rc
    log=$OUT/$part.$(echo "$1" | tr -c 'a-zA-Z0-9\n' _).log
    shift
    since=$(date +%s)
    if [ "$(left)" -le 5 ]; then
        echo "| $name | not run: no time was left | |"
        return
    fi
    timeout -k 5 "$(left)" "$@" >"$log" 2>&1
    rc=$?
    case $rc in
    0) echo "| $name | passed: $(tail -1 "$log" | tr '|' '/' | cut -c1-90) | $(($(date +%s) - since)) s |" ;;
    77) echo "| $name | SKIP: $(tail -1 "$log" | tr '|' '/' | cut -c1-90) | |" ;;
    124 | 137) echo "| $name | ended after $(($(date +%s) - since)) s | |" ;;
    *) echo "| $name | FAILED ($rc): $(grep -m1 -E 'FAIL|ERROR|error|Error' "$log" | tr '|' '/' | cut -c1-120) | $(($(date +%s) - since)) s |" ;;
    esac
}
head_row() { printf '| %s | result | time |\n|---|---|---|\n' "$1"; }

part_tests() {
    head_row 'tests'
    export FSDP_DEVICE=cuda
    for test in test_device test_device_memory test_device_watch test_cuda_device test_accel_ops test_accel_fast test_ops test_sum_run; do
        [ -x "$BUILD/tests/unit/$test" ] && try "$test" "$BUILD/tests/unit/$test"
    done
    try 'labs, W = 1, and 2 and 3 that share the GPU' tests/grade/grade.sh --ranks '1 2 3' "$BUILD"
    try 'equivalence, quick' tests/equivalence/run.sh quick "$BUILD"
}

part_sanitizer() {
    local tool=compute-sanitizer
    command -v $tool >/dev/null || tool=$(dirname "$(readlink -f "$(command -v nvcc)")")/compute-sanitizer
    head_row "compute-sanitizer"
    export FSDP_DEVICE=cuda
    for check in memcheck racecheck synccheck; do
        for test in test_accel_ops test_accel_fast; do
            try "$check $test" "$tool" --tool $check --error-exitcode 9 "$BUILD/tests/unit/$test"
        done
        try "$check a step of training" "$tool" --tool $check --error-exitcode 9 "$BUILD/fsdp_train" --device cuda --size tiny --steps 1 --synthetic 100000
    done
}

part_csv() {
    head_row 'portable losses and weights, those of the CPU byte for byte'
    export FSDP_DEVICE=cuda RANKS='1 2'
    for name in tiny small xl-2l; do
        try "$name, W = 1, and 2 that share the GPU" tests/reference/losses.sh "$BUILD" $name
    done
}

# The GPU's TFLOP/s as its maker states them, dense: bf16 on tensor cores, fp32 without.
peak() { # peak fp32|bf16
    case $gpu in
    *H100*PCIe*) [ "$1" = bf16 ] && echo 756 || echo 51.2 ;;
    *H100* | *H200*) [ "$1" = bf16 ] && echo 989.4 || echo 66.9 ;;
    *A100*) [ "$1" = bf16 ] && echo 312 || echo 19.5 ;;
    *L4*) [ "$1" = bf16 ] && echo 121 || echo 30.3 ;;
    *T4*) [ "$1" = bf16 ] && echo - || echo 8.1 ;;
    *) echo - ;;
    esac
}

# size, sequences in a step of 1024 tokens each
SIZES='124m 8
355m 8
774m 4
1558m 2'

# median FILE -- of the last column of a loss file, without the first three steps
median() { awk -F, '$1 ~ /^[0-9]+$/ && $1 >= 3 { print $NF }' "$1" 2>/dev/null | sort -g | awk '{ x[NR] = $1 } END { print NR ? x[int((NR + 1) / 2)] : "-" }'; }

part_train() {
    local data=$OUT/text python=${FSDP_PYTHON:-python3} size batch type init ours peer mfu
    cat README.md WRITEUP.md LICENSE common/*/*.c >"$data"
    "$python" -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' 2>/dev/null || python=''
    echo "Sequences of 1024 tokens, AdamW, clipping, 12 steps, the median of the last nine. MFU: 6 FLOP for every weight of a matmul and token, and 6 T C for a layer's"
    echo "causal attention, by the peak that the maker states ($(peak fp32) TFLOP/s in fp32, $(peak bf16) in bf16). Peer: ${python:+$("$python" -c 'import torch; print("PyTorch", torch.__version__)'), eager, no TF32}${python:-none: python3 has no torch}."
    echo
    echo '| size | sequences | type | ms | MFU % | peak memory, GB | loss of the last step | peer: ms | memory, GB | loss | peer/ours |'
    echo '|---|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|'
    while read -r size batch; do
        init=$OUT/init-$size
        for type in fp32 bf16; do
            [ "$(left)" -gt 20 ] || { echo "| $size | $batch | $type | no time was left | | | | | | | |" && continue; }
            common="--seq-len 1024 --global-batch $batch --steps 12 --data $data --param-dtype $type"
            # shellcheck disable=SC2046,SC2086
            timeout "$(left)" "$BUILD/fsdp_train" --device cuda --size "$size" $common --loss-csv "$OUT/ours.csv" --memory-report "$OUT/memory.txt" \
                $([ -n "$python" ] && [ ! -d "$init" ] && echo "--export-init $init") >"$OUT/ours.log" 2>&1 || rm -f "$OUT/ours.csv"
            rm -f "$OUT/peer.csv"
            # shellcheck disable=SC2086
            [ -n "$python" ] && [ -d "$init" ] && timeout "$(left)" "$python" -m torch.distributed.run --nproc-per-node 1 tests/bench/peer_torch.py --device cuda \
                --parallel fsdp --init "$init" $common --csv "$OUT/peer.csv" >"$OUT/peer.log" 2>&1
            ours=$(median "$OUT/ours.csv") peer=$(median "$OUT/peer.csv")
            mfu=$(echo "$ours $(peak $type) $batch $size" | awk '
                { split("124m 12 768 355m 24 1024 774m 36 1280 1558m 48 1600", x, " "); for (i = 1; i < 12; i += 3) if (x[i] == $4) { l = x[i + 1]; c = x[i + 2] }
                  flop = (6 * (12 * l * c * c + 50257 * c) + 6 * l * 1024 * c) * 1024 * $3
                  if ($1 == "-" || $2 == "-") print "-"; else printf "%.1f", 100 * flop / ($1 * 1e-3) / ($2 * 1e12) }')
            echo "| $size | $batch | $type | $ours | $mfu | $(sed -n 's/^ *all, at one moment *//p' "$OUT/ours.log" | head -1) | $(tail -1 "$OUT/ours.csv" 2>/dev/null | cut -d, -f2) | $peer | $(
                sed -n 's/^memory: \([0-9.]*\) GB at.*/\1/p' "$OUT/peer.log" 2>/dev/null) | $(tail -1 "$OUT/peer.csv" 2>/dev/null | cut -d, -f2) | $(
                echo "$peer $ours" | awk '{ print $1 == "-" || $2 == "-" ? "-" : sprintf("%.2f", $1 / $2) }') |"
            say "$size $type: $ours ms, peer $peer ms" >&2
            [ "$ours" != - ] || echo "| FAILED: $(grep -m1 '^\[rank' "$OUT/ours.log" | tr '|' '/') | | | | | | | | | | |"
        done
        rm -rf "$init"
    done <<<"$SIZES"
}

part_shared() {
    head_row 'several ranks'
    local w
    for w in 2 4; do
        try "canonical, W = $w, ranks share the GPU" tests/gpu/same_bits.sh "$BUILD" $w --comm shm
    done
    [ "$n_gpus" -eq 1 ] || try "canonical, W = $n_gpus over NCCL" tests/gpu/same_bits.sh "$BUILD" "$n_gpus" --comm nccl
}

for part in $PARTS; do
    declare -F "part_$part" >/dev/null || fail "PARTS: got '$part'" 'some of: tests sanitizer csv train shared'
    [ -s "$OUT/$part.part" ] && say "$part: there already" && continue
    say "$part"
    begun=$(date +%s)
    (part_"$part") >"$OUT/$part.tmp" && mv "$OUT/$part.tmp" "$OUT/$part.part"
    cat "$OUT/$part.part"
done

{
    echo "# $gpu"
    echo
    echo "$(date +%F), $n_gpus GPU(s), driver $(nvidia-smi --query-gpu=driver_version --format=csv,noheader | head -1), $(nvcc --version | sed -n 's/.*release \([0-9.]*\).*/CUDA \1/p'), NCCL $(
        sed -n 's/^#define NCCL_\(MAJOR\|MINOR\|PATCH\) *\([0-9]*\).*/\2/p' "$nccl/include/nccl.h" | paste -sd.), commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown). Made by \`make gpu-report\`."
    for part in tests sanitizer csv train shared; do
        [ -s "$OUT/$part.part" ] && printf '\n## %s\n\n' "$part" && cat "$OUT/$part.part"
    done
} >"$OUT/report.md"
say "report: $OUT/report.md; commit it as tests/reference/gpu/$(echo "$gpu" | tr ' A-Z' '-a-z').md"
! grep -q FAILED "$OUT/report.md"
