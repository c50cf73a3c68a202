#!/bin/bash
# profile.sh -- --profile DIR: the times add up, the counts follow from the model, and training keeps its bits.
. "$(dirname "$0")/lib.sh"
cli_start "$@"
dir=$work/new/profile report=$work/new/report.csv

# The model: L layers, width C, vocabulary V; B sequences of T tokens on each rank, S steps of which one warms up.
L=2 C=32 V=256 B=2 T=32 S=4
run="--n-layer $L --d-model $C --n-head 2 --seq-len $T --batch-size $B --steps $S --synthetic 5000"
counted=$((S - 1))

# figure FILE COLUMN KIND NAME -- the sum of a column over the rows whose name begins with NAME
figure() {
    awk -F, -v c="$2" -v kind="$3" -v name="$4" \
        '$1 == kind && index($2, name) == 1 { s += $c } END { printf "%.9f", s }' "$1"
}
# expect_figure WHAT GOT EXPECTED -- as numbers
expect_figure() {
    awk -v a="$2" -v b="$3" 'BEGIN { exit a + 0 == b + 0 ? 0 : 1 }' || complain "$1: got $2, expected $3"
}
# expect_true WHAT EXPRESSION
expect_true() {
    awk "BEGIN { exit ($2) ? 0 : 1 }" || complain "$1: $2 does not hold"
}

# Calls and FLOPs by formula, for one rank's file. A linear layer multiplies once in forward and twice in backward. A block has
# 12 C^2 weights in four linear layers, the head V C. In forward, a block's four layers also add biases, to 9 C numbers per
# row, and two of them add the residual, to C.
check_counts() {
    local file=$1 rows=$((B * T))
    expect_figure 'FLOPs of matmul' "$(figure "$file" 5 compute matmul)" \
        $((counted * (L * (6 * rows * 12 * C * C + rows * 11 * C) + 6 * rows * V * C)))
    expect_figure 'calls of matmul' "$(figure "$file" 3 compute matmul)" $((counted * (L * 4 * 3 + 3)))
    expect_figure 'FLOPs of attention' "$(figure "$file" 5 compute attention)" $((counted * L * 7 * B * T * T * C))
    expect_figure 'calls of the loss' "$(figure "$file" 3 compute cross_entropy)" $counted
    expect_figure 'steps' "$(figure "$file" 3 total wall)" $counted
}

# Times: rows add up to their total, which is below the wall time.
check_times() {
    local file=$1 sum wall exposed rest
    sum=$(figure "$file" 4 compute '') wall=$(figure "$file" 4 total wall)
    exposed=$(figure "$file" 4 exposed '') rest=$(figure "$file" 4 rest '')
    expect_true 'sum of the rows' "$sum > 0 && ($sum - $(figure "$file" 4 total compute)) ^ 2 < 1e-12"
    expect_true 'sum and wall' "$sum < $wall"
    expect_true 'what is not accounted for' \
        "($wall - $sum - $exposed - $rest - $(figure "$file" 4 total 'not accounted')) ^ 2 < 1e-12"
    expect_true 'totals' "($exposed - $(figure "$file" 4 total exposed)) ^ 2 < 1e-12 &&
        ($rest - $(figure "$file" 4 total rest)) ^ 2 < 1e-12"
    expect_true 'roof' "$(figure "$file" 7 roof measured) > 1e7 && $(figure "$file" 8 roof measured) > 1e7"
    [ "$(awk -F, '$1 == "compute" && !($4 > 0)' "$file")" = '' ] || complain "a row of $file took no time"
    # Products in bf16 have their own roof, which is measured only when there are such products.
    [ "$(grep -c '^compute,matmul .* bf16,' "$file")" = 0 ] && [ "$(grep -c '^roof,bf16,' "$file")" = 0 ] ||
        awk -F, '$1 == "roof" { roof[$2] = $7 } { row[NR] = $0 }
            END {
                for (i = 1; i <= NR; i++) {
                    split(row[i], f)
                    if (f[2] !~ /^matmul .* (NT|TN) bf16$/) continue # NN also adds in fp32
                    n++ # memory may bound small ones, at the measured rate
                    off += f[10] == "compute" && (f[9] / (f[7] / roof["bf16"]) - 1) ^ 2 > 1e-6
                }
                exit !(roof["bf16"] > 1e7 && n > 0 && !off)
            }' "$file" || complain "rows in bf16 and their roof in $file"
}

