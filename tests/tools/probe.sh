#!/bin/sh
# probe.sh -- what this machine has: one probe for every program and library that the build, the tests and the documents name.
#
#   tests/tools/probe.sh NAME...   prints each NAME that this machine has, for the Makefile
#   tests/tools/probe.sh --flags NAME...  prints the flags of the compiler and linker for these libraries
#   . tests/tools/probe.sh         probe NAME: prints its version, or "found"; false if it is not there
#                                  mpiexec_find: sets mpiexec, the command that starts MPI ranks, and mpiexec_version; false if
#                                  there is none. mpiexec_loses: whether this version may return 0 when a rank has died
#                                  built_by BUILD: prints the C compiler of a build folder
#
# NAME is cc, a C++ compiler (NAME ends as g++ or g++-12 does), a library of the table below, mpiexec, another command, or the path of
# a file, which may be a pattern. A compiler is there if it makes a program, in C with OpenMP; a library, if a program that uses it can
# be compiled and linked, with the flags of its pkg-config file if it has one. CC, CPPFLAGS, CFLAGS, CXXFLAGS, LDFLAGS, LDLIBS and
# PKG_CONFIG of the environment are used.

# name, pkg-config's name, header, an expression that needs both, its version in macros of the header, flags without pkg-config
LIBRARIES='
cjson   libcjson   cjson/cJSON.h  cJSON_Version()                 CJSON_VERSION_MAJOR.CJSON_VERSION_MINOR.CJSON_VERSION_PATCH  -lcjson
xxhash  libxxhash  xxhash.h       XXH_versionNumber()             XXH_VERSION_MAJOR.XXH_VERSION_MINOR.XXH_VERSION_RELEASE      -lxxhash
mpich   mpich      mpi.h          MPICH_NUMVERSION+MPI_Wtime()    MPICH_VERSION                                                -lmpich
dnnl    dnnl       dnnl.h         dnnl_version()                  DNNL_VERSION_MAJOR.DNNL_VERSION_MINOR.DNNL_VERSION_PATCH     -ldnnl
zlib    zlib       zlib.h         zlibVersion()                   ZLIB_VERSION                                                 -lz
seccomp libseccomp seccomp.h      seccomp_version()               SCMP_VER_MAJOR.SCMP_VER_MINOR.SCMP_VER_MICRO                 -lseccomp
cmocka  cmocka     cmocka.h       cmocka_set_message_output(CM_OUTPUT_TAP)  -                                                  -lcmocka
'
# cmocka.h wants these headers before it.
HEADERS='#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>'

# compiler WORD... -- compile the standard input, as C. PKG_CONFIG and CC may be several words
# shellcheck disable=SC2086 # words
compiler() { ${CC:-gcc} ${CPPFLAGS:-} ${CFLAGS:-} -w -x c - -x none "$@" 2>/dev/null; }

# The first words of the file of flags.
built_by() { sed 's/ -Wall .*//' "$1/flags"; }

# The row of the library in $1; empty if it is none.
row_of() { printf '%s' "$LIBRARIES" | awk -v name="$1" '$1 == name'; }

# flags_of NAME... -- sets flags, includes and uses for a program that uses these libraries
# shellcheck disable=SC2086 # words
flags_of() {
    flags='' includes=$HEADERS uses=0
    for library in "$@"; do
        # shellcheck disable=SC2046 # words
        set -- $(row_of "$library")
        flags="$flags $(${PKG_CONFIG:-pkg-config} --cflags --libs "$2" 2>/dev/null || echo "$6")"
        includes="$includes
#include <$3>"
        uses="$uses, $4"
    done
}

