#!/bin/sh
# tables.sh [BUILD [plans|run]] -- compare published tables with ours. Default: both parts.
#
# plans  memory and traffic, by --plan, of models too large for this machine. Only the published figures are typed in; none is
#        measured. A row's command is the command above its table, with the row's options in place of OPTIONS.
# run    a model of 4.7 M parameters, trained on 1, 2, 4 and 8 ranks with the same data: losses and sums of parameters.
#        Fails if a digit differs.
#
# FSDPToys' figures come from its README, in GiB. The lecture is on FSDP's memory arithmetic; its figures are in 10^9 bytes.
# The figures of fsdp-learning-cs336-style come from its README, in GiB: 48.5 - 40.6 = 7.9 is 4 bytes for each parameter.
set -u
build=${1:-build}
part=${2:-all}
BUILD=$build
. tests/tools/env.sh
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT INT TERM

# ---- plans -----------------------------------------------------------------------------------------------------------

# heading TITLE OPTION... -- sets $common, the options of all rows of a table
heading() {
    printf '\n%s\n\n' "$1"
    shift
    common=$*
    printf '    build/fsdp_train --plan %s OPTIONS\n\n' "$common"
    printf '| OPTIONS | what | published | ours | why they differ |\n|---|---|---:|---:|---|\n'
}

# plan OPTION... -- write $work/text and $work/blocks; set $options, the options that a row shows
plan() {
    options=$*
    # shellcheck disable=SC2086 # words
    "$build/fsdp_train" --plan $common $options --snapshot "$work/blocks.csv" >"$work/text" && return
    echo "tables.sh: the plan failed: --plan $common $options" >&2
    exit 1
}

# row WHAT PUBLISHED OURS WHY
row() {
    # shellcheck disable=SC2016 # backquotes of Markdown
    printf '| %s | %s | %s | %s | %s |\n' "${options:+\`$options\`}" "$@"
    options=
}

# held CATEGORY... -- bytes in the plan's list of peaks ("at one moment": their sum at the peak)
held() {
    for category in "$@"; do
        awk -v name="$category" '{ line = $0; sub(/^ +/, "", line) }
            index(line, name " ") == 1 { sub(name " +", "", line); printf "%.0f\n", line }' "$work/text"
    done | awk '{ n += $1 } END { printf "%.0f", n }'
}

# state LABEL... -- bytes of device memory blocks with these labels that are live after the step
state() {
    for label in "$@"; do echo "$label"; done |
        awk -F, 'NR == FNR { wanted[$1]; next } $1 in wanted && $8 == "" && $10 == "device" { n += $6 } END { printf "%.0f", n }' \
            - "$work/blocks.csv"
}

# block LABEL -- bytes of unit h.1's block with that label
block() { awk -F, -v label="$1" '$1 == label && $3 == "h.1" { print $6; exit }' "$work/blocks.csv"; }
sent() { awk '$NF == "bytes" { n += $(NF - 1) } END { printf "%.0f", n }' "$work/text"; }
calc() { awk "BEGIN { printf \"$1\", $2 }"; }
gib() { calc %.2f "$1 / 1024 ^ 3"; }
gb() { calc %.2f "$1 / 1e9"; }

# toys ALLOCATED RESERVED EXTRA WHY OPTION... -- print a row of FSDPToys. EXTRA: bytes that its program holds between steps
toys() {
    allocated=$1 reserved=$2 extra=$3 why=$4
    shift 4
    plan "$@"
    kept=$(state 'parameter shard' exp_avg exp_avg_sq)
    with="$(gib $((angles + hidden))) of angles and hidden states"
    [ "$extra" = "$logits" ] && with="$(gib "$logits") of logits and $with"
    row allocated "$allocated" "$(gib "$kept")" "theirs holds $with too: $(gib $((kept + extra + angles + hidden)))"
    row 'reserved; peak' "$reserved" "$(gib "$(held 'at one moment')")" "$why"
}

