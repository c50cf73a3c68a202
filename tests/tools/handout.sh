#!/bin/sh
# handout.sh -- write the tree that learners get: this one, with each solution replaced by a stub.
#
#   tests/tools/handout.sh OUT          (make handout OUT=dir; OUT must not exist or be empty)
#
# A solution stands between "/* SOLUTION BEGIN 2.1 */" and "/* SOLUTION END 2.1 */". Its stub is
#   in a function      return fsdp_todo("2.1");
#   with STUB lines    the text of each "/* STUB: text */" line of the block; nothing for an empty text. For
#                      functions that return no status, for clean-up behind the block, and for helper
#                      functions at file scope that only the solution uses
#   task N.0           answer tables: the number that ends each row becomes -1
# Parameters and variables that only the solution uses get a (void), so that the stub compiles without a warning.
# Left out of the tree: what shows solutions (tests/mutants) and what makes handouts.
set -eu
out=${1:-}
if [ -z "$out" ]; then
    echo "usage: tests/tools/handout.sh OUT" >&2
    exit 2
fi
if [ -d "$out" ] && [ -n "$(ls -A "$out")" ]; then
    echo "handout.sh: $out is not empty" >&2
    echo "HINT: make handout OUT=<a new directory>" >&2
    exit 2
fi
mkdir -p "$out"
out=$(CDPATH='' cd -- "$out" && pwd)
cd "$(dirname -- "$0")/../.."
. tests/tools/tree.sh

tree_files . |
    grep -v -E '^(tests/mutants/|tests/tools/handout|tests/grade/(handout|base_ref)_test.sh|handout/)' |
    while IFS= read -r path; do
        mkdir -p "$out/$(dirname -- "$path")"
        if case $path in *.c | *.cpp) grep -q 'SOLUTION BEGIN' "$path" ;; *) false ;; esac; then
            awk -f tests/tools/handout.awk "$path" >"$out/$path" || exit 1
        else
            cp -p "$path" "$out/$path"
        fi
    done
n=$(grep -rl 'fsdp_todo("' "$out" --include='*.c' --include='*.cpp' | grep -c '/lab[0-9]')
echo "wrote $out: stubs in $n files"
