#!/bin/sh
# submission_test.sh -- test the grading of submissions (submission.sh), honest ones and attacks; prints the score of each.
#
#   tests/grade/submission_test.sh quick|honest|refused|strings|cheats|confined|forged|overwritten|floods|around|full BUILD
#
# quick: submission.txt lists all files with solutions, and its names suffice for them; takes a few seconds. The other parts
# hand in trees and take a few minutes each: honest trees, trees with files that must be refused by name, and trees that cheat
# at run time. full: all parts. Works in a temporary folder.
set -u
cd "$(dirname -- "$0")/../.." || exit 2
. tests/tools/test_lib.sh
. tests/tools/probe.sh
begin submission
part=${1:-quick} build=${2:-build}
cc=$(built_by "$build") || exit 2

grep -l 'SOLUTION BEGIN' lab[1-6]_*/*.c lab[1-6]_*/*.cpp | sort >"$dir/marked"
awk '$1 == "source" { print $2 }' tests/grade/submission.txt | sort | diff "$dir/marked" - >"$dir/log"
verdict 'the files of submission.txt are those that have solutions' $?
tests/grade/submission.sh --check "$build" || bad=1
for names in _exit exit quick_exit write fputs dlsym mprotect pthread_create syscall stdout stderr; do
    grep -qE "^(source|names).* $names( |\$)" tests/grade/submission.txt && echo "$names" && bad=1
done >"$dir/log"
[ ! -s "$dir/log" ]
verdict 'no name of submission.txt ends a process or writes to a file' $?

"$build/tests/grade/judge" --list | paste -sd' ' | sed 's/ /, /g' >"$dir/log"
grep -qxF "Judged: $(cat "$dir/log")." tests/grade/INSTRUCTORS.md
verdict "INSTRUCTORS.md names the tasks that are judged" $?

# ---- what compilers and libcs make of names, and add ----------------------------------------------
# accepts OBJECT SOURCE -- check this object as the one of SOURCE; complaints go to the log
accepts() {
    case $2 in lab6*) o=npu-sim/${2%.*}.o ;; *) o=${2%.*}.o ;; esac
    mkdir -p "$dir/like/${o%/*}" && cp "$1" "$dir/like/$o" && tests/grade/submission.sh --check "$dir/like" "$2" >"$dir/log" 2>&1
}
# uses NAME... -- used.o uses these names, whether or not the libc has them
uses() {
    for name; do
        echo "extern char n$((n += 1))[] __asm__(\"$name\"); static __attribute__((used)) const char *p$n = n$n;"
    done | $cc -x c -c -o "$dir/used.o" -
}
hccl=lab6_npu/hccl.c

uses __isoc99_sscanf __isoc23_strtol __isoc7_strtol __memcpy_chk __snprintf_chk __fgets_chk __gethostname_chk __vprintf_chk fopen64 bcmp \
    sincosf _ZGVdN8v_expf __stack_chk_fail_local __stack_chk_guard __tls_get_addr __divti3 __truncsfhf2
accepts "$dir/used.o" $hccl
verdict 'aliases of allowed names are allowed' $?
for alias in fprintf:__fprintf_chk vfprintf:__vfprintf_chk fscanf:__isoc99_fscanf strtoull:__isoc23_strtoull longjmp:__longjmp_chk open:__open_2 \
    fdelt:__fdelt_chk fread:__fread_chk system:_ZGVbN2v_system write:__isoc23___write_chk; do
    uses "${alias#*:}"
    ! accepts "$dir/used.o" $hccl && said "^FAIL submission.txt: lab6_npu/hccl.c uses ${alias%:*} \(${alias#*:} in the object\), .*; do without ${alias%:*};"
    verdict "an alias of a forbidden name is forbidden: ${alias#*:}" $?
done
uses __isoc23_strtol __fgets_chk
! accepts "$dir/used.o" lab2_forward/cast.c && said 'cast.c uses strtol \(' 'cast.c uses fgets \('
verdict 'aliases of names that only another file may use are forbidden' $?
uses GOMP_parallel __kmpc_fork_call
! accepts "$dir/used.o" $hccl && [ "$(grep -c 'do without #pragma omp;' "$dir/log")" -eq 2 ]
verdict 'what compilers make of #pragma omp is forbidden by its name in the source' $?
uses __exit _memcpy_chk memcpy_chk __memcpychk isoc23_strtol __isoc_strtol xx__isoc23_strtol __isoc23_ __chk __strtol __stack_chk
! accepts "$dir/used.o" $hccl && [ "$(grep -c ' uses ' "$dir/log")" -eq 11 ]
verdict 'names that only resemble aliases are forbidden' $?

echo 'int helper(void); int helper(void) { return 1; }' | $cc -x c -c -o "$dir/used.o" - # compared with itself, as in a learner's tree
! accepts "$dir/used.o" lab1_flatparam/wrap.c && said 'wrap.c defines helper, '
verdict 'a function that no header declares is refused' $?

