#!/bin/bash
# tools.sh -- what make doctor finds, what a target does if a tool or library is not installed or stands elsewhere, which launcher
# is chosen.
#
# Folders made here stand for the root of the machine (PROBE_ROOT) and PATHs are cut, so nothing is installed or removed.
. "$(dirname "$0")/lib.sh"
cli_start "$@"
unset ${!ASCEND_@} ${!HCCL_@} RANK_TABLE_FILE CUDA_HOME CUDA_PATH NCCL_HOME MAKEFLAGS MFLAGS MPI MPIEXEC CC V

# ---- make doctor ------------------------------------------------------------------------------------------------

# doctor NAME REGEX VARIABLE=VALUE... -- a line of the output matches. Cases with the same files and variables share a run
ran=
doctor() {
    local run
    case_is "doctor: $1"
    run="${*:3} $(find "$work/root" "$work/bin" | sort)"
    if [ "$run" != "$ran" ]; then
        env PATH=/usr/bin:/bin PROBE_ROOT="$work/root" CC="$cc" "${@:3}" tests/tools/doctor.sh >"$work/doctor" 2>&1 || complain "exit status $?"
        ran=$run
    fi
    says "$2" "$work/doctor"
}

mkdir "$work/root"
doctor 'no CUDA' '^CUDA +no +- .* there is no nvcc' NVCC=/nowhere
doctor 'no CANN' '^CANN +no +- ' NVCC=/nowhere
doctor 'no NPU' '^NPUs +no +- ' NVCC=/nowhere
printf '#!/bin/sh\necho "Cuda compilation tools, release 11.5, V11.5.119"\n' >"$work/bin/nvcc"
chmod +x "$work/bin/nvcc"
doctor 'an old CUDA' "^CUDA +no +- .* $work/bin/nvcc is of CUDA 11.5; " PATH="$work/bin:/usr/bin:/bin"

# cann FOLDER VERSION -- an Ascend toolkit with all its parts
cann() {
    mkdir -p "$1"/include/{acl,aclnnop,hccl} "$1/lib64" "$1/aarch64-linux"
    : >"$1/include/acl/acl.h" >"$1/include/aclnnop/aclnn_matmul.h" >"$1/include/hccl/hccl.h"
    : >"$1/lib64/libascendcl.so" >"$1/lib64/libopapi.so" >"$1/lib64/libhccl.so"
    printf 'package_name=Ascend-cann-toolkit\nversion=%s\n' "$2" >"$1/aarch64-linux/ascend_toolkit_install.info"
}
ascend=$work/root/usr/local/Ascend
cann "$ascend/ascend-toolkit/latest" 8.1.RC1
doctor 'CANN in its usual place' "^CANN +yes +8.1.RC1 in $ascend/ascend-toolkit/latest "
doctor 'a shell without set_env.sh' '^CANN .* not built yet: source set_env.sh; make npu '
cann "$ascend/cann-8.5.0" 8.5.0
cann "$ascend/cann-9.0.0" 9.0.0
mv "$ascend/ascend-toolkit" "$work/elsewhere"
doctor 'the newer of two CANNs' "^CANN +yes +9.0.0 in $ascend/cann-9.0.0 "
doctor 'aclnn' "^aclnn +yes +in $ascend/cann-9.0.0 "
doctor 'HCCL' "^HCCL +yes +in $ascend/cann-9.0.0 "
doctor 'ASCEND_TOOLKIT_HOME' "^CANN +yes +8.1.RC1 in $work/elsewhere/latest .* not built yet: make npu " \
    ASCEND_TOOLKIT_HOME="$work/elsewhere/latest"
