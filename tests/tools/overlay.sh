#!/bin/sh
# overlay.sh -- this tree with the labs below LAB taken from another tree, for grading one lab by itself.
#
#   tests/tools/overlay.sh LAB REF OUT
#
# OUT is written anew except for its build folder, so that a second run builds only what changed.
set -eu
lab=$1 ref=$2 out=$3
case $lab in
[1-6]) ;;
*) echo "overlay.sh: BASE=ref needs LAB=N, the lab to grade" >&2 && exit 2 ;;
esac
if [ ! -f "$ref/lab1_flatparam/flat_param.h" ]; then
    echo "overlay.sh: BASE=ref takes the labs below $lab from another tree, got \"$ref\"" >&2
    echo "HINT: make test LAB=$lab BASE=ref REF=<directory of the reference tree>" >&2
    exit 2
fi
ref=$(CDPATH='' cd -- "$ref" && pwd)
mkdir -p "$out"
for entry in Makefile common tests tools lab*; do
    rm -rf "${out:?}/$entry"
    cp -pR "$entry" "$out/$entry"
done
for dir in lab[1-6]_*; do
    n=${dir#lab}
    [ "${n%%_*}" -lt "$lab" ] || continue
    rm -rf "${out:?}/$dir"
    cp -pR "$ref/$dir" "$out/$dir"
done