cat >"$dir/may.c" <<'END'
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static char may[8];
static __attribute__((used)) int may_use(const char *text, size_t bytes, int n)
{
    char own[8];
    memcpy(may, text, bytes);
    memset(own, n, bytes);
    strncat(may, own, bytes);
    snprintf(may + n, 8, "%s%d", text, n);
    printf("%d %s\n", n, own);
    printf("\n");
    printf("%c", n);
    return sscanf(text, "%d", &n) + (int)strtol(text, NULL, 10) + n + (memcmp(own, text, bytes) == 0);
}
END
sed 's/printf("/fprintf(stderr, "/; s/memset(own/read(0, own/; s/, n, bytes/, bytes/; s/.string.h>/&\n#include <unistd.h>/' "$dir/may.c" >"$dir/not.c"
for compiler in gcc clang; do
    command -v $compiler >/dev/null || { echo "SKIP submission: _FORTIFY_SOURCE with $compiler, which is not installed" && continue; }
    for flags in '-O0 0' '-O2 0' '-O1 1' '-O2 2' '-O3 3'; do
        level=${flags#* } as="$compiler ${flags% *} -D_FORTIFY_SOURCE=${flags#* }"
        for c in may not; do
            $compiler -w -D_GNU_SOURCE "${flags% *}" -fPIC -fstack-protector-strong -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=$level -c -o "$dir/$c.o" "$dir/$c.c" 2>"$dir/log" || verdict "$c.c compiles" 1
        done
        accepts "$dir/may.o" $hccl
        verdict "$as: allowed calls are allowed" $?
        ! accepts "$dir/not.o" $hccl && said 'hccl.c uses v?fprintf[ ,]' 'hccl.c uses stderr,' 'hccl.c uses read[ ,]'
        verdict "$as: forbidden calls are forbidden" $?
    done
done

# text LINES -- what submission_text.awk says of them
text() { printf '%b\n' "$1" | awk -f tests/grade/submission_text.awk >"$dir/log"; }
for honest in 'static void section(const char *s) {}\nvoid f(void) { section("a/b!"); }' 'int n = alias ("a b");' 'x->my_section("!");' \
    '__attribute__((deprecated("a/b!"))) int f(void);' '__attribute__((section("a.b"))) int n;'; do
    text "$honest" && [ ! -s "$dir/log" ]
    result=$?
    verdict "allowed in a text: $(printf %s "$honest" | tr -d "\\\\")" $result
done
for string in '__attribute__((section("a b"))) int n;' '__attribute__((unused, __section__ ("a,b"))) int n;' '[[gnu::\nalias("x\\n")]] int n;' \
    '[[using gnu: section("a\\"b")]] int n;' 'int n __asm__ ("a" "/b");' 'int n __attribute__((section (("a") "!")));' '__attribute__((symver("a@B\\n"))) int f(void);'; do
    text "$string" && said 'where a name is expected'
    result=$?
    verdict "not allowed in a text: $(printf %s "$string" | tr -d "\\\\")" $result
done

cat >"$dir/may.cpp" <<'END'
#include <string.h>
extern "C" int fsdp_error(int status, ...);
namespace { struct cleaner { char *text; ~cleaner() { memset(text, 0, 8); } }; }
static __attribute__((used)) int clean(char *text) { cleaner c{text}; return fsdp_error(1) + 1; }
END
for cxx in g++ clang++; do
    command -v $cxx >/dev/null || { echo "SKIP submission: a destructor with $cxx, which is not installed" && continue; }
    $cxx -fPIC -c -o "$dir/used.o" "$dir/may.cpp" && accepts "$dir/used.o" lab6_npu/aclnn_call.cpp
    verdict "$cxx: a destructor of a local variable is allowed" $?
done

# sections ROW ROW -- check an object whose table of sections has the second row; this tree's own has the first row
sections() {
    nm -P "$dir/may.o" | tee "$dir/nm" | awk '{ print $1 }' >"$dir/all"
    readelf -SsW "$dir/may.o" | awk -v ours="$1" -v row="$2" -v dir="$dir" '
        { print >(dir "/elf.ours"); print >(dir "/elf") }
        /^ *\[ *1\]/ { print "  [98] " ours >(dir "/elf.ours"); print "  [98] " row >(dir "/elf") }'
    awk -f tests/grade/submission_object.awk -v ref="$dir/elf.ours" "$dir/all" "$dir/nm" "$dir/nm" "$dir/elf" >"$dir/log" && [ ! -s "$dir/log" ]
}
text='.text.x           PROGBITS        0000000000000000 0003b8 000090 00  AX  0   0  8'
new='.sframe           GNU_SFRAME      0000000000000000 0003b8 000090 00   A  0   0  8'
sections "$new" "$(echo "$new" | sed 's/000090/000270/')"
verdict "a section that this compiler's objects have is allowed" $?
! sections "$text" "$new" && said '^has a section .sframe\|'
verdict 'a section that they do not have is refused' $?
! sections "$new" "$(echo "$new" | sed 's/  A / WA /')" && said '^has a section .sframe\|'
verdict 'so is one with other flags' $?
array='.init_array       INIT_ARRAY      0000000000000000 0003b8 000008 08  WA  0   0  8'
! sections "$array" "$(echo "$array" | sed 's/000008/000010/')" && said '^has a function that runs before or after main'
verdict 'and one more function that runs before main' $?

# ---- which kind of confinement, and what the judge's command refuses -----------------------------------
# refuses STATUS PATTERN COMMAND... -- it ends with this status, a message and a hint
refuses() {
    want=$1 pattern=$2
    shift 2
    "$@" >"$dir/log" 2>&1
    [ $? -eq "$want" ] && said "$pattern" '^HINT: '
}
refuses 125 'CONFINE=bogus does not work here' env CONFINE=bogus UNCONFINED=1 tests/grade/confine.sh --kind
verdict 'a kind of confinement that does not exist is refused' $?
refuses 2 'has blanks' tests/grade/submission.sh . "$dir/o ut" "$build"
verdict 'OUT with a blank is refused' $?
refuses 125 'CONFINE=none does not work here' env CONFINE=none UNCONFINED= tests/grade/confine.sh --kind
verdict 'CONFINE=none without UNCONFINED=1 is refused' $?
[ "$(CONFINE=none UNCONFINED=1 tests/grade/confine.sh --kind)" = none ]
verdict 'with UNCONFINED=1 it is taken' $?
for path in /usr/share/x /usr/../opt/hidden /sys/devices/system; do
    [ "$(tests/grade/confine.sh --shows "$dir" /home "$path" /usr)" = "$path" ]
    verdict "a confined command can read $path" $?
done
[ -z "$(tests/grade/confine.sh --shows "$dir" /home /usrs "$dir/usr")" ]
verdict 'but not the folders of this test' $?
while IFS='|' read -r args pattern; do
    eval "refuses 2 '$pattern' tests/grade/judge.sh $args '$build'"
    verdict "judge.sh $args: refused" $?
done <<'END'
--task 3.5|task 3.5 is not judged
--task "1.1 x"|task x is not judged
--lab 6|no task of LAB="6" is judged
--ranks 1,9|RANKS="9": expected 1 to 8
--ranks two|RANKS="two": expected 1 to 8
--seed abc|SEED="abc": expected a number
--seed 0x5g|SEED="0x5g": expected a number
END
[ "$part" != quick ] || exit $bad

# wanted PART -- whether this part of the script was asked for
wanted() { [ "$part" = full ] || [ "$part" = "$1" ]; }

# hand_in TREE ARGS... -- grade it; returns the exit status of submission.sh
hand_in() {
    tree=$1
    shift
    rm -rf "$dir/out"
    EXTRA_TESTS=$dir/hidden GRADE_WITH=EXTRA_TESTS=$dir/hidden limit 900 tests/grade/submission.sh "$dir/$tree" "$dir/out" "$build" "$@" >"$dir/log" 2>&1 </dev/null
}
# score -- the last score in the log. It keeps the exit status: in bash, $? after it is its own.
score() {
    status=$?
    grep -oE '^(Lab [0-9]|All labs): [0-9]+/[0-9]+' "$dir/log" | tail -1
    return $status
}

# attacks -- standard input has rows "@ FILE|PATTERN", each followed by lines of code. Append the code to FILE in the tree cheat/.
# FILE must be refused with a message that matches PATTERN
attacks() {
    awk -v dir="$dir" '
        !/^@ / { print >>file; next }
        { row = substr($0, 3); print row >>(dir "/expected"); file = dir "/cheat/" substr(row, 1, index(row, "|") - 1) }'
}
# attack FILE PATTERN -- the same for one file; standard input is the code
attack() {
    cat >>"$dir/cheat/$1"
    echo "$1|$2" >>"$dir/expected"
}
# refused -- check that every attack was refused with a hint
refused() {
    while IFS='|' read -r file words; do
        grep -A1 -E "^REFUSED $file: $words" "$dir/log" | grep -q '^        HINT: '
        result=$?
        verdict "${CONFINE:+$CONFINE: }refused: $file $(echo "$words" | tr -d '\\\\')" $result
    done <"$dir/expected"
}
# by_kind FUNCTION [KIND...] -- call it with each of these kinds of confinement (all) that this machine has; KINDS, from the environment,
# are all that are asked for
by_kind() {
    function=$1
    shift
    [ $# -gt 0 ] || set -- bwrap uid landlock
    chmod 755 "$dir" # another user can reach its own files below
    for CONFINE; do
        case " ${KINDS:-$*} " in *" $CONFINE "*) ;; *) continue ;; esac
        export CONFINE
        CONFINE_TOOL=$build/tests/grade/confine tests/grade/confine.sh --kind >"$dir/log" 2>&1 || { echo "SKIP submission: $function: this machine has no $CONFINE" && continue; }
        $function
    done
    unset CONFINE
}
# by_two FUNCTION -- call it with the best kind and with the one that has no namespaces
by_two() { by_kind "$1" $(printf '%s\n' "$best" landlock | sort -u); }
# fresh TREE -- make cheat/ a new copy of it
fresh() {
    rm -rf "$dir/cheat" "$dir/expected"
    cp -R "$dir/$1" "$dir/cheat"
}

