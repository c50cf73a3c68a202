#!/bin/bash
# pss.sh TAG RANKS LOG -- the most memory that a rank of a running job held, and all of them together.
#
# The ranks are the trainers and Pythons whose environment holds FSDP_BENCH_RUN=TAG. Their proportional set sizes (Pss of /proc/PID/smaps_rollup: a page that n processes share counts 1/n
# in each) are read ten times a second until LOG shows the end of step 2, so that the steps that are timed,
# from the third on, run undisturbed: what a step holds is the same in every one. Prints "largest_mb total_mb" (10^6 bytes).
set -u
tag=$1 ranks=$2 log=$3

# ranks_of_job -- process ids; launchers have other names, or (torch.distributed.run) no RANK
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
