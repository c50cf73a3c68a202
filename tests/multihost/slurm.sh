#!/bin/bash
# shellcheck disable=SC1091,SC2015,SC2016,SC2034,SC2086,SC2154
# slurm.sh [BUILD [PART...]] -- a real Slurm with two nodes on one machine runs the srun line and the batch script of
# docs/hosts.md, as they stand there.
#
#   losses       both, on one node and on two, have the bits of one device; srun without PMI-2 is refused; a task may run alone
#   asked        scancel --signal=USR1, then scancel
#   time_limit   the time limit: the job is requeued
#   lost_node    a lost node: the job is requeued as well
#   killed_rank, killed_srun
#
# One training run goes through all that Slurm does to jobs, and resumes each time with the same bits.
#
# munged, slurmctld and two slurmd run in namespaces. Each node has its own host name, network interface, processes and
# shared memory, and ranks on different nodes talk TCP. Files are on a tmpfs that only these processes see, so nothing is
# left when the first of them ends for any reason.
# Slurm is configured without cgroups: it finds processes by /proc and binds none to cores.
# Without root, MPI, Slurm or namespaces: SKIP.
set -u
cd "$(dirname "$0")/../.." || exit 2
top=$PWD
. tests/multihost/lib.sh
begin slurm 'losses asked time_limit lost_node killed_rank killed_srun' 'fsdp_train fsdp_compare' \
    'slurmctld:slurm-wlm srun:slurm-wlm munged:munge ip:iproute2 pgrep:procps' "$@"
. tests/cli/lib.sh

# If this process is killed, unshare and its child die too. The child is the first process of the namespaces, so all others end.
spaces='unshare --mount --pid --net --uts --ipc --fork --kill-child --mount-proc'
if [ -z "${FSDP_SLURM_INSIDE:-}" ]; then
    why=$($spaces ip link add name b0 type bridge 2>&1) || cannot "no namespaces on this machine: $why"
    FSDP_SLURM_INSIDE=1 setpriv --pdeathsig KILL $spaces tests/multihost/slurm.sh "$BUILD" $parts &
    trap 'kill -KILL $!; exit 130' INT TERM HUP
    wait $!
    exit
fi

mount -t sysfs sysfs /sys && mount -t tmpfs tmpfs /dev/shm && mount -t tmpfs -o mode=755 tmpfs /run || exit 1
work=/run/fsdp trainer=build/fsdp_train CLI_NAMESPACE=1 bad=
umask 022 && mkdir -p $work/build $work/state /run/netns && cp "$BUILD/fsdp_train" $work/build || exit 1
unset "${!SLURM_@}" "${!SBATCH_@}" "${!PMI_@}" # this script may itself run in a job
export SLURM_CONF=$work/slurm.conf
# Steps take a tenth of a second or more, so signals come between steps.
export FSDP_LINK=1Gbit,5ms FSDP_TIMEOUT_S=60
bits='--d-model 16 --n-layer 1 --n-head 1 --seq-len 16 --global-batch 8 --reduction canonical --synthetic 10000'
bits="$bits --steps 100000"

configure() {
    hostname control
    printf '%s\n' '127.0.0.1 localhost' '10.213.78.254 control' '10.213.78.1 node1' '10.213.78.2 node2' >$work/hosts
    mount --bind $work/hosts /etc/hosts
    (umask 077 && head -c 128 /dev/urandom >$work/key)
    echo 'CgroupPlugin=cgroup/v1' >$work/cgroup.conf # not used, but autodetection needs a mounted one
    cat >$SLURM_CONF <<EOT
ClusterName=fsdp
SlurmctldHost=control
SlurmUser=root
AuthInfo=socket=$work/munge.socket,cred_expire=5
StateSaveLocation=$work/state
SlurmdSpoolDir=$work/spool-%n
SlurmctldPidFile=$work/slurmctld.pid
SlurmdPidFile=$work/%n.pid
SlurmctldLogFile=$work/slurmctld.log
SlurmdLogFile=$work/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
JobRequeue=0
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0
KillWait=20
MailProg=/bin/true
NodeName=node[1-2] CPUs=64
PartitionName=all Nodes=ALL Default=YES
EOT
}

# node N -- starts the node; slurmd is the first process in its process namespace
node() {
    nsenter --net=/run/netns/node$1 ${spaces/--net /} sh -c "
        mount -t sysfs sysfs /sys && mount -t tmpfs tmpfs /dev/shm && hostname node$1 && exec slurmd -D -N node$1" \
        >$work/node$1.out 2>&1 &
    node_pid[$1]=$!
}

