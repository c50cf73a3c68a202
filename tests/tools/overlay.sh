#!/bin/sh
# overlay.sh -- copies this tree, with the labs below LAB from another tree, so that one lab can be graded by itself.
#
#   tests/tools/overlay.sh LAB REF BUILD           from the top of the tree
#
# The copy goes to BUILD/base-ref; no other file of BUILD goes into it. Unchanged files keep their time and base-ref/build
# stays, so a second run builds only what changed. A file that an earlier run copied is removed if neither tree has it any more.
# A copy that was edited is not overwritten: the script stops until the edit is moved to its own tree or dropped.
# BUILD/base-ref.sums has the checksums of the copied files.
set -eu
. tests/tools/tree.sh
lab=$1 ref=$2
case $lab in
[1-6]) ;;
*)
    echo "overlay.sh: BASE=ref grades one lab, got LAB=\"$lab\"" >&2
    echo "HINT: make test LAB=2 BASE=ref REF=<directory of the reference tree>" >&2
    exit 2
    ;;
esac
if [ ! -f "$ref/lab1_flatparam/flat_param.h" ]; then
    echo "overlay.sh: BASE=ref takes the labs below $lab from another tree, got REF=\"$ref\"" >&2
    echo "HINT: make test LAB=$lab BASE=ref REF=<directory of the reference tree>" >&2
    exit 2
fi
mkdir -p "$3/base-ref"
build=$(CDPATH='' cd -- "$3" && pwd -P)
out=$build/base-ref here=$(pwd -P)/
inside=${build#"$here"}/ # the prefix of BUILD's files in this tree's list; an absolute path matches none

# Whether a path belongs to a lab below LAB.
below='function below(path) { return path ~ /^lab[1-6]_/ && substr(path, 4, 1) + 0 < lab }'
list=$(mktemp -d)
trap 'rm -rf "$list"' EXIT
trap 'exit 130' INT TERM HUP
tree_files . | awk -v lab="$lab" -v inside="$inside" "$below index(\$0, inside) != 1 && !below(\$0)" >"$list/own"
tree_files "$ref" | awk -v lab="$lab" "$below below(\$0)" >"$list/ref"

# sums -- checksum, bytes and path of each file of base-ref that standard input lists
sums() (
    cd "$out"
    xargs -r -d '\n' cksum 2>/dev/null || :
)
there() (cd "$out" && find . -path ./build -prune -o -type f -print | sed 's|^\./||')
put=$build/base-ref.sums
there >"$list/there"
[ -f "$put" ] || sums <"$list/there" >"$put" # after an interruption, all files count as copied
sed 's/^[0-9]* [0-9]* //' "$put" >"$list/put"
sums <"$list/there" | awk 'FILENAME != "-" { sum[$0] = 1; next } !($0 in sum)' "$put" - | sed 's/^[0-9]* [0-9]* //' >"$list/edited"
while IFS= read -r path; do
    from=''
    ! grep -qxF -e "$path" "$list/own" || from=.
    ! grep -qxF -e "$path" "$list/ref" || from=$ref
    [ -n "$from" ] || grep -qxF -e "$path" "$list/put" || continue # a new file, which nothing overwrites
    [ -n "$from" ] && cmp -s "$from/$path" "$out/$path" && continue
    echo "overlay.sh: $3/base-ref/$path was edited there, where it would be overwritten" >&2
    if [ "$from" = . ]; then
        echo "HINT: cp $3/base-ref/$path $path keeps the edits, rm $3/base-ref/$path drops them; edit $path" >&2
    else
        echo "HINT: rm $3/base-ref/$path drops the edits; the labs below $lab come from $ref" >&2
    fi
    exit 2
done <"$list/edited"

rm -f "$put"
tree_copy . "$out" <"$list/own"
tree_copy "$ref" "$out" <"$list/ref"
awk 'FILENAME != "-" { keep[$0] = 1; next } !($0 in keep)' "$list/own" "$list/ref" - <"$list/put" |
    while IFS= read -r path; do
        rm -f "$out/$path"
    done
cat "$list/own" "$list/ref" | sums >"$put.new"
mv "$put.new" "$put"
