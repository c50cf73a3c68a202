#!/bin/bash
# deps.sh -- installs the Debian packages that a target needs; prints nothing if none is missing.
#
#   tests/tools/deps.sh [--check | --all] build|demo|labs|grade|test|test-full|bench
#
# What a package provides is probed (probe.sh), so programs and libraries from other sources count as well. Prints the names of the
# packages, installs them, and never asks. If it cannot install (no apt-get, no right to use it, no network), it says why, and what is
# off without them; exit status 1, with the command to run, only if something is missing without which nothing can be built or
# tested. --check installs nothing and complains only about such packages, --all installs nothing and complains about all. With MPI=0
# in the environment (make MPI=0 sets it) MPICH is not needed.
set -uo pipefail
. "${BASH_SOURCE[0]%/*}/probe.sh"

# package, what it provides (probe.sh), the first target that wants it, what is off without it; -: the target needs it
PACKAGES='
make            make             build      -
gcc             cc               build      -
libc6-dev       cc               build      -
pkg-config      pkg-config       build      finding libraries outside of the compiler'\''s own folders
mpich           mpiexec          build      mpiexec, for ranks on several hosts (build/fsdp_run starts ranks on one)
libmpich-dev    mpich            build      ranks on several hosts (build/fsdp_run starts ranks on one)
libdnnl-dev     dnnl             build      fast products: --ops fast multiplies like --ops portable
zlib1g-dev      zlib             build      packed files of MNIST (.gz)
libcjson-dev    cjson            build      -
libxxhash-dev   xxhash           build      -
gnuplot-nox     gnuplot          demo       pictures of curves
libcmocka-dev   cmocka           test       unit tests
g++             g++              labs       the stand-ins cuda-sim and npu-sim
bubblewrap      bwrap            grade      the best confinement of handed-in trees
libseccomp-dev  seccomp          grade      -
procps          pgrep            test       -
clang           clang            test-full  checks with clang
libomp-dev      /usr/lib/llvm-*/lib/libomp.so  test-full  checks with clang
clang-format    clang-format     test-full  the check of the layout
valgrind        valgrind         test-full  checks with valgrind
qemu-user       qemu-aarch64     test-full  checks on arm64
gcc-aarch64-linux-gnu  aarch64-linux-gnu-gcc  test-full  checks on arm64
libc6-dev-arm64-cross  /usr/aarch64-linux-gnu/include/stdio.h  test-full  checks on arm64
universal-ctags ctags            test-full  the check of functions'\'' lengths
iproute2        ip               test-full  hosts with a network between them
slurm-wlm       slurmctld        test-full  checks under Slurm
munge           /usr/sbin/munged test-full  checks under Slurm
python3-venv    /usr/lib/python3*/ensurepip/__init__.py  bench  PyTorch beside us
'

check='' all=''
[ "${1:-}" = --check ] && check=1 && shift
[ "${1:-}" = --all ] && check=1 all=1 && shift
case ${1:-} in
build) tiers='build' ;;
demo) tiers='build demo' ;;
labs) tiers='build labs' ;;
grade) tiers='build labs grade' ;;
test) tiers='build labs test' ;;
test-full) tiers='build labs grade test test-full' ;;
bench) tiers='build bench' ;;
*) echo "usage: $0 [--check | --all] build|demo|labs|grade|test|test-full|bench" >&2 && exit 2 ;;
esac

# look -- sets missing, the packages whose part is not there, and needed, the missing ones that cannot be left out
look() {
    missing=() needed=() off=''
    while read -r package part tier without; do
        [ -n "$package" ] && [[ " $tiers " == *" $tier "* ]] || continue
        [ "${MPI:-}" = 0 ] && [[ $package == *mpich* ]] && continue
        probe "$part" >/dev/null && continue
        missing+=("$package")
        [ -z "$all" ] || without=-
        [ "$without" = - ] && needed+=("$package")
        [ "$without" = - ] || off="${off}deps: off without $package: $without"$'\n'
    done <<<"$PACKAGES"
}

