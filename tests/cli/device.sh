#!/bin/bash
# device.sh -- --device: a device whose memory the host cannot touch trains with the bits of the CPU.
#
# tests/unit/test_separate.c tests which errors such a device catches.
. "$(dirname "$0")/lib.sh"
cli_start "$@"
run='--n-layer 2 --d-model 32 --n-head 2 --seq-len 16 --batch-size 2 --grad-accum 3 --synthetic 5000 --steps 4'
# Each step of a resumed run equals the same step of an uninterrupted run.
constant='--lr 1e-3 --min-lr 1e-3 --warmup-steps 0'

# ---- what is refused --------------------------------------------------------------------------------------------

npu-smi info >/dev/null 2>&1 ||
    refused 1 'refused: npu' '^--device npu: (.*/fsdp_npu.so: cannot open|this machine has no NPU)' '(make npu|--device cpu)' --device npu
refused 1 'refused: a transport of another device' '^--comm hccl: --device cpu has no transport of its own' '--comm auto' --comm hccl
# There is no GPU here, whether make cuda was run or not.
nvidia-smi -L >/dev/null 2>&1 ||
    refused 1 'refused: cuda' '^--device cuda: (.*/fsdp_cuda.so: cannot open|this machine has no GPU)' '(make cuda|--device cpu)' --device cuda
case_is "the trainer itself needs none of a GPU's libraries"
ldd "$build/fsdp_train" | grep -iE 'cuda|cublas|nccl|ascend|hccl' && complain 'it does'

# A plug-in in a folder above the program's folder or in LD_LIBRARY_PATH is not loaded. If loaded, it would print a
# line.
far=$work/two/one/program
mkdir -p "$far" "$work/plugins" && cp "$build/fsdp_train" "$build/tests/equivalence/equivalence" "$far" || complain 'no copies'
echo '#include <unistd.h>
__attribute__((constructor)) static void loaded(void) { (void)!write(2, "LOADED\n", 7); }' |
    $cc -shared -fPIC -o "$work/plugins/fsdp_cuda_sim.so" -x c - || complain 'cannot compile'
