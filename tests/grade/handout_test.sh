#!/bin/sh
# handout_test.sh -- the tree that learners get: it has what they need and no answer, it builds without a warning, every task says
# TODO, and the trainer names a missing task that it needs, and trains without lab 5. Takes about eight minutes and works in a temporary folder.
# shellcheck disable=SC2046,SC2086 # lists of words
set -eu
cd "$(dirname -- "$0")/../.."
. tests/tools/test_lib.sh
begin handout

limit 60 tests/tools/handout.sh "$dir/five"
limit 60 tests/tools/handout.sh --lab6 "$dir/tree"

# 0. the tree has what a learner needs and nothing else, and at most LINES lines; its targets can be made, and the files that its
# README names are there
# look TREE LINES PATH... -- PATH: further files that must not be in it
look() {
    tree=$1
    cd "$dir/$tree"
    lines=$(find . -type f -print0 | xargs -0 cat | wc -l)
    [ "$lines" -le "$2" ] || complain "$tree: $lines lines, at most $2"
    shift 2
    if grep -rn "SOLUTION BEGIN\|/\* STUB:" lab*; then
        complain "$tree: solution markers are left"
    fi
    if grep -rn '/ a->sqrt_bias2' common lab*; then
        complain "$tree: the answer of task 4.1 is in it"
    fi
    for path in common/cuda tests/sim/cuda tests/mutants tests/cli tests/gpu tests/interop tests/multihost tests/project.mk .ci "$@"; do
        [ ! -e "$path" ] || complain "$tree: $path is in it"
    done
    for name in 'tests/unit/test_*' 'tests/bench/*.[cs]*' 'handout_test.sh' 'answer_key.*' 'INSTRUCTORS.md' 'WRITEUP.md' 'hidden_example'; do
        [ -z "$(find . -path "*/$name" ! -name '*.svg')" ] || complain "$tree: $name is in it"
    done
    for target in $(make -s help | awk '$1 == "make" { print $2 }'); do
        make -n "$target" LAB=1 TASK=1.1 RANK=0 FROM=x TREE=x >"$dir/log" 2>&1 || { complain "$tree: make $target is listed: $(tail -1 "$dir/log")"; continue; }
        for script in $(grep -oE '(^|[ \t])tests/[a-z_/]+\.sh' "$dir/log"); do
            [ -x "$script" ] || complain "$tree: make $target is listed, and there is no $script"
        done
    done
    for path in $(grep -oE '`[A-Za-z0-9_/]+(/|\.md|\.txt)`' README.md | tr -d '`' | grep -v '^build'); do
        [ -e "$path" ] || [ -n "$(find . -name "$path")" ] || complain "$tree: README.md names $path, which is not there"
    done
    for option in $(sed -n 's/.*"\(--[a-z-]*\)[^"]*learner.s tree.*/\1/p' lab*/*.c | sort -u); do
        ! grep -n -e "$option" lab*/HINTS.md || complain "$tree: a hint names $option, which the tree refuses"
    done
    for page in README.md DEBUGGING.md docs/*.md; do
        for link in $(grep -oE '\]\([^)#]+' "$page" | sed 's/^](//' | grep -v '^https*:'); do
            [ -e "$(dirname "$page")/$link" ] || complain "$tree: $page links to $link, which is not there"
        done
    done
}
look five 61000 lab6_npu common/accel tests/sim tests/grade/lab6.c tests/grade/npu_lib.c
! grep -n 'lab6\|[^0-9]6[.][1-6]' README.md tests/grade/*.txt || complain 'five: its README or its tables speak of lab 6'
n_five=$lines
look tree 74700
tests/tools/doctor.sh >"$dir/log" 2>&1
! grep -iE 'cuda|not found$|No such' "$dir/log" || complain "make doctor speaks of what is not there"
(cd "$top" && limit 400 tests/grade/answers.sh "$dir/tree" "$dir/answers") || bad=1

# 1. no warning in the labs' sources, under either compiler
for cc in gcc clang; do
    command -v "$cc" >/dev/null || { echo "SKIP $cc: not installed" && continue; }
    objects=''
    for source in lab[1-5]*/*.c; do
        objects="$objects build-$cc/${source%.c}.o"
    done
    limit 300 make -k -j2 CC="$cc" BUILD="build-$cc" $objects "build-$cc/fsdp_npu_sim.so" >"$dir/$cc.log" 2>&1 ||
        complain "$cc does not compile the labs: $(grep -m1 error "$dir/$cc.log")"
    if grep -E '^lab[1-6].*(warning|error):' "$dir/$cc.log"; then
        complain "$cc warns about stubs"
    fi
done

# 2. every task is TODO, or BLOCKED by a TODO task; no task passes, fails, hangs or crashes
programs=$(awk '!/^#/ && NF && !s[$5]++ { print "build-gcc/tests/grade/" $5 }' tests/grade/tasks.txt)
limit 600 make -j2 BUILD=build-gcc build-gcc/fsdp_run $programs >"$dir/tests.log" 2>&1 || complain "the task tests do not build: $(grep -m1 -E 'error|undefined' "$dir/tests.log")"
limit 300 tests/grade/grade.sh --ranks "1 2" build-gcc >"$dir/grade.log" 2>&1 || true
n_lines=$(grep -c -E '^(TODO|BLOCKED) ' "$dir/grade.log" || true)
n_tasks=$(awk '!/^#/ && NF' tests/grade/tasks.txt | wc -l)
if grep -E '^(PASS|FAIL|SKIP) +[0-9]+[.]' "$dir/grade.log"; then
    complain "a task of the handed-out tree says something else than TODO or BLOCKED"
fi
n_want=$(awk '!/^#/ && NF { n = split($3, w, ","); for (i = 1; i <= n; i++) lines += w[i] <= 2 } END { print lines }' tests/grade/tasks.txt)
if [ "$n_lines" -ne "$n_want" ]; then
    complain "expected $n_want lines (tasks x W=1,2), got $n_lines"
    cat "$dir/grade.log"
fi

# 3. the trainer names the missing task and fails
limit 300 make -j2 BUILD=build-gcc build-gcc/fsdp_train >"$dir/train-build.log" 2>&1 || complain "the trainer does not build"
if limit 60 build-gcc/fsdp_train --steps 1 >"$dir/train.log" 2>&1; then
    complain "the trainer of the handed-out tree claims success"
fi
grep -q 'task [0-9.]* is not implemented' "$dir/train.log" ||
    complain "the trainer does not name the missing task: $(tail -1 "$dir/train.log")"

# 4. the tree without lab 6, with objects of the tree with lab 6
cp -pR build-gcc ../five/build && cd ../five
limit 300 make -j2 graders build/fsdp_train >"$dir/five.log" 2>&1 || complain "five: does not build: $(grep -m1 -E 'error|undefined|No rule' "$dir/five.log")"
limit 300 tests/grade/grade.sh --ranks 2 build >"$dir/five.log" 2>&1 || true
! grep -E '^(PASS|FAIL|SKIP) +[0-9]+[.]' "$dir/five.log" && grep -q '^BLOCKED 5.1 ' "$dir/five.log" && ! grep '6[.]1' "$dir/five.log" || complain 'five: another verdict than TODO or BLOCKED, or none of lab 5, or one of lab 6'
for target in test run; do
    ! make $target LAB=6 >"$dir/five.log" 2>&1 && grep -q '^HINT: ' "$dir/five.log" || complain "five: make $target LAB=6: $(tail -1 "$dir/five.log")"
done
cd "$dir/tree"

# 5. labs 1 to 4 solved, lab 5 unwritten or without one task: --prefetch trains with the same bits, and rank 0 says once
# what is missing
BUILD=build-gcc
. tests/tools/env.sh
for lab in "$top"/lab[1-4]_*; do
    cp "$lab"/*.c "${lab##*/}/"
done
# without TASK FILE... -- install these solved files of a lab, with a stub for TASK
without() {
    task=$1
    shift
    for file in "$@"; do
        sed -E "/SOLUTION (BEGIN|END)/{/ $task /!d}" "$top/$file" >"$dir/whole"
        awk -f "$top/tests/tools/handout.awk" "$dir/whole" >"$file"
    done
}
# losses MODE -- the losses of a run on 2 ranks whose hosts run ahead
losses() {
    FSDP_DEBUG_FILL=1 FSDP_ASYNC_COMPUTE=1 limit 60 $LAUNCHER -n 2 "$BUILD/fsdp_train" --steps 3 --batch-size 2 \
        --grad-accum 2 --reduction canonical --synthetic 10000 --prefetch "$1" --loss-csv "$dir/$1" >"$dir/$1.log" 2>&1 &&
        cut -d, -f1-3 "$dir/$1" >"$dir/$1.losses"
}
for task in '5\..' 5.1 5.2 5.3 5.4 5.5; do
    without "$task" lab5_prefetch/prefetch.c
    limit 300 make -j2 BUILD=$BUILD $BUILD/fsdp_train $BUILD/fsdp_run >"$dir/train-build.log" 2>&1 || complain "without $task: does not build"
    grep -E '^lab5.*(warning|error):' "$dir/train-build.log" && complain "without $task: a warning"
    [ -f "$dir/none.losses" ] || losses none || complain "does not train: $(tail -1 "$dir/none.log")"
    for mode in both backward-post; do
        rm -f "$dir/$mode.losses"
        if ! losses $mode || ! cmp "$dir/none.losses" "$dir/$mode.losses"; then
            complain "without $task, --prefetch $mode: other losses; $(tail -1 "$dir/$mode.log")"
        fi
        n=$(grep -c '^note: lab 5: task 5.[1-5] is not implemented; training goes on' "$dir/$mode.log" || true)
        [ "$n" -eq 1 ] || complain "without $task, --prefetch $mode: $n notes, expected 1"
    done
done

# A task of another lab is never gone without. Labs 1 to 5 solved except for one task or star: a run that needs the task is refused
# before its first step is done, with its name and a hint, on any number of ranks; every other run has the losses of the solved tree. The grader says TODO, not FAIL.
# columns: task, ranks, --prefetch, refused or same, options; a task without a line is needed by every run
cat >"$dir/open.txt" <<END
1.6  1,2,4 none,both,backward refused --layout per-param
1.6  1,2,4 none,both          refused --layout per-param --sharding none
1.6  1,2   none,both          same
2.6  1,2,4 none,both,backward refused --param-dtype bf16
2.6  1,2   none               same    --param-dtype bf16 --sharding none
2.6  1,2   none               same    --param-dtype bf16 --device separate --cpu-offload
3.2b 1,2   none               refused
3.2b 1,2   both,backward      same
3.5a 1,2   none,both          refused --sharding grad-op
3.5a 1,2   none,both          refused --sharding none
3.5a 1,2   none,both          same
3.5b 4     none,both          refused --sharding hybrid --fsdp-size 2
3.5b 2     none,both          refused --sharding none
3.5b 1     none,both          same    --sharding none
3.5b 1,2   none,both          same
3.9  1,2,4 none,both,backward refused --no-sync
3.9  1,2   none,both          refused --sharding optimizer
3.9  1,2   none               same    --no-sync --grad-accum 1
3.10 1,2,4 none,both,backward refused --gradient-checkpointing
3.10 1,2   none               refused --gradient-checkpointing auto
4.5  1,2   none,both          refused --save $dir/save
4.5  1,2   none,both          same
4.7  1,2,4 none,both,backward refused --device separate --optimizer-offload
4.7  1,2,4 none,both,backward refused --device separate --cpu-offload
4.7  1,2   none               same    --device separate --optimizer-offload --optimizer sgd
5.7  1,2,4 none,both,backward refused --bucket 100000
5.7  1,2   none,both          refused --bucket auto
END
# train PROGRAM W MODE [OPTION...] -- the losses of a run in $dir/PROGRAM.losses
train() {
    program=$1 w=$2 mode=$3
    shift 3
    rm -rf "$dir/save" "$dir/losses"
    limit 60 $LAUNCHER -n $w "$BUILD/$program" --steps 3 --batch-size 1 --grad-accum 2 --reduction canonical --synthetic 10000 --prefetch $mode "$@" \
        --loss-csv "$dir/losses" >"$dir/$program.log" 2>&1 </dev/null && cut -d, -f1-3 "$dir/losses" >"$dir/$program.losses"
}
cp "$top"/lab5_prefetch/*.c lab5_prefetch/
limit 300 make -j2 BUILD=$BUILD $BUILD/fsdp_train >"$dir/train-build.log" 2>&1 || complain "labs 1 to 5 solved: does not build"
cp $BUILD/fsdp_train $BUILD/fsdp_solved
n_open=0
for task in $(awk '$1 ~ /^[1-5]/ && $1 != "1.0" && ($1 !~ /^5/ || $7 == "star:") { print $1 }' tests/grade/tasks.txt); do
    files=$(cd "$top" && grep -l "SOLUTION BEGIN $task " lab[1-5]*/*.c) || continue # all of it is in other tasks
    without "$task" $files
    grader=$BUILD/tests/grade/lab${task%%.*}
    limit 300 make -j2 BUILD=$BUILD $BUILD/fsdp_train $grader >"$dir/train-build.log" 2>&1 || complain "without $task: does not build"
    limit 60 $LAUNCHER -n 2 $grader --task $task >"$dir/open.log" 2>&1 </dev/null || true
    grep -q "^VERDICT $task TODO" "$dir/open.log" || complain "without $task: graded $(grep VERDICT "$dir/open.log"), expected TODO"
    n_open=$((n_open + 1))
    { grep "^$task " "$dir/open.txt" || echo "$task 1,2 none,both refused"; } >"$dir/rows"
    while read -r _ ranks modes want options; do
        for mode in $(echo $modes | tr , ' '); do
            for w in $(echo $ranks | tr , ' '); do
                train fsdp_train $w $mode $options && got=trained || got='did not train'
                if [ $want = same ]; then
                    [ "$got" = trained ] && train fsdp_solved $w $mode $options && cmp "$dir/fsdp_solved.losses" "$dir/fsdp_train.losses" && continue
                elif [ "$got" != trained ] && ! grep '^step 1/' "$dir/fsdp_train.log"; then
                    grep -q "task $task is not implemented\$" "$dir/fsdp_train.log" && grep -q "^HINT: write it where fsdp_todo(\"$task\") stands\$" "$dir/fsdp_train.log" && continue
                fi
                complain "without $task: $options --prefetch $mode on $w ranks $got, expected $want: $(grep -v '^.fsdp_run' "$dir/fsdp_train.log" | tail -1)"
            done
        done
    done <"$dir/rows"
    for file in $files; do
        cp "$top/$file" "$file"
    done
