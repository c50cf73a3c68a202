#!/bin/sh
# overlay.sh -- this tree with the labs below LAB taken from another tree, for grading one lab by itself.
#
#   tests/tools/overlay.sh LAB REF BUILD           from the top of the tree
#
# The tree goes to BUILD/base-ref; nothing else of BUILD belongs to it. A file that did not change keeps its time and
# base-ref/build stays, so that a second run builds only what changed. What is in neither tree any more is removed.
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
inside=${build#"$here"}/ # BUILD's files as this tree would list them; an absolute path matches none

# Does a path belong to a lab below LAB?
below='function below(path) { return path ~ /^lab[1-6]_/ && substr(path, 4, 1) + 0 < lab }'
list=$(mktemp -d)
trap 'rm -rf "$list"' EXIT
trap 'exit 130' INT TERM HUP
tree_files . | awk -v lab="$lab" -v inside="$inside" "$below index(\$0, inside) != 1 && !below(\$0)" >"$list/own"
tree_files "$ref" | awk -v lab="$lab" "$below below(\$0)" >"$list/ref"
tree_copy . "$out" <"$list/own"
tree_copy "$ref" "$out" <"$list/ref"
(cd "$out" && find . -path ./build -prune -o -type f -print | sed 's|^\./||') |
    awk 'FILENAME != "-" { keep[$0] = 1; next } !($0 in keep)' "$list/own" "$list/ref" - |
    while IFS= read -r path; do
        rm -f "$out/$path"
    done
