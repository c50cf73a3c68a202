#!/bin/bash
# report.sh [BUILD] -- tests and times --device cuda on this machine's GPU; writes a Markdown page, BUILD/gpu/report.md.
#
#   make gpu-report PART=1     build without stand-ins, load, kernels against the CPU, portable bits, what a step's time is made of,
#                              NCCL, 124M beside PyTorch, nsys's kernels
#   make gpu-report PART=2     355M, 774M and 1558M beside PyTorch
#   make gpu-report PART=3     launches and host time of a step, compute-sanitizer, ncu's top kernels
#   make gpu-report            all three
#   make gpu-report DEVICE=cuda-sim     a dry run of this script on the stand-in: small, and named as such on its page
#
# A part takes at most LIMIT=540 seconds, a command CAP=200. The page is rewritten after every section. A section is kept in
# BUILD/gpu/NAME.md and not run again, unless its time ran out; remove the file to repeat it. OUT=dir gets copies of all files.
# README.md says more.
#
# A command that hangs is run again with CUDA_MODULE_LOADING=EAGER, and the page says so. A command that skips all its tests
# counts as failed, because the machine has a GPU. FSDP_PYTHON: an interpreter that has torch.
# shellcheck disable=SC2046,SC2086 # lists of words
set -u
cd "$(dirname "$0")/../.." || exit 2
BUILD=${1:-build} DEVICE=${DEVICE:-cuda} LIMIT=${LIMIT:-540} CAP=${CAP:-200}
here=$BUILD/gpu dry=''
[ "$DEVICE" = cuda ] || dry=1 here=$BUILD/gpu-dry
SECTIONS_1='load kernels bits why nccl train nsys'
SECTIONS_2='355m 774m 1558m'
SECTIONS_3='steps sanitizer ncu'

say() { printf '%s %s\n' "$(date +%T)" "$*"; }
fail() {
    printf 'gpu-report: %s\nHINT: %s\n' "$1" "$2" >&2
    exit 1
}
query() { nvidia-smi --query-gpu="$1" --format=csv,noheader 2>/dev/null; }

parts=${PART:-1 2 3}
[ -z "${parts//[123 ]/}" ] || fail "PART: got '$parts'" 'PART=1, 2 or 3, or none for all'
if [ -z "$dry" ]; then
    gpu=$(query name | head -1) driver=$(query driver_version | head -1) arch=$(query compute_cap | head -1 | tr -d .)
    n_gpus=$(query name | wc -l)
    [ -n "$gpu" ] && [ -n "$driver" ] && [ -n "$arch" ] ||
        fail "nvidia-smi names no GPU or no driver: '$gpu', '$driver', compute capability '$arch'" \
            'run it on a machine that has both; make gpu-report DEVICE=cuda-sim is a dry run without'
fi
mkdir -p "$here" || exit 1

# ---- build ---------------------------------------------------------------------------------------
if [ -d "$BUILD/gpu-pack" ]; then
    pack=$(cd "$BUILD/gpu-pack" && pwd)
    export PKG_CONFIG_PATH="$pack/lib/pkgconfig"
    pkg-config --version >/dev/null 2>&1 || PATH=$pack/bin:$PATH
fi
pkg-config --exists libcjson libxxhash cmocka || fail 'no cJSON, xxHash or cmocka' 'make deps; or make gpu-pack where they are, and bring build/gpu-pack along'
KERNEL_TESTS='test_device test_device_watch test_accel_device test_accel_ops test_ops_double test_cuda_device'
ones=$BUILD/tests/gpu
if [ -n "$dry" ]; then # make has already built what is needed
    [ -e "$BUILD/fsdp_cuda_sim.so" ] || { echo 'SKIP gpu-report: the stand-in is not built, for want of g++' && exit 77; }
    KERNEL_TESTS='test_device test_cuda_device'
    ones=$BUILD/sim/tests/gpu
