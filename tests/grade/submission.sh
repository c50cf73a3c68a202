#!/bin/sh
# submission.sh -- grade a learner's tree with this tree: only the files of submission.txt are taken from the learner.
#
#   tests/grade/submission.sh TREE OUT BUILD [--extra DIR] [--lab N] [--task T] [--ranks "2 3"]
#   tests/grade/submission.sh TREE OUT BUILD --pack FILE check that nothing would be refused, and write the files to an archive
#   tests/grade/submission.sh --check BUILD [SOURCE]     check that this tree's own objects, or the object of SOURCE, would be
#                                                        accepted: a PASS or FAIL line
#
# SUBMISSIONS.md describes the files in OUT (a new or an empty folder), what is refused, and what cannot be prevented. The graded
# tree is this tree without its solutions and with the learner's files; all other objects are BUILD's. The handout's file
# replaces a refused file. DIR, an absolute path, has hidden tests (extra.sh), whose objects are BUILD's.
# Exit status: 0 if there is a grade, whatever it is; else 2.
# shellcheck disable=SC2046,SC2086 # lists of words
set -u
cd "$(dirname -- "$0")/../.." || exit 2
export TMPDIR=/tmp # every user of confine.sh may enter it
unset MAKEFLAGS MFLAGS MAKEOVERRIDES CI LAB TASK RANKS BASE REF FSDP_DEVICE EXTRA_TESTS GRADE_TASKS GRADE_WITH GRADE_FROM
LIST=tests/grade/submission.txt MOST_BYTES=262144 MOST_TEXT=8000000 # of a source, and after preprocessing
. tests/tools/tree.sh
top=$PWD here=$PWD/tests/grade

give_up() {
    printf 'submission.sh: %s\n' "$1" >&2
    [ -z "${2:-}" ] || printf 'HINT: %s\n' "$2" >&2
    exit 2
}

sources() { awk '$1 == "source" { print $2 }' $LIST; }

# object SOURCE -- the path of its object in the build folder
object() {
    case $1 in
    lab6*) echo "npu-sim/${1%.*}.o" ;;
    *) echo "${1%.*}.o" ;;
    esac
}

# allowed SOURCE -- the names that it may use, one per line; what it may define is among them, because a header declares it
allowed() {
    lab=$(echo "$1" | sed 's/^lab\([0-9]\).*/\1/')
    headers=$(awk '$1 == "headers" { $1 = ""; print }' $LIST)
    for n in $(seq 1 "$lab"); do
        headers="$headers $(echo lab"$n"_*/*.h)"
    done
    awk -v source="$1" '$1 == "names" || $2 == source { for (i = $1 == "names" ? 2 : 3; i <= NF; i++) print $i }' $LIST
    awk '/^[a-z]/ && match($0, /[ *][a-z][a-z0-9_]*\(/) { print substr($0, RSTART + 1, RLENGTH - 2) }
        /^extern .*;$/ { sub(/;$/, ""); print $NF }' $headers
}

# complaints SOURCE OBJECT FOLDER NAME -- forbidden things in its object; FOLDER/NAME.nm and .elf describe this tree's object
complaints() {
    allowed "$1" >"$3/allowed"
    nm -P "$2" >"$3/own.nm" && readelf -SsW "$2" >"$3/own.elf" || echo 'is no object|hand in plain C'
    awk -f tests/grade/submission_object.awk -v ref="$3/$4.elf" "$3/allowed" "$3/$4.nm" "$3/own.nm" "$3/own.elf" ||
        echo 'cannot be checked|tell the course'
}

# remember OBJECT FOLDER NAME -- write the files that complaints compares with
remember() { nm -P "$1" >"$2/$3.nm" && readelf -SsW "$1" >"$2/$3.elf"; }

if [ "${1:-}" = --check ]; then
    work=$(mktemp -d) bad=0
    trap 'rm -rf "$work"' EXIT
    for source in ${3:-$(sources)}; do
        remember "${2:-build}/$(object "$source")" "$work" ref &&
            complaints "$source" "${2:-build}/$(object "$source")" "$work" ref >"$work/why" && [ ! -s "$work/why" ] && continue
        sed "s|^|FAIL submission.txt: $source |; s/|/; /" "$work/why"
        bad=1
    done
    [ $bad -eq 1 ] || echo "PASS submission.txt: the objects of this tree use only what is on the list"
    exit $bad
