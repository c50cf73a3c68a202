#!/bin/bash
# pss.sh TAG RANKS LOG -- print the peak memory of a running job: of its largest rank, and of all ranks together.
#
# The ranks are the trainers and Pythons with FSDP_BENCH_RUN=TAG in their environment. Reads their proportional set sizes (Pss of
# /proc/PID/smaps_rollup: a page shared by n processes counts 1/n in each) ten times a second until LOG shows the end of step 2.
# The timed steps, from the third on, then run undisturbed; every step holds the same memory. Prints "largest_mb total_mb"
# (10^6 bytes).
set -u
tag=$1 ranks=$2 log=$3

# ranks_of_job -- print process ids. Launchers have other names or, for torch.distributed.run, no RANK
ranks_of_job() {
    grep -slzxF "FSDP_BENCH_RUN=$tag" /proc/[0-9]*/environ | while read -r environ; do
        dir=${environ%/environ}
        case $(cat "$dir/comm" 2>/dev/null) in
        fsdp_train) echo "${dir#/proc/}" ;;
        python* | pt_*) [ "$ranks" != 1 ] && ! grep -szq '^RANK=' "$environ" || echo "${dir#/proc/}" ;;
        esac
    done
}

pids='' largest=0 total=0
for _ in $(seq 1200); do
    # shellcheck disable=SC2086
    [ "$(echo $pids | wc -w)" = "$ranks" ] || pids=$(ranks_of_job)
    sum=0
    for pid in $pids; do
        kb=$(awk '/^Pss:/ { print $2 }' "/proc/$pid/smaps_rollup" 2>/dev/null)
        sum=$((sum + ${kb:-0}))
        [ "${kb:-0}" -gt "$largest" ] && largest=$kb
    done
    [ "$sum" -gt "$total" ] && total=$sum
    grep -qE '^(step 2/|done:)' "$log" 2>/dev/null && break
    [ -e "$log.ended" ] && break
    sleep 0.1
done
echo "$((largest * 1024 / 1000000)) $((total * 1024 / 1000000))"