else
    found=$(CUDA_ARCHS=$arch tests/tools/cuda_toolkit.sh) || exit 1
    version() { echo "$found" | tr ' ' '\n' | sed -n "s/^$1=//p"; }
    say "building for sm_$arch with CUDA $(version cuda) and NCCL $(version nccl)"
    since=$(date +%s)
    make -j"$(nproc)" --no-print-directory MPI=0 HAVE_CXX= BUILD="$BUILD" CUDA_ARCHS="$arch" all cuda "$ones/nccl_one" "$ones/lt_one" \
        $(printf "$BUILD/tests/unit/%s " $KERNEL_TESTS) >"$here/build.log" 2>&1 ||
        fail "the build failed: $(grep -m1 -iE '(^|[^a-z])error' "$here/build.log")" "see $here/build.log"
    say "built in $(($(date +%s) - since)) s"
fi

# ---- running commands ----------------------------------------------------------------------------
left() { echo $((LIMIT - ($(date +%s) - part_begun))); }
one_line() { tail -1 "$1" | tr '|' '/' | cut -c1-120; }
why() { { grep -m1 -E 'FAIL|ERROR|rror|SKIP|^\[rank' "$1" || tail -1 "$1"; } | tr '|' '/' | cut -c1-160; }
# bounded SECONDS LOG COMMAND... -- limits the command to SECONDS, CAP and the rest of the part's time. Sets rc. Sets eager if the
# command hung and was run again with CUDA_MODULE_LOADING=EAGER
bounded() {
    local seconds=$1 log=$2
    shift 2
    eager=''
    [ "$(left)" -gt 10 ] || { rc=no-time && return; }
    [ "$seconds" -lt "$CAP" ] || seconds=$CAP
    [ "$seconds" -lt "$(left)" ] || seconds=$(left)
    timeout -k 5 "$seconds" "$@" >"$log" 2>&1 </dev/null
    rc=$?
    case $rc in 124 | 137) ;; *) return ;; esac
    [ "$(left)" -gt 10 ] || return
    eager="HUNG for $seconds s; with CUDA_MODULE_LOADING=EAGER: "
    [ "$seconds" -lt "$(left)" ] || seconds=$(left)
    CUDA_MODULE_LOADING=EAGER timeout -k 5 "$seconds" "$@" >"$log" 2>&1 </dev/null
    rc=$?
}
# counts LOG -- how many tests of cmocka passed and were skipped, and the first reason or, without one, the first name
counts() {
    awk '/^\[  PASSED  \] [0-9]/ { passed += $4 }
        /^\[  SKIPPED \] [0-9]/ { skipped += $4; next }
        /^\[  SKIPPED \]/ && !name { name = $4 }
        /^SKIP / && !reason { reason = substr($0, 6) }
        END { print passed + 0, skipped + 0, reason ? reason : name }' "$1" | tr '|' '/' | cut -c1-120
}
# outcome LOG -- rc in words. A program that tries several devices reports skipped ones and returns 0; so does cmocka.
outcome() {
    local n_passed n_skipped reason=''
    [ "$rc" != 0 ] || ! grep -q "SKIP.*--device $DEVICE:" "$1" || rc=77
    [ ! -e "$1" ] || read -r n_passed n_skipped reason < <(counts "$1")
    case $rc-${n_passed:-0}-${n_skipped:-0} in 0-*-0) ;; 0-0-*) rc=77 ;; 0-*) rc=some ;; esac
    case $rc in
    0) echo "${eager}passed: $(one_line "$1")" ;;
    some) echo "${eager}passed $n_passed, skipped $n_skipped: $reason" ;;
    no-time) echo 'no time was left' ;;
    77) echo "${eager}FAILED: it was skipped: ${reason:-$(why "$1")}" ;;
    124 | 137) echo "${eager:-HUNG}${eager:+HUNG}" ;;
    *) echo "${eager}FAILED ($rc): $(why "$1")" ;;
    esac
}
# try NAME SECONDS COMMAND... -- a row of a table
try() {
    local name=$1 seconds=$2 log since
    log=$here/$section.$(echo "$1" | tr -c 'a-zA-Z0-9\n' _).log
    shift 2
    since=$(date +%s)
    bounded "$seconds" "$log" "$@"
    echo "| $name | $(outcome "$log") | $(($(date +%s) - since)) s |"
}
head_row() { printf '| %s | result | time |\n|---|---|---:|\n' "$1"; }
left_out() { echo "Left out: $1."; }

