#!/bin/sh
# cuda_toolkit.sh -- finds CUDA and NCCL and prints what cuda.mk needs as words NAME=VALUE, some on a line.
#
#   nvcc=FILE cuda=12.4 nccl=2.21.5   the compiler, and the versions
#   ccbin=g++-11                      a host compiler that nvcc accepts; without this word nvcc chooses
#   arch=80 ...                       the GPUs to compile for
#   inc=DIR ... lib=FILE ... run=DIR  headers, libraries, and the folders of the shared libraries
#
# Environment: CUDA_HOME or NVCC, NCCL_HOME, NVCC_CCBIN, CUDA_ARCHS. If they are not set, it looks on the PATH, in the usual
# folders and in the wheels of python3. If something is missing or too old: a message on stderr, no output, status 1.
# shellcheck disable=SC2046,SC2086 # lists of words
set -u
# fail WORD... HINT
fail() {
    printf 'make cuda:' >&2
    while [ $# -gt 1 ]; do printf ' %s' "$1" >&2 && shift; done
    printf '\nHINT: %s\n' "$1" >&2
    exit 1
}
# first FILE... -- the first that exists
first() {
    for file in "$@"; do
        [ -e "$file" ] && echo "$file" && return
    done
}
# older A B -- whether version A comes before B
older() { [ "$1" != "$2" ] && [ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | head -1)" = "$1" ]; }
# folders DIR... -- the existing ones, each once, without ".."; a toolkit's stubs only serve linking, so they are left out
folders() {
    for dir in "$@"; do
        case $dir in *stubs*) ;; *) (cd "$dir" 2>/dev/null && pwd) ;; esac
    done | awk '!seen[$0]++'
}
wheels() { python3 -c 'import nvidia; print(*nvidia.__path__)' 2>/dev/null; }
# nvcc reads this variable too, so it is unset; its value is tried below.
host=${NVCC_CCBIN:-}
unset NVCC_CCBIN
multi=$(gcc -print-multiarch 2>/dev/null)

# ---- the toolkit ---------------------------------------------------------------------------------
nvcc=${NVCC:-}
home=${CUDA_HOME:-${CUDA_PATH:-}}
[ -n "$nvcc" ] || [ -z "$home" ] || nvcc=$home/bin/nvcc
[ -n "$nvcc" ] || nvcc=$(command -v nvcc || first /usr/local/cuda/bin/nvcc /opt/cuda/bin/nvcc)
[ -n "$nvcc" ] || nvcc=$(first $(for dir in $(wheels); do echo "$dir"/cu*/bin/nvcc; done))
cuda=$("${nvcc:-nvcc}" --version 2>/dev/null | sed -n 's/.*release \([0-9.]*\).*/\1/p')
[ -n "$cuda" ] || fail "there is no nvcc${nvcc:+: '$nvcc' does not run}" \
    'install the CUDA toolkit, 11.8 or newer, or set CUDA_HOME to its folder; make doctor says what this machine has'
older "$cuda" 11.8 && fail "$nvcc is of CUDA $cuda; the oldest that will do is 11.8" 'set CUDA_HOME to the folder of a newer toolkit'

# nvcc may be a script that calls another nvcc. The dry run shows where the real one looks.
dry=$("$nvcc" --dryrun -c -x cu /dev/null 2>&1 | tr -d '"')
said() { echo "$dry" | sed -n "s/^#\\\$ $1= *//p" | tail -1; }
here=$(said _HERE_) top=$(said TOP)
top=${top:-${here%/bin}}
option() { echo "$dry" | sed -n "s/^#\\\$ $1= *//p" | tr ' ' '\n' | sed -n "s/^-$2//p"; }
# Debian's nvcc is in /usr/lib/nvidia-cuda-toolkit/bin, its headers and libraries in the system's folders.
headers=$(folders $(option INCLUDES I) "$top/include" "$top"/targets/*/include "$here/../../../include")
libraries=$(folders $(option LIBRARIES L) "$top/lib64" "$top/lib" "$top"/targets/*/lib)

# in_folders FOLDERS NAME... -- the first file with one of these names, folder by folder
in_folders() {
    in=$1
    shift
    for dir in $in; do
        for name in "$@"; do
            first "$dir"/$name | grep . && return
        done
    done
}
# need WHERE FOLDERS HINT NAME... -- in_folders, or fail
need() {
    where=$1 among=$2 hint=$3
    shift 3
    in_folders "$among" "$@" | grep . || fail "there is no $1 in $where${among:+:}" $among "$hint"
}
with_toolkit="it is a part of the CUDA toolkit: install that, or set CUDA_HOME to its folder"
of="CUDA $cuda"
cublaslt_h=$(need "$of" "$headers" "$with_toolkit" cublasLt.h) || exit 1
cublaslt=$(need "$of" "$libraries" "$with_toolkit" libcublasLt.so 'libcublasLt.so.[0-9]*') || exit 1
cudart=$(need "$of" "$libraries" "$with_toolkit" libcudart_static.a libcudart.so 'libcudart.so.[0-9]*') || exit 1

