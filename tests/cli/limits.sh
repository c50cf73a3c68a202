#!/bin/bash
# limits.sh -- runs under one limit on the process at a time. A run goes on with the same bits, or ends with a message and a
# hint. A run without the limit then resumes from what is left.
#
#   tests/cli/limits.sh [BUILD] [full]        default build; full: more values of each limit
#
# small_shm.sh limits /dev/shm, bad_input.sh limits memory below what a model needs.
. "$(dirname "$0")/lib.sh"
cli_start "$@"
tier=${2:-quick} fresh=1
mkdir "$work/half"
run='--n-layer 1 --d-model 16 --n-head 2 --seq-len 16 --ops portable --reduction canonical --batch-size 0 --synthetic 5000
     --global-batch 12 --steps 6'
outputs="--save $new/save --resume auto --loss-csv $new/loss.csv --export $new/export"

case_is 'without a limit'
good 1 $run --loss-csv "$work/whole.csv"
good 1 $run --stop-after 3 --save "$work/half/save" --loss-csv "$work/half/loss.csv"

# Whether the trainer that was aborted had not reached main yet: a library's constructor needs more than the limit allows. The
# dynamic linker names each constructor that it calls, and then says that it transfers control to the program.
before_main() {
    local aborted
    aborted=$(sed -nE 's/^\[fsdp_run\] rank [0-9]+ \(process ([0-9]+)\) was ended by signal 6 .*/\1/p' "$work/err")
    grep -E "^ *${aborted:-[0-9]+}:.(calling init|transferring control): " "$work/linker" | tail -n 1 | grep -q 'calling init'
}

