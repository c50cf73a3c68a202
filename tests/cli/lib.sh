# shellcheck shell=bash
# lib.sh -- what the scripts of this folder share. A script begins with:
#
#   . "$(dirname "$0")/lib.sh"
#   cli_start "$@"           "$@": [BUILD], default build. Now at the repository root
#
# It then has $build, its own folder $work, $keep in $work for files that must not change, $new in $work for the files of a
# case, the trainer under a unique name ($trainer), and:
#
#   case_is NAME [W]         begins a case named NAME, or "NAME (W=W)" with ranks set to W; the case before it gets its PASS or
#                            FAIL line. False if NAME does not match CASES=REGEX of the environment. fresh=1: $new is empty
#   launch W OPTION...       runs the trainer on W ranks by $starts (1: alone) under a time limit; sets rc, $work/out, $work/err
#                            starts: fsdp_run, which starts fast; $MPI_LAUNCHER for cases about MPI
#   good W OPTION...         the same, and the run must succeed
#   wait_for_end             waits for $job in the background; sets rc
#   $cc                      the compiler of BUILD
#   complain TEXT            the case has failed
#   cli_end                  last line: the numbers of PASS, FAIL and SKIP lines; exit status
#
# As root a script runs in its own mount namespace, with an empty /dev/shm, and its own IPC namespace. What is left in them
# belongs to the script, and mounts end with it. Without root or namespaces these checks are skipped, with a
# SKIP line.
set -u
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 2
top_of_tree=$PWD
limit_s=${LIMIT_S:-300} # of all waits. Only a fault or a machine that starves processes reaches it
n_passed=0 n_failed=0 n_skipped=0 open='' fresh='' n_beside=0 most_beside=4

# cli_start [BUILD [WORD...]]
cli_start() {
    cli_namespace "$@"
    build=${1:-build}
    cli_begin "$build"
    export OMP_NUM_THREADS=1
}

# Runs the same script again inside the namespaces.
cli_namespace() {
    [ -z "${CLI_NAMESPACE:-}" ] && [ "$(id -u)" = 0 ] || return
    unshare -mi mount -t tmpfs tmpfs /dev/shm 2>/dev/null || return
    export CLI_NAMESPACE=1
    exec unshare -mi sh -c 'mount -t tmpfs tmpfs /dev/shm && exec "$0" "$@"' "$PWD/tests/cli/$(basename "$0")" "$@"
}

cli_begin() {
    BUILD=$1
    . tests/tools/env.sh
    . tests/tools/clock.sh
    cc=$(built_by "$1")
    work=$(mktemp -d /tmp/fsdp-cli.XXXXXX) || exit 1
    [ -z "${CLI_NAMESPACE:-}" ] || mount -t tmpfs tmpfs "$work" || exit 1 # on a disk an fsync may be slow
    trainer=$work/bin/fsdp_train_$$ starts="$work/bin/fsdp_run --no-prefix" keep=$work/keep new=$work/new bad=
    mkdir "$work/bin" "$keep" "$new" && cp "$1/fsdp_train" "$trainer" && cp "$1/fsdp_run" "$work/bin" || exit 1
    trap 'cli_kill_left; rm -rf "$work" 2>/dev/null; [ -z "${CLI_NAMESPACE:-}" ] || { umount -l "$work" && rmdir "$work"; }' EXIT
    trap 'exit 1' INT TERM
}

# Only processes of the trainer's copy in $work.
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

# rank_pid N -- the trainer process of rank N, even if other processes are between it and the launcher
rank_pid() {
    local pid
    for pid in $(trainers); do
        tr '\0' '\n' <"/proc/$pid/environ" 2>/dev/null | grep -qE "^(FSDP_RUN=$1 |PMI_RANK=$1\$)" && echo "$pid"
    done
}

# saved_step DIR -- the latest step that is saved in DIR; 0: none
saved_step() {
    local step
    step=$(sed -n 's/^step-//p' "$1/latest" 2>/dev/null)
    echo "${step:-0}"
}

limit() {
    "$top_of_tree/tests/tools/limit.sh" "$@"
}

now_ms() {
    echo $((${EPOCHREALTIME/[.,]/} / 1000))
}

launch() {
    local ranks=$1 launcher=()
    shift
    [ "$ranks" = 1 ] || launcher=($starts -n "$ranks")
    timed "${launcher[@]}" "$trainer" "$@"
}

# timed COMMAND... -- sets rc, took_ms
timed() {
    local begun
    launched=$*
    begun=$(now_ms)
    "$top_of_tree/tests/tools/limit.sh" -k 2 "$limit_s" "$@" >"$work/out" 2>"$work/err" </dev/null
    rc=$?
    took_ms=$(($(now_ms) - begun))
    [ $rc != 124 ] || [ "$took_ms" -lt $((limit_s * 1000)) ] || complain "no end after $limit_s s"
}

# ends_with STATUS COMMAND...
ends_with() {
    timed "${@:2}"
    expect_status "$1"
}

good() {
    launch "$@"
    expect_status 0
}