# Hidden tests with a secret in their source. One test checks that the process does not know where they are.
mkdir "$dir/hidden" && cp tests/grade/hidden_example/*.c "$dir/hidden/" || exit 2
cat tests/grade/hidden_example/tasks.txt - >"$dir/hidden/tasks.txt" <<'END'
1.92 1 2,3,4 60 hidden3 1.1 where the hidden tests are is not told
END
echo "/* secret-$$ */" >>"$dir/hidden/hidden1.c"
cat >"$dir/hidden/hidden3.c" <<'END'
#include <string.h>
#include "tests/grade/grade_lib.h"
extern char **environ;
static fsdp_status untold(grade *g)
{
    (void)g;
    for (char **e = environ; *e; e++)
        TRY(EXPECT(strstr(*e, "/hidden") == NULL, "", "%s", *e));
    return FSDP_OK;
}
int main(int argc, char **argv)
{
    return grade_main(argc, argv, &(grade_task){"1.92", untold}, 1);
}
END
limit 300 make -s BUILD="$build" EXTRA_TESTS="$dir/hidden" graders "$build/tests/grade/confine" >"$dir/log" 2>&1 || { verdict 'the hidden tests build' 1; exit 1; }

best=$(CONFINE_TOOL=$build/tests/grade/confine tests/grade/confine.sh --kind 2>"$dir/log")
tests/tools/handout.sh --lab6 "$dir/stubs" >"$dir/log" || exit 2
mkdir "$dir/whole" && cp -R lab[1-6]_* tests/grade/handout/lab* "$dir/whole/" || exit 2

honest() {
    hand_in whole --extra "$dir/hidden" --ranks "2 3 4" && said '^All labs: 107/107$' '^  3/3  2.91' '^submission: 19 files taken, 0 refused, 0 '
    verdict "the reference solution, with hidden tests of 7 points: $(score)" $?
    hidden_stay_hidden
    fresh stubs # with its own hidden tests, which must not count
    mkdir -p "$dir/cheat/build/extra" && touch "$dir/cheat/build/extra/hidden1.o" && cp tests/grade/tasks.txt "$dir/cheat/build/extra/"
    echo 'int main(void) { return 0; }' | tee "$dir/cheat/tests/grade/hidden1.c" >"$dir/cheat/build/extra/hidden1.c"
    hand_in cheat --extra "$dir/hidden" --ranks "2 3 4" && said '^All labs: 0/107$' '^Lab 1: 0/20$' '^(TODO|BLOCKED) +1.91 W=3' '^submission: 19 files taken, 0 refused, 0 '
    verdict "the handout as it is, with hidden tests of its own: $(score)" $?
    hidden_stay_hidden
    refuses 2 '/usr/share is where each learner' tests/grade/submission.sh "$dir/whole" "$dir/more" "$build" --extra /usr/share
    verdict 'hidden tests where programs can read them: no grade, and a hint' $?
    ! hand_in nothing && said '^HINT: TREE is the folder' && [ ! -e "$dir/out" ]
    verdict 'no tree: a hint, and a status that is not 0' $?
    mkdir "$dir/full" && touch "$dir/full/mine"
    ! tests/grade/submission.sh "$dir/whole" "$dir/full" "$build" >"$dir/log" 2>&1 && said '^HINT: OUT=' && [ "$(ls "$dir/full")" = mine ]
    verdict 'OUT is not empty: a hint, and nothing is removed' $?
    fresh whole
    printf 'int \377 = ;\n' | attack lab1_flatparam/wrap.c 'does not compile: lab1_flatparam/wrap.c:[0-9:]* error: '
    see_objects >>"$dir/cheat/lab1_flatparam/dim0.c"
    hand_in cheat --lab 1 --ranks "2 3 4" && said '^Lab 1: 9/16$' '^  0/3  1.4' '^  4/4  1.3' '^  0/4  1.5'
    verdict "one file does not compile and costs its tasks, and what needs them: $(score)" $?
    refused
    said '^TAKEN   lab1_flatparam/dim0.c'
    verdict 'the first compiler sees objects, but none of a solution' $?
    by_kind honest_kind
}
# see_objects -- a text that does not compile beside an object of a file that learners edit, or if it sees no object at all
see_objects() {
    awk '$1 == "source" { sub(/[.][a-z]+$/, ".o", $2); print ($2 ~ /^lab6/ ? "npu-sim/" : "") $2 }' tests/grade/submission.txt |
        sed 's|.*|#if __has_include("build/&")\n#error & is here\n#endif|'
    printf '#if !__has_include("build/common/base/status.o")\n#error no object is here\n#endif\n'
}
honest_kind() {
    hand_in whole --ranks "2 3 4" && said '^All labs: 100/100$' "^confined by: $CONFINE"
    verdict "$CONFINE: the reference solution: $(score)" $?
    hand_in stubs --lab 1 --ranks "2 3 4" && said '^Lab 1: 0/16$'
    verdict "$CONFINE: lab 1 of the handout: $(score)" $?
    mkdir -p "$dir/only" && CONFINE_TOOL=$build/tests/grade/confine tests/grade/confine.sh --write "$dir/only" --in "$dir/whole" -- \
        sh -c 'ls /etc/ld.so.conf.d/ /sys/devices/system/cpu && cc --version' >"$dir/log" 2>&1
    verdict "$CONFINE: programs reach the compiler that a link in /etc leads to" $?
    rm -rf "$dir/week=2" && limit 300 tests/grade/submission.sh "$dir/whole" "$dir/week=2" "$build" --task 1.1 --ranks "2 3 4" >"$dir/log" 2>&1 && said '^Lab 1: 2/2$'
    verdict "$CONFINE: OUT with = in its path: $(score)" $?
}

# hidden_stay_hidden -- the graded tree and the learner's results contain neither the hidden source nor its path
hidden_stay_hidden() {
    grep -rlF -e "secret-$$" -e "$dir/hidden" "$dir/out" >"$dir/log"
    [ ! -s "$dir/log" ] && [ "$(grep -c '"visibility": "after_published"' "$dir/out/results.json")" -ge 3 ]
    verdict 'hidden tests stay hidden' $?
}

