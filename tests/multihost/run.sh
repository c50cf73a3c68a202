#!/bin/bash
# shellcheck disable=SC2034,SC2086,SC2317 # verdict evaluates conditions
# run.sh [BUILD [PART...]] -- several hosts on one machine: network namespaces, joined by a bridge, with ranks in each.
#
#   losses   the trainer on several layouts of hosts and ranks has the bits of one device
#   comm     collectives on these layouts (test_comm, comm_stress)
#   bytes    bytes that cross the bridge: with shared memory inside a host (--comm auto) and by MPI alone (--comm mpi);
#            with shard groups or copies inside a host, or fewer collectives, and with --sharding full
#   faults   ranks that disagree, are killed, do not come or are cut off: all hosts end soon, no process is left
#   cuts     a host that cannot send, cannot be reached, or vanishes; cuts that end before the time limit (tc blackhole)
#   slow     losses over slow links (tc tbf, 300 and 2 Mbit/s)
#
# The ranks talk TCP over virtual Ethernet (UCX_TLS=tcp,self), like ranks on several hosts. mpiexec starts them through a
# launcher that enters a namespace where ssh would log in. MPICH 4.0.2's launcher sometimes fails after the ranks have
# finished; this is printed but is no failure. Without root, MPI or iproute2: SKIP. A program that is not built is an
# error. Namespaces and bridge are removed at every exit. tests/unit/comm_hosts.sh checks much of this without root.
set -u
cd "$(dirname "$0")/../.." || exit 2
. tests/multihost/lib.sh
begin multihost 'losses comm bytes faults cuts slow' 'fsdp_train fsdp_compare tests/unit/test_comm tests/unit/comm_stress tests/unit/comm_faults' \
    'ip:iproute2 pgrep:procps' "$@"
tmp=$(mktemp -d)
net=fsdp$$
hosts=("fsdp$$a" "fsdp$$b" "fsdp$$c" "fsdp$$d")
programs=$tmp/bin # programs with names of this run, so that its processes can be found
failed=0

clean_up() {
    for ns in "${hosts[@]}"; do
        ip netns pids "$ns" 2> /dev/null | xargs -r kill -9 2> /dev/null
        ip netns del "$ns" 2> /dev/null
    done
    ip link del "$net" 2> /dev/null
    rm -rf "$tmp"
}
trap clean_up EXIT
trap 'exit 130' INT TERM HUP

set_up() {
    bridge "$net" 10.213.77.254 || return 1
    for i in 0 1 2 3; do
        joined "${hosts[$i]}" "v$$-$i" "$net" "10.213.77.$((i + 1))" || return 1
    done
    cat > "$tmp/launcher" << EOT
#!/bin/sh
while [ "\${1#-}" != "\$1" ]; do shift; done
host=\$1
shift
case \$host in *.1) ns=${hosts[0]} ;; *.2) ns=${hosts[1]} ;; *.3) ns=${hosts[2]} ;; *) ns=${hosts[3]} ;; esac
exec ip netns exec \$ns sh -c "\$*"
EOT
    chmod +x "$tmp/launcher"
}

# on LAYOUT PROGRAM... -- runs ranks on hosts; "2 2": two on each of two. Output in $tmp/log; sets n, status and seconds.
on() {
    n=0 i=1
    : > "$tmp/hosts"
    for ranks in $1; do
        echo "10.213.77.$i:$ranks" >> "$tmp/hosts"
        n=$((n + ranks)) i=$((i + 1))
    done
    program=$programs/$2
    shift 2
    begun=$(date +%s)
    UCX_TLS=tcp,self UCX_NET_DEVICES=eth0 tests/tools/limit.sh "${limit:-120}" $MPI_LAUNCHER -f "$tmp/hosts" -launcher ssh \
        -launcher-exec "$tmp/launcher" -iface "$net" -n $n "$program" "$@" > "$tmp/log" 2>&1
    status=$?
    seconds=$(($(date +%s) - begun))
}

fail() {
    echo "FAIL multihost $*"
    sed 's/^/    /' "$tmp/log" | cut -c1-200 | tail -30
    failed=1
}

# verdict GOOD NAME [WHY] -- PASS if the command GOOD succeeds
verdict() {
    if eval "$1"; then echo "PASS multihost $2"; else fail "$2${3:+: $3}"; fi
}

