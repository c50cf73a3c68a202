#!/bin/sh
# flags_test.sh -- the user's CFLAGS, CPPFLAGS, CXXFLAGS, LDFLAGS, LDLIBS and tools are used, and drop nothing that the program and
# its results depend on. Most cases read what make would run; four small objects and two small programs are built.
set -u
cd "$(dirname "$0")/../.." || exit 2
. tests/tools/test_lib.sh
. tests/tools/probe.sh
begin flags
unset CFLAGS CPPFLAGS CXXFLAGS LDFLAGS LDLIBS CC CXX AR PKG_CONFIG MARCH V CI SAN DEBUG MPI
b=$dir/b cc=$(built_by "${BUILD:-build}") || exit 2

# plan VARIABLE=VALUE... -- writes to $dir/plan what make would run to build everything
plan() { make -n V=1 BUILD="$b" CC="$cc" "$@" tests >"$dir/plan" 2>&1; }

# none WHAT AWK -- the expression holds for no command of a compiler in the plan. at(WORD): where the word last stands, 0: nowhere
none() {
    awk 'function at(word, i, last) { for (i = 1; i <= NF; i++) if ($i == word) last = i; return last + 0 }
        { while (/\\$/ && (getline more) > 0) sub(/\\$/, more) }
        !/ -o / { next }
        { n++; object = / -c -o /; shared = / -shared /; cxx = object && /-std=c\+\+17/; preload = /\/preload\//; one = /(nccl|lt)_one/; min = /fsdp_min/ }
        '"$2"' { print "unfit: " $0 }
        END { if (n < 100) print n + 0 " commands: too few" }' "$dir/plan" | cut -c1-700 >"$log"
    [ ! -s "$log" ]
    verdict "$1" $?
}

math='-ffast-math -ffp-contract=fast'
case $(uname -m) in x86_64) old=-march=x86-64 ;; *) old=-march=armv8-a ;; esac
flags="-g -O1 -std=gnu99 $old -fvisibility=hidden $math"
set -- "CFLAGS=-DU_C $flags" "CXXFLAGS=-DU_CXX $flags" CPPFLAGS=-DU_PRE "LDFLAGS=-Wl,-z,relro $math" LDLIBS=-lrt
for from in environment 'command line'; do
    case $from in
    environment) (export "$@" && plan) ;;
    *) plan "$@" ;;
    esac
    none "from the $from: every command has the user's flags" '(object && !at(cxx ? "-DU_CXX" : "-DU_C")) || (object && !at("-DU_PRE")) ||
        (!object && !at("-Wl,-z,relro")) || (!object && !preload && !at("-lrt"))'
    none "from the $from: they change -O and -march" "object && (at(\"-O1\") < at(\"-O3\") || at(\"$old\") < at(\"-march=native\"))"
    none "from the $from: they do not change what results depend on" '!preload &&
        (at("-fno-fast-math") < at("-ffast-math") || (object && (at("-ffp-contract=off") < at("-ffp-contract=fast") || at("-ffp-contract=off") < at("-fno-fast-math"))))'
    none "from the $from: they drop nothing" '(object && at(cxx ? "-std=c++17" : "-std=c11") < at("-std=gnu99")) ||
        (object && (at("-fvisibility=default") < at("-fvisibility=hidden") || !at("-D_GNU_SOURCE") || !at("-I.") || !at("-MMD") || !at("-pthread"))) ||
        (object && !cxx && !at("-fopenmp")) || (!object && !shared && !min && (!at("-rdynamic") || !at("-fopenmp") || !at("-lm")))'
done

# object NAME FLAGS... -- builds an object that has much arithmetic, into $dir/NAME.o
object=common/ops/cpu_optim.o
object() {
    name=$1
    shift
    nice make --no-print-directory BUILD="$b" CC="$cc" "$@" "$b/$object" >"$log" 2>&1 && mv "$b/$object" "$dir/$name.o"
}
for compiler in clang gcc; do
    command -v $compiler >/dev/null || { echo "SKIP flags: $compiler is not installed" && continue; }
    object plain CC=$compiler CFLAGS=-g0 &&
        object fast CC=$compiler CFLAGS="-g0 $math -funsafe-math-optimizations -fassociative-math -freciprocal-math -ffinite-math-only -fno-signed-zeros" &&
        cmp "$dir/plain.o" "$dir/fast.o" >>"$log" 2>&1
    verdict "$compiler: -ffast-math and its parts do not change the instructions" $?
