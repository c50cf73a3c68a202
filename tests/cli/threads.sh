#!/bin/bash
# threads.sh -- how many threads a rank has, and the cores that FSDP_PIN binds it to. Losses, norms and weights do not depend on
# that number: fast and canonical, in fp32 and bf16.
. "$(dirname "$0")/lib.sh"
cli_start "$@"
unset OMP_NUM_THREADS

# ---- how many ---------------------------------------------------------------------------------------------------

# threads_of PID EXPECTED -- the largest number of threads that compute at one time. OpenMP threads have the program's name;
# threads of streams have other names. A team is as large as the number of tiles, so threads come and go. This looks 20 times,
# and goes on while there are too few, without a pause and without a command, which on a busy machine would make looks rare. More
# threads than expected count only if a quarter of the looks see them: there a leaving thread sometimes still exists when the next
# one starts.
threads_of() {
    local name most=0 n looks=0 since more=0 comm word
    name=$(basename "$trainer" | cut -c1-15) since=$(now_ms)
    while [ $((looks += 1)) -le 20 ] || { [ "$most" -lt "$2" ] && [ $(($(now_ms) - since)) -lt 100000 ]; }; do
        n=0
        for comm in /proc/"$1"/task/*/comm; do
            { read -r word <"$comm"; } 2>/dev/null && [ "$word" = "$name" ] && n=$((n + 1))
        done
        [ "$n" -le "$2" ] || more=$((more + 1))
        [ "$n" -le "$most" ] || [ "$n" -gt "$2" ] || most=$n
        [ $looks -gt 20 ] || sleep 0.02
    done
    [ $((more * 4)) -lt $looks ] || most="more than $2"
    echo "$most"
}

# Use two cores: on a large machine an operation may have fewer tiles than threads.
cores=()
for range in $(sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' /proc/self/status | tr , ' '); do
    for ((c = ${range%-*}; c <= ${range#*-}; c++)); do cores+=("$c"); done
done
one=${cores[0]} two=${cores[0]},${cores[1]:-}

# has_threads NAME CORES W EXPECTED [VARIABLE] -- W ranks share CORES; each has EXPECTED threads
has_threads() {
    local on=$2 ranks=$3 expected=$4 pid most seen=0
    case_is "$1: threads of a rank: $4" $3 || return
    rm -f "$work"/loss.csv*
    env ${5:-} taskset -c "$on" $starts -n "$ranks" "$trainer" --steps 1000000 --synthetic 10000 \
        --global-batch $((8 * ranks)) --loss-csv "$work/loss.csv" >"$work/out" 2>"$work/err" </dev/null &
    job=$!
    until_true '[ "$(cat "$work"/loss.csv.*.tmp 2>/dev/null | wc -l)" -gt 2 ]'
    for pid in $(trainers); do
        seen=$((seen + 1))
        most=$(threads_of "$pid" "$expected")
        [ "$most" = "$expected" ] || complain "process $pid has $most threads"
    done
    [ $seen = "$ranks" ] || complain "$seen ranks seen"
    hurt 'kill -TERM $job'
}

# pinned NAME N VALUE -- with FSDP_PIN=VALUE as many ranks as there are cores have N different sets of cores
sets() {
    [ "$(for pid in $(trainers); do grep '^Cpus_allowed_list:' "/proc/$pid/status"; done | sort -u | wc -l)" = "$1" ]
} 2>/dev/null
pinned() {
    case_is "pin: $1" || return
    FSDP_PIN=$3 OMP_NUM_THREADS=1 start "$(nproc)" --steps 1000000 --synthetic 10000 --global-batch "$(nproc)"
    until_true 'grep -q "^step " "$work/out"' # a rank is bound after its start
    until_true "sets $2"
    hurt 'kill -TERM $job'
}

has_threads 'one core' "$one" 1 1
has_threads 'more ranks than cores' "$one" 2 1
has_threads 'OMP_NUM_THREADS on one core' "$one" 2 3 OMP_NUM_THREADS=3
if [ ${#cores[@]} = 1 ]; then
    skip 'two cores' 'there is one'
else
    has_threads 'two cores' "$two" 1 2
    has_threads 'two cores' "$two" 2 1
    pinned "each of $(nproc) ranks has cores of its own" "$(nproc)" 1
    pinned 'FSDP_PIN=0 leaves all ranks all cores' 1 0
fi

# ---- what they compute ------------------------------------------------------------------------------------------

# Large: every operation is divided among threads, with numbers of rows that 2 and 3 do not divide. One row: products that are
# not divided.
large='--size small --n-layer 2 --seq-len 63 --global-batch 6 --steps 2'
one_row='--size small --n-layer 1 --seq-len 1 --global-batch 1 --steps 2'

# same_bits NAME W OPTION... -- on 1, 2 and 3 threads
same_bits() {
    local ranks=$2 threads
    case_is "the same bits on 1, 2 and 3 threads: $1" $2 || return
    shift 2
    for threads in 1 2 3; do
        OMP_NUM_THREADS=$threads ends_with 0 $starts -n "$ranks" "$trainer" --synthetic 10000 "$@" --loss-csv "$work/$threads.csv" \
            --export "$work/$threads"
        same_losses "$work/$threads.csv" "$work/1.csv"
        same_weights "$work/$threads" "$work/1"
    done
}
bf16='--param-dtype bf16 --reduce-dtype bf16'
same_bits 'canonical' 2 $large --reduction canonical
same_bits 'canonical, bf16' 1 $large --reduction canonical $bf16
same_bits 'fast, bf16' 2 $large --reduction fast $bf16
same_bits 'portable' 1 $large --reduction canonical --ops portable
same_bits 'products of one row' 1 $one_row
same_bits 'products of one row, bf16' 1 $one_row $bf16
cli_end