mv "$ascend/cann-9.0.0/lib64/libascendcl.so" "$ascend/cann-9.0.0/lib64/libacl_rt.so"
doctor "a newer CANN's library" "^CANN +yes +9.0.0 in $ascend/cann-9.0.0 "
rm "$ascend/cann-9.0.0/lib64/libacl_rt.so" "$ascend/cann-9.0.0/include/hccl/hccl.h"
doctor 'CANN without its library' '^CANN +no +9.0.0 in .*, no libascendcl.so '
doctor 'HCCL without its header' '^HCCL +no +in .*, no hccl/hccl.h '
mkdir -p "$ascend/driver" "$work/root/dev" && echo 'Version=24.1.rc3' >"$ascend/driver/version.info"
: >"$work/root/dev/davinci0" >"$work/root/dev/davinci1" >"$work/root/dev/davinci_manager"
doctor 'the driver' '^NPU driver +yes +24.1.rc3 '
doctor 'two NPUs' '^NPUs +yes +2 of them '
doctor 'no environment of HCCL' '^HCCL +it chooses the network interface itself'
doctor "HCCL's environment" '^HCCL +HCCL_SOCKET_IFNAME=eth1 HCCL_DETERMINISTIC=true *$' HCCL_SOCKET_IFNAME=eth1 HCCL_DETERMINISTIC=true
doctor 'a rank table' '^HCCL .*RANK_TABLE_FILE=table.json .*no rank table is read' RANK_TABLE_FILE=table.json

# ---- missing tools ----------------------------------------------------------------------------------------------

# A PATH with only a few commands and those named. Without apt-get nothing can be installed.
some_commands() {
    rm -rf "$work/path" && mkdir "$work/path"
    for command in bash sh make awk sed grep cat rm mkdir mktemp dirname basename nproc id tr cut sort uname env test \
        printf expr head tail wc date touch cmp cksum as ld "$@"; do
        ln -sf "$(type -P "$command")" "$work/path/" 2>/dev/null
    done
}

# A compiler that finds no header whose name matches HIDE, except with -I$work/prefix/include
printf '%s\n' '#!/bin/sh' "case \" \$* \" in *' - '*'-I$work/prefix/'*) ;;" \
    '*" - "*) t=$(cat); ! printf "%s\n" "$t" | grep -qE "include <($HIDE)" || exit 1; printf "%s\n" "$t" | exec '"$(command -v $cc)"' "$@"; exit ;;' \
    esac "exec $(command -v $cc) \"\$@\"" >"$work/cc"
chmod +x "$work/cc"

# missing NAME REGEX HINT COMMAND... -- fails, says what is missing and what to do, and compiles nothing
missing() {
    case_is "$1"
    env PATH="$work/path" "${@:4}" >"$work/err" 2>&1 && complain 'exit status 0'
    says "$2"
    says "^HINT: .*$3"
    ! grep -qE 'error:|not found|^ +(CC|LINK) ' "$work/err" || complain 'went on without it'
}

# goes_on NAME REGEX COMMAND... -- succeeds, and says what is missing and off
goes_on() {
    case_is "$1"
    env PATH="$work/path" "${@:3}" >"$work/err" 2>&1 || complain "exit status $?"
    says "$2"
    ! grep -q '^HINT' "$work/err" || complain 'gives a hint'
}

b=BUILD=$work/build deps=$work/deps.sh # a copy: another user may not read the tree
cp tests/tools/deps.sh tests/tools/probe.sh "$work"
some_commands pkg-config mpiexec.mpich ps pgrep gnuplot
for lab in lab1_flatparam lab2_forward lab3_backward lab4_optimizer; do
    missing "make -C $lab test without a compiler" 'missing: .*gcc' 'install' make -C $lab "$b" test
