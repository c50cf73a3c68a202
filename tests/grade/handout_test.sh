#!/bin/sh
# handout_test.sh -- the tree that learners get: builds without a warning, every task says TODO, the trainer says
# which task is missing. About a minute; everything happens in a temporary folder.
set -eu
cd "$(dirname -- "$0")/../.."
dir=$(mktemp -d "${TMPDIR:-/tmp}/fsdp-handout.XXXXXX")
trap 'rm -rf "$dir"' EXIT
trap 'exit 130' INT TERM HUP
bad=0
complain() {
    echo "FAIL handout: $*"
    bad=1
}

timeout 60 tests/tools/handout.sh "$dir/tree"
cd "$dir/tree"
if grep -rn "SOLUTION BEGIN\|/\* STUB:" lab*; then
    complain "solution markers are left"
fi

# 1. no warning in the labs' sources, under either compiler
for cc in gcc clang; do
    command -v "$cc" >/dev/null || { echo "SKIP $cc: not installed" && continue; }
    objects=''
    for source in lab*/*.c; do
        objects="$objects build-$cc/${source%.c}.o"
    done
    # shellcheck disable=SC2086
    timeout 300 make -k -j2 CC="$cc" BUILD="build-$cc" $objects >"$dir/$cc.log" 2>&1 ||
        complain "$cc does not compile the labs: $(grep -m1 error "$dir/$cc.log")"
    if grep -E '^lab[1-6].*(warning|error):' "$dir/$cc.log"; then
        complain "$cc warns about stubs"
    fi
done

# 2. every task: TODO, or BLOCKED by one that is; nothing passes, fails, hangs or crashes
programs=$(awk '!/^#/ && NF && $5 != "-" && !s[$5]++ { print "build-gcc/tests/grade/" $5 }' tests/grade/tasks.txt)
# shellcheck disable=SC2086
timeout 600 make -j2 BUILD=build-gcc $programs >"$dir/tests.log" 2>&1 || complain "the task tests do not build: $(grep -m1 -E 'error|undefined' "$dir/tests.log")"
timeout 300 tests/grade/grade.sh --ranks "1 2" build-gcc >"$dir/grade.log" 2>&1 || true
n_lines=$(grep -c -E '^(TODO|BLOCKED) ' "$dir/grade.log" || true)
n_tasks=$(awk '!/^#/ && NF && $5 != "-"' tests/grade/tasks.txt | wc -l)
if grep -E '^(PASS|FAIL|SKIP) +[0-9]+[.]' "$dir/grade.log"; then
    complain "a task of the handed-out tree says something else than TODO or BLOCKED"
fi
if [ "$n_lines" -ne $((2 * n_tasks)) ]; then
    complain "expected $((2 * n_tasks)) lines (tasks x W=1,2), got $n_lines"
    cat "$dir/grade.log"
fi

# 3. the trainer names the missing task and fails
timeout 300 make -j2 BUILD=build-gcc build-gcc/fsdp_train >"$dir/train-build.log" 2>&1 || complain "the trainer does not build"
if timeout 60 build-gcc/fsdp_train --steps 1 >"$dir/train.log" 2>&1; then
    complain "the trainer of the handed-out tree claims success"
fi
grep -q 'task [0-9.]* is not implemented' "$dir/train.log" ||
    complain "the trainer does not name the missing task: $(tail -1 "$dir/train.log")"
[ $bad -eq 0 ] && echo "PASS handout: $n_tasks tasks, all TODO; no warnings"
exit $bad
