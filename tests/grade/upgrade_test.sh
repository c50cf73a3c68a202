#!/bin/sh
# upgrade_test.sh -- make handout refuses bad input and keeps the solutions that WITH names. make upgrade moves a learner's work
# into a newer handout, loses nothing, and reports what it could not move. Builds nothing; takes a few seconds.
# Prints PASS and FAIL lines; exits non-zero on a FAIL. Works in a temporary folder.
set -u
cd "$(dirname -- "$0")/../.." || exit 2
. tests/tools/test_lib.sh
begin upgrade
# refused STATUS TEXT COMMAND... -- COMMAND must end with STATUS, a line that has TEXT, and a hint
refused() {
    expected=$1 text=$2
    shift 2
    "$@" >"$dir/log" 2>&1
    [ $? -eq "$expected" ] && grep -q -F -e "$text" "$dir/log" && grep -q '^ *HINT: ' "$dir/log"
}

# ---- make handout -----------------------------------------------------------------------------
tests/tools/handout.sh "$dir/stubs" >"$dir/log" 2>&1 || { verdict 'a handout is written' 1 && exit 1; }
refused 2 'stubs is not empty' tests/tools/handout.sh "$dir/stubs" && refused 2 'OUT is not set' tests/tools/handout.sh '' &&
    refused 2 'got "7", expected' tests/tools/handout.sh "$dir/bad" 1,7 && refused 2 'got "x", expected' tests/tools/handout.sh "$dir/bad" x &&
    refused 2 'all 5 labs' tests/tools/handout.sh "$dir/bad" 1,2,3,4,5 && refused 2 'lab 6, which is not' tests/tools/handout.sh "$dir/bad" 6 &&
    refused 2 'all 6 labs' tests/tools/handout.sh --lab6 "$dir/bad" 1,2,3,4,5,6 &&
    refused 2 'got "all", expected open' make handout OUT="$dir/bad" WITH=1 STARS=all && [ ! -e "$dir/bad" ]
verdict 'make handout refuses a folder in use, and what is no lab, with a hint, and writes nothing' $?

# A kept solution has the lines of this tree without the markers.
plain() { sed '/SOLUTION \(BEGIN\|END\)/d; /\/\* STUB:/d; /\/\* TASK [^ ]* \(BEGIN\|END\)/d' "$@"; }
tests/tools/handout.sh "$dir/with" 1,2 >"$dir/log" 2>&1
problem=$?
for file in lab[1-5]_*/*.c; do
    [ ! -e "tests/grade/handout/$file" ] || continue # replaced in every handout
    case $file in
    lab[12]*) plain "$file" >"$dir/a" && plain "$dir/with/$file" >"$dir/b" && cmp "$dir/a" "$dir/b" >>"$dir/log" 2>&1 || problem=1 ;;
    *) cmp "$dir/stubs/$file" "$dir/with/$file" >>"$dir/log" 2>&1 || problem=1 ;;
    esac
done
verdict 'WITH=1,2: labs 1 and 2 as they are here, the others stubs' $problem
(cd "$dir/with" && ls lab*/ANSWERS.md) >"$dir/log" 2>&1 && [ "$(cat "$dir/log")" = "$(cd "$dir/with" && ls lab[12]_*/ANSWERS.md)" ] &&
    grep -q '^\*\*1\. Waste' "$dir/with/lab1_flatparam/ANSWERS.md" && grep -q '^\*\*3\. Bytes of a forward' "$dir/with/lab2_forward/ANSWERS.md" &&
    ! grep -q 'Bytes of a step' "$dir/with/lab2_forward/ANSWERS.md" && [ -z "$(find "$dir/stubs" -name ANSWERS.md)" ]
verdict 'WITH=1,2: answers of labs 1 and 2, and of no other' $?

