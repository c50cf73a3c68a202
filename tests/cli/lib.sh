# shellcheck shell=bash disable=SC2012,SC2016,SC2034,SC2154
# lib.sh -- what bad_input.sh, faults.sh and others share: sourced by them, from the repository root.
#
#   cli_begin BUILD          a directory of its own ($work), for files to be left alone ($keep) and those of one case
#                            ($new) in it, the trainer under a name of its own ($trainer)
#   launch W OPTION...       run it on W ranks by $starts (1: alone) under a time limit; sets rc, $work/out, $work/err
#                            starts: fsdp_run, which begins at once; $LAUNCHER where MPI is what a case is about
#   wait_for_end LIMIT_S     of $job, run in the background; sets rc
#   complain TEXT            the case $name has failed; verdict prints PASS or FAIL
#   cli_end                  last line, exit status
#
# As root the scripts run in namespaces of their own, of mounts with an empty /dev/shm and of System V segments, so that
# what is left there is theirs and mounts go with them. Elsewhere these checks are left out, with a SKIP line.

limit_s=100
n_passed=0 n_failed=0 n_skipped=0

# Call first, as cli_namespace "$0" "$@": the same script again inside the namespaces.
cli_namespace() {
    [ -z "${CLI_NAMESPACE:-}" ] && [ "$(id -u)" = 0 ] || return
    unshare -mi mount -t tmpfs tmpfs /dev/shm 2>/dev/null || return
    export CLI_NAMESPACE=1
    exec unshare -mi sh -c 'mount -t tmpfs tmpfs /dev/shm && exec "$0" "$@"' "$@"
}

cli_begin() {
    BUILD=$1
    . tests/tools/env.sh
    work=$(mktemp -d /tmp/fsdp-cli.XXXXXX) || exit 1
    [ -z "${CLI_NAMESPACE:-}" ] || mount -t tmpfs tmpfs "$work" || exit 1 # a disk may take its time for each fsync
    trainer=$work/bin/fsdp_train_$$ starts="$work/bin/fsdp_run --no-prefix" keep=$work/keep new=$work/new bad=
    mkdir "$work/bin" "$keep" "$new" && cp "$1/fsdp_train" "$trainer" && cp "$1/fsdp_run" "$work/bin" || exit 1
    trap 'cli_kill_left; rm -rf "$work" 2>/dev/null; [ -z "${CLI_NAMESPACE:-}" ] || { umount -l "$work" && rmdir "$work"; }' EXIT
    trap 'exit 1' INT TERM
}

# Only processes of the copy in $work, by their ids.
cli_left() {
    pgrep -f "$trainer"
}
cli_kill_left() {
    for pid in $(cli_left); do
        kill -KILL "$pid" 2>/dev/null
    done
}

trainers() {
    pgrep -f "^$trainer "
}

# rank_pid N -- its trainer's process, whatever lies between it and the launcher
rank_pid() {
    local pid
    for pid in $(trainers); do
        tr '\0' '\n' <"/proc/$pid/environ" 2>/dev/null | grep -qE "^(FSDP_RUN=$1 |PMI_RANK=$1\$)" && echo "$pid"
    done
}

# saved_step DIR -- the latest step that is saved there; 0: none
saved_step() {
    local step
    step=$(sed -n 's/^step-//p' "$1/latest" 2>/dev/null)
    echo "${step:-0}"
}

now_ms() {
    echo $((${EPOCHREALTIME/[.,]/} / 1000))
}

launch() {
    local ranks=$1 launcher=()
    shift
    # shellcheck disable=SC2206 # a list of words
    [ "$ranks" = 1 ] || launcher=($starts -n "$ranks")
    timed "${launcher[@]}" "$trainer" "$@"
}

# timed COMMAND... -- sets rc, seconds
timed() {
    local begun
    begun=$(now_ms)
    timeout -k 2 "$limit_s" "$@" >"$work/out" 2>"$work/err" </dev/null
    rc=$?
    took_ms=$(($(now_ms) - begun))
}

# until_true LIMIT_S COMMAND -- tries it until it is
until_true() {
    local since
    since=$(now_ms)
    until eval "$2"; do
        [ $(($(now_ms) - since)) -lt $(($1 * 1000)) ] || {
            complain "not in $1 s: $2"
            return 1
        }
        sleep 0.05
    done
}

# wait_for_end LIMIT_S -- of the job in the background, by its id in $job; killed when it lasts longer. Sets rc
wait_for_end() {
    until_true "$1" '! kill -0 "$job" 2>/dev/null || [ "$(ps -o stat= -p "$job" | cut -c1)" = Z ]' || kill -KILL "$job"
    wait "$job" 2>/dev/null
    rc=$?
}

# ---- a job that is hurt: start it, hurt it at a point, see how it ends, compare with a run that was not hurt ----------

# start W OPTION... -- launch in the background; the id of its launcher, or of the only rank, in $job
start() {
    local ranks=$1 launcher=()
    shift
    # shellcheck disable=SC2206 # a list of words. A shell's background jobs ignore SIGINT
    [ "$ranks" = 1 ] || launcher=(env --default-signal=INT $starts -n "$ranks")
    : >"$work/out" # the new shell may empty it after the first look at it
    "${launcher[@]}" "$trainer" "$@" >"$work/out" 2>"$work/err" </dev/null &
    job=$!
}