# Each file of the reference solution cheats in a different way, and the tests are changed.
all_refused() {
    fresh whole
    attacks <<'END'
@ lab1_flatparam/dim0.c|has a function that runs before or after main \(section .init_array\)
#include <stdio.h>
__attribute__((constructor)) static void first(void) { puts("VERDICT 1.6 PASS"); }
@ lab1_flatparam/flat_param.c|defines write,
long write(int fd, const void *text, unsigned long bytes);
long write(int fd, const void *text, unsigned long bytes) { return text && fd ? (long)bytes : 0; }
@ lab1_flatparam/predict.c|defines strcmp,
int strcmp(const char *a, const char *b) { return a == b ? 0 : 0; }
@ lab1_flatparam/wrap.c|defines memcmp,
int memcmp(const void *a, const void *b, unsigned long bytes) { return a == b || bytes ? 0 : 0; }
@ lab2_forward/cast.c|uses _exit,
_Noreturn void _exit(int status);
static __attribute__((used)) void leave(void) { _exit(0); }
@ lab2_forward/forward.c|uses pthread_create,
#include <pthread.h>
static __attribute__((used)) int later(void *(*run)(void *)) { pthread_t t; return pthread_create(&t, 0, run, 0); }
@ lab3_backward/backward.c|has assembly
#define JOIN(x, y) x##y
static __attribute__((used)) void raw(void) { JOIN(__as, m__)("syscall" ::: "memory"); }
@ lab3_backward/no_sync.c|has data among its code: code
static const unsigned char code[] __attribute__((section(".text"), used)) = {0x0f, 0x05, 0xc3};
@ lab3_backward/recompute.c|uses grade_main,
int grade_main(int, char **, const void *, int);
static __attribute__((used)) int again(void) { return grade_main(0, 0, 0, 0); }
@ lab4_optimizer/ckpt_pieces.c|uses dlsym,
void *dlsym(void *, const char *);
static __attribute__((used)) void *find(void) { return dlsym(0, "say"); }
@ lab4_optimizer/offload.c|includes tests/grade/step_lib.c,
#include "tests/grade/step_lib.c"
@ lab4_optimizer/optimizer.c|uses quick_exit,
#pragma redefine_extname leave_by quick_exit
void leave_by(int);
static __attribute__((used)) void leave(void) { leave_by(0); }
END
    head -c 300000 /dev/zero | tr '\000' '\n' | attack lab5_prefetch/bucket.c 'is larger than 262144 bytes'
    ln -sf "$PWD/lab5_prefetch/limiter.c" "$dir/cheat/lab5_prefetch/limiter.c"
    echo 'lab5_prefetch/limiter.c|is a link' >>"$dir/expected"
    attacks <<'END'
@ lab5_prefetch/prefetch.c|defines optional as a weak
__attribute__((weak)) int optional(void);
int optional(void) { return 1; }
@ lab6_npu/aclnn_call.cpp|has a function that runs before or after main
struct first { first() { memset(this, 0, 1); } char x; } before_main;
END
    rm "$dir/cheat/lab6_npu/hccl.c" && echo 'lab6_npu/hccl.c|is missing' >>"$dir/expected"
    printf '/* \000 */\n' | attack lab6_npu/npu.c 'has zero bytes'
    rm "$dir/cheat/lab6_npu/npu_task.c" && mkfifo "$dir/cheat/lab6_npu/npu_task.c"
    echo 'lab6_npu/npu_task.c|is no file' >>"$dir/expected"
    mkdir -p "$dir/cheat/tests/grade"
    sed 's/^\(1\.[0-9]\)  [0-9]*/\1  100/' tests/grade/tasks.txt >"$dir/cheat/tests/grade/tasks.txt"
    echo 'int main(void) { return 0; }' >"$dir/cheat/tests/grade/lab1.c"
    hand_in cheat --lab 1 --ranks "2 3 4" && said '^Lab 1: 0/16$' '^submission: 0 files taken, 19 refused, 2 '
    verdict "$CONFINE: nineteen files that cheat, and tests with more points: $(score)" $?
    refused
    said '^IGNORED tests/grade/tasks.txt: ' '^IGNORED tests/grade/lab1.c: '
    verdict "$CONFINE: changed tests and tables are reported" $?
}

