#!/bin/sh
# base_ref_test.sh -- BASE=ref: grade lab 2 of a learner whose lab 1 is unwritten on another tree's lab 1.
#
# The learner's tree is the handout with this tree's lab 2. Takes about half a minute and works in a temporary
# folder. Prints PASS and FAIL lines; exits non-zero on a FAIL.
set -u
cd "$(dirname -- "$0")/../.." || exit 2
. tests/tools/test_lib.sh
begin base-ref
unset BUILD # may come from a make that runs this script

# grade ARGS... -- in the learner's tree
grade() { limit 300 make -j2 "$@" >"$dir/log" 2>&1 </dev/null; }

# refused NAME ARGS... -- grading must end with a hint before it builds anything
refused() {
    name=$1
    shift
    ! grade "$@" && said '^HINT: make test LAB=[1-6] BASE=ref REF=' && unsaid '^  CC '
    verdict "$name" $?
}

limit 60 tests/tools/handout.sh "$dir/tree" >"$dir/log" || exit 2
cp lab2_forward/*.c "$dir/tree/lab2_forward/" || exit 2
ln -s "$top" "$dir/ref"
cd "$dir/tree" || exit 2
mkdir later && echo text >later/file # a folder that no script knows by name

refused 'no LAB: a hint' test BASE=ref REF=../ref
refused 'LAB=9: a hint' test LAB=9 BASE=ref REF=../ref
refused 'no REF: a hint' test LAB=2 BASE=ref
refused 'REF is no tree: a hint' test LAB=2 BASE=ref REF="$dir"

grade test LAB=2 RANKS=2 BASE=ref REF=../ref &&
    said '^PASS +2.1 W=2' '^PASS +2.5 W=2' '^6 passed, 0 failed$' && cmp -s later/file build/base-ref/later/file
verdict 'lab 2 passes on the lab 1 of REF' $?

grade -C lab2_forward test TASK=2.1 RANKS=2 BASE=ref REF=../../ref && said '^PASS +2.1 W=2' && unsaid '^  (CC|LINK) '
verdict 'from the folder of lab 2, a second time: nothing is built' $?

echo >>lab2_forward/cast.c
rm -r later
# trainer/alike.c names the build, so it is compiled after every change
grade -C lab2_forward test TASK=2.1 RANKS=2 BASE=ref REF=../../ref && said '^PASS +2.1 W=2' '^  CC +lab2_forward/cast.c' &&
    [ "$(grep '^  CC ' "$dir/log" | grep -vc trainer/alike.c)" -eq 1 ] && [ ! -e build/base-ref/later/file ]
verdict 'a changed file: it alone is built; a removed one is gone' $?

echo '/* mine */' >>build/base-ref/lab2_forward/cast.c
echo new >build/base-ref/lab2_forward/notes
! grade test LAB=2 TASK=2.1 RANKS=2 BASE=ref REF=../ref && unsaid '^  CC ' && grep -q mine build/base-ref/lab2_forward/cast.c &&
    said '^overlay.sh: build/base-ref/lab2_forward/cast.c was edited there' '^HINT: cp build/base-ref/lab2_forward/cast.c lab2_forward/cast.c '
verdict 'a file that was edited in base-ref is not overwritten' $?
cp build/base-ref/lab2_forward/cast.c lab2_forward/cast.c
grade test LAB=2 TASK=2.1 RANKS=2 BASE=ref REF=../ref && said '^PASS +2.1 W=2' && [ -f build/base-ref/lab2_forward/notes ]
verdict 'copied to its own tree it is graded' $?
echo '/* mine */' >>build/base-ref/lab1_flatparam/wrap.c
! grade test LAB=2 TASK=2.1 RANKS=2 BASE=ref REF=../ref && said '^HINT: rm build/base-ref/lab1_flatparam/wrap.c ' &&
    rm build/base-ref/lab1_flatparam/wrap.c && grade test LAB=2 TASK=2.1 RANKS=2 BASE=ref REF=../ref
verdict 'an edited file of REF: refused until it is removed' $?

cp lab2_forward/forward.c "$dir/forward.c" && sed -i '/SOLUTION BEGIN 2.3/a return FSDP_EINVAL;' lab2_forward/forward.c
! grade -C lab2_forward test TASK=2.3 RANKS=2 BASE=ref REF=../../ref && said '^FAIL +2.3 W=2' \
    "^ +rerun: make test LAB=2 TASK=2.3 RANKS=2 BASE=ref REF=$dir/ref +log: [.][.]/" &&
    [ -s "lab2_forward/$(sed -n 's/^ *rerun: .* log: //p' "$dir/log")" ]
verdict 'the line to run a task again keeps BASE and REF, and names the log from the folder of lab 2' $?
cp "$dir/forward.c" lab2_forward/forward.c

# Files next to base-ref in BUILD are not part of the tree, even if git does not ignore that folder.
for kind in plain checkout; do
    if [ $kind = checkout ] && ! git init -q . >"$dir/log" 2>&1; then
        echo 'SKIP base-ref: a checkout: no git here'
        continue
    fi
    tests/tools/overlay.sh 2 ../ref out >"$dir/log" 2>&1 && touch out/more &&
        tests/tools/overlay.sh 2 ../ref "$PWD/out" >"$dir/log" 2>&1 &&
        [ -f out/base-ref/tests/grade/lab2.c ] && [ ! -e out/base-ref/out ] && [ ! -e out/base-ref/build ] &&
        cmp -s lab2_forward/cast.c out/base-ref/lab2_forward/cast.c &&
        cmp -s "$top/lab1_flatparam/wrap.c" out/base-ref/lab1_flatparam/wrap.c
    verdict "BUILD=out in a $kind tree" $?
done

# To save a minute, reuse the objects of the first run; lab 1's objects are older than its stubs.
cp -pR build/base-ref/build/. build/ && touch lab1_flatparam/*.c
! grade test LAB=2 TASK=2.5 RANKS=2 && said '^  CC +lab1_flatparam' '^(BLOCKED|TODO|FAIL) +2.5 W=2'
verdict 'without BASE=ref task 2.5 does not pass: lab 1 is unwritten' $?
exit $bad
