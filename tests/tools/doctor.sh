#!/bin/sh
# doctor.sh [BUILD] -- what this machine has for the project, what does not work without it, and how to get it. Changes nothing.
# Exit status 1 if something that `make` needs is missing. PROBE_ROOT: a folder to search for toolkits instead of / (for tests).
set -u
missing_base=0
project=$(dirname "$0")/../project.mk # a handed-out tree has only labs: no CUDA, no test suite
row() { printf '%-14s %-4s %-26s %-44s %s\n' "$1" "$2" "$3" "$4" "$5"; }

# look NAME needed|optional VERSION OFF GET -- VERSION empty: not found
look() {
    if [ -n "$3" ]; then
        row "$1" yes "$(echo "$3" | cut -c1-26)" - -
    else
        row "$1" no - "$4" "$5"
        [ "$2" = needed ] && missing_base=1
    fi
}

. "$(dirname "$0")/probe.sh"

root=${PROBE_ROOT:-}
# first FILE... -- the first that exists
first() {
    for file in "$@"; do
        [ -e "$file" ] && echo "$file" && return
    done
}
# The driver's version from nvidia-smi, or from the name of its library.
driver_version() {
    found=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -1)
    [ -n "$found" ] || found=$(ls "$root"/usr/lib*/libcuda.so.[0-9]*.* "$root"/usr/lib/*/libcuda.so.[0-9]*.* 2>/dev/null | head -1 | sed 's/.*libcuda\.so\.//')
    echo "$found"
}
# "2 x NVIDIA H100, 2 x NVIDIA A100"
gpus() { nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | sort | uniq -c | awk '{ n = $1; $1 = ""; printf "%s%s x%s", (NR > 1 ? ", " : ""), n, $0 }'; }
# The folder of Ascend's toolkit: from set_env.sh's variables, or the usual places, newest version first.
cann_home() {
    for home in "${ASCEND_TOOLKIT_HOME:-}" "${ASCEND_HOME_PATH:-}" "$root/usr/local/Ascend/cann" \
        "$root/usr/local/Ascend/ascend-toolkit/latest" $(ls -d "$root"/usr/local/Ascend/cann-* 2>/dev/null | sort -rV) \
        "$root${HOME:-/root}/Ascend/cann" "$root${HOME:-/root}/Ascend/ascend-toolkit/latest"; do
        [ -n "$home" ] && [ -d "$home/include" ] && echo "$home" && return
    done
}
cann=$(cann_home)
# cann_part VERSION HEADER LIBRARY [LIBRARY] -- "VERSION in FOLDER", and what is missing. The second LIBRARY is its name in newer
# toolkits.
cann_part() {
    [ -n "$cann" ] || return
    found="${1:+$1 }in $cann"
    [ -e "$cann/include/$2" ] || found="$found, no $2"
    [ -n "$(first "$cann/lib64/$3" "$cann/lib64/${4:-$3}")" ] || found="$found, no $3"
    echo "$found"
}
cann_version() {
    info=$(first "$cann/$(uname -m)-linux/ascend_toolkit_install.info" "$cann"/*-linux/ascend_toolkit_install.info)
    cann_part "$(sed -n 's/^version=//p' ${info:+"$info"} </dev/null)" acl/acl.h libascendcl.so libacl_rt.so
}
npu_driver() { sed -n 's/^Version=//p' "$root/usr/local/Ascend/driver/version.info" 2>/dev/null; }
# Each NPU that this machine or container may use has a device file.
npus() {
    n=$(ls "$root"/dev/davinci[0-9]* 2>/dev/null | wc -l)
    [ "$n" -eq 0 ] || echo "$n of them"
}
# The variables that HCCL reads. The ranks meet by root info, so they need no rank table.
hccl_says() {
    for name in HCCL_IF_IP HCCL_SOCKET_IFNAME HCCL_CONNECT_TIMEOUT HCCL_DETERMINISTIC ASCEND_RT_VISIBLE_DEVICES RANK_TABLE_FILE; do
        eval "value=\${$name:-}"
        [ -z "$value" ] || printf '%s=%s ' $name "$value"
    done
    [ -n "${HCCL_IF_IP:-}${HCCL_SOCKET_IFNAME:-}" ] || printf 'it chooses the network interface itself (HCCL_SOCKET_IFNAME) '
    [ -z "${RANK_TABLE_FILE:-}" ] || printf '(no rank table is read here)'
}

row 'dependency' 'has' 'version' 'off without it' 'how to get it'
row '----------' '---' '-------' '--------------' '-------------'
apt='apt-get install'
look make needed "$(probe make)" 'everything' "$apt make"
look compiler needed "$(v=$(probe cc) && echo "${CC:-gcc} $v")" 'everything (or make CC=clang)' 'make deps'
look cJSON needed "$(probe cjson)" 'everything: safetensors headers, config.json' 'make deps'
look xxHash needed "$(probe xxhash)" 'everything: hashes of checkpoints and data' 'make deps'
look pkg-config optional "$(probe pkg-config)" 'finding libraries in other folders' 'make deps'
look MPICH optional "$(probe mpich)" 'ranks on several hosts' 'make deps'
mpiexec_find && launcher="$mpiexec $mpiexec_version"
look mpiexec optional "${launcher:-}" 'starting those ranks (one host: build/fsdp_run)' 'make deps'
look oneDNN optional "$(probe dnnl)" '--ops fast multiplies like --ops portable' 'make deps'
look bubblewrap optional "$(probe bwrap)" 'the best confinement in make grade-submission' 'tests/tools/deps.sh grade'
look zlib optional "$(probe zlib)" "MNIST's files as .gz" 'make deps'
look clang optional "$(probe clang)" 'CC=clang, TSan, some of make test-full' "$apt clang libomp-dev"
look g++ optional "$(probe g++)" 'cuda-sim, npu-sim: accelerators on the CPU' 'make deps'
if [ -e "$project" ]; then
    look gnuplot optional "$(probe gnuplot)" 'the plots of make demo and make bench' "$apt gnuplot-nox"
    look cmocka optional "$(probe cmocka)" 'unit tests of make test' 'make deps'
    look clang-format optional "$(probe clang-format)" 'make format; version 14 lays out' "$apt clang-format-14"
    look valgrind optional "$(probe valgrind)" 'memory checks of make test-full' "$apt valgrind"
    look qemu-user optional "$(probe qemu-aarch64)" 'arm64 in make test-full' "$apt qemu-user gcc-aarch64-linux-gnu"
    look Slurm optional "$(probe slurmctld)" 'srun and sbatch in make test-full' "$apt slurm-wlm munge"
    look ctags optional "$(probe ctags)" 'function sizes in make lint' "$apt universal-ctags"
    python=${FSDP_PYTHON:-python3}
    torch=$("$python" -c 'import torch, transformers; print(torch.__version__)' 2>/dev/null)
    look PyTorch optional "$torch" 'tests/interop (an oracle, never needed)' 'pip install torch transformers; FSDP_PYTHON=...'
fi

echo
row 'backend' 'has' 'version' 'state' ''
row '-------' '---' '-------' '-----' ''
row cpu yes "$(uname -m)" 'trains' ''
row 'comm shm' yes - 'ranks of one host, by build/fsdp_run or MPICH'\''s mpiexec' ''
row 'comm mpi' "$([ -n "$(probe mpich)" ] && echo yes || echo no)" "$(probe mpich)" 'ranks of one host and of several' ''
# backend NAME VERSION STATE
backend() {
    case $2 in '' | *', no '*) has=no ;; *) has=yes ;; esac
    row "$1" $has "${2:--}" "$3" ''
}
b=${1:-build}
built() { [ -e "$b/$1" ] && echo "$b/$1 is built" || echo "not built yet: $2"; }
# Two lines: the versions that make cuda finds, and the GPUs that it compiles for; otherwise an empty line and what is missing.
cuda_build() {
    words=$("$(dirname "$0")/cuda_toolkit.sh" 2>&1) || { echo && echo "${words#make cuda: }" | head -1 && return; }
    echo "$words" | tr '\n' ' ' | awk '{
        for (i = 1; i <= NF; i++) { split($i, w, "="); v[w[1]] = v[w[1]] (v[w[1]] == "" ? "" : " ") w[2] }
        printf "%s, NCCL %s\nfor sm %s%s\n", v["cuda"], v["nccl"], v["arch"], v["ccbin"] ? "; by " v["ccbin"] : "" }'
}
if [ -e "$project" ]; then
    found=$(cuda_build)
    backend CUDA "$(echo "$found" | head -1)" "--device cuda: $(built fsdp_cuda.so 'make cuda'); $(echo "$found" | tail -1)"
    backend driver "$(driver_version)" 'to run it: as new as the toolkit, or newer'
    backend GPUs "$(gpus)" 'one for each rank (or --comm shm: ranks share them)'
    backend cuda-sim "$(probe g++)" "--device cuda-sim: $(built fsdp_cuda_sim.so 'make cuda-sim')"
fi
backend CANN "$(cann_version)" "--device npu: $(built fsdp_npu.so "$([ -n "${ASCEND_TOOLKIT_HOME:-}" ] || echo 'source set_env.sh; ')make npu")"
backend aclnn "$(cann_part '' aclnnop/aclnn_matmul.h libopapi.so libopapi_nn.so)" 'its operations'
backend HCCL "$(cann_part '' hccl/hccl.h libhccl.so)" 'its collectives'
backend 'NPU driver' "$(npu_driver)" 'to run it: npu-smi info says how the NPUs are'
backend NPUs "$(npus)" 'one for each rank (or --comm shm: ranks share them)'
backend npu-sim "$(probe g++)" "--device npu-sim: $(built fsdp_npu_sim.so 'make npu-sim')"

echo
printf '%-14s %s\n' cores "$(nproc) usable of $(getconf _NPROCESSORS_ONLN)"
printf '%-14s %s\n' memory "$(awk '/MemTotal/ { t = $2 } /MemAvailable/ { a = $2 } END { printf "%.1f GB, %.1f GB available", t / 1e6 * 1.024, a / 1e6 * 1.024 }' /proc/meminfo)"
printf '%-14s %s\n' /dev/shm "$(df -k /dev/shm 2>/dev/null | awk 'NR == 2 { printf "%.0f MB, %.0f MB free (MPICH uses System V segments when it is small)", $2 * 1.024e-3, $4 * 1.024e-3 }')"
[ -z "$cann" ] || printf '%-14s %s\n' HCCL "$(hccl_says)"
isa=''
for flag in avx2 fma avx512f avx512_bf16 amx_bf16 asimd bf16 sve; do
    grep -qw "$flag" /proc/cpuinfo && isa="${isa:+$isa }$flag"
done
printf '%-14s %s\n' 'CPU' "$(lscpu 2>/dev/null | sed -n 's/^Model name: *//p' | head -1)"
printf '%-14s %s\n' 'vector ISA' "${isa:-none of avx2, avx512, amx, asimd, sve}"
printf '%-14s %s\n' 'trainer' "$([ -x "$b/fsdp_train" ] && echo "$b/fsdp_train is built" || echo 'not built yet: make')"
! mpiexec_loses || echo "note: mpiexec $mpiexec_version may return 0 when a rank has died; build/fsdp_run and MPICH 4.2.2 do not"
[ $missing_base -eq 0 ] || { echo 'HINT: make deps installs what the build needs' && exit 1; }