# limited W OUTCOME LIMIT... -- resumes from step 3 on W ranks, after the shell command LIMIT. how: --save-async or nothing.
#   OUTCOME  'goes on', 'ends', or 'either'
# Output goes through a pipe, which file limits do not affect. as: a command that switches to another user.
as=() how=''
limited() {
    local outcome=$2 launcher=() status
    case_is "${*:3}${how:+, $how} (W=$1): $2" || return
    cp -r "$work/half/." "$new"
    [ ${#as[@]} = 0 ] || chown -R "$user" "$new"
    [ "$1" = 1 ] || launcher=($starts -n "$1")
    limit -k 2 "$limit_s" "${as[@]}" bash -c "${*:3}"' && LD_DEBUG=files exec "$@"' limited "${launcher[@]}" "$trainer" $run $outputs \
        $how 2>&1 </dev/null | cat >"$work/all"
    status=${PIPESTATUS[0]}
    sed '/^ *[0-9]*:\t/d' "$work/all" >"$work/err"
    grep '^ *[0-9]*:\s' "$work/all" >"$work/linker"
    case $status/$outcome in
    0/ends) complain 'exit status 0' ;;
    0/*) ;;
    */'goes on') complain "exit status $status" ;;
    127/*) says 'error while loading' ;;
    1/*) says '^HINT: ' ;;
    134/*) says '^terminate called ' && before_main || complain 'aborted after main had begun' ;;
    139/either) [[ $name = 'ulimit -v '* ]] || complain 'exit status 139' ;; # the stack cannot grow
    *) complain "exit status $status" ;;
    esac
    # If the kernel kills a rank together with the launcher, it may leave the 4 kB with which UCX tests System V segments.
    [ "$status" = 0 ] || [ -z "${CLI_NAMESPACE:-}" ] || ipcrm --all=shm
    check_left
    [ "$status" = 139 ] || check_no_tmp # a killed run leaves them to the next run
    [ "$status" = 0 ] || good 1 $run $outputs
    check_no_tmp
    same_losses "$new/loss.csv" "$work/whole.csv"
    [ -s "$new/export/model.safetensors" ] || complain 'no weights'
}

# each OUTCOME LIMIT VALUE... -- on one rank and on two, with --save and --save-async
each() {
    local outcome=$1 limit=$2 value ranks how
    shift 2
    for value in "$@"; do
        for ranks in 1 2; do
            for how in '' --save-async; do
                limited "$ranks" "$outcome" "$limit $value"
            done
        done
    done
}

more() {
    [ "$tier" = full ] && echo "$@"
}

each ends 'ulimit -n' 3 5
each either 'ulimit -n' 7 12 $(more 4 6 8 9 10 11 13 14 15 16 17 18 19 20)
each 'goes on' 'ulimit -n' 32
each ends 'ulimit -f' 0 8 $(more 1 2 4 16)
limited 1 'goes on' 'ulimit -f 100000'
limited 2 ends 'ulimit -f 100000' # in kB; the memory that ranks share is a file
each ends 'ulimit -s' 256 2048 $(more 64 128 512 1024)
each 'goes on' 'ulimit -s' 4096 $(more unlimited)
# The main thread and OpenMP's threads run operations. A step in bf16 without instructions for it takes more than 2 MB of stack,
# which threads have by default if the stack has no limit. The user may set the stack of OpenMP's threads.
for reduction in canonical fast; do
    large="--n-layer 1 --d-model 512 --n-head 8 --seq-len 64 --batch-size 8 --synthetic 5000 --global-batch 16 --steps 2
        --param-dtype bf16 --ops fast --reduction $reduction"
    case_is "stacks of threads, --reduction $reduction: without a limit"
    ONEDNN_MAX_CPU_ISA=AVX2 good 1 $large --loss-csv "$work/$reduction.csv"
    for limit in 'ulimit -s 4096' 'ulimit -s unlimited' 'export OMP_STACKSIZE=64k'; do
        case_is "stacks of threads, --reduction $reduction: $limit" || continue
        ONEDNN_MAX_CPU_ISA=AVX2 OMP_NUM_THREADS=2 timed bash -c "$limit"' && exec "$@"' limited "$trainer" $large \
            --loss-csv "$new/loss.csv"
        expect_status 0
        same_losses "$new/loss.csv" "$work/$reduction.csv"
    done
done
each ends 'ulimit -d' 1000 10000
each either 'ulimit -d' 50000 $(more 5000 20000 30000 40000 60000 80000)
each either 'ulimit -v' 100000 $(more 20000 50000 80000 120000 140000 160000)
each 'goes on' 'ulimit -v' 2000000
# C libraries report that they have no memory, C++ libraries throw. oneDNN multiplies large products in bf16 if the processor has
# instructions for them. With AMX our own code does, so AMX is masked.
for ranks in 1 2; do
    for n in 1 50 1+; do
        if [ $n = 50 ] && ! grep -qE 'avx512_bf16|amx_bf16' /proc/cpuinfo; then
            skip "oneDNN gets no memory, request $n" 'this processor has no bf16 instructions' && continue
        fi
        case_is "oneDNN gets no memory, request $n" $ranks || continue
        LD_PRELOAD=$(realpath "$build/tests/cli/alloc_fail.so") ALLOC_OF=libstdc++ ALLOC_FAIL=$n ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 launch $ranks ${run/--ops portable/} \
            --param-dtype bf16 --d-model 256 --seq-len 64
        expect_status 1
        says "^\\[rank [01]/$ranks\\] " # the status of oneDNN's function, or what it threw
        says '^HINT: free memory, .*--ops portable'
    done
done
if case_is 'made-up text that memory does not hold as often as there are ranks' 4; then
    timed bash -c 'ulimit -v 3800000 && exec "$@"' limited $starts -n 4 "$trainer" $run --synthetic 1000000000 --steps 1
    expect_refusal '--synthetic needs 1.0 GB on each rank, ' ''
fi
for limit in 'ulimit -l 0' 'ulimit -c 0' 'ulimit -c unlimited' 'ulimit -t 60' 'ulimit -q 0' 'ulimit -i 0' 'ulimit -x 0' \
    'renice -n 19 $$ >&2'; do
    [ "$tier" = quick ] || limited 1 'goes on' "$limit"
    limited 2 'goes on' "$limit"
    how=--save-async
    limited 2 'goes on' "$limit"
    how=''
done
if [ "$(id -u)" = 0 ]; then # root has no limit of processes
    user=54321 as=(setpriv --reuid 54321 --regid 54321 --clear-groups)
    chmod 755 "$work"
    each ends 'ulimit -u' 1 $(more 2 3)
    each either 'ulimit -u' 5 $(more 4 6 7 8 10 12)
else
    skip 'ulimit -u' 'not root: processes that are not of this test count too'
fi
cli_end