done
object small CFLAGS='-g0 -O1' && ! cmp -s "$dir/plain.o" "$dir/small.o"
verdict "-O1 changes them" $?
object debian CI=true CPPFLAGS='-Wdate-time -D_FORTIFY_SOURCE=2' \
    CFLAGS='-g -O2 -ffile-prefix-map=/src=. -fstack-protector-strong -Wformat -Werror=format-security -DTEXT="\"a\""'
verdict "it compiles without warnings as Debian compiles its packages" $?
grep -q -- '-D_FORTIFY_SOURCE=2.* -std=c11 .*-MMD -MP.* / .*-rdynamic.* -lm$' "$b/flags"
verdict "the file of flags holds the whole command" $?

# A program that says whether it flushes denormals, linked as fsdp_compare is.
printf '%s\n' '#include <stdio.h>' 'int main(void) { volatile float x = 0x1p-126f; return puts(x / 2 > 0 ? "kept" : "flushed") < 0; }' >"$dir/tiny.c"
$cc -c -o "$dir/tiny.o" "$dir/tiny.c" || exit 2
for harm in -ffast-math -funsafe-math-optimizations; do
    plan LDFLAGS="$harm"
    link=$(sed -n "s| -o $b/fsdp_compare .*||p" "$dir/plan")
    $link -o "$dir/tiny" "$dir/tiny.o" >"$log" 2>&1 && "$dir/tiny" >>"$log" && said '^kept$'
    verdict "linked with $harm, a program keeps denormals" $?
done

# What has no opposite is refused, before anything is compiled.
for case in fsdp_compare:CFLAGS=-Ofast fsdp_compare:MARCH=-mfpmath=387 fsdp_run:OPT=-Ofast fsdp_run:CFLAGS=-mfpmath=387 fsdp_npu_sim.so:CXXFLAGS=-fsingle-precision-constant fsdp_cuda_sim.so:LDFLAGS=-mdaz-ftz; do
    ! make BUILD="$dir/refused" CC="$cc" "${case#*:}" "$dir/refused/${case%%:*}" >"$log" 2>&1 && said " ${case#*=} would change" '^HINT: leave it out' &&
        [ -z "$(find "$dir/refused" -name '*.o' 2>/dev/null)" ]
    verdict "${case#*:} is refused" $?
done

# Tools.
printf '#!/bin/sh\necho "$(pkg-config "$@") -DFROM_PKG -L/from_pkg"\n' >"$dir/pkg"
chmod +x "$dir/pkg"
plan AR=other-ar CXX="env g++" PKG_CONFIG="$dir/pkg"
cp "$dir/plan" "$log"
said '^other-ar rcs ' '^env g\+\+ .*\.cpp$' '^env g\+\+ .*\.cc$' '^env g\+\+ .*-shared ' "^$cc .*-DFROM_PKG .*\.c\$" "^$cc .*-L/from_pkg .*-rpath,/from_pkg"
verdict 'AR, CXX and PKG_CONFIG are used' $?

# A compiler that accepts $1 of -march=native and -mcpu=native.
for accepted in -march=native -mcpu=native none; do
    printf '#!/bin/sh\nfor word; do case $word in %s) ;; -march=native | -mcpu=native) exit 1 ;; esac; done\nexec %s -E -x c /dev/null\n' "$accepted" "$cc" >"$dir/cc"
    chmod +x "$dir/cc"
    plan CC="$dir/cc"
    none "a compiler that accepts $accepted gets it" "object && !cxx && $(
        [ $accepted = none ] && echo '/-(march|mcpu)=/' || echo "(!at(\"$accepted\") || (\"$accepted\" == \"-mcpu=native\" && at(\"-march=native\")))")"
done
plan MARCH=
none 'MARCH= compiles for every processor of the kind' '/-(march|mcpu)=/'
exit $bad
