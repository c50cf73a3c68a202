#!/bin/bash
# weights.sh -- what --init-from reads. A rank reads only the part that its shards need, a run that starts from exported weights
# has the bits of the exporting run, and a checkpoint takes precedence.
. "$(dirname "$0")/lib.sh"
cli_start "$@"

run='--synthetic 4096 --global-batch 12 --seq-len 16 --ops portable --reduction canonical'
case_is 'a run of one device (W=1)'
good 1 $run --size small --steps 2 --export-init "$work/init" --export "$work/end"
elems=$(sed -n 's/.* \([0-9]*\) parameters.*/\1/p' "$work/out")

# ---- how much is read -------------------------------------------------------------------------------------------

# Linux adds the bytes that an ended child has read to its parent's rchar, so this shell can print the trainer's.
cat >"$work/counted" <<'SHELL'
#!/bin/bash
"$@" && read -r _ bytes </proc/$$/io && echo "rchar $bytes"
SHELL
chmod +x "$work/counted"

# bytes_read W OPTION... -- the largest number of bytes that a rank reads
bytes_read() {
    local ranks=$1 launcher=()
    shift
    [ "$ranks" = 1 ] || launcher=($starts -n "$ranks")
    ends_with 0 "${launcher[@]}" "$work/counted" "$trainer" $run --size small --steps 0 "$@"
    sed -n 's/^rchar //p' "$work/out" | sort -n | tail -1
}

# reads PARTS W OPTION... -- each rank reads 1/PARTS of the weights; headers and padding may take 64 KiB
without=() # bytes that a rank of W reads without weights: program and libraries
reads() {
    local parts=$1 ranks=$2 n least
    shift 2
    case_is "reads 1/$parts of the weights: $*" $ranks || return
    least=$((elems * 4 / parts))
    [ -n "${without[$ranks]-}" ] || without[$ranks]=$(bytes_read "$ranks")
    n=$(($(bytes_read "$ranks" "$@" --init-from "$work/init") - without[$ranks]))
    [ "$n" -ge "$least" ] && [ "$n" -lt $((least + 65536)) ] || complain "a rank reads $n bytes, expected $least"
}
if [ -r /proc/self/io ]; then
    reads 1 1 --parallel single
    reads 1 2 --parallel ddp
    reads 1 1
    reads 2 2
    reads 4 4
    reads 4 4 --layout per-param
    reads 2 4 --sharding hybrid --fsdp-size 2
else
    skip 'what is read' '/proc/self/io cannot be read'
fi

# ---- the same bits ----------------------------------------------------------------------------------------------

launch 3 $run --size small --steps 2 --export-shard-size 2 --export "$work/split"
if case_is 'in several files' 3; then
    [ "$(ls "$work/split" | grep -c '^model-000[0-9][0-9]-of-00013.safetensors$')" = 13 ] || complain 'expected 13 files'
    launch 2 $run --init-from "$work/split" --steps 0 --export "$new/again"
    same_weights "$work/end" "$new/again"
fi
launch 1 $run --steps 2 --export-optimizer "$work/states"
for how in '' '--layout per-param' '--sharding none' '--parallel ddp'; do
    case_is "states of the optimizer: $how" 3 || continue
    launch 3 $run --steps 2 --export-optimizer "$new/states" $how
    cmp "$work/states" "$new/states" || complain 'other states'
done

# ---- values that are not finite ---------------------------------------------------------------------------------