# ---- part 1 --------------------------------------------------------------------------------------
section_load() {
    head_row 'the plug-in'
    try 'opens, and trains a step' 120 "$BUILD/fsdp_train" --device "$DEVICE" --size tiny --steps 1 --synthetic 100000
}

section_kernels() {
    head_row 'kernels, beside the CPU'
    export FSDP_DEVICE=$DEVICE
    for test in $KERNEL_TESTS; do
        try "$test" 120 "$BUILD/tests/unit/$test"
    done
}

# A step of training: GPT-2 124M, B = 4, T = 1024.
SIZE=124m TOKENS=1024 STEPS=12 MORE=10 LOOKS=60 VOCAB=50304
[ -z "$dry" ] || SIZE=tiny TOKENS=16 STEPS=4 MORE=2 LOOKS=8 VOCAB=320
STEP="--device $DEVICE --size $SIZE --seq-len $TOKENS --global-batch 4 --synthetic 100000 ${dry:+--n-layer 1}"

# Times of a step with some of the trainer's options.
variants() {
    local options ms base='' csv=$here/why.csv log=$here/why.variant.log
    echo '| variant | ms | more than the first row |'
    echo '|---|---:|---:|'
    for options in '--parallel fsdp' '--parallel single' "--vocab-size $VOCAB" '--optimizer sgd' '--optimizer sgd --clip-grad 0 --no-grad-norm'; do
        rm -f "$csv"
        bounded 60 "$log" "$BUILD/fsdp_train" $STEP --param-dtype bf16 --steps $STEPS --loss-csv "$csv" $options
        [ "$rc" = 0 ] && [ -z "$eager" ] || { echo "| $options | $(outcome "$log") | |" && continue; }
        ms=$(median "$csv") base=${base:-$ms}
        echo "| $options | $ms | $(echo "$ms $base" | awk '{ printf "%+.1f", $1 - $2 }') |"
    done
}

section_why() {
    local type
    echo "GPT-2 $SIZE, $STEPS steps of 4 sequences of $TOKENS tokens, by one rank. The variants are in bf16; the difference of two rows is the cost of what differs."
    echo
    variants
    for type in bf16 fp32; do
        bounded 60 "$here/why.profile.log" "$BUILD/fsdp_train" $STEP --param-dtype $type --steps $STEPS --profile "$here/profile-$type"
        printf '\nOperations in %s, with FSDP, by --profile (trainer/PROFILE.md explains the rows):\n\n' $type
        [ "$rc" = 0 ] && [ -z "$eager" ] || outcome "$here/why.profile.log"
        [ "$rc" != 0 ] || sed -n '/^| compute stream/,/^| \*\*wall/p; /^| other streams/,/^| \*\*sum/ { s/^| other/\n&/; p }' "$here/profile-$type/profile.md"
    done
    printf '\nCPU of the host, ms in a step, by thread:\n\n| type | thread | in user code | in system calls |\n|---|---|---:|---:|\n'
    for type in bf16 fp32; do
        bounded 60 "$here/why.threads.log" tests/gpu/threads.sh "$here/why.csv" "$BUILD/fsdp_train" $STEP --param-dtype $type --steps $LOOKS --loss-csv "$here/why.csv"
        [ "$rc" = 0 ] && [ -z "$eager" ] || echo "| $type | $(outcome "$here/why.threads.log") | | |"
        [ "$rc" != 0 ] || sed "s/^/| $type /" "$here/why.threads.log"
    done
    printf '\nProducts by cuBLASLt, bf16: the first proposal, which the plug-in takes, and the best of eight:\n\n'
    bounded 60 "$here/why.lt.log" "$ones/lt_one" ${dry:+64}
    [ "$rc" = 0 ] && [ -z "$eager" ] || outcome "$here/why.lt.log"
    [ "$rc" != 0 ] || cat "$here/why.lt.log"
}

