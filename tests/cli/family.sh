#!/bin/bash
# family.sh -- a new family of models: the file and the table row that common/model/README.md shows make a model that trains.
. "$(dirname "$0")/lib.sh"
cli_start "$@"
folder=$work/common/model trained=$work/build
mkdir -p "$folder" "$trained"

# Take the file from the page and insert the row.
awk '/^```c$/ { inside = 1; next } /^```$/ { inside = 0 } inside' common/model/README.md >"$folder/onetoken.c"
sed 's/LLAMA_FAMILY[,;]/ONETOKEN_FAMILY, &/; s/"gpt2|/"onetoken|gpt2|/' common/model/family.h >"$folder/family.h"
sed 's/{&GPT2_FAMILY/{\&ONETOKEN_FAMILY, \&GPT2_FAMILY/' common/model/family.c >"$folder/family.c"
lines=$(grep -c . "$folder/onetoken.c")
judge "the example has $lines lines, at most 60" "$([ "$lines" -le 60 ] || echo "it is longer")"

# Build the program: compile the files that list the families again, and link the rest from the library.
read -r compile <"$build/flags"
link=${compile#* / } compile=${compile%% / *}
flags=${compile#"$cc "}
objects=''
for source in "$folder/onetoken.c" "$folder/family.c" trainer/trainer_options.c; do
    object=$trained/$(basename "$source" .c).o objects="$objects $trained/$(basename "$source" .c).o"
    $cc -I"$work" $flags -MF "$work/deps" -c "$source" -o "$object" >>"$work/err" 2>&1 || break
done
$cc -o "$trained/fsdp_train" "$build/trainer/fsdp_train_main.o" $objects "$build/libfsdp.a" $link >>"$work/err" 2>&1
judge 'it compiles without a warning, and links' "$([ -s "$work/err" ] && echo 'the compiler says'; [ -x "$trained/fsdp_train" ] || echo 'no program')"
[ -x "$trained/fsdp_train" ] || cli_end

# train NAME W OPTIONS... -- writes losses to NAME.csv and weights to the folder NAME
train() {
    local name=$1 ranks=$2
    shift 2
    "$build/fsdp_run" -n "$ranks" "$trained/fsdp_train" --model onetoken --synthetic 20000 --steps 12 --seq-len 16 --global-batch 12 --lr 1e-2 \
        --reduction canonical --loss-csv "$work/raw" --export "$work/$name" "$@" >"$work/err" 2>&1 || { echo "exit status $?"; return; }
    cut -d, -f1-4 "$work/raw" >"$work/$name.csv"
}
judge 'it trains on one device' "$(train single 1 --parallel single)"
judge 'its loss falls' "$(awk -F, 'NR == 2 { first = $2 } { last = $2 } END { if (!(last < first - 0.5)) print first " to " last }' "$work/single.csv" 2>&1)"
problem=$(train sharded 3 --gradient-checkpointing --layout per-param)
for what in single.csv:sharded.csv single/model.safetensors:sharded/model.safetensors; do
    [ -n "$problem" ] || cmp "$work/${what%:*}" "$work/${what#*:}" >"$work/err" 2>&1 || problem='other bits'
done
judge 'sharded on three ranks, with recomputation and rows of parameters, it has the bits of one device' "$problem"
judge 'its exported weights are read again' "$("$build/fsdp_run" -n 2 "$trained/fsdp_train" --init-from "$work/sharded" --eval-only \
    --synthetic 20000 --seq-len 16 >"$work/err" 2>&1 || echo 'refused')"
judge 'it is planned for 64 ranks' "$("$trained/fsdp_train" --model onetoken --plan --plan-ranks 64 >"$work/err" 2>&1 || echo 'refused')"
cli_end