fi

[ $# -ge 3 ] || give_up 'which tree?' 'make grade-submission TREE=<the tree that a learner hands in> OUT=<a new directory> [LAB=1]'
tree=$1 out=$2 build=$3 extra='' pack=''
shift 3
[ "${1:-}" != --pack ] || { pack=$(realpath -m -- "$2") && shift 2; }
[ "${1:-}" != --extra ] || { extra=$2 && shift 2; }
[ -d "$tree/lab1_flatparam" ] || give_up "no labs in TREE=\"$tree\"" 'TREE is the folder that has lab1_flatparam in it'
[ ! -e "$out" ] || [ -z "$(ls -A "$out" 2>&1)" ] || give_up "$out is not empty" 'OUT=<a new directory>'
case $(realpath -m -- "$out") in *[[:space:]*?[\\]*) give_up "OUT=\"$out\" has blanks or one of * ? [ \\ in its path" 'OUT=<a new directory with a plain name>' ;; esac
mkdir -p "$out/work" "$out/tree" || exit 2
tree=$(CDPATH='' cd -- "$tree" && pwd -P && echo .) && tree=${tree%??} || exit 2 # a name may end in a newline
out=$(CDPATH='' cd -- "$out" && pwd -P) build=$(CDPATH='' cd -- "$build" && pwd -P)
work=$out/work report=$out/report.txt n_taken=0 n_refused=0
export CONFINE_TOOL="$build/tests/grade/confine"
[ -n "$pack" ] || [ -x "$build/tests/grade/judge" ] || give_up "there is no $build/tests/grade/judge" 'make grade-submission builds it first'
CONFINE=$("$here/confine.sh" --kind "$work" 2>"$work/why") || give_up "$(sed -n '1s/^confine.sh: //p' "$work/why")" "$(sed -n 's/^HINT: //p' "$work/why")"
export CONFINE
shown=$("$here/confine.sh" --shows "$tree" "$out" ${extra:+"$extra"} $([ ! -x tests/tools/handout.sh ] || echo "$top"))
[ "$CONFINE" = none ] || [ -z "$shown" ] || give_up "$shown is where each learner's program can read" \
    'programs of the system stand there (SYSTEM in confine.sh): move it, to /home or /srv'

# ---- this tree, without solutions, and its objects -----------------------------------------------
if [ -x tests/tools/handout.sh ]; then
    tests/tools/handout.sh --lab6 "$out/tree" >"$work/handout.log" || give_up "$(cat "$work/handout.log")"
else
    case $extra in "$PWD"/*) give_up "the hidden tests stand in $PWD, which is copied for the learner's files" 'EXTRA_TESTS=<a folder outside of it>' ;; esac
    tree_files . >"$work/files" && tar -cf - -T "$work/files" | tar -xf - -C "$out/tree" || exit 2
fi
mkdir -p "$out/tree/build"
(cd "$build" && find abi flags common lab* trainer npu-sim tests ${extra:+extra} -type f ! -path 'extra/*.d' \
    '(' -name '*.[do]' -o -name '*.inc' -o -name abi -o -name flags -o -name folder ')' -print0 2>/dev/null | tar --format=posix -cf - --null -T -) |
    tar -xf - -C "$out/tree/build" || exit 2
mkdir -p "$out/tree/build/tests/grade"
case $CONFINE in
none) CONFINE_TOOL='' ;;
*) cp "$CONFINE_TOOL" "$out/tree/build/tests/grade/" && CONFINE_TOOL=$out/tree/build/tests/grade/confine || exit 2 ;;
esac
for flags in "$out/tree/build/flags" "$out/tree/build/npu-sim/flags"; do # warnings in a learner's code are not errors
    [ -f "$flags" ] || continue # this tree has no lab 6
    sed 's/-Werror//g' "$flags" >"$work/flags" && touch -r "$flags" "$work/flags" && mv "$work/flags" "$flags" || exit 2
done

# ---- the learner's files -------------------------------------------------------------------------
# contents SOURCE -- copy it to its place if it is a plain text file of allowed size, else print why not
contents() {
    at=$tree
    for part in $(echo "$1" | tr / ' '); do
        at=$at/$part
        [ ! -h "$at" ] || { echo 'is a link, or in a folder that is one|hand in the file itself' && return; }
    done
    [ -e "$at" ] || { echo 'is missing|hand in the whole tree' && return; }
    [ -f "$at" ] || { echo 'is no file|hand in a C source' && return; }
    rm -f "$out/tree/$1" && head -c $((MOST_BYTES + 1)) "$at" >"$out/tree/$1" || { echo 'cannot be read|hand in a file that can' && return; }
    if [ "$(wc -c <"$out/tree/$1")" -gt $MOST_BYTES ]; then
        echo "is larger than $MOST_BYTES bytes|hand in a C source"
    elif ! LC_ALL=C tr -d '\000' <"$out/tree/$1" | cmp -s - "$out/tree/$1"; then
        echo 'has zero bytes|hand in a C source'
    fi
}

# limited COMMAND... -- run it confined to the folder $out/compiler, with limits on time, memory and file size; output goes to
# compiler.log
limited() {
    (export LC_ALL=C && ulimit -t 60 && ulimit -v 4000000 && ulimit -f 200000 && "$top/tests/tools/limit.sh" -k 1 60 \
        "$here/confine.sh" --write "$out/compiler" --in "$out/tree" -- "$@") >"$work/compiler.log" 2>&1
}

# does_not STATUS -- why the last command of limited ended with it
does_not() {
    why=$(LC_ALL=C grep -a -m1 -iE '(^|: )(fatal )?error: ' "$work/compiler.log" || tail -1 "$work/compiler.log")
    case $1 in 124 | 137 | 152) why='the compiler needs more than 60 s' ;; esac
    echo "does not compile: $(echo "${why:-the compiler ends with status $1}" | LC_ALL=C tr -c '\n -~' '?' | cut -c1-300 | tr '|' '/')|build it with make test first"
}

# compile SOURCE -- compile it to its object, or print why not: a compiler error, a forbidden include, assembly. The compiler reads the
# source once: what is checked is what is compiled.
compile() (
    o=build/$(object "$1") own=$out/compiler/own
    case $1 in *.cpp) text=c++-cpp-output ;; *) text=cpp-output ;; esac
    rm -rf "$out/compiler" && mkdir "$out/compiler" && cd "$out/tree" || return
    set -- "$1" $(sed -n "s| -c -o $o $1\$||p" "$work/commands" | sed 's/ -MMD -MP//')
    [ $# -gt 1 ] || { echo 'has no rule in the Makefile|tell the course' && return; }
    source=$1
    shift
    limited "$@" -g0 -E -MD -MF "$own.d" -o "$own.i" "$source" || { does_not $? && return; } # -g3 prints definitions of macros
    tr -s ' \\\n' '\n' <"$own.d" | sed 1d | grep -vxF -e "$source" -e '' | xargs -r -d '\n' realpath -m --relative-base="$out/tree" >"$own.headers"
    grep -vE '^(common|lab[1-6]_[a-z]+|tests/sim/ascend/include)/[a-z0-9_/]+\.h$|^/usr/(local/)?(include|lib[0-9]*)/' "$own.headers" |
        sed 's/.*/includes &, which is no header of the course or the compiler|include only such headers/' | grep . && return
    if [ -n "$pack" ] && [ -f "$top/handout.sums" ]; then
        grep ^lab "$own.headers" | (cd "$top" && xargs -r -d '\n' cksum) | awk -v source="$source" '
            FILENAME != "-" { sum[$3] = $1; next }
            $1 "-" $2 != sum[$3] { print "includes " $3 ", which is not as it was handed out|the course compiles with its own headers: move what you need to " source }
            ' "$top/handout.sums" - | grep . && return
    fi
    ([ "$(wc -c <"$own.i")" -le $MOST_TEXT ] && ulimit -t 20 && LC_ALL=C awk -f "$here/submission_text.awk" "$own.i" ||
        echo "is too long after preprocessing (at most $MOST_TEXT bytes)|do without macros that repeat a text again and again") | grep . && return
    limited "$@" -x $text -S -o "$own.s" "$own.i" || { does_not $? && return; }
    ! grep -qE '^[[:space:]]*(#APP|//APP|// Start of user assembly)' "$own.s" || { echo 'has assembly (asm)|write it in C' && return; }
    limited "$@" -c -o "$own.o" "$own.s" || { does_not $? && return; }
    grep -oE '(fsdp_todo\("|(return|:) NPU_TODO_)[1-6][._][0-9]+[a-z]?' "$own.i" | sed 's/.*["O]_\{0,1\}//; s/_/./' >>"$work/todo"
    cp "$own.o" "$o"
)