plans() {
    heading 'FSDPToys: Llama 2 7B on 8 devices, a sequence of 4096 tokens each, bf16; GiB; reserved: FSDP1, FSDP2' \
        --plan-ranks 8 --device separate --model llama --size llama2-7b --seq-len 4096 --batch-size 1 --param-dtype bf16
    # its program's variables keep from step to step: bf16 logits; fp32 angles of 65536 positions; bf16 hidden states
    logits=$((4096 * 32000 * 2)) angles=$((65536 * 128 * 4)) hidden=$((4096 * 4096 * 2))
    cl='--gradient-checkpointing --chunk-loss'
    again='their norms keep fp32 copies, their MLP silu(gate) and a product; ours computes these again. Reserved counts gaps too'
    pieces='theirs loads all moments to update; ours two pieces of 32 MiB'
    toys 9.72 '44.92, 40.78' $logits "$again"
    toys 9.72 '21.90, 18.17' $logits 'reserved is what an allocator took, with gaps; a peak is what is held at one moment' \
        --gradient-checkpointing
    toys 9.48 '21.59, 17.78' 0 'as above; a chunk of the loss has 1024 tokens in both' "$cl"
    toys 3.20 '20.20, 13.62' 0 "$pieces" "$cl" --optimizer-offload
    toys 0.06 '12.31, 8.44' 0 'gaps; a chunk of their loss has logits and their gradient in fp32 too' "$cl" --cpu-offload
    toys 0.06 '9.36, 7.64' 0 'as above; units of half a block' "$cl" --cpu-offload --wrap sub-block
    toys 9.72 '42.80, 40.36' $logits 'as in the first row' --wrap sub-block
    toys 9.72 '19.85, 17.45' $logits 'gaps; ours keeps two inputs of each block, because a segment lies in one unit' \
        --wrap sub-block --gradient-checkpointing

    heading 'The lecture: 70B on 128 devices; GB' \
        --plan-ranks 128 --model llama --size llama2-70b --seq-len 4096 --batch-size 1 --param-dtype bf16
    plan
    row 'parameters' 2.1 "$(gb "$(held params_shard)")" "4 bytes of each of Llama 2's $(calc %.0f "$(held params_shard) * 32") \
parameters; of 70e9: $(gb '(70e9 * 4 / 128)')"
    row 'first moments' 2.1 "$(gb "$(state exp_avg)")" 'the same'
    row 'second moments' 2.1 "$(gb "$(state exp_avg_sq)")" 'the same'
    row 'gathered, a unit' 1.8 "$(gb "$(block 'gathered unit')")" \
        "2 bytes of each of a block's $(calc %.0f "$(block 'gathered unit') / 2"); of 70e9 / 80: $(gb '(70e9 / 80 * 2)')"
    row 'gradients, a unit' 1.8 "$(gb "$(block 'unit gradient')")" 'ours leave the block in fp32, twice the bytes of bf16'

    heading 'The lecture: state of 7B with mixed precision, on one device; GB' \
        --parallel single --model llama --size llama2-7b --seq-len 4096 --batch-size 1 --param-dtype bf16
    plan
    row 'state' 112 "$(gb "$(held params_shard params_full grads_full optimizer)")" \
        'theirs: 16 bytes of each of 7e9 parameters, with bf16 gradients; ours: 18 of each of 6.74e9, with fp32 gradients'

    heading 'The lecture: bytes that FSDP sends, divided by the bytes that DDP sends' --seq-len 4096 --batch-size 1 --model llama
    for case in '8 llama2-7b' '128 llama2-70b'; do
        machine="--plan-ranks ${case% *} --size ${case#* }"
        plan "$machine" --parallel ddp
        ddp=$(sent)
        plan "$machine" '--parallel fsdp'
        row 'sent' 1.5 "$(calc %.3f "$(sent) / $ddp")" \
            'the root, embedding and head, is gathered once a step; over the bytes of --parallel ddp'
    done

    heading 'fsdp-learning-cs336-style: its "GPT-2 XL" (SwiGLU, untied), in fp32, sequences of 127 tokens; GiB' \
        --model llama --size cs336-xl --seq-len 127
    plan --parallel single --batch-size 8
    n=$(calc %.0f "$(held params_shard) / 4")
    row "single, $n parameters" 40.6 "$(gib "$(held 'at one moment')")" \
        "state: 16 bytes a parameter, $(gib "$n * 16"); PyTorch's AdamW makes an array of 4 more, $(gib "$n * 4"); ours updates in place"
    plan --parallel ddp --plan-ranks 8 --batch-size 1
    row 'DDP' 48.5 "$(gib "$(held 'at one moment')")" "4 more for the buckets: $(gib "$n * 4"); ours reduces gradients where they are"
    plan --parallel fsdp --plan-ranks 8 --batch-size 1
    row 'FSDP' 22.0 "$(gib "$(held 'at one moment')")" \
        "state: $(gib "$n * 16 / 8"); theirs gathers 10 to 15 layers at once in backward and reuses no buffer, says its WRITEUP; ours two blocks"
}