unset folders # of all libraries of the build, once they are known
# links NAME... -- whether such a program can be compiled and linked, in these folders
# shellcheck disable=SC2086 # words
links() {
    [ -n "${folders+known}" ] || { flags_of cjson xxhash mpich dnnl zlib && folders=$(printf '%s\n' $flags | grep '^-[IL]'); }
    flags_of "$@"
    printf '%s\nint main(void) { return ((void)(%s), 0); }\n' "$includes" "$uses" | compiler -o /dev/null $flags $folders ${LDFLAGS:-} ${LDLIBS:-}
}

# library_version NAME -- from the macros of its header
library_version() {
    links "$1" || return
    # shellcheck disable=SC2046,SC2086 # words
    version=$(printf '%s\n%s\n' "$includes" "$(set -- $(row_of "$1") && echo "$5")" | compiler -E -P $flags $folders | sed -n '$p' | tr -d ' "')
    case $version in [0-9]*) echo "$version" ;; *) echo found ;; esac
}

# command_version COMMAND [OPTION] -- the first word like a version that it prints
command_version() {
    command -v "$1" >/dev/null 2>&1 || return
    version=$("$1" "${2:---version}" 2>&1 </dev/null | grep -oE '[0-9]+(\.[0-9]+)+' | head -1)
    echo "${version:-found}"
}

# MPICH's launcher is called Hydra. MPIEXEC names the command, which may be another one, such as MPIEXEC='srun --mpi=pmi2'.
mpiexec_find() {
    mpiexec=${MPIEXEC:-} mpiexec_version=''
    [ -z "$mpiexec" ] || { command -v "${mpiexec%% *}" >/dev/null 2>&1 || return; mpiexec_version=$(hydra_version "$mpiexec"); return 0; }
    for mpiexec in mpiexec.mpich mpiexec.hydra mpiexec; do
        mpiexec_version=$(hydra_version $mpiexec) && return
    done
    mpiexec=''
    return 1
}

# hydra_version COMMAND -- its version; false if it is not Hydra
# shellcheck disable=SC2086 # words
hydra_version() { $1 --version 2>/dev/null </dev/null | awk '/^HYDRA/ { hydra = 1 } $1 == "Version:" { v = $2 } END { if (!hydra) exit 1; print v }'; }

# Hydra 4.1 to 4.2.1 forgets statuses if ranks end close together.
mpiexec_loses() {
    case $mpiexec_version in 4.1* | 4.2 | 4.2.0* | 4.2.1) return 0 ;; esac
    return 1
}

# shellcheck disable=SC2046,SC2086 # words, and a pattern
probe() {
    case $1 in
    cc) printf '#include <omp.h>\nint main(void) { return omp_get_max_threads() < 0; }\n' |
        compiler -fopenmp -o /dev/null ${LDFLAGS:-} && command_version ${CC:-gcc} --version ;;
    *++ | *++-[0-9]*) printf '#include <cstddef>\nint main() { return 0; }\n' |
        $1 ${CPPFLAGS:-} ${CXXFLAGS:-} -w -x c++ - -o /dev/null ${LDFLAGS:-} 2>/dev/null && command_version "$1" ;;
    mpiexec) mpiexec_find && echo "${mpiexec_version:-found}" ;;
    slurmctld) command_version /usr/sbin/slurmctld -V ;;
    /*) set -- $1 && [ -e "$1" ] && echo found ;;
    *)
        if [ -n "$(row_of "$1")" ]; then library_version "$1"; else command_version "$1"; fi
        ;;
    esac
}

case $0 in
*probe.sh)
    [ "${1:-}" != --flags ] || { shift && flags_of "$@" && echo $flags && exit; }
    # all libraries at once, because the Makefile waits for it; one by one if that fails
    libraries='' others=''
    for name in "$@"; do
        if [ -n "$(row_of "$name")" ]; then libraries="$libraries $name"; else others="$others $name"; fi
    done
    # shellcheck disable=SC2086 # words
    if [ -n "$libraries" ] && links $libraries; then echo $libraries; else others="$others $libraries"; fi
    for name in $others; do
        probe "$name" >/dev/null && echo "$name" &
    done
    wait
    ;;
esac