# say LINE... -- print to the report and to standard output
say() { printf '%s\n' "$@" | tee -a "$report"; }

# refuse SOURCE -- report the reasons in $work/why; the handout's file replaces it
refuse() {
    n_refused=$((n_refused + 1))
    ! cmp -s "$work/stubs/$1" "$out/tree/$1" || no_stub="${no_stub:-} $1"
    rm -f "$out/tree/$1" "$out/tree/build/$(object "$1")"
    cp "$work/stubs/$1" "$out/tree/$1" || exit 2
    head -8 "$work/why" | while IFS='|' read -r why hint; do
        say "REFUSED $1: $why" "        HINT: $hint"
    done
    tasks=$(grep -oE '(TASK |fsdp_todo\(")[0-9.]+[a-z]?' "$work/stubs/$1" | sed 's/.*[ "]//' | sort -u | tr '\n' ' ')
    say "        what counts as not written: tasks ${tasks:-of $1}"
}

args=BUILD=build
for source in $(sources); do
    args="$args -W $source build/$(object "$source")"
done
make -C "$out/tree" -n V=1 $args >"$work/commands" || give_up 'no rules for the objects'
for source in $(sources); do # this tree may have solutions: none of their objects is there when the first compiler runs
    mkdir -p "$work/stubs/${source%/*}" "$work/ref/${source%/*}" && mv "$out/tree/$source" "$work/stubs/$source" &&
        remember "$out/tree/build/$(object "$source")" "$work/ref" "$source" && rm "$out/tree/build/$(object "$source")" ||
        give_up "no $build/$(object "$source")" 'make grade-submission builds it first'