make handout OUT="$dir/stars" WITH=1,2,3,4,5 STARS=open >"$dir/log" 2>&1
problem=$?
(cd "$dir/stars" && sed -n 's/.*TASK \([^ ]*\) BEGIN: yours.*/\1/p' lab*/*.c && grep -oE 'fsdp_todo\("[^"]*' lab*/*.c | sed 's/.*"//') 2>&1 | sort -u >"$dir/a"
awk '/ star: / { print $1 }' tests/grade/tasks.txt | grep -v '^3.8$' | sort >"$dir/b" # 3.8 needs no code
cmp "$dir/a" "$dir/b" >>"$dir/log" 2>&1 && [ -e "$dir/stars/lab5_prefetch/ANSWERS.md" ] || problem=1
verdict 'WITH=1,2,3,4,5 STARS=open: the tasks with a star are stubs, and no other' $problem

# ---- make upgrade -----------------------------------------------------------------------------
# The learner has worked in old; course is a newer handout with changes by the course.
cp -pR "$dir/stubs" "$dir/old" && cp -pR "$dir/stubs" "$dir/course" && cd "$dir/course" || exit 2
edit() { sed "$1" "$2" >"$dir/edited" && ! cmp -s "$dir/edited" "$2" && cp "$dir/edited" "$2" || { echo "FAIL upgrade: nothing to edit in $2" && exit 1; }; }
edit '1s|.*|/* forward.c -- newer.|' lab2_forward/forward.c
edit '1s|.*|/* optimizer.c -- newer.|' lab4_optimizer/optimizer.c
edit '1s|.*|/* prefetch_queries.c -- newer.|' lab5_prefetch/prefetch_queries.c
edit '1s|.*|# Lab 1, newer|' lab1_flatparam/README.md
tests/tools/upgrade.sh --sums >handout.sums
# fresh TREE -- make TREE a copy of the new handout, to upgrade
fresh() { rm -rf "${dir:?}/$1" && cp -pR "$dir/course" "$dir/$1" && cd "$dir/$1" || exit 2; }

cd "$dir/old" || exit 2
# In forward.c each border gets its own text: 2.2 and 2.4 have two.
awk '/TASK .* END/ { inside = 0 } !inside { print } /TASK .* BEGIN/ { inside = 1; print "    my_own(" ++n ");" }' lab2_forward/forward.c >"$dir/edited"
cp "$dir/edited" lab2_forward/forward.c
edit 's/return fsdp_todo("1.1");/return 11;/; 1s|.*|/* my flat_param.c|' lab1_flatparam/flat_param.c
echo 'int mine;' >lab2_forward/mine.c
mkdir -p lab2_forward/build && echo >lab2_forward/build/x.c && echo >lab2_forward/y.o

fresh new && tests/tools/upgrade.sh ../old >"$dir/log" 2>&1 &&
    sed '1s|.*|/* forward.c -- newer.|' ../old/lab2_forward/forward.c | cmp - lab2_forward/forward.c >>"$dir/log"
verdict 'what stands between borders moves into a file that the course has changed' $?
cmp ../old/lab1_flatparam/flat_param.c lab1_flatparam/flat_param.c >>"$dir/log" 2>&1
verdict 'a file that only the learner has changed moves as a whole' $?
cmp -s ../old/lab2_forward/mine.c lab2_forward/mine.c && [ ! -e lab2_forward/build ] && [ ! -e lab2_forward/y.o ]
verdict 'so does one that the learner has added; what was built does not' $?
cp -pR "$dir/course" "$dir/rest" && cp lab1_flatparam/flat_param.c "$dir/rest/lab1_flatparam/" && cp lab2_forward/forward.c lab2_forward/mine.c "$dir/rest/lab2_forward/" &&
    diff -r "$dir/rest" . >>"$dir/log" 2>&1 && grep -q '^3 files moved, 0 left' "$dir/log"
verdict 'nothing else has changed' $?
refused 2 'lab1_flatparam/flat_param.c: changed here already' tests/tools/upgrade.sh ../old
verdict 'a tree that holds work is not written to' $?

fresh new && refused 2 'FROM is not set' tests/tools/upgrade.sh '' && refused 2 'holds no labs' tests/tools/upgrade.sh /dev &&
    refused 2 'FROM is this tree' tests/tools/upgrade.sh . && diff -r "$dir/course" . >"$dir/log"
