#!/bin/sh
# judge.sh -- have the judge of submissions (judge.c) call this tree's own functions, not confined; prints a PASS or FAIL line for each
# task and world size.
#
#   tests/grade/judge.sh [--lab "1 4"] [--task "1.1 4.3"] [--ranks "2 3"] [--seed N] [BUILD]
#
# --seed repeats the inputs of a verdict, which names its seed. Exit status 0: all passed; 1: something failed; 2: refused.
# shellcheck disable=SC2046,SC2086 # lists of words
set -u
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
tasks='' labs='' ranks='1 2 3 4' seed=''
while [ $# -gt 0 ]; do
    case $1 in
    --task) tasks=$(echo "${2:?}" | tr ',' ' ') && shift ;;
    --lab) labs=$(echo "${2:?}" | tr ',' ' ') && shift ;;
    --ranks) ranks=$(echo "${2:?}" | tr ',' ' ') && shift ;;
    --seed) seed=${2:?} && shift ;;
    *) BUILD=$1 ;;
    esac
    shift
done
refuse() {
    printf 'judge.sh: %s\nHINT: %s\n' "$1" "$2" >&2
    exit 2
}
BUILD=${BUILD:-build}
FSDP_TOOLS=$here/../tools && . "$FSDP_TOOLS/env.sh"
dir=$(mktemp -d) && trap 'rm -rf "$dir"' EXIT || exit 2
[ -x "$BUILD/tests/grade/judge" ] || refuse "there is no $BUILD/tests/grade/judge" 'make judge builds it'
known=" $("$BUILD/tests/grade/judge" --list | tr '\n' ' ')" n_passed=0 n_failed=0
[ -n "$tasks" ] || for t in $known; do
    case " ${labs:-${t%%.*}} " in *" ${t%%.*} "*) tasks="$tasks $t" ;; esac
done
[ -n "$tasks" ] || refuse "no task of LAB=\"$labs\" is judged" "the judged tasks:$known"
for t in $tasks; do
    case $known in *" $t "*) ;; *) refuse "task $t is not judged" "the judged tasks:$known" ;; esac
done
for w in $ranks; do
    case $w in [1-8]) ;; *) refuse "RANKS=\"$w\": expected 1 to 8" 'RANKS="2 3 4"' ;; esac
done
case $seed in *[!0-9a-fA-Fx]* | [!0-9]*) refuse "SEED=\"$seed\": expected a number" 'SEED=<the number in the verdict>' ;; esac
for w in $ranks; do
    set -- $tasks
    while [ $# -gt 0 ]; do
        args=$(printf -- '--task %s ' "$@")
        rm -f "$dir/judge"
        "$FSDP_TOOLS/limit.sh" $((60 + 10 * $#)) "$BUILD/tests/grade/judge" ${seed:+--seed "$seed"} --ranks "$w" --folder "$dir" $args -- $LAUNCHER -n "$w" \
            "$BUILD/tests/grade/worker" $args >"$dir/log" 2>&1 3>"$dir/verdicts"
        while [ $# -gt 0 ]; do
            said=$(awk -v t="$1" '$1 == "VERDICT" && $2 == t "" { sub(/^VERDICT [^ ]+ /, ""); print }' "$dir/verdicts")
            t=$1
            shift
            [ "$said" = PASS ] && echo "PASS $t W=$w" && n_passed=$((n_passed + 1)) && continue
            echo "FAIL $t W=$w: ${said:-FAIL no verdict: $(tail -1 "$dir/log")}" | sed 's/: FAIL /: /'
            n_failed=$((n_failed + 1))
            break
        done
    done
done
echo "$n_passed passed, $n_failed failed"
[ $n_failed -eq 0 ]
