#!/bin/bash
# gpu_report.sh -- make gpu-report writes no page without a GPU. Its page reports commands that fail, are skipped or hang.
#
# The GPU, the toolkit and the programs are scripts made here. Another check, gpu-dry, runs the report on the stand-in.
. "$(dirname "$0")/lib.sh"
cli_start "$@"
unset ${!CUDA_@} ${!NCCL_@} ${!NVCC@} OUT PART LIMIT DEVICE FSDP_PYTHON

# script FILE LINE... -- writes a shell script
script() {
    mkdir -p "${1%/*}"
    { echo '#!/bin/sh' && printf '%s\n' "${@:2}"; } >"$1"
    chmod +x "$1"
}
# Runs the report as on a machine where `make` has nothing to build. CAP limits how long a command may hang.
again() {
    env PATH="$work/bin:$PATH" CUDA_HOME="$work/cuda" NCCL_HOME="$work/cuda" FSDP_PYTHON=/nowhere CAP=10 "$@" tests/gpu/report.sh "$build" >"$work/err" 2>&1
}
report() {
    rm -rf "$build/gpu"
    again "$@"
}
build=$work/build
script "$work/bin/make" 'exit 0'
script "$work/cuda/bin/nvcc" 'here=$(dirname "$0")' 'case "$*" in' '*--version*) echo "release 12.4, V12.4.1" ;;' '*--list-gpu-arch*) echo compute_90 ;;' \
    '*--dryrun*) printf "#\$ _HERE_=%s\n#\$ TOP=%s/..\n" "$here" "$here" >&2 ;;' esac
mkdir "$work"/cuda/{include,lib}
: >"$work/cuda/include/cublasLt.h" >"$work/cuda/lib/libcublasLt.so" >"$work/cuda/lib/libcudart.so" >"$work/cuda/lib/libnccl.so.2"
printf '#define NCCL_MAJOR 2\n#define NCCL_MINOR 21\n#define NCCL_PATCH 5\n' >"$work/cuda/include/nccl.h"

# ---- no page without a GPU --------------------------------------------------------------------------------------

# nvidia_smi NAME DRIVER
nvidia_smi() { script "$work/bin/nvidia-smi" 'case "$*" in' "*=name*) echo '$1' ;;" "*driver_version*) echo '$2' ;;" "*compute_cap*) echo 9.0 ;;" esac; }
# no_page NAME REGEX VARIABLE=VALUE...
no_page() {
    case_is "no page: $1"
    report "${@:3}" && complain 'exit status 0'
    says '^HINT: '
    says "$2"
    [ ! -e "$build/gpu/report.md" ] || complain 'there is a page'
}
script "$work/bin/nvidia-smi" 'exit 9'
no_page 'nvidia-smi finds no GPU' 'names no GPU or no driver'
nvidia_smi 'NVIDIA H100' ''
no_page 'no driver' "names no GPU or no driver: 'NVIDIA H100', ''"
nvidia_smi 'NVIDIA H100' 550.54
no_page 'no such part' "PART: got '4'" PART=4
no_page 'no toolkit' 'no nvcc' CUDA_HOME=/nowhere

# ---- what the page says -----------------------------------------------------------------------------------------

script "$build/tests/unit/test_device" 'echo "SKIP --device cuda: this machine has no GPU"' 'echo "7 passed on the CPU"'
script "$build/tests/unit/test_accel_ops" 'echo "it works"'
# Programs of cmocka that skip some of their tests, and all of them.
script "$build/tests/unit/test_cuda_device" 'printf "[  PASSED  ] 2 test(s).\n[  SKIPPED ] 7 test(s), listed below:\n[  SKIPPED ] test_a\n"' \
    'printf "\n 7 SKIPPED TEST(S)\nSKIP only the stand-in can be told\nSKIP another reason\n"'
script "$build/tests/unit/test_ops_double" 'printf "[  PASSED  ] 0 test(s).\n[  SKIPPED ] 1 test(s), listed below:\n[  SKIPPED ] test_a\n\n 1 SKIPPED TEST(S)\n"'
script "$build/tests/unit/test_device_watch" 'echo "SKIP the device is not there"' 'exit 77'
script "$build/tests/unit/test_accel_device" '[ "${CUDA_MODULE_LOADING:-}" = EAGER ] && echo late && exit' 'exec sleep 1000'
script "$build/tests/gpu/nccl_one" 'echo "FAILED: ncclAllGather: unhandled error"' 'exit 1'
script "$build/tests/gpu/lt_one" 'echo "| a product |"'
script "$build/fsdp_train" 'echo "[rank 0/1] out of memory"' 'exit 1'