# Ranks that share a GPU communicate through host memory, because NCCL needs a GPU for each. One rank alone does not communicate.
section_bits() {
    local names='tiny llama-tiny mnist-tiny small'
    [ -z "$dry" ] || { left_out "make test DEVICE=$DEVICE compares these" && return; }
    export FSDP_DEVICE=$DEVICE
    head_row 'portable losses and weights, byte for byte as on the CPU'
    for name in $names; do
        try "$name, W = 1" 120 env RANKS=1 tests/reference/losses.sh "$BUILD" "$name"
        try "$name, W = 2 on one GPU" 120 env FSDP_COMM=shm RANKS=2 tests/reference/losses.sh "$BUILD" "$name"
    done
    [ "$n_gpus" -eq 1 ] || try "canonical, fast, W = $n_gpus over NCCL" 120 tests/gpu/same_bits.sh "$BUILD" "$n_gpus" --comm nccl
    if [ "$(printf '%s\n' 2.30 "$(version nccl)" | sort -V | head -1)" != 2.30 ]; then
        echo "| canonical, fast, W = 2 on one GPU over NCCL | left out: NCCL $(version nccl) needs a GPU for each rank, 2.30 does not | |"
        return
    fi
    export NCCL_MULTI_RANK_GPU_ENABLE=1 CUDA_VISIBLE_DEVICES=0
    try 'canonical, fast, W = 2 on one GPU over NCCL' 120 tests/gpu/same_bits.sh "$BUILD" 2 --comm nccl
    command -v nvidia-cuda-mps-control >/dev/null || { echo '| the same under MPS | left out: there is no nvidia-cuda-mps-control | |' && return; }
    CUDA_MPS_PIPE_DIRECTORY=$(mktemp -d) || return # sockets: a long path, or a relative one, would not do
    export CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY=$CUDA_MPS_PIPE_DIRECTORY
    nvidia-cuda-mps-control -d >&2 || { echo '| the same under MPS | left out: nvidia-cuda-mps-control -d failed | |' && return; }
    # Programs that find no MPS run without, so the run must have started a server.
    try 'the same under MPS' 120 sh -c 'tests/gpu/same_bits.sh "$@" || exit
        echo get_server_list | nvidia-cuda-mps-control | grep -q "^[0-9]" || { echo "FAILED: MPS has no server" && exit 1; }' - "$BUILD" 2 --comm nccl
    echo quit | nvidia-cuda-mps-control >&2
    rm -rf "$CUDA_MPS_PIPE_DIRECTORY"
}

section_nccl() {
    bounded 60 "$here/nccl.log" "$ones/nccl_one"
    [ "$rc" = 0 ] && [ -z "$eager" ] || printf '%s\n\n' "$(outcome "$here/nccl.log")"
    [ "$rc" != 0 ] || cat "$here/nccl.log"
}

# The GPU's TFLOP/s as its maker states them, for dense matrices: bf16 on tensor cores, fp32 without.
peak() { # peak fp32|bf16
    case ${gpu:-} in
    *H100*PCIe*) [ "$1" = bf16 ] && echo 756 || echo 51.2 ;;
    *H100* | *H200*) [ "$1" = bf16 ] && echo 989.4 || echo 66.9 ;;
    *A100*) [ "$1" = bf16 ] && echo 312 || echo 19.5 ;;
    *L4*) [ "$1" = bf16 ] && echo 121 || echo 30.3 ;;
    *T4*) [ "$1" = bf16 ] && echo - || echo 8.1 ;;
    *) echo - ;;
    esac
}
# mfu MS TYPE SEQUENCES SIZE -- model FLOPs utilisation in percent
mfu() {
    echo "$1 $(peak "$2") $3 $4" | awk '{
        split("124m 12 768 355m 24 1024 774m 36 1280 1558m 48 1600", x, " ")
        for (i = 1; i < 12; i += 3) if (x[i] == $4) { l = x[i + 1]; c = x[i + 2] }
        flop = (6 * (12 * l * c * c + 50257 * c) + 6 * l * 1024 * c) * 1024 * $3
        if ($1 == "-" || $2 == "-" || !l) print "-"; else printf "%.1f", 100 * flop / ($1 * 1e-3) / ($2 * 1e12) }'
}
# median FILE -- of the last column of a loss file, without the first three steps; last FILE -- the last loss
median() { awk -F, '$1 ~ /^[0-9]+$/ && $1 >= 3 { print $NF }' "$1" 2>/dev/null | sort -g | awk '{ x[NR] = $1 } END { if (NR) printf "%.1f\n", x[int((NR + 1) / 2)]; else print "-" }'; }
last() { awk -F, 'END { if (NR > 1) printf "%.4f\n", $2; else print "-" }' "$1" 2>/dev/null || echo -; }

