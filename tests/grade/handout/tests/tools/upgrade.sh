#!/bin/sh
# upgrade.sh -- move a learner's work into this tree, which was handed out later.
#
#   tests/tools/upgrade.sh FROM      FROM: the learner's old tree (make upgrade FROM=dir); it is only read
#   tests/tools/upgrade.sh --sums    print handout.sums for this tree: for each file of a lab, a checksum of the file and one
#                                    of its text outside the tasks' borders; and one of all headers of common
#
# Text between "/* TASK 2.1 BEGIN ... */" and "/* TASK 2.1 END */" is the learner's and moves. If only the learner or only the
# course changed the text outside, the change is kept. If both changed it, the course's lines stay, and the learner's file is
# saved as FILE.mine. A file with a missing border is saved the same way. Files that the learner added to a lab's folder are
# copied. Changes outside the labs' folders are not moved.
# Exit status 0: all moved; 1: something is left to do by hand; 2: nothing was done.
set -u
cd "$(dirname -- "$0")/../.." || exit 2
dir=$(mktemp -d "${TMPDIR:-/tmp}/fsdp-upgrade.XXXXXX") || exit 2
trap 'rm -rf "$dir"' EXIT
trap 'exit 130' INT TERM HUP

# provided FILE -- the text outside the borders, and the borders themselves
provided() { awk '/\/\* TASK [^ ]+ END/ { inside = 0 } !inside { print } /\/\* TASK [^ ]+ BEGIN/ { inside = 1 }' "$1"; }
sum_of() { cksum <"$1" | tr ' ' '-'; }
sums() {
    echo "$(sum_of "$1") $(provided "$1" | cksum | tr ' ' '-')"
}
# lab_files -- the labs' files in the current tree, without build folders and object files
lab_files() { find lab[1-6]_* -type f ! -path '*/build*' ! -name '*.o' ! -name '*.mine' ! -name '*~' | sort; }

if [ "${1:-}" = --sums ]; then
    lab_files | while IFS= read -r file; do
        echo "$(sums "$file") $file"
    done
    echo "$(find common -name '*.h' | LC_ALL=C sort | tr '\n' '\0' | xargs -0 cat | cksum | tr ' ' '-') - common/*.h"
    exit
fi

from=${1:-}
refuse() {
    echo "upgrade.sh: $1" >&2
    echo "HINT: $2" >&2
    exit 2
}
[ -n "$from" ] || refuse 'FROM is not set' 'make upgrade FROM=<the tree that you worked in>'
[ -f "$from/lab1_flatparam/flat_param.h" ] || refuse "FROM: $from holds no labs" 'make upgrade FROM=<the tree that you worked in>'
from=$(CDPATH='' cd -- "$from" && pwd -P)
[ "$from" != "$(pwd -P)" ] || refuse "FROM is this tree" 'run make upgrade in the new tree; FROM names the old one'
[ -f handout.sums ] || refuse 'there is no handout.sums here' 'run make upgrade in a tree as it was handed out'

# recorded TREE FILE COLUMN -- the file's checksum when TREE was handed out; nothing if unknown
recorded() { [ ! -f "$1/handout.sums" ] || awk -v file="$2" -v c="$3" '$3 == file { print $c }' "$1/handout.sums"; }

lab_files >"$dir/here"
while IFS= read -r file; do
    [ "$(sum_of "$file")" = "$(recorded . "$file" 1)" ] ||
        refuse "$file: changed here already, so your work would be mixed with it" 'unpack a new handout and run make upgrade there'
done <"$dir/here"

