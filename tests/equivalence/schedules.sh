#!/bin/sh
# schedules.sh -- training under the adversarial scheduler: the bits of one device, whatever the order.
#
#   tests/equivalence/schedules.sh [quick|full] [BUILD]     quick: seeds 1 to 5; full: 1 to 200
#   SEEDS="7 9" CASES=REGEX                                 these seeds; the configurations that match
#
# A configuration passes when losses and norms are those of one device, bit for bit, under every seed. Memory is
# filled with NaN before and after its use. Ends with "N passed, N failed". Logs: $BUILD/schedules/.
set -u
cd "$(dirname "$0")/../.." || exit 2
mode=${1:-quick}
BUILD=${2:-${BUILD:-build}}
case $mode in
quick) SEEDS=${SEEDS:-$(seq 5)} ;;
full) SEEDS=${SEEDS:-$(seq 200)} ;;
*) echo "usage: $0 [quick|full] [BUILD]" >&2 && exit 2 ;;
esac
. tests/tools/env.sh
. tests/tools/check.sh
OUT=$BUILD/schedules
mkdir -p "$OUT" || exit 2
export OMP_NUM_THREADS=1 FSDP_DEBUG_FILL=1 FSDP_TIMEOUT_S=100

# Ranks, transport, --param-dtype, further options.
configurations='
2 shm fp32 --sharding full
3 shm fp32 --sharding full --wrap sub-block
4 shm bf16 --sharding full
3 shm fp32 --sharding grad-op
2 shm bf16 --sharding grad-op
4 shm fp32 --sharding hybrid --fsdp-size 2
2 shm fp32 --sharding none
2 mpi fp32 --sharding full
3 mpi fp32 --sharding grad-op
4 mpi fp32 --sharding hybrid --fsdp-size 2
2 shm fp32 --sharding full --prefetch both
3 shm fp32 --sharding full --wrap sub-block --prefetch both --limit-all-gathers 1
4 shm bf16 --sharding hybrid --fsdp-size 2 --prefetch backward-post
4 shm fp32 --sharding full --prefetch both --bucket 110000
2 shm fp32 --sharding none --prefetch backward
2 mpi fp32 --sharding full --prefetch both --limit-all-gathers 1
3 mpi fp32 --sharding grad-op --prefetch forward
4 mpi bf16 --sharding full --prefetch both
'
# 12 sequences are 2 micro-steps of 3 ranks, and 3 of 2 or 4.
same='--size tiny --n-layer 4 --seq-len 16 --synthetic 4096 --global-batch 12 --steps 3 --lr 3e-3 --warmup-steps 0
    --reduction canonical --ops portable'

# reference DTYPE -- the losses of one device, in the order that needs no scheduler
reference() {
    # shellcheck disable=SC2086 # words
    "$BUILD/fsdp_train" --parallel single $same --param-dtype "$1" --loss-csv "$OUT/$1.csv" >"$OUT/$1.log" 2>&1 &&
        [ -s "$OUT/$1.csv" ]
}

# run SEED RANKS OVER DTYPE OPTION... -- 0: the bits of one device
run() {
    seed=$1 ranks=$2 over=$3 dtype=$4
    shift 4
    starts=$LAUNCHER
    [ "$over" = mpi ] || starts="$BUILD/fsdp_run --no-prefix"
    rm -f "$OUT/run.csv"
    # shellcheck disable=SC2086 # words
    FSDP_SCHEDULE=$seed FSDP_COMM=$over timeout -k 5 300 $starts -n "$ranks" "$BUILD/fsdp_train" $same \
        --param-dtype "$dtype" "$@" --loss-csv "$OUT/run.csv" >"$OUT/run.log" 2>&1 </dev/null &&
        "$BUILD/fsdp_compare" "$OUT/$dtype.csv" "$OUT/run.csv" >>"$OUT/run.log" 2>&1
}

# all_seeds RANKS OVER DTYPE OPTION... -- a PASS or FAIL line for the configuration
all_seeds() {
    what="W=$1 over $2, $3, $(shift 3 && echo "$*")"
    n=0 bad='' why=''
    for seed in $SEEDS; do
        n=$((n + 1))
        run "$seed" "$@" && continue
        bad="$bad $seed"
        why=${why:-$(grep -m1 -vE '^ *$|^fsdp|^data|^step' "$OUT/run.log")}
        cp "$OUT/run.log" "$OUT/failed-$seed.log"
    done
    if [ -z "$bad" ]; then
        echo "PASS $what: $n seeds"
        return
    fi
    echo "FAIL $what: seeds$bad of $n: $why"
    return 1
}

for dtype in fp32 bf16; do
    reference $dtype && continue
    echo "FAIL one device, $dtype: see $OUT/$dtype.log"
    exit 1
done
while read -r configuration; do
    echo "$configuration" | grep -qE "${CASES:-.}" || continue
    # shellcheck disable=SC2086 # words
    set -- $configuration
    [ "$2" != mpi ] || [ -z "$NO_MPI" ] || { no_mpi "W=$1 over mpi" && skipped=$((skipped + 1)) && continue; }
    # shellcheck disable=SC2086 # words
    if all_seeds $configuration; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
done <<EOT
$(echo "$configurations" | sed '/^$/d')
EOT
sum