cp "$work/plugins/fsdp_cuda_sim.so" "$work/plugins/fsdp_npu_sim.so"
for place in "$work/two" "$work/two/one"; do
    cp "$work/plugins"/* "$place"
    for library in $(objdump -p "$far/fsdp_train" | awk '$1 == "NEEDED" && $2 !~ /^(libc|ld-linux.*)\.so/ { print $2 }'); do
        cp "$work/plugins/fsdp_cuda_sim.so" "$place/$library"
    done
done
for program in fsdp_train equivalence; do
    for device in cuda-sim npu-sim; do
        case_is "$program loads no plug-in or library from elsewhere, --device $device"
        [ $program = fsdp_train ] && options="$run --device $device" || options='--probe'
        (cd "$work/two" && LD_LIBRARY_PATH=$work/plugins FSDP_DEVICE=$device "$far/$program" $options) >"$work/out" 2>"$work/err"
        rc=$?
        [ $rc = $([ $program = fsdp_train ] && echo 1 || echo 77) ] || complain "exit status $rc"
        grep -q LOADED "$work/err" && complain 'it does'
        grep -q "^--device $device: $far/fsdp_.*_sim.so: cannot open" "$work/err" || complain 'no word of where it looked'
    done
done
# Plug-ins that do not fit or do not load.
cp "$build/tests/equivalence/equivalence" "$work/bin" || complain 'no copy'
# plugin SOURCE [OPTION...] -- build SOURCE as the plug-in of cuda-sim
plugin() {
    echo "$1" | $cc -shared -fPIC -o "$work/bin/fsdp_cuda_sim.so" -x c - -x none "${@:2}" || complain 'cannot compile'
}
# refused_plugin NAME REGEX HINT -- an error: a test of that device must not skip it as a device that is missing
refused_plugin() {
    refused 1 "refused: $1" "$2" "$3" --device cuda-sim
    case_is "refused, not skipped: $1"
    FSDP_DEVICE=cuda-sim "$work/bin/equivalence" --probe >"$work/out" 2>"$work/err"
    rc=$?
    [ $rc != 0 ] && [ $rc != 77 ] || complain "exit status $rc, expected an error"
}
plugin 'const struct { unsigned long long abi; char backend[256]; } fsdp_backend = {1};'
refused_plugin 'a plug-in of other sources' '^--device cuda-sim: fsdp_cuda_sim.so was built from other sources' 'make cuda-sim'
plugin 'int of_a_newer_program(void); int call(void) { return of_a_newer_program(); }'
refused_plugin 'a plug-in that calls what the program has not' \
    '^--device cuda-sim: fsdp_cuda_sim.so does not load: .*undefined symbol: of_a_newer_program' 'make cuda-sim'
echo 'int lost(void) { return 0; }' | $cc -shared -fPIC -x c - -o "$work/bin/liblost.so.2" -Wl,-soname,liblost.so.2
plugin 'int lost(void); int call(void) { return lost(); }' "$work/bin/liblost.so.2"
rm "$work/bin/liblost.so.2"
refused_plugin 'a plug-in without its library' '^--device cuda-sim: fsdp_cuda_sim.so needs liblost.so.2, which is not found' 'LD_LIBRARY_PATH'
: >"$work/bin/fsdp_cuda_sim.so"
refused_plugin 'a plug-in that was cut off' '^--device cuda-sim: fsdp_cuda_sim.so does not load: .*too short' 'make cuda-sim'
rm "$work/bin/fsdp_cuda_sim.so"
refused 1 'refused: another name' "^--device: got 'gpu', expected one of cpu.separate" '' --device gpu
refused 1 'refused: too little memory' 'this run needs [0-9.]+ MB on each rank, 1.0 MB of memory are available to it by --device-memory' \
    '--plan' --device-memory 1 --n-layer 20

case_is 'refused: ranks with different devices (W=2)'
timed "$build/fsdp_run" --no-prefix -n 2 sh -c '
    case $FSDP_RUN in 0*) device=cpu ;; *) device=separate ;; esac
    exec "$0" "$@" --device $device' "$trainer" $run
expect_status 1
says "the option differs: rank 1 has 'device=separate', rank 0 has 'device=cpu'"

# Ranks 0 and 2 are on one host, ranks 1 and 3 on another. The first rank of each host uses GPU 0, the second uses GPU 1. All
# hosts are this machine, so GPU 0 belongs to ranks 0 and 1, not to 0 and 2.
case_is 'ranks numbered in turn over two hosts take the GPUs of their host (W=4)'
if [ -n "$NO_MPI" ] || [ ! -e "$build/fsdp_cuda_sim.so" ]; then
    skip "$name" "${NO_MPI:-there is no stand-in, which g++ builds}"
else
    cp "$build/fsdp_cuda_sim.so" "$work/bin"
    timed env FSDP_SIM_GPUS=2 $MPI_LAUNCHER -n 4 sh -c 'MPI_LOCALRANKID=$((PMI_RANK / 2)) exec "$0" "$@"' "$trainer" $run --device cuda-sim
    grep -q 'ranks 0 and 1 share GPU 0 of this host' "$work/err" || complain "no word of it: $(head -3 "$work/err")"
    rm "$work/bin/fsdp_cuda_sim.so"
fi

# ---- the same bits ----------------------------------------------------------------------------------------------

# both NAME OPTION... -- losses, norms and weights have the same bits on both devices
both() {
    local what=$1 device
    shift
    for device in cpu separate; do
        expect_good 1 "$what, on $device" $run --device $device --loss-csv "$new/$device.csv" --export "$new/$device" "$@"
        cp "$work/out" "$new/$device.out"
    done
    same_losses "$new/cpu.csv" "$new/separate.csv"
    same_weights "$new/cpu" "$new/separate"
}

both 'one device' --parallel single --export-init "$new/init"
both 'DDP' --parallel ddp --reduction canonical
both 'FSDP, with evaluation' --val-data LICENSE --eval-every 2 --n-layer 3 --memory-report "$new/memory.csv"
! grep -q '^order:' "$new/cpu.out" || complain 'its order was checked without --check-order'
case_is 'evaluation: the same losses'
[ "$(grep '^eval' "$new/cpu.out")" = "$(grep '^eval' "$new/separate.out")" ] || complain 'other losses'
both 'FSDP, canonical, in bf16' --reduction canonical --param-dtype bf16 --reduce-dtype bf16 --sharding grad-op
both 'FSDP, every prefetch, portable' --prefetch both --wrap sub-block --ops portable
both 'FSDP, never resharded, SGD' --sharding none --optimizer sgd --batch-size 8 --grad-accum 1
both 'order checked, profiled' --check-order --profile "$new/profile" --val-data LICENSE --eval-every 2
# in_order [FILE] -- --check-order has checked the launches of a step
in_order() {
    says '^order: [0-9]{3,} launches, [0-9]{2,} memory blocks, 0 violations$' "${1:-$work/out}"
}
case_is 'order checked: no violation'
in_order "$new/cpu.out"
in_order "$new/separate.out"
grep -q 'matmul' "$new/profile/profile.md" || complain 'no matmul in the profile'
# How device memory is guarded depends on the machine (common/device/guard.h). Hide the protection keys, if it has any.
printf '#include <errno.h>\nint pkey_alloc(unsigned a, unsigned b) { (void)a; (void)b; errno = ENOSYS; return -1; }\n' |
    $cc -shared -fPIC -o "$work/no_keys.so" -x c - || complain 'cannot compile'
LD_PRELOAD=$work/no_keys.so both 'FSDP, no protection keys' --prefetch both
expect_good 2 'FSDP, order checked, on cpu' $run --reduction canonical --loss-csv "$new/cpu.csv" --check-order --val-data LICENSE \
    --eval-every 1 --save "$new/of-2.save" --export "$new/of-2"
in_order
case_is 'FSDP, no protection keys on one rank (W=2)'
timed "$build/fsdp_run" --no-prefix -n 2 sh -c '
    case $FSDP_RUN in 1*) export LD_PRELOAD="${0%/*}/../no_keys.so" ;; esac
    exec "$0" "$@"' "$trainer" $run --device separate --reduction canonical --loss-csv "$new/mixed.csv"
expect_status 0
same_losses "$new/cpu.csv" "$new/mixed.csv"
for seed in 1 2 3; do
    FSDP_SCHEDULE=$seed FSDP_DEBUG_FILL=1 both "schedule $seed, debug fill" --prefetch both
done
OMP_NUM_THREADS=2 both 'two threads' --d-model 128 --seq-len 128 --steps 2

# ---- from one device to the other -------------------------------------------------------------------------------
for to in cpu separate; do
    [ $to = cpu ] && from=separate || from=cpu
    expect_good 1 "saved on $from" $run $constant --device $from --loss-csv "$new/whole.csv" --export "$new/whole"
    expect_good 1 "saved on $from, stopped" $run $constant --device $from --steps 2 --save "$new/save.$from" --check-order
    in_order
    expect_good 1 "resumed on $to" $run $constant --device $to --resume "$new/save.$from" --export "$new/resumed" --check-order
    in_order
    same_weights "$new/whole" "$new/resumed"
done
case_is 'checkpoints of both: the same bytes'
for to in cpu separate; do # only the run's id differs
    LC_ALL=C sed 's/"run":"[0-9a-f]*"//' "$new/save.$to/step-2/rank-00000.safetensors" >"$new/bytes.$to"
done
cmp -s "$new/bytes.cpu" "$new/bytes.separate" || complain 'other bytes'

case_is 'generate: the same text'
for device in cpu separate; do
    timed "$build/fsdp_generate" "$new/whole" --prompt 'You may ' --length 40 --temperature 1 --device $device
    [ "$rc" = 0 ] || complain "exit status $rc on $device: $(head -3 "$work/err")"
    cp "$work/out" "$new/$device.txt"
done
cmp -s "$new/cpu.txt" "$new/separate.txt" || complain 'another text'
for device in cuda-sim npu-sim; do
    case_is "generate: a plug-in, $device"
    [ -e "$build/fsdp_${device%-sim}_sim.so" ] || { skip "$name" 'it is not built: no C++ compiler' && continue; }
    timed "$build/fsdp_generate" "$new/whole" --prompt 'You may ' --length 40 --device $device
    [ "$rc" = 0 ] && [ "$(wc -c <"$work/out")" -ge 40 ] || complain "exit status $rc: $(head -3 "$work/err")"
done

case_is 'a model that needs operations which the device lacks is refused before anything is read or written'
if [ -e "$build/fsdp_npu_sim.so" ]; then
    for ranks in 1 2; do
        ends_with 1 "$build/fsdp_run" --no-prefix -n $ranks "$build/fsdp_train" --model mnist --size tiny --data /nowhere \
            --export-init "$new/lacks" --device npu-sim
        [ "$(grep -c 'npu has no operation conv2d, which this model needs$' "$work/err")" = 1 ] || complain "W=$ranks: no word about it"
        [ "$(grep -c '^HINT: train this model with --device cpu$' "$work/err")" = 1 ] || complain "W=$ranks: not one hint"
        [ ! -s "$work/out" ] && [ ! -e "$new/lacks" ] || complain 'it has begun'
    done
else
    skip "$name" 'it is not built: no C++ compiler'
fi

# --save-async copies to host memory, not to device memory.
case_is 'too little memory of the host for --save-async'
if [ -e "$build/fsdp_cuda_sim.so" ]; then
    ends_with 1 prlimit --data=100000000 "$build/fsdp_train" $run --n-layer 2 --d-model 512 --n-head 2 --batch-size 1 --device cuda-sim \
        --save "$new/host" --save-async
    grep -qE 'this run needs 79 MB on each rank, [0-9.]+ MB of host memory are available to it' "$work/err" || complain 'no word about it'
    [ ! -e "$new/host" ] || complain 'it has begun'
else
    skip "$name" 'it is not built: no C++ compiler'
fi

# Planned peaks are upper bounds, so a run stays below a limit that the plan accepts.
expect_good 1 'within --device-memory' $run --device separate --device-memory 2
cli_end