# Profilers: what they print of a run of few steps, and of more.
cat >"$work/ncu.1" <<'END'
==PROF== Profiling "gelu"
"ID","Kernel Name","Block Size","Metric Name","Metric Unit","Metric Value"
"0","void gelu<float>(float *, int)","(256, 1, 1)","gpu__time_duration.sum","us","2"
"1","(anonymous namespace)::norm(float *)","(32, 1, 1)","gpu__time_duration.sum","ns","1,000"
END
{ cat "$work/ncu.1" && sed -n '3p;3p;3p;3p;4p' "$work/ncu.1"; } >"$work/ncu.3"
# nsys FILE LAUNCHES NS -- writes nsys's summary: a kernel of so many launches, and one that only the start of a run launches
nsys() {
    printf '%s\n' 'Processing [run.sqlite] with [cuda_gpu_kern_sum.py]...' '' \
        'Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name' \
        "90.5,$3,$2,10.0,10.0,10,10,0.0,\"void <unnamed>::gelu<float, int>(float *, int)\"" \
        '9.5,100,1,100.0,100.0,100,100,0.0,fill' >"$1"
}
nsys "$work/nsys.3" 10 1000000
nsys "$work/nsys.13" 30 5000000
script "$work/bin/nsys" 'for run; do :; done' "case \$1 in stats) run=\${run##*/nsys.}; cat $work/nsys.\${run%%.*} ;; esac"
script "$work/bin/ncu" 'while [ "$1" != --steps ]; do shift; done' "cat $work/ncu.\$2"
script "$work/bin/compute-sanitizer" 'echo "$2: 0 hazards"'

case_is 'failures fail'
report PART='1 3' OUT="$work/copies"
rc=$?
expect_status 1
cp "$build/gpu/report.md" "$work/err" 2>/dev/null
# shows NAME REGEX -- a line of the page
shows() {
    case_is "the page: $1"
    says "$2"
}
shows 'GPU' '^# NVIDIA H100$'
shows 'driver, toolkit and NCCL' 'driver 550.54, CUDA 12.4, NCCL 2.21.5, commit '
shows 'a test that passes' '^\| test_accel_ops \| passed: it works \|'
shows 'a skip is a failure' '^\| test_device_watch \| FAILED: it was skipped: the device is not there \|'
shows 'so is a skip of one device among several' '^\| test_device \| FAILED: it was skipped: --device cuda: this machine has no GPU \|'
shows 'so is a skip of all tests' '^\| test_ops_double \| FAILED: it was skipped: test_a \|'
shows 'skipped tests are counted' '^\| test_cuda_device \| passed 2, skipped 7: only the stand-in can be told \|'
shows 'a hang is tried again' '^\| test_accel_device \| HUNG for 10 s; with CUDA_MODULE_LOADING=EAGER: passed: late \|'
shows 'a failure' 'FAILED \(1\): FAILED: ncclAllGather: unhandled error'
shows 'a run that ends' '^\| 124m \| 4 \| bf16 \| single \| FAILED \(1\): \[rank 0/1\] out of memory \|'
shows 'a variant that ends' '^\| --parallel single \| FAILED \(1\): \[rank 0/1\] out of memory \|'
shows 'threads of a run that ends' '^\| fp32 \| FAILED \(1\): \[rank 0/1\] out of memory \|'
shows 'steps under racecheck' '^\| racecheck --model llama --size tiny --param-dtype bf16 --seq-len 128 \| passed: racecheck: 0 hazards \|'
shows 'products' '^\| a product \|$'
case_is 'OUT has a copy'
cmp -s "$build/gpu/report.md" "$work/copies/report.md" || complain 'it is another page'

# rows SECTION -- the last three rows of a section of the page
rows() { sed -n "/^## $1\$/,/^## /p" "$build/gpu/report.md" | grep '^| [a-z*]' | tail -3; }
case_is 'kernels of a step, by ncu'
printf '| void gelu<float> | 2.0 | 0.004 |\n| norm | 0.5 | 0.001 |\n| **all** | 2.5 | 0.005 |\n' | cmp -s - <(rows ncu) || complain 'other rows'
case_is 'kernels of a step, by nsys'
printf '| void gelu<float, int> | 2.0 | 0.400 |\n| fill | 0.0 | 0.000 |\n| **all** | 2.0 | 0.400 |\n' | cmp -s - <(rows nsys) || complain 'other rows'

# ---- two ranks on one GPU, over NCCL 2.30 -----------------------------------------------------------------------

script "$build/fsdp_train" 'while [ $# -gt 0 ]; do' 'case $1 in --loss-csv) : >"$2" ;; --export) mkdir -p "$2" && : >"$2/model.safetensors" ;; esac' shift done
script "$build/fsdp_run" 'shift 2' 'exec "$@"'
sed -i 's/MINOR 21/MINOR 30/' "$work/cuda/include/nccl.h"
# under_mps NAME REGEX LINE... -- the row of MPS, where nvidia-cuda-mps-control is a script of these lines
under_mps() {
    script "$work/bin/nvidia-cuda-mps-control" "${@:3}"
    rm "$build/gpu/bits.md"
    again PART=1
    cp "$build/gpu/report.md" "$work/err" 2>/dev/null
    shows "MPS $1" "^\\| the same under MPS \\| $2"
}
under_mps 'does not start' 'left out: nvidia-cuda-mps-control -d failed \|' 'exit 1'
shows 'without MPS' '^\| canonical, fast, W = 2 on one GPU over NCCL \| passed: losses and weights of 2 ranks'
under_mps 'serves nobody' 'FAILED \(1\): FAILED: MPS has no server' ''
under_mps 'serves the ranks' 'passed: losses and weights of 2 ranks' '[ "$*" = -d ] || sed s/get_server_list/1234/'
cli_end