done
missing 'make test without a compiler' 'missing: .*gcc' 'install' make "$b" test
missing 'make without a compiler' 'missing: .*gcc' 'make deps' make "$b"
missing 'make CC=nonesuch' "the compiler 'nonesuch' makes no program" 'leave CC' make "$b" CC=nonesuch
some_commands "$cc" pkg-config mpiexec.mpich ps pgrep gnuplot
missing "make CC=$cc with flags that it does not know" "the compiler '$cc' makes no program" 'leave .* the flags out' make "$b" CC="$cc" CFLAGS=-bogus
printf '#!/bin/sh\ncase " $* " in *" -fopenmp "*) exit 1 ;; esac\nexec %s "$@"\n' "$cc" >"$work/path/no-openmp"
chmod +x "$work/path/no-openmp"
missing 'a compiler without OpenMP' "the compiler 'no-openmp' makes no program with OpenMP" 'libomp-dev' make "$b" CC=no-openmp
ln -sf "$(type -P "$cc")" "$work/path/gcc"
missing 'make with flags that gcc does not know' "the compiler 'gcc' makes no program" 'leave .* the flags out' make "$b" CFLAGS=-bogus
rm "$work/path/gcc" && some_commands "$cc" pkg-config mpiexec.mpich ps pgrep gnuplot
missing 'make without cJSON' 'missing: libcjson-dev' 'make deps' env HIDE=cjson make "$b" CC="$work/cc"
missing 'make -C lab2_forward test without cJSON' 'no apt-get; missing: libcjson-dev' 'install what .* PKG_CONFIG_PATH' \
    env HIDE=cjson CC="$work/cc" make -C lab2_forward "$b" test
missing 'a unit test without cmocka' 'missing: libcmocka-dev' 'make deps' env HIDE=cmocka CC="$work/cc" make "$b" "$work/build/tests/unit/test_base"
missing 'the hint names what cannot be left out' 'missing: .*libdnnl-dev libcjson-dev' 'libcjson-dev cannot be left out' \
    env HIDE='cjson|dnnl' CC="$work/cc" $deps build
judge 'nothing was built' "$([ ! -e "$work/build" ] || find "$work/build" -name '*.o' | head -1)"

goes_on 'no apt-get: goes on without MPI' 'off without libmpich-dev: .*fsdp_run' env HIDE=mpi CC="$work/cc" $deps build
goes_on 'no apt-get: goes on without oneDNN' 'off without libdnnl-dev: .*--ops portable' env HIDE=dnnl CC="$work/cc" $deps build
goes_on 'no apt-get: goes on without cmocka' 'off without libcmocka-dev: unit tests' env HIDE=cmocka CC="$work/cc" $deps test
rm -f "$work/path/gnuplot"
goes_on 'no apt-get: goes on without gnuplot' 'no apt-get; missing: gnuplot-nox' env CC="$cc" $deps demo
printf '#!/bin/sh\necho "E: no network"; exit 100\n' >"$work/path/apt-get"
chmod +x "$work/path/apt-get"
goes_on 'an apt-get that fails: goes on without gnuplot' 'apt-get (update|install) failed; missing: gnuplot-nox' env CC="$cc" $deps demo
missing 'an apt-get that fails' 'apt-get (update|install) failed; missing: libcjson-dev' 'apt-get' env HIDE=cjson CC="$work/cc" $deps build
user=$([ "$(id -u)" != 0 ] || echo "$(command -v setpriv) --reuid 65534 --clear-groups")
chmod a+rx "$work"
missing 'a user without sudo' 'not root, and there is no sudo; missing: libcjson-dev' 'as root: apt-get install .*; or install' \
    $user env HIDE=cjson CC="$work/cc" $deps build
goes_on 'a user without sudo goes on without oneDNN' 'off without libdnnl-dev' $user env HIDE=dnnl CC="$work/cc" $deps build
printf '#!/bin/sh\nprintf "sudo: a password is required\\nsudo: see the manual\\n" >&2; exit 1\n' >"$work/path/sudo"
chmod +x "$work/path/sudo"
missing 'a user whose sudo wants a password' 'not root, and sudo says: a password is required; missing' 'sudo apt-get install .*; or install' \
    $user env HIDE=cjson CC="$work/cc" $deps build

# ---- libraries and launchers in other places --------------------------------------------------------------------