done
[ $n_open -ge 28 ] || complain "$n_open tasks were left open, expected 28 or more"

# 6. lab 6 without one task: that task is TODO, later tasks are BLOCKED, and no task fails, hangs or crashes
for task in 6.1 6.2 6.3 6.4 6.5; do
    without $task $(cd "$top" && ls lab6_npu/*.c lab6_npu/*.cpp)
    limit 300 make -j2 BUILD=$BUILD $BUILD/fsdp_run $BUILD/tests/grade/lab6 $BUILD/fsdp_npu_sim.so >"$dir/npu.log" 2>&1 || complain "without $task: does not build"
    grep -E '^lab6.*(warning|error):' "$dir/npu.log" && complain "without $task: a warning"
    limit 200 tests/grade/grade.sh --alone --lab 6 --ranks 2 $BUILD >"$dir/npu.log" 2>&1 || true
    grep -q "^TODO  *$task " "$dir/npu.log" && ! grep '^FAIL ' "$dir/npu.log" || complain "without $task: $(grep -m1 " $task W=2" "$dir/npu.log")"
done
[ $bad -eq 0 ] && echo "PASS handout: $n_five lines, with lab 6 $lines; $n_tasks tasks, all TODO; no warnings; labs 5 and 6 hold out with any task unwritten; no run goes without a task that it needs"
exit $bad