# Bytes and calls of the collectives equal what the traffic report measured in a step.
check_collectives() {
    local op
    for op in all-gather reduce-scatter all-reduce; do
        expect_figure "bytes of $op" "$(figure "$dir/profile-rank-0.csv" 6 collective $op)" \
            $((counted * $(awk -F, -v op=$op '$1 == "bytes" && $2 == op { print $3 }' "$report")))
        expect_figure "calls of $op" "$(figure "$dir/profile-rank-0.csv" 3 collective $op)" \
            $((counted * $(awk -F, -v op=$op '$1 == "calls" && $2 == op { print $3 }' "$report")))
    done
}

# profiled W NAME OPTION... -- runs with and without --profile
profiled() {
    local ranks=$1 what=$2 rank n_params updated=0
    shift 2
    expect_good "$ranks" "$what, not profiled" $run "$@" --loss-csv "$work/new/without.csv"
    expect_good "$ranks" "$what" $run "$@" --loss-csv "$work/new/with.csv" --profile "$dir" --memory-report "$report"
    same_losses "$work/new/with.csv" "$work/new/without.csv"
    [ "$(ls "$dir" | wc -l)" = $((2 * ranks + 3)) ] || complain "files: $(ls "$dir" | tr '\n' ' ')"
    for ((rank = 0; rank < ranks; rank++)); do
        check_counts "$dir/profile-rank-$rank.csv"
        check_times "$dir/profile-rank-$rank.csv"
        updated=$((updated + $(figure "$dir/profile-rank-$rank.csv" 6 compute adamw | cut -d. -f1)))
    done
    n_params=$(sed -n 's/.* \([0-9]*\) parameters[ ,].*/\1/p' "$work/out")
    [[ " $* " == *' fsdp '* ]] || n_params=$((n_params * ranks)) # each rank updates all of them
    expect_figure 'bytes of adamw' $updated $((counted * 28 * n_params))
    check_collectives
    expect_true 'memory of the roof is given back' \
        "$(awk -F, '$2 == "other" { print $3 }' "$report") < 1e6 && $(awk -F, '$2 == "total" { print $3 }' "$report") < 1e7"
    grep -q "^# Profile of rank 0: $counted steps" "$dir/profile.md" || complain 'no table'
    grep -q '^| \*\*wall\*\* ' "$dir/profile.md" || complain 'no wall time in the table'
    rm -rf "$dir"
}

profiled 1 'one device' --parallel single
profiled 1 'FSDP' --parallel fsdp
profiled 2 'FSDP' --parallel fsdp
profiled 2 'FSDP, portable' --parallel fsdp --ops portable
export FSDP_ASYNC_COMPUTE=1
profiled 2 'FSDP, computing on a worker' --parallel fsdp
unset FSDP_ASYNC_COMPUTE
profiled 2 'DDP' --parallel ddp
profiled 2 'FSDP, parameters in bf16' --parallel fsdp --param-dtype bf16

expect_good 1 'one step: nothing to count' $run --steps 1 --profile "$dir/"
grep -q '^# Profile of rank 0: 0 steps' "$dir/profile.md" || complain 'no table'
expect_good 1 'into the same directory again' $run --profile "$dir" --val-data LICENSE --eval-every 2 --save "$work/new/ckpt"
expect_figure 'steps' "$(figure "$dir/profile-rank-0.csv" 3 total wall)" $counted
expect_good 1 'a plan' $run --plan --profile "$work/new/none"
[ ! -e "$work/new/none" ] || complain '--plan made the directory'
cli_end