# until_true COMMAND -- repeats COMMAND until it succeeds
until_true() {
    await "$limit_s" "$1" || {
        complain "not in $limit_s s: $1"
        return 1
    }
}

# wait_for_end -- waits for the background job $job, and kills it after the limit. Sets rc
wait_for_end() {
    until_true '! kill -0 "$job" 2>/dev/null || [ "$(ps -o stat= -p "$job" | cut -c1)" = Z ]' || kill -KILL "$job"
    wait "$job" 2>/dev/null
    rc=$?
}

# ---- a job that is hurt: start it, hurt it at a point, see how it ends, compare with a run that was not hurt ----------

# start W OPTION... -- launches in the background; $job is the id of the launcher, or of the only rank
start() {
    local ranks=$1 launcher=()
    shift
    # A shell's background jobs ignore SIGINT, and jobs under nohup ignore SIGHUP
    [ "$ranks" = 1 ] || launcher=(env --default-signal=INT,HUP $starts -n "$ranks")
    launched="$starts $ranks"
    : >"$work/out" # the new shell may empty it only after the first look
    "${launcher[@]}" "$trainer" "$@" >"$work/out" 2>"$work/err" </dev/null &
    job=$!
}

# hurt COMMAND -- COMMAND strikes $job; waits for its end and sets rc. The shell's messages about killed jobs are dropped
hurt() {
    eval "$1"
    wait_for_end
} 2>/dev/null

# rows -- the number of rows in the job's loss file; csv: its path, if not $work/loss.csv
rows() {
    cat "${csv:-$work/loss.csv}" "${csv:-$work/loss.csv}".*.tmp 2>/dev/null | grep -c '^[0-9]'
}

# trains_on N -- waits for N more rows. The file may just now be rewritten after a save
trains_on() {
    local from now
    from=$(rows)
    until_true 'now=$(rows); [ "$now" -ge "$from" ] || from=$now; [ "$now" -ge $((from + '"$1"')) ]'
}

# says REGEX [FILE] -- a line of stderr, or of FILE, matches
says() {
    grep -qE -- "$1" "${2:-$work/err}" || complain "no line matches '$1'"
}

untrained() {
    ! grep -q '^step ' "$work/out" || complain 'it trained before'
}

# fails W REGEX OPTION... -- the run ends with status 1 and these words
fails() {
    launch "$1" "${@:3}"
    expect_status 1
    says "$2"
}

# refused W NAME REGEX HINT OPTION... -- a case: a run with the options $run and these is refused and changes nothing in $keep,
# whose tree_sum is $kept
refused() {
    case_is "$2" "$1" || return
    launch "$1" $run "${@:5}"
    expect_refusal "$3" "$4"
}

# expect_refusal REGEX HINT -- status 1, one such line and one hint for any number of ranks. If one rank fails alone, a peer that
# sees it end before the launcher ends the peer adds a hint about that.
expect_refusal() {
    local n
    n=$(grep -cE -- "$1" "$work/err")
    [ "$n" = 1 ] || complain "$n lines of stderr match '$1', expected 1"
    n=$(grep '^HINT: ' "$work/err" | grep -cv "^HINT: see that rank's last lines")
    [ "$n" = 1 ] || complain "$n hints, expected 1"
    says "^HINT: .*($2)"
    expect_failed
}

# Status 1; nothing is left, and $keep has not changed.
expect_failed() {
    expect_status 1
    check_no_tmp
    [ "$(tree_sum "$keep")" = "${kept-}" ] || {
        complain 'files of an earlier run have changed'
        kept=$(tree_sum "$keep")
    }
}

# resumed STEP -- the run resumed at STEP
resumed() {
    grep -q "^resumed at step $1\\b" "$work/out" || complain "did not resume at step $1"
}

# same_losses FILE FILE [N] -- all rows, or the last N
same_losses() {
    [ "$(losses "$1" | tail -n "${3:-+1}")" = "$(losses "$2" | tail -n "${3:-+1}")" ] || complain "$1: other losses"
}

# same_weights DIR DIR -- for two exports
same_weights() {
    cmp -s "$1/model.safetensors" "$2/model.safetensors" || complain "$1: other weights"
}

# Whether CASES selects $name; without CASES every case is selected.
chosen() {
    [ -z "${CASES:-}" ] || [[ $name =~ $CASES ]]
}

