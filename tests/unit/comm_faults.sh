#!/bin/bash
# comm_faults.sh -- ranks that disagree, wait or die get an error with the right words; no hang, no process left.
#
#   tests/unit/comm_faults.sh [PROGRAM [WAY...]]       default build/tests/unit/comm_faults shm mpi run staged
#
#   shm   ranks started under MPI, in shared memory; without MPI by fsdp_run
#   mpi   ranks started under MPI, over MPI
#   run   ranks started by fsdp_run, in shared memory
#   staged  like run, on a device whose memory is not the host's
#   nccl, hccl  started by fsdp_run, over the transport of FSDP_DEVICE (default cuda-sim, npu-sim); not among the defaults
#   native  nccl or hccl, whichever FSDP_DEVICE has
#
# The cases come in parts: disagreements, waits, stands, deaths; nccl and hccl also have the part alone. By default shm has no
# disagreements, because run has the same transport and starts faster. The cases mostly wait, so all parts of all ways run side by side. PARTS="waits deaths" runs these parts of one way, one after the other. Prints one
# PASS or FAIL line per case, and after a FAIL the output of the ranks. Exit status 0 iff all pass. COMM_FAULT_RANKS="2 3 4"
# runs the disagreements on several numbers of ranks (default 3).

program=${1:-build/tests/unit/comm_faults}
[ $# -gt 0 ] && shift
if [ "${1:-}" = native ]; then
    case ${FSDP_DEVICE:-} in npu*) set -- hccl ;; *) set -- nccl ;; esac
fi
BUILD=$(dirname "$program")/../..
. tests/tools/env.sh
. tests/tools/clock.sh
# Each job finds room in a small /dev/shm, but all jobs together do not fit. (UCX keeps MPICH's memory there.)
[ "$(df -k --output=avail /dev/shm 2>/dev/null | tail -1)" -ge 524288 ] 2>/dev/null || export UCX_TLS="${UCX_TLS:-^posix}"
if [ -z "${PARTS:-}" ]; then
    children='' logs='' failed=0 told='' out=$(mktemp -d) || exit 1
    # shellcheck disable=SC2064,SC2086 # the list of now
    trap 'kill $children 2>/dev/null; rm -rf "$out"; exit 130' INT TERM HUP
    if [ $# -eq 0 ]; then
        told=shm
        set -- $TRANSPORTS run staged
        no_mpi 'ranks over mpi'
    fi
    for way in "$@"; do
        parts='disagreements waits stands deaths'
        [ "$way" != "$told" ] || parts='waits stands deaths'
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
case $way in
run | staged | ?ccl) starts=$LAUNCHER ;;
*) starts=$MPI_LAUNCHER ;;
esac
at=4 # number of the case's call: comm_open makes one call on the top group, then two calls warm up
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
copy=$(mktemp -d)/comm_faults_$$ # a unique name, to find processes that are left
meet=$copy-meet
cp "$program" "$copy" && mkdir "$meet" || exit 1
for plugin in "$BUILD"/fsdp_*.so; do # a program opens plug-ins from its own folder
    [ ! -e "$plugin" ] || ln -s "$(realpath "$plugin")" "$(dirname "$copy")" || exit 1
done
trap 'rm -rf "$log" "$(dirname "$copy")"' EXIT
trap 'exit 130' INT TERM HUP
failed=0

# No verdict depends on the speed of the machine. A wrong wait for peers lasts longer than BOUND_S, which follows the load
# (limit.sh), so a case that takes BOUND_S has failed. Good runs need a few seconds at most.
BOUND_S=120 NO_LIMIT_S=100000

