#!/bin/sh
# answers.sh -- check that a handout does not contain a task's answer in another place.
#
#   tests/grade/answers.sh TREE WORK         from the top of the tree with the solutions; objects go to the folder WORK
#
# key      TREE contains no long line of answer_key.md.
# text     TREE contains no two consecutive lines of a solution (ignoring blanks and braces) and no long line of a solution.
# objects  Compile each source and header of TREE, and each file with solutions of this tree, with the same command. Compare
#          the disassembled objects without names: instructions, kinds of operands, offsets into structs. The comparison uses
#            runs     of RUN instructions, with the names of called functions
#            floats   for a function with 8 or more float operations: how often it adds, divides and takes roots. Products are
#                     not compared, because a caller may multiply a factor in
#            strings  of 12 characters or more
#          If a solution's object has one of these and the object of its stub does not, no object of TREE may have it.
# $ALLOWED lists, with reasons, what solutions and given code may share. Prints a PASS or FAIL line for each check, and where
# the answer is; exit status 0 iff all hold. Needs gcc, g++ and objdump.
# shellcheck disable=SC2046,SC2086 # lists of words
set -u
tree=${1:?TREE} work=${2:?WORK}
ALLOWED=tests/grade/answers_allowed.txt
RUN=20
mkdir -p "$work" || exit 2
sources=$(grep -l 'SOLUTION BEGIN' lab[1-6]_*/*.c lab[1-6]_*/*.cpp)

. tests/tools/rule.sh