# peer KIND TYPE OPTION... -- runs PyTorch, "eager" or "compiled"; prints three cells of the table
peer() {
    local kind=$1 type=$2 log=$here/$section.peer-$1-$2.log csv=$here/$section.peer.csv
    shift 2
    rm -f "$csv" "$log"
    [ -z "$python" ] || [ ! -d "$init" ] || bounded 150 "$log" "$python" tests/bench/peer_torch.py --device cuda --parallel single \
        $([ "$kind" = compiled ] && echo --compile) --param-dtype "$type" --init "$init" "$@" --csv "$csv"
    [ "$rc" = 0 ] || { echo "$(outcome "$log") | | -" && return; }
    echo "$(median "$csv") | $(sed -n 's/^memory: \([0-9.]*\) GB at.*/\1/p' "$log" 2>/dev/null) | $(last "$csv")"
}

# table SIZE SEQUENCES -- training by one rank, without and with FSDP, and by PyTorch without
table() {
    local size=$1 batch=$2 type parallel row common ms log data=$here/text init=$here/init-$1 csv=$here/$section.csv python=${FSDP_PYTHON:-python3}
    cat README.md WRITEUP.md LICENSE common/*/*.c >"$data"
    "$python" -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' 2>/dev/null || python=''
    echo "Sequences of $TOKENS tokens, AdamW, clipping, $STEPS steps, the median without the first three. MFU: 6 FLOP for every weight of a matmul and token, and 6 T C for a layer's"
    echo "causal attention, by the peak that the maker states ($(peak fp32) TFLOP/s in fp32, $(peak bf16) in bf16). PyTorch: $(
        [ -z "$python" ] || "$python" -c 'import torch; print(torch.__version__ + ", no TF32; in bf16 by autocast.")'
        [ -n "$python" ] || echo 'left out, as python3 has no torch with a GPU.')"
    echo
    echo '| size | sequences | type | --parallel | ms | MFU % | peak memory | loss of the last step | eager: ms | GB | loss | compiled: ms | GB | loss |'
    echo '|---|---:|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|'
    for type in bf16 fp32; do
        common="--seq-len $TOKENS --global-batch $batch --steps $STEPS --data $data"
        for parallel in single fsdp; do
            log=$here/$section.$type-$parallel.log row="| $size | $batch | $type | $parallel |"
            rm -f "$csv"
            bounded 200 "$log" "$BUILD/fsdp_train" --device "$DEVICE" --size "$size" $common --param-dtype $type --parallel $parallel --loss-csv "$csv" \
                $([ -n "$python" ] && [ ! -d "$init" ] && echo "--export-init $init")
            ms=$(median "$csv")
            [ "$rc" = 0 ] && [ -z "$eager" ] || echo "$row $(outcome "$log") | | | | | | | | | |"
            [ "$rc" != 0 ] || echo "$row $ms | $(mfu "$ms" $type "$batch" "$size") | $(
                sed -n 's/^ *all, at one moment *\([0-9.]* [kMG]*B\).*/\1/p' "$log") | $(last "$csv") | $(
                [ $parallel = fsdp ] && echo '| | | | |' || echo "$(peer eager $type $common) | $(peer compiled $type $common)") |"
        done
    done
    rm -rf "$init"
}
section_train() { table $SIZE 4; }