case_is() {
    [ -z "$open" ] || end_case
    name="$1${2:+ (W=$2)}"
    [ -z "$fresh" ] || rm -rf "${new:?}"/*
    ranks=${2:-${ranks:-}}
    chosen && open=1
}

# judge NAME PROBLEM -- a case, which fails if PROBLEM is not empty
judge() {
    case_is "$1" || return
    [ -z "$2" ] || complain "$2"
}

# beside COMMAND... -- runs cases in a separate shell and folder while others go on. most_beside limits the background jobs.
# cli_end waits for them
beside() {
    while [ "$(jobs -rp | wc -l)" -ge $most_beside ]; do
        wait -n 2>/dev/null
    done
    n_beside=$((n_beside + 1))
    (
        trap 'cli_kill_left' EXIT
        work=$work/beside-$n_beside keep=$work/keep new=$work/new copied=$trainer trainer=$work/fsdp_train open='' bad=''
        CLI_NAMESPACE='' # the cases share /dev/shm
        mkdir "$work" "$keep" "$new" && ln "$copied" "$trainer" || exit
        "$@"
        [ -z "$open" ] || end_case
    ) >"$work/beside-$n_beside.log" 2>&1 &
}

wait_beside() {
    local n log
    [ "$n_beside" = 0 ] || wait
    for ((n = 1; n <= n_beside; n++)); do
        log=$work/beside-$n.log
        cat "$log"
        n_passed=$((n_passed + $(grep -c '^PASS' "$log"))) n_failed=$((n_failed + $(grep -c '^FAIL' "$log")))
        n_skipped=$((n_skipped + $(grep -c '^SKIP' "$log")))
    done
    n_beside=0
}

complain() {
    [ -n "$bad" ] || echo "FAIL $name: $1"
    [ -z "$bad" ] || echo "     $1"
    [ -n "$bad" ] || sed 's/^/     | /' "$work/err" | head -12
    bad=1
}

# No process of the case is left.
end_case() {
    check_left
    verdict
}

# Prints PASS or FAIL for the case $name and ends it.
verdict() {
    open=''
    if [ -z "$bad" ]; then
        echo "PASS $name"
        n_passed=$((n_passed + 1))
    else
        n_failed=$((n_failed + 1))
    fi
    bad=
}

# Whether the launcher reports success that it may report although a rank has failed: a version of mpiexec that forgets statuses, and
# a job that did not come to its end.
forgotten() {
    [ "$rc" = 0 ] && [ -z "$NO_MPI" ] && [[ ${launched:-} = "$MPI_LAUNCHER "* ]] && mpiexec_loses && ! grep -q '^done: ' "$work/out"
}

expect_status() {
    [ "$rc" = "$1" ] || forgotten || complain "exit status $rc, expected $1"
}

# skip NAME WHY -- a SKIP line for $name or another case
skip() {
    [ "$1" != "$name" ] || open=''
    echo "SKIP $1: $2"
    n_skipped=$((n_skipped + 1))
}

# System V segments; the first line is a title.
segments() {
    local lines
    mapfile -s 1 -t lines </proc/sysvipc/shm
    [ ${#lines[@]} = 0 ] || printf '%s\n' "${lines[@]}"
}

# Whether a file below $work, a file system of its own, is locked.
locked() {
    grep -q "^[0-9]*: OFDLCK .* $(stat -c '%Hd %Ld' "$work" | xargs printf '%02x:%02x'):" /proc/locks
} 2>/dev/null

# A run must leave no processes and no shared memory. Waits for killed processes: one that syncs a file stays until the sync is
# done; one that has lost its name, or whose first thread has ended, keeps its memory and its locks until the last thread ends.
check_left() {
    local left shm=${CLI_NAMESPACE:-}
    [ "$n_beside" = 0 ] || shm='' # cases side by side share it
    await 100 '! left=$(cli_left) && { [ -z "$shm" ] || { [ -z "$(segments)" ] && ! locked; }; }'
    [ -z "$left" ] || complain "processes are left: ${left//$'\n'/ }"
    [ -z "$left" ] || cli_kill_left
    [ -n "$shm" ] || return
    [ -z "$(segments)" ] || complain "System V segments are left: $(segments)"
    compgen -G '/dev/shm/*' >/dev/null || return
    rm -f /dev/shm/__KMP_REGISTERED_LIB_* # OpenMP of clang leaves these when a process is killed
    left=$(ls -A /dev/shm)
    [ -z "$left" ] || complain "left in /dev/shm: ${left//$'\n'/ }"
    rm -rf /dev/shm/*
}

# One line for each file below $1: hash and name.
tree_sum() {
    (cd "$1" && find . -type f -exec sha256sum {} + | LC_ALL=C sort -k2)
}

check_no_tmp() {
    local tmp
    tmp=$(find "$work" -path "$work/beside-*" -prune -o '(' -name '*.tmp' -o -name '*.old' ')' -print)
    [ -z "$tmp" ] || complain "left behind: $tmp"
    [ -z "$tmp" ] || rm -rf "$tmp"
}

# The columns of a loss file that do not measure time.
losses() {
    cut -d, -f1-4 "$1"
}

# expect_good W NAME OPTION... -- a case: the run succeeds, prints nothing on stderr, and leaves nothing
expect_good() {
    case_is "$2" "$1"
    good "$1" "${@:3}"
    [ ! -s "$work/err" ] || complain "wrote to stderr"
    check_no_tmp
}

cli_end() {
    wait_beside
    [ -z "$open" ] || end_case
    [ -n "${CLI_NAMESPACE:-}" ] || skip '/dev/shm' 'not root, or no mount namespaces here'
    echo "$n_passed passed, $n_failed failed, $n_skipped skipped"
    [ "$n_failed" = 0 ]
    exit
}