# More attacks in files of the handout. Files that are not refused are graded.
more_refused() {
    fresh stubs
    echo "#include \"$dir/hidden/hidden1.c\"" | attack lab1_flatparam/dim0.c '(includes|does not compile: ).*/hidden1.c'
    attacks <<'END'
@ lab2_forward/cast.c|uses stderr,
#include <stdio.h>
static __attribute__((used)) void tell(void) { stderr->_fileno = 5; }
@ lab2_forward/forward.c|has a function that runs before or after main \(section .fini_array\)
static int n;
__attribute__((destructor)) static void last(void) { n++; }
@ lab3_backward/backward.c|has a function that runs before or after main \(section .init_array
static void first(void) { }
static void (*const pointer)(void) __attribute__((section(".init_array"), used)) = first;
@ lab3_backward/no_sync.c|has code in .note.GNU-stack
static __attribute__((used, noinline)) int apply(int (*volatile f)(int)) { return f(1); }
static __attribute__((used)) int outer(volatile int x) { int inner(int y) { return x + y; } return apply(inner); }
@ lab3_backward/recompute.c|defines chosen as a weak or indirect symbol
static int one(void) { return 1; }
static int (*choose(void))(void) { return one; }
int chosen(void) __attribute__((ifunc("choose")));
@ lab4_optimizer/ckpt_pieces.c|has ".data.x.*where a name is expected
static const unsigned char code[] __attribute__((section(".data.x,\"awx\",@progbits#"), used)) = {0x0f, 0x05, 0xc3};
@ lab4_optimizer/offload.c|(includes|does not compile: ).*/hostname
#include </usr/include/../../etc/hostname>
@ lab4_optimizer/optimizer.c|uses write,
long tell(int, const void *, unsigned long) __asm__("write");
static __attribute__((used)) long out(void) { return tell(1, "x", 1); }
@ lab5_prefetch/bucket.c|does not compile
#define A(x) x x x x x x x x x x x x x x x x
static const char many[] = {A(A(A(A(A(A(A(A(1,))))))))};
@ lab5_prefetch/prefetch.c|uses expect_f32,
int expect_f32(void);
static __attribute__((used)) int (*peek(void))(void) { return expect_f32; }
END
    sed -i 's/limiter_release(/limiter_given(/' "$dir/cheat/lab5_prefetch/limiter.c"
    attack lab5_prefetch/limiter.c 'does not define limiter_release' </dev/null
    hand_in cheat --lab 1 --ranks "2 3 4" && said '^Lab 1: 0/16$' '^submission: 7 files taken, 12 refused, 0 '
    verdict "$CONFINE: twelve more: $(score)" $?
    refused
}

# Files whose objects have nothing forbidden are taken, but cheating at run time must earn no points.
cheats() {
    fresh stubs
    cat >"$dir/shout" <<'END'
#include <stdio.h>
#include <stdlib.h>
static void shout(void) /* once in each rank: verdicts and done-markers of tasks; then what empties the buffer */
{
    static const char before[] = "\0\0 \0\t"; /* what may stand before a word: nothing, a blank, a tab */
    static int n;
    for (int t = 10; n == 0 && t < 30; t++)
        for (int i = 0; i < 6; i++)
            printf("\n%s%s %d.%d %s\n", before + i % 3 * 2 - i % 3 / 2, i < 3 ? "VERDICT" : "DONE", t / 10, t % 10, i < 3 ? "PASS" : "rank 0/2");
    printf("%*s\n", n++ ? 1 : 100000, "");
}
END
    for file in flat_param wrap; do # then 1.1 to 1.3 crash, and 1.4 says that it is skipped
        sed "s/return fsdp_todo(.*/shout();\n    $([ $file = wrap ] && echo 'return FSDP_ESKIP;' || echo 'abort();')/" \
            "$dir/stubs/lab1_flatparam/$file.c" | cat "$dir/shout" - >"$dir/cheat/lab1_flatparam/$file.c"
    done
    hand_in cheat --lab 1 --ranks "2 3 4" && said '^Lab 1: 0/16$' '^TAKEN   lab1_flatparam/(flat_param|wrap).c' &&
        grep -q '^printed: VERDICT 1.1 PASS' "$dir"/out/tree/build/test/grade/*.log
    verdict "$CONFINE: printed verdicts, a crash, and a status that says skip: $(score)" $?
    fresh whole # the judge does not know 2.2 and 2.3
    awk '1; /SOLUTION BEGIN 2.[23]/ { print "    shout();\n    abort();" }' "$dir/whole/lab2_forward/forward.c" | cat "$dir/shout" - >"$dir/cheat/lab2_forward/forward.c"
    hand_in cheat --task "2.2 2.3" --ranks "2 3 4" && said '^TAKEN   lab2_forward/forward.c' '^Lab 2: 0/6'
    verdict "$CONFINE: printed verdicts of tasks that are not judged: $(score)" $?
    fresh stubs
    sed -i 's/return fsdp_todo("1.3");/for (volatile int forever = 1; forever;) { }\n    return FSDP_OK;/' "$dir/cheat/lab1_flatparam/flat_param.c"
    hand_in cheat --task 1.3 --ranks 2 && said '^FAIL +1.3 W=2 ' '^Lab 1: 0/'
    verdict "$CONFINE: an infinite loop: $(score)" $?
}

# Strings that compilers copy to the assembler, lines that become directives, and files that only one run of the compiler would see.
strings() {
    fresh stubs
    attacks <<'END'
@ lab1_flatparam/dim0.c|has ".*where a name is expected
extern long raw_(void) __asm__("1f\n1:\tmov $39, %eax\n\tsyscall\n\tret #");
static __attribute__((used)) long raw(void) { return raw_(); }
@ lab1_flatparam/flat_param.c|has ".data,.*where a name is expected
static int x __attribute__((section(".data,\"aw\"\n\t.text\n\tsyscall\n\t.data #"), used)) = 1;
@ lab1_flatparam/predict.c|has ".*where a name is expected
#define NAME __extension__ ("." "data\n\tnop\n#")
static int x __attribute__((__section__(NAME), used)) = 1;
@ lab1_flatparam/wrap.c|has ".*where a name is expected
static int x = 1;
extern int y __attribute__((alias("x\n\t.globl zz"), visibility("hidden")));
@ lab2_forward/cast.c|has ".*where a name is expected
static int x __asm__("a\12.b") = 1;
static __attribute__((used)) int *f(void) { return &x; }
@ lab2_forward/forward.c|has the directive #ident
#ident "x\"\n\tnop\n#"
@ lab3_backward/backward.c|includes a compiled header
_Pragma("GCC pch_preprocess \"lab2_forward/fsdp.h.gch\"")
@ lab3_backward/no_sync.c|(has a section|has data among|does not compile).*comment
static const char said[] __attribute__((section(".comment"), used)) = "x";
@ lab3_backward/recompute.c|does not compile: .*Error
static int x __asm__("1a") = 1;
static __attribute__((used)) int *f(void) { return &x; }
@ lab4_optimizer/ckpt_pieces.c|includes .*own.i, which is no header
#if __has_include("/proc/self/cwd/../compiler/own.i")
#include "/proc/self/cwd/../compiler/own.i"
#endif
@ lab4_optimizer/optimizer.c|has ".*where a name is expected
extern int z __attribute__((weakref("abort\n")));
@ lab4_optimizer/offload.c|uses __fixed_not, which nothing defines
extern int __fixed_not(void);
static __attribute__((used)) int f(void) { return __fixed_not(); }
@ lab5_prefetch/bucket.c|has ".*where a name is expected
static int one(void) { return 1; }
__asm__(".symver one,x@Y\n");
@ lab5_prefetch/limiter.c|(includes|does not compile: ).*(hostname|embed)
static const char read[] = {
#embed "/etc/hostname"
};
@ lab5_prefetch/prefetch.c|(includes|does not compile: ).*hostname
#line 1 "/usr/include/stdio.h" 3
#include "/etc/hostname"
@ lab6_npu/npu.c|has ".*where a name is expected
# 1 "/usr/include/stdio.h" 1 3
extern int raw(void) __asm__("1f\n1:\tret #");
static __attribute__((used)) int f(void) { return raw(); }
@ lab6_npu/npu_task.c|is too long after preprocessing
#define A 1,1,1,1,1,1,1,1,
#define B A A A A A A A A A A A A A A A A
#define C B B B B B B B B B B B B B B B B
#define D C C C C C C C C C C C C C C C C
#define E D D D D D D D D D D D D D D D D
static const char many[] = {E E E E E E E E E E E E E E E E};
END
    hand_in cheat --task 1.1 --ranks 2
    grep -q ' 17 refused, ' "$dir/log"
    verdict "$CONFINE: seventeen files with strings for the assembler, other people's lines and 17 MB of text" $?
    refused
}

# cheat_with CODE FUNCTION -- the stub of task 1.1 with CODE before it, which begins with a call of FUNCTION
cheat_with() {
    fresh stubs
    sed 's/return fsdp_todo("1.1");/'"$2"'; &/' "$dir/stubs/lab1_flatparam/flat_param.c" | cat "$1" - >"$dir/cheat/lab1_flatparam/flat_param.c"
}

# gadget TASKS -- gadget.c with what this test knows; TASKS, in quotes and with commas, are those whose verdicts it forges
gadget() {
    libc=$(ldd "$build/tests/grade/lab1" | awk '$1 ~ /^libc[.]so/ { print $3 }')
    at() { nm -D "$libc" | awk -v name="$1" '$3 ~ "^" name "@@" { print "0x" $1 }'; }
    sed "s|FORK_AFTER_PRINTF|$(($(at fork) - $(at printf)))|; s|SECRET|$dir/hidden|; s|SOLUTIONS|$PWD|; s|OUTSIDE|$dir/outside|; s|JUDGE|$$|; s|FORGED|$1|" tests/grade/gadget.c >"$dir/gadget.c"
}

# confined -- code that makes system calls which no check sees reaches nothing, and holds nobody up.
confined() {
    [ "$(uname -m)" = x86_64 ] || { echo 'SKIP submission: the code of a constant is that of x86-64' && return; }
    gadget '"1.1"'
    cheat_with "$dir/gadget.c" 'try_all()'
    hand_in cheat --task 1.1 --ranks 2
    cat "$dir"/out/tree/build/test/grade/*.log >>"$dir/log"
    said '^Lab 1: 0/2' "^confined by: $CONFINE" '^denied a hidden test' '^denied a solution' '^denied a network' '^denied a setting of the kernel' '^denied a process of its own' '^denied a process by printf with an offset' "^denied the judge's memory" "^denied the launcher's memory" '^denied a signal to another' '^denied a group of its own' '^denied another owner of its signals' '^denied the affinity of another process' '^denied the priority of another process' '^denied memory that stays' '^denied the length of a file' '^denied the rights of a file' '^denied the time of a file' '^denied an attribute of a file' '^denied its turn when memory runs out' && unsaid '^(printed: )?REACHED' && [ ! -e "$dir/outside" ]
    verdict "$CONFINE: a program of constants reaches nothing" $?
    for call in wait_for_pipe fill_results stop_parent; do
        cheat_with "$dir/gadget.c" "$call()"
        hand_in cheat --task 1.1 --ranks 2 && said '^(FAIL|TODO) +1.1 W=2' '^Lab 1: 0/2' && [ "$(du -sk "$dir/out" | cut -f1)" -lt 200000 ]
        verdict "$CONFINE: $call" $?
    done
    cheat_with "$dir/gadget.c" 'bomb()'
    hand_in cheat --task 1.1 --ranks 2 && said '^TODO +1.1 W=2' '^Lab 1: 0/2' && [ "$(cat "$dir"/out/tree/build/test/grade/*.log | grep -c '^bomb: 0 processes$')" -eq 2 ]
    verdict "$CONFINE: processes without end: none starts" $?
    cheat_with "$dir/gadget.c" 'forge_for_peers()'
    hand_in cheat --task 1.1 --ranks 2
    got=$(cat "$dir"/out/tree/build/test/grade/lab1-*.log | grep -oE "(REACHED|denied) a peer's memory$" | sort -u)
    case $got in
    REACHED*) said '^FAIL +1.1 W=2 the judge' '^Lab 1: 0/2' ;;
    denied*) said '^TODO +1.1 W=2' '^Lab 1: 0/2' ;;
    *) false ;;
    esac
    verdict "$CONFINE: what ranks write into each other earns nothing: $got" $?
    find /proc/[0-9]*/exe -maxdepth 0 -lname "$dir/out/*" >"$dir/log" 2>/dev/null
    [ ! -s "$dir/log" ]
    verdict "$CONFINE: no process stays behind" $?
}

# forged -- a verdict that a rank writes itself counts only for tasks that the judge does not judge.
forged() {
    [ "$(uname -m)" = x86_64 ] || return 0
    gadget "$("$build/tests/grade/judge" --list | sed 's/.*/"&"/' | paste -sd,)"
    fresh stubs
    for file in $(grep -lE 'return fsdp_todo\("[1-5]' "$dir"/cheat/lab*/*.c); do # every task calls forge
        sed 's/return fsdp_todo("[^"]*");/forge(); &/' "$file" | cat "$dir/gadget.c" - >"$dir/new" && mv "$dir/new" "$file"
    done
    hand_in cheat --ranks 2
    grep -E '^(PASS|FAIL|TODO|BLOCKED) ' "$dir/log" >"$dir/verdicts"
    for t in $("$build/tests/grade/judge" --list); do
        grep -qE "^(FAIL|TODO|BLOCKED) +$t " "$dir/verdicts" && ! grep -qE "^PASS +$t " "$dir/verdicts" || { echo "$t" >>"$dir/log" && false; }
        verdict "$CONFINE: a forged verdict: $t" $?
    done
    for t in 1.1 1.3 1.4 2.1 3.2a 3.3 4.1; do # they need no other task
        said "^FAIL +$t W=2 the judge"
        verdict "$CONFINE: it counted in the process, and not with the judge: $t" $?
    done
}

# overwritten -- an expectation within reach, and a verdict of the judge that its seed repeats.
overwritten() {
    fresh stubs # the test expects zeros where the unit has no elements, and the unit is within reach
    sed -i 's/return fsdp_todo("3.3");/f->units[u].slices.used_elems = 0;\n    return device_zero(f->compute, g->shard_grad, g->slice.elems * sizeof(float));/' "$dir/cheat/lab3_backward/backward.c"
    hand_in cheat --task 3.3 --ranks 2
    said '^TAKEN   lab3_backward/backward.c' '^FAIL +3.3 W=2 the judge, seed 0x[0-9a-f]*: rank 0: sum over ranks'
    verdict "$CONFINE: an overwritten expectation" $?
    sed -i 's/f->units\[u\].slices.used_elems = 0;/printf("%n", (int *)\&f->units[u].slices.used_elems);/; 1,/^#include/s/^#include/#include <stdio.h>\n&/' "$dir/cheat/lab3_backward/backward.c"
    hand_in cheat --task 3.3 --ranks 2 # with _FORTIFY_SOURCE, %n ends the process
    said '^TAKEN   lab3_backward/backward.c' '^FAIL +3.3 W=2 (the judge, seed 0x[0-9a-f]*: rank 0: sum over ranks|.*died of SIGABRT)'
    verdict "$CONFINE: an expectation that printf overwrites" $?
    fresh whole
    sed -i 's/.factor = scale/.factor = 2.0f * scale/' "$dir/cheat/lab3_backward/backward.c"
    hand_in cheat --task 3.3 --ranks 2
    cp "$build/tests/grade/judge" "$dir/out/tree/build/tests/grade/"
    tests/grade/judge.sh --task 3.3 --ranks 2 "$dir/out/tree/build" >"$dir/log" 2>&1
    why=$(sed -nE 's/^FAIL 3.3 W=2: (the judge, seed .*)/\1/p' "$dir/log") seed=$(sed -nE 's/.* seed (0x[0-9a-f]*): .*/\1/p' "$dir/log")
    for tasks in 3.3 '1.1 2.1 3.3'; do
        tests/grade/judge.sh --seed "${seed:-none}" --task "$tasks" --ranks 2 "$dir/out/tree/build" >"$dir/log" 2>&1
        [ -n "$why" ] && grep -qF "$why" "$dir/log"
        verdict "$CONFINE: the seed of a verdict repeats it: $tasks" $?
    done
}

# around -- what a class needs: folders of submissions, names that are commands, archives, packing.
around() {
    rm -rf "$dir/class" "$dir/in"
    mkdir "$dir/class" "$dir/in" && cp -R "$dir/stubs" "$dir/class/n\";touch pwned;\"" && cp -R "$dir/stubs" "$dir/class/=\$(touch pwned) \`touch pwned\`"
    cp -R "$dir/whole" "$dir/in/ada, 2"
    sed -i 's/return FSDP_OK;/(void)sizeof(int[2]);\n    &/' "$dir/in/ada, 2/lab1_flatparam/wrap.c"
    tar -czf "$dir/class/ada.tar.gz" -C "$dir/in" 'ada, 2'
    (cd "$dir/in" && tar -cPf "$dir/class/up.tar" ../whole/lab1_flatparam)
    ln -s "$dir/in/ada, 2" "$dir/in/link" && tar -cf "$dir/class/link.tar" -C "$dir/in" link && ln -s "$dir/whole" "$dir/class/other"
    mkdir "$dir/class/inner" "$dir/in/deep" "$dir/in/deep/__MACOSX" && ln -s "$dir/whole" "$dir/class/inner/x"
    cp -R "$dir/whole" "$dir/in/deep/a" && mkdir "$dir/in/deep/__MACOSX/lab1_flatparam" && tar --mode=0 -cf "$dir/class/deep.tar" -C "$dir/in" deep
    truncate -s 300M "$dir/in/zeros" "$dir/class/long" && tar -czf "$dir/class/zeros.tgz" --owner='a b:1' -C "$dir/in" zeros
    truncate -s 150M "$dir/in/half" "$dir/in/hole" && tar -cSf "$dir/class/sparse.tar" -C "$dir/in" half hole
    echo text >"$dir/class/notes.txt"
    for n in 1 2 3 4 5 6 7 8 9 10 11; do
        tar -rf "$dir/class/folders.tar" --transform "s|.*|$n$(printf '/a%.0s' $(seq 1900))|" -C "$dir/class" notes.txt
    done
    for name in "$(printf "%0250d" 0)" "$(printf 'b\nyes,\001\344')" -x .x "  =x,y" m=1; do
        cp "$dir/class/notes.txt" "$dir/class/$name"
    done
    mkdir "$dir/class/empty" && mkfifo "$dir/class/fifo" && touch "$dir/class/.DS_Store"
    zips='' && command -v zip unzip >/dev/null && zips='^"back",yes,2,2, ^"lie.zip",no,.*more.than.20000.files' || echo "SKIP submission: zip archives: zip or unzip is not installed"
    [ -z "$zips" ] || { # from DOS, with backslashes; from a liar, who states that 300 MB are a byte
        (cd "$dir/whole" && zip -qr - lab*) | LC_ALL=C sed 's/PK\x01\x02..../PK\x01\x02\x14\x00\x14\x00/g; s,\(lab[0-9]_[a-z]*\)/,\1\\,g' >"$dir/class/back"
        (cd "$dir/in" && zip -q - zeros) | LC_ALL=C sed 's/\x00\x00\xc0\x12/\x01\x00\x00\x00/g' >"$dir/class/lie.zip"
    }
    rm -rf "$dir/out"
    ! AT_ONCE=2 limit 900 make -s grade-all BUILD="$build" DIR="$dir/class" OUT="$dir/class/grades" TASK=1.1 RANKS='2 3 4' >"$dir/log" 2>&1 </dev/null
    verdict "$CONFINE: a class: the status says that some have no grade" $?
    cp "$dir/class/grades/grades.csv" "$dir/log"
    said '^submission,graded,points,of,confined_by,taken,refused,why,lab 1,1.1$' '^" =.*touch pwned.*",yes,0,2,' '^"n"";touch pwned;""",yes,0,2,' '^"ada.tar.gz",yes,2,2,'"$CONFINE"',19,0,"",2,2$' '^"empty",no,.*has no folder with the labs' '^"deep.tar",yes,2,2,' '^"link.tar",no,.*has no folder with the labs' '^"inner",no,.*has no folder with the labs' '^"other",no,.*is a link' '^"zeros.tgz",no,.*more than 20000 files and folders, 200 MB' '^"notes.txt",no,.*cannot be unpacked' '^"up.tar",(no|yes,0,)' '^"(long|sparse.tar)",no,.*more than 20000 files' '^"folders.tar",no,.*more than 20000 files' \
        '^"0{250}",no' '^"b yes, ",no' '^" -x",no' '^".x",no' '^"  =x,y",no' '^"m=1",no' '^"fifo",no,.*is no file' $zips &&
        [ "$(wc -l <"$dir/log")" -eq "$(printf '%s\n' "$dir/class"/* "$dir/class/.x" | grep -c "^$dir")" ] && ! ls -d "$dir/class/grades/"*.tree 2>/dev/null
    verdict "$CONFINE: one row for each, whatever its name" $?
    [ -z "$(find . "$dir" -name pwned -not -path './build/*' | head -1)" ]
    verdict "$CONFINE: and no name was run" $?
    for name in 'n";touch pwned;"' '`touch pwned`' '$(shell touch pwned)' "it's"; do
        ! limit 100 make -s grade-submission BUILD="$build" TREE="$dir/$name" OUT="$dir/$name" >"$dir/log" 2>&1 && said '^HINT: TREE is the folder' && [ ! -e pwned ]
        verdict "$CONFINE: TREE=$name is text" $?
    done
    rm -rf "$dir/pair" && mkdir "$dir/pair" && cp -R "$dir/whole" "$dir/pair/ada" && cp -R "$dir/stubs" "$dir/pair/ada
"
    limit 900 make -s grade-all BUILD="$build" DIR="$dir/pair" OUT="$dir/pair/grades" TASK=1.1 RANKS='2 3 4' >"$dir/log" 2>&1 </dev/null
    cp "$dir/pair/grades/grades.csv" "$dir/log" && said '^"ada",yes,2,2,' '^"ada ",yes,0,2,'
    verdict "$CONFINE: a name that ends in a newline is not the name without it" $?
    fresh whole
    echo '__thread int bucket_assign;' >"$dir/cheat/lab5_prefetch/bucket.c"
    cat >"$dir/cheat/lab1_flatparam/predict.c" <<'END'
const void *predict_answers(int *n);
const void *predict_answers(int *n) { return *n = 0, (void *)0; }
extern __thread int fsdp_error_get;
static __attribute__((used)) int peek(void) { return fsdp_error_get; }
END
    echo 'static __attribute__((used)) char large[3L << 30];' >>"$dir/cheat/lab1_flatparam/dim0.c"
    hand_in cheat --task 1.1 --ranks "2 3 4" && said '^Lab 1: 2/2$' '^REFUSED lab5_prefetch/bucket.c: defines bucket_assign as TLS' '^REFUSED lab1_flatparam/predict.c: does not link: .*fsdp_error_get' '^REFUSED lab1_flatparam/dim0.c: has a section .l?bss of 256 MiB'
    verdict "$CONFINE: what no program can be linked with costs its own tasks: $(score)" $?
    fresh stubs
    echo 'static inline int mine(void) { return 1; }' >"$dir/cheat/lab1_flatparam/mine.h"
    sed -i '1i #include "lab1_flatparam/mine.h"' "$dir/cheat/lab1_flatparam/wrap.c"
    echo 'int my_min(int a, int b);' >>"$dir/cheat/lab5_prefetch/prefetch.h"
    ! limit 300 "$dir/cheat/tests/grade/submission.sh" . "$dir/cheat/out" "$(realpath "$build")" --pack "$dir/packed.tar.gz" >"$dir/log" 2>&1 &&
        said '^REFUSED lab1_flatparam/wrap.c: includes lab1_flatparam/mine.h, which is not as it was handed out' '^REFUSED lab5_prefetch/prefetch.c: includes lab5_prefetch/prefetch.h, which' '^submission.sh: nothing is packed: '
    verdict "$CONFINE: headers that the course does not have: nothing is packed" $?
    fresh stubs
    echo '/* mine */' >>"$dir/cheat/lab5_prefetch/prefetch_setup.c"
    limit 300 "$dir/cheat/tests/grade/submission.sh" . "$dir/cheat/out3" "$(realpath "$build")" --pack "$dir/packed.tar.gz" >"$dir/log" 2>&1 && said '^IGNORED lab5_prefetch/prefetch_setup.c: it is not as' '^packed: 19 files'
    verdict "$CONFINE: packed, and a changed file that is not handed in is named" $?
    echo 'int mine(void);' >>"$dir/cheat/common/base/status.h"
    ! limit 300 "$dir/cheat/tests/grade/submission.sh" . "$dir/cheat/out2" "$(realpath "$build")" --pack "$dir/packed.tar.gz" >"$dir/log" 2>&1 && said '^submission.sh: nothing is packed: the headers in common'
    verdict "$CONFINE: a header of common was changed: nothing is packed" $?
    [ "$(make -ns grade-submission BUILD="$build" | grep -oE 'graders .*judge .*confine' | head -1 | sed "s|$build|build|g")" = "$(grep -oE 'graders .*judge .*confine' tests/grade/Containerfile)" ]
    verdict 'the image of a container has what make grade-submission builds' $?
    fresh whole
    rm -rf "$dir/out" "$dir/packed.tar.gz"
    limit 300 tests/grade/submission.sh "$dir/cheat" "$dir/out" "$build" --pack "$dir/packed.tar.gz" >"$dir/log" 2>&1
    tar -tzf "$dir/packed.tar.gz" | sort >"$dir/names" && awk '$1 == "source" { print $2 }' tests/grade/submission.txt | sort | diff - "$dir/names" >>"$dir/log"
    verdict "$CONFINE: the archive to hand in has the files of submission.txt" $?
    said "^confined by: $CONFINE\$" '; tasks that are not written: none$'
    verdict "$CONFINE: all tasks are written: none is named; the kind of confinement is" $?
    fresh stubs
    echo '/* then return fsdp_todo("1.9"); */' >>"$dir/cheat/lab1_flatparam/wrap.c"
    rm -rf "$dir/out" "$dir/packed.tar.gz"
    limit 300 tests/grade/submission.sh "$dir/cheat" "$dir/out" "$build" --pack "$dir/packed.tar.gz" >"$dir/log" 2>&1
    grep -ohE 'SOLUTION BEGIN [1-6][.][1-9][0-9]*[a-z]?' lab[1-6]_*/*.c* | sed 's/.* //' | sort -uV >"$dir/names"
    sed -n 's/.*; tasks that are not written: //p' "$dir/log" | tr ' ' '\n' | grep . >"$dir/new"
    diff "$dir/names" "$dir/new" >"$dir/log"
    verdict "$CONFINE: no task is written: each is named, and no number in a comment" $?
    echo 'int x = ;' >>"$dir/cheat/lab1_flatparam/wrap.c"
    rm -rf "$dir/out" "$dir/packed.tar.gz"
    ! limit 300 tests/grade/submission.sh "$dir/cheat" "$dir/out" "$build" --pack "$dir/packed.tar.gz" >"$dir/log" 2>&1 && said '^submission.sh: nothing is packed: 1 ' && [ ! -e "$dir/packed.tar.gz" ]
    verdict "$CONFINE: a file that would be refused: nothing is packed" $?
}

# unconfined -- as around, without the program that confines
unconfined() {
    CONFINE=none UNCONFINED=1 hand_in whole --task 1.1 --ranks "2 3 4" && said '^Lab 1: 2/2$' '^confined by: none'
    verdict "not confined, without the program that confines: $(score)" $?
    printf '#!/bin/sh\n[ "$1" = --list ] && echo 1.1 && exit\nln -sf /dev/null "%s"\n' "$dir/out/tree/build/test/grade/judged" >"$dir/lost" && chmod +x "$dir/lost"
    GRADE_PRIVATE=1 CONFINE=none UNCONFINED=1 CONFINE_TOOL='' JUDGE_TOOL=$dir/lost limit 60 tests/grade/grade.sh --task 1.1 --ranks 2 "$dir/out/tree/build" >"$dir/log" 2>&1
    said '^FAIL +1.1 W=2 the judge has no verdict'
    verdict 'a judge whose rows are lost: no points' $?
    CONFINE=none UNCONFINED=1 hand_in whole --pack "$dir/not/yet/packed.tar.gz" && [ -s "$dir/not/yet/packed.tar.gz" ] && said '^confined by: none$' '^packed: 19 files'
    verdict 'packed, not confined: the kind is said' $?
}

# shut -- a fresh user cannot enter the folders above OUT.
shut() {
    chmod 755 "$dir"
    [ "$(id -u)" -eq 0 ] && CONFINE=uid CONFINE_TOOL=$build/tests/grade/confine tests/grade/confine.sh --kind "$dir" >"$dir/log" 2>&1 ||
        { echo 'SKIP submission: OUT where a fresh user cannot go: needs root, and a build folder that every user may enter' && return; }
    mkdir -m 700 "$dir/shut" && mkdir "$dir/bin"
    printf '#!/bin/sh\nfalse\n' >"$dir/bin/bwrap"
    printf '#!/bin/sh\n[ "$1" != --only ] || exit 125\nexec "%s" "$@"\n' "$(realpath "$build")/tests/grade/confine" >"$dir/bin/no_landlock"
    chmod +x "$dir/bin/"*
    refuses 2 'CONFINE=uid does not work here' env CONFINE=uid tests/grade/submission.sh "$dir/whole" "$dir/shut/out" "$build"
    verdict 'uid: OUT where a fresh user cannot go: no grade, and a hint' $?
    refuses 125 'CONFINE=uid does not work here' env CONFINE=uid CONFINE_TOOL="$dir/bin/no_landlock" tests/grade/confine.sh --kind "$dir/shut"
    verdict 'uid: the same on a kernel without Landlock' $?
    refuses 2 'nothing here can confine a program' env PATH="$dir/bin:$PATH" tests/grade/submission.sh "$dir/whole" "$dir/shut/more" "$build" &&
        said '^HINT: .*as root, write to folders that every user may enter' &&
        [ "$(PATH="$dir/bin:$PATH" CONFINE_TOOL=$build/tests/grade/confine tests/grade/confine.sh --kind "$dir")" = uid ]
    verdict 'without bwrap: no kind is left, and the hint helps' $?
    TMPDIR=$dir/shut CONFINE=uid hand_in whole --task 1.1 --ranks "2 3 4" && said '^Lab 1: 2/2$' '^confined by: uid'
    verdict "uid: temporary files where a fresh user cannot go: $(score)" $?
}

# Floods, and texts that become paths.
floods() {
    fresh stubs
    sed -i 's/return fsdp_todo("1.1");/for (volatile int on = 1; on;)\n        printf("%4096s", "x");\n    &/; 1,/^#include/s/^#include/#include <stdio.h>\n&/' "$dir/cheat/lab1_flatparam/flat_param.c"
    hand_in cheat --task 1.1 --ranks 2 && said '^FAIL +1.1 W=2 no verdict: it printed more than 4000000 bytes' '^Lab 1: 0/2' && [ "$(du -sk "$dir/out/tree/build/test" | cut -f1)" -lt 6000 ]
    verdict "$CONFINE: output without end: $(score)" $?
    fresh stubs
    sed -i 's/return fsdp_todo("1.1");/int n = 0;\n    for (void *p; (p = malloc(1 << 26)) != NULL; n++)\n        memset(p, 1, 1 << 26);\n    printf("blocks: %d\\n", n);\n    &/; 1,/^#include/s/^#include/#include <stdio.h>\n&/' "$dir/cheat/lab1_flatparam/flat_param.c"
    hand_in cheat --task 1.1 --ranks 2
    said '^TODO +1.1 W=2' && [ "$(grep -ch '^blocks: [0-9]\{1,2\}$' "$dir"/out/tree/build/test/grade/lab1-W2-1.log)" -eq 2 ]
    verdict "$CONFINE: all the memory that there is: $(score)" $?
    fresh stubs
    sed -i 's|return fsdp_todo("1.1");|return fsdp_todo("../../x");|' "$dir/cheat/lab1_flatparam/flat_param.c"
    hand_in cheat --task 1.1 --ranks 2 && said '^FAIL +1.1 W=2 it says that it needs \.\./\.\./x, which is no task' '^Lab 1: 0/2'
    verdict "$CONFINE: a task that is a path: $(score)" $?
}

if wanted honest; then honest; fi
if wanted refused; then by_two all_refused && by_two more_refused; fi
if wanted strings; then by_kind strings; fi
if wanted cheats; then by_kind cheats; fi
if wanted confined; then by_kind confined; fi
if wanted forged; then by_kind forged; fi
if wanted forged || wanted overwritten; then by_two overwritten; fi
if wanted floods; then by_kind floods; fi
if wanted around; then by_two around && unconfined && shut; fi
exit $bad