# kernel_table STEPS SHORT.csv LONG.csv -- kernels of a step, from what a profiler says of two runs; the longer has STEPS more steps
kernel_table() {
    printf '\n| kernel | launches | ms |\n|---|---:|---:|\n'
    awk -v steps="$1" -f tests/gpu/kernels.awk "$2" "$3"
}

section_nsys() {
    local steps log
    find_tool nsys || return 0
    rm -f "$here"/nsys.*.{nsys-rep,sqlite}
    for steps in 3 $((3 + MORE)); do
        log=$here/nsys.$steps.log
        bounded 90 "$log" "$tool" profile --trace cuda --output "$here/nsys.$steps" "$BUILD/fsdp_train" $STEP --param-dtype bf16 --steps $steps
        [ "$rc" != 0 ] || { log=$here/nsys.$steps.csv && bounded 60 "$log" "$tool" stats --report cuda_gpu_kern_sum --format csv "$here/nsys.$steps.nsys-rep"; }
        [ "$rc" = 0 ] || { outcome "$log" && return; }
    done
    echo '124M, bf16, FSDP: a step.'
    kernel_table $MORE "$here/nsys.3.csv" "$here/nsys.$((3 + MORE)).csv"
}

# ---- part 2 --------------------------------------------------------------------------------------
large() { if [ -n "$dry" ]; then left_out 'this size needs a GPU'; else table "$@"; fi; }
section_355m() { large 355m 8; }
section_774m() { large 774m 4; }
section_1558m() { large 1558m 2; }

# ---- part 3 --------------------------------------------------------------------------------------
# Figures of a step: the difference between runs of 3 and of 3 + MORE steps, divided by MORE.
section_steps() {
    local type steps log cpu issued ms
    echo '"Issued" is what the host gives the device to do, by --check-order; an operation may launch several kernels. "CPU" counts all threads of the rank.'
    echo
    echo '| size, B = 4 | type | issued in a step | host CPU, ms | step, ms |'
    echo '|---|---|---:|---:|---:|'
    for type in bf16 fp32; do
        cpu='' issued='' ms=-
        for steps in 3 $((3 + MORE)); do
            log=$here/steps.$type-$steps
            bounded 60 "$log.log" bash -c 'TIMEFORMAT="%U %S"; time "$0" "$@"' "$BUILD/fsdp_train" $STEP \
                --steps $steps --param-dtype $type --loss-csv "$log.csv"
            [ "$rc" = 0 ] || break
            cpu="$cpu $(tail -1 "$log.log")" ms=$(median "$log.csv")
            bounded 60 "$log.order.log" "$BUILD/fsdp_train" $STEP --steps $steps --param-dtype $type --check-order
            [ "$rc" = 0 ] || break
            issued="$issued $(sed -n 's/^order: \([0-9]*\) launches.*/\1/p' "$log.order.log")"
        done
        [ "$rc" = 0 ] || { echo "| $SIZE | $type | $(outcome "$log.log") | | |" && continue; }
        echo "| $SIZE | $type | $(echo $issued $MORE | awk '{ printf "%.0f", ($2 - $1) / $3 }') | $(
            echo $cpu $MORE | awk '{ printf "%.1f", 1e3 * ($3 + $4 - $1 - $2) / $5 }') | $ms |"
    done
}

# find_tool NAME -- sets tool, its path: on the PATH, beside nvcc, or in the toolkit's folders; false if the section is left out
find_tool() {
    local nvcc
    [ -z "$dry" ] || { left_out "$1 needs a GPU" && return 1; }
    nvcc=$(version nvcc)
    tool=$(command -v "$1" || ls "${nvcc%/*}/$1" "${nvcc%/bin/nvcc}"/*/"$1" /opt/nvidia/nsight-*/*/{,bin/}"$1" 2>/dev/null | head -1)
    [ -n "$tool" ] || { left_out "there is no $1 beside nvcc" && return 1; }
}

