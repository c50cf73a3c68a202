#!/bin/sh
# run.sh -- plants known bugs, one at a time; each must make its check fail.
#
#   tests/mutants/run.sh [-l | --fit] [PATTERN ...]      make mutants [MUTANTS="lab1 2.3-*"]
#
# PATTERN: a shell pattern, matched anywhere in the mutant's name; or ROOM.mut, "lab*.mut": these tables. -l lists the names. --fit builds nothing: in a second it lists
# the mutants that are incomplete or do not fit the sources, and prints a PASS or FAIL line.
# The mutants of a folder are in a table, tests/mutants/ROOM.mut:
#
#     CHECK grade 2.1             the check that must fail for the mutants below, one of
#                                     grade TASK    the lab's task test (tests/grade/grade.sh)
#                                     unit NAME     build/tests/unit/NAME
#                                     cmd COMMAND   any shell command in the tree's root; $MPI_LAUNCHER starts ranks under MPI
#     RANKS 2 3                   grade: world sizes to run (3)
#     BUILD TARGET ...            cmd: make targets to build first, besides the programs and stand-ins that the command
#                                     names and, for a script, the trainer's programs; $B is the build folder
#     FILE lab2_forward/forward.c
#     BUG name: one line for people
#     -the old text, one line or several
#     +the new text (may be missing)
#
# A CHECK holds until the next CHECK, a FILE until the next FILE or CHECK. A mutant may have several edits: a "-" after a "+" or
# after another FILE begins the next one, which sees the edits above it. The old text must occur in its file exactly once. A
# mutant that does not fit is an error, not a kill; so is one that does not compile, and a check that fails without a mutant.
# Everything happens in a copy of the tree (tracked and new files) in a temporary folder; MUTANT_TREE=dir keeps the copy there
# and uses it again. Prints "PASS name: killed (why)" or "FAIL name: survived"; ends with "N passed, N failed".
set -u
cd "$(dirname -- "$0")/../.." || exit 2
. tests/tools/tree.sh
. tests/tools/check.sh
. tests/tools/env.sh
export MPI_LAUNCHER
top=$PWD
src=$PWD
list=0 fit=0 unit=$(printf '\037')
[ "${1:-}" = -l ] && list=1 && shift
[ "${1:-}" = --fit ] && fit=1 && shift

tables=''
for word; do
    shift
    case $word in
    *.mut) tables="$tables tests/mutants/$word" ;;
    *) set -- "$@" "$word" ;;
    esac
done