set_up() {
    configure
    ip link set lo up
    bridge b0 10.213.78.254 || exit 1
    munged --key-file=$work/key --socket=$work/munge.socket --pid-file=$work/munged.pid --log-file=$work/munged.log \
        --seed-file=$work/munged.seed
    slurmctld -D >$work/slurmctld.out 2>&1 &
    for i in 1 2; do
        mkdir $work/spool-node$i
        joined node$i v$i b0 10.213.78.$i || exit 1
        node $i
    done
}

# ---- losses ---------------------------------------------------------------------------------------------------------

# same_bits -- the rows of loss.csv are equal to the first rows of one device's
same_bits() {
    head -n "$(wc -l <loss.csv)" one.csv >start.csv
    said=$("$BUILD/fsdp_compare" start.csv loss.csv) || complain "loss.csv: $said"
}

# The number of bytes that node 1 has sent.
crossed() {
    cat /sys/class/net/v1/statistics/rx_bytes
}

# by_srun NODES -- runs the srun line of docs/hosts.md on this number of nodes
by_srun() {
    line=$(sed -n 's|^\(srun .* build/fsdp_train\) --size .*|\1|p' "$top/docs/hosts.md")
    name="srun, $1 x 2 ranks: the bits of one device"
    before=$(crossed)
    timed ${line/-N 2/-N $1} $bits --stop-after 8 --loss-csv loss.csv
    [ $rc = 0 ] || complain "exit status $rc"
    grep -q " $((2 * $1)) ranks," out || complain "not $((2 * $1)) ranks"
    [ "$1" = 1 ] || [ $(($(crossed) - before)) -gt 50000 ] || complain 'nothing went over the network'
    same_bits
    rm -f loss.csv
    verdict
}

without_pmi2() {
    name='srun without --mpi=pmi2: refused'
    timed srun -n 2 build/fsdp_train $bits --stop-after 8 --save ck
    grep -q 'the launcher started 2 ranks, MPI sees 1$' err && grep -q '^HINT: .*srun --mpi=pmi2' err || complain 'no such words'
    [ $rc != 0 ] && [ ! -e ck ] || complain "exit status $rc"
    verdict
}

# ---- jobs -----------------------------------------------------------------------------------------------------------

