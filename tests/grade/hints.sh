#!/bin/sh
# hints.sh -- print the hints of a task, from its lab's HINTS.md. There are three levels: 1 says what to look at, 2 which call
# to make, 3 what to write, in words.
#
#   tests/grade/hints.sh LEVEL COMMAND...   (make test LAB=2 TASK=2.1 HINTS=2) grade with COMMAND. Then print the hints, up
#                                           to LEVEL, of the first failed or unwritten task. Exit status: COMMAND's
#   tests/grade/hints.sh --check            check that HINTS.md has three levels for each task of tasks.txt and no other tasks
#
# In HINTS.md a heading "### 2.1 title" begins the hints of a task. "1. ", "2. " or "3. " at the start of a line begins a level.
set -u

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
TREE=$(CDPATH='' cd -- "${HINTS_TREE:-$here/../..}" && pwd) || exit 2
TASKS=${GRADE_TASKS:-$here/tasks.txt}
FSDP_TOOLS=$here/../tools && . "$FSDP_TOOLS/env.sh"

# file_of TASK -- the file with its hints
file_of() { echo "$TREE/lab${1%%.*}_"*/HINTS.md; }

# levels_of TASK MOST -- print its hints up to level MOST
levels_of() {
    awk -v t="$1" -v most="$2" '
        /^#/ { on = $1 == "###" && $2 == t ""; level = 0; next }
        on && /^[0-9]+\. / { level++ }
        on && level && level <= most && NF { print "  " $0 }' "$(file_of "$1")"
}

check() {
    status=0
    for t in $(awk '!/^#/ && NF { print $1 }' "$TASKS"); do
        numbers=$(levels_of "$t" 99 | sed -n 's/^  \([0-9]*\)\. .*/\1/p' | tr '\n' ' ')
        [ "$numbers" = '1 2 3 ' ] && continue
        echo "FAIL hints: $(file_of "$t"): task $t has the levels \"${numbers% }\", expected \"1 2 3\""
        status=1
    done
    for t in $(sed -n 's/^### \([0-9][^ ]*\).*/\1/p' "$TREE"/lab*/HINTS.md); do
        awk -v t="$t" '!/^#/ && $1 == t "" { found = 1 } END { exit !found }' "$TASKS" && continue
        echo "FAIL hints: $(file_of "$t"): there is no task $t in tasks.txt"
        status=1
    done
    [ $status -ne 0 ] || echo "PASS hints: every task has three levels of hints"
    exit $status
}

case ${1:-} in
--check) check ;;
[123]) level=$1 ;;
*)
    echo "hints.sh: got HINTS=${1:-}, expected 1 (what to look at), 2 (which call) or 3 (what to write, in words)" >&2
    echo "HINT: make test LAB=2 TASK=2.1 HINTS=1" >&2
    exit 2
    ;;
esac
shift
"$@"
status=$?
task=$(awk '$3 == "FAIL" || $3 == "TODO" { print $1; exit }' "$LOGS/grade/results")
if [ -n "$task" ]; then
    echo
    echo "Hints for $task, up to level $level of 3 (all of them: $(cd "$TREE" && echo "lab${task%%.*}_"*/HINTS.md)):"
    levels_of "$task" "$level"
fi
exit $status
