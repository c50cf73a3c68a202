# shellcheck shell=bash disable=SC2034
# verdict_lib.sh -- what scripts share that start no ranks: sourced by them, from the repository root. Makes the folder $work,
# which goes with the script.
#
#   verdict NAME PROBLEM   prints PASS; or if there is a problem FAIL, with the last lines of $work/out
#   verdict_skip TEXT      prints SKIP
#   verdict_end            last line, exit status
work=$(mktemp -d /tmp/fsdp-cli.XXXXXX) || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
n_passed=0 n_failed=0 n_skipped=0

verdict() {
    if [ -z "$2" ]; then
        echo "PASS $1"
        n_passed=$((n_passed + 1))
    else
        echo "FAIL $1: $2"
        sed 's/^/     | /' "$work/out" | tail -20
        n_failed=$((n_failed + 1))
    fi
}

verdict_skip() {
    echo "SKIP $1"
    n_skipped=$((n_skipped + 1))
}

verdict_end() {
    echo "$n_passed passed, $n_failed failed, $n_skipped skipped"
    [ $n_failed -eq 0 ]
    exit
}
