#!/bin/sh
# handout.sh -- writes the tree that learners get: the files listed in tests/grade/handout.txt, with a stub for each solution.
#
#   tests/tools/handout.sh [--lab6] [--stars open] OUT [WITH]    (make handout OUT=dir WITH=1,2 STARS=open LAB6=1)
#
# OUT must not exist or be empty.
#
# The tree has labs 1 to 5. With --lab6 it also has lab 6, a plug-in and a stand-in for its accelerator: a quarter of the lines.
# A solution is between "/* SOLUTION BEGIN 2.1 */" and "/* SOLUTION END 2.1 */". Its stub is
#   in a function      return fsdp_todo("2.1");
#   with STUB lines    the text of each "/* STUB: text */" line of the block; nothing for an empty text. For
#                      functions that return no status, for clean-up after the block, and for helper
#                      functions at file scope that only the solution uses
#   task N.0           answer tables: the number that ends each row becomes -1
# Parameters and variables that only the solution uses get a (void), so that the stub compiles without a warning.
# A stub is between "/* TASK 2.1 BEGIN ... */" and "/* TASK 2.1 END */", by which make upgrade finds it.
# WITH: labs whose solutions stay, between the same markers; a learner then starts at a later lab. The folder of such a lab also
# has ANSWERS.md, the lab's section of tests/grade/answer_key.md. With --stars open its starred tasks are stubs nevertheless.
# handout.sums lists the checksums of the labs' files and of headers, for make upgrade in a newer tree and for make hand-in.
set -eu
lab6=0 stars=''
[ "${1:-}" != --lab6 ] || { lab6=1 && shift; }
[ "${1:-}" != --stars ] || { stars=$2 && shift 2; }
out=${1:-}
with=$(echo "${2:-}" | tr ',' ' ')
fail() {
    echo "handout.sh: $1" >&2
    echo "HINT: $2" >&2
    exit 2
}
[ -n "$out" ] || fail 'OUT is not set' 'make handout OUT=<a new directory>'
case $stars in '' | open) ;; *) fail "STARS: got \"$stars\", expected open" 'make handout OUT=dir WITH=1,2 STARS=open leaves the starred tasks of labs 1 and 2 unwritten' ;; esac
if [ -e "$out" ] && { [ ! -d "$out" ] || [ -n "$(ls -A "$out")" ]; }; then
    fail "$out is not empty" 'make handout OUT=<a new directory>'
fi
n_with=0 n_labs=$((5 + lab6))
for lab in $(seq $n_labs); do
    case " $with " in *" $lab "*) n_with=$((n_with + 1)) ;; esac
done
for lab in $with; do
    case $lab in
    [1-5]) ;;
    6) [ $lab6 -eq 1 ] || fail 'WITH names lab 6, which is not in the tree' 'make handout OUT=dir WITH=6 LAB6=1 takes lab 6 into the tree' ;;
    *) fail "WITH: got \"$lab\", expected numbers of labs from 1 to 6" 'make handout OUT=dir WITH=1,2 keeps the solutions of labs 1 and 2' ;;
    esac
done
[ $n_with -lt $n_labs ] || [ -n "$stars" ] || fail "WITH names all $n_labs labs, so nothing is left to write" 'leave out the labs that learners are to write; LAB6=1 takes lab 6 into the tree; STARS=open leaves the starred tasks unwritten'
cd "$(dirname -- "$0")/../.."
. tests/tools/tree.sh
overlay=tests/grade/handout
[ -z "$stars" ] || stars=$(awk '!/^#/ && $7 == "star:" { printf "%s ", $1 }' tests/grade/tasks.txt)

# chosen -- those paths on standard input that the manifest takes
chosen() {
    awk -v lab6=$lab6 '
        function pattern(glob) {
            gsub(/[.+(){}^$|]/, "\\\\&", glob)
            gsub(/[*]/, ".*", glob)
            return "^" glob "$"
        }
        FILENAME != "-" {
            if (/^#/ || NF == 0) next
            if ($1 !~ /^(take|lab6|leave)$/ || NF < 3) { complain(FILENAME ":" FNR ": expected take, lab6 or leave, a path, a reason"); next }
            word[++n] = $1; line[n] = FILENAME ":" FNR ": " $2; fits[n] = pattern($2)
            next
        }
        {
            took = "leave"
            for (i = 1; i <= n; i++)
                if ($0 ~ fits[i]) { took = word[i]; used[i] = 1 }
            if (took == "take" || (took == "lab6" && lab6)) print
        }
        function complain(what) { print "handout.sh: " what > "/dev/stderr"; bad = 1 }
        END {
            for (i = 1; i <= n; i++) if (!used[i]) complain(line[i] " fits no file")
            exit bad
        }' tests/grade/handout.txt -
}

mkdir -p "$out"
out=$(CDPATH='' cd -- "$out" && pwd)
list=$(mktemp)
trap 'rm -f "$list"' EXIT
tree_files . | grep -v "^$overlay/" >"$list.all"
chosen <"$list.all" >"$list" || { rm -f "$list.all" && fail 'the manifest does not fit the tree' 'mend tests/grade/handout.txt'; }
rm -f "$list.all"
tree_files . | sed -n "s|^$overlay/||p" | tree_copy "$overlay" "$out"
while IFS= read -r path; do
    [ ! -e "$out/$path" ] || fail "$path is taken, and laid over" "leave it out in tests/grade/handout.txt"
    mkdir -p "$out/$(dirname -- "$path")"
    if case $path in *.c | *.cpp) grep -q 'SOLUTION BEGIN' "$path" ;; *) false ;; esac; then
        awk -v with="$with" -v open="$stars" -f tests/tools/handout.awk "$path" >"$out/$path" || exit 1
    else
        cp -p "$path" "$out/$path"
    fi
done <"$list"
if [ $lab6 -eq 0 ]; then
    sed -i /lab6/d "$out/README.md" "$out"/tests/grade/*.txt
fi
for lab in $with; do
    {
        printf '# Lab %s: answers\n\nTo the questions at the end of [HINTS.md](HINTS.md). A line after a `$` is a command; it was run in a tree with all\nsolutions, and printed the lines below it.\n' "$lab"
        awk -v lab="$lab" '/^## / { on = $0 == "## Lab " lab; next } on' tests/grade/answer_key.md
    } >"$(echo "$out/lab$lab"_*)/ANSWERS.md"
done
(cd "$out" && tests/tools/upgrade.sh --sums >handout.sums)
n=$(grep -rl 'fsdp_todo("' "$out" --include='*.c' --include='*.cpp' | grep -c '/lab[0-9]')
lines=$(cd "$out" && tree_files . | tr '\n' '\0' | xargs -0 cat | wc -l)
echo "wrote $out: $lines lines, stubs in $n files${with:+, the solutions of labs $with}"