# said N REGEX -- N lines of the log match
said() {
    [ "$(grep -c "$2" "$tmp/log")" = "$1" ]
}

# finished PATTERN -- the ranks have finished, even if the launcher failed later
finished() {
    grep -q "$1" "$tmp/log" || return 1
    [ $status -eq 0 ] || echo "     mpiexec failed after the ranks were done: $(tail -1 "$tmp/log")"
}

failed_run() {
    [ $status -ne 0 ] || mpiexec_loses
}

options="--size tiny --reduction canonical --global-batch 24 --steps 20 --synthetic 100000"

single() {
    [ -f "$tmp/single.csv" ] && return
    "$BUILD/fsdp_train" --parallel single $options --loss-csv "$tmp/single.csv" > "$tmp/log" 2>&1 || {
        fail "the run on one device failed"
        exit 1
    }
}

# across NAME LAYOUT [ARG...] -- compares the losses with those of one device
across() {
    name=$1 layout=$2
    shift 2
    single
    rm -f "$tmp/hosts.csv"
    on "$layout" fsdp_train $options "$@" --loss-csv "$tmp/hosts.csv"
    finished '^done: ' || { fail "$name: $(tail -1 "$tmp/log")" && return; }
    compared=$("$BUILD/fsdp_compare" "$tmp/single.csv" "$tmp/hosts.csv")
    verdict "[ $? = 0 ]" "$name: $compared"
}

layouts=('2 2' '1 1' '2 2 2' '3 3' '1 1 1 1' '2 2 2 2' '2 1')

losses() {
    for layout in "${layouts[@]}"; do
        across "($layout)" "$layout"
    done
    across "(2 2), MPI alone" "2 2" --comm mpi
}

# Hosts that have the same number of ranks, but more than one, use shared memory inside.
comm() {
    for layout in "${layouts[@]}"; do
        case $layout in *1*) transport=mpi ;; *) transport=shm+mpi ;; esac
        on "$layout" test_comm
        verdict 'said $((169 - 48 * $(grep -c ^SKIP "$tmp/log"))) ^PASS && said 0 ^FAIL' "($layout): test_comm" "exit status $status"
        on "$layout" comm_stress --rounds 30
        verdict 'finished "^PASS stress over $transport,"' "($layout): $(sed -n 's/^PASS //p' "$tmp/log")" "stress, exit status $status"
    done
    on "2 2" fsdp_train --size tiny --steps 1 --synthetic 1000 --comm shm
    verdict 'failed_run && grep -q "the ranks are on several hosts" "$tmp/log"' '--comm shm is refused' "exit status $status"
}

# The bytes that namespaces have sent to the bridge so far.
crossed() {
    sum=0
    for i in 0 1 2 3; do
        sum=$((sum + $(cat "/sys/class/net/v$$-$i/statistics/rx_bytes")))
    done
    echo $sum
}

# stepping LAYOUT OPTION... -- sets each, the bytes of a step: a tenth of the bytes that 12 steps send more than 2
stepping() {
    local layout=$1
    shift
    each=0
    for steps in 2 12; do
        before=$(crossed)
        on "$layout" fsdp_train --size tiny --synthetic 100000 --steps $steps "$@"
        each=$((($(crossed) - before - each) / (steps == 2 ? 1 : 10)))
        finished '^done: ' || fail "bytes: $(tail -1 "$tmp/log")"
    done
}

# saving NAME LAYOUT REDUCTION LEAST -- LEAST: the factor times 100
saving() {
    stepping "$2" --global-batch 24 --reduction "$3" --comm mpi
    alone=$each
    stepping "$2" --global-batch 24 --reduction "$3" --comm auto
    factor=$((100 * alone / each))
    text="$1, --reduction $3: bytes between hosts in a step: $alone by MPI alone, $each with shared memory inside"
    text="$text: a factor of $((factor / 100)).$(printf %02d $((factor % 100)))"
    verdict "[ $factor -ge $4 ]" "$text" "expected $4/100"
}

# beside FULL FACTOR OPTION... -- FULL is the number of bytes that a step of --sharding full sends. It must be at least
# FACTOR/100 of the bytes with OPTIONs. With R parameters in the root, B in two blocks and A = 4, full sends A (2 R + 3 B): a
# gather of the root, two of each block, and a reduction of all. FACTOR follows from such counts; 5% is left for headers.
beside() {
    full=$1 factor=$2
    shift 2
    stepping "2 2" $micros "$@"
    text="2 hosts x 2 ranks, $*: bytes between hosts in a step: $each, full $full"
    verdict "[ $((full * 100)) -ge $((each * factor * 95 / 100)) ]" "$text" "expected $factor/100 of these"
}