# spoiled FLOATS BYTES -- $new is a tiny model whose last FLOATS floats are BYTES, for printf
spoiled() {
    local at i
    cp "$work/tiny"/* "$new"
    at=$(($(stat -c %s "$new/model.safetensors") - 4 * $1))
    for i in $(seq "$1"); do printf "$2"; done | dd of="$new/model.safetensors" bs=4 seek=$((at / 4)) conv=notrunc status=none
}
small='--synthetic 4096 --global-batch 12 --seq-len 16'
case_is 'tiny weights'
good 1 $small --size tiny --steps 0 --export "$work/tiny"
for ranks in 1 3; do
    fresh=1
    if case_is 'an imported NaN' "$ranks"; then
        spoiled 3 '\0\0\300\177'
        launch "$ranks" $small --init-from "$new" --steps 3
        expect_refusal 'model.safetensors: transformer.ln_f.bias\[61\]: got nan, expected a finite number' 'weights whose values'
        untrained
    fi
    # the norm's gain and bias are the largest floats: the logits overflow
    if case_is '--eval-only: a loss that is not finite' "$ranks"; then
        spoiled 128 '\377\377\177\177'
        launch "$ranks" $small --init-from "$new" --eval-only
        expect_refusal 'evaluation after step 0: got loss -?nan, expected a finite number' 'pass other weights'
    fi
    fresh=
done

# ---- what an export takes over ----------------------------------------------------------------------------------

# A source: fields that training does not change, other files, and files that no export needs.
mkdir "$work/source" "$work/source/folder"
cp "$work/tiny"/model.safetensors "$work/source"
cat >"$work/source/config.json" <<'JSON'
{
  "architectures": ["GPT2Model"], "attn_pdrop": 0.10, "bos_token_id": 256, "dtype": "bfloat16",
  "eos_token_id": [256, 1], "initializer_range": 1.0,
  "model_type": "gpt2", "n_ctx": 256, "n_embd": 64, "n_head": 2, "n_inner": null, "n_layer": 2, "n_positions": 256,
  "pad_token_id": null, "task_specific_params": {"a": "b}, \"c"},
  "temperature": 0.5, "vocab_size": 256
}
JSON
for file in tokenizer.json generation_config.json merges.txt spiece.model 'chat template.jinja'; do
    echo "$file of the source" >"$work/source/$file"
done
ln -s merges.txt "$work/source/linked.txt"
for file in .hidden pytorch_model.bin pytorch_model.bin.index.json tf_model.h5; do echo other >"$work/source/$file"; done
mkfifo "$work/source/pipe"
ln -s . "$work/source/round"

# takes_over DIR -- DIR is an export of the source
takes_over() {
    local file text
    [ -d "$1" ] || return
    [ "$(ls -A "$1" | sort | tr '\n' ' ')" = 'chat template.jinja config.json generation_config.json linked.txt merges.txt model.safetensors spiece.model tokenizer.json ' ] ||
        complain "other files: $(ls -A "$1" | tr "\n" " ")"
    for file in "$work/source"/*.txt "$work/source"/*.json "$work/source"/*.model "$work/source"/*.jinja; do
        case $file in */config.json | *.index.json) continue ;; esac
        cmp "$file" "$1/$(basename "$file")" || complain "other bytes: $file"
    done
    for text in '"bos_token_id": 256,' '"eos_token_id": [256, 1],' '"pad_token_id": null,' '"attn_pdrop": 0.10,' '"n_ctx": 256,' '"resid_pdrop":	0,' \
        '"initializer_range": 1.0,' '"temperature": 0.5' '"task_specific_params": {"a": "b}, \"c"}' '"torch_dtype":	"float32"' \
        '"n_embd":	64' '"n_inner":	256' '"architectures":	["GPT2LMHeadModel"]'; do
        [ "$(grep -cF "$text" "$1/config.json")" = 1 ] || complain "not once: $text: $(tr "\n" " " <"$1/config.json")"
    done
    ! grep -q bfloat16 "$1/config.json" || complain 'it takes over the type of the weights'
}
for ranks in 1 3; do
    fresh=1
    if case_is 'an export takes over fields and files' "$ranks"; then
        lr='--lr 1e-3 --min-lr 1e-3'
        good "$ranks" $small $lr --init-from "$work/source" --steps 1 --save "$new/saved" --export-init "$new/init" --export "$new/out"
        takes_over "$new/init" && takes_over "$new/out"
        good "$ranks" $small $lr --init-from "$work/source" --steps 2 --save "$new/saved" --resume auto --export "$new/resumed"
        takes_over "$new/resumed"
        good "$ranks" $small --init-from "$new/out" --steps 0 --export "$new/again"
        takes_over "$new/again"
        cmp <(sort "$new/out/config.json") <(sort "$new/again/config.json") || complain 'other fields'
    fi
    if case_is 'a file of the source that cannot be read' "$ranks"; then
        cp "$work/tiny"/* "$new"
        ln -s nowhere "$new/tokenizer.json"
        launch "$ranks" $small --init-from "$new" --steps 2 --export "$new/out"
        expect_refusal '[-]-init-from: .*/tokenizer.json: No such file' 'move it out of the folder'
        untrained
        good "$ranks" $small --init-from "$new" --steps 0 # nothing is exported
    fi
    fresh=
done

# ---- which weights ----------------------------------------------------------------------------------------------

if case_is 'a checkpoint wins, and the weights need not be there' 2; then
    start="$run --init-from $work/end --seed 5 --save $new/saved --resume auto"
    good 2 $start --steps 2 --lr 1e-3 --min-lr 1e-3 --loss-csv "$new/csv"
    rm "$work/end/model.safetensors"
    launch 2 $start --steps 3 --lr 1e-3 --min-lr 1e-3
    [ "$rc" = 0 ] || complain "exit status $rc: $(cat "$work/err")"
    grep -q '^resumed at step 2; the weights of --init-from are not read' "$work/out" || complain 'not resumed'
fi
cli_end