# submit [OPTION-OF-SBATCH...] [-- OPTION...] -- submits the script of docs/hosts.md, in a folder where earlier jobs may have saved.
# Sets job, and rows, the present number of rows in loss.csv. The job's output is in err.
submit() {
    local how=()
    while [ $# -gt 0 ] && [ "$1" != -- ]; do
        how+=("$1") && shift
    done
    rows=$(rows_of loss.csv)
    job=$(sbatch --parsable --cpus-per-task=1 "${how[@]}" train.sbatch $bits --save-every 1000000 "${@:2}")
    ln -sf "slurm-$job.out" err
}

rows_of() {
    grep -cs '^[0-9]' "$1" || [ -e "$1" ] || echo 0
}

state() {
    scontrol show job "$job" | sed -n 's/.*JobState=\([A-Z_]*\).*/\1/p'
}

# until_trains -- waits for three more steps. An earlier run that was killed may have left an older file with rows.
until_trains() {
    until_true 'from=$(latest_row) && [ -n "$from" ]' && until_true '[ "0$(latest_row)" -ge $((from + 3)) ]'
}
latest_row() {
    # shellcheck disable=SC2012 # the trainer made these names
    tail -n 1 "$(ls -t loss.csv.*.tmp 2>/dev/null | head -1)" 2>/dev/null | grep -o '^[0-9]*'
}

# until_over STATE -- waits until $job is in STATE and no rank is left
until_over() {
    until_true '[ "$(state)" = '"$1"' ] && ! cli_left >/dev/null' || complain "the job is $(state)"
}

# ends_saved STATE -- the job ends with a checkpoint after its last row, and has added rows
ends_saved() {
    until_over "$1"
    [ "$(cat ck/latest)" = "step-$(rows_of loss.csv)" ] || complain "latest is $(cat ck/latest), $(rows_of loss.csv) rows"
    [ "$(rows_of loss.csv)" -gt "$rows" ] || complain "no rows beyond $rows"
    same_bits
}

# A step of two tasks: each is a run of its own, or a script starts one, in each of the ways that Slurm tells ranks of each other.
apart() {
    local pmi i
    for pmi in none pmi2; do
        name="srun --mpi=$pmi: --parallel single in a step of two tasks"
        timed srun --mpi=$pmi -n 2 bash -c 'exec build/fsdp_train "$@" --loss-csv loss-$SLURM_PROCID.csv' bash --parallel single $bits --stop-after 3
        [ $rc = 0 ] || complain "exit status $rc"
        for i in 1 0; do mv loss-$i.csv loss.csv && same_bits || complain "no loss-$i.csv"; done
        rm -f loss.csv
        verdict
        name="srun --mpi=$pmi: a script starts one run, in one of two tasks"
        timed srun --mpi=$pmi -n 2 bash -c '[ $SLURM_PROCID = 0 ] || exec build/fsdp_train "$@"' bash --parallel single $bits --stop-after 3 --loss-csv loss.csv
        [ $rc = 0 ] || complain "exit status $rc"
        same_bits
        rm -f loss.csv
        timed srun --mpi=$pmi -n 2 build/fsdp_train --help
        [ $rc = 0 ] && grep -q '^Usage: fsdp_train' out || complain "--help: exit status $rc"
        verdict
    done
}

whole() {
    name='the batch script of docs/hosts.md: the bits of one device'
    submit -- --stop-after 8
    until_over COMPLETED
    same_bits
    verdict
    rm -rf ck loss.csv
}

losses() {
    by_srun 1
    by_srun 2
    without_pmi2
    apart
    whole
}

# goes_on -- the same command resumes there; then it is cancelled
goes_on() {
    submit
    until_trains
    grep -q "^resumed at step $rows$" err || complain "not resumed at step $rows"
    scancel "$job"
    ends_saved CANCELLED
}

asked() {
    for how in '' --save-async; do
        name="scancel --signal=USR1${how:+, $how}: saves and goes on"
        submit -- $how
        until_trains
        rm -f ck/latest
        scancel --signal=USR1 "$job"
        until_true '[ -s ck/latest ]'
        until_trains
        [ "$(state)" = RUNNING ] || complain "the job is $(state)"
        verdict
        name="scancel${how:+, $how}: saves and ends, and the same sbatch goes on to the same bits"
        scancel "$job"
        ends_saved CANCELLED
        goes_on
        verdict
    done
}

# Slurm checks limits every 30 s.
time_limit() {
    name='the time limit: saves, is requeued, and goes on to the same bits'
    submit --time=1 --signal=TERM@50
    until_true 'scontrol show job "$job" | grep -q Restarts=1'
    until_trains
    grep -q '^ended by SIGTERM' err && grep -q '^resumed at step' err || complain 'not ended by SIGTERM and resumed'
    scancel "$job"
    ends_saved CANCELLED
    verdict
}

lost_node() {
    name='a node is lost: requeued, and goes on to the same bits'
    submit -- --save-every 5
    until_trains
    kill -KILL "${node_pid[2]}"
    wait "${node_pid[2]}" 2>/dev/null
    scontrol update NodeName=node2 State=DOWN Reason=lost
    until_over PENDING
    node 2
    scontrol update NodeName=node2 State=RESUME
    until_true '[ "$(state)" = RUNNING ]'
    until_trains
    [ "$(grep -c '^resumed at step' err)" = 2 ] || complain 'not begun twice'
    scancel "$job"
    ends_saved CANCELLED
    verdict
}

killed_rank() {
    name='a rank is killed: all end with words, and the same sbatch goes on to the same bits'
    submit -- --save-every 2
    until_trains
    kill -KILL "$(rank_process ^build/fsdp_train SLURM_PROCID=3)"
    until_over FAILED
    grep -qE '^\[rank [0-2]/4\] .*(rank 3 .* ended without leaving the group|posting a message)' err || complain 'no words'
    goes_on
    verdict
}

killed_srun() {
    name='srun is killed: all end, and the same sbatch goes on to the same bits'
    submit -- --save-every 2
    until_trains
    pgrep -x srun | xargs kill -KILL
    until_over FAILED
    goes_on
    verdict
}

cd $work || exit 1
OMP_NUM_THREADS=1 "$BUILD/fsdp_train" --parallel single $bits --stop-after 3000 --loss-csv one.csv >err 2>&1 &
one=$!
name='the nodes come up'
set_up && until_true '[ "$(sinfo -h -o %T)" = idle ]'
wait $one || complain 'the run on one device failed'
sed -n '/^#!\/bin\/bash$/,/^```$/{/^```$/!p}' "$top/docs/hosts.md" >train.sbatch
[ "$(grep -c 'srun .*build/fsdp_train' train.sbatch)" = 1 ] || complain 'docs/hosts.md has no such script'
rm -f err
verdict
[ $n_failed = 0 ] || parts= # Slurm did not start
for part in $parts; do
    $part
done
[ $n_failed = 0 ] || tail -n 15 ./*.log
cli_end
