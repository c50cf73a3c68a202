# shellcheck shell=sh disable=SC2034 # the scripts that source this use the variables
# test_lib.sh -- sourced by the tests of scripts, at the top of the tree.
#
#   begin NAME            dir: a folder that is removed when the script ends; log: a file in it for the output of commands
#   verdict WHAT STATUS   "PASS NAME: WHAT", or FAIL with the end of the log
#   said PATTERN...       the log has a line that matches each pattern; unsaid PATTERN: no line matches
#   complain WHAT         "FAIL NAME: WHAT"
#   limit SECONDS COMMAND...  see limit.sh
#   copy_build TREE       copies $BUILD to TREE/build, except for its folder test, where other checks write meanwhile
#   exit $bad
bad=0 top=$PWD

begin() {
    suite=$1
    dir=$(mktemp -d "${TMPDIR:-/tmp}/fsdp-test.XXXXXX") || exit 2
    log=$dir/log
    trap 'rm -rf "$dir"' EXIT
    trap 'exit 130' INT TERM HUP
    unset MAKEFLAGS MFLAGS MAKEOVERRIDES LAB TASK RANKS BASE REF # set by a make that runs the script
}

limit() { "$top/tests/tools/limit.sh" "$@"; }

complain() {
    echo "FAIL $suite: $*"
    bad=1
}

verdict() {
    [ "$2" -ne 0 ] || { echo "PASS $suite: $1" && return; }
    complain "$1"
    [ ! -f "$log" ] || grep -v '^  \(CC\|AR\|LINK\) ' "$log" | tail -n 20 | sed 's/^/     /'
}

said() {
    for pattern in "$@"; do
        grep -qE -- "$pattern" "$log" || { echo "no line like: $pattern" >>"$log" && return 1; }
    done
}
unsaid() { ! grep -qE -- "$1" "$log"; }

copy_build() {
    mkdir "$1/build" || return
    for built in "$BUILD"/*; do
        [ "$built" = "$BUILD/test" ] || cp -pR "$built" "$1/build" || return
    done
}