# A prefix as conda or a module makes it: the library counts, and programs find it where the linker did.
case_is 'cJSON in a prefix'
mkdir -p "$work/prefix/include/cjson" "$work/prefix/lib/pkgconfig"
cp "$(echo '#include <cjson/cJSON.h>' | $cc -M -x c - | grep -o '[^ ]*/cjson/cJSON.h')" "$work/prefix/include/cjson/" && cp "$($cc -print-file-name=libcjson.so)" "$work/prefix/lib/"
printf 'Name: libcjson\nDescription: x\nVersion: 9\nLibs: -L%s/lib -lcjson\nCflags: -I%s/include\n' "$work/prefix" "$work/prefix" \
    >"$work/prefix/lib/pkgconfig/libcjson.pc"
env HIDE=cjson PKG_CONFIG_PATH="$work/prefix/lib/pkgconfig" make -n V=1 CC="$work/cc" "$b" "$work/build/fsdp_run" >"$work/err" 2>&1 ||
    complain 'it does not build'
says "-isystem $work/prefix/include "
says "-L$work/prefix/lib -Wl,-rpath,$work/prefix/lib "
name='oneDNN whose header only the folder of cJSON has: the build and deps.sh agree'
if ! cp /usr/include/*dnnl*.h "$work/prefix/include" 2>/dev/null; then
    skip "$name" 'no oneDNN in /usr/include'
elif case_is "$name"; then
    env HIDE='cjson|dnnl' PKG_CONFIG_PATH="$work/prefix/lib/pkgconfig" make -n V=1 CC="$work/cc" "$b" "$work/build/fsdp_run" >"$work/err" 2>&1
    says '-DFSDP_HAVE_DNNL=1'
    env HIDE='cjson|dnnl' PKG_CONFIG_PATH="$work/prefix/lib/pkgconfig" CC="$work/cc" $deps --check build >"$work/err" 2>&1
    env HIDE='cjson|dnnl' PKG_CONFIG_PATH="$work/prefix/lib/pkgconfig" CC="$work/cc" tests/tools/doctor.sh >>"$work/err" 2>&1
    ! grep -q libdnnl "$work/err" || complain 'deps.sh does not find it'
    says '^oneDNN +yes'
fi
case_is 'PKG_CONFIG of two words'
env HIDE=cjson PKG_CONFIG_PATH="$work/prefix/lib/pkgconfig" make -n V=1 PKG_CONFIG='env pkg-config' CC="$work/cc" "$b" "$work/build/fsdp_run" \
    >"$work/err" 2>&1 || complain 'it does not build'
says "-isystem $work/prefix/include "
case_is 'no pkg-config'
env PKG_CONFIG=/nowhere make -n V=1 CC="$cc" "$b" "$work/build/fsdp_run" >"$work/err" 2>&1 || complain 'it does not build'
says ' -lcjson +-lxxhash '
case_is 'make tests without cmocka leaves out the unit tests that need it'
env HIDE=cmocka make -n CC="$work/cc" "$b" tests >"$work/err" 2>&1 || complain 'it does not build'
says 'LINK .*/tests/unit/test_comm$'
! grep -q 'LINK .*/tests/unit/test_base$' "$work/err" || complain 'it builds test_base'
case_is 'make tests with a C++ compiler that finds no headers leaves out the stand-ins'
printf '#!/bin/sh\nfor word; do [ "$word" != c++ ] || exit 1; done\n' >"$work/half++" && chmod +x "$work/half++"
make -n CC="$cc" CXX="$work/half++" "$b" tests >"$work/err" 2>&1 || complain 'it does not build'
says 'LINK .*/tests/unit/test_comm$'
! grep -q 'LINK .*_sim.so$' "$work/err" || complain 'it builds a stand-in'
case_is 'make tests with clang++ alone leaves out the stand-in that only g++ makes'
printf '#!/bin/sh\n' >"$work/clang++" && chmod +x "$work/clang++"
env PATH="$work/path" make -n CC="$cc" CXX="$work/clang++" "$b" tests >"$work/err" 2>&1 || complain 'it does not build'
says 'LINK .*/fsdp_npu_sim.so$'
! grep -q 'LINK .*/fsdp_cuda_sim.so$' "$work/err" || complain 'it builds fsdp_cuda_sim.so'