# R is 32,900 and B is 99,968.
bytes() {
    micros='--grad-accum 4 --batch-size 1'
    stepping "2 2" $micros --sharding full
    set -- $each
    beside $1 220 --sharding hybrid --fsdp-size 2            # (A + 1) (R + B)
    beside $1 191 --reshard-to 2                             # 2 A R + (A + 1) B
    beside $1 137 --no-sync                                  # A (R + 2 B) + R + B
    beside $1 220 --reshard-after step                       # (A + 1) (R + B)
    beside $1 551 --reshard-after step --no-sync             # 2 (R + B)
    beside $1 551 --sharding hybrid --fsdp-size 2 --no-sync=replicas # 2 (R + B)
    saving "2 hosts x 2 ranks" "2 2" canonical 185
    saving "3 hosts x 2 ranks" "2 2 2" fast 185
    saving "2 hosts x 3 ranks" "3 3" fast 270
}

# nobody_left NAME
nobody_left() {
    await 90 '! pgrep -f "$programs" >/dev/null' && return
    fail "$1: processes are left: $(pgrep -f "$programs" | tr '\n' ' ')"
    pgrep -f "$programs" | xargs -r kill -9
    return 1
}

# faulty LAYOUT CASE -- runs a case of comm_faults
faulty() {
    mkdir "$tmp/meet"
    COMM_FAULT_MEET=$tmp/meet on "$1" comm_faults "$2"
    rm -rf "$tmp/meet"
}

# disagree LAYOUT CASE -- all ranks are told what differs, without a time-out
disagree() {
    faulty "$@"
    verdict 'said $n "^SAW.*FSDP_EMISMATCH" && nobody_left "($1) $2"' "($1) $2: all $n ranks are told" "not in $seconds s"
}

# endless LAYOUT [ARG...] -- starts the trainer in the background, as $job, and waits for its first step
endless() {
    layout=$1
    shift
    : > "$tmp/log"
    (limit=90 on "$layout" fsdp_train ${options/--steps 20/--steps 100000} "$@"; exit $status) &
    job=$!
    await 100 'grep -q "^step" "$tmp/log"'
}

trainer_of() {
    rank_process "^$programs/fsdp_train" "PMI_RANK=$1"
}

# killed LAYOUT RANK -- kills the rank while the trainer runs
killed() {
    endless "$1"
    victim=$(trainer_of "$2")
    begun=$(date +%s)
    kill -9 "$victim"
    wait $job
    status=$? seconds=$(($(date +%s) - begun))
    verdict '[ $status != 124 ] && nobody_left "($1) rank $2 killed"' \
        "($1) rank $2 killed: all have ended in at most $((seconds + 1)) s"
}

# Ends a cut. The neighbour caches are flushed, so that hosts reach each other at once.
mend() {
    eval "$1"
    for ns in "${hosts[@]}"; do
        ip -n "$ns" neigh flush dev eth0
    done
    ip neigh flush dev "$net"
}

# cut_off NAME LAYOUT CUT MEND -- cuts off the second host while the trainer runs. The launcher may lose that host too; its ranks
# then end by themselves if MPI_Abort has not ended them within five seconds.
cut_off() {
    FSDP_TIMEOUT_S=3 endless "$2"
    begun=$(date +%s)
    eval "$3"
    wait $job
    status=$? seconds=$(($(date +%s) - begun))
    nobody_left "($2) $1"
    left=$? all=$(($(date +%s) - begun))
    mend "$4"
    verdict '[ $left = 0 ] && failed_run && [ $status -ne 124 ] &&
        grep -q "^\[rank .* waited 3.0 s in .*; missing data of ranks: " "$tmp/log"' \
        "($2) $1: the launcher has ended in $seconds s, all have in $all s" "status $status"
}

cable_pulled() {
    cut_off 'cable pulled' "$1" 'ip link set "v$$-1" down' 'ip link set "v$$-1" up'
}

# Packets that the second host sends, or packets to it, are lost.
lost_from="ip netns exec ${hosts[1]} tc qdisc add dev eth0 root blackhole"
lost_to="tc qdisc add dev v$$-1 root blackhole"

