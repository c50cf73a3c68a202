#!/bin/bash
# deps.sh -- installs the Debian packages that a target needs; prints nothing if none is missing.
#
#   tests/tools/deps.sh [--check] build|demo|labs|test|test-full|bench
#
# Each package has a probe (a command or a file), so tools from other sources count as well. Prints the names of the
# packages, installs them, and never asks. Without apt or the right to use it: prints the command to run, exit status 1.
# --check installs nothing: if something is missing, prints the command, exit status 1.
# With MPI=0 in the environment (make MPI=0 sets it) MPICH is not needed. PROBE_ROOT: a folder to
# search for files instead of / (for tests).
set -uo pipefail

# package, a path or command that shows it is installed, the first target that needs it
PACKAGES='
make            make                                 build
gcc             gcc                                  build
libc6-dev       /usr/include/stdio.h                 build
pkg-config      pkg-config                           build
mpich           mpiexec                              build
libmpich-dev    /usr/include/*/mpich/mpi.h           build
libdnnl-dev     /usr/include/dnnl.h                  build
libcjson-dev    /usr/include/cjson/cJSON.h           build
libxxhash-dev   /usr/include/xxhash.h                build
gnuplot-nox     gnuplot                              demo
libcmocka-dev   /usr/include/cmocka.h                test
g++             g++                                  labs
procps          pgrep                                labs
clang           clang                                test-full
libomp-dev      /usr/lib/llvm-*/lib/libomp.so        test-full
clang-format    clang-format                         test-full
valgrind        valgrind                             test-full
qemu-user       qemu-aarch64                         test-full
gcc-aarch64-linux-gnu  aarch64-linux-gnu-gcc         test-full
libc6-dev-arm64-cross  /usr/aarch64-linux-gnu/include/stdio.h  test-full
universal-ctags ctags                                test-full
iproute2        ip                                   test-full
slurm-wlm       /usr/sbin/slurmctld                  test-full
munge           /usr/sbin/munged                     test-full
python3-venv    /usr/lib/python3*/ensurepip/__init__.py  bench
'

check=''
[ "${1:-}" = --check ] && check=1 && shift
case ${1:-} in
build) tiers='build' ;;
demo) tiers='build demo' ;;
labs) tiers='build labs' ;;
test) tiers='build labs test' ;;
test-full) tiers='build labs test test-full' ;;
bench) tiers='build bench' ;;
*) echo "usage: $0 [--check] build|demo|labs|test|test-full|bench" >&2 && exit 2 ;;
esac

is_there() {
    case $1 in
    /*) compgen -G "${PROBE_ROOT:-}$1" >/dev/null ;;
    *) command -v "$1" >/dev/null 2>&1 ;;
    esac
}

missing=()
while read -r package probe tier; do
    [ -n "$package" ] && [[ " $tiers " == *" $tier "* ]] || continue
    [ "${MPI:-}" = 0 ] && [[ $package == *mpich* ]] && continue
    is_there "$probe" || missing+=("$package")
done <<<"$PACKAGES"
cc=${CC:-gcc}
if [ ${#missing[@]} -eq 0 ] && [ -n "$check" ] && ! is_there "${cc%% *}"; then
    echo "deps: there is no compiler '${cc%% *}'" >&2
    echo 'HINT: leave CC out, or name a compiler that is installed: make CC=clang' >&2
    exit 1
fi
if [ ${#missing[@]} -eq 0 ] && [ -n "$check" ] && ! pkg-config --exists libcjson libxxhash 2>/dev/null; then
    echo "deps: $(command -v pkg-config) does not find libcjson and libxxhash, which are installed" >&2
    echo 'HINT: unset PKG_CONFIG_PATH and PKG_CONFIG_LIBDIR, or put the pkg-config of the system first in PATH' >&2
    exit 1
fi
[ ${#missing[@]} -eq 0 ] && exit 0

command="apt-get install -y --no-install-recommends ${missing[*]}"
give_up() {
    echo "deps: $1; missing: ${missing[*]}" >&2
    echo "HINT: $2" >&2
    exit 1
}
[ -n "$check" ] && give_up 'something that the build needs is not installed' 'make deps'
command -v apt-get >/dev/null || give_up 'this system has no apt-get' \
    'install what these Debian packages hold with your package manager, then run make again'
as_root=''
if [ "$(id -u)" -ne 0 ]; then
    sudo -n true 2>/dev/null || give_up 'not root, and sudo asks for a password' "sudo $command"
    as_root='sudo -n'
fi

export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8
apt() { # shellcheck disable=SC2086 # as_root is two words or none
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get -o Dpkg::Use-Pty=0 -o APT::Cmd::Disable-Script-Warning=1 "$@" 2>&1
}
log=$(mktemp) && trap 'rm -f "$log"' EXIT

# update -- fetch the package lists
update() {
    echo "deps: apt-get update"
    apt update >"$log" || { tail -5 "$log" >&2 && give_up 'apt-get update failed' "$as_root apt-get update"; }
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
    install || { tail -15 "$log" >&2 && give_up 'apt-get install failed' "$as_root $command"; }
fi
hash -r
still=()
while read -r package probe tier; do
    [[ " ${missing[*]} " == *" $package "* ]] && ! is_there "$probe" && still+=("$package")
done <<<"$PACKAGES"
[ ${#still[@]} -eq 0 ] || { missing=("${still[@]}") && give_up 'installed, but not found afterwards' "$command"; }
echo "deps: done"
