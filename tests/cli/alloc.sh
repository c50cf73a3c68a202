#!/bin/bash
# alloc.sh -- later steps allocate nothing: they make no call of malloc, no mapping, and need no more memory.
#
# Each case runs the trainer for FEW and for MANY steps and compares the calls of all ranks. alloc_count.so counts the calls
# of malloc, mmap and memfd_create. The trainer, and the C library for it, must make the same number in both runs: a step
# reuses the queues, plans and blocks that earlier steps gave back (recycle.h, cpu_memory.c). Calls of other libraries are
# only printed, by library and step: oneDNN allocates packing buffers in every matmul, and libgomp allocates a team when the
# number of threads changes.
#
# Allowed differences, with MANY - FEW = 30 steps:
#   calls    8 per rank. Records are cut from slabs. How many are in use at once depends on how far a host runs ahead of its
#            streams, but never exceeds the jobs of a step, because a step ends with a wait. So a size class may need one
#            more slab; a step uses six to eight classes. One extra call per step would be 30.
#   memory   1920 kB at a rank's peak: half of what 30 steps leak if each loses the smallest activation
#            (4 sequences * 128 tokens * 64 floats = 128 kB). Equal runs differ by 800 kB at most, mostly in MPI.
. "$(dirname "$0")/lib.sh"
cli_start "$@"
few=6 many=36 calls_a_rank=8 peak_kb_more=1920
counter=$build/tests/cli/alloc_count.so
[ -f "$counter" ] || { echo "FAIL alloc: no $counter: make tests" && exit 1; }
if grep -qaE '__(asan|tsan)_init' "$build/fsdp_train"; then
    echo 'SKIP alloc: a sanitizer has an allocator of its own'
    exit 77
fi
cp "$counter" "$work/bin/" || exit 1

# counted W none|LAUNCHER STEPS OPTION... -- one run; its counts are in $work/count-STEPS, one file per rank
counted() {
    local ranks=$1 launcher=$2 steps=$3 dir=$work/count-$3 start=()
    shift 3
    [ "$launcher" = none ] || start=($launcher -n "$ranks")
    rm -rf "$dir" && mkdir "$dir"
    timed "${start[@]}" env LD_PRELOAD="$work/bin/alloc_count.so" ALLOC_COUNT="$dir" "$trainer" --steps "$steps" \
        --synthetic 10000 --n-layer 2 --seq-len 128 --batch-size 4 "$@"
    [ "$rc" = 0 ] || complain "exit status $rc with $steps steps"
    [ "$(ls "$dir" | wc -l)" -eq "$ranks" ] || complain "$(ls "$dir" | wc -l) counts of $ranks ranks"
}

# calls_by STEPS KEY -- sums over all ranks: one line "KEY CALLS BYTES" per key. KEY is an awk expression
calls_by() {
    cat "$work/count-$1"/* | awk "\$1 != \"peak_kb\" { k = $2; calls[k] += \$3; bytes[k] += \$4 }
        END { for (k in calls) print k, calls[k], bytes[k] }" | LC_ALL=C sort
}

# more_by KEY -- "KEY CALLS BYTES": what MANY steps have more than FEW. Equal keys are left out
more_by() {
    calls_by "$few" "$1" >"$work/few" && calls_by "$many" "$1" >"$work/many"
    LC_ALL=C join -a 1 -a 2 -e 0 -o 0,1.2,1.3,2.2,2.3 "$work/few" "$work/many" |
        awk '$4 != $2 { print $1, $4 - $2, $5 - $3 }'
}

peak_kb() {
    sed -n 's/^peak_kb \([0-9]*\) .*/\1/p' "$work/count-$1"/* | sort -n | tail -1
}

# The functions and lines of the program that make the most additional calls.
own_sites() {
    more_by '$1 "+" $2' | sed -n 's/^program+//p' | sort -k2nr | head -5 | while read -r at calls bytes; do
        echo "     $calls calls, $bytes bytes: $(addr2line -sfpe "$trainer" "0x$at" 2>/dev/null || echo "at $at")"
    done
}

# steps_alike NAME W LAUNCHER OPTION... -- one case
steps_alike() {
    local steps own libraries more
    case_is "$1" "$2" || return
    shift
    [ "$2" != "$MPI_LAUNCHER" ] || [ -z "$NO_MPI" ] || { skip "$name" "$NO_MPI" && return; }
    for steps in "$few" "$many"; do
        [ -n "$bad" ] || counted "$1" "$2" "$steps" "${@:3}"
    done
    [ -z "$bad" ] || return
    own=$(more_by '$1' | awk '$1 == "program" || $1 == "libc.so.6" { n += $2 } END { print n + 0 }')
    libraries=$(more_by '$1' | awk -v steps=$((many - few)) '$1 != "program" && $1 != "libc.so.6" && $2 >= steps {
        printf "%s %s %.0f", sep, $1, $2 / steps; sep = "," }')
    more=$(($(peak_kb "$many") - $(peak_kb "$few")))
    [ "$own" -le $((calls_a_rank * ranks)) ] || {
        complain "$own more calls in $((many - few)) more steps, expected at most $((calls_a_rank * ranks))"
        own_sites
    }
    [ "$more" -le "$peak_kb_more" ] || complain "the peak is $more kB higher, expected at most $peak_kb_more"
    [ -n "$bad" ] || name="$name: $own calls, $more kB; a step of libraries:${libraries:- none}"
}

run=$build/fsdp_run
steps_alike 'one device' 1 none --parallel single
steps_alike 'fsdp, canonical, micro-steps' 1 none --reduction canonical --grad-accum 2
steps_alike 'fsdp over shm, fast' 2 "$run" --comm shm
steps_alike 'fsdp over shm, canonical, bf16' 2 "$run" --comm shm --reduction canonical --param-dtype bf16 \
    --reduce-dtype bf16 --sharding grad-op
steps_alike 'portable maths, unsharded' 2 "$run" --comm shm --ops portable --sharding none --grad-accum 2
steps_alike 'ddp under MPI, over shm' 2 "$MPI_LAUNCHER" --parallel ddp --comm shm
steps_alike 'fsdp over mpi, fast, bf16' 2 "$MPI_LAUNCHER" --comm mpi --param-dtype bf16
steps_alike 'fsdp over mpi, canonical, micro-steps' 2 "$MPI_LAUNCHER" --comm mpi --reduction canonical --sharding grad-op \
    --grad-accum 2
steps_alike 'rows over shm' 2 "$run" --comm shm --layout per-param --grad-accum 2
steps_alike 'rows over mpi, canonical, bf16' 2 "$MPI_LAUNCHER" --comm mpi --layout per-param --reduction canonical --param-dtype bf16 \
    --reduce-dtype bf16
export MPIR_CVAR_NUM_CLIQUES=2 MPIR_CVAR_CLIQUES_BY_BLOCK=1
no_hosts '2 hosts' && n_skipped=$((n_skipped + 1)) || steps_alike '2 hosts, fsdp over shm and mpi, bf16' 4 "$MPI_LAUNCHER" --reduce-dtype bf16
cli_end