# The selected mutants, one line each: name, check, ranks, targets, files and bug.
# shellcheck disable=SC2086 # words and patterns
mutants=$(awk -v list=1 -f tests/mutants/apply.awk ${tables:-tests/mutants/*.mut} | while read -r mutant; do
    name=${mutant%%"$unit"*}
    [ $# -gt 0 ] || printf '%s\n' "$mutant"
    for pattern in "$@"; do
        # shellcheck disable=SC2254 # the argument is a pattern
        case $name in *$pattern*) printf '%s\n' "$mutant" && break ;; esac
    done
done)
if [ -z "$mutants" ]; then
    echo "run.sh: no mutant matches: $*" >&2
    exit 2
fi
if [ $list -eq 1 ]; then
    printf '%s\n' "$mutants" | awk -F "$unit" '{ print $1 ": " $6 }'
    exit 0
fi
if [ $fit -eq 1 ]; then
    if said=$(awk -f tests/mutants/apply.awk tests/mutants/*.mut); then
        echo "PASS mutants: all $said are whole and fit the sources"
        exit 0
    fi
    echo "$said"
    echo 'FAIL mutants: each is whole, each old text stands in its file exactly once'
    exit 1
fi

tree=${MUTANT_TREE:-$(mktemp -d "${TMPDIR:-/tmp}/fsdp-mutants.XXXXXX")}
chmod 755 "$tree" # other users run programs of it, confined
job=''
finish() {
    [ -n "$job" ] && kill -TERM "$job" 2>/dev/null && wait "$job"
    [ -n "${MUTANT_TREE:-}" ] || rm -rf "$tree"
}
trap finish EXIT
trap 'exit 130' INT TERM HUP

# In a kept tree an unchanged file keeps its time, so that make builds only what changed. A file that the sources no longer have
# is removed, because make would still build it.
mkdir -p "$tree"
tree_files "$tree" | while IFS= read -r path; do
    [ -e "$path" ] || rm -f "$tree/$path"
done
tree_files . | tree_copy . "$tree" || exit 2
cd "$tree" || exit 2

# run LIMIT LOG COMMAND... -- runs in the background, so that a signal to this script ends all its processes
run() {
    limit=$1 runlog=$2
    shift 2
    "$top/tests/tools/limit.sh" -k 3 "$limit" "$@" >"$runlog" 2>&1 </dev/null &
    job=$!
    wait "$job"
    status=$?
    job=''
    case $status in
    124) echo "FAIL no end after $limit s" ;;
    137) echo "FAIL killed, or no end after $limit s" ;;
    esac >>"$runlog"
    return $status
}

# build -- brings up to date what $check needs; status 0 if that works
build() {
    # shellcheck disable=SC2016 # $B is a word of the table
    case $check in
    grade\ 6.*) targets='build/fsdp_run build/tests/grade/lab6 build/fsdp_npu_sim.so' ;;
    grade\ *) targets="build/fsdp_run build/tests/grade/lab$(echo "${check#grade }" | cut -d. -f1)" ;;
    unit\ *) targets=build/tests/unit/${check#unit } ;;
    cmd\ *)
        targets=$(printf '%s\n' "$build" "$check" | sed -E '2s|.*unit\.sh .*(test_[a-z0-9_]+).*|$B/tests/unit/\1|' |
            grep -oE '\$B/[a-z0-9_./]+|(cuda|npu)-sim' | sed 's/^\$B/build/')
        case $check in *tests/*.sh*) targets="all $targets" ;; esac
        ;;
    esac
    # shellcheck disable=SC2086 # a list of words
    [ -z "$targets" ] || run 900 build.log make -j2 $targets
}

# green LIMIT -- runs $check; status 0 if it passes. Its output is in check.log. With an mpiexec that forgets statuses, $n_done
# ranks must also say DONE.
green() {
    case $check in
    grade\ *) run "$1" check.log tests/grade/grade.sh --alone --task "${check#grade }" --ranks "${ranks:-3}" build ;;
    unit\ *) run "$1" check.log "build/tests/unit/${check#unit }" ;;
    cmd\ *) run "$1" check.log sh -c "B=build; ${check#cmd }" ;;
    esac && { ! mpiexec_loses || [ "$(grep -c '^DONE' check.log)" -ge "$n_done" ]; }
}

# why -- what the check reported
why() { reasons check.log | awk 'NR == 1 || /^ *#/' | tr -s ' \n' ' ' | cut -c2-160; }

build_error() { grep -m1 -E 'error|undefined|\*\*\*' build.log; }

# good TEXT, bad TEXT -- the verdict on the mutant
good() { passed=$((passed + 1)) && echo "PASS $name: $1"; }
bad() { failed=$((failed + 1)) && echo "FAIL $name: $1"; }

# A check that hangs is ended after limit_s. The limit grows with the time that the check took without the mutant, and so with the
# machine's load.
was_green='|' # the checks that passed without a mutant: KEY=SECONDS DONE-LINES|...
while IFS=$unit read -r name check ranks build files bug; do
    key="$check $ranks"
    case $was_green in
    *"|$key="*) ;;
    *)
        if ! build; then
            bad "does not build without the mutant: $(build_error)"
            continue
        fi
        began=$(date +%s) n_done=0
        if ! green 1200; then
            bad "\"$check\" is not green without the mutant: $(why)"
            cp check.log "not-green-$name.log" 2>/dev/null
            continue
        fi
        was_green="$was_green$key=$(($(date +%s) - began)) $(grep -c '^DONE' check.log)|"
        ;;
    esac
    was=${was_green##*"|$key="} was=${was%%|*}
    limit_s=$((100 + 5 * ${was% *})) n_done=${was#* }
    if ! awk -v plant="$name" -f tests/mutants/apply.awk tests/mutants/*.mut; then
        bad 'does not fit the sources'
    elif ! build; then
        bad "does not build: $(build_error)"
    elif green $limit_s; then
        bad "survived ($check)"
    else
        good "killed ($(why))"
    fi
    for file in $files; do
        cp "$src/$file" "$file"
    done
done <<END
$mutants
END
sum