# ---- run -------------------------------------------------------------------------------------------------------------

model='--model llama --size small --n-layer 4 --n-head 4 --n-kv-head 4 --d-ff 1024 --vocab-size 1000'
recipe='--ops portable --reduction canonical --seq-len 32 --global-batch 8 --steps 10 --lr 1e-4 --synthetic 20000'

# sum FILE -- print the sum of all elements of a safetensors file. Its first 8 bytes are the length of its header
sum() {
    header=$(od -An -N8 -tu8 "$1") || return
    od -An -v -tf4 -w64 -j $((header + 8)) "$1" | awk '{ for (i = 1; i <= NF; i++) s += $i } END { printf "%.9f", s }'
}

# trained RANKS OPTION... -- train and print a row; adds a line of checksums to $work/all
trained() {
    ranks=$1
    shift
    rm -rf "$work/csv" "$work/out"
    # shellcheck disable=SC2086 # words
    "$build/fsdp_run" --no-prefix -n "$ranks" "$build/fsdp_train" $model $recipe "$@" \
        --loss-csv "$work/csv" --export "$work/out" >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
    losses=$(awk -F, '$1 == 0 || $1 == 4 || $1 == 9 { printf "%s | ", $2 }' "$work/csv")
    weights=$(sha256sum <"$work/out/model.safetensors") # equal files have equal sums
    [ -s "$work/$weights" ] || sum "$work/out/model.safetensors" >"$work/$weights"
    echo "| \`$*\` | $ranks | $losses$(cat "$work/$weights") |"
    cut -d, -f1-3 "$work/csv" | sha256sum | sed "s/\$/ $weights/" >>"$work/all"
}

run() {
    printf '\nTrained: 8 sequences of 32 tokens a step, whatever the ranks\n\n'
    printf '    build/fsdp_run -n RANKS build/fsdp_train %s %s OPTIONS\n\n' "$model" "$recipe"
    printf '| OPTIONS | RANKS | loss, step 0 | step 4 | step 9 | sum of parameters |\n|---|---:|---:|---:|---:|---:|\n'
    trained 1 --parallel single
    trained 8 --parallel ddp
    for ranks in 1 2 4 8; do trained $ranks --parallel fsdp; done
    different=$(sort -u "$work/all" | wc -l)
    cat <<END

Ours: $(wc -l <"$work/all") runs; different sets of losses, norms and weights: $different.
fsdp-learning-cs336-style, a model of this size: 7.1115722656 alone, 7.1115728617 with FSDP on 8 in step 0, 7.0903291702 and
7.0903295875 in step 4; sums 2286.522773 and 2286.522717. Its "GPT-2 XL", steps 0 and 9: 10.8519020 and 10.8702612 alone,
10.8519036 and 10.8702625 with DDP, 10.8519036 and 10.8702623 with FSDP. Weights on 1, 2, 4 and 8 devices: 2.98e-8 apart.
Its sums over a batch are bracketed by devices; ours have one shape (--reduction canonical).
END
    [ "$different" -eq 1 ]
}

case $part in
plans) plans ;;
run) run ;;
all) plans && run ;;
*)
    echo "tables.sh: part: got '$part', expected plans or run" >&2
    echo 'HINT: tests/bench/tables.sh build plans' >&2
    exit 2
    ;;
esac
