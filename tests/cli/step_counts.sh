#!/bin/bash
# step_counts.sh -- after warm-up a step of training on a GPU requests no memory of CUDA's pool, and its launches have a limit.
#
# The stand-in for CUDA counts both in a process. A step's counts are the difference between 10 and 6 steps, divided by 4.
. "$(dirname "$0")/lib.sh"
cli_start "$@"
[ -e "$build/fsdp_cuda_sim.so" ] || { skip 'all' 'there is no stand-in, which g++ builds' && cli_end; }
cp "$build/fsdp_cuda_sim.so" "$work/bin"
export FSDP_SIM_COUNTS=1
run='--device cuda-sim --vocab-size 32 --n-layer 2 --d-model 16 --n-head 1 --seq-len 4 --batch-size 1 --synthetic 5000'

# step NAME LAUNCHES OPTION... -- a case: a step has no request and at most so many launches; LAUNCHES '': any number
step() {
    local steps seen=()
    case_is "$1, --parallel $parallel"
    for steps in 6 10; do
        good 1 $run --parallel $parallel --steps $steps "${@:3}"
        seen+=($(sed -n 's/^sim: \([0-9]*\) requests, \([0-9]*\) launches$/\1 \2/p' "$work/err"))
    done
    [ ${#seen[@]} = 4 ] || { complain 'no counts' && return; }
    [ "${seen[0]}" = "${seen[2]}" ] || complain "$((seen[2] - seen[0])) requests in 4 steps"
    [ -z "$2" ] || [ $((seen[3] - seen[1])) -le $((4 * $2)) ] || complain "$((seen[3] - seen[1])) launches in 4 steps, at most $((4 * $2)) expected"
}
for parallel in single fsdp; do
    [ $parallel = single ] && launches=236 || launches=301
    step 'bf16, 12 layers' $launches --n-layer 12 --param-dtype bf16
    step 'fp32' ''
    step 'layers computed again' '' --gradient-checkpointing
    step 'micro-steps' '' --grad-accum 3
    step 'loss in chunks' '' --chunk-loss 3
    step 'an evaluation after each step' '' --vocab-size 0 --val-data LICENSE --eval-every 1 --eval-batches 1
    step 'canonical, 12 layers' '' --n-layer 12 --reduction canonical --global-batch 8 --batch-size 8
done
cli_end