# end WHY HINT -- nothing more can be installed: goes on without the packages that may be left out
end() {
    echo "deps: $1; missing: ${missing[*]}" >&2
    [ ${#needed[@]} -eq 0 ] && printf '%s' "$off" >&2 && exit 0
    echo "HINT: $2" >&2
    [ ${#needed[@]} -eq ${#missing[@]} ] || echo "HINT: ${needed[*]} cannot be left out" >&2
    [[ " ${needed[*]} " != *" gcc "* ]] || ! CC=clang probe cc >/dev/null || echo 'HINT: clang is here: make CC=clang' >&2
    exit 1
}

look
if [[ " ${needed[*]} " == *" gcc "* ]] && { [ -n "${CC:-}" ] || CPPFLAGS='' CFLAGS='' LDFLAGS='' probe cc >/dev/null; }; then
    echo "deps: the compiler '${CC:-gcc}' makes no program with OpenMP" >&2
    echo 'HINT: leave CC and the flags out, or name a compiler that works: make CC=clang (it needs libomp-dev)' >&2
    exit 1
fi
[ ${#missing[@]} -eq 0 ] && exit 0
[ -n "$check" ] && [ ${#needed[@]} -eq 0 ] && exit 0

command="apt-get install -y --no-install-recommends ${missing[*]}"
[ -n "$check" ] && end 'something that this needs is not installed' 'make deps'
elsewhere='or install what these Debian packages hold with another package manager, where the compiler or PKG_CONFIG_PATH finds it'
command -v apt-get >/dev/null || end 'this system has no apt-get' "${elsewhere#or }"
as_root=''
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || end 'not root, and there is no sudo' "as root: $command; $elsewhere"
    said=$(LC_ALL=C sudo -n true 2>&1) || { said=${said%%$'\n'*} && end "not root, and sudo says: ${said#sudo: }" "sudo $command; $elsewhere"; }
    as_root='sudo -n '
fi

export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8
apt() { # shellcheck disable=SC2086 # as_root is two words or none
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get -o Dpkg::Use-Pty=0 -o APT::Cmd::Disable-Script-Warning=1 "$@" 2>&1
}
log=$(mktemp) && trap 'rm -f "$log"' EXIT

# update -- fetch the package lists
update() {
    echo "deps: apt-get update"
    apt update >"$log" || { tail -5 "$log" >&2 && end 'apt-get update failed' "${as_root}apt-get update"; }
}

# install -- prints a line of progress at each stage and for every 25th package
install() {
    local n=0 got=0
    apt install -y --no-install-recommends "${missing[@]}" | while read -r line; do
        echo "$line" >>"$log"
        case $line in
        *'newly installed'*) n=${line%% newly*} n=${n##* } && echo "deps: $n packages with what they need" ;;
        'Need to get'* | 'After this operation'*) echo "deps: $line" ;;
        Get:*) got=$((got + 1)) && [ $((got % 25)) -eq 0 ] && echo "deps: $got of $n fetched" ;;
        Unpacking*) [ "$got" -ge 0 ] && got=-1 && echo "deps: unpacking" ;;
        'Setting up'*) [ "$got" -ge -1 ] && got=-2 && echo "deps: setting up" ;;
        esac
    done
}

echo "deps: installing ${missing[*]}"
apt-cache show "${missing[@]}" >/dev/null 2>&1 || update
: >"$log"
if ! install; then
    update # the package lists may be older than the mirror
    install || { tail -15 "$log" >&2 && end 'apt-get install failed' "$as_root$command"; }
fi
hash -r
wanted=" ${missing[*]} "
look
for package in "${missing[@]}"; do
    [[ $wanted != *" $package "* ]] || end 'installed, but not found afterwards' "$command"
done
echo "deps: done"