# ---- text -------------------------------------------------------------------------------------
find "$tree" -path '*/build*' -prune -o -type f ! -name '*.svg' ! -name '*.csv' ! -name '*.o' -print >"$work/files"
rule answers 'no solution stands in the tree as text' "$(awk -v allowed="$ALLOWED" '
    function plain(s) { gsub(/[ \t]+/, " ", s); sub(/^ /, "", s); sub(/ $/, "", s); return s }
    function trivial(s) { return length(s) < 12 || s ~ /^(for|while|if|else|\}|return FSDP_OK|const [a-z_]+ \*|[a-z_]+ \*[a-z]+ = &)/ }
    BEGIN { while ((getline line < allowed) > 0) if (line !~ /^#/ && line != "") ok[plain(line)] = 1 }
    FNR == 1 { before = "" ; inside = 0 }
    /SOLUTION BEGIN/ { inside = 1; id = $0; sub(/.*BEGIN /, "", id); sub(/ .*/, "", id); before = ""; next }
    /SOLUTION END/ { inside = 0; next }
    /STUB:/ { next }
    FILENAME in from {
        if (!inside) next
        s = plain($0)
        if (length(s) < 4) next
        if (length(s) >= 60 && !(s in ok)) one[s] = id " in " FILENAME
        if (before != "" && !(trivial(s) && trivial(before))) two[before "\n" s] = id " in " FILENAME
        before = s
        next
    }
    {
        s = plain($0)
        if (length(s) < 4) next
        if (s in one) print FILENAME ":" FNR ": a line of task " one[s] ": " s
        else if (before "\n" s in two && !((before in ok) || (s in ok))) print FILENAME ":" FNR ": two lines of task " two[before "\n" s] ": " before " " s
        before = s
    }
    BEGIN { for (i = 1; i < ARGC; i++) if (ARGV[i] == "--") { from_end = i; break }
        for (i = 1; i < from_end; i++) from[ARGV[i]] = 1; delete ARGV[from_end] }' $sources -- $(cat "$work/files") | sed "s|^$tree/||")"

sed -n '/^.\{60,\}$/{/^\$ /!p;}' tests/grade/answer_key.md >"$work/key"
rule answers 'no answer of the instructors'\'' key stands in the tree' "$([ -s "$work/key" ] || echo 'the key is empty'; grep -nF -f "$work/key" $(cat "$work/files") /dev/null | sed "s|^$tree/||")"

rule answers 'what may stand in both does' "$(sed '/^#/d; /^$/d' "$ALLOWED" | while IFS= read -r line; do
    grep -q -F -e "$line" $(cat "$work/files") || echo "$ALLOWED: not in the tree: $line"
done)"

# ---- objects ----------------------------------------------------------------------------------
# compile FROM TO -- compile the paths on standard input. Headers are compiled for functions that no source may use. A header
# that does not compile alone is skipped: the sources that include it have its code. -O1 keeps loops, without vectorising.
compile() (
    cd "$1" || exit 2
    flags="-O1 -fno-math-errno -fno-trapping-math -ffp-contract=off -fno-asynchronous-unwind-tables -fno-stack-protector -fcf-protection=none -D_GNU_SOURCE -I. -I$2 -Itests/sim/ascend/include -DBACKEND_ABI=0 -w $(pkg-config --cflags libcjson libxxhash mpich 2>/dev/null)"
    while IFS= read -r path; do
        mkdir -p "$2/$(dirname "$path")"
        printf '%s\n' "$path"
    done | xargs -P 2 -I{} sh -c 'case $1 in *.c) c="gcc -std=c11" ;; *.h) c="gcc -std=c11 -x c -fkeep-inline-functions -fkeep-static-functions -Dalways_inline=used" ;; *) c="g++ -std=c++17" ;; esac; $c '"$flags"' -c -o "'"$2"'/$1.o" "$1" 2>"'"$2"'/$1.err" || case $1 in *.h) ;; *) cat "'"$2"'/$1.err" && echo "$1" ;; esac' compile {}
)
# listing FOLDER -- print "kind thing function file" for each run, each count of float operations and each string in its objects
listing() (
    cd "$1" || exit 2
    find . -name '*.o' | sed 's|^\./||' | sort | while IFS= read -r object; do
        objdump -dr --no-show-raw-insn "$object" | awk -v file="${object%.o}" -v run=$RUN '
            function flush(    i, k, text) {
                for (i = 1; i + run - 1 <= n; i++) {
                    text = ""
                    for (k = 0; k < run; k++) text = text token[i + k] ";"
                    print "run " text " " name " " file
                }
                if (floats >= 8) print "floats " adds "+" subs "-" divs "/" roots "r " name " " file
                n = floats = adds = subs = muls = divs = roots = 0
            }
            /^[0-9a-f]+ <.*>:$/ { flush(); name = $2; gsub(/[<>:]/, "", name); next }
            /: R_[A-Z0-9_]+/ { # a call: use the name of the function
                if (n && token[n] ~ /^call/) { sub(/[-+]0x.*/, "", $3); token[n] = "call:" $3 }
                next
            }
            /^ +[0-9a-f]+:\t/ {
                split($0, part, "\t"); text = part[2]; sub(/ *[#<].*/, "", text)
                op = text; sub(/ .*/, "", op)
                if (op ~ /^(nop|endbr|xchg|data16|cs|leave|push|pop|ret)/) next
                rest = text; sub(/^[^ ]+ */, "", rest)
                if (op ~ /^j/ || op ~ /^call/) rest = ""
                gsub(/0x[0-9a-f]+\(%r[sb]p[^)]*\)/, "S", rest); gsub(/\(%r[sb]p[^)]*\)/, "S", rest)
                gsub(/%xmm[0-9]+/, "X", rest); gsub(/%[a-z0-9]+/, "R", rest)
                token[++n] = op rest; gsub(/ /, "", token[n])
                if (op ~ /^v?add[sp][sd]/) adds++; if (op ~ /^v?sub[sp][sd]/) subs++; if (op ~ /^v?mul[sp][sd]/) muls++
                if (op ~ /^v?div[sp][sd]/) divs++; if (op ~ /^v?sqrt[sp][sd]/) roots++
                if (op ~ /^v?(add|sub|mul|div|sqrt)[sp][sd]/) floats++
            }
            END { flush() }'
        strings -n 12 "$object" | grep ' ' | sed "s|^|string |; s|\$|	- ${object%.o}|"
    done
)
command -v objdump >/dev/null && command -v g++ >/dev/null || { echo 'SKIP answers: objects: objdump or g++ is not installed' && exit $status; }
here=$PWD
work=$(cd "$work" && pwd) tree=$(cd "$tree" && pwd)
mkdir -p "$work/common/observe"
sed 's/[\\"]/\\&/g; s/.*/"&",/' common/observe/snapshot_page.html >"$work/snapshot_page.inc"
for side in solved stub all; do
    mkdir -p "$work/$side/common/observe" && cp "$work/snapshot_page.inc" "$work/$side/common/observe/"
done
echo "$sources" | compile "$here" "$work/solved" >"$work/uncompiled"
echo "$sources" | compile "$tree" "$work/stub" >>"$work/uncompiled"
(cd "$tree" && find common lab* trainer tests docs -name '*.c' -o -name '*.cc' -o -name '*.cpp' -o -name '*.h' | sort) | compile "$tree" "$work/all" >>"$work/uncompiled"
rule answers 'all sources compile' "$(cat "$work/uncompiled")"
for side in solved stub all; do
    listing "$work/$side" >"$work/$side.list"
done
key='{ if ($1 == "string") { k = $0; sub(/\t.*/, "", k) } else k = $1 " " $2 }'
rule answers 'no solution is in the tree as code' "$(awk -v name="" "$key"'
    FILENAME ~ /stub.list$/ { stub[k] = 1; next }
    FILENAME ~ /allowed.txt$/ { stub["string " $0] = 1; next }
    FILENAME ~ /solved.list$/ { if (!(k in stub)) solved[k] = $NF ($1 == "string" ? "" : " " $(NF - 1)); next }
    k in solved { at = $NF; if (!said[at, solved[k], $1]++) print at ($1 == "string" ? "" : " " $(NF - 1)) ": " $1 " of " solved[k] ($1 == "run" ? "" : ": " substr(k, 1, 100)) }' "$ALLOWED" "$work/stub.list" "$work/solved.list" "$work/all.list")"
exit $status
