#!/bin/sh
# comm_faults.sh -- ranks that disagree, wait or die: an error with the right words, no hang, no process left.
#
#   tests/unit/comm_faults.sh [PROGRAM [WAY...]]       default build/tests/unit/comm_faults shm mpi run staged
#
#   shm   ranks started by mpiexec, in shared memory; without MPI by fsdp_run
#   mpi   ranks started by mpiexec, over MPI
#   run   ranks started by fsdp_run, in shared memory; the cases that depend on the launcher
#   staged  as shm, on a device whose memory is not the host's
#   nccl, hccl  started as for shm, over the own transport of FSDP_DEVICE (default cuda-sim, npu-sim); not among the defaults
#   native  that of these two which FSDP_DEVICE has
#
# The cases are in parts: disagreements, waits, stands, deaths; of nccl and hccl also alone. They mostly wait, so all parts
# of all ways go on side by side; PARTS="waits deaths" takes these of one way, one after the other. Prints one PASS or
# FAIL line per case; on FAIL the output of the ranks. Exit status 0 iff all pass. COMM_FAULT_RANKS="2 3 4" runs the
# disagreements on several numbers of ranks (default 3).

program=${1:-build/tests/unit/comm_faults}
[ $# -gt 0 ] && shift
if [ "${1:-}" = native ]; then
    case ${FSDP_DEVICE:-} in npu*) set -- hccl ;; *) set -- nccl ;; esac
fi
BUILD=$(dirname "$program")/../..
. tests/tools/env.sh
# Jobs run side by side, and each of them finds that a small /dev/shm has room for it. (UCX keeps MPICH's memory there.)
[ "$(df -k --output=avail /dev/shm 2>/dev/null | tail -1)" -ge 524288 ] 2>/dev/null || export UCX_TLS="${UCX_TLS:-^posix}"
if [ -z "${PARTS:-}" ]; then
    children='' logs='' failed=0 out=$(mktemp -d) || exit 1
    # shellcheck disable=SC2064,SC2086 # the list of now
    trap 'kill $children 2>/dev/null; rm -rf "$out"; exit 130' INT TERM HUP
    if [ $# -eq 0 ]; then
        set -- $TRANSPORTS run staged
        no_mpi 'ranks over mpi'
    fi
    for way in "$@"; do
        parts='disagreements waits stands deaths'
        [ "$way" != run ] || parts='waits stands deaths'
        case $way in ?ccl) parts="$parts alone" ;; esac
        for part in $parts; do
            PARTS=$part "$0" "$program" "$way" >"$out/$way-$part" 2>&1 &
            children="$children $!" logs="$logs $out/$way-$part"
        done
    done
    for child in $children; do
        wait "$child" || failed=1
    done
    # shellcheck disable=SC2086 # a list
    cat $logs
    rm -rf "$out"
    exit $failed
fi

way=$1
fsdp_run=$BUILD/fsdp_run
at=4 # number of the call after two to warm up: comm_open has taken one, on the group that is on top
if [ $way = staged ]; then
    on=shm at=3
    export COMM_TEST_DEVICE=separate
fi
case $way in
nccl) library=NCCL kind=cuda word=GPU start=ncclCommInitRankConfig ;;
hccl) library=HCCL kind=npu word=NPU start=HcclCommInitRootInfo ;;
*) library='' ;;
esac
if [ -n "$library" ]; then
    at=3
    export FSDP_DEVICE="${FSDP_DEVICE:-$kind-sim}"
    case $FSDP_DEVICE in
    $kind*) ;;
    *) echo "SKIP $PARTS over $way: it is not the transport of device $FSDP_DEVICE" && exit 0 ;;
    esac
    says=$("$program" 2>&1)
    [ $? = 77 ] && echo "SKIP $PARTS over $way: $says" && exit 0
fi
log=$(mktemp) || exit 1
copy=$(mktemp -d)/comm_faults_$$ # its own name, so that left processes can be told
meet=$copy-meet
cp "$program" "$copy" && mkdir "$meet" || exit 1
for plugin in "$BUILD"/fsdp_*.so; do # a program opens those in its own folder
    [ ! -e "$plugin" ] || ln -s "$(realpath "$plugin")" "$(dirname "$copy")" || exit 1
done
trap 'rm -rf "$log" "$(dirname "$copy")"' EXIT
trap 'exit 130' INT TERM HUP
failed=0

