#!/bin/bash
# pin.sh -- ranks that use the whole machine are bound to separate cores; FSDP_PIN=0 binds none.
. "$(dirname "$0")/lib.sh"
cli_start "$@"
unset OMP_NUM_THREADS
cores=$(nproc)
if [ "$cores" -lt 2 ]; then
    echo 'SKIP pin: one core'
    exit 77
fi
export OMP_NUM_THREADS=1

# sets N -- the ranks have N different sets of cores
sets() {
    [ "$(for pid in $(trainers); do grep '^Cpus_allowed_list:' "/proc/$pid/status"; done | sort -u | wc -l)" = "$1" ]
} 2>/dev/null

# bound NAME N VALUE -- FSDP_PIN=VALUE
bound() {
    case_is "pin: $1"
    FSDP_PIN=$3 start "$cores" --steps 1000000 --synthetic 10000 --global-batch "$cores" --loss-csv "$work/loss.csv"
    until_true 100 'grep -q "^step " "$work/out"' # a rank is bound after its start
    until_true 50 "sets $2"
    hurt 'kill -TERM $job'
}
bound "each of $cores ranks has cores of its own" "$cores" 1
bound 'FSDP_PIN=0 leaves all ranks all cores' 1 0
cli_end