# ---- NCCL ----------------------------------------------------------------------------------------
# nccl_in FOLDER... -- looks in folders of headers and in the library folders beside them
nccl_in() {
    nccl_headers=$(folders "$@")
    nccl_libraries=$(for dir in $nccl_headers; do folders "$dir/../lib64" "$dir/../lib" ${multi:+"$dir/../lib/$multi"}; done)
    nccl_h=$(in_folders "$nccl_headers" nccl.h)
}
if [ -n "${NCCL_HOME:-}" ]; then
    of="NCCL_HOME=$NCCL_HOME" && nccl_in "$NCCL_HOME/include"
else
    of='the usual folders' && nccl_in $headers $(folders "$top/include" /usr/include /usr/local/include)
    [ -n "$nccl_h" ] || nccl_in $headers $(for dir in $(wheels); do echo "$dir/nccl/include"; done)
fi
with_nccl='install NCCL 2.18 or newer, or set NCCL_HOME to the folder of its include/ and lib/: PyTorch brings one, .../site-packages/nvidia/nccl'
nccl_h=$(need "$of" "$nccl_headers" "$with_nccl" nccl.h) || exit 1
nccl=$(awk '$2 ~ /^NCCL_(MAJOR|MINOR|PATCH)$/ { v = v "." $3 } END { print substr(v, 2) }' "$nccl_h")
older "$nccl" 2.18 && fail "$nccl_h is of NCCL $nccl; the oldest that will do is 2.18" "$with_nccl"
libnccl=$(need "$of" "$nccl_libraries $libraries" "$with_nccl" libnccl.so 'libnccl.so.[0-9]*') || exit 1

# ---- what nvcc accepts ---------------------------------------------------------------------------
# accepts COMPILER -- nvcc's headers refuse compilers that are newer than those they know
accepts() { "$nvcc" ${1:+-ccbin "$1"} -std=c++17 -E -x cu /dev/null -o /dev/null >/dev/null 2>&1; }
if [ -n "$host" ]; then
    accepts "$host" && ccbin=$host
else
    for ccbin in '' g++ g++-15 g++-14 g++-13 g++-12 g++-11 g++-10 g++-9 -; do
        accepts "$ccbin" && break
    done
    [ "$ccbin" != - ] || unset ccbin
fi
[ -n "${ccbin+1}" ] || fail "$nvcc, CUDA $cuda, does not work with ${host:-g++}: $(
    "$nvcc" -ccbin "${host:-g++}" -std=c++17 -E -x cu /dev/null -o /dev/null 2>&1 | grep -m1 . | sed 's/.*#error *//')" \
    'install a g++ that it supports (CUDA 11.8: g++-11), or name one: NVCC_CCBIN=g++-11'

known=$("$nvcc" --list-gpu-arch | sed -n 's/^compute_//p' | tr '\n' ' ')
archs=''
for arch in ${CUDA_ARCHS:-75 80 90 100}; do
    case " $known" in
    *" ${arch%[af]} "*) archs="$archs $arch" ;;
    *) [ -z "${CUDA_ARCHS:-}" ] || fail "CUDA_ARCHS has $arch, but nvcc of CUDA $cuda makes code for $known" \
        'CUDA_ARCHS=... with some of these, which newer GPUs run too; or set CUDA_HOME to the folder of another toolkit' ;;
    esac
done

# Compilers look in the system's folders last. As an option such a folder would come too early.
inc=$(folders "${cublaslt_h%/*}" "${nccl_h%/*}" | grep -vxE '/usr(/local)?/include')
run=$(for file in "$cublaslt" "$libnccl" "$cudart"; do case $file in *.a) ;; *) folders "${file%/*}" ;; esac; done | awk '!seen[$0]++')
echo "nvcc=$nvcc cuda=$cuda nccl=$nccl ${ccbin:+ccbin=$ccbin}"
printf '%s\n' ${archs:+$(printf 'arch=%s ' $archs)} ${inc:+$(printf 'inc=%s ' $inc)} "lib=$cudart" "lib=$cublaslt" "lib=$libnccl" $(printf 'run=%s ' $run)
