#!/bin/sh
# run.sh -- plant known bugs, one at a time; each must turn its check red.
#
#   tests/mutants/run.sh [-l | --fit] [PATTERN ...]      make mutants [MUTANTS="lab1 2.3-*"]
#
# PATTERN: a shell pattern that is matched anywhere in the mutant's name; -l lists the names. --fit builds nothing:
# it says in a second which mutants are not whole or do not fit the sources, a line each and a PASS or FAIL line.
# A mutant is a file tests/mutants/NAME.mut:
#
#     # CHECK: grade 2.1            which check must see it (needed), one of
#                                     grade TASK    the lab's task test (tests/grade/grade.sh)
#                                     unit NAME     build/tests/unit/NAME
#                                     cmd COMMAND   any shell command in the tree's root
#     # RANKS: 2 3                  grade: world sizes to run (3)
#     # BUILD: TARGET ...           cmd: make targets to bring up to date first; $B is the build folder
#     # BUG: one line for people
#     FILE lab2_forward/forward.c
#     OLD
#     the text as it stands, one line or several, without leading and trailing newline
#     NEW
#     the text to put in its place (may be empty)
#     END
#
# FILE/OLD/NEW/END may be repeated; OLD is looked for in what the edits above it left. OLD must occur in FILE exactly
# once: a mutant that no longer fits is an error, not a kill. So are a mutant that does not compile, and a check that
# is not green before.
# Everything happens in a copy of the tree (tracked and new files) in a temporary folder; MUTANT_TREE=dir keeps it there
# and uses it again. Prints "PASS name: killed (why)" or "FAIL name: survived"; ends with "N passed, N failed".
set -u
cd "$(dirname -- "$0")/../.." || exit 2
. tests/tools/tree.sh
. tests/tools/check.sh
src=$PWD
list=0 fit=0
[ "${1:-}" = -l ] && list=1 && shift
[ "${1:-}" = --fit ] && fit=1 && shift

names=''
for f in tests/mutants/*.mut; do
    name=$(basename "$f" .mut)
    [ $# -gt 0 ] || names="$names $name"
    for pattern in "$@"; do
        # shellcheck disable=SC2254 # the argument is a pattern
        case $name in *$pattern*) names="$names $name" && break ;; esac
    done
done
if [ -z "$names" ]; then
    echo "run.sh: no mutant matches: $*" >&2
    exit 2
fi
if [ $list -eq 1 ]; then
    for name in $names; do
        echo "$name: $(sed -n 's/^# BUG: //p' "tests/mutants/$name.mut")"
    done
    exit 0
fi
if [ $fit -eq 1 ]; then
    files='' total=0
    for name in $names; do
        files="$files tests/mutants/$name.mut" total=$((total + 1))
    done
    # shellcheck disable=SC2086 # a list of words
    if awk -f tests/mutants/apply.awk $files; then
        echo "PASS mutants: all $total are whole and fit the sources"
        exit 0
    fi
    echo "FAIL mutants: each is whole, each OLD text stands in its FILE exactly once"
    exit 1
fi

tree=${MUTANT_TREE:-$(mktemp -d "${TMPDIR:-/tmp}/fsdp-mutants.XXXXXX")}
job=''
finish() {
    [ -n "$job" ] && kill -TERM "$job" 2>/dev/null && wait "$job"
    [ -n "${MUTANT_TREE:-}" ] || rm -rf "$tree"
}
trap finish EXIT
trap 'exit 130' INT TERM HUP

# A file that did not change keeps its time in a kept tree, so that make builds only what changed; a file that is gone from
# the sources, which make would still build, goes from the tree.
mkdir -p "$tree"
tree_files "$tree" | while IFS= read -r path; do
    [ -e "$path" ] || rm -f "$tree/$path"
done
tree_files . | tree_copy . "$tree" || exit 2
cd "$tree" || exit 2

# run LIMIT LOG COMMAND... -- in the background, so that a signal to this script ends it; all of its processes
run() {
    limit=$1 runlog=$2
    shift 2
    timeout -k 3 "$limit" "$@" >"$runlog" 2>&1 </dev/null &
    job=$!
    wait "$job"
    status=$?
    job=''
    return $status
}

# build CHECK FILE -- 0: up to date
build() {
    # shellcheck disable=SC2016 # $B is a word of the mutant file
    case $1 in
    grade\ 6.*) targets='build/tests/grade/lab6 build/fsdp_npu_sim.so' ;;
    grade\ *) targets=build/tests/grade/lab$(echo "${1#grade }" | cut -d. -f1) ;;
    unit\ *) targets=build/tests/unit/${1#unit } ;;
    cmd\ *) targets=$(sed -n 's/^# BUILD: //p' "$2" | sed 's/\$B/build/g') ;;
    *) echo "run.sh: $2: unknown CHECK \"$1\"" >&2 && exit 2 ;;
    esac
    # shellcheck disable=SC2086 # a list of words
    [ -z "$targets" ] || run 900 build.log make -j2 $targets
}

# check_mutant CHECK FILE -- green: 0. Its output is in check.log.
check_mutant() {
    case $1 in
    grade\ *)
        ranks=$(sed -n 's/^# RANKS: //p' "$2")
        run 300 check.log tests/grade/grade.sh --alone --task "${1#grade }" --ranks "${ranks:-3}" build
        ;;
    unit\ *) run 300 check.log "build/tests/unit/${1#unit }" ;;
    cmd\ *) run 300 check.log sh -c "B=build; ${1#cmd }" ;;
    esac
}

# why -- what the check saw
why() { reasons check.log | awk 'NR == 1 || /^ *#/' | tr -s ' \n' ' ' | cut -c2-160; }

build_error() { grep -m1 -E 'error|undefined|\*\*\*' build.log; }

# good TEXT, bad TEXT -- the verdict on the mutant
good() { passed=$((passed + 1)) && echo "PASS $name: $1"; }
bad() { failed=$((failed + 1)) && echo "FAIL $name: $1"; }

# apply FILE -- plant it. Exact text, once.
apply() { awk -v plant=1 -f tests/mutants/apply.awk "$1" >&2; }

green='|'
for name in $names; do
    mutant=tests/mutants/$name.mut
    test_line=$(sed -n 's/^# CHECK: //p' "$mutant")
    key="$test_line $(sed -n 's/^# RANKS: //p' "$mutant")"
    case $green in
    *"|$key|"*) ;;
    *)
        if ! build "$test_line" "$mutant"; then
            bad "does not build without the mutant: $(build_error)"
            continue
        elif ! check_mutant "$test_line" "$mutant"; then
            bad "\"$test_line\" is not green without the mutant: $(why)"
            cp check.log "not-green-$name.log" 2>/dev/null
            continue
        fi
        green="$green$key|"
        ;;
    esac
    files=$(sed -n 's/^FILE //p' "$mutant" | sort -u)
    if ! apply "$mutant"; then
        bad 'does not fit the sources'
    elif ! build "$test_line" "$mutant"; then
        bad "does not build: $(build_error)"
    elif check_mutant "$test_line" "$mutant"; then
        bad "survived ($test_line)"
    else
        good "killed ($(why))"
    fi
    for file in $files; do
        cp "$src/$file" "$file"
    done
done
sum