# hurt COMMAND [LIMIT_S] -- COMMAND strikes $job, which then ends: sets rc. The shell's messages about killed jobs are dropped
hurt() {
    eval "$1"
    wait_for_end "${2:-100}"
} 2>/dev/null

# says REGEX [FILE] -- a line of stderr, or of FILE, matches
says() {
    grep -qE -- "$1" "${2:-$work/err}" || complain "no line matches '$1'"
}

untrained() {
    ! grep -q '^step ' "$work/out" || complain 'it trained before'
}

# refused W REGEX OPTION... -- the run ends with status 1 and these words
refused() {
    launch "$1" "${@:3}"
    expect_status 1
    says "$2"
}

# resumed STEP -- that is where the run went on
resumed() {
    grep -q "^resumed at step $1\\b" "$work/out" || complain "did not resume at step $1"
}

# same_losses FILE FILE [N] -- all rows, or the last N
same_losses() {
    [ "$(losses "$1" | tail -n "${3:-+1}")" = "$(losses "$2" | tail -n "${3:-+1}")" ] || complain "$1: other losses"
}

# same_weights DIR DIR -- exports
same_weights() {
    cmp -s "$1/model.safetensors" "$2/model.safetensors" || complain "$1: other weights"
}

# Whether $name is one of the CASES that are wanted; all of them when none are named.
chosen() {
    [ -z "${CASES:-}" ] || [[ $name =~ $CASES ]]
}

# case_is NAME -- whether it is wanted
case_is() {
    name=$1
    chosen
}

complain() {
    [ -n "$bad" ] || echo "FAIL $name: $1"
    [ -z "$bad" ] || echo "     $1"
    [ -n "$bad" ] || sed 's/^/     | /' "$work/err" | head -12
    bad=1
}

# verdict [PATH...] -- PASS or FAIL of the case $name; what it made there is removed
verdict() {
    [ $# = 0 ] || rm -rf "$@"
    if [ -z "$bad" ]; then
        echo "PASS $name"
        n_passed=$((n_passed + 1))
    else
        n_failed=$((n_failed + 1))
    fi
    bad=
}

expect_status() {
    [ "$rc" = "$1" ] || complain "exit status $rc, expected $1"
}

skip() {
    echo "SKIP $1: $2"
    n_skipped=$((n_skipped + 1))
}

# Of System V: lines below the titles.
segments() { awk 'NR > 1 { print $4 " bytes" }' /proc/sysvipc/shm | tr '\n' ' '; }

# What a run must not leave: processes, shared memory. Waits for what is killed: while it syncs a file it stays until
# that is done, and when its first thread has ended it has no name any more, but its memory until the last has.
check_left() {
    local try left
    for ((try = 0; try < 1000; try++)); do
        left=$(cli_left) || { [ -n "${CLI_NAMESPACE:-}" ] && [ -n "$(segments)" ]; } || break
        sleep 0.1
    done
    [ -z "$left" ] || complain "processes are left: ${left//$'\n'/ }"
    [ -z "$left" ] || cli_kill_left
    # Of killed processes that clang has built: its OpenMP leaves them.
    [ -z "${CLI_NAMESPACE:-}" ] || rm -f /dev/shm/__KMP_REGISTERED_LIB_*
    [ -z "${CLI_NAMESPACE:-}" ] || [ -z "$(ls -A /dev/shm)" ] || {
        complain "left in /dev/shm: $(ls -A /dev/shm | tr '\n' ' ')"
        rm -rf /dev/shm/*
    }
    [ -z "${CLI_NAMESPACE:-}" ] || [ -z "$(segments)" ] || complain "System V segments are left: $(segments)"
}

# A line for each file below $1, name and contents.
tree_sum() {
    (cd "$1" && find . -type f -exec sha256sum {} + | LC_ALL=C sort -k2)
}

check_no_tmp() {
    local tmp
    tmp=$(find "$work" -name '*.tmp' -o -name '*.old')
    [ -z "$tmp" ] || complain "left behind: $tmp"
    [ -z "$tmp" ] || rm -rf "$tmp"
}

# The columns of a loss file that do not measure time.
losses() {
    cut -d, -f1-4 "$1"
}

# expect_good W NAME OPTION... -- the run ends with status 0
expect_good() {
    name="$2 (W=$1)"
    local ranks=$1
    shift 2
    launch "$ranks" "$@"
    [ "$rc" = 0 ] || complain "exit status $rc, expected 0"
    [ ! -s "$work/err" ] || complain "wrote to stderr"
    check_left
    check_no_tmp
}

cli_end() {
    [ -n "${CLI_NAMESPACE:-}" ] || skip '/dev/shm' 'not root, or no mount namespaces here'
    echo "$n_passed passed, $n_failed failed, $n_skipped skipped"
    [ "$n_failed" = 0 ]
    exit
}