faults() {
    disagree "2 2" label
    disagree "2 2" subgroup_awaited
    disagree "2 2 2" op
    disagree "3 3" root
    FSDP_TIMEOUT_S=2 faulty "2 2" timeout
    verdict 'said $n "^SAW.*FSDP_ETIMEOUT" &&
        grep -q "waited 2.0 s in all-gather #4 '"'awaited'"' of 320 f32; missing data of ranks: 3$" "$tmp/log"' \
        '(2 2) a rank does not come: all are told which' "$seconds s"
    killed "2 2" 3
    killed "3 3" 1
    cable_pulled "2 2"
    cable_pulled "1 1 1 1"
}

# The second host loses its cable and then all its processes, so nothing closes its connections.
vanish() {
    ip link set "v$$-1" down
    ip netns pids "${hosts[1]}" | xargs -r kill -9
}

# interrupted NAME SECONDS CUT MEND -- a cut of SECONDS, after which the trainer goes on with the bits of one device
interrupted() {
    constant='--lr 1e-3 --min-lr 1e-3 --warmup-steps 0'
    [ -f "$tmp/long.csv" ] || "$BUILD/fsdp_train" --parallel single $options $constant --steps 400 --loss-csv "$tmp/long.csv" >/dev/null
    rm -rf "$tmp/hosts.csv" "$tmp/ck"
    FSDP_TIMEOUT_S=30 endless "2 2" $constant --loss-csv "$tmp/hosts.csv" --save "$tmp/ck" --save-every 1000000
    eval "$3"
    sleep "$2"
    mend "$4"
    before=$(grep -c '^step' "$tmp/log")
    await 30 '[ "$(grep -c "^step" "$tmp/log")" -gt $((before + 2)) ]'
    kill -TERM "$(trainer_of 0)"
    wait $job
    n_rows=$(grep -c '^[0-9]' "$tmp/hosts.csv")
    others=$(cut -d, -f1-4 "$tmp/hosts.csv" | head -400 | grep -vxFf <(cut -d, -f1-4 "$tmp/long.csv"))
    verdict '[ "$n_rows" -gt 3 ] && [ -z "$others" ] && grep -q "ended by SIGTERM" "$tmp/log" && said 0 waited && nobody_left "$1"' \
        "(2 2) $1 for $2 s: goes on with identical bits, $n_rows steps" "other losses than one device: $(echo "$others" | head -1)"
}

cuts() {
    if ! $lost_from 2> "$tmp/log"; then
        echo "SKIP multihost cuts: no tc blackhole: $(tail -1 "$tmp/log")"
        return
    fi
    heard="${lost_from/ add / del }" reached="${lost_to/ add / del }"
    $heard
    for layout in '2 2' '1 1'; do
        cut_off 'what a host sends gets lost' "$layout" "$lost_from" "$heard"
        cut_off 'what is sent to a host gets lost' "$layout" "$lost_to" "$reached"
        cut_off 'a host vanishes' "$layout" vanish 'ip link set "v$$-1" up'
    done
    interrupted 'a cable is pulled' 2 'ip link set "v$$-1" down' 'ip link set "v$$-1" up'
    interrupted 'what a host sends gets lost' 3 "$lost_from" "$heard"
    interrupted 'what is sent to a host gets lost' 3 "$lost_to" "$reached"
}

# rate WORDS... -- sets the rate of all links; false: this machine cannot
rate() {
    for ns in "${hosts[@]}"; do
        ip netns exec "$ns" tc qdisc replace dev eth0 root "$@" 2> /dev/null || return 1
    done
}

slow() {
    rate tbf rate 300mbit burst 1mb latency 100ms || { echo "SKIP multihost slow link: no tc tbf" && return; }
    across "2 hosts x 2 ranks, 300 Mbit/s" "2 2"
    rate tbf rate 2mbit burst 32kb latency 500ms
    options=${options/--steps 20/--steps 4} && rm -f "$tmp/single.csv"
    across "2 hosts x 2 ranks, 2 Mbit/s" "2 2"
}

mkdir "$programs" && cp "$BUILD"/fsdp_train "$BUILD"/tests/unit/{test_comm,comm_stress,comm_faults} "$programs" || exit 1
set_up 2> "$tmp/log" || cannot "this machine makes no network namespaces: $(tail -1 "$tmp/log")"
for part in $parts; do
    $part
done
exit $failed
