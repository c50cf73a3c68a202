#!/bin/sh
# comm_faults.sh -- ranks that disagree, wait or die: an error with the right words, no hang, no process left.
#
#   tests/unit/comm_faults.sh [PROGRAM]        default build/tests/unit/comm_faults
#
# Prints one PASS or FAIL line per case; on FAIL the output of the ranks. Exit status 0 iff all pass.
# COMM_FAULT_RANKS="2 3 4" runs the disagreements on several numbers of ranks (default 3).

program=${1:-build/tests/unit/comm_faults}
mpiexec=${MPIEXEC:-mpiexec}
log=$(mktemp) || exit 1
copy=$(mktemp -d)/comm_faults_$$ # its own name, so that left processes can be told
cp "$program" "$copy" || exit 1
trap 'rm -rf "$log" "$(dirname "$copy")"' EXIT
failed=0

# Let n ranks run case $2 (words) for at most $3 seconds; sets rc and seconds.
launch() {
    begun=$(date +%s)
    FSDP_TIMEOUT_S=${limit:-30} timeout -k 2 "$3" "$mpiexec" -n "$1" "$copy" $2 >"$log" 2>&1
    rc=$?
    seconds=$(($(date +%s) - begun))
}

complain() {
    echo "FAIL $name: $1 (status $rc, $seconds s)"
    [ $bad = 1 ] || sed 's/^/    /' "$log"
    bad=1
    failed=1
}

# The ranks' output has at least $1 lines that match $2.
expect() {
    found=$(grep -c -E "$2" "$log")
    [ "$found" -ge "$1" ] || complain "$found lines match '$2', not $1"
}

nobody_left() {
    for try in 1 2 3 4 5 6 7 8 9 10; do
        pgrep -f "$copy" >/dev/null || return
        sleep 0.2
    done
    complain "processes are left: $(pgrep -f "$copy" | tr '\n' ' ')"
}

verdict() {
    nobody_left
    [ $bad = 0 ] && echo "PASS $name ($seconds s)"
}

# Case $1 on $2 ranks: all see EMISMATCH soon, some rank names both calls as in $3, later calls fail too.
disagree() {
    name="$1 n=$2" bad=0
    launch "$2" "$1" 20
    [ $rc != 124 ] && [ $rc != 137 ] || complain "ended by the time limit"
    [ $seconds -le 10 ] || complain "took too long"
    expect 1 "SAW rank .*$3"
    expect "$2" '^SAW rank [0-9]+ FSDP_EMISMATCH'
    expect "$2" '^NEXT rank [0-9]+ FSDP_EMISMATCH'
    expect "$2" '^DONE rank [0-9]+/'"$2"' closed in [0-4]\.'
    verdict
}

for n in ${COMM_FAULT_RANKS:-3}; do
    odd=$((n - 1))
    good="rank [0-9]+ called all-gather #3 'h.0' of 320 f32"
    disagree op $n "(rank $odd called reduce-scatter #3 'h.1' of $((n * 320)) f32, $good|$good, rank $odd called reduce-scatter)"
    disagree elems $n "rank $odd called all-gather #3 'h.0' of 321 f32"
    disagree elems_large $n "rank $odd called all-gather #3 'large' of 3000000 f32"
    disagree dtype $n "rank $odd called all-gather #3 'h.0' of 160 i64"
    disagree dtype_only $n "rank $odd called all-gather #3 'h.0' of 320 f32"
    disagree label $n "rank $odd called all-gather #3 'h.1' of 320 f32"
    disagree long_label $n "rank $odd called all-gather #3 'xxx"
    disagree root $n "rank $odd called broadcast #3 'step' of 7 f32 from root 1"
    disagree lengths $n 'the slice lengths differ'
    disagree pairs $n "all-to-all #3 'pairs'.*rank $odd sent .* rank 0 expected 16"
    disagree pairs_short $n "all-to-all #3 'pairs'.*rank $odd sent 12 bytes, rank 0 expected 16"
    disagree skipped $n "rank $odd called all-gather #3 'next' of 320 f32"
done
disagree subgroup 4 "rank 3 called all-gather #1 'half b' of 320 f32"

# The first rank that ends after a failure leaves the others time to report it.
for how in close abort; do
    name="label then $how n=3" bad=0
    launch 3 "label $how" 20
    [ $rc = 9 ] || complain "exit status is not the first rank's"
    expect 2 '^SAW rank [12] FSDP_EMISMATCH'
    verdict
done

# A rank does not come: all report their last calls, the waiting one names it.
limit=2
for n in 2 4; do
    name="timeout n=$n" bad=0
    launch $n timeout 25
    [ $seconds -ge 2 ] && [ $seconds -le 12 ] || complain "wrong time"
    expect $((n - 1)) '^SAW rank [0-9]+ FSDP_ETIMEOUT'
    expect 1 "waited 2.0 s in all-gather #3 'awaited' of 320 f32; missing data of ranks: $((n - 1))\$"
    expect $n '^\[rank [0-9]+\] last calls, oldest first:'
    expect $n "all-gather #2 'warm up' of 320 f32 +$n ranks  done"
    expect 1 "all-gather #3 'awaited' of 320 f32 +$n ranks  (running|failed)"
    expect $((n - 1)) '^DONE'
    verdict
done
limit=

# A rank dies in the middle: the launcher ends the others.
for n in 2 4; do
    for how in exit kill abort; do
        name="$how n=$n" bad=0
        launch $n $how 20
        [ $rc != 0 ] || complain "the launcher reports success"
        [ $rc != 124 ] && [ $rc != 137 ] || [ $how = kill ] || complain "ended by the time limit"
        [ $seconds -lt 20 ] || complain "took too long"
        [ $how != abort ] || [ $rc = 7 ] || complain "exit status of comm_abort is lost"
        verdict
    done
done

# The launcher dies: the ranks die with it.
name="orphans n=3" bad=0 rc=0 seconds=0
"$mpiexec" -n 3 "$copy" orphans >"$log" 2>&1 &
launcher=$!
for try in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
    [ "$(grep -c WAITING "$log")" = 3 ] && break
    sleep 0.2
done
expect 3 WAITING
proxies=$(pgrep -P $launcher)
kill -KILL $launcher $proxies
wait $launcher 2>/dev/null
verdict

exit $failed