# ranks N WORDS... -- runs N ranks of the program, and ends them after BOUND_S. on: FSDP_COMM (default: the way's); within: a
# command that starts the program; limit: FSDP_TIMEOUT_S; timer: replaces the limit of BOUND_S. The ranks meet in
# $meet.
ranks() {
    n=$1
    shift
    rm -rf "${meet:?}"/*
    [ $way = run ] || export FSDP_COMM="${on:-$way}"
    set -- $starts -n "$n" $within "$copy" "$@"
    COMM_FAULT_MEET=$meet FSDP_TIMEOUT_S=${limit:-$NO_LIMIT_S} ${timer:-tests/tools/limit.sh -k 2 $BOUND_S} "$@"
}

# launch N WORDS -- runs the ranks, sets rc and seconds. before: a command that runs first, in the same shell
launch() {
    begun=$(date +%s)
    # shellcheck disable=SC2086 # words
    n=$1
    (${before:-:} && ranks "$1" $2) >"$log" 2>&1
    rc=$?
    seconds=$(($(date +%s) - begun))
    [ $rc != 124 ] || complain "not done in $BOUND_S s"
}

# begin NAME WORDS REGEX -- starts three ranks in the background, their launcher in $launcher, and waits until each has printed
# a line that matches. The log is emptied here, because the background shell may do so only after the first look.
begin() {
    name=$1 bad=0 rc=0 seconds=0 pattern=$3
    : >"$log"
    ranks 3 "$2" >"$log" 2>&1 &
    launcher=$!
    await 90 '[ "$(grep -c "$pattern" "$log")" = 3 ]'
    expect 3 "$pattern"
}

complain() {
    echo "FAIL $name over $way: $1 (status $rc, $seconds s)"
    [ $bad = 1 ] || sed 's/^/    /' "$log"
    bad=1
    failed=1
}

# ---- outcomes ---------------------------------------------------------------------------------------------------

# The ranks' output has at least $1 lines that match $2.
expect() {
    found=$(grep -c -E "$2" "$log")
    [ "$found" -ge "$1" ] || complain "$found lines match '$2', not $1"
}

# The launcher reports success, which this version of mpiexec may do although a rank has failed; that rank has no done-mark.
lost() {
    [ $rc = 0 ] && [ "$starts" = "$MPI_LAUNCHER" ] && mpiexec_loses && [ "$(grep -c '^DONE' "$log")" -lt "$n" ]
}

fails() {
    [ $rc != 0 ] || lost || complain 'the launcher reports success'
}

# The launcher's status is $1, the status of the rank that ended first. MPICH's mpiexec returns 1 instead when it sees the end
# of that rank before the end of its socket, which is a race (pmi_cb in pmip_cb.c). fsdp_run never does.
ended_with() {
    [ $rc = "$1" ] || lost || { [ $way != run ] && [ $rc = 1 ] && grep -q 'EXIT CODE: 1$' "$log"; } ||
        complain "exit status is not the $1 of the first rank"
}

# The ranks ended the job; the time limit of this script did not.
in_time() {
    [ $rc != 124 ] || complain 'not ended by the ranks'
}

succeeds() {
    [ $rc = 0 ] || complain 'exit status is not 0'
}

waited_2_s() {
    [ $seconds -ge 2 ] || complain 'not waited for 2 s'
}

# good_over BACKEND NOTES -- all three ranks worked over BACKEND and printed NOTES lines of notes
good_over() {
    succeeds
    expect 3 "^GOOD rank [0-9]+ over $1\$"
    expect 3 '^DONE'
    [ "$(grep -c '^note:' "$log")" = "$2" ] || complain "$(grep -c '^note:' "$log") notes, not $2"
}

# The first rank that ends after a failure stays for one second, so that the others can report the failure.
stayed_1_s() {
    local began_ms stayed_ms
    began_ms=$(sed -n 's/^BEGAN rank 0 \([0-9]*\) ms$/\1/p' "$log")
    stayed_ms=$(($(date +%s%3N) - ${began_ms:-0}))
    [ $stayed_ms -ge 1000 ] || complain "rank 0 ended the job after $stayed_ms ms"
}

nobody_left() {
    await 90 '! pgrep -f "$copy" >/dev/null' || complain "processes are left: $(pgrep -f "$copy" | tr '\n' ' ')"
}

verdict() {
    nobody_left
    [ $bad = 0 ] && echo "PASS $name over $way ($seconds s)"
}

# fault NAME N WORDS [OUTCOME...] -- one case: runs the program with WORDS on N ranks. OUTCOME: 'COUNT REGEX', as for expect, or
# one of the checks above. Variables set before the command apply to this case alone.
fault() {
    local outcome
    name=$1 bad=0
    launch "$2" "$3"
    for outcome in "${@:4}"; do
        case $outcome in
        [0-9]*) expect "${outcome%% *}" "${outcome#* }" ;;
        *) $outcome ;;
        esac
    done
    verdict
}

# ---- cases ------------------------------------------------------------------------------------------------------

# Case $1 on $2 ranks: all ranks see EMISMATCH and close, without waiting for a time limit. A rank names both calls as in $3.
# Later calls fail too.
disagree() {
    fault "$1 n=$2${COMM_FAULT_FAKE:+ below another transport}${FSDP_LINK:+ below a link}" "$2" "$1" "1 SAW rank .*$3" \
        "$2 ^SAW rank [0-9]+ FSDP_EMISMATCH" "$2 ^NEXT rank [0-9]+ FSDP_EMISMATCH" "$2 ^DONE rank [0-9]+/$2\$"
}

# Three cases that do not depend on the layers above the transport.
disagree_below() {
    disagree label 3 "rank 2 called all-gather #3 'h.1' of 320 f32"
    disagree skipped 3 "rank 2 called all-gather #3 'next' of 320 f32"
    disagree subgroup 4 "rank 3 called all-gather #1 'half b' of 320 f32"
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
        disagree lengths $n 'the slices differ'
        disagree pieces $n 'the slices differ'
        disagree pairs $n "all-to-all #$at 'pairs'.*rank $odd sent .* rank 0 expected 16"
        disagree pairs_short $n "all-to-all #$at 'pairs'.*rank $odd sent 12 bytes, rank 0 expected 16"
        disagree skipped $n "rank $odd called all-gather #$at 'next' of 320 f32"
    done
    disagree subgroup 4 "rank 3 called all-gather #1 'half b' of 320 f32"
    disagree range 2 'comm_range: rank 1 has 1 ranks from 1 by 1, rank 0 has 2 ranks from 0 by 1'
    disagree range 4 'comm_range: rank 3 has 1 ranks from 3 by 1, rank 0 has 4 ranks from 0 by 1'
    disagree range_wide 3 'comm_range: rank 1 has 1 ranks from 1 by 1, rank 2 has 2 ranks from 1 by 1'
    for wrong in '_without 2 ranks from 0 by 1' '_between 1 ranks from 1 by 2' '_beyond 2 ranks from 2 by 1'; do
        fault "range${wrong%% *} n=3" 3 "range${wrong%% *}" \
            "3 ^SAW rank [0-9]+ FSDP_EINVAL .*comm_range: ${wrong#* }, of 3 ranks, on rank 2" \
            '3 ^NEXT rank [0-9]+ FSDP_EINVAL' '3 ^DONE'
    done
    # Below the fake transport, which hands its buffers to the host: a library's buffers are on the device.
    [ -n "$library" ] || COMM_FAULT_FAKE=1 disagree_below
    # Below a simulated network.
    FSDP_LINK=1Gbit,100us disagree_below
    for how in close abort; do
        fault "label then $how n=3" 3 "label $how" stayed_1_s 'ended_with 9' '1 ^BEGAN rank 0 '
    done
}

# Rank $1, as the waiting ranks name it.
missing() {
    [ -n "$library" ] && echo "unknown to $library" || echo "$1"
}

# HCCL cannot cancel a call: after a failure the call stays queued, and the stand-in must not report that.
waits() {
    [ $way != hccl ] || export FSDP_SIM_HANGS=1
    # A rank does not come: all ranks report their last calls, and a waiting rank names the missing one.
    for n in 2 4; do
        limit=2 fault "timeout n=$n" $n timeout waited_2_s "$((n - 1)) ^SAW rank [0-9]+ FSDP_ETIMEOUT" \
            "1 waited 2.0 s in all-gather #$at 'awaited' of 320 f32; missing data of ranks: $(missing $((n - 1)))\$" \
            "$n ^\\[rank [0-9]+\\] last calls, oldest first:" "$n all-gather #$((at - 1)) 'warm up' of 320 f32 +$n ranks  done" \
            "1 all-gather #$at 'awaited' of 320 f32 +$n ranks  (running|failed)" "$((n - 1)) ^DONE"
    done
    # A rank closes after the others have closed, and later than the limit.
    limit=2 fault 'late_close n=3' 3 late_close '3 ^GOOD' '3 ^DONE'
    # A rank exits with status 0 before it joins. fsdp_run tells the others, MPI does not.
    case $way in
    run) limit='' fault 'gone_early n=3' 3 gone_early fails in_time "2 comm_open: rank 2 \\(process [0-9]+\\) ended before it joined" ;;
    mpi) limit=3 fault 'gone_early n=3' 3 gone_early fails in_time '1 comm_open: MPI_Init has waited 10.0 s' ;;
    esac
    # A rank cannot do its part: it says why, and the others do not wait for ever. They may see its next call instead.
    local peers='2 ^SAW rank [01] FSDP_E(TIMEOUT|MISMATCH)'
    limit=2 fault 'stream_failed n=3' 3 stream_failed '1 ^SAW rank 2 FSDP_EIO work of the test failed' "$peers" '3 ^DONE'
    # A library does not compare calls.
    [ -n "$library" ] || fault 'closed_queued n=3' 3 closed_queued '3 ^SAW rank [0-9]+ FSDP_EMISMATCH' '3 ^DONE'
    [ $way != staged ] || COMM_TEST_DEVICE=apart limit=2 fault 'no_block n=3' 3 no_block \
        '1 ^SAW rank 2 FSDP_ENOMEM no memory of the host' "$peers" '3 ^DONE'
    unset FSDP_SIM_HANGS
}

stands() {
    [ $way != hccl ] || export FSDP_SIM_HANGS=1
    # All threads of a rank stop, so its own watchdog cannot see it.
    limit=2 fault 'stopped n=3' 3 stopped waited_2_s '2 ^SAW rank [01] FSDP_ETIMEOUT' \
        "1 waited 2.0 s in all-gather #$at 'awaited' of 320 f32; missing data of ranks: $(missing 2)\$"
    # All ranks stop for longer than the limit, and go on.
    limit=10 fault 'paused n=3' 3 paused succeeds '3 ^SAW rank [0-9]+ FSDP_OK' '3 ^DONE'
    unset FSDP_SIM_HANGS
}

# Ranks meet in library calls that block. No rank waits there for a dead rank, or longer than the limit.
meetings() {
    COMM_FAULT_START=kill fault 'kill while ranks meet n=3' 3 good '2 rank 2 \(process [0-9]+\) ended without leaving the group$'
    limit=2 COMM_FAULT_START=sleep fault 'a rank does not come n=3' 3 good "3 $library: $start took longer than 2\\.0 s\$"
    [ $way != hccl ] || limit=2 COMM_FAULT_START=sleep HCCL_CONNECT_TIMEOUT=1 \
        fault 'a rank does not come n=3, HCCL_CONNECT_TIMEOUT=1' 3 good \
        '2 HCCL: HcclCommInitRootInfo: timed out ' '2 HINT: .*HCCL_CONNECT_TIMEOUT'
    limit=2 fault 'a rank does not come to the first call of a group n=3' 3 timeout_first '2 ^SAW rank [01] FSDP_ETIMEOUT' \
        "1 waited 2.0 s in all-gather #1 'awaited' of 320 f32; missing data of ranks: unknown to $library\$" '3 ^DONE'
    fault 'kill before the first call of a group n=3' 3 kill_first '2 ^NEXT rank [01] FSDP_ECOMM' '2 ^DONE rank [01]/3' \
        '2 ^SAW rank [01] FSDP_ECOMM .*rank 2 \(process [0-9]+\) ended without leaving the group$'
}

# Only over a device's own library: errors that the library does not report, and ranks that it cannot serve.
alone() {
    [ "$FSDP_DEVICE" = "$kind-sim" ] || return
    # Nobody compares calls. They end by the limit, and the reports show the difference.
    local met='3 ^SAW rank [0-9]+ FSDP_ETIMEOUT' report='3 ^\[rank [0-9]+\] last calls, oldest first:' end='+3 ranks  (running|failed)'
    local call='1 waited 2.0 s in (all-gather|reduce-scatter|barrier) #[34]'
    export FSDP_SIM_HANGS=1
    limit=2 fault 'op n=3, not compared' 3 op "$met" "$call" "$report" "2 all-gather #3 'h.0' of 320 f32 $end" \
        "1 reduce-scatter #3 'h.1' of 960 f32 $end" '3 ^DONE'
    limit=5 fault 'crossed n=3, not compared' 3 crossed "$met" '1 a circle of processes, each of which waits for the next' '3 ^DONE'
    unset FSDP_SIM_HANGS

    meetings
    export "FSDP_SIM_${word}S=2"
    fault "3 ranks on 2 ${word}s" 3 good fails "3 comm_open: ranks 0 and 2 share $word 0 of this host; $library needs one for each"
    on=shm fault "3 ranks on 2 ${word}s, --comm shm" 3 good 'good_over shm\+staged 0'
    if [ "$way" = nccl ]; then
        export NCCL_MULTI_RANK_GPU_ENABLE=1 FSDP_SIM_NCCL=23000
        fault "3 ranks on 2 ${word}s, NCCL 2.30" 3 good "good_over $way 0"
        COMM_FAULT_SHARES=1 fault "3 ranks on 2 ${word}s, NCCL 2.30, rank 1 without the variable" 3 good fails "3 needs one for each, or 2.30 and NCCL_MULTI"
        FSDP_SIM_NCCL=22900 fault "3 ranks on 2 ${word}s, NCCL 2.29" 3 good fails "3 comm_open: ranks 0 and 2 share"
        unset NCCL_MULTI_RANK_GPU_ENABLE FSDP_SIM_NCCL
    fi
    unset "FSDP_SIM_${word}S"
    export COMM_FAULT_MODELS=1
    fault "${word}s of two models n=3" 3 good fails "3 ${word}s differ: rank 0 has [^,]*, rank 1 has another model"
    export "FSDP_MIXED_${word}S=1"
    fault "${word}s of two models, FSDP_MIXED_${word}S=1" 3 good "good_over $way 0"
    unset "FSDP_MIXED_${word}S" COMM_FAULT_MODELS
}

deaths() {
    local n how outcomes
    # A rank dies in the middle, and the launcher ends the others. fsdp_run lets them say why.
    for n in 2 4; do
        for how in exit kill abort kill_reading kill_asleep exit0; do
            outcomes=()
            [ $how = exit0 ] || outcomes+=(fails)
            [ $how != abort ] || outcomes+=('ended_with 7')
            case $way in run | staged) outcomes+=("$((n - 1)) ^SAW rank [0-9]+ FSDP_ECOMM"
                "1 rank $((n - 1)) \\(process [0-9]+\\) ended without leaving the group\$") ;; esac
            fault "$how n=$n" $n $how "${outcomes[@]}"
        done
    done
    # Without pidfds or free file descriptors, ranks cannot watch each other: fsdp_run does.
    if [ $way = run ]; then
        COMM_FAULT_NO_PIDFD=1 fault 'exit0 without pidfds n=3' 3 exit0 \
            '2 ^SAW rank [01] FSDP_ECOMM .*rank 2 \(process [0-9]+\) ended without leaving the group$'
        for files in 6 7 8 9 10 11 12 13; do
            within="prlimit --nofile=$files" fault "exit0 with $files files n=3" 3 exit0 '2 (ended without leaving the group$|^HINT: )'
        done
    fi
    # No address space to map peers' memory: all ranks get an error, none crashes.
    case $way in shm | run) fault 'no_room n=3' 3 no_room '3 ^SAW rank [0-9]+ FSDP_ENOMEM .*cannot map [0-9]+ bytes of rank [01]' '3 ^DONE' ;; esac
    case $way in
    mpi | ?ccl) fault 'good n=3' 3 good "good_over $way 0" ;;
    staged) fault 'good n=3' 3 good 'good_over shm\+staged 0' ;;
    *) fault 'good n=3' 3 good 'good_over shm 0' ;;
    esac
    # If memory cannot be shared, the ranks go on over MPI and print one note; if shm was asked for, they fail.
    if [ $way = shm ] && ! no_mpi 'ranks that go on over MPI'; then
        on=auto before='ulimit -f 100000' fault 'no shared memory under ulimit -f, n=3' 3 good 'good_over mpi 1'
        for rank in 0 2; do
            export COMM_FAULT_REFUSED=$rank
            on=auto fault "rank $rank may not open others' memory, n=3" 3 good 'good_over mpi 1'
            on=shm fault "rank $rank may not open others' memory, n=3, --comm shm" 3 good fails "1 cannot map each other's memory"
        done
        unset COMM_FAULT_REFUSED
        on=mpi COMM_FAULT_REFUSED=1 FSDP_LINK=1Gbit,50us,3 fault 'rank 1 may not map the link of rank 0, n=3' 3 good fails \
            '3 FSDP_LINK: ranks 0 and 1, of one simulated host, share no memory'
    fi

    # Shared memory has no name that could outlive the job: every rank maps memfds, and nothing of /dev/shm.
    if [ $way = run ]; then
        begin 'no file in /dev/shm, n=3' stay GOOD
        n_mapped=0
        for pid in $(pgrep -f "^$copy"); do
            grep -q 'memfd:fsdp' "/proc/$pid/maps" && n_mapped=$((n_mapped + 1))
            grep -q '/dev/shm' "/proc/$pid/maps" && complain "$(grep -m1 /dev/shm "/proc/$pid/maps")"
        done
        [ $n_mapped = 3 ] || complain "$n_mapped ranks have memory to share, not 3"
        mkdir "$meet/seen.0"
        wait $launcher
        rc=$?
        succeeds
        verdict
    fi

    # The launcher dies: the ranks die with it.
    timer=exec begin 'orphans n=3' orphans WAITING
    proxies=''
    [ "$starts" = "$LAUNCHER" ] || proxies=$(pgrep -P $launcher)
    # shellcheck disable=SC2086 # a list
    kill -KILL $launcher $proxies
    wait $launcher 2>/dev/null
    verdict
}

for part in $PARTS; do
    $part
done
exit $failed