# No verdict depends on how fast the machine is: a wait for peers that should not be there lasts longer than BOUND_S, and
# what takes so long has failed. Good runs need a few seconds at most.
BOUND_S=120 NO_LIMIT_S=1000

# ranks N WORDS... -- N ranks of the program, ended after BOUND_S. on: FSDP_COMM, if not the way's; within: what starts the
# program under fsdp_run; limit: FSDP_TIMEOUT_S. They meet in $meet.
ranks() {
    n=$1
    shift
    rm -rf "${meet:?}"/*
    case $way in
    run) set -- "$fsdp_run" --no-prefix -n "$n" $within "$copy" "$@" ;;
    *) set -- $LAUNCHER -n "$n" "$copy" "$@" && export FSDP_COMM="${on:-$way}" ;;
    esac
    COMM_FAULT_MEET=$meet FSDP_TIMEOUT_S=${limit:-$NO_LIMIT_S} timeout -k 2 $BOUND_S "$@"
}

# launch N WORDS -- sets rc and seconds
launch() {
    begun=$(date +%s)
    # shellcheck disable=SC2086 # words
    ranks "$1" $2 >"$log" 2>&1
    rc=$?
    seconds=$(($(date +%s) - begun))
    [ $seconds -lt $BOUND_S ] || complain "not done in $BOUND_S s"
}

complain() {
    echo "FAIL $name over $way: $1 (status $rc, $seconds s)"
    [ $bad = 1 ] || sed 's/^/    /' "$log"
    bad=1
    failed=1
}

# The ranks' output has at least $1 lines that match $2.
expect() {
    found=$(grep -c -E "$2" "$log")
    [ "$found" -ge "$1" ] || complain "$found lines match '$2', not $1"
}

# The launcher's status is $1, that of the rank which ended first. MPICH's mpiexec says 1 in its place when it sees that rank's
# end before the end of its socket, which is left to chance (pmi_cb in pmip_cb.c); fsdp_run never does.
ended_with() {
    [ $rc = "$1" ] || { [ $way != run ] && [ $rc = 1 ] && grep -q 'EXIT CODE: 1$' "$log"; } ||
        complain "exit status is not the $1 of the first rank"
}

nobody_left() {
    for try in $(seq 900); do
        pgrep -f "$copy" >/dev/null || return
        sleep 0.1
    done
    complain "processes are left: $(pgrep -f "$copy" | tr '\n' ' ')"
}

verdict() {
    nobody_left
    [ $bad = 0 ] && echo "PASS $name over $way ($seconds s)"
}

# Case $1 on $2 ranks: all see EMISMATCH and close, neither of which waits for a time limit, some rank names both calls as in $3, later calls fail too.
disagree() {
    name="$1 n=$2${COMM_FAULT_FAKE:+ below another transport}${FSDP_LINK:+ below a link}" bad=0
    launch "$2" "$1"
    expect 1 "SAW rank .*$3"
    expect "$2" '^SAW rank [0-9]+ FSDP_EMISMATCH'
    expect "$2" '^NEXT rank [0-9]+ FSDP_EMISMATCH'
    expect "$2" "^DONE rank [0-9]+/$2\$"
    verdict
}

# good_over NAME BACKEND NOTES -- the ranks in the log did their work over the backend; so many lines of notes
good_over() {
    [ $rc = 0 ] || complain "exit status is not 0"
    expect 3 "^GOOD rank [0-9]+ over $2\$"
    expect 3 '^DONE'
    [ "$(grep -c '^note:' "$log")" = "$3" ] || complain "$(grep -c '^note:' "$log") notes, not $3"
    verdict
}

disagreements() {
    [ -z "$library" ] || export FSDP_CHECK=1
    for n in ${COMM_FAULT_RANKS:-3}; do
        odd=$((n - 1))
        good="rank [0-9]+ called all-gather #$at 'h.0' of 320 f32"
        disagree op $n "(rank $odd called reduce-scatter #$at 'h.1' of $((n * 320)) f32, $good|$good, rank $odd called reduce-scatter)"
        disagree elems $n "rank $odd called all-gather #$at 'h.0' of 321 f32"
        disagree elems_large $n "rank $odd called all-gather #$at 'large' of 3000000 f32"
        disagree dtype $n "rank $odd called all-gather #$at 'h.0' of 160 i64"
        disagree dtype_only $n "rank $odd called all-gather #$at 'h.0' of 320 f32"
        disagree label $n "rank $odd called all-gather #$at 'h.1' of 320 f32"
        disagree long_label $n "rank $odd called all-gather #$at 'xxx"
        disagree root $n "rank $odd called broadcast #$at 'step' of 7 f32 from root 1"
        disagree lengths $n 'the slices differ'
        disagree pieces $n 'the slices differ'
        disagree pairs $n "all-to-all #$at 'pairs'.*rank $odd sent .* rank 0 expected 16"
        disagree pairs_short $n "all-to-all #$at 'pairs'.*rank $odd sent 12 bytes, rank 0 expected 16"
        disagree skipped $n "rank $odd called all-gather #$at 'next' of 320 f32"
    done
    disagree subgroup 4 "rank 3 called all-gather #1 'half b' of 320 f32"
    disagree range 2 'comm_range: rank 1 has 1 ranks from 1 by 1, rank 0 has 2 from 0 by 1'
    disagree range 4 'comm_range: rank 3 has 1 ranks from 3 by 1, rank 0 has 4 from 0 by 1'
    disagree range_wide 3 'comm_range: rank 1 has 1 ranks from 1 by 1, rank 2 has 2 from 1 by 1'
    for wrong in '_without 2 ranks from 0 by 1' '_between 1 ranks from 1 by 2' '_beyond 2 ranks from 2 by 1'; do
        name="range${wrong%% *} n=3" bad=0
        launch 3 "range${wrong%% *}"
        expect 3 "^SAW rank [0-9]+ FSDP_EINVAL .*comm_range: ${wrong#* }, of 3 ranks, on rank 2"
        expect 3 '^NEXT rank [0-9]+ FSDP_EINVAL'
        expect 3 '^DONE'
        verdict
    done

    # A transport on top whose calls another one runs; it hands the host what it gets.
    if [ -z "$library" ]; then
        export COMM_FAULT_FAKE=1
        disagree label 3 "rank 2 called all-gather #3 'h.1' of 320 f32"
        disagree skipped 3 "rank 2 called all-gather #3 'next' of 320 f32"
        disagree subgroup 4 "rank 3 called all-gather #1 'half b' of 320 f32"
        unset COMM_FAULT_FAKE
    fi

    # A simulated network on top.
    export FSDP_LINK=1Gbit,100us
    disagree label 3 "rank 2 called all-gather #3 'h.1' of 320 f32"
    disagree skipped 3 "rank 2 called all-gather #3 'next' of 320 f32"
    disagree subgroup 4 "rank 3 called all-gather #1 'half b' of 320 f32"
    unset FSDP_LINK

    # The first rank that ends after a failure stays for a second, in which the others can report it.
    for how in close abort; do
        name="label then $how n=3" bad=0
        launch 3 "label $how"
        ended_ms=$(date +%s%3N)
        ended_with 9
        expect 1 '^BEGAN rank 0 '
        stayed_ms=$((ended_ms - $(sed -n 's/^BEGAN rank 0 \([0-9]*\) ms$/\1/p' "$log")))
        [ $stayed_ms -ge 1000 ] || complain "rank 0 ended the job after $stayed_ms ms"
        verdict
    done
}

# Rank $1, in the words of those who wait for it.
missing() {
    [ -n "$library" ] && echo "unknown to $library" || echo "$1"
}

# HCCL has no call that takes work back: after a failure it stays, and its stand-in must not report that.
waits() {
    [ $way != hccl ] || export FSDP_SIM_HANGS=1
    # A rank does not come: all report their last calls, the waiting one names it.
    limit=2
    for n in 2 4; do
        name="timeout n=$n" bad=0
        launch $n timeout
        [ $seconds -ge 2 ] || complain "not waited for 2 s"
        expect $((n - 1)) '^SAW rank [0-9]+ FSDP_ETIMEOUT'
        expect 1 "waited 2.0 s in all-gather #$at 'awaited' of 320 f32; missing data of ranks: $(missing $((n - 1)))\$"
        expect $n '^\[rank [0-9]+\] last calls, oldest first:'
        expect $n "all-gather #$((at - 1)) 'warm up' of 320 f32 +$n ranks  done"
        expect 1 "all-gather #$at 'awaited' of 320 f32 +$n ranks  (running|failed)"
        expect $((n - 1)) '^DONE'
        verdict
    done

    # A rank closes when the others have waited for longer than that, and closed.
    name="late_close n=3" bad=0
    launch 3 late_close
    expect 3 '^GOOD'
    expect 3 '^DONE'
    verdict
    limit=

    # A rank ends well before it has joined. fsdp_run tells the others, MPI does not.
    if [ $way = run ] || [ $way = mpi ]; then
        [ $way = run ] || limit=3
        name="gone_early n=3" bad=0
        launch 3 gone_early
        [ $rc != 0 ] && [ $rc != 124 ] || complain "not ended by the ranks"
        [ $way = mpi ] || expect 2 "comm_open: rank 2 \\(process [0-9]+\\) ended before it joined"
        [ $way = run ] || expect 1 "comm_open: MPI_Init has waited 10.0 s"
        verdict
        limit=
    fi

    # A rank cannot do its part: it says why, and the others do not wait for ever.
    limit=2
    name="stream_failed n=3" bad=0
    launch 3 stream_failed
    expect 1 '^SAW rank 2 FSDP_EIO work of the test failed'
    expect 2 '^SAW rank [01] FSDP_E(TIMEOUT|MISMATCH)' # the last rank may come with its next call
    expect 3 '^DONE'
    verdict
    limit=
    if [ -z "$library" ]; then # it compares no calls
        name="closed_queued n=3" bad=0
        launch 3 closed_queued
        expect 3 '^SAW rank [0-9]+ FSDP_EMISMATCH'
        expect 3 '^DONE'
        verdict
    fi
    if [ $way = staged ]; then
        name="no_block n=3" bad=0 device=$COMM_TEST_DEVICE
        COMM_TEST_DEVICE=apart limit=2
        launch 3 no_block
        COMM_TEST_DEVICE=$device limit=
        expect 1 '^SAW rank 2 FSDP_ENOMEM no memory of the host'
        expect 2 '^SAW rank [01] FSDP_E(TIMEOUT|MISMATCH)' # nobody awaits rank 2, or its next call is there already
        expect 3 '^DONE'
        verdict
    fi
    unset FSDP_SIM_HANGS
}

stands() {
    [ $way != hccl ] || export FSDP_SIM_HANGS=1
    # A rank stands still, in a way that its own watching cannot see.
    limit=2
    name="stopped n=3" bad=0
    launch 3 stopped
    [ $seconds -ge 2 ] || complain "not waited for 2 s"
    expect 2 '^SAW rank [01] FSDP_ETIMEOUT'
    expect 1 "waited 2.0 s in all-gather #$at 'awaited' of 320 f32; missing data of ranks: $(missing 2)\$"
    verdict
    limit=

    # All stand still for longer than the limit, and go on.
    limit=10
    name="paused n=3" bad=0
    launch 3 paused
    [ $rc = 0 ] || complain "exit status is not 0"
    expect 3 '^SAW rank [0-9]+ FSDP_OK'
    expect 3 '^DONE'
    verdict
    limit=
    unset FSDP_SIM_HANGS
}

# Ranks meet in calls of the library that block: nobody waits there for one that died, or longer than the limit.
meetings() {
    launcher=$LAUNCHER LAUNCHER="$fsdp_run --no-prefix" # lets ranks say what they see
    export COMM_FAULT_START=kill
    name="kill while ranks meet n=3" bad=0
    launch 3 good
    expect 2 'rank 2 \(process [0-9]+\) ended without leaving the group$'
    verdict
    limit=2
    export COMM_FAULT_START=sleep
    name="a rank does not come n=3" bad=0
    launch 3 good
    expect 3 "$library: $start took longer than 2\.0 s\$"
    verdict
    if [ $way = hccl ]; then
        export HCCL_CONNECT_TIMEOUT=1
        name="a rank does not come n=3, HCCL_CONNECT_TIMEOUT=1" bad=0
        launch 3 good
        expect 2 'HCCL: HcclCommInitRootInfo: timed out '
        expect 2 'HINT: .*HCCL_CONNECT_TIMEOUT'
        verdict
    fi
    unset COMM_FAULT_START HCCL_CONNECT_TIMEOUT

    name="a rank does not come to the first call of a group n=3" bad=0
    launch 3 timeout_first
    expect 2 '^SAW rank [01] FSDP_ETIMEOUT'
    expect 1 "waited 2.0 s in all-gather #1 'awaited' of 320 f32; missing data of ranks: unknown to $library\$"
    expect 3 '^DONE'
    verdict
    limit=
    name="kill before the first call of a group n=3" bad=0
    launch 3 kill_first
    expect 2 '^SAW rank [01] FSDP_ECOMM .*rank 2 \(process [0-9]+\) ended without leaving the group$'
    expect 2 '^NEXT rank [01] FSDP_ECOMM'
    expect 2 '^DONE rank [01]/3'
    verdict
    LAUNCHER=$launcher
}

# Over a device's own library: what it says nothing of itself, and ranks that it cannot serve.
alone() {
    [ "$FSDP_DEVICE" = "$kind-sim" ] || return
    # Nobody compares calls: they end by the limit, and the reports tell them apart.
    limit=2
    export FSDP_SIM_HANGS=1
    for case in op root; do
        name="$case n=3, not compared" bad=0
        launch 3 $case
        expect 3 '^SAW rank [0-9]+ FSDP_ETIMEOUT'
        expect 1 'waited 2.0 s in (all-gather|reduce-scatter|broadcast|barrier) #[34]'
        expect 3 '^\[rank [0-9]+\] last calls, oldest first:'
        [ $case = root ] || expect 2 "all-gather #3 'h.0' of 320 f32 +3 ranks  (running|failed)"
        [ $case = root ] || expect 1 "reduce-scatter #3 'h.1' of 960 f32 +3 ranks  (running|failed)"
        [ $case != root ] || expect 1 "broadcast #3 'step' of 7 f32 from root 1 +3 ranks  (running|failed)"
        [ $case != root ] || expect 1 "broadcast #3 'step' of 7 f32 from root 0 +3 ranks  (running|failed)"
        expect 3 '^DONE'
        verdict
    done
    limit=5
    name="crossed n=3, not compared" bad=0
    launch 3 crossed
    expect 3 '^SAW rank [0-9]+ FSDP_ETIMEOUT'
    expect 1 'a circle of processes, each of which waits for the next'
    expect 3 '^DONE'
    verdict
    unset FSDP_SIM_HANGS
    limit=

    meetings
    export "FSDP_SIM_${word}S=2"
    name="3 ranks on 2 ${word}s" bad=0
    launch 3 good
    [ $rc != 0 ] || complain "went on all the same"
    expect 3 "comm_open: ranks 0 and 2 share $word 0 of this host; $library needs one for each"
    verdict
    name="3 ranks on 2 ${word}s, --comm shm" bad=0 on=shm
    launch 3 good
    on=
    good_over "$name" 'shm\+staged' 0
    unset "FSDP_SIM_${word}S"

    export COMM_FAULT_MODELS=1
    name="${word}s of two models n=3" bad=0
    launch 3 good
    [ $rc != 0 ] || complain "went on all the same"
    expect 3 "${word}s differ: rank 0 has [^,]*, rank 1 has another model"
    verdict
    name="${word}s of two models, FSDP_MIXED_${word}S=1" bad=0
    export "FSDP_MIXED_${word}S=1"
    launch 3 good
    good_over "$name" $way 0
    unset "FSDP_MIXED_${word}S" COMM_FAULT_MODELS
}

deaths() {
    # A rank dies in the middle: the launcher ends the others. fsdp_run lets them say why.
    for n in 2 4; do
        for how in exit kill abort kill_reading kill_asleep exit0; do
            name="$how n=$n" bad=0
            launch $n $how
            [ $rc != 0 ] || [ $how = exit0 ] || complain "the launcher reports success"
            [ $how != abort ] || ended_with 7
            if [ $way = run ]; then
                expect $((n - 1)) '^SAW rank [0-9]+ FSDP_ECOMM'
                expect 1 "rank $((n - 1)) \\(process [0-9]+\\) ended without leaving the group\$"
            fi
            verdict
        done
    done

    # Ranks that cannot watch each other, for want of pidfds or of files: fsdp_run does.
    if [ $way = run ]; then
        export COMM_FAULT_NO_PIDFD=1
        name="exit0 without pidfds n=3" bad=0
        launch 3 exit0
        expect 2 '^SAW rank [01] FSDP_ECOMM .*rank 2 \(process [0-9]+\) ended without leaving the group$'
        verdict
        unset COMM_FAULT_NO_PIDFD
        for files in 6 7 8 9 10 11 12 13; do
            name="exit0 with $files files n=3" bad=0 within="prlimit --nofile=$files"
            launch 3 exit0
            within=
            expect 2 '(ended without leaving the group$|^HINT: )'
            verdict
        done
    fi

    # No address space for what peers show: an error, not a crash, on all.
    if [ $way = shm ] || [ $way = run ]; then
        name="no_room n=3" bad=0
        launch 3 no_room
        expect 3 '^SAW rank [0-9]+ FSDP_ENOMEM .*cannot map [0-9]+ bytes of rank [01]'
        expect 3 '^DONE'
        verdict
    fi

    name="good n=3" bad=0
    launch 3 good
    case $way in
    mpi) good_over good mpi 0 ;;
    ?ccl) good_over good $way 0 ;;
    staged) good_over good 'shm\+staged' 0 ;;
    *) good_over good shm 0 ;;
    esac

    # Where memory cannot be shared the ranks go on over MPI, and say so once; or fail when shm was asked for.
    if [ $way = shm ] && ! no_mpi 'ranks that go on over MPI'; then
        name="no shared memory under ulimit -f, n=3" bad=0 on=auto
        begun=$(date +%s)
        (ulimit -f 100000 && ranks 3 good) >"$log" 2>&1
        rc=$? seconds=$(($(date +%s) - begun))
        good_over "$name" mpi 1
        for rank in 0 2; do
            export COMM_FAULT_REFUSED=$rank
            name="rank $rank may not open others' memory, n=3" bad=0 on=auto
            launch 3 good
            good_over "$name" mpi 1
            name="$name, --comm shm" bad=0 on=shm
            launch 3 good
            [ $rc != 0 ] || complain "went on all the same"
            expect 1 "cannot map each other's memory"
            verdict
            unset COMM_FAULT_REFUSED
        done
        on=
        name="rank 1 may not map the link of rank 0, n=3" bad=0 on=mpi
        export COMM_FAULT_REFUSED=1 FSDP_LINK=1Gbit,50us,3
        launch 3 good
        unset COMM_FAULT_REFUSED FSDP_LINK
        on=
        [ $rc != 0 ] || complain "went on all the same"
        expect 3 'FSDP_LINK: ranks 0 and 1, of one simulated host, share no memory'
        verdict
    fi

    # Our memory has no name that could stay behind: every rank has memfds mapped and nothing of /dev/shm.
    if [ $way = run ]; then
        name="no file in /dev/shm, n=3" bad=0 rc=0 seconds=0
        : >"$log" # the shell in the background may empty it late: the loop would find the lines of the ranks before
        ranks 3 stay >"$log" 2>&1 &
        launcher=$!
        for try in $(seq 900); do
            [ "$(grep -c GOOD "$log")" = 3 ] && break
            sleep 0.1
        done
        n_mapped=0
        for pid in $(pgrep -f "^$copy"); do
            grep -q 'memfd:fsdp' "/proc/$pid/maps" && n_mapped=$((n_mapped + 1))
            grep -q '/dev/shm' "/proc/$pid/maps" && complain "$(grep -m1 /dev/shm "/proc/$pid/maps")"
        done
        [ $n_mapped = 3 ] || complain "$n_mapped ranks have memory to share, not 3"
        mkdir "$meet/seen.0"
        wait $launcher
        rc=$?
        [ $rc = 0 ] || complain "exit status is not 0"
        verdict
    fi

    # The launcher dies: the ranks die with it.
    name="orphans n=3" bad=0 rc=0 seconds=0
    : >"$log"
    case $way in
    run) "$fsdp_run" --no-prefix -n 3 "$copy" orphans >"$log" 2>&1 & ;;
    *) FSDP_COMM=${on:-$way} $LAUNCHER -n 3 "$copy" orphans >"$log" 2>&1 & ;;
    esac
    launcher=$!
    for try in $(seq 300); do
        [ "$(grep -c WAITING "$log")" = 3 ] && break
        sleep 0.2
    done
    expect 3 WAITING
    proxies=''
    [ $way = run ] || [ -n "$NO_MPI" ] || proxies=$(pgrep -P $launcher)
    # shellcheck disable=SC2086 # a list
    kill -KILL $launcher $proxies
    wait $launcher 2>/dev/null
    verdict
}

for part in $PARTS; do
    $part
done
exit $failed