case_is 'make test LAB=1 builds what starts the ranks'
make -n CC="$cc" "$b" test-labs LAB=1 >"$work/err" 2>&1 || complain 'nothing to make'
says 'LINK .*/build/fsdp_run$'

case_is 'doctor with a compiler that is a path'
env CC="$(type -P "$cc")" tests/tools/doctor.sh >"$work/err" 2>&1 || complain "exit status $?"
says "^compiler +yes +$(type -P "$cc") [0-9]"
case_is 'doctor names a mpiexec that forgets statuses'
printf '#!/bin/sh\nprintf "HYDRA build details:\n    Version:  4.2.1\n"\n' >"$work/bin/mpiexec.mpich"
chmod +x "$work/bin/mpiexec.mpich"
env PATH="$work/bin:/usr/bin:/bin" tests/tools/doctor.sh >"$work/err" 2>&1
says '^mpiexec +yes +mpiexec.mpich 4.2.1'
says '^note: mpiexec 4.2.1 may return 0 when a rank has died'
rm "$work/bin/mpiexec.mpich"

# launchers NAME=TEXT... -- a PATH with commands that print TEXT as their version
launchers() {
    some_commands
    for command in "$@"; do
        printf '#!/bin/sh\nprintf "%s"\n' "${command#*=}" >"$work/path/${command%%=*}"
        chmod +x "$work/path/${command%%=*}"
    done
}
# chooses NAME EXPECTED [VARIABLE=VALUE] -- "COMMAND VERSION", and "loses" if the version forgets statuses
chooses() {
    case_is "$1"
    env PATH="$work/path" ${3:+"$3"} sh -c '. tests/tools/probe.sh; mpiexec_find && echo "$mpiexec $mpiexec_version$(! mpiexec_loses || echo " loses")"' \
        >"$work/out" 2>"$work/err"
    [ "$(cat "$work/out")" = "$2" ] || complain "chose '$(cat "$work/out")', expected '$2'"
}
hydra='HYDRA build details:\n    Version:                                 '
launchers "mpiexec=mpiexec (OpenRTE) 4.1.4\n" "mpiexec.mpich=${hydra}4.0.2\n"
chooses 'Open MPI beside MPICH' 'mpiexec.mpich 4.0.2'
chooses 'MPIEXEC of another kind' 'mpiexec ' MPIEXEC=mpiexec
chooses 'MPIEXEC that is not there' '' MPIEXEC=/nowhere/mpiexec
judge 'and tests say so' "$(MPIEXEC=/nowhere/mpiexec sh -c '. tests/tools/env.sh; no_mpi it' | grep -vxF "SKIP it: MPIEXEC='/nowhere/mpiexec' is no command")"
launchers "mpiexec=mpiexec (OpenRTE) 4.1.4\n"
chooses 'Open MPI alone' ''
launchers "mpiexec=${hydra}4.2.1\n"
chooses "MPICH 4.2.1's own name" 'mpiexec 4.2.1 loses'
for version in 4.0.2/ 4.1.2/loses 4.2.0/loses 4.2.1/loses 4.2.2/ 4.3.0/ 5.0.0/; do
    launchers "mpiexec.hydra=${hydra}${version%/*}\n"
    chooses "Hydra ${version%/*}" "mpiexec.hydra ${version%/*}$([ -z "${version#*/}" ] || echo ' loses')"
done

case_is 'multihost: its programs are not built'
ends_with 2 sh -c 'exec "$0" "$1" 2>&1' tests/multihost/run.sh "$work/none"
says 'fsdp_train is not built' "$work/out"
says '^HINT: make tests' "$work/out"
! grep -q SKIP "$work/out" || complain 'says SKIP'
cli_end
