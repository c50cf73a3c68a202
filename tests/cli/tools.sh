#!/bin/bash
# tools.sh -- what make doctor finds, and what a target does if a tool it needs is not installed.
#
# Folders made here stand for the root of the machine (PROBE_ROOT) and PATHs are cut, so nothing is installed or removed.
. "$(dirname "$0")/lib.sh"
cli_start "$@"
unset ${!ASCEND_@} ${!HCCL_@} RANK_TABLE_FILE CUDA_HOME CUDA_PATH NCCL_HOME MAKEFLAGS MFLAGS MPI CC V

# ---- make doctor ------------------------------------------------------------------------------------------------

# doctor NAME REGEX VARIABLE=VALUE... -- a line of the output matches
doctor() {
    case_is "doctor: $1"
    env PATH=/usr/bin:/bin PROBE_ROOT="$work/root" "${@:3}" tests/tools/doctor.sh >"$work/err" 2>&1 || complain "exit status $?"
    says "$2"
}

mkdir "$work/root"
doctor 'no CUDA' '^CUDA +no +- .* there is no nvcc' NVCC=/nowhere
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
doctor 'no CANN' '^CANN +no +- '
doctor 'no NPU' '^NPUs +no +- '
cann "$ascend/ascend-toolkit/latest" 8.1.RC1
doctor 'CANN in its usual place' "^CANN +yes +8.1.RC1 in $ascend/ascend-toolkit/latest "
doctor 'a shell without set_env.sh' '^CANN .* not built yet: source set_env.sh; make npu '
cann "$ascend/cann-8.5.0" 8.5.0
cann "$ascend/cann-9.0.0" 9.0.0
mv "$ascend/ascend-toolkit" "$work/elsewhere"
doctor 'the newer of two CANNs' "^CANN +yes +9.0.0 in $ascend/cann-9.0.0 "
doctor 'ASCEND_TOOLKIT_HOME' "^CANN +yes +8.1.RC1 in $work/elsewhere/latest .* not built yet: make npu " \
    ASCEND_TOOLKIT_HOME="$work/elsewhere/latest"
doctor 'aclnn' "^aclnn +yes +in $ascend/cann-9.0.0 "
doctor 'HCCL' "^HCCL +yes +in $ascend/cann-9.0.0 "
mv "$ascend/cann-9.0.0/lib64/libascendcl.so" "$ascend/cann-9.0.0/lib64/libacl_rt.so"
doctor "a newer CANN's library" "^CANN +yes +9.0.0 in $ascend/cann-9.0.0 "
rm "$ascend/cann-9.0.0/lib64/libacl_rt.so" "$ascend/cann-9.0.0/include/hccl/hccl.h"
doctor 'CANN without its library' '^CANN +no +9.0.0 in .*, no libascendcl.so '
doctor 'HCCL without its header' '^HCCL +no +in .*, no hccl/hccl.h '
mkdir -p "$ascend/driver" "$work/root/dev" && echo 'Version=24.1.rc3' >"$ascend/driver/version.info"
: >"$work/root/dev/davinci0" >"$work/root/dev/davinci1" >"$work/root/dev/davinci_manager"
doctor 'the driver' '^NPU driver +yes +24.1.rc3 '
doctor 'two NPUs' '^NPUs +yes +2 of them '
doctor "HCCL's environment" '^HCCL +HCCL_SOCKET_IFNAME=eth1 HCCL_DETERMINISTIC=true *$' HCCL_SOCKET_IFNAME=eth1 HCCL_DETERMINISTIC=true
doctor 'no environment of HCCL' '^HCCL +it chooses the network interface itself'
doctor 'a rank table' '^HCCL .*RANK_TABLE_FILE=table.json .*no rank table is read' RANK_TABLE_FILE=table.json

# ---- missing tools ----------------------------------------------------------------------------------------------

# A PATH with only a few commands and those named. Without sudo and apt-get nothing can be installed.
some_commands() {
    rm -rf "$work/path" && mkdir "$work/path"
    for command in bash sh make awk sed grep cat rm mkdir mktemp dirname basename nproc id tr cut sort uname env test \
        printf expr head tail wc date touch cmp cksum "$@"; do
        ln -sf "$(command -v "$command")" "$work/path/" 2>/dev/null
    done
}

# missing NAME REGEX HINT COMMAND... -- fails, says what is missing and what to do, and compiles nothing
missing() {
    case_is "$1"
    env PATH="$work/path" "${@:4}" >"$work/err" 2>&1 && complain 'exit status 0'
    says "$2"
    says "^HINT: .*$3"
    ! grep -qE 'error:|not found|^ +(CC|LINK) ' "$work/err" || complain 'went on without it'
}

b=BUILD=$work/build
some_commands pkg-config mpiexec ps pgrep gnuplot
for lab in lab1_flatparam lab2_forward lab3_backward lab4_optimizer; do
    missing "make -C $lab test without a compiler" 'missing: .*gcc' 'install' make -C $lab "$b" test
done
missing 'make test without a compiler' 'missing: .*gcc' 'install' make "$b" test
missing 'make without a compiler' 'missing: .*gcc' 'make deps' make "$b"
some_commands gcc pkg-config mpiexec ps pgrep gnuplot
none="HAVE_CMOCKA= PROBE_ROOT=$work/root"
{
    missing 'make -C lab2_forward test without the libraries' 'missing: .*libcjson-dev' 'install' env $none make -C lab2_forward "$b" test
    missing 'make tests without cmocka' 'missing: .*libcmocka-dev' 'make deps' env $none make "$b" HAVE_CMOCKA= "$work/build/tests/unit/test_base"
    missing 'make mutants without cmocka' 'missing: .*libcmocka-dev' 'make deps' env $none make "$b" mutants
    missing 'make test-handout without cmocka' 'missing: .*libcmocka-dev' 'make deps' env $none make "$b" test-handout
}
missing 'make with a pkg-config that finds nothing' 'does not find libcjson' 'PKG_CONFIG_LIBDIR' env PKG_CONFIG_LIBDIR="$work/none" make "$b"
missing 'make CC=nonesuch' "there is no compiler 'nonesuch'" 'make CC=clang' make "$b" CC=nonesuch
judge 'nothing was built' "$([ ! -e "$work/build" ] || find "$work/build" -name '*.o' | head -1)"

case_is 'multihost: its programs are not built'
ends_with 2 sh -c 'exec "$0" "$1" 2>&1' tests/multihost/run.sh "$work/none"
says 'fsdp_train is not built' "$work/out"
says '^HINT: make tests' "$work/out"
! grep -q SKIP "$work/out" || complain 'says SKIP'
cli_end