n_files=0 n_left=0
moved() {
    echo "moved    $1: $2"
    n_files=$((n_files + 1))
}
# left FILE WHY HINT -- report a conflict; save the learner's file as FILE.mine if the new tree has FILE
left() {
    echo "CONFLICT $1: $2"
    [ ! -e "$1" ] || cp "$from/$1" "$1.mine"
    echo "         HINT: $3"
    n_left=$((n_left + 1))
}
# borders FILE -- "3.1#1" for each task between borders, in order; a message and status 1 if a border is missing
borders() {
    awk -v file="$1" '
        function id_of(line) { sub(/.*\/\* TASK /, "", line); sub(/ .*/, "", line); return line }
        function wrong(at, what) { print file ":" at ": " what; exit bad = 1 }
        /\/\* TASK [^ ]+ BEGIN/ {
            if (open != "") wrong(begun, "TASK " open " BEGIN without TASK " open " END")
            open = id_of($0); begun = FNR
            text = text open "#" ++n[open] "\n"
        }
        /\/\* TASK [^ ]+ END/ {
            if (open != id_of($0)) wrong(FNR, "TASK " id_of($0) " END without TASK " id_of($0) " BEGIN")
            open = ""
        }
        END {
            if (!bad && open != "") { print file ":" begun ": TASK " open " BEGIN without TASK " open " END"; bad = 1 }
            if (!bad) printf "%s", text
            exit bad
        }' "$1"
}
# unmatched IDS OTHERS FILE WORDS -- "FILE:LINE: WORDS" for the first of IDS that is not in OTHERS
unmatched() {
    id=$(printf '%s\n' "$1" | grep -v -x -F "$2" | head -1)
    [ -z "$id" ] || printf "%s:%s: $4\n" "$3" "$(grep -n "TASK ${id%#*} BEGIN" "$3" | sed -n "${id#*#}s/:.*//p")" "${id%#*}"
}
# merged OURS THEIRS -- print OURS with THEIRS's text between the borders
merged() {
    awk '
        function key(line) { sub(/.*\/\* TASK /, "", line); sub(/ .*/, "", line); return line }
        FNR == 1 { file++; split("", n) }
        /\/\* TASK [^ ]+ END/ { inside = 0 }
        file == 1 && inside { text[k] = text[k] $0 "\n" }
        file == 2 && !inside { print }
        /\/\* TASK [^ ]+ BEGIN/ { k = key($0); k = k "#" ++n[k]; inside = 1; if (file == 2) printf "%s", text[k] }' "$2" "$1"
}

(cd "$from" && lab_files) >"$dir/there"
while IFS= read -r file; do
    theirs=$from/$file
    was=$(recorded "$from" "$file" 1)
    [ "$(sum_of "$theirs")" != "$was" ] || continue # unchanged
    if [ ! -e "$file" ]; then
        if [ -z "$was" ] && [ -f "$from/handout.sums" ]; then
            mkdir -p "$(dirname "$file")" && cp -p "$theirs" "$file" && moved "$file" 'a file of your own'
        else
            left "$file" 'this tree has no such file' "move by hand what you need of $theirs"
        fi
        continue
    fi
    cmp -s "$theirs" "$file" && continue
    if ! ours_ids=$(borders "$file"); then
        refuse "$ours_ids" 'unpack a new handout and run make upgrade there'
    fi
    if ! their_ids=$(borders "$theirs"); then
        left "$file" "$their_ids" "put the line back as it stands in $file, then run make upgrade FROM=$from in a new handout"
        continue
    fi
    lacks=$(unmatched "$ours_ids" "$their_ids" "$file" "has borders of TASK %s that your file lacks")
    lacks=${lacks:-$(unmatched "$their_ids" "$ours_ids" "$theirs" "has borders of TASK %s, which the new file lacks")}
    if [ -n "$lacks" ]; then
        left "$file" "$lacks" "copy your code from $file.mine into $file by hand"
        continue
    fi
    n_tasks=$(printf '%s\n' "$ours_ids" | grep -c .)
    provided "$theirs" >"$dir/theirs"
    provided "$file" >"$dir/ours"
    was=$(recorded "$from" "$file" 2)
    if cmp -s "$dir/theirs" "$dir/ours" || [ "$(sum_of "$dir/theirs")" = "$was" ]; then
        merged "$file" "$theirs" >"$dir/new" && cat "$dir/new" >"$file" && moved "$file" "what stands between $n_tasks borders"
    elif [ "$(sum_of "$dir/ours")" = "$was" ]; then
        cp "$theirs" "$file" && moved "$file" 'the whole file, of which the course has changed nothing'
    else
        [ "$n_tasks" -eq 0 ] || { merged "$file" "$theirs" >"$dir/new" && cat "$dir/new" >"$file" && moved "$file" "what stands between $n_tasks borders"; }
        left "$file" 'you and the course have both changed lines outside the borders; the course'"'"'s lines stand here' \
            "diff $file.mine $file"
    fi
done <"$dir/there"
echo "$n_files files moved, $n_left left to do by hand"
[ $n_files -gt 0 ] || [ $n_left -gt 0 ] || echo "note: nothing in the labs of $from differs from what was handed out"
[ $n_left -eq 0 ]