done
[ -z "$pack" ] || [ ! -f handout.sums ] || [ "$(find common -name '*.h' | LC_ALL=C sort | tr '\n' '\0' | xargs -0 cat | cksum | tr ' ' '-')" = "$(awk '$3 == "common/*.h" { print $1 }' handout.sums)" ] ||
    give_up 'nothing is packed: the headers in common are not as they were handed out' 'the course compiles with its own headers: unpack the handout again, and make upgrade FROM=<this tree> there'
for source in $(sources); do
    contents "$source" >"$work/why"
    [ -s "$work/why" ] || compile "$source" >"$work/why"
    [ -s "$work/why" ] || complaints "$source" "$out/tree/build/$(object "$source")" "$work/ref" "$source" >"$work/why"
    if [ -s "$work/why" ]; then
        refuse "$source"
    else
        n_taken=$((n_taken + 1))
        say "TAKEN   $source"
    fi
done
if [ -n "$pack" ]; then
    [ $n_refused -eq 0 ] || give_up "nothing is packed: $n_refused files would be refused" 'mend what is said above'
    [ ! -f handout.sums ] || sources | awk 'FILENAME == "-" { skip[$1]; next } $3 ~ /^lab.*[.](c|h|cpp)$/ && !($3 in skip)' - handout.sums | while read -r sum _ file; do
        [ "$(cksum <"$tree/$file" | tr ' ' '-')" = "$sum" ] || say "IGNORED $file: it is not as it was handed out; the course has its own"
    done
    mkdir -p "$(dirname -- "$pack")" && sources | tar -czf "$pack" --owner=0 --group=0 -C "$tree" -T - || give_up "$pack cannot be written" 'OUT=<a file in a folder that you may write to>'
    say "confined by: $CONFINE" "packed: $n_taken files in $pack, $(wc -c <"$pack") bytes; tasks that are not written: $(
        sort -uV "$work/todo" | tr '\n' ' ' | grep . || echo none)"
    exit 0
fi
[ -z "${no_stub:-}" ] || give_up "no grade: this tree has nothing to put in the place of$no_stub" 'mend what is said above'

# List other files that the learner has changed: tests, tables, the runtime.
sums() (
    cd "$1" && find . -path './build*' -prune -o -type f -size -512k '(' -path './tests/*' -o -path './common/*' -o -path './lab*/*' \
        -o -path './trainer/*' -o -name Makefile ')' -print0 | head -zn 3000 | xargs -0r cksum | sed 's|\./||'
)
sums "$out/tree" >"$work/ours"
sums "$tree" >"$work/theirs" 2>/dev/null
sources | awk 'FILENAME == "-" { skip[$1]; next }
    FILENAME ~ /ours$/ { sum[$3] = $1 " " $2; next }
    $3 in skip { next }
    $3 in sum && sum[$3] != $1 " " $2 { print "IGNORED " $3 ": it differs from this tree" }
    !($3 in sum) && $3 ~ /^lab.*\.[ch]/ { print "IGNORED " $3 ": it is none of the files that are handed in" }
    ' - "$work/ours" "$work/theirs" >"$work/ignored"
n_ignored=$(wc -l <"$work/ignored")
head -20 "$work/ignored" | tee -a "$report"
[ "$n_ignored" -le 20 ] || say "IGNORED $((n_ignored - 20)) more files"

# ---- the grade -----------------------------------------------------------------------------------
[ -z "$extra" ] || export GRADE_TASKS="$build/extra/tasks.txt"
graders() { make -C "$out/tree" -j"$(nproc)" BUILD=build ${extra:+"EXTRA_TESTS=$extra"} graders >"$work/build.log" 2>&1; }
# take_back SOURCE WHY -- refuse a file that was taken
take_back() {
    echo "$2" >"$work/why"
    sed -i "s|^TAKEN   $1$||; /^$/d" "$report"
    n_taken=$((n_taken - 1)) found=0
    refuse "$1"
}
# unlinked -- refuse the taken files that use a name which the linker did not find; if there are none, those that its messages name. False if none is refused
unlinked() {
    found=1
    for name in $(grep -oE "undefined (reference to|symbol:) .?[A-Za-z0-9_]+" "$work/build.log" | sed 's/.*[^A-Za-z0-9_]//' | sort -u); do
        for source in $(sed -n 's/^TAKEN   //p' "$report"); do
            ! nm -P "$out/tree/build/$(object "$source")" | grep -qE "^$name U" || take_back "$source" "uses $name, which nothing defines|do without $name"
        done
    done
    [ $found -eq 1 ] || return 0
    for source in $(sed -n 's/^TAKEN   //p' "$report"); do
        ! why=$(grep -m1 -F -e "/$(basename "${source%.*}").o" -e "($(basename "${source%.*}").o)" "$work/build.log") ||
            take_back "$source" "does not link: $(echo "$why" | tr -c '\n -~' '?' | cut -c1-300 | tr '|' '/')|declare things as the handout's file does"
    done
    return $found
}
graders || { unlinked && graders; } || { unlinked && graders; } ||
    give_up "the graders do not build: $(grep -m1 -E 'error|undefined|\*\*\*' "$work/build.log")" "see $work/build.log"
chmod 111 "$out/tree/build/fsdp_run" # the kernel protects the memory of a program that its user cannot read
{
    GRADE_PRIVATE=1 JUDGE_TOOL=$build/tests/grade/judge tests/grade/grade.sh "$@" "$out/tree/build"
    echo $? >"$work/status"
} | tee "$out/grade.txt"
[ "$(cat "$work/status")" -le 1 ] || give_up 'the grader did not come to its end' "see $out/grade.txt"
judged=$("$build/tests/grade/judge" --list | paste -sd' ')
say "confined by: $CONFINE" "judged outside of the learner's processes: $judged"
say "submission: $n_taken files taken, $n_refused refused, $n_ignored others that differ ignored; see $out"
logs=$out/tree/build/test/grade
[ ! -f "$logs/results.xml" ] || cp "$logs/results.xml" "$out/"
# Put the report before the text that the learner sees above all tasks.
[ ! -f "$logs/results.json" ] || LC_ALL=C awk -v kind="$CONFINE" -v judged="$judged" '
    FILENAME ~ /report.txt$/ { gsub(/[^ -~]/, "?"); gsub(/[\\"]/, "\\\\&"); if (!/^TAKEN/) report = report $0 "\\n"; next }
    /^  "output": "/ && !n++ { print "  \"extra_data\": {\"confined_by\": \"" kind "\", \"judged\": \"" judged "\"},"; $0 = "  \"output\": \"" report substr($0, 14) }
    { print }' "$report" "$logs/results.json" >"$out/results.json"