# racecheck is too slow for the test programs: it gets steps of training, which launch the same kernels. 128 tokens are several tiles
# of attention and of products.
section_sanitizer() {
    local options
    find_tool compute-sanitizer || return 0
    export FSDP_DEVICE=$DEVICE
    head_row compute-sanitizer
    for test in test_ops_double test_accel_ops; do
        try "memcheck $test" 90 "$tool" --tool memcheck --error-exitcode 9 "$BUILD/tests/unit/$test"
    done
    for options in '--size tiny' '--size tiny --param-dtype bf16' '--size tiny --ops portable --reduction canonical' '--model llama --size tiny' \
        '--model llama --size tiny --param-dtype bf16' '--model llama --size tiny --ops portable' '--model mnist --size tiny --optimizer adadelta'; do
        [ "${options#*mnist}" != "$options" ] || options="$options --seq-len 128"
        for check in memcheck racecheck; do
            try "$check $options" 40 "$tool" --tool $check --error-exitcode 9 "$BUILD/fsdp_train" --device cuda --steps 1 --global-batch 1 --synthetic 100000 $options
        done
    done
}

section_ncu() {
    local steps
    find_tool ncu || return 0
    for steps in 1 3; do
        bounded 90 "$here/ncu.$steps.csv" "$tool" --csv --metrics gpu__time_duration.sum "$BUILD/fsdp_train" $STEP --steps $steps --param-dtype bf16
        [ "$rc" = 0 ] || { outcome "$here/ncu.$steps.csv" && return; }
    done
    echo '124M, bf16, B = 4: a step. Times under ncu, at its clocks.'
    kernel_table 2 "$here/ncu.1.csv" "$here/ncu.3.csv"
}

# ---- the page ------------------------------------------------------------------------------------
title() {
    if [ -n "$dry" ]; then
        printf '# Dry run of the report on the stand-in\n\nNo GPU was there: the stand-in of tests/sim/cuda ran the plug-in on %s. Its times say nothing about a GPU.\n\n' \
            "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1)"
        printf '%s, commit %s. Made by `make gpu-report DEVICE=%s`.\n' "$(date +%F)" "$(git rev-parse --short HEAD 2>/dev/null || echo unknown)" "$DEVICE"
    else
        printf '# %s\n\n%s, %s GPU(s), driver %s, CUDA %s, NCCL %s, commit %s. Made by `make gpu-report`.\n' "$gpu" "$(date +%F)" "$n_gpus" "$driver" \
            "$(version cuda)" "$(version nccl)" "$(git rev-parse --short HEAD 2>/dev/null || echo unknown)"
    fi
}
write_page() {
    {
        title
        for name in $SECTIONS_1 $SECTIONS_2 $SECTIONS_3; do
            [ ! -s "$here/$name.md" ] || { printf '\n## %s\n\n' "$name" && cat "$here/$name.md"; }
        done
    } >"$here/report.tmp" && mv "$here/report.tmp" "$here/report.md"
    [ -z "${OUT:-}" ] || { mkdir -p "$OUT" && cp "$here"/*.md "$here"/*.log "$OUT/"; }
}

# Sections of another commit or machine do not belong on this page.
title | sed '/^$/d; s/^[0-9]*-[0-9]*-[0-9]*, //' >"$here/title.tmp" # without the day, because parts may run on two days
cmp -s "$here/title.tmp" "$here/title" && [ -z "$dry" ] || rm -f "$here"/*.md
mv "$here/title.tmp" "$here/title"
write_page
for part in $parts; do
    part_begun=$(date +%s)
    names=SECTIONS_$part
    for section in ${!names}; do
        [ -s "$here/$section.md" ] && ! grep -q 'no time was left' "$here/$section.md" && say "$section: there already" && continue
        say "$section"
        ("section_$section") >"$here/$section.tmp" || echo "FAILED: the section ended early" >>"$here/$section.tmp"
        mv "$here/$section.tmp" "$here/$section.md"
        cat "$here/$section.md"
        write_page
    done
done
say "report: $here/report.md"
! grep -qE 'FAILED|HUNG|no time was left' "$here/report.md" || exit 1
[ -z "$dry" ] || echo 'PASS gpu-report: every section of a dry run on the stand-in'
