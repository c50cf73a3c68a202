#!/bin/sh
# pin.sh [BUILD] -- ranks that take the whole machine are bound to cores of their own; FSDP_PIN=0 leaves them free.
set -u
build=${1:-build}
cores=$(env -u OMP_NUM_THREADS nproc)
if [ "$cores" -lt 2 ]; then
    echo 'SKIP pin: one core'
    exit 77
fi
failed=0

# bound NAME WANTED VARIABLE... -- how many different sets of cores the ranks' threads have
bound() {
    name=$1 wanted=$2
    shift 2
    env OMP_NUM_THREADS=1 "$@" timeout 100 "$build/fsdp_run" -n "$cores" "$build/fsdp_train" --steps 1000000 \
        --synthetic 10000 --global-batch "$cores" >/dev/null 2>&1 &
    job=$!
    found=0
    for try in $(seq 500); do # ranks begin unbound, so wait until it is as wanted
        sleep 0.1
        ranks=$(pgrep -P "$(pgrep -P "$job" -x fsdp_run || echo "$job")" -x fsdp_train 2>/dev/null)
        found=$(for pid in $ranks; do sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' "/proc/$pid/status" 2>/dev/null; done |
            sort -u | grep -c .)
        [ "$found" -eq "$wanted" ] && [ "$try" -gt 8 ] && break
    done
    kill -TERM "$job" 2>/dev/null
    wait "$job" 2>/dev/null
    if [ "$found" -eq "$wanted" ]; then
        echo "PASS pin: $name"
    else
        echo "FAIL pin: $name: $found sets of cores, expected $wanted"
        failed=1
    fi
}

bound "each of $cores ranks has cores of its own" "$cores" FSDP_PIN=1
bound 'FSDP_PIN=0 leaves all ranks all cores' 1 FSDP_PIN=0
exit $failed