verdict 'FROM that is no older tree is refused with a hint' $?

(cd "$top" && tests/tools/handout.sh --lab6 "$dir/six" >"$dir/log") && cp -pR "$dir/six" "$dir/six-new" && cd "$dir/six-new" &&
    tests/tools/upgrade.sh ../old >"$dir/log" 2>&1 && grep -q '^3 files moved, 0 left' "$dir/log" && diff -r "$dir/six/lab6_npu" lab6_npu >"$dir/log"
verdict 'work in labs 1 to 5 moves into a tree that has lab 6, too' $?

cp -pR "$dir/stubs" "$dir/clash" && cd "$dir/clash" || exit 2
edit 's/return fsdp_todo("4.1");/return 41;/; 2s|.*| * my own line|' lab4_optimizer/optimizer.c
edit '2s|.*|/* mine */|' lab5_prefetch/prefetch_queries.c
fresh new && refused 1 'CONFLICT lab4_optimizer/optimizer.c: ' tests/tools/upgrade.sh ../clash && grep -q '^CONFLICT lab5_prefetch/prefetch_queries.c: ' "$dir/log" &&
    grep -q '2 left to do by hand' "$dir/log" && cmp -s ../clash/lab4_optimizer/optimizer.c lab4_optimizer/optimizer.c.mine && cmp -s ../clash/lab5_prefetch/prefetch_queries.c lab5_prefetch/prefetch_queries.c.mine &&
    cmp -s ../course/lab5_prefetch/prefetch_queries.c lab5_prefetch/prefetch_queries.c && sed 's/return fsdp_todo("4.1");/return 41;/' ../course/lab4_optimizer/optimizer.c | cmp -s - lab4_optimizer/optimizer.c
verdict 'lines outside the borders that both have changed: a CONFLICT, the learner'"'"'s file beside the course'"'"'s; tasks move' $?

# lost SED-COMMAND TEXT NAME -- upgrade when a border is missing in the learner's limiter.c
lost() {
    rm -rf "$dir/lost" && cp -pR "$dir/stubs" "$dir/lost" && cd "$dir/lost" || exit 2
    edit "s/return fsdp_todo.*/return 54;/; $1" lab5_prefetch/limiter.c
    fresh new && refused 1 "$2" tests/tools/upgrade.sh ../lost && grep -q '^CONFLICT lab5_prefetch/limiter.c: ' "$dir/log" &&
        cmp -s ../lost/lab5_prefetch/limiter.c lab5_prefetch/limiter.c.mine && cmp -s ../course/lab5_prefetch/limiter.c lab5_prefetch/limiter.c
    verdict "$3" $?
}
begin=$(grep -n 'TASK 5.4 BEGIN' "$dir/stubs/lab5_prefetch/limiter.c" | head -1 | cut -d: -f1)
end=$(grep -n 'TASK 5.4 END' "$dir/stubs/lab5_prefetch/limiter.c" | head -1 | cut -d: -f1)
lost "${end}d" "limiter.c:$begin: TASK 5.4 BEGIN without TASK 5.4 END" 'a lost END is named by file and line'
lost "${begin}d" "limiter.c:$((end - 1)): TASK 5.4 END without TASK 5.4 BEGIN" 'so is a lost BEGIN'
lost "${begin}d;${end}d" 'has borders of TASK 5.4 that your file lacks' 'and a task that has lost both'

# A handout without sums: the learner's changes outside the borders are unknown, so upgrade must not discard any.
cp -pR "$dir/old" "$dir/unsummed" && rm "$dir/unsummed/handout.sums" && fresh new && refused 1 'CONFLICT lab1_flatparam/flat_param.c' tests/tools/upgrade.sh ../unsummed &&
    grep -q '^CONFLICT lab2_forward/mine.c' "$dir/log" && grep -q 'return 11;' lab1_flatparam/flat_param.c && cmp -s ../old/lab1_flatparam/flat_param.c lab1_flatparam/flat_param.c.mine
verdict 'without handout.sums in FROM nothing is lost either' $?
cd "$top" || exit 2
exit $bad
